"""A bare columnar scan of five million rows: only reading, so no other work hides the cost of the measurement.

The native side is the stream without any watermark, which favours native Spark: a query with a watermark pays for
Spark's own, which the table also shows. There are two records: a typical event (nine columns, some 150 bytes), and a
small record of six small columns, in which the measured columns are nearly all the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy

from .live import Build, Live, data_batches, spent_ms
from .measure import Bound, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
SPLITS = "cast(id % 64 as int) partition, concat('region-', id % 8) topic, concat('device-', (id * 7) % 64) device"
# 0.2 ms between rows, up to 5 s out of order
TIME = "timestamp_micros(1700000000000000 + id * 200 + (id * 7919) % 5000000) ts"
RECORDS = {
    "event of 9 columns": f"""{SPLITS}, {TIME}, uuid() event_id, id * 31 % 1000003 user_id,
        cast(id * 31 % 10000 as double) / 100 amount, if(id % 20 = 0, 'refused', 'accepted') status,
        concat('https://shop.example/articles/', id * 7919 % 1000000, '?session=', hex(id * 1234567891)) url""",
    "6 small columns": f"{SPLITS}, {TIME}, id order_id, cast(id * 31 % 10000 as double) / 100 amount",
}


def write(spark: SparkSession, columns: str, rows: int, folder: Path) -> Path:
    """Write one parquet file of this many rows, in row groups that two tasks can share."""
    spark.range(rows, numPartitions=1).createOrReplaceTempView("made")
    spark.sql(f"select {columns} from made").write.option("parquet.block.size", 16 << 20).parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    return file


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, rows: int, rounds: int, warm: int = 2
) -> list[Row]:
    table: list[Row] = []
    for record, columns in RECORDS.items():
        file = write(spark, columns, rows, folder / f"scan-{len(table)}")
        table += _one_record(spark, service, folder / f"scan-{len(table)}-live", file, record, rounds, warm)
    return table


def _one_record(
    spark: SparkSession, service: LowWatermarkService, folder: Path, file: Path, record: str, rounds: int, warm: int
) -> list[Row]:
    def wrap(name: str, split: list[str]) -> Build:
        def build(df: DataFrame) -> DataFrame:
            return service.wrap(df, name=f"{name}, {record}", event_time="ts", split=split, strategy=STRATEGY)

        return build

    def audit(name: str, *, detail: bool) -> Build:
        def build(df: DataFrame) -> DataFrame:
            return service.audit(df, name=f"{name}, {record}", event_time="ts", split="partition", detail=detail)

        return build

    builds: dict[str, Build] = {
        "native": lambda df: df,
        "native with withWatermark": lambda df: df.withWatermark("ts", "10 seconds"),
        "int split column": wrap("int", ["partition"]),
        "two string columns, names sampled": wrap("strings", ["topic", "device"]),
        "audited, int split column": audit("audited", detail=True),
        "audited without detail": audit("briefly audited", detail=False),
    }
    lives = {name: Live(spark, folder / str(i), file, build) for i, (name, build) in enumerate(builds.items())}
    add: dict[str, list[float]] = {name: [] for name in lives}
    trigger: dict[str, list[float]] = {name: [] for name in lives}
    for turn in range(rounds + warm):  # the first rounds warm up, because the JVM compiles in the background
        for name, live in lives.items():
            batches = live.feed(file)
            assert len(data_batches(batches)) == 1, "one file is one batch"
            if turn >= warm:
                add[name].append(spent_ms(data_batches(batches), "addBatch"))
                trigger[name].append(spent_ms(batches, "triggerExecution"))
    for live in lives.values():
        live.query.stop()
    section = f"scan of {spark.read.parquet(str(file)).count():,} rows, {record}"
    bounds = {
        "native with withWatermark": None,
        "int split column": Bound(1.4, "ratio"),
        "two string columns, names sampled": Bound(1.9, "ratio"),
        "audited, int split column": None,
        "audited without detail": None,
    }
    rows = [
        Row.pairs(section, f"{name}: addBatch", "ms", add["native"], add[name], bound=bound)
        for name, bound in bounds.items()
    ]
    rows += [
        Row.pairs(section, f"{name}: all triggers", "ms", trigger["native"], trigger[name], note="+ heartbeat batch")
        for name, bound in bounds.items()
        if bound is not None
    ]
    return rows
