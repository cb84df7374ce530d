"""The queries that `test_marking` kills: minute windows of a skewed stream, whose ten-minute partitions are marked.

The windows of `kafka_sink` beside it go to a topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.driver.done_partition import DonePartition
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers import driven
from tests.drivers.driven import Driven, Windows, poll_query, read_windows, write_windows
from tests.servers.local import jars

PARTITION_US = 600_000_000
FILES_A_BATCH = 3


@dataclass(frozen=True)
class Config(driven.Config):
    last: str = ""  # the partition whose mark ends the drain

    @property
    def feed(self) -> Path:
        """The files that all queries of a process read."""
        return Path(self.folder).with_name("feed")

    @property
    def marks(self) -> Path:
        return Path(self.folder, "marks")

    def seen(self, begin_us: int, end_us: int) -> Windows:
        """The windows that a reader of the output sees now, of those that start in a range of time."""
        return [window for window in self.emitted() if begin_us <= window[0][1] < end_us]

    def batches_since(self, end_us: int) -> int:
        """Count the batches in the output since the newest that has windows up to a time."""
        files = sorted(self.output.glob("*.json"), reverse=True)
        return next((n for n, file in enumerate(files) if any(us < end_us for (_, us), _ in read_windows(file))), 0)


class MarkingQuery(Driven[Config]):
    def settings(self) -> Mapping[str, str]:
        return {"spark.jars": ",".join(map(str, jars("spark-kafka")))}

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        self.config.marks.mkdir(exist_ok=True)
        shown = self.counted(spark, service)
        return service.mark_done(
            shown, name=self.config.stream_name, time="at", partition="10 minutes", layout="%d-%H%M", call=self.mark
        )

    def counted(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        """The windows: split, start in microseconds, rows, start."""
        rows = spark.readStream.schema("split string, us long").option("maxFilesPerTrigger", FILES_A_BATCH)
        events = service.wrap(
            rows.json(str(self.config.feed)).select("split", F.timestamp_micros("us").alias("ts")),
            name=self.config.stream_name,
            event_time="ts",
            split="split",
            splits=["fast", "slow"],
            strategy=WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("2 seconds"),
        )
        counted = events.groupBy(F.window("ts", "1 minute").alias("w"), "split").count()
        return counted.select("split", F.unix_micros("w.start").alias("us"), "count", F.col("w.start").alias("at"))

    def mark(self, partition: DonePartition) -> None:
        """Keep what a reader of the output sees now."""
        start_us = int(partition.start.timestamp()) * 1_000_000
        end_us = start_us + PARTITION_US
        told = {
            "start_us": start_us,
            "seen": self.config.seen(start_us, end_us),
            "batches": self.config.batches_since(end_us),
        }
        part = self.config.marks / f".{time.time_ns()}"
        part.write_text(json.dumps({**partition.to_json(), **told}))
        part.rename(self.config.marks / f"{time.time_ns()}.json")

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        def marked() -> bool:
            names = {json.loads(file.read_text())["partition"] for file in self.config.marks.glob("*.json")}
            return self.config.last in names

        poll_query(query, marked, f"the mark of {self.config.last}", seconds=150)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        rows = [((split, start), n) for split, start, n, _ in frame.collect()]
        write_windows(self.config.output / f"{batch_id:06}.json", rows)
