"""A query with windows into Delta Lake, in a session of its own: see `test_completion_elsewhere`.

python -m tests.live.completion_driver FOLDER JARS
"""

from __future__ import annotations

import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from pyspark.sql import SparkSession

from tests.integration.feed import Feed
from tests.integration.test_completion import BATCHES, STRATEGY, windowed


def main(folder: Path, jars: str) -> None:
    """Write all batches, and end."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        df = service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
        )
        writer = windowed(df, "split").writeStream.format("delta").outputMode("append")
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "sink"))
        for batch in BATCHES:
            feed.put(*batch)
            query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
