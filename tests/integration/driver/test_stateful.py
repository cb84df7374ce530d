"""Stateful operators with event-time timers of the user's own, on a wrapped stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.integration.feed import ZERO_US, Feed, run
from tests.sparks import IN_ROCKSDB_HERE, settings


class Alarms(StatefulProcessor):
    """Sets a timer ten seconds after every row of a split, and emits a row when the timer fires."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N803
        for row in rows:
            self._handle.registerTimer(row.at_ms + 10_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N803
        yield Row(split=key[0], at_ms=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None: ...


class AlarmsInPandas(Alarms):
    """The same for Spark 4.0, which has stateful processors in pandas only."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
        for frame in rows:
            for at_ms in frame["at_ms"]:
                self._handle.registerTimer(int(at_ms) + 10_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N803
        import pandas as pd  # type: ignore[import-untyped]  # noqa: TID251  # what the user of this operator does

        yield pd.DataFrame({"split": [key[0]], "at_ms": [expiredTimerInfo.getExpiryTimeInMs()]})


def alarms(df: DataFrame) -> DataFrame:
    """The timers of each split as they fire: split, at_ms."""
    keyed = df.withColumn("at_ms", F.unix_millis("ts")).groupBy("split")
    schema = "split string, at_ms bigint"
    if not hasattr(keyed, "transformWithState"):
        return keyed.transformWithStateInPandas(AlarmsInPandas(), schema, "append", "EventTime")
    return keyed.transformWithState(Alarms(), schema, "append", "EventTime")


def tallied(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """Count rows of a key, and emit the count ten seconds of event time after the last row."""
    import pandas as pd  # noqa: TID251  # what the user of this operator does

    if state.hasTimedOut:
        yield pd.DataFrame({"v": [key[0]], "n": [state.get[0]]})
        state.remove()
        return
    seen, last_ms = state.get if state.exists else (0, 0)
    for frame in frames:
        seen, last_ms = seen + len(frame), max(last_ms, int(frame["at_ms"].max()))
    state.update((seen, last_ms))
    state.setTimeoutTimestamp(last_ms + 10_000)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """transformWithState keeps its state in RocksDB only."""
    with settings(spark, IN_ROCKSDB_HERE):
        yield


@pytest.mark.usefixtures("rocksdb")
def test_timers_fire_by_the_low_watermark(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    """The fast split is far ahead; the slow split's timers must not fire before it has reached their times."""
    df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
    fired = alarms(df).select("split", ((F.col("at_ms") * 1000 - ZERO_US) / 1_000_000).cast("double").alias("at"))
    batches = [[("fast", 1, 500), ("slow", 1, 20)], [("slow", 1, 25)], [("slow", 1, 40)]]
    ran = run(fired, feed, [*batches, [("fast", 1, 600), ("slow", 1, 600)]], checkpoint)
    early = [row for row in ran.rows if row[1] < 100]

    assert early == [("slow", 30), ("slow", 35), ("slow", 50)]
    assert ("fast", 510) in ran.rows
    assert ran.dropped == 0


def test_event_time_timeouts_go_by_the_low_watermark(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    """Key 2 gets rows less than ten seconds apart: it must not time out because the other split is far ahead."""
    df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
    keyed = df.withColumn("at_ms", F.unix_millis("ts")).groupBy("v")
    counted = keyed.applyInPandasWithState(
        tallied, "v int, n bigint", "n bigint, last_ms bigint", "append", "EventTimeTimeout"
    )
    batches = [[("fast", 1, 500), ("slow", 2, 20)], [("slow", 2, 25)], [("slow", 2, 33)]]
    ran = run(counted, feed, [*batches, [("fast", 3, 1000), ("slow", 3, 1000)]], checkpoint)

    assert sorted(ran.rows) == [(1, 1), (2, 3)]
