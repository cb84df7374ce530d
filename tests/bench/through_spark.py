"""Spark reads one of our sources to its present end, into a sink without storage: the cost of a row and of a batch."""

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
    """Return the processor time of an additional row, in microseconds: of JVM and Python workers, including planning.

    Args:
        spark: the session.
        sources: two, by the number of their rows. The difference excludes the cost of the start.
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
    """Return the milliseconds of one task for all rows, from the start of the batch's run to its end."""
    return spent_ms(_read(spark, source, folder, rows, slots=1).data, "addBatch")


def _read(spark: SparkSession, source: Source[Any, Any], folder: Path, rows: int, *, slots: int) -> Run:
    run = run_available(
        load(spark, Binding(source, "bench", PlanOptions(slots=slots, by_time=False))), folder / "spark"
    )
    came = sum(batch["sources"][0]["numInputRows"] for batch in run.batches)
    assert came == rows, f"{came} of {rows} rows"
    return run
