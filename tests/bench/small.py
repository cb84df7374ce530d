"""Small batches without pauses: the added cost of a batch, independent of its rows."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.versions import observes_splits
from pyspark.sql import functions as F

from .live import Batch, Build, Live, data_batches, spent_ms
from .measure import Bound, Row
from .scan import SPLITS, STRATEGY, TIME, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000
CHUNK = 10  # batches of one query per turn


def windowed(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 minute"), "partition").count()


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, batches: int, warm_chunks: int
) -> list[Row]:
    file = write(spark, f"{SPLITS}, {TIME}", ROWS, folder / "small")

    def native(query: Build) -> Build:
        return lambda df: query(df.withWatermark("ts", "10 seconds"))

    def wrapped(query: Build, name: str) -> Build:
        return lambda df: query(
            service.wrap(df, name=f"small {name}", event_time="ts", split="partition", strategy=STRATEGY)
        )

    def audited(query: Build, name: str) -> Build:
        # Native, with the measurement alone: the rest of wrap's price is the heartbeat's.
        name = f"small {name} audited"
        return native(lambda df: query(service.audit(df, name=name, event_time="ts", split="partition", detail=False)))

    queries: dict[str, Build] = {"stateless": lambda df: df, "windowed": windowed}
    table = []
    for name, query in queries.items():
        builds = {"native": native(query), "wrapped": wrapped(query, name)}
        if observes_splits(spark):  # an audit needs Spark 4.2
            builds["audited"] = audited(query, name)
        lives = {side: Live(spark, folder / f"small-{name}-{side}", file, build) for side, build in builds.items()}
        spent: dict[str, list[float]] = {side: [] for side in lives}
        others: dict[str, list[float]] = {side: [] for side in lives}
        batches_of: dict[str, list[Batch]] = {side: [] for side in lives}
        for turn in range(warm_chunks + batches // CHUNK):
            for side, live in lives.items():
                done = live.feed(*[file] * CHUNK)
                data = data_batches(done)
                assert len(data) == CHUNK, f"{CHUNK} files are {CHUNK} batches, got {len(data)}"
                if turn >= warm_chunks:
                    spent[side] += [spent_ms([batch], "triggerExecution") for batch in data]
                    batches_of[side] += data
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
                bound=Bound(10 if observes_splits(spark) else 20, "added"),
                note=f"{len(spent['native'])} batches each; {_where(batches_of['native'], batches_of['wrapped'])}",
            )
        )
        if "audited" in lives:
            note = f"measured only; {_where(batches_of['native'], batches_of['audited'])}"
            what = f"{name}: the same, `service.audit(..., detail=False)` beside native"
            table.append(Row.pairs(section, what, "ms", spent["native"], spent["audited"], note=note))
        slow = [[statistics.quantiles(spent[side], n=100)[98]] for side in ("native", "wrapped")]
        table.append(Row.pairs(section, f"{name}: the same, 99 of 100 batches", "ms", *slow, bound=Bound(50, "added")))
        if any(others["wrapped"]):
            table.append(
                Row(
                    section,
                    f"{name}: batches without data after {CHUNK} with",
                    "ms",
                    statistics.median(others["native"]),
                    statistics.median(others["wrapped"]),
                    note="heartbeat and no-data batches, per pause in the data",
                )
            )
    return table


def _where(native: list[Batch], wrapped: list[Batch]) -> str:
    """Return the added milliseconds of Spark's phases, the largest first."""

    def median(batches: list[Batch], phase: str) -> float:
        return statistics.median(spent_ms([batch], phase) for batch in batches)

    phases = {phase for batch in wrapped for phase in batch["durationMs"]} - {"triggerExecution"}
    more = {phase: median(wrapped, phase) - median(native, phase) for phase in phases}
    return ", ".join(
        f"{phase} {ms:+.0f}" for phase, ms in sorted(more.items(), key=lambda p: -abs(p[1])) if abs(ms) >= 1
    )
