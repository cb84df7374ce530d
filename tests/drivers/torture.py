"""A query on Kafka, wrapped or read by our source, in a process that tests kill; see `driven`.

`drain` also writes the result of a batch query over the topic, from the same JVM, as the undisturbed run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.drivers import driven
from tests.drivers.driven import STREAM, Driven, poll_query, write_windows
from tests.servers.kafka import Broker
from tests.servers.local import Process
from tests.sparks import IN_ROCKSDB, OWN_CHECKPOINTS
from tests.worlds.kafka_scenarios import VALUE_TIME, Log, batch_windows, bounded, counted, history, source

OTHER = "payments"
How = Literal["wrapped", "read", "prepared", "native"]
"""Spark's Kafka source wrapped; ours, by the records' timestamps; ours, by the event time in the values; no lowmark."""
Query = Literal["windows", "distinct", "timers", "joined"]
"""The query: counts in minute windows; distinct event times; one timer per row, ten seconds later; a join with the rows
of another topic that have the same partition and event time."""


@dataclass(frozen=True)
class Config(driven.Config):
    bootstrap: str
    topic: str
    jars: str
    rows_per_batch: int
    how: How = "wrapped"
    last_low_us: int | None = None
    rocksdb: bool = False
    query: Query = "windows"
    other_topic: str = ""  # the topic to join with

    @property
    def stream_name(self) -> str:
        return STREAM if self.how in ("wrapped", "native") else self.how

    @property
    def undisturbed(self) -> Path:
        return Path(self.folder, "undisturbed.json")


class Alarms(StatefulProcessor):
    """Sets a timer ten seconds after every row of a partition, and emits a row when it fires."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
        for frame in rows:
            for at_ms in frame["at_ms"]:
                self._handle.registerTimer(int(at_ms) + 10_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N803
        import pandas as pd  # type: ignore[import-untyped]  # noqa: TID251  # what the user of this operator does

        at_us = (expiredTimerInfo.getExpiryTimeInMs() - 10_000) * 1_000
        yield pd.DataFrame({"partition": [key[0]], "start_us": [at_us], "rows": [1]})

    def close(self) -> None: ...


class KafkaQuery(Driven[Config]):
    """The query that the config names: by default counts in minute windows, by partition."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        broker = Broker(config.bootstrap, Process("Kafka", [], Path(os.devnull)))
        self._log, self._other = Log(broker, config.topic), Log(broker, config.other_topic)

    def settings(self) -> Mapping[str, str]:
        state = IN_ROCKSDB if self.config.rocksdb else {}
        return {"spark.jars": self.config.jars, **state, **OWN_CHECKPOINTS}

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        events = self._events(spark, service, self._log, self.config.stream_name)
        one = [F.unix_micros("ts").alias("start_us"), F.lit(1).alias("rows")]
        match self.config.query:
            case "windows":
                return counted(events)
            case "distinct":
                return events.dropDuplicates(["partition", "ts"]).select("partition", *one)
            case "timers":
                keyed = events.withColumn("at_ms", F.unix_millis("ts")).groupBy("partition")
                schema = "partition int, start_us bigint, rows bigint"
                return keyed.transformWithStateInPandas(Alarms(), schema, "append", "EventTime")
            case "joined":
                other = self._events(spark, service, self._other, OTHER).selectExpr("partition AS p", "ts AS t")
                both = events.select("partition", "ts").join(other, F.expr("partition = p AND t BETWEEN ts AND ts"))
                return both.select("partition", *one)

    def _events(self, spark: SparkSession, service: LowWatermarkService, log: Log, stream: str) -> DataFrame:
        rows = self.config.rows_per_batch
        if self.config.how == "native":
            # Rows arrive partition by partition, so a distance of a few steps must not make them late.
            return source(spark, log, maxOffsetsPerTrigger=rows).withWatermark("ts", "5 minutes")
        if self.config.how == "wrapped":
            orders = source(spark, log, maxOffsetsPerTrigger=rows)
            return service.wrap(orders, name=stream, event_time="ts", split=["topic", "partition"], strategy=bounded())
        ours = KafkaSource(
            bootstrap_servers=self.config.bootstrap,
            topics=[log.topic],
            columns=["partition", "timestamp", "value"],
            discover_every="1 second",
        )
        if self.config.how == "read":
            events = service.read(ours, name=stream, strategy=bounded(), max_rows_per_batch=rows)
            return events.withColumnRenamed("timestamp", "ts")
        return service.read(
            ours, name=stream, strategy=bounded(), event_time="ts", prepare=_by_value, max_rows_per_batch=rows
        )

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        query.processAllAvailable()
        poll_query(
            query, lambda: history(query)[-1].watermark_us == self.config.last_low_us, "the last low watermark in force"
        )
        query.processAllAvailable()

    def ended(self, spark: SparkSession) -> None:
        write_windows(self.config.undisturbed, list(batch_windows(spark, self._log).items()))


def _by_value(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("split_id", "partition", f"{VALUE_TIME} as ts")


if __name__ == "__main__":
    driven.main(KafkaQuery, Config)
