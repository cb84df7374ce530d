"""A query that knows splits by their rows alone, one step of a script per batch, in a process that tests kill.

An hour of the script: two splits are at its beginning; a newcomer has one row five minutes later; the two splits run
ahead by forty minutes; the newcomer has its second row two minutes after its first, and finally a row later
than all others. A restart that forgets the newcomer drops the second row. See `driven`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.progress import Progress
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers import driven
from tests.drivers.driven import STREAM, Driven, poll_query
from tests.sparks import WITHOUT_CODEGEN
from tests.worlds.kafka_scenarios import HOUR_US, MINUTE_US, T0_US

From = Literal["files", "rate", "kafka"]
ROWS = 3  # of a step
STEPS = 6  # of an hour
END_US = T0_US + 1_000 * HOUR_US


@dataclass(frozen=True)
class Config(driven.Config):
    source: From
    hours: int
    bootstrap: str = ""
    topic: str = ""
    jars: str = ""
    trigger_seconds: int = 6  # much longer than a batch, so kills hit the time between two batches

    @property
    def feed(self) -> Path:
        return Path(self.folder, "feed")

    @property
    def closed_us(self) -> int:
        """The low watermark after the last hour but one."""
        return T0_US + (self.hours - 1) * HOUR_US


def rows(step: int) -> list[tuple[str, int]]:
    """The rows of one step of the script: (split, event time)."""
    hour, at = divmod(step, STEPS)
    begin_us = T0_US + hour * HOUR_US
    runners_us = begin_us if at < 2 else begin_us + (40 + at) * MINUTE_US
    third = {1: (f"new-{hour}", begin_us + 5 * MINUTE_US), 5: (f"new-{hour}", begin_us + 7 * MINUTE_US)}.get(at)
    if at == 0 and hour > 0:
        third = f"new-{hour - 1}", END_US
    return [("a", runners_us), ("b", runners_us), ("a", runners_us) if third is None else third]


def expected(config: Config) -> Counter[tuple[str, int]]:
    """The windows of one minute that are closed at the end."""
    found = Counter[tuple[str, int]]()
    for step in range(config.hours * STEPS):
        found.update((split, us // MINUTE_US * MINUTE_US) for split, us in rows(step) if us < config.closed_us)
    return found


def write_files(config: Config) -> None:
    """Write the whole script as files, one per step, in order of time."""
    config.feed.mkdir()
    for step in range(config.hours * STEPS):
        file = config.feed / f"{step:06}.json"
        file.write_text("".join(json.dumps({"split": split, "us": us}) + "\n" for split, us in rows(step)))
        os.utime(file, (1_700_000_000 + step, 1_700_000_000 + step))


class Newcomers(Driven[Config]):
    """Counts rows in minutes, by split."""

    def settings(self) -> Mapping[str, str]:
        return {**WITHOUT_CODEGEN, **({"spark.jars": self.config.jars} if self.config.jars else {})}

    def trigger(self, mode: str) -> Mapping[str, Any]:
        return {"processingTime": f"{self.config.trigger_seconds} seconds" if mode == "run" else "0 seconds"}

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        rows = self._rows(spark).select("split", F.timestamp_micros("us").alias("ts"))
        events = service.wrap(rows, name=STREAM, event_time="ts", split="split")
        counted = events.groupBy(F.window("ts", "1 minute").alias("w"), "split").agg(F.count(F.lit(1)).alias("rows"))
        return counted.select("split", F.unix_micros("w.start").alias("start_us"), "rows")

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        def in_force() -> bool:
            progress = query.lastProgress
            watermark_us = None if progress is None else Progress.from_json(progress.json).watermark_us
            return watermark_us is not None and watermark_us >= self.config.closed_us

        poll_query(query, in_force, "the last low watermark in force", seconds=200)

    def _rows(self, spark: SparkSession) -> DataFrame:
        match self.config.source:
            case "files":
                stream = spark.readStream.schema("split string, us bigint").option("maxFilesPerTrigger", 1)
                return stream.json(str(self.config.feed))
            case "kafka":
                options: dict[str, str | int] = {
                    "kafka.bootstrap.servers": self.config.bootstrap, "subscribe": self.config.topic,
                    "startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS,
                }  # fmt: skip
                records = spark.readStream.format("kafka").options(**options).load()
                value = F.from_json(F.col("value").cast("string"), "split string, us bigint")
                return records.select(value.alias("r")).select("r.*")
            case "rate":
                values = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
                said = [each for step in range(self.config.hours * STEPS) for each in rows(step)]
                script = F.array(*(F.struct(F.lit(split).alias("split"), F.lit(us).alias("us")) for split, us in said))
                at = F.least(F.col("value"), F.lit(len(said) - 1))  # the rate source has no end
                return values.select(F.element_at(script, (at + 1).cast("int")).alias("r")).select("r.*")


if __name__ == "__main__":
    driven.main(Newcomers, Config)
