"""Windows of a wrapped stream and the rows that they drop, in one query: see `driven` and `test_late_kills`.

Output: a file for each batch and process with the rows of `windows_and_dropped`.
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
from tests.live.driven import STREAM, Config, Driven, main

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class LateConfig(Config):
    """The settings of this driver.

    Attributes:
        dies_after: number of batches in the sink after which the driver kills itself, before Spark commits the last.
    """

    dies_after: int | None = None


class LateDriven(Driven[LateConfig]):
    """Writes windows and dropped rows."""

    _taken = 0

    def windows(self, spark: SparkSession, service: LowWatermarkService) -> DataFrame:
        feed = (
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(Path(self.config.folder, "feed")))
        )
        df = service.wrap(feed, name=STREAM, event_time="ts", split="split", splits=SPLITS, watermark="passed")
        return windows_and_dropped(df)

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
