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
        turns = warm + chunks
        # The watermark moves with each file, because Spark may compile an expression anew for another watermark.
        moved = [TIME.removesuffix(" ts") + f" + interval {n} seconds ts" for n in range(turns * CHUNK)]
        files = [write(spark, f"{SPLITS}, {time}", rows, folder / f"late-{rows}-{n}") for n, time in enumerate(moved)]
        lives = {
            build.__name__: Live(spark, folder / f"late-{rows}-{build.__name__}", files[0], partial(build, rows=rows))
            for build in (wrapped, marked)
        }
        spent: dict[str, list[float]] = {side: [] for side in lives}
        for turn in range(turns):
            for side, live in lives.items():
                data = data_batches(live.feed(*files[turn * CHUNK : (turn + 1) * CHUNK]))
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
