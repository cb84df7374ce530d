"""The cost of adopting a checkpoint and of leaving it again, with a state of some GB. Prints a table.

    python -m tests.bench.adopt --gb 1

A native query keeps random keys in RocksDB until its checkpoint has the size; then the checkpoint is adopted, continued
by a wrapped query with a few rows, left, and continued natively. "read again" counts the rows that a query read
although the previous query had read them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.adoption import Adoption, adopt, leave
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from tests.integration.feed import rows_read
from tests.sparks import IN_ROCKSDB

KEY_BYTES = 1_000
SCHEMA = "split int, ts timestamp, key string"


def session(folder: Path) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        **IN_ROCKSDB,
    }
    return SparkSession.builder.master("local[2]").appName("lowmark-adopt").config(map=settings).getOrCreate()


def put(spark: SparkSession, feed: Path, rows: int, at: int) -> None:
    """Add rows with incompressible keys, a thousand per second of event time."""
    words = [F.sha2(F.concat_ws(":", "id", F.lit(f"{at}-{n}")), 512) for n in range(KEY_BYTES // 128)]
    frame = spark.range(rows).select(
        (F.col("id") % 2).cast("int").alias("split"),
        F.timestamp_seconds(F.lit(1_700_000_000 + at) + F.floor(F.col("id") / 1_000)).alias("ts"),
        F.concat(*words).alias("key"),
    )
    frame.write.mode("append").parquet(str(feed))


def query(df: DataFrame, checkpoint: Path) -> list[Progress]:
    """Read all rows, keep every key, and return Spark's progress."""
    kept = df.dropDuplicatesWithinWatermark(["key"]).writeStream.format("noop").outputMode("append")
    ran = kept.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    ran.awaitTermination()
    return [Progress.from_json(progress.json) for progress in ran.recentProgress]


def state_rows(progress: list[Progress]) -> int:
    return progress[-1].state_operators[0].num_rows_total


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def timed(checkpoint: Path, *, adopts: bool) -> tuple[float, Adoption]:
    begun = time.perf_counter()
    done = adopt(checkpoint, "orders", stopped=True) if adopts else leave(checkpoint, stopped=True)
    return time.perf_counter() - begun, done


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.0, help="size of the checkpoint, about")
    gigabytes: float = parser.parse_args().gb
    folder = Path(tempfile.mkdtemp(prefix="lowmark-adopt-"))
    spark = session(folder)
    feed, checkpoint = folder / "feed", folder / "checkpoint"
    try:
        rows = int(gigabytes * 1e9 / KEY_BYTES)
        put(spark, feed, rows, at=0)
        files = spark.readStream.schema(SCHEMA)

        def source() -> DataFrame:
            return files.parquet(str(feed))

        def wrapped(service: LowWatermarkService) -> DataFrame:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 days")
            return service.wrap(source(), name="orders", event_time="ts", split="split", strategy=strategy)

        native = query(source().withWatermark("ts", "10 days"), checkpoint)
        table = Table(title=f"adopt and leave: a checkpoint of {size(checkpoint) / 1e9:.2f} GB, RocksDB")
        for column in ("", "state rows", "rows read", "read again", "seconds of the command", "files changed"):
            table.add_column(column, justify="left" if not column else "right")
        table.add_row("native", f"{state_rows(native):,}", f"{rows_read(native):,}", "", "", "")
        for n, adopts in enumerate((True, False, True)):
            seconds, done = timed(checkpoint, adopts=adopts)
            put(spark, feed, 1_000, at=2_000 + n)
            with LowWatermarkService(spark) as service:
                went_on = query(wrapped(service) if adopts else source().withWatermark("ts", "10 days"), checkpoint)
            table.add_row(
                "adopted" if adopts else "left",
                f"{state_rows(went_on):,}",
                f"{rows_read(went_on):,}",
                f"{rows_read(went_on) - 1_000:,}",
                f"{seconds:.3f}",
                str(len(done.change.entries)),
            )
        Console(width=120).print(table)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
