"""The column of late rows: what it adds to a batch of a wrapped stream that is written as it comes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService

from .live import Live, data_batches, spent_ms
from .measure import Row
from .scan import SPLITS, STRATEGY, TIME, write
from .small import CHUNK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, sizes: tuple[int, ...], chunks: int, warm: int
) -> list[Row]:
    """Return a row for each size of a batch: wrapped without the column, and with it."""

    def wrapped(df: DataFrame, rows: int) -> DataFrame:
        name = f"without {rows}"
        return service.wrap(df, name=name, event_time="ts", split="partition", strategy=STRATEGY)

    def marked(df: DataFrame, rows: int) -> DataFrame:
        name = f"with {rows}"
        return service.wrap(df, name=name, event_time="ts", split="partition", strategy=STRATEGY, late="is_late")

    table = []
    for rows in sizes:
        file = write(spark, f"{SPLITS}, {TIME}", rows, folder / f"late-{rows}")
        lives = {
            build.__name__: Live(spark, folder / f"late-{rows}-{build.__name__}", file, partial(build, rows=rows))
            for build in (wrapped, marked)
        }
        spent: dict[str, list[float]] = {side: [] for side in lives}
        for turn in range(warm + chunks):
            for side, live in lives.items():
                data = data_batches(live.feed(*[file] * CHUNK))
                if turn >= warm:
                    spent[side] += [spent_ms([batch], "triggerExecution") for batch in data]
        for live in lives.values():
            live.query.stop()
        table.append(
            Row.pairs(
                "column of late rows, beside wrap without it",
                f"triggerExecution of a batch of {rows:,} rows",
                "ms",
                spent["wrapped"],
                spent["marked"],
                note=f"{len(spent['marked'])} batches each",
            )
        )
    return table
