"""Both ways to measure the rows of a wrapped stream, compared with native Spark, on the scan of `scan.py`.

The JVM measures if Spark has the aggregate (4.2 and later); Python measures whole Arrow batches, the only way for Spark
4.0 and 4.1. The table has the wall time of a batch, and the processor time of JVM and Python workers per row. `SPARK=`
chooses the Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark import versions

from .live import Build, Live, data_batches, spent_ms
from .measure import Row
from .scan import RECORDS, STRATEGY, write
from .throughput import cpu_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, rows: int, rounds: int, warm: int = 2
) -> list[Row]:
    table: list[Row] = []
    for record, columns in RECORDS.items():
        place = folder / f"transports-{len(table)}"
        table += _one_record(spark, service, place, write(spark, columns, rows, place), record, rows, rounds, warm)
    return table


def _one_record(
    spark: SparkSession, service: LowWatermarkService, folder: Path, file: Path, record: str, rows: int, rounds: int,
    warm: int,
) -> list[Row]:  # fmt: skip
    def wrap(how: str, split: list[str]) -> Build:
        def build(df: DataFrame) -> DataFrame:
            name = f"{how} {split}, {record}"
            with mock.patch.object(versions, "observes_splits", return_value=how == "JVM"):
                return service.wrap(df, name=name, event_time="ts", split=split, strategy=STRATEGY)

        return build

    builds: dict[str, Build] = {"native": lambda df: df}
    if versions.observes_splits(spark):
        builds["JVM, int split"] = wrap("JVM", ["partition"])
    builds["Python, int split"] = wrap("Python", ["partition"])
    builds["Python, two string columns"] = wrap("Python", ["topic", "device"])
    lives = {name: Live(spark, folder / str(i), file, build) for i, (name, build) in enumerate(builds.items())}
    wall: dict[str, list[float]] = {name: [] for name in lives}
    processor: dict[str, list[float]] = {name: [] for name in lives}
    for turn in range(rounds + warm):
        for name, live in lives.items():
            before = cpu_ms()
            batches = live.feed(file)
            spent = cpu_ms() - before
            if turn >= warm:
                wall[name].append(spent_ms(data_batches(batches), "addBatch") * 1_000 / rows)
                processor[name].append(spent * 1_000 / rows)
    for live in lives.values():
        live.query.stop()
    section = f"Spark {spark.version}, scan of {rows:,} rows, {record}"
    return [
        Row.pairs(section, f"{name}: {what} a row", "us", spent["native"], spent[name])
        for name in builds
        if name != "native"
        for what, spent in (("wall time", wall), ("processor time", processor))
    ]
