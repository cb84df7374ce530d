"""Windows of a wrapped stream and the rows that they drop, in two queries: see `driven` and `test_late_kills`.

Both queries read the same rows in one process, and each query has its own folder. Output: a file for each batch and
process, of the query "column" with the rows of `windows_and_dropped`, of the query "files" with the windows alone,
because `late_to=` writes the dropped rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, SparkSession

from tests.drivers.driven import STREAM, Config, Driven
from tests.integration.feed import SCHEMA
from tests.integration.transport.test_late import SPLITS, windows_and_dropped
from tests.integration.transport.test_late_to import WINDOW, counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


QUERIES = ("column", "files")


@dataclass(frozen=True)
class LateConfig(Config):
    """The settings of this driver, or of one of its queries.

    Attributes:
        dies_after: number of batches in the sink of the query `dies_in` after which the driver kills itself, before
            Spark commits the last.
        dies_in: the query whose batches count.
        tasks: number of tasks that read a batch.
        query: the query; empty: both.
    """

    dies_after: int | None = None
    dies_in: str = ""
    tasks: int = 1
    query: str = ""

    @property
    def stream_name(self) -> str:
        return STREAM if self.query == "files" else self.query

    def of(self, query: str) -> LateConfig:
        """The settings of one query."""
        return self.but(folder=str(Path(self.folder, query)), query=query)

    @property
    def late(self) -> Path:
        return Path(self.folder, "late")


class LateDriven(Driven[LateConfig]):
    """A query that writes windows and dropped rows."""

    _taken = 0

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        feed = str(Path(self.config.folder).with_name("feed"))
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(feed)
        of = {"name": self.config.stream_name, "event_time": "ts", "split": "split", "splits": SPLITS}
        if self.config.query == "files":
            return counted(service.wrap(rows, **of, late_to=self.config.late, late_until=WINDOW))  # type: ignore[arg-type]
        return windows_and_dropped(service.wrap(rows, **of, watermark="passed"))  # type: ignore[arg-type]

    def settings(self) -> dict[str, str]:
        return {"spark.sql.files.minPartitionNum": str(self.config.tasks), "spark.sql.files.openCostInBytes": "1"}

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        query.processAllAvailable()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        part = self.config.output / f"{batch_id:06}-{os.getpid()}.part"
        part.write_text(json.dumps(sorted(tuple(row) for row in frame.collect())))
        part.rename(part.with_suffix(".json"))
        self._taken += 1
        if self._taken == self.config.dies_after and self.config.query == self.config.dies_in:
            os.kill(os.getpid(), signal.SIGKILL)


def main(mode: str, config: LateConfig) -> None:
    """Run both queries until the process is killed, or until all rows are read."""
    spark = LateDriven(config).session()
    with LowWatermarkService(spark) as service:
        queries = [LateDriven(config.of(query)).begin(spark, service, mode) for query in QUERIES]
        config.started.touch()
        if mode == "run":
            spark.streams.awaitAnyTermination()
            raise AssertionError("a query ended by itself")
        for query in queries:
            query.processAllAvailable()
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], LateConfig.read(Path(sys.argv[2])))
