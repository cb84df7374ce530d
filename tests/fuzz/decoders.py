"""The table of all decoders of the product, with good inputs and the allowed errors.

A decoder reads data that other programs or people wrote: a checkpoint, an option, a message, an event. A decoder
returns a result that its user can work with, or raises lowmark's own error. A new decoder needs a line here.
"""

from __future__ import annotations

import atexit
import base64
import json
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.client_state import ClientState
from lowmark.integration.spark.checkpoint import kafka_starting_offsets
from lowmark.integration.spark.kafka_offsets import backlog_rows, kafka_rows
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport import driver_rpc
from lowmark.integration.transport.heartbeat import HeartbeatOffset, HeartbeatReader
from lowmark.integration.transport.observed import ObservedMeasure, decode_sketch
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import DataclassSerializer, HybridSource, SourceSplit
from lowmark.sources.files.listing import resolve_paths
from lowmark.sources.formats import FormatOptions
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.hybrid import HybridSplit, HybridState
from lowmark.sources.kafka import KafkaOffsets
from lowmark.sources.kafka.enumerator import KafkaEnumeratorState
from lowmark.sources.kafka.split import KafkaSplit
from lowmark.sources.kit.discovery import DiscoveredSplits, PackedSerializer
from lowmark.sources.planning.offset import BatchOffset, BatchState, Placed
from lowmark.watermark import LowmarkError, SplitState, TaskId, WatermarkStrategy, duration_us
from lowmark.watermark.protocol import LeaseRenewed, ReplyLowWatermark, TaskDeregistered, TaskRegistered
from lowmark.watermark.splits import snapshot
from lowmark.watermark.splits.by_hand import IdleMark
from lowmark.watermark.splits.events import SplitsDiscovered, Tick
from lowmark.watermark.splits.snapshot import StreamSnapshot
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator

from tests.integration.driver.reported import SOURCE
from tests.watermark.tasks.coordinator_world import snapshot_of

from .inputs import (
    Draw,
    changed_bytes,
    changed_options,
    changed_text,
    changed_tree,
    junk,
    number,
    one_of,
    text,
    then,
)


@dataclass(frozen=True)
class Decoder:
    """One line of the table.

    Attributes:
        decode: reads an input, and uses the result.
        inputs: draws the inputs.
        good: one readable input.
        raises: the allowed errors.
    """

    decode: Callable[[Any], object]
    inputs: Draw
    good: Any
    raises: tuple[type[Exception], ...] = (LowmarkError,)


def msgpack(packed: bytes) -> Draw:
    """Draw packed data with changed bytes, or with changed content."""
    return one_of(changed_bytes(packed), then(changed_tree(msgspec.msgpack.decode(packed)), _packed))


def deflated(data: bytes) -> Draw:
    """Draw deflated msgpack with changed bytes, before or after it was deflated."""
    return one_of(changed_bytes(data), then(msgpack(zlib.decompress(data)), zlib.compress))


def as_json(tree: Any) -> Draw:
    """Draw changed objects, as objects and as text."""
    changed = changed_tree(tree)
    return one_of(changed, then(changed, json.dumps), changed_text(json.dumps(tree)))


