"""The values of the golden files: `write.py` writes them, `test_golden.py` finds them in the bytes.

A value never changes after its bytes are written; a new kind, or a new version of a format, gets a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from lowmark.integration.coordinator import messages
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.transport import driver_rpc
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources import HybridSource, Source, SourceSplit
from lowmark.sources.files import FileSource, FileSplit
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.hybrid import HybridSplit, HybridState
from lowmark.sources.kafka import KafkaEnumeratorState, KafkaSource, KafkaSplit
from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.kinesis.split import KinesisSplit, after, at
from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.planning.offset import BatchState, Placed
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.pravega import PravegaSource
from lowmark.sources.pravega.segment import PravegaSplit, split_of
from lowmark.watermark import LowmarkError, NotifyNewLowWatermark, SplitState, TaskId
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskRegistered,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.splits.history import Held
from lowmark.watermark.splits.snapshot import StreamSnapshot
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import GroupStatus, MemberStatus
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.status import CoordinatorStatus, SourceStatus, TaskStatus

NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z
SECOND_US = 1_000_000

# -- a stream's state in heartbeats

SNAPSHOTS: Mapping[str, StreamSnapshot] = {
    "empty": StreamSnapshot(),
    "numbers": StreamSnapshot(
        0,
        {
            0: (SplitState.PENDING, None),
            7: (SplitState.ACTIVE, 0),
            8: (SplitState.PAUSED, NOON_US),
            2**63: (SplitState.IDLE, -(2**63)),
            2**64 - 1: (SplitState.FINISHED, 2**63 - 1),
        },
        {7: "orders/7", 2**63: "Aufträge/8"},
    ),
    "names": StreamSnapshot(
        NOON_US,
        {
            "orders/0": (SplitState.ACTIVE, NOON_US),
            "orders/1": (SplitState.PENDING, None),
            "orders/2": (SplitState.PAUSED, NOON_US + 5),
            "orders/3": (SplitState.IDLE, NOON_US - 1),
            "Aufträge\n4": (SplitState.FINISHED, NOON_US + 9 * SECOND_US),
        },
    ),
    "resharded": StreamSnapshot(
        NOON_US - 1_000,
        {
            "shard-0": (SplitState.FINISHED, NOON_US),
            "shard-1": (SplitState.ACTIVE, NOON_US - 1_000),
            "shard-0-0": (SplitState.PENDING, None),
            "shard-0-1": (SplitState.PENDING, None),
            "shard-2": (SplitState.PENDING, None),
        },
        ancestry={
            "shard-0-0": (("shard-0",), None),
            "shard-0-1": (("shard-0",), NOON_US - 500),
            "shard-2": (("gone", "shard-1"), NOON_US - 2_000),
        },
    ),
}


def heartbeat(name: str, state: str) -> HeartbeatOffset:
    """The heartbeat's offset that carries a state."""
    return HeartbeatOffset(f"stream {name}", SNAPSHOTS[name].low_us, token=f"run-{name}", epoch=7, state=state)


FIRST_HEARTBEAT = HeartbeatOffset("orders")
FAREWELL = Farewell(token="0123abcd", epoch=9, batch_id=17, state="TFdNSw==")

# -- the state of a source of ours

GENERATOR = GeneratorSource(StreamScript((SplitScript("a", 2),), NOON_US, 20, SECOND_US, 1), seed=7)
ENDED = GeneratorSource(GENERATOR.script, seed=7, bounded=True)
KAFKA = KafkaSource(bootstrap_servers="broker:9092", topics=["orders"])
FILES = FileSource("folder", schema=pa.schema([("id", pa.int64())]), bounded=True)

