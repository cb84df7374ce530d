"""The process that gets killed: a query on Kafka, wrapped or read by our source, its checkpoint and output on disk.

    python -m tests.live.torture_driver run CONFIG     goes on until it is killed
    python -m tests.live.torture_driver drain CONFIG   reads all there is, waits for the last low watermark, and ends

Output: one file a batch, written aside and renamed, so that a batch that runs again replaces itself. `drain` also
writes what a batch query over the topic gives, from the same JVM: the undisturbed run to compare with.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.sources.kafka import KafkaSource
from pyspark.sql import DataFrame, SparkSession

from tests.live.kafka_scenarios import (
    VALUE_TIME,
    Log,
    Windows,
    batch_windows,
    bounded,
    counted,
    history,
    poll_query,
    source,
)
from tests.live.servers import Broker, Process

STREAM = "orders"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
How = Literal["wrapped", "read", "prepared", "native"]
"""Spark's Kafka source wrapped; ours, by the records' timestamps; ours, by the event time in their values; none."""


@dataclass(frozen=True)
class Config:
    """What a driver needs to know; travels as a JSON file."""

    bootstrap: str
    topic: str
    folder: str
    jars: str
    rows_per_batch: int
    how: How = "wrapped"
    last_low_us: int | None = None
    rocksdb: bool = False

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def output(self) -> Path:
        return Path(self.folder, "output")

    @property
    def undisturbed(self) -> Path:
        return Path(self.folder, "undisturbed.json")

    @property
    def started(self) -> Path:
        return Path(self.folder, "started")

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Config:
        return cls(**json.loads(path.read_text()))


def read_windows(path: Path) -> list[tuple[tuple[int, int], int]]:
    """The windows in one output file."""
    return [((partition, start_us), rows) for partition, start_us, rows in json.loads(path.read_text())]


def _write_windows(path: Path, windows: list[list[int]]) -> None:
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
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.local.dir": str(Path(config.folder, "local")),
        "spark.sql.warehouse.dir": str(Path(config.folder, "warehouse")),
        "spark.jars": config.jars,
        **({"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if config.rocksdb else {}),
    }
    # A task whose Python worker is killed is run again, as on a cluster.
    return SparkSession.builder.master("local[2, 4]").appName("lowmark-torture").config(map=settings).getOrCreate()


def _wrap(spark: SparkSession, service: LowWatermarkService, log: Log, config: Config) -> DataFrame:
    orders = source(spark, log, maxOffsetsPerTrigger=config.rows_per_batch)
    return service.wrap(orders, name=STREAM, event_time="ts", split=["topic", "partition"], strategy=bounded())


def _native(spark: SparkSession, service: LowWatermarkService, log: Log, config: Config) -> DataFrame:
    del service
    # Rows come from one partition after the other: a few steps apart must not make them late.
    return source(spark, log, maxOffsetsPerTrigger=config.rows_per_batch).withWatermark("ts", "5 minutes")


def _read(spark: SparkSession, service: LowWatermarkService, log: Log, config: Config) -> DataFrame:
    del spark
    orders = KafkaSource(
        bootstrap_servers=config.bootstrap,
        topics=[log.topic],
        columns=["partition", "timestamp", "value"],
        discover_every="1 second",
    )
    rows = config.rows_per_batch
    if config.how == "read":
        events = service.read(orders, name=STREAM, strategy=bounded(), max_rows_per_batch=rows)
        return events.withColumnRenamed("timestamp", "ts")
    return service.read(
        orders, name=STREAM, strategy=bounded(), event_time="ts", prepare=_by_value, max_rows_per_batch=rows
    )


def _by_value(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("split_id", "partition", f"{VALUE_TIME} as ts")


def main(mode: str, config: Config) -> None:
    """Run the query until killed, or until all is read."""
    config.output.mkdir(exist_ok=True)
    spark = _session(config)
    log = Log(Broker(config.bootstrap, Process("Kafka", [], Path(os.devnull))), config.topic)

    def sink(frame: DataFrame, batch_id: int) -> None:
        rows = [[r.partition, r.start_us, r.rows] for r in frame.collect()]
        _write_windows(config.output / f"{batch_id:06}.json", rows)

    with LowWatermarkService(spark) as service:
        events = {"wrapped": _wrap, "native": _native}.get(config.how, _read)(spark, service, log, config)
        writer = counted(events).writeStream.foreachBatch(sink).outputMode("append")
        query = writer.option("checkpointLocation", str(config.checkpoint)).start()
        config.started.touch()
        if mode == "run":
            query.awaitTermination()
            raise AssertionError("the query ended by itself")
        query.processAllAvailable()
        try:
            poll_query(
                query, lambda: history(query)[-1].watermark_us == config.last_low_us, "the last low watermark in force"
            )
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{service.explain(STREAM)}") from late
        query.processAllAvailable()
        query.stop()
        undisturbed: Windows = batch_windows(spark, log)
        _write_windows(config.undisturbed, [[p, start_us, n] for (p, start_us), n in undisturbed.items()])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Config.read(Path(sys.argv[2])))
