"""Spark for the benchmarks: the session, and queries that are fed file by file or run to their end.

Several queries live at once to be measured in turns. A query without work would ask its sources every 10 ms, at the
expense of the measured query; here it asks twice a second. Only the time inside a batch counts.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration.spark.session import clean_environment

from tests.conftest import LOG4J
from tests.servers.kafka import Broker
from tests.servers.local import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Build = Callable[["DataFrame"], "DataFrame"]
Batch = Mapping[str, Any]  # a progress event's JSON


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """A session on two cores, UTC, with Kafka's connector."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    clean_environment()
    from pyspark.sql import SparkSession

    (folder / "log4j2.properties").write_text(LOG4J.format(log=folder / "spark.log"))
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()} -Duser.timezone=UTC"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.pollingDelay": "500ms",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.jars": ",".join(str(jar) for jar in jars("spark-kafka")),
    }
    spark = SparkSession.builder.master("local[2]").appName("lowmark-bench").config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@dataclass
class Live:
    """A running query on a folder of parquet files; one file is one batch."""

    spark: SparkSession
    folder: Path
    example: Path  # a file, for the schema
    build: Build

    _seen: int = field(default=-1, init=False)
    _files: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        schema = self.spark.read.parquet(str(self.example)).schema
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder))
        writer = self.build(stream).writeStream.format("noop").outputMode("append")
        self.query = writer.option("checkpointLocation", f"{self.folder}-checkpoint").start()

    def feed(self, *files: Path) -> list[Batch]:
        """Add files, wait until all are processed, and return their batches."""
        for file in files:
            # A hard link is free, appears at once, and is a new file to Spark.
            os.link(file, self.folder / f"{self._files:05}.parquet")
            self._files += 1
        self.query.processAllAvailable()
        batches = [b for b in progress(self.query) if b["batchId"] > self._seen]
        self._seen = max(b["batchId"] for b in batches)
        return batches


def connector(spark: SparkSession, broker: Broker, topic: str, **options: str | int) -> DataFrame:
    """Read a topic from its beginning with Spark's own Kafka connector."""
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return stream.option("subscribe", topic).options(**{"startingOffsets": "earliest", **options}).load()


def progress(query: Any) -> list[Batch]:
    """Return Spark's progress of a query's recent batches, also after its end."""
    return [json.loads(each.json()) for each in query._jsq.recentProgress()]


def data_batches(batches: list[Batch]) -> list[Batch]:
    """Return the batches with rows in their first source, which is the data."""
    return [b for b in batches if b["sources"][0]["numInputRows"] > 0]


def spent_ms(batches: list[Batch], phase: str) -> float:
    return float(sum(b["durationMs"].get(phase, 0) for b in batches))


@dataclass(frozen=True)
class Run:
    """One AvailableNow query from start to end."""

    wall_ms: float
    batches: list[Batch]

    @property
    def data(self) -> list[Batch]:
        return data_batches(self.batches)

    @property
    def other_ms(self) -> float:
        """Milliseconds of heartbeat batches and no-data batches."""
        return spent_ms(self.batches, "triggerExecution") - spent_ms(self.data, "triggerExecution")


def run_available(df: DataFrame, folder: Path) -> Run:
    """Run a query to its end: from `start()` until it has terminated."""
    writer = df.writeStream.format("noop").outputMode("append")
    writer = writer.option("checkpointLocation", str(folder / uuid.uuid4().hex)).trigger(availableNow=True)
    began = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    return Run((time.perf_counter() - began) * 1000, progress(query))
