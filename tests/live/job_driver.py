"""An application of job "billing" that gets killed: a wrapped query over JSON files, at a coordinator, until the end.

Usage: python -m tests.live.job_driver FOLDER COORDINATOR     reads FOLDER/feed, keeps FOLDER/checkpoint
"""

from __future__ import annotations

import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from pyspark.sql import SparkSession

from tests.integration.feed import SCHEMA


def main(folder: Path, coordinator: str) -> None:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = SparkSession.builder.master("local[1]").appName("lowmark-job").config(map=settings).getOrCreate()
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "feed"))
    with LowWatermarkService(spark, coordinator=coordinator, job="billing", job_queries=2) as service:
        events = service.wrap(rows, name="orders", event_time="ts", split="split")
        query = events.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
