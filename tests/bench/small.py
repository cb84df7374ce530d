"""Small batches that follow each other without a pause: what a batch costs more, whatever its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from pyspark.sql import functions as F

from .live import Build, Live, data_batches, spent_ms
from .measure import Bound, Row
from .scan import SPLITS, STRATEGY, TIME, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000
CHUNK = 10  # batches of one query before it is the other's turn


def windowed(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 minute"), "partition").count()


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, batches: int, warm_chunks: int
) -> list[Row]:
    file = write(spark, f"{SPLITS}, {TIME}", ROWS, folder / "small")

    def wrapped(name: str) -> Build:
        return lambda df: service.wrap(df, name=name, event_time="ts", split="partition", strategy=STRATEGY)

    table = []
    for name, query in {"stateless": lambda df: df, "windowed": windowed}.items():
        builds: dict[str, Build] = {
            "native": lambda df, q=query: q(df.withWatermark("ts", "10 seconds")),  # type: ignore[misc]
            "wrapped": lambda df, q=query, w=wrapped(f"small {name}"): q(w(df)),  # type: ignore[misc]
        }
        lives = {side: Live(spark, folder / f"small-{name}-{side}", file, build) for side, build in builds.items()}
        spent: dict[str, list[float]] = {side: [] for side in lives}
        others: dict[str, list[float]] = {side: [] for side in lives}
        for turn in range(warm_chunks + batches // CHUNK):
            for side, live in lives.items():
                done = live.feed(*[file] * CHUNK)
                data = data_batches(done)
                assert len(data) == CHUNK, f"{CHUNK} files are {CHUNK} batches, got {len(data)}"
                if turn >= warm_chunks:
                    spent[side] += [spent_ms([batch], "triggerExecution") for batch in data]
                    others[side].append(spent_ms(done, "triggerExecution") - spent_ms(data, "triggerExecution"))
        for live in lives.values():
            live.query.stop()
        section = f"small batches of {ROWS:,} rows"
        table.append(
            Row.pairs(
                section,
                f"{name}: triggerExecution of a data batch",
                "ms",
                spent["native"],
                spent["wrapped"],
                bound=Bound(20, "added"),
                note=f"{len(spent['native'])} batches each",
            )  # fmt: skip
        )
        if any(others["wrapped"]):
            native = [each or 0.0 for each in others["native"]]
            table.append(
                Row(
                    section,
                    f"{name}: batches without data after {CHUNK} with",
                    "ms",
                    sorted(native)[len(native) // 2],
                    sorted(others["wrapped"])[len(others["wrapped"]) // 2],
                    note="heartbeat and no-data batches, per pause in the data",
                )  # fmt: skip
            )
    return table