SOURCES: Mapping[str, Source[Any, Any]] = {
    "generator": GENERATOR,
    "kafka": KAFKA,
    "files": FILES,
    "hybrid": HybridSource(ENDED, GENERATOR),
}
_PART = SourceSplit(split_id="a", start=3, stop=9, parents=("old", "older"))
_OPEN = SourceSplit(split_id="b", start=4)
_ORDERS = KafkaSplit(split_id="orders/0@qX1", start=2**40, stop=2**40 + 5, topic="orders", partition=0, topic_id="qX1")
_NEXT = KafkaSplit(split_id="orders/1", start=12, topic="orders", partition=1)
_FILE = FileSplit(split_id="2026/a.parquet", start=0, stop=1_000, size_bytes=77, modified_us=NOON_US)
SPLITS: Mapping[str, tuple[SourceSplit, ...]] = {
    "generator": (_PART, _OPEN),
    "kafka": (_ORDERS, _NEXT),
    "files": (_FILE, FileSplit(split_id="Büro.csv")),
    "hybrid": (HybridSplit.wrap(0, _PART), HybridSplit.wrap(1, _OPEN)),
}
_KAFKA_STATE = KafkaEnumeratorState(
    DiscoveredSplits(discovered=True, assigned=("orders/0@qX1",), pending=(_NEXT,)), {"orders": "qX1"}
)
ENUMERATORS: Mapping[str, Any] = {
    "generator": DiscoveredSplits(discovered=True, assigned=("a",), pending=(_OPEN,)),
    "kafka": _KAFKA_STATE,
    "files": DiscoveredSplits(
        discovered=True,
        assigned=("2025/z.parquet", "2026/a.parquet"),
        stamps=(NOON_US - 1, NOON_US),
        newest_stamp=NOON_US,
        pending=(_FILE,),
    ),
    "hybrid": HybridState(
        1,
        DiscoveredSplits(discovered=True, assigned=("a",), pending=(_OPEN,)),
        complete=(0, 2),
        unfinished=("1:a",),
    ),
}


# -- the states of sources that split and merge

_FIRST, _LAST = 49590338271490256608559692538361571095921575989136588802, 2**127 + 1
_READ = KinesisSplit(
    split_id="orders/shardId-000000000000", start=1_767_268_800_001, stop=1_767_268_800_777, stream="orders",
    shard="shardId-000000000000", cursor=at(_FIRST), until=after(_LAST), records=500,
)  # fmt: skip
_CHILD = KinesisSplit(
    split_id="orders/shardId-000000000003", parents=("orders/shardId-000000000000", "orders/shardId-000000000001"),
    start=1_767_268_800_777, stream="arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
    shard="shardId-000000000003", cursor=after(_LAST), looked_ms=1_767_268_801_234,
    hash_from="170141183460469231731687303715884105728", hash_to="340282366920938463463374607431768211455",
)  # fmt: skip
_SEGMENT = split_of("orders", 0, start=2**40, stop=2**40 + 1_024)
_SUCCESSOR = PravegaSplit(
    split_id="orders/3.#epoch.2", parents=("orders/0.#epoch.0", "orders/2.#epoch.1"), start=0, stream="orders",
    segment=2 << 32 | 3,
)  # fmt: skip
RESHARDING: Mapping[str, Source[Any, Any]] = {
    "kinesis": KinesisSource(streams=["orders"], region="eu-west-1"),
    "pravega": PravegaSource(controller="tcp://pravega:9090", scope="shop", streams=["orders"]),
}
RESHARDING_SPLITS: Mapping[str, tuple[SourceSplit, ...]] = {
    "kinesis": (_READ, _CHILD),
    "pravega": (_SEGMENT, _SUCCESSOR),
}
RESHARDING_ENUMERATORS: Mapping[str, Any] = {
    kind: DiscoveredSplits(discovered=True, assigned=(splits[0].split_id,), pending=splits[1:])
    for kind, splits in RESHARDING_SPLITS.items()
}

KEPT = {**SOURCES, **RESHARDING}
KEPT_SPLITS = {**SPLITS, **RESHARDING_SPLITS}
KEPT_ENUMERATORS = {**ENUMERATORS, **RESHARDING_ENUMERATORS}


def batch_state(kind: str, coordinator: bytes) -> BatchState[Any]:
    """The content of a batch's offset."""
    first, second = KEPT_SPLITS[kind]
    return BatchState(coordinator, (Placed(0, first), Placed(3, second)), (Placed(3, second),), NOON_US)


