"""Two queries with windows into Delta Lake, by its sink and by foreachBatch: see `test_completion_elsewhere`.

python -m tests.live.completion_driver FOLDER JARS
"""

from __future__ import annotations

import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from pyspark.sql import DataFrame, SparkSession

from tests.integration.feed import Feed
from tests.integration.test_completion import BATCHES, STRATEGY, windowed
from tests.sparks import LOCAL_CHECKPOINTS

PROPERTY = "lowmark.complete-until"


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
        **LOCAL_CHECKPOINTS,
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        df = service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
        )
        frame = windowed(df, "split")

        def write(rows: DataFrame, batch_id: int) -> None:
            table = str(folder / "batches" / "sink")
            once = {"txnAppId": "orders", "txnVersion": str(batch_id)}
            rows.write.format("delta").mode("append").options(**once).save(table)
            until = service.complete_until("orders", query="batches")
            if until is not None:
                spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{PROPERTY}' = '{until.isoformat()}')")

        native = frame.writeStream.queryName("native").format("delta").outputMode("append")
        native = native.option("path", str(folder / "native" / "sink"))
        queries = [
            writer.option("checkpointLocation", str(folder / name / "checkpoint")).start()
            for name, writer in (
                ("native", native),
                ("batches", frame.writeStream.queryName("batches").foreachBatch(write)),
            )
        ]
        for batch in BATCHES:
            feed.put(*batch)
            for query in queries:
                query.processAllAvailable()
        for query in queries:
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
