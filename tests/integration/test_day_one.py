"""The operations that users try on their first day, on the rows of a fast and a slow split: no row may be dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.integration.feed import ZERO_US, Feed, Row, run_at_once, start, windows
from tests.sparks import IN_ROCKSDB_HERE, settings

SPLITS = ["fast", "slow"]
BATCHES: list[list[Row]] = [[("fast", 1, 500 + at), ("slow", 1, at), ("slow", 1, at + 2)] for at in (0, 10, 20, 30)]
END: list[Row] = [("fast", 1, 2_000), ("slow", 1, 2_000)]
COUNTED = {"fast": len(BATCHES), "slow": 2 * len(BATCHES)}


def of_split(ran_rows: list[Row]) -> dict[str, int]:
    """Rows in emitted windows before the last one, by split."""
    counted: dict[str, int] = {}
    for at, split, n in ran_rows:
        if at < 2_000:
            counted[split] = counted.get(split, 0) + n
    return counted


class Totals(StatefulProcessor):
    """Counts rows of a key in pandas; emits the count ten seconds of event time after its first row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
        for frame in rows:
            if not self._seen.exists():
                self._handle.registerTimer(int(frame["at_ms"].min()) + 10_000)
            (before,) = self._seen.get() or (0,)
            self._seen.update((before + len(frame),))
        return iter([])

    def handleExpiredTimer(  # Spark's names
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]  # noqa: TID251  # what the user of this operator does

        (seen,) = self._seen.get() or (0,)
        self._seen.clear()
        yield pd.DataFrame({"length": [len(key[0])], "n": [seen]})

    def close(self) -> None: ...


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """State in RocksDB, with its changelog."""
    changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    with settings(spark, {**IN_ROCKSDB_HERE, changelog: "true"}):
        yield


def wrapped(service: LowWatermarkService, df: DataFrame) -> DataFrame:
    return service.wrap(df, name="orders", event_time="ts", split="split", splits=SPLITS)


