"""An application of job "billing" for tests that kill it: a wrapped query over JSON files, at a coordinator.

Usage: python -m tests.drivers.job FOLDER COORDINATOR     reads FOLDER/feed, keeps FOLDER/checkpoint
"""

from __future__ import annotations

import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService

from tests.drivers.session import driver_session
from tests.integration.feed import SCHEMA


def main(folder: Path, coordinator: str) -> None:
    spark = driver_session(folder, {}, master="local[1]")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "feed"))
    with LowWatermarkService(spark, coordinator=coordinator, job="billing", job_queries=2) as service:
        events = service.wrap(rows, name="orders", event_time="ts", split="split")
        query = events.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
