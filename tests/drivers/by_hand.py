"""A query on files, whose splits a person leaves out by hand while tests kill it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.watermark import WatermarkStrategy

from tests.drivers.driven import STREAM, Config, Driven, main
from tests.integration.feed import SCHEMA, windows

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def feed_of(config: Config) -> Path:
    """The folder whose files the query reads."""
    return Path(config.folder, "feed")


class ByHandDriver(Driven[Config]):
    """Windows of ten seconds by split."""

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(feed_of(self.config)))
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        events = service.wrap(files, name=STREAM, event_time="ts", split="split", strategy=strategy)
        Path(self.config.folder, "address").write_text(service.address)
        return windows(events, "split").select("split", "start", "n")

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        raise NotImplementedError


if __name__ == "__main__":
    main(ByHandDriver, Config)