@pytest.mark.usefixtures("rocksdb")
def test_windows_with_state_in_rocksdb_and_a_restart(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    counted = windows(wrapped(service, feed.df), "split")
    first = run_at_once(counted, feed, BATCHES[:2], checkpoint)
    first.query.stop()
    second = run_at_once(counted, feed, [*BATCHES[2:], END], checkpoint)

    assert of_split(first.rows + second.rows) == COUNTED
    assert first.dropped + second.dropped == 0


@pytest.mark.usefixtures("rocksdb")
def test_timers_of_transform_with_state_in_pandas(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    keyed = wrapped(service, feed.df).withColumn("at_ms", F.unix_millis("ts")).groupBy("split")
    totals = keyed.transformWithStateInPandas(Totals(), "length bigint, n bigint", "append", "EventTime")
    ran = run_at_once(totals, feed, [*BATCHES, END, [("fast", 1, 3_000), ("slow", 1, 3_000)]], checkpoint)

    assert sum(n for _, n in ran.rows) >= sum(COUNTED.values())  # and those of the end that came before their timer
    assert ran.dropped == 0


def test_several_sinks_from_one_wrapped_stream(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """A table of windows, the rows as parquet, the newest row of each key: three queries with their low watermarks."""
    df = wrapped(service, feed.df)
    counted = start(windows(df, "split"), str(tmp_path / "windows"))
    latest = start(df.groupBy("split").agg(F.max("v").alias("v")), str(tmp_path / "latest"), mode="update")
    rows = (
        df.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "rows"))
        .start()
    )
    for batch in [*BATCHES, END]:
        feed.put(*batch)
    for query in (counted.query, latest.query, rows):
        query.processAllAvailable()

    assert of_split(counted.rows) == COUNTED
    assert {split for split, _ in latest.rows} == set(SPLITS)
    assert spark.read.parquet(str(tmp_path / "out")).where(
        f"ts < timestamp_micros({ZERO_US + 1_000_000_000})"
    ).count() == 3 * len(BATCHES)
    assert counted.dropped == 0
    assert len(service.statuses()) == 3


def test_available_now_from_cron(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    """A new service for each run, as in a process of its own; each run takes the available rows and ends."""
    rows: list[Row] = []
    for batches in (BATCHES[:2], BATCHES[2:], [END]):
        for batch in batches:
            feed.put(*batch)
        with LowWatermarkService(spark) as service:
            ran = start(windows(wrapped(service, feed.df), "split"), checkpoint, trigger={"availableNow": True})
            assert ran.query.awaitTermination(60)
            rows += ran.rows
            assert ran.dropped == 0
    assert of_split(rows) == COUNTED


def test_ten_thousand_splits(
    service: LowWatermarkService, spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    """Every device is a split, some seconds behind the previous one: no row is lost, in any of three batches."""
    folder = tmp_path / "devices"
    devices = 10_000
    for batch in range(3):
        times = F.timestamp_micros(F.lit(ZERO_US) + (F.col("id") % 600 + 1_000 * batch) * 1_000_000)
        rows = spark.range(devices).select(F.col("id").alias("device"), times.alias("ts"))
        rows.coalesce(1).write.mode("append").parquet(str(folder))
    stream = spark.readStream.schema("device bigint, ts timestamp").option("maxFilesPerTrigger", 1).parquet(str(folder))
    df = service.wrap(stream, name="fleet", event_time="ts", split="device", max_splits=20_000)  # 8,192 by default
    ran = start(windows(df, width="10 minutes"), checkpoint)
    ran.settle()

    assert ran.dropped == 0
    assert service.status("fleet").states["active"] == devices
    assert sum(n for _, n in ran.rows) >= devices  # the windows before the slowest one's last time


def test_the_rate_source(service: LowWatermarkService, spark: SparkSession, checkpoint: str) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 40).option("numPartitions", 1)
    rated = stream.option("startTimestamp", ZERO_US // 1_000).option("advanceMillisPerBatch", 1_000).load()
    df = service.wrap(rated.withColumn("split", F.col("value") % 4), name="rate", event_time="timestamp", split="split")
    ran = start(df.groupBy(F.window("timestamp", "2 seconds")).count().select("count"), checkpoint)
    for _ in range(60):
        if len(ran.rows) >= 2 or ran.query.awaitTermination(1):
            break
    ran.query.stop()

    assert ran.rows[:2] == [(80,), (80,)]
    assert ran.dropped == 0


def test_from_a_table_into_a_table(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    (tmp_path / "in").mkdir()
    spark.sql(f"CREATE TABLE day_one_in (split string, v int, ts timestamp) USING parquet LOCATION '{tmp_path / 'in'}'")
    spark.sql(f"CREATE TABLE day_one_out (split string, n bigint) USING parquet LOCATION '{tmp_path / 'out'}'")
    try:
        df = wrapped(service, spark.readStream.table("day_one_in"))
        counted = windows(df, "split").select("split", "n")
        query = counted.writeStream.outputMode("append").option("checkpointLocation", checkpoint).toTable("day_one_out")
        for batch in [*BATCHES[:2], END]:
            values = ", ".join(f"('{s}', {v}, timestamp_micros({ZERO_US + at * 1_000_000}))" for s, v, at in batch)
            spark.sql(f"INSERT INTO day_one_in VALUES {values}")
            query.processAllAvailable()
        query.stop()
        told = {
            row.split: row.n for row in spark.table("day_one_out").groupBy("split").agg(F.sum("n").alias("n")).collect()
        }
        assert told == {"fast": 2, "slow": 4}
    finally:
        spark.sql("DROP TABLE day_one_in")
        spark.sql("DROP TABLE day_one_out")


def test_a_column_more_after_a_restart(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    with LowWatermarkService(spark) as service:
        first = run_at_once(windows(wrapped(service, feed.df), "split"), feed, BATCHES[:2], checkpoint)
        first.query.stop()
    feed.schema = "split string, v int, note string, ts timestamp"
    with LowWatermarkService(spark) as service:
        batches = [[(split, v, "new", at) for split, v, at in batch] for batch in [*BATCHES[2:], END]]
        second = run_at_once(windows(wrapped(service, feed.df), "split"), feed, batches, checkpoint)
        second.query.stop()

    assert of_split(first.rows + second.rows) == COUNTED
    assert first.dropped + second.dropped == 0


def test_a_service_that_is_had_a_second_time_does_not_end_with_the_second_with(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    feed.put(("a", 1, 100))
    ran = start(service.wrap(feed.df, name="orders", event_time="ts", split="split"), checkpoint)
    with LowWatermarkService(spark) as again:
        assert again is service
        ran.settle()
    feed.put(("a", 1, 200))
    ran.settle()

    assert service.status("orders").counts.rows == 2, "the first one's queries are measured as before"
