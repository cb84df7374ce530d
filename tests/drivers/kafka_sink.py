"""The process that `test_marking` kills: a query of `marking`, and one that writes its windows into a topic."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.progress import Progress
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers import marking
from tests.drivers.driven import Windows, main, poll_query
from tests.servers.kafka import Broker
from tests.servers.local import Process
from tests.worlds.kafka_reading import values_of


@dataclass(frozen=True)
class Config(marking.Config):
    bootstrap: str = ""
    topic: str = ""  # empty: a query of `marking`
    last_us: int = 0  # the start of the windows that end the drain

    @property
    def stream_name(self) -> str:
        return "to a topic" if self.topic else super().stream_name

    def emitted(self) -> Windows:
        """The windows in the topic, each once: a repeated batch writes its windows once more."""
        if not self.topic:
            return super().emitted()
        broker = Broker(self.bootstrap, Process("Kafka", [], Path(os.devnull)))
        found = dict[tuple[str, int], int]()
        for value in values_of(broker, self.topic):
            row = json.loads(value)
            rows = found.setdefault((row["split"], row["us"]), row["count"])
            assert rows == row["count"], f"a window came with two numbers of rows: {row}"
        return list(found.items())


class KafkaSinkQuery(marking.MarkingQuery):
    config: Config

    def begin(self, spark: SparkSession, service: LowWatermarkService, mode: str) -> StreamingQuery:
        del mode
        value = F.to_json(F.struct("split", "us", "count")).alias("value")
        writer = self.counted(spark, service).select(value).writeStream.format("kafka").outputMode("append")
        writer = writer.option("kafka.bootstrap.servers", self.config.bootstrap).option("topic", self.config.topic)
        return writer.option("checkpointLocation", str(self.config.checkpoint)).start()

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        def emitted() -> bool:
            # The topic is read only once the windows may be there, because each look reads all of it.
            progress = query.lastProgress
            passed_us = None if progress is None else Progress.from_json(progress.json).watermark_us
            if passed_us is None or passed_us < self.config.last_us:
                return False
            return any(us >= self.config.last_us for (_, us), _ in self.config.emitted())

        poll_query(query, emitted, f"the windows of {self.config.last_us}", seconds=150)


if __name__ == "__main__":
    main(lambda config: KafkaSinkQuery(config) if config.topic else marking.MarkingQuery(config), Config)
