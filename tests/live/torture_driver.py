"""The process that gets killed: a query on Kafka, wrapped or read by our source; see `driven`.

`drain` also writes what a batch query over the topic gives, from the same JVM: the undisturbed run to compare with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.live import driven
from tests.live.driven import STREAM, Driven, write_windows
from tests.live.kafka_scenarios import (
    VALUE_TIME,
    Log,
    batch_windows,
    bounded,
    counted,
    history,
    poll_query,
    source,
)
from tests.live.servers import Broker, Process

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
How = Literal["wrapped", "read", "prepared", "native"]
"""Spark's Kafka source wrapped; ours, by the records' timestamps; ours, by the event time in their values; none."""


@dataclass(frozen=True)
class Config(driven.Config):
    bootstrap: str
    topic: str
    jars: str
    rows_per_batch: int
    how: How = "wrapped"
    last_low_us: int | None = None
    rocksdb: bool = False

    @property
    def undisturbed(self) -> Path:
        return Path(self.folder, "undisturbed.json")


class KafkaQuery(Driven[Config]):
    """Rows in minute windows, by partition."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._log = Log(Broker(config.bootstrap, Process("Kafka", [], Path(os.devnull))), config.topic)

    def settings(self) -> Mapping[str, str]:
        state = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if self.config.rocksdb else {}
        return {"spark.jars": self.config.jars, **state}

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        return counted(self._events(spark, service))

    def _events(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        rows = self.config.rows_per_batch
        if self.config.how == "native":
            # Rows come from one partition after the other: a few steps apart must not make them late.
            return source(spark, self._log, maxOffsetsPerTrigger=rows).withWatermark("ts", "5 minutes")
        if self.config.how == "wrapped":
            orders = source(spark, self._log, maxOffsetsPerTrigger=rows)
            return service.wrap(orders, name=STREAM, event_time="ts", split=["topic", "partition"], strategy=bounded())
        ours = KafkaSource(
            bootstrap_servers=self.config.bootstrap,
            topics=[self.config.topic],
            columns=["partition", "timestamp", "value"],
            discover_every="1 second",
        )
        if self.config.how == "read":
            events = service.read(ours, name=STREAM, strategy=bounded(), max_rows_per_batch=rows)
            return events.withColumnRenamed("timestamp", "ts")
        return service.read(
            ours, name=STREAM, strategy=bounded(), event_time="ts", prepare=_by_value, max_rows_per_batch=rows
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
