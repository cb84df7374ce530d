"""The column of late rows, and the folder for them: what each adds to a batch of a wrapped stream without state.

No row is late, so the folder costs its second read of the source, its task and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Return two rows for each size of a batch: with the column, and with the folder, beside wrap without them."""

    def wrapped(df: DataFrame, side: str, arguments: Mapping[str, Any]) -> DataFrame:
        return service.wrap(df, name=side, event_time="ts", split="partition", strategy=STRATEGY, **arguments)

    sides: dict[str, dict[str, Any]] = {
        "without": {},
        "column": {"late": "is_late"},
        "folder": {"late_to": folder / "late", "late_until": "window(ts, '1 minute').end"},
    }
    table = []
    for rows in sizes:
        turns = warm + chunks
        # The watermark moves with each file, because Spark may compile an expression anew for another watermark.
        moved = [TIME.removesuffix(" ts") + f" + interval {n} seconds ts" for n in range(turns * CHUNK)]
        files = [write(spark, f"{SPLITS}, {time}", rows, folder / f"late-{rows}-{n}") for n, time in enumerate(moved)]
        lives = {
            side: Live(
                spark,
                folder / f"late-{rows}-{side}",
                files[0],
                partial(wrapped, side=f"{side} {rows}", arguments=arguments),
            )
            for side, arguments in sides.items()
        }
        spent: dict[str, list[float]] = {side: [] for side in lives}
        for turn in range(turns):
            for side, live in lives.items():
                data = data_batches(live.feed(*files[turn * CHUNK : (turn + 1) * CHUNK]))
                if turn >= warm:
                    spent[side] += [spent_ms([batch], "triggerExecution") for batch in data]
        for live in lives.values():
            live.query.stop()
        for side, section in (("column", "column of late rows"), ("folder", "folder of late rows")):
            table.append(
                Row.pairs(
                    f"{section}, beside wrap without it",
                    f"triggerExecution of a batch of {rows:,} rows",
                    "ms",
                    spent["without"],
                    spent[side],
                    note=f"{len(spent[side])} batches each",
                )
            )
    return table
