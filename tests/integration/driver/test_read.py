"""Streams that sources of ours read, under real Spark: `LowWatermarkService.read`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.coordinator.access import Door
from lowmark.integration.errors import WrapRefused
from lowmark.sources import RateLimiterStrategy
from lowmark.sources.files import FileSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.spark import register
from lowmark.watermark import SplitState, WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.coordinator.serving import private_folder, serving
from tests.integration.feed import seconds, start, us, windows
from tests.integration.log import Log, LogSource, SkippingLog
from tests.servers.local import wait_until

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
STEP = 0.001
HOUR = 3_600


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def read(service: LowWatermarkService, log: Log, name: str = "log", **options: object) -> DataFrame:
    options = {"strategy": MONOTONOUS, "tasks": 2, **options}
    return service.read(LogSource(log.folder), name=name, **options)  # type: ignore[arg-type]


def counted(df: DataFrame) -> DataFrame:
    return windows(df, "split_id")


def test_a_backfill_comes_in_event_time_order_and_loses_nothing(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    times = {"a": range(0, 4 * HOUR, 30), "b": range(0, 4 * HOUR, 30), "c": range(-6 * HOUR, 4 * HOUR, 30)}
    for split, at in times.items():
        log.append(split, *at)
    ran = start(
        counted(read(service, log, max_rows_per_batch=240)), str(tmp_path / "cp"), trigger={"availableNow": True}
    )
    ran.query.awaitTermination(120)

    assert ran.dropped == 0
    batches = [p for p in ran.progress if p.num_input_rows > 1]
    assert len(batches) == pytest.approx(2_160 / 240, abs=3)
    assert max(p.num_input_rows for p in batches) <= 241, "the rows' limit, and a heartbeat"
    lows = [p.watermark_us for p in ran.progress if p.watermark_us]
    assert lows == sorted(lows)
    # The state holds a slice's windows of three splits, not six hours of two splits.
    assert max(op.num_rows_total for p in ran.progress for op in p.state_operators) <= 2 * 240
    # The newest windows stay in state; every other row came out once.
    low = ran.low
    assert low is not None
    assert ran.by_split() == {split: sum(t + 10 <= low for t in at) for split, at in times.items()}


def test_files_that_one_batch_reads_to_their_ends_leave_the_watermark_of_the_newest(
    service: LowWatermarkService, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for hour in range(4):
        times = pa.array([us(hour * HOUR + minute * 60) for minute in range(60)], pa.timestamp("us", "UTC"))
        parquet.write_table(pa.table({"ts": times}), folder / f"{hour}.parquet")
    df = service.read(FileSource(str(folder), event_time="ts"), name="files", strategy=MONOTONOUS)
    ran = start(windows(df), str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    every_window_but_the_last = [(minute * 60, 1) for minute in range(4 * 60 - 1)]
    assert sorted(map(tuple, ran.rows)) == every_window_but_the_last


def test_the_watermark_of_a_batch_is_known_when_it_is_planned(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    for split in ("a", "b"):
        log.append(split, *range(0, 600, 10))
    ran = start(
        counted(read(service, log, max_rows_per_batch=20)), str(tmp_path / "cp"), trigger={"availableNow": True}
    )
    ran.query.awaitTermination(120)

    # From the second batch on (the first one ties planner and heartbeat), a batch's own heartbeat has the time up to
    # which the batch was planned: later rows are at or after it.
    for progress in ran.progress[1:5]:
        ends = [BatchOffset.find(source.end_offset) for source in progress.sources]
        (end,) = [offset for offset in ends if offset is not None]
        (_, heartbeat) = progress.heartbeats()[0]
        next_row = min(10 * position for position in end.positions.values())
        assert next_row - 10 < (seconds(heartbeat.low_us) or 0) + STEP <= next_row, "beyond all that the batch reads"
    assert ran.dropped == 0


def test_a_rate_bounds_what_a_batch_takes(service: LowWatermarkService, log: Log, tmp_path: Path) -> None:
    for split in ("a", "b"):
        log.append(split, *range(30))
    df = counted(read(service, log, rate=RateLimiterStrategy.per_checkpoint(20)))
    ran = start(df, str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    sources = [source for progress in ran.progress for source in progress.sources]
    taken = [source.num_input_rows for source in sources if BatchOffset.find(source.end_offset) is not None]
    assert (sum(taken), ran.dropped) == (60, 0)
    assert 10 < max(taken) <= 20


def test_a_restart_goes_on_from_sparks_checkpoint(
    spark: SparkSession, service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    log.append("a", *range(100))
    log.append("b", *range(50))
    df = counted(read(service, log, max_rows_per_batch=100))
    first = start(df, str(tmp_path / "cp"), trigger={"availableNow": True})
    first.query.awaitTermination(120)
    log.append("a", *range(100, 200))
    log.append("b", *range(50, 200))
    log.append("c", *range(150, 200))
    with LowWatermarkService(spark, beside=True) as later:
        df = counted(read(later, log, max_rows_per_batch=100))
        second = start(df, str(tmp_path / "cp"), trigger={"availableNow": True})
        second.query.awaitTermination(120)

        assert (first.dropped, second.dropped) == (0, 0)
        emitted = {(at, split): n for at, split, n in first.rows + second.rows}
        assert len(emitted) == len(first.rows) + len(second.rows), "no window twice"
        assert set(emitted.values()) == {10}
        assert second.low == 199 - STEP
        assert {at for at, _ in emitted} == {float(at) for at in range(0, 190, 10)}


def test_a_split_that_appears_while_running_is_read_from_its_first_row(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    log.append("a", 10, 20)
    ran = start(counted(read(service, log)), str(tmp_path / "cp"))
    wait_until(lambda: ran.has_low(20 - STEP), "the low watermark of the first split", seconds=60)
    log.append("b", 25, 35)
    # Before the second split is found, the first split's rows might be the oldest.
    wait_until(lambda: "b" in service.status("log").splits, "the second split found", seconds=60)
    log.append("a", 50)
    wait_until(lambda: ran.has_low(35 - STEP), "the low watermark of both", seconds=60)
    ran.query.stop()

    assert ran.dropped == 0
    status = service.status("log")
    assert {name: split.state for name, split in status.splits.items()} == dict.fromkeys("ab", SplitState.ACTIVE)


def test_children_of_a_reshard_wait_for_their_parent(service: LowWatermarkService, log: Log, tmp_path: Path) -> None:
    log.append("a", *range(0, 100, 10))
    log.end("a", "a1", "a2")
    log.append("a1", 100, 120, 140)
    log.append("a2", 105, 130)
    ran = start(counted(read(service, log, max_rows_per_batch=3)), str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    assert ran.dropped == 0
    assert ran.low == 130 - STEP
    status = service.status("log")
    assert status.splits["a"].state is SplitState.FINISHED
    assert ran.by_split() == {"a": 10, "a1": 1, "a2": 1}


def test_one_bad_clock_neither_stalls_nor_poisons_the_stream(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    log.append("a", 0, 10, 20, 10_000 * 24 * HOUR, *range(30, 200, 10))
    log.append("b", *range(0, 200, 10))
    ran = start(counted(read(service, log, max_rows_per_batch=6)), str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    assert ran.dropped == 0
    assert ran.low == 190 - STEP
    assert service.status("log").counts.future_rows == 1


def test_runs_up_to_the_present_wait_for_their_group_and_read_everything(
    service: LowWatermarkService, tmp_path: Path
) -> None:
    strategy = MONOTONOUS.with_watermark_alignment(group="g", max_drift="1 minute", update_interval="100 milliseconds")
    rans = []
    for name in ("one", "two"):
        log = Log(tmp_path / name)
        log.append("s", *range(0, 300, 10))
        df = read(service, log, name, strategy=strategy, max_rows_per_batch=20)
        rans.append(start(counted(df), str(tmp_path / f"{name}-cp"), trigger={"availableNow": True}))
    for ran in rans:
        assert ran.query.awaitTermination(200)

    assert [ran.dropped for ran in rans] == [0, 0]
    assert [ran.low for ran in rans] == [290 - STEP] * 2


def side_by_side(
    services: Sequence[LowWatermarkService],
    folder: Path,
    *,
    rows: Mapping[str, int] = MappingProxyType({"fast": 1_000_000, "slow": 10}),
    beyond_s: int = 0,
    end_s: int = 2_000,
    **options: object,
) -> None:
    """Two queries, one of them ten times as slow: neither runs ahead by more than the drift.

    Args:
        rows: rows in a batch of each query.
        beyond_s: how far a batch may go beyond the cap.
        end_s: event time at the end of both logs.
    """
    strategy = MONOTONOUS.with_watermark_alignment(group="g", max_drift="2 minutes", update_interval="100 milliseconds")
    logs = {name: Log(folder / name) for name in ("fast", "slow")}
    logs["fast"].append("f", 0)
    logs["slow"].append("s", 0)
    observed: list[dict[str, int]] = []
    rans = {}
    for service, (name, most_rows) in zip(services, rows.items(), strict=True):
        df = read(service, logs[name], name, strategy=strategy, max_rows_per_batch=most_rows, **options)
        rans[name] = start(counted(df), str(folder / f"{name}-cp"))

    read_to = {"fast": 0, "slow": 0}

    def both_read(to_s: Mapping[str, int]) -> bool:
        for name, step in (("fast", 10), ("slow", 20)):
            last = rans[name].newest
            for source in last.sources if last is not None else ():
                if (offset := BatchOffset.find(source.end_offset)) is not None:
                    read_to[name] = step * offset.positions.get(name[0], 0)
        observed.append({**read_to})
        return read_to == to_s

    # A query that begins alone in the group waits for nobody.
    wait_until(lambda: both_read({"fast": 10, "slow": 20}), "both queries in the group", seconds=100)
    logs["fast"].append("f", *range(10, end_s, 10))
    logs["slow"].append("s", *range(20, end_s, 20))
    wait_until(lambda: both_read({"fast": end_s, "slow": end_s}), "both logs read", seconds=200)
    for ran in rans.values():
        ran.query.stop()
        assert ran.dropped == 0
    ahead = [at["fast"] - at["slow"] for at in observed]
    assert max(ahead) <= 120 + 20 * rows["slow"] + 20 + beyond_s, "the drift, and what the slow one plans meanwhile"
    batches = [p for p in rans["fast"].progress if p.num_input_rows > 1]
    assert len(batches) >= 5, "it could have read everything in one batch, had it not waited"


def test_streams_of_one_group_are_read_side_by_side(service: LowWatermarkService, tmp_path: Path) -> None:
    side_by_side([service, service], tmp_path)


def test_streams_of_one_group_whose_event_time_is_in_the_payload_are_read_side_by_side(
    service: LowWatermarkService, tmp_path: Path
) -> None:
    prepared = {"prepare": lambda df: df.where("true")}  # the rows stay as they are, and Spark measures them
    rows = {"slow": 3, "fast": 20}
    side_by_side([service, service], tmp_path, rows=rows, beyond_s=20 * 10, end_s=1_000, **prepared)


def test_two_applications_in_one_group_stay_within_the_drift(spark: SparkSession, tmp_path: Path) -> None:
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder / 'c.sock'}")) as address,
        LowWatermarkService(spark, coordinator=address, beside=True) as one,
        LowWatermarkService(spark, coordinator=address, beside=True) as two,
    ):
        side_by_side([one, two], tmp_path)


def test_a_registered_format_reads_with_sparks_own_words(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,ts\n1,2026-01-01T00:00:00Z\n2,2026-01-01T00:00:05Z\n")
    options = {"path": str(tmp_path / "in"), "fileFormat": "csv", "eventTime": "ts", "splitColumn": "file"}
    df = spark.readStream.format("lowmark_files").options(**options).load()
    query = df.writeStream.format("memory").queryName("formats").trigger(availableNow=True).start()
    query.awaitTermination(60)

    rows = spark.table("formats").orderBy("id").collect()
    assert [(row.id, row.file) for row in rows] == [(1, "a.csv"), (2, "a.csv")]
    assert rows[1].ts == dt.datetime(2026, 1, 1, 0, 0, 5)  # noqa: DTZ001  # Spark's session is UTC


def test_event_time_inside_a_payload_is_prepared_and_measured_in_the_jvm(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    log.append("a", *range(0, 100, 10))
    log.append("b", *range(0, 50, 10))

    def prepare(df: DataFrame) -> DataFrame:
        return df.select("split_id", (F.col("ts") + F.expr("interval 1 hour")).alias("paid_at"))

    df = read(service, log, event_time="paid_at", prepare=prepare).withColumnRenamed("paid_at", "ts")
    ran = start(counted(df), str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    assert ran.dropped == 0
    assert ran.low == HOUR + 40 - STEP
    assert set(service.status("log").splits) == {"a", "b"}


@pytest.mark.parametrize("by", ["prepare", "strategy"])
def test_what_a_reader_counts_is_shown_also_where_others_measure_the_rows(
    service: LowWatermarkService, log: Log, tmp_path: Path, by: str
) -> None:
    """Only the log of an executor had shown a loss that a reader passed."""
    log.append("a", *range(0, 100, 10))
    python = MONOTONOUS.with_timestamp_assigner(lambda row, row_us: row_us or 0)
    options: dict[str, Any] = {"prepare": lambda df: df.filter("v >= 0")} if by == "prepare" else {"strategy": python}
    df = service.read(SkippingLog(log.folder), name="log", **{"strategy": MONOTONOUS, "tasks": 1, **options})
    ran = start(counted(df), str(tmp_path / "cp"), trigger={"availableNow": True})
    ran.query.awaitTermination(120)

    assert ran.low == 90 - STEP
    wait_until(lambda: service.run_statuses()[-1].source_metrics.get("data_losses") == 1, "the reader's count")


def test_one_read_stream_feeds_two_queries(service: LowWatermarkService, log: Log, tmp_path: Path) -> None:
    log.append("a", *range(0, 100, 10))
    log.append("b", *range(0, 50, 10))
    df = read(service, log, max_rows_per_batch=6)
    rans = [start(counted(df), str(tmp_path / f"cp{n}"), trigger={"availableNow": True}) for n in range(2)]
    for ran in rans:
        ran.query.awaitTermination(120)

    assert [ran.low for ran in rans] == [40 - STEP] * 2
    assert [ran.dropped for ran in rans] == [0, 0]


def test_a_source_without_an_event_time_is_refused_with_what_to_do(service: LowWatermarkService, log: Log) -> None:
    class Timeless(LogSource):
        event_time = None  # type: ignore[assignment]

    with pytest.raises(WrapRefused, match=r"keeps no event time of its own.*prepare"):
        service.read(Timeless(log.folder), name="log")


def test_all_rows_of_an_empty_source_come_when_they_are_there(
    service: LowWatermarkService, log: Log, tmp_path: Path
) -> None:
    log.folder.mkdir()
    ran = start(counted(read(service, log)), str(tmp_path / "cp"))
    log.append("a", 10, 20, 30)
    wait_until(lambda: ran.has_low(30 - STEP), "the rows of the first split", seconds=60)
    ran.query.stop()

    assert us(30) - 1_000 == ran.heartbeats[-1].low_us
