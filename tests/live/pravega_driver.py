"""The process that gets killed while it reads Pravega: a query, its checkpoint and output on disk.

python -m tests.live.pravega_driver run CONFIG     goes on until it is killed
python -m tests.live.pravega_driver drain CONFIG   reads all there is, until the last window is out, and ends
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.sources.pravega import PravegaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

STREAM = "orders"
BOUND_MS = 10_000


@dataclass(frozen=True)
class Config:
    """What a driver needs to know; travels as a JSON file."""

    controller: str
    scope: str
    streams: list[str]
    jars: str
    folder: str
    rows_per_batch: int
    rows: int = 0
    how: str = "read"

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def output(self) -> Path:
        return Path(self.folder, "output")

    @property
    def started(self) -> Path:
        return Path(self.folder, "started")

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Config:
        return cls(**json.loads(path.read_text()))


def _write(path: Path, windows: list[list[object]]) -> None:
    part = path.with_suffix(".part")
    with part.open("w") as file:
        json.dump(windows, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _session(config: Config) -> SparkSession:
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
    # A task whose Python worker is killed is run again, as on a cluster.
    return SparkSession.builder.master("local[2, 4]").appName("lowmark-pravega").config(map=settings).getOrCreate()


def main(mode: str, config: Config) -> None:
    """Run the query until killed, or until all is read."""
    config.output.mkdir(exist_ok=True)
    spark = _session(config)
    source = PravegaSource(
        controller=config.controller, scope=config.scope, streams=config.streams, jars=config.jars, event_time="$.at",
        columns=["stream", "event_time"],
    )  # fmt: skip

    def sink(frame: DataFrame, batch_id: int) -> None:
        _write(
            config.output / f"{batch_id:06}.json", [[r["stream"], r["start_ms"], r["count"]] for r in frame.collect()]
        )

    with LowWatermarkService(spark) as service:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_MS} milliseconds")
        events = service.read(source, name=STREAM, strategy=strategy, max_rows_per_batch=config.rows_per_batch)
        counted = events.groupBy("stream", F.window("event_time", "1 minute").alias("w")).count()
        counted = counted.select("stream", F.unix_millis("w.start").alias("start_ms"), "count")
        writer = counted.writeStream.foreachBatch(sink).outputMode("append")
        query = writer.option("checkpointLocation", str(config.checkpoint)).start()
        config.started.touch()
        if mode == "run":
            query.awaitTermination()
            raise AssertionError("the query ended by itself")
        deadline = time.monotonic() + 150
        while emitted(config.output) < config.rows and query.isActive and time.monotonic() < deadline:
            threading.Event().wait(0.1)
        failed = query.exception()
        assert failed is None, failed
        assert emitted(config.output) >= config.rows, (
            f"{emitted(config.output)} of {config.rows}\n{service.explain(STREAM)}"
        )
        query.stop()
    spark.stop()


def emitted(folder: Path) -> int:
    """How many rows are in the windows that are out."""
    return sum(count for file in folder.glob("*.json") for _, _, count in json.loads(file.read_text()))


if __name__ == "__main__":
    main(sys.argv[1], Config.read(Path(sys.argv[2])))
