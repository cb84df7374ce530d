"""Windows of a wrapped stream and the rows that they drop, in one query: see `driven` and `test_late_kills`.

Output: a file for each batch and process with the rows of `windows_and_dropped`, or with the windows alone where
`late_to=` writes the dropped rows.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, SparkSession

from tests.integration.feed import SCHEMA
from tests.integration.test_late import SPLITS, windows_and_dropped
from tests.integration.test_late_to import WINDOW, counted
from tests.live.driven import STREAM, Config, Driven, main

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class LateConfig(Config):
    """The settings of this driver.

    Attributes:
        dies_after: number of batches in the sink after which the driver kills itself, before Spark commits the last.
        late_to: whether the query writes the dropped rows to the folder `late`.
        tasks: number of tasks that read a batch.
    """

    dies_after: int | None = None
    late_to: bool = False
    tasks: int = 1

    @property
    def late(self) -> Path:
        return Path(self.folder, "late")


class LateDriven(Driven[LateConfig]):
    """Writes windows and dropped rows."""

    _taken = 0

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        feed = (
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(Path(self.config.folder, "feed")))
        )
        of = {"name": STREAM, "event_time": "ts", "split": "split", "splits": SPLITS}
        if self.config.late_to:
            return counted(service.wrap(feed, **of, late_to=self.config.late, late_until=WINDOW))  # type: ignore[arg-type]
        return windows_and_dropped(service.wrap(feed, **of, watermark="passed"))  # type: ignore[arg-type]

    def settings(self) -> dict[str, str]:
        return {"spark.sql.files.minPartitionNum": str(self.config.tasks), "spark.sql.files.openCostInBytes": "1"}

    def await_all(self, query: StreamingQuery, service: LowWatermarkService) -> None:
        query.processAllAvailable()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        part = self.config.output / f"{batch_id:06}-{os.getpid()}.part"
        part.write_text(json.dumps(sorted(tuple(row) for row in frame.collect())))
        part.rename(part.with_suffix(".json"))
        self._taken += 1
        if self._taken == self.config.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(LateDriven, LateConfig)
