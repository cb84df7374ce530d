"""Bytes in checkpoints, in journals and on wires still mean the values that were written."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.server import restore
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.checkpoint_store import all_planned, local_store
from lowmark.integration.spark.offset_log import planned_entry
from lowmark.integration.transport import driver_rpc
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark import SplitState, StaleRun, TaskId, WatermarkStrategy
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.splits.snapshot import decode
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.status import run_mark
from pyspark.sql import SparkSession

from tests.golden import values
from tests.golden.queries import QUERIES, SCRIPT, SEED, WINDOW_US, emitted
from tests.golden.values import NOON_US, SECOND_US

FOLDER = Path(__file__).parent


def golden(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def data(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def test_every_golden_value_is_read_here() -> None:
    """Otherwise a file that is no longer written could go unread."""
    assert golden("heartbeats.json").keys() == {*values.SNAPSHOTS, "first"}
    for name in ("splits.json", "enumerators.json", "batches.json"):
        assert golden(name).keys() == values.KEPT.keys()
    assert golden("messages.json").keys() == values.MESSAGES.keys()


# -- checkpoints, piece by piece


@pytest.mark.parametrize("name", values.SNAPSHOTS)
def test_a_heartbeat_and_the_state_in_it(name: str) -> None:
    found = HeartbeatOffset.find(golden("heartbeats.json")[name])
    assert found is not None
    assert found == values.heartbeat(name, found.state)
    assert decode(data(found.state)) == values.SNAPSHOTS[name]


def test_the_first_heartbeat_of_a_query() -> None:
    assert HeartbeatOffset.find(golden("heartbeats.json")["first"]) == HeartbeatOffset("orders", None, None, 0, "")


@pytest.mark.parametrize("name", values.SNAPSHOTS)
def test_a_stream_is_restored_from_its_state(name: str) -> None:
    found, meant = HeartbeatOffset.find(golden("heartbeats.json")[name]), values.SNAPSHOTS[name]
    assert found is not None
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream = SplitWatermarks.restore(
        data(found.state), strategy, job_id="job", source_id="orders", task_id="0", now_us=NOON_US
    )
    status = stream.status(now_us=NOON_US)
    assert stream.low_watermark_us == meant.low_us
    assert set(stream.splits) == set(meant.splits)
    assert Counter(split.state for split in status.splits.values()) == Counter(s for s, _ in meant.splits.values())
    assert stream.names == meant.names
    assert decode(stream.snapshot()) == meant, "and it is passed on as it came"


def test_what_a_run_left_behind_for_the_next() -> None:
    assert msgspec.json.decode((FOLDER / "farewell.json").read_bytes(), type=Farewell) == values.FAREWELL


@pytest.mark.parametrize("kind", values.KEPT)
def test_splits(kind: str) -> None:
    version, *written = golden("splits.json")[kind]
    serializer = values.KEPT[kind].split_serializer
    assert tuple(serializer.deserialize(version, data(each)) for each in written) == values.KEPT_SPLITS[kind]


@pytest.mark.parametrize("kind", values.KEPT)
def test_the_offset_of_a_batch(kind: str) -> None:
    offset = BatchOffset.find(golden("batches.json")[kind])
    assert offset is not None
    source, coordinator = values.KEPT[kind], data(golden("enumerators.json")[kind])
    positions = {split.split_id: split.start for split in values.KEPT_SPLITS[kind]}
    assert (offset.source, offset.checkpoint, offset.token) == (f"source {kind}", 17, "run-1")
    assert offset.positions == positions
    assert offset.decode(source.split_serializer) == values.batch_state(kind, coordinator)


@pytest.mark.parametrize("kind", values.KEPT)
def test_what_an_enumerator_goes_on_from(kind: str) -> None:
    written, serializer = data(golden("enumerators.json")[kind]), values.KEPT[kind].enumerator_state_serializer
    header, version, length = (int.from_bytes(written[at : at + 4], "big") for at in (0, 4, 8))
    assert (header, length) == (1, len(written) - 12)
    assert serializer.deserialize(version, written[12:]) == values.KEPT_ENUMERATORS[kind]


# -- wires and the journal


@pytest.mark.parametrize("name", values.MESSAGES)
def test_a_message(name: str) -> None:
    read, meant = values.MESSAGES[name]
    assert read(data(golden("messages.json")[name])) == meant


# The status of a coordinator is left out because it grows with the needs of people.
WRITTEN = [name for name in values.MESSAGES if name != "coordinator Status answer"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_message_is_written_as_it_was(name: str) -> None:
    """Each end refuses an unknown field, so a new field is written only if it has a value."""
    assert values.encoded(name) == data(golden("messages.json")[name])


def test_methods_have_these_names_on_the_wire() -> None:
    on_driver = (driver_rpc.HEARTBEAT, driver_rpc.GUIDE, driver_rpc.PLANNED, driver_rpc.STATUS)
    assert [method.path for method in on_driver] == [
        f"/lowmark.v1.Driver/{name}" for name in ("Heartbeat", "Guide", "Planned", "Status")
    ]
    on_coordinator = (messages.SAY, messages.WATCH, messages.STATUS)
    assert [method.path for method in on_coordinator] == [
        f"/lowmark.v1.Coordinator/{name}" for name in ("Say", "Watch", "Status")
    ]


@pytest.fixture
def coordinator(tmp_path: Path) -> LowWatermarkCoordinator:
    """The coordinator of a new `lowmark serve` with an earlier journal."""
    shutil.copy(FOLDER / "coordinator.journal", tmp_path)
    journal = Journal(tmp_path / "coordinator.journal")
    try:
        return restore(journal, NOON_US + 9 * SECOND_US)
    finally:
        journal.close()


def test_a_coordinator_goes_on_from_its_journal(coordinator: LowWatermarkCoordinator) -> None:
    status = coordinator.status(now_us=NOON_US + 9 * SECOND_US)
    assert {(source.job_id, source.source_id): source.low_watermark_us for source in status.sources} == {
        ("job", "gone"): NOON_US,
        ("job", "orders"): NOON_US - 7,
        ("other", "clicks"): NOON_US + 1,
    }
    # Task 2 has left, and the others are enough. The source `gone` waits for its task, because it has no other task.
    tasks = {str(task.task): task for source in status.sources for task in source.tasks}
    assert {name: (task.mark, task.state, task.low_watermark_us, task.group) for name, task in tasks.items()} == {
        "job/gone/0": ("", SplitState.ACTIVE, NOON_US, None),
        "job/orders/0": (run_mark("run-0"), SplitState.ACTIVE, NOON_US - 5, "group"),
        "job/orders/1": (run_mark("run-1"), SplitState.ACTIVE, NOON_US - 7, None),
        "job/orders/3": (run_mark("run-3"), SplitState.IDLE, None, None),
        "other/clicks/0": (run_mark("run-0"), SplitState.ACTIVE, NOON_US + 1, "group"),
    }


def test_an_alignment_group_goes_on_from_the_journal(coordinator: LowWatermarkCoordinator) -> None:
    [group] = coordinator.status(now_us=NOON_US + 9 * SECOND_US).groups
    assert (group.group, group.params, group.minimum_us) == ("group", values.ALIGNMENT, NOON_US - 5)
    assert group.cap == Cap.up_to(NOON_US - 5 + values.ALIGNMENT.max_drift_us)
    assert {str(member.task): member.low_us for member in group.members} == {
        "job/orders/0": NOON_US - 5,
        "other/clicks/0": NOON_US + 1,
    }


def test_runs_that_were_over_are_over(coordinator: LowWatermarkCoordinator) -> None:
    now_us, gone, finished = NOON_US + 9 * SECOND_US, TaskId("job", "gone", "0"), TaskId("job", "orders", "2")
    for who, run in ((gone, "run-1"), (gone, "run-2"), (finished, "run-2")):
        with pytest.raises(StaleRun):
            coordinator.handle(TaskRegistered(who, run), now_us)
    # A live run continues, and low watermarks rise from their former values.
    coordinator.handle(Tick(), now_us)
    for task, run in (("0", "run-0"), ("1", "run-1")):
        coordinator.handle(ReplyLowWatermark("job", "orders", task, now_us, NOON_US + 3, run), now_us)
    assert coordinator.low_watermark_us("job", "orders") == NOON_US - 7, "task 3 has not answered since"
    coordinator.handle(ReplyLowWatermark("job", "orders", "3", now_us, NOON_US + 4, "run-3"), now_us)
    assert coordinator.low_watermark_us("job", "orders") == NOON_US + 3


# -- whole checkpoints


def windows(low_us: int) -> Counter[tuple[int, str]]:
    """Count the rows, by window and split, of all windows that end at or before a watermark."""
    counted = Counter[tuple[int, str]]()
    for split in SCRIPT.splits:
        for at_us in SCRIPT.times_us(split.name, 0, SCRIPT.end, seed=SEED).tolist():
            counted[at_us // WINDOW_US * WINDOW_US, split.name] += 1
    return Counter({key: rows for key, rows in counted.items() if key[0] + WINDOW_US <= low_us})


@pytest.mark.parametrize("kind", QUERIES)
def test_a_query_goes_on_from_its_checkpoint(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(FOLDER / kind, checkpoint)
    before, store = golden(f"{kind}.json"), local_store(checkpoint)
    offsets = [offset for _, offset in planned_entry(store, all_planned(store)[0], "").sources]
    [position] = [found for offset in offsets if (found := BatchOffset.find(offset))]
    [heartbeat] = [beat for offset in offsets if (beat := HeartbeatOffset.find(offset))]
    assert heartbeat.low_us is not None
    assert [file.name for file in (checkpoint / "lowmark").iterdir()] == [heartbeat.token], "what the last run left"

    spark.conf.set("spark.sql.shuffle.partitions", "1")
    with LowWatermarkService(spark) as service:
        ran = emitted(QUERIES[kind](spark, service, None), checkpoint, availableNow=True)
        low_us = service.status("golden").low_watermark_us

    assert low_us == SCRIPT.end_us - SECOND_US - 1_000
    rows = [*before, *ran.rows]
    assert {(start, split): count for start, split, count in rows} == windows(low_us)
    assert len(rows) == len(windows(low_us)), "no window twice"
    assert sum(progress.dropped_rows for progress in ran.progress) == 0
    sources = [source for each in ran.progress for source in each.sources if BatchOffset.find(source.end_offset)]
    left = sum(SCRIPT.count_rows(split, at, SCRIPT.end) for split, at in position.positions.items())
    assert sum(source.num_input_rows for source in sources) == left
    # No offset has the report of the last batch: without the file beside them the run would begin at the offset's low.
    newest_us = [SCRIPT.times_us(split, 0, at, seed=SEED).max() for split, at in position.positions.items()]
    lows = [found.low_us for each in ran.progress for _, found in each.heartbeats()]
    assert heartbeat.low_us < lows[0] == (min(newest_us) - SECOND_US) // 1_000 * 1_000 - 1_000  # type: ignore[operator]
