"""A query on Pravega, in a process that tests kill; see `driven`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowmark.integration import LowWatermarkService
from lowmark.sources.pravega import PravegaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers import driven
from tests.drivers.driven import STREAM, Driven, poll_query
from tests.sparks import WITHOUT_CODEGEN

BOUND_MS = 10_000


@dataclass(frozen=True)
class Config(driven.Config):
    controller: str
    scope: str
    streams: list[str]
    jars: str
    rows_per_batch: int
    rows: int = 0
    reader_group: str = ""

    def end_us(self, start: int) -> int:
        return (start + 60_000) * 1_000


class PravegaQuery(Driven[Config]):
    """Rows in minute windows, by stream."""

    def settings(self) -> Mapping[str, str]:
        return WITHOUT_CODEGEN

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        source = PravegaSource(
            controller=self.config.controller, scope=self.config.scope, streams=self.config.streams,
            jars=self.config.jars, event_time="$.at", columns=["stream", "event_time"],
            reader_group=self.config.reader_group,
        )  # fmt: skip
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_MS} milliseconds")
        events = service.read(source, name=STREAM, strategy=strategy, max_rows_per_batch=self.config.rows_per_batch)
        counted = events.groupBy("stream", F.window("event_time", "1 minute").alias("w")).count()
        return counted.select("stream", F.unix_millis("w.start").alias("start_ms"), "count")

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        def out() -> bool:
            return sum(rows for _, rows in self.config.emitted()) >= self.config.rows

        poll_query(query, out, f"{self.config.rows} rows in windows", seconds=150)


if __name__ == "__main__":
    driven.main(PravegaQuery, Config)
