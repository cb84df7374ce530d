"""A query on a Kinesis stream, in a process that tests kill; see `driven`.

Rows are (split by the writer, number, event time in the payload).
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.integration import LowWatermarkService
from lowmark.sources.kinesis import KinesisSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers import driven
from tests.drivers.driven import STREAM, Driven, poll_query

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
BOUND = "30 seconds"
VALUE = "struct<key:string,number:bigint,at_us:bigint>"


@dataclass(frozen=True)
class Config(driven.Config):
    endpoint: str
    stream: str
    rows_per_batch: int = 100
    last_low_us: int = 0


def by_payload(frame: DataFrame) -> DataFrame:
    """Return the event time in the payload."""
    row = F.from_json(F.col("data").cast("string"), VALUE).alias("row")
    parsed = frame.select("split_id", row)
    return parsed.select("split_id", "row.key", "row.number", F.timestamp_micros("row.at_us").alias("ts"))


class KinesisQuery(Driven[Config]):
    """Rows in minute windows, by key."""

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        source = KinesisSource(
            streams=[self.config.stream], region="eu-west-1", endpoint_url=self.config.endpoint,
            discover_every="500 milliseconds", poll_every="100 milliseconds", reads_per_second=None,
            bytes_per_second=None,
        )  # fmt: skip
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_future_guard("365000 days")
        events = service.read(
            source, name=STREAM, strategy=strategy, event_time="ts", prepare=by_payload,
            max_rows_per_batch=self.config.rows_per_batch,
        )  # fmt: skip
        windows = events.groupBy(F.window("ts", "1 minute").alias("w"), "key").count()
        return windows.select("key", F.unix_micros("w.start").alias("start_us"), "count")

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        def low() -> bool:
            low_us = service.status(STREAM).low_watermark_us
            return low_us is not None and low_us >= self.config.last_low_us

        poll_query(query, low, "the last low watermark", seconds=150)
        query.processAllAvailable()
        query.processAllAvailable()


if __name__ == "__main__":
    driven.main(KinesisQuery, Config)
