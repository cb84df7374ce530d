"""A source of ours read by Spark to its present end, into a sink that keeps nothing: what a row costs, and a batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.spark import Binding, load

from .live import Run, run_available, spent_ms
from .throughput import cpu_ms

if TYPE_CHECKING:
    from lowmark.sources import Source
    from pyspark.sql import SparkSession


def per_row_us(spark: SparkSession, sources: Mapping[int, Source[Any, Any]], folder: Path) -> float:
    """Processor time of a row more, microseconds: of the JVM and the Python workers, planning included.

    Args:
        spark: the session.
        sources: two, by the number of their rows. What starts once is in both.
        folder: for checkpoints.
    """
    spent = {}
    for rows in sorted(sources):
        before = cpu_ms()
        _read(spark, sources[rows], folder, rows, slots=2)
        spent[rows] = cpu_ms() - before
    few, many = sorted(spent)
    return (spent[many] - spent[few]) * 1_000 / (many - few)


def read_batch_ms(spark: SparkSession, source: Source[Any, Any], folder: Path, rows: int) -> float:
    """How long one task takes for all rows, from when Spark begins to run the batch until it is done."""
    return spent_ms(_read(spark, source, folder, rows, slots=1).data, "addBatch")


def _read(spark: SparkSession, source: Source[Any, Any], folder: Path, rows: int, *, slots: int) -> Run:
    run = run_available(
        load(spark, Binding(source, "bench", PlanOptions(slots=slots, by_time=False))), folder / "spark"
    )
    came = sum(batch["sources"][0]["numInputRows"] for batch in run.batches)
    assert came == rows, f"{came} of {rows} rows"
    return run
