"""Two queries with windows into tables, by their sink and by foreachBatch: see `test_completion_elsewhere`.

python -m tests.drivers.completion delta|iceberg FOLDER JARS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.drivers.session import driver_session
from tests.integration.feed import Feed
from tests.integration.spark.test_completion import BATCHES, STRATEGY, windowed
from tests.sparks import LIGHT

PROPERTY = "lowmark.complete-until"
SNAPSHOTS = "snapshots.json"
"""Of a table of Iceberg: the rows of each of its snapshots, by id."""


class Delta:
    """Tables by their path."""

    settings: Mapping[str, str] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self, query: str) -> str:
        return f"delta.`{self._folder / query / 'sink'}`"

    def sink(self, frame: DataFrame, query: str) -> DataStreamWriter:
        return frame.writeStream.format("delta").option("path", str(self._folder / query / "sink"))

    def append(self, rows: DataFrame, batch_id: int, query: str) -> None:
        once = {"txnAppId": "orders", "txnVersion": str(batch_id)}
        rows.write.format("delta").mode("append").options(**once).save(str(self._folder / query / "sink"))

    def ended(self, spark: SparkSession, query: str) -> None:
        """The log of the table has all that the test reads."""


class Iceberg:
    """Tables of a catalog in the folder: FOLDER/QUERY/sink."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.settings = {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(folder),
        }

    def name(self, query: str) -> str:
        return f"lake.{query}.sink"

    def sink(self, frame: DataFrame, query: str) -> DataStreamWriter:
        self._create(frame, query)
        return frame.writeStream.format("iceberg").option("path", self.name(query))

    def append(self, rows: DataFrame, batch_id: int, query: str) -> None:  # its writer takes no such id
        self._create(rows, query)
        rows.writeTo(self.name(query)).append()

    def _create(self, rows: DataFrame, query: str) -> None:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
        rows.sparkSession.sql(f"CREATE TABLE IF NOT EXISTS {self.name(query)} ({columns}) USING iceberg")

    def ended(self, spark: SparkSession, query: str) -> None:
        """Write the rows of each snapshot, because only Iceberg reads its lists of files."""
        table = self.name(query)
        ids = [row.snapshot_id for row in spark.sql(f"SELECT snapshot_id FROM {table}.snapshots").collect()]
        rows = {
            each: [row.asDict() for row in spark.sql(f"SELECT * FROM {table} VERSION AS OF {each}").collect()]
            for each in ids
        }
        (self._folder / query / SNAPSHOTS).write_text(json.dumps(rows))


def main(table: Delta | Iceberg, folder: Path, jars: str) -> None:
    """Write all batches, and end."""
    spark = driver_session(folder, {"spark.jars": jars, **table.settings, **LIGHT})
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        df = service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
        )
        frame = windowed(df, "split")

        def write(rows: DataFrame, batch_id: int) -> None:
            table.append(rows, batch_id, "batches")
            until = service.complete_until("orders", query="batches")
            if until is not None:
                spark.sql(
                    f"ALTER TABLE {table.name('batches')} SET TBLPROPERTIES ('{PROPERTY}' = '{until.isoformat()}')"
                )

        writers = {"native": table.sink(frame, "native"), "batches": frame.writeStream.foreachBatch(write)}
        queries = [
            writer.queryName(name)
            .outputMode("append")
            .option("checkpointLocation", str(folder / name / "checkpoint"))
            .start()
            for name, writer in writers.items()
        ]
        for batch in BATCHES:
            feed.put(*batch)
            for query in queries:
                query.processAllAvailable()
        for query in queries:
            query.stop()
    for name in writers:
        table.ended(spark, name)
    spark.stop()


if __name__ == "__main__":
    _, _kind, _folder, _jars = sys.argv
    main(Delta(Path(_folder)) if _kind == "delta" else Iceberg(Path(_folder)), Path(_folder), _jars)
