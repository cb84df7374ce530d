"""The process that gets killed: a query on a Kinesis stream, its checkpoint and output on disk.

    python -m tests.live.kinesis_driver CONFIG     goes on until it is killed, or until a file `drain` is there

Rows are (split by the writer, number, event time in the payload). Output: one file a batch, written aside and renamed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.sources.kinesis import KinesisSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

STREAM = "orders"
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
BOUND = "30 seconds"
VALUE = "struct<key:string,number:bigint,at_us:bigint>"


@dataclass(frozen=True)
class Config:
    """What a driver needs to know; travels as a JSON file."""

    endpoint: str
    stream: str
    folder: str
    rows_per_batch: int = 100

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def output(self) -> Path:
        return Path(self.folder, "output")

    @property
    def started(self) -> Path:
        return Path(self.folder, "started")

    @property
    def drain(self) -> Path:
        return Path(self.folder, "drain")

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Config:
        return cls(**json.loads(path.read_text()))


def by_payload(frame: DataFrame) -> DataFrame:
    """The event time that writers gave."""
    row = F.from_json(F.col("data").cast("string"), VALUE).alias("row")
    parsed = frame.select("split_id", row)
    return parsed.select("split_id", "row.key", "row.number", F.timestamp_micros("row.at_us").alias("ts"))


def counted(frame: DataFrame) -> DataFrame:
    """Rows in minute windows, by key."""
    windows = frame.groupBy(F.window("ts", "1 minute").alias("w"), "key").count()
    return windows.select("key", F.unix_micros("w.start").alias("start_us"), "count")


def main(config: Config) -> None:
    """Run the query until killed, or until all is read."""
    config.output.mkdir(exist_ok=True)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.minBatchesToRetain": "10000",
        "spark.local.dir": str(Path(config.folder, "local")),
        "spark.sql.warehouse.dir": str(Path(config.folder, "warehouse")),
    }
    spark = SparkSession.builder.master("local[2, 4]").appName("lowmark-kinesis").config(map=settings).getOrCreate()

    def sink(frame: DataFrame, batch_id: int) -> None:
        rows = [[r.key, r.start_us, r["count"]] for r in frame.collect()]
        path = config.output / f"{batch_id:06}.json"
        part = path.with_suffix(".part")
        with part.open("w") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)

    source = KinesisSource(
        streams=[config.stream], region="eu-west-1", endpoint_url=config.endpoint, discover_every="500 milliseconds",
        poll_every="100 milliseconds", reads_per_second=None, bytes_per_second=None,
    )  # fmt: skip
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_future_guard("365000 days")
    with LowWatermarkService(spark) as service:
        events = service.read(
            source, name=STREAM, strategy=strategy, event_time="ts", prepare=by_payload,
            max_rows_per_batch=config.rows_per_batch,
        )  # fmt: skip
        writer = counted(events).writeStream.foreachBatch(sink).outputMode("append")
        query = writer.option("checkpointLocation", str(config.checkpoint)).start()
        config.started.touch()
        pause = threading.Event()
        while query.isActive and not config.drain.exists():
            pause.wait(0.05)
        if query.isActive:
            want_us = int(config.drain.read_text())
            while query.isActive:
                status = service.status(STREAM)
                if status.low_watermark_us is not None and status.low_watermark_us >= want_us:
                    break
                pause.wait(0.1)
            query.processAllAvailable()
            query.processAllAvailable()
            query.stop()
        failed = query.exception()
        if failed is not None:
            raise failed
    spark.stop()


if __name__ == "__main__":
    main(Config.read(Path(sys.argv[1])))