def _packed(tree: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(tree)
    except (OverflowError, UnicodeEncodeError):  # msgpack has no number beyond 64 bits and no lone surrogate
        return b"\xc1"


# -- snapshots of the core

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_idleness("1 minute")
ADAPTIVE = WatermarkStrategy.for_adaptive_out_of_orderness()
SNAPSHOTS = [
    StreamSnapshot(0, {7: (SplitState.PENDING, None), 2**64 - 1: (SplitState.IDLE, -(2**63))}, {7: "orders-0"}),
    StreamSnapshot(-1_000, {"a": (SplitState.FINISHED, 2**63 - 1), "b": (SplitState.PAUSED, 5)}),
    StreamSnapshot(5, {"a": (SplitState.ACTIVE, 9), "b": (SplitState.PENDING, None)}, {}, {"b": (("a", "c"), 3)}),
    StreamSnapshot(
        5,
        {"a": (SplitState.ACTIVE, 9), "b": (SplitState.IDLE, 1)},
        bounds_us={"a": 7_000, "b": 2**62},
        bound_rows={"a": 250},
    ),
    StreamSnapshot(5, {7: (SplitState.ACTIVE, 9)}, young_since_us=-(2**63)),
    StreamSnapshot(5, {7: (SplitState.ACTIVE, 9)}, lost=(2**40, -(2**63))),
    StreamSnapshot(5, {"a": (SplitState.IDLE, 9)}, by_hand={"a": IdleMark("anna", 7, 2**62)}),
]


def restore_stream(data: bytes) -> object:
    names = {"job_id": "j", "source_id": "orders", "task_id": "0"}
    coordinator = SplitWatermarks.restore(data, STRATEGY, now_us=10**15, **names)
    coordinator.handle(SplitsDiscovered(tuple(coordinator.splits)), now_us=10**15 + 10**9)
    adaptive = SplitWatermarks.restore(data, ADAPTIVE, now_us=10**15, **names)
    adaptive.status(10**15)
    decode_again = SplitWatermarks.restore(adaptive.snapshot(), ADAPTIVE, now_us=10**15, **names)
    assert decode_again.snapshot() == adaptive.snapshot()
    return SplitWatermarks.restore(coordinator.snapshot(), STRATEGY, now_us=10**15, **names)


def sealed_stream(parts: tuple[int, bytes, list[int], Any]) -> bytes:
    """A snapshot with any content and a correct checksum."""
    kind, flags, values, tail = parts
    count = len(flags)
    ids = np.array([(each * 7) % 2**64 for each in values[:count]], "<u8") if kind == 0 else np.empty(0, "<u8")
    watermarks = np.array([max(-(2**63), min(2**63 - 1, each)) for each in values[:count]], "<i8")
    columns = b"".join(each.view(np.uint8).reshape(-1, 8).T.tobytes() for each in (ids, watermarks))
    body = struct.pack("<B?qI", kind, bool(values[0] % 2), 5, count) + columns + flags + json.dumps(tail).encode()
    return struct.pack("<4sBII", b"LWMK", 1, len(body), zlib.crc32(body)) + zlib.compress(body)


TAILS = [
    [["a", "b"], [["a", "first"]], [["b", ["a"], 3]], [], None, None, []],
    [[], [[7, "first"]], [[7, [14], None]], [], 5, [3, 2**62], []],
    [["a"], [], [], [], None, None, []],
    [["a", "b"], [], [], [["a", 7_000], ["b", 2**62]], None, None, [0, 9]],
    [["a", "b"], [], [], [], None, None, [], [["a", "anna", 3, 2**62], ["b", "anna", 4, None]]],
    [["a"], []],
]
STATES = [0, 1, 2, 3, 4, 0x80, 0x81, 0x82, 0x83, 0x84, 5, 0xFF]


def sealed(rng: Random) -> bytes:
    tail = changed_tree(*TAILS)(rng) if rng.random() < 0.7 else rng.choice(TAILS)
    flags = bytes(rng.choices(STATES, k=rng.randrange(4)))
    return sealed_stream((rng.choice([0, 1, 1, 2]), flags, [number(rng) for _ in range(3)], tail))


def coordinator_state() -> dict[tuple[str, ...], str]:
    task = TaskId("job", "orders", "0")
    coordinator = LowWatermarkCoordinator()
    coordinator.handle(TaskRegistered(task, "run", 5, AlignmentParams("g", 10, 1_000)), 10)
    coordinator.handle(TaskRegistered(TaskId("job", "orders", "1"), "run-2", None), 20)
    coordinator.handle(ReplyLowWatermark("job", "orders", "0", 15, 7, "run"), 30)
    return snapshot_of(coordinator)


ROWS = [[list(key), json.loads(state)] for key, state in coordinator_state().items()]


def changed_rows(rng: Random) -> list[Any]:
    """The rows with the state of one changed."""
    number = rng.randrange(len(ROWS))
    key, state = ROWS[number]
    return [*ROWS[:number], [key, changed_tree(state)(rng)], *ROWS[number + 1 :]]


def restore_coordinator(changed: Any) -> object:
    """Restore from a list of rows, each with its key and its state."""
    rows = {tuple(map(str, key)): json.dumps(state) for key, state in changed}
    coordinator = LowWatermarkCoordinator.restore(rows, now_us=10**15)
    for now_us in (10**15 + 1, 10**15 + 10**8):
        coordinator.handle(Tick(), now_us)
    return coordinator.status(now_us), LowWatermarkCoordinator.restore(snapshot_of(coordinator), now_us=now_us)


# -- offsets and states of sources

SPLITS = DataclassSerializer(SourceSplit)
SPLIT = SourceSplit(split_id="a", start=3, stop=9, parents=("b",))
PACKED_SPLIT = SPLITS.serialize(SPLIT)
DISCOVERED = PackedSerializer(DiscoveredSplits[SourceSplit])
KNOWN = DiscoveredSplits[SourceSplit](True, ("a", "b"), (1, 2), 2, (SPLIT,))
KAFKA_SPLIT = KafkaSplit(split_id="orders/0", start=3, topic="orders", partition=0)
KAFKA_STATES = PackedSerializer(KafkaEnumeratorState)
KAFKA_STATE = KAFKA_STATES.serialize(
    KafkaEnumeratorState(DiscoveredSplits(True, ("orders/0",), (), None, (KAFKA_SPLIT,)), {"orders": "qX1"})
)
SCRIPT = StreamScript(
    (SplitScript("a", 2), SplitScript("b", 3, behind_us=2_000_000), SplitScript("c", 1, from_tick=2, parents=("a",))),
    0, 5, 1_000_000, 7,
)  # fmt: skip
HYBRID = HybridSource(GeneratorSource(SCRIPT, seed=1, bounded=True), GeneratorSource(SCRIPT, seed=2))
HYBRID_SPLIT = HYBRID.split_serializer.serialize(HybridSplit.wrap(1, SPLIT))
HYBRID_STATE = HYBRID.enumerator_state_serializer.serialize(HybridState(1, KNOWN, (0,), ("1:a",)))
OFFSET = BatchOffset.encode("orders", 4, "run", BatchState(b"c", (Placed(0, SPLIT),), (Placed(1, SPLIT),), 7), SPLITS)
PACKED_STATE = base64.b64decode(OFFSET.state)
HEARTBEAT = HeartbeatOffset("orders", 5_000_000, "run", 3, base64.b64encode(snapshot.encode(SNAPSHOTS[0])).decode())
READER = HeartbeatReader(address="unix:/none", stream_id="1", stream="orders", delay_ms=1_000)


def find_batch(offset: object) -> object:
    found = BatchOffset.find(offset)
    return None if found is None else (found.to_json(), found.decode(SPLITS))


def find_heartbeat(offset: object) -> object:
    found = HeartbeatOffset.find(offset)
    return None if found is None else list(READER.readBetweenOffsets({}, found.to_json()))


# -- Spark's reports

KEY = SplitKey(("topic", "day", "raw", "n"), ("string", "date", "binary", "bigint"))
MEASURE = ObservedMeasure("metric", "orders", KEY, "ts", 300_000_000, 8, detail=True, sample_names=True)
SKETCH = bytes([1, 3, 9, 1, 0, 0, 0, 0]) + struct.pack("<QdB", 7, 1.5e9, 0)
TWO = base64.b64decode("AgMJAQAKzJMCAAAAAAAAABX5fcu9hqEFAAAAAITXl0ECw5f8EoFwnR4AAAAAZc29QQI=")
METRIC = {
    "latest": base64.b64encode(TWO).decode(),
    "earliest": base64.b64encode(SKETCH).decode(),
    "split_rows": base64.b64encode(TWO).decode(),
    "future": base64.b64encode(SKETCH).decode(),
    "rows": 7,
    "null_split_rows": 1,
    "null_time_rows": 2,
    "before_epoch_rows": 0,
    "names": [{"topic": "orders", "day": "2026-01-01", "raw": "AAE=", "n": 3}, {"topic": "clicks"}],
    "hindmost": base64.b64encode(b'{"topic":"orders","day":"2026-01-01"}').decode(),
}
PROGRESS = {
    "id": "q",
    "runId": "r",
    "batchId": 3,
    "name": "n",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "numInputRows": 7,
    "durationMs": {"addBatch": 3},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [{"operatorName": "dedupe", "numRowsTotal": 1, "numRowsDroppedByWatermark": 2}],
    "sources": [
        {**SOURCE, "startOffset": {"o": {"0": 1}}, "endOffset": {"o": {"0": 5}}, "latestOffset": {"o": {"0": 9}}},
        {**SOURCE, "description": "h", "endOffset": HEARTBEAT.to_json(), "numInputRows": 1},
        {**SOURCE, "description": "b", "endOffset": OFFSET.to_json()},
    ],
    "observedMetrics": {"m": METRIC},
}  # fmt: skip


def read_progress(text: str) -> object:
    progress = Progress.from_json(text)
    return (
        progress.watermark_us,
        progress.dropped_rows,
        progress.heartbeats(),
        [BatchOffset.find(source.end_offset) for source in progress.sources],
        backlog_rows(progress.sources),
        kafka_rows(progress.sources),
    )


CHECKPOINT = b'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":12}}\n' + json.dumps(HEARTBEAT.to_json()).encode() + b"\n-"


def read_checkpoint(data: bytes) -> object:
    (_folder() / "offsets" / "0").write_bytes(data)
    return kafka_starting_offsets(_folder(), committed=False), kafka_starting_offsets(_folder())


@cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    for log in ("offsets", "commits"):
        (Path(made.name) / log).mkdir()
    (Path(made.name) / "commits" / "0").touch()
    return Path(made.name)


# -- options

KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "b:9092",
    "subscribe": "orders",
    "startingOffsets": '{"orders": {"0": 3, "1": -2}}',
    "endingOffsetsByTimestamp": '{"orders": {"0": "7", "1": 9}}',
    "discoverEvery": "1 minute",
    "failOnDataLoss": "false",
    "maxOffsetsPerTrigger": "10",
    "maxSlice": "10 minutes",
    "byTime": "true",
    "columns": "value, offset",
}
ASSIGNED = {"kafka.bootstrap.servers": "b:9092", "assign": '{"orders": [0, 1]}', "startingTimestamp": "7"}
PATTERN = {"kafka.bootstrap.servers": "b:9092", "subscribePattern": "o.*", "keyType": "string", "tasks": "2"}
KINESIS_OPTIONS = {
    "streamName": "orders,returns",
    "initialPosition": '{"at_timestamp": "2026-01-01T00:00:00Z"}',
    "endingPosition": "LATEST",
    "bytesPerSecond": "none",
    "columns": "data,shardId",
}
FILE_OPTIONS = {
    "path": "/none/*.csv",
    "fileFormat": "csv",
    "eventTime": "ts",
    "recursive": "true",
    "discoverEvery": "1 hour",
}
PRAVEGA_OPTIONS = {
    "controller": "tcp://h:9090",
    "scope": "shop",
    "streams": "orders, returns",
    "start": "tail",
    "eventTime": "$.order.at",
    "eventTimeUnit": "ms",
    "discoverEvery": "1 minute",
    "fetchers": "3",
    "columns": "event,offset",
    "validateHostName": "false",
}
GENERATOR_OPTIONS = {"script": json.dumps(SCRIPT.to_plain()), "seed": "7", "ticksPerBatch": "2", "bounded": "true"}