# -- messages. Every field has a value that is not its default.

TASK = TaskId("job", "orders", "0")
_CAPPED = CapAnnounced("group", TASK, 9, Cap.up_to(NOON_US))
_STATUS = CoordinatorStatus(
    sources=(
        SourceStatus(
            job_id="job",
            source_id="orders",
            low_watermark_us=NOON_US,
            holder=TASK,
            why="task 0 holds",
            since_us=5,
            round_since_us=6,
            returned_late=2,
            held=(Held("0", 10, 30), Held(None, 20, 40)),
            tasks=(
                TaskStatus(
                    task=TASK,
                    mark="run-1",
                    state=SplitState.ACTIVE,
                    low_watermark_us=NOON_US,
                    lease_left_us=7,
                    waited_for=True,
                    group="group",
                    why="it answers",
                ),
            ),
            tasks_not_shown=3,
            states={"active": 4},
        ),
    ),
    groups=(
        GroupStatus(
            group="group",
            params=AlignmentParams("group", 30 * SECOND_US, SECOND_US),
            cap=Cap.up_to(NOON_US),
            version=9,
            minimum_us=NOON_US - 1,
            holder=TASK,
            why="job/orders/0 is the last",
            members=(
                MemberStatus(
                    task=TASK,
                    state=SplitState.IDLE,
                    low_us=NOON_US - 1,
                    next_wanted_us=NOON_US,
                    ahead_us=1,
                    cap=Cap.hold(),
                    throttled=False,
                    waiting=True,
                    left_out=True,
                    why="it is idle",
                ),
            ),
            members_not_shown=1,
        ),
    ),
    lost=1,
)
_STATEMENTS: list[messages.Statement | TaskForgotten | LowmarkError] = [
    TaskRegistered(
        TASK,
        "run-1",
        NOON_US,
        AlignmentParams("group", 30 * SECOND_US, SECOND_US),
        throttled=False,
        expected_tasks=3,
    ),
    TaskRegistered(TASK, "run-2"),
    ReplyLowWatermark(*TASK.parts, 17, NOON_US, "run-1", LeftOut.IDLE, NOON_US + 1, 4),
    ReplyLowWatermark(*TASK.parts, 18, None, "run-1", LeftOut.WITHOUT_SPLITS),
    LeaseRenewed(TASK, "run-1", NOON_US),
    TaskDeregistered(TASK, "run-1"),
    TaskForgotten(TASK),
]
MESSAGES: Mapping[str, tuple[Callable[[bytes], object], object]] = {
    # name -> (its decoder, the message)
    "coordinator Say": (messages.SAY.decode_question, messages.Say("application-1", _STATEMENTS)),
    "coordinator Say answer": (
        messages.SAY.decode_answer,
        messages.SayAnswer(
            [
                messages.Taken(),
                messages.Taken(NOON_US, _CAPPED),
                messages.Refused("UnknownTask", "nobody knows it"),
            ]
        ),
    ),
    "coordinator Watch": (messages.WATCH.decode_question, messages.Watch("application-1")),
    "coordinator Watch answer": (
        messages.WATCH.decode_answer,
        messages.WatchNews(
            [
                RetrieveLowWatermark(*TASK.parts, 17),
                NotifyNewLowWatermark(*TASK.parts, 18, NOON_US),
                _CAPPED,
                CapAnnounced("group", TASK, 10, Cap.hold()),
                CapAnnounced("group", TASK, 11, Cap.free()),
            ],
            lease_us=30 * SECOND_US,
        ),
    ),
    "coordinator Status": (messages.STATUS.decode_question, messages.StatusQuestion(3)),
    "coordinator Status answer": (
        messages.STATUS.decode_answer,
        messages.StatusAnswer("0.1.0", 4711, 2, "/var/lib/lowmark.journal", _STATUS),
    ),
    "driver Heartbeat": (
        driver_rpc.HEARTBEAT.decode_question,
        driver_rpc.HeartbeatRequest(
            stream_id="0123",
            token="run-2",
            resumes="run-1",
            first=True,
            epoch=7,
            state="TFdNSw==",
            low_watermark_us=NOON_US,
            planned_at_us=5,
            polled_until_us=6,
            available_now=True,
        ),
    ),
    "driver Heartbeat answer": (
        driver_rpc.HEARTBEAT.decode_answer,
        driver_rpc.HeartbeatReply(NOON_US, 7, "TFdNSw==", wake_at_us=9, refusal="the stream is gone"),
    ),
    "driver Guide": (driver_rpc.GUIDE.decode_question, driver_rpc.GuideRequest("0123", "run-1")),
    "driver Guide answer": (
        driver_rpc.GUIDE.decode_answer,
        Guidance(
            read_before_us=NOON_US,
            hold=True,
            paused=frozenset({"b"}),
            observed_us={"a": NOON_US - 1},
            events=[(0, 1, b"\x00\xff")],
        ),
    ),
    "driver Planned": (
        driver_rpc.PLANNED.decode_question,
        driver_rpc.PlannedRequest(
            "0123",
            "run-1",
            Planned(
                checkpoint=17,
                splits={"a": (), "a-0": ("a",)},
                claims_us={"a": NOON_US},
                rows={"a": 3},
                backlog_rows={"a": 4},
                finished=("a",),
                paused=frozenset({"a-0"}),
                next_us=NOON_US + 1,
                metrics={"discoveries": 2.0},
            ),
        ),
    ),
    "driver Planned answer": (driver_rpc.PLANNED.decode_answer, driver_rpc.PlannedReply()),
    "driver Status": (driver_rpc.STATUS.decode_question, driver_rpc.StatusRequest("orders", 3)),
    "driver Status answer": (
        driver_rpc.STATUS.decode_answer,
        driver_rpc.StatusReply("local-1", 4711, [{"name": "orders", "low_watermark_us": NOON_US}], ["orders: a holds"]),
    ),
}


