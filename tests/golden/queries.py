"""The two queries whose checkpoints are golden: one wraps a stream of Spark's, one reads a source of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.progress import Progress
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.spark import Binding, load
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.golden.values import NOON_US, SECOND_US

SCRIPT = StreamScript(
    (SplitScript("a", 4), SplitScript("b", 4, behind_us=4 * SECOND_US), SplitScript("c", 1)),
    NOON_US,
    ticks=16,
    tick_us=SECOND_US,
    shuffle_us=1_000,
)
SEED = 7
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 second")
WINDOW_US = 2 * SECOND_US


def source(ticks_per_batch: int | None) -> GeneratorSource:
    """The source of the stream; one run reads `ticks_per_batch` ticks; None: all ticks."""
    return GeneratorSource(SCRIPT, seed=SEED, ticks_per_batch=ticks_per_batch)


def _wrapped(spark: SparkSession, service: LowWatermarkService, ticks_per_batch: int | None) -> DataFrame:
    df = load(spark, Binding(source(ticks_per_batch), "generated", PlanOptions(slots=2)))
    names = [split.name for split in SCRIPT.splits]
    return service.wrap(df, name="golden", event_time="event_time", split="split", splits=names, strategy=STRATEGY)


def _read(_: SparkSession, service: LowWatermarkService, ticks_per_batch: int | None) -> DataFrame:
    return service.read(source(ticks_per_batch), name="golden", strategy=STRATEGY, tasks=2)


QUERIES: Mapping[str, Callable[[SparkSession, LowWatermarkService, int | None], DataFrame]] = {
    "wrapped": _wrapped,
    "read": _read,
}


@dataclass
class Emitted:
    """The output of one run."""

    rows: list[list[object]]
    progress: list[Progress]


def emitted(df: DataFrame, checkpoint: Path, **trigger: bool) -> Emitted:
    """Count rows by window and split, in one run: [start of the window in us, split, rows]."""
    window = F.window("event_time", f"{WINDOW_US // SECOND_US} seconds").alias("w")
    counted = df.groupBy(window, "split").agg(F.count(F.lit(1)).alias("n"))
    counted = counted.select(F.unix_micros("w.start").alias("start"), "split", "n")
    rows: list[list[object]] = []

    def collect(batch: DataFrame, _batch_id: int) -> None:
        rows.extend(list(row) for row in batch.collect())

    query = (
        counted.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination(120)
    return Emitted(sorted(rows), [Progress.from_json(each.json) for each in query.recentProgress])