def read_kafka_options(options: dict[str, str]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python's warning about a user's pattern
        return FormatOptions.read("lowmark_kafka", options)


def read_kinesis_options(options: dict[str, str]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as above
        return FormatOptions.read("lowmark_kinesis", options)


def read_offsets(given: Any) -> object:
    return KafkaOffsets.of(given, otherwise="latest")


def read_script(plain: Any) -> object:
    script = StreamScript.from_plain(plain)
    first = script.splits[0].name
    return script.count_rows(first, 0, 2), script.rows(first, 0, 0, seed=1), script.to_plain()


def read_pattern(pattern: str) -> object:
    return resolve_paths([f"/none/{pattern.replace(':', '')}"])


# -- messages

WHO = TaskId("job", "orders", "0")
SAID = messages.Say(
    "app",
    [
        TaskRegistered(WHO, "run", 1, AlignmentParams("g", 2, 3), False, 6),
        ReplyLowWatermark("job", "orders", "0", 1, 2, "run"),
        LeaseRenewed(WHO, "run", 0),
        TaskDeregistered(WHO, "run"),
    ],
)
TASK = {"job_id": "job", "source_id": "orders", "task_id": "0"}
TOLD = {
    "messages": [
        {"type": "Capped", "group": "g", "task": TASK, "version": 1, "cap": {"kind": 1, "us": 5}},
        {"type": "Asked", **TASK, "timestamp": 1},
        {"type": "NewLowWatermark", **TASK, "timestamp": 1, "new_low_watermark": 2},
    ],
    "lease_us": 30,
}  # fmt: skip
BEAT = msgspec.to_builtins(driver_rpc.HeartbeatRequest(stream_id="1", token="r", resumes=None, first=True))


def hear_question(data: bytes) -> object:
    return messages.SAY.decode_question(data).statements


def hear_told(data: bytes) -> object:
    state = ClientState("app", Random(7), count(1))
    state.register(TaskRegistered(WHO, "run"))
    state.told(messages.WATCH.decode_answer(data).messages)
    return state.heard(), state.cap(WHO)


# -- the table


DECODERS: dict[str, Decoder] = {
    "stream snapshot": Decoder(
        restore_stream, changed_bytes(*map(snapshot.encode, SNAPSHOTS)), snapshot.encode(SNAPSHOTS[2])
    ),
    "stream snapshot, sealed": Decoder(restore_stream, sealed, sealed_stream((1, b"\0\0", [0, 0, 0], TAILS[0]))),
    "coordinator's rows": Decoder(restore_coordinator, changed_rows, ROWS),
    "split": Decoder(lambda data: SPLITS.deserialize(1, data), msgpack(PACKED_SPLIT), PACKED_SPLIT),
    "discovered splits": Decoder(
        lambda data: DISCOVERED.deserialize(1, data), deflated(DISCOVERED.serialize(KNOWN)), DISCOVERED.serialize(KNOWN)
    ),
    "kafka's state": Decoder(lambda data: KAFKA_STATES.deserialize(1, data), deflated(KAFKA_STATE), KAFKA_STATE),
    "hybrid split": Decoder(
        lambda data: HYBRID.split_serializer.deserialize(1, data), msgpack(HYBRID_SPLIT), HYBRID_SPLIT
    ),
    "hybrid state": Decoder(
        lambda data: HYBRID.enumerator_state_serializer.deserialize(1, data), msgpack(HYBRID_STATE), HYBRID_STATE
    ),
    "batch offset": Decoder(find_batch, as_json(OFFSET.to_json()), json.dumps(OFFSET.to_json())),
    "batch offset's state": Decoder(
        lambda state: find_batch({**OFFSET.to_json(), "state": state}),
        one_of(
            then(msgpack(zlib.decompress(PACKED_STATE)), zlib.compress, base64.b64encode, bytes.decode),
            changed_text(OFFSET.state),
        ),
        OFFSET.state,
    ),
    "heartbeat offset": Decoder(find_heartbeat, as_json(HEARTBEAT.to_json()), HEARTBEAT.to_json()),
    "sketch": Decoder(lambda data: decode_sketch(data, where="here"), one_of(changed_bytes(SKETCH, TWO), junk), TWO),
    "observed metric": Decoder(
        lambda metric: MEASURE.report("q", 3, {"metric": metric if isinstance(metric, dict) else {}}, STRATEGY),
        one_of(
            changed_tree(METRIC),
            then(changed_bytes(SKETCH, TWO), lambda sketch: {**METRIC, "latest": sketch, "split_rows": sketch}),
        ),
        METRIC,
    ),
    "progress": Decoder(
        read_progress,
        one_of(then(changed_tree(PROGRESS), json.dumps), changed_text(json.dumps(PROGRESS))),
        json.dumps(PROGRESS),
    ),
    "checkpoint": Decoder(read_checkpoint, changed_bytes(CHECKPOINT), CHECKPOINT),
    "options of lowmark_kafka": Decoder(
        read_kafka_options,
        changed_options(KAFKA_OPTIONS, ASSIGNED, PATTERN),
        KAFKA_OPTIONS,
    ),
    "options of lowmark_kinesis": Decoder(
        read_kinesis_options,
        changed_options(KINESIS_OPTIONS, {"streamPattern": "o.*", "threads": "3"}),
        KINESIS_OPTIONS,
    ),
    "options of lowmark_pravega": Decoder(
        lambda options: FormatOptions.read("lowmark_pravega", options),
        changed_options(PRAVEGA_OPTIONS, {"streamPattern": "o.*", "stop": "tail", "readerGroup": "g"}),
        PRAVEGA_OPTIONS,
    ),
    "options of lowmark_files": Decoder(
        lambda options: FormatOptions.read("lowmark_files", options), changed_options(FILE_OPTIONS), FILE_OPTIONS
    ),
    "options of lowmark_generator": Decoder(
        lambda options: FormatOptions.read("lowmark_generator", options),
        changed_options(GENERATOR_OPTIONS),
        GENERATOR_OPTIONS,
    ),
    "offsets of KafkaSource": Decoder(
        read_offsets, one_of(junk, lambda rng: {(text(rng), number(rng)): junk(rng)}), {("orders", 0): 17}
    ),
    "script": Decoder(read_script, changed_tree(json.loads(json.dumps(SCRIPT.to_plain()))), SCRIPT.to_plain()),
    "pattern of paths": Decoder(
        read_pattern, changed_text("*.csv", "d[0-9]/**/x?.{csv,json}"), "d[!0]/*.csv", (LowmarkError, OSError)
    ),
    "duration": Decoder(
        lambda value: duration_us(value, what="x"),
        one_of(junk, changed_text("1 minute 30 seconds", "PT1.5S", "interval 1 day", "P1DT-2H")),
        "1 second",
    ),
    "what members say": Decoder(hear_question, msgpack(messages.encode(SAID)), messages.encode(SAID)),
    "what members are told": Decoder(hear_told, msgpack(messages.encode(TOLD)), messages.encode(TOLD)),
    "what heartbeats say": Decoder(driver_rpc.HEARTBEAT.decode_question, msgpack(_packed(BEAT)), _packed(BEAT)),
}