def encoded(name: str) -> bytes:
    """A message as its wire carries it."""
    codec = messages.CODEC if name.startswith("coordinator ") else driver_rpc.CODEC
    return codec.encode(MESSAGES[name][1])


# -- the coordinator of `lowmark serve`

ALIGNMENT = AlignmentParams("group", 30 * SECOND_US, SECOND_US)


def coordinator() -> LowWatermarkCoordinator:
    """Three sources with tasks in all states, two sources in one group, and finished runs."""
    made = LowWatermarkCoordinator()
    orders, behind, clicks = TaskId("job", "orders", "0"), TaskId("job", "orders", "1"), TaskId("other", "clicks", "0")
    over, quiet, gone = TaskId("job", "orders", "2"), TaskId("job", "orders", "3"), TaskId("job", "gone", "0")
    for task, alignment in ((orders, ALIGNMENT), (clicks, ALIGNMENT), (behind, None), (over, None), (quiet, None)):
        made.handle(TaskRegistered(task, f"run-{task.task_id}", None, alignment), now_us=NOON_US)
    made.handle(TaskRegistered(gone, "run-1"), now_us=NOON_US)
    made.handle(TaskRegistered(gone, "run-2", low_watermark_us=NOON_US), now_us=NOON_US + 1)
    made.handle(TaskDeregistered(gone, "run-2"), now_us=NOON_US + 2)
    made.handle(Tick(), now_us=NOON_US + SECOND_US)
    for task, low_us, left_out in (
        (orders, NOON_US - 5, None),
        (behind, NOON_US - 7, None),
        (quiet, None, LeftOut.WITHOUT_SPLITS),
        (clicks, NOON_US + 1, None),
    ):
        said = ReplyLowWatermark(*task.parts, NOON_US + SECOND_US, low_us, f"run-{task.task_id}", left_out)
        made.handle(said, now_us=NOON_US + SECOND_US)
    made.handle(TaskDeregistered(over, "run-2"), now_us=NOON_US + SECOND_US)
    made.handle(Tick(), now_us=NOON_US + 2 * SECOND_US)
    return made
