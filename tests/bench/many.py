"""Many splits: no loss, the size of the offset, the cost of a batch; and many tasks with many splits each."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from lowmark.integration.transport.observed import ObservedMeasure
from lowmark.integration.transport.split_key import SplitKey

from .live import Batch, Build, Live, data_batches, spent_ms
from .measure import Bound, Row
from .scan import STRATEGY, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLITS = 4_096
ROWS_PER_SPLIT = 10
START_US = 1_700_000_000_000_000
# Split n is n milliseconds behind split 0, and its last row is 10 ms after its first.
COLUMNS = f"""cast(id % {SPLITS} as int) partition,
    timestamp_micros({START_US} - (id % {SPLITS}) * 1000 + div(id, {SPLITS}) * 1000) ts"""


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, batches: int, tasks: int, rounds: int
) -> list[Row]:
    return [*_status(spark, service, folder, batches), _tasks(spark, tasks, rounds)]


def _status(spark: SparkSession, service: LowWatermarkService, folder: Path, batches: int) -> list[Row]:
    file = write(spark, COLUMNS, SPLITS * ROWS_PER_SPLIT, folder / "many")
    name = f"{SPLITS} splits"
    builds: dict[str, Build] = {
        "native": lambda df: df.withWatermark("ts", "10 seconds"),
        "wrapped": lambda df: service.wrap(df, name=name, event_time="ts", split="partition", strategy=STRATEGY),
    }
    lives = {side: Live(spark, folder / f"many-{side}", file, build) for side, build in builds.items()}
    spent: dict[str, list[float]] = {side: [] for side in lives}
    done: list[Batch] = []
    for turn in range(2 + batches // 5):
        for side, live in lives.items():
            done = live.feed(*[file] * 5)
            if turn >= 2:
                spent[side] += [spent_ms([b], "triggerExecution") for b in data_batches(done)]
    offsets = [b["sources"][-1]["endOffset"] for b in done]
    weight = max(len(json.dumps(offset).encode()) for offset in offsets)
    status = service.status(name)
    exact = 0
    for split, seen in status.splits.items():
        latest_us = START_US - int(split) * 1_000 + (ROWS_PER_SPLIT - 1) * 1_000
        # Less the bound and a millisecond, because a row at the watermark is late in Spark.
        exact += seen.watermark_us == latest_us - 10_000_000 - 1_000
    for live in lives.values():
        live.query.stop()
    section = f"{SPLITS:,} splits"
    return [
        Row(section, "splits in status, watermark exact to the millisecond", "splits", None, exact,
            bound=Bound(SPLITS, "wrapped")),
        Row(section, "heartbeat offset in the checkpoint, per batch", "bytes", None, weight),
        Row.pairs(section, "triggerExecution of a batch of 40,960 rows", "ms", spent["native"], spent["wrapped"],
                  note=f"{len(spent['native'])} batches each"),
    ]  # fmt: skip


def _tasks(spark: SparkSession, tasks: int, rounds: int) -> Row:
    """Measure pitfall 53: the scheduler's thread serializes the whole sketch at every end of a task."""
    df = spark.range(tasks * SPLITS, numPartitions=tasks).selectExpr(
        f"cast(id % {SPLITS} as int) partition", f"timestamp_micros({START_US} + id) ts"
    )
    measure = ObservedMeasure(
        metric="tasks", stream="tasks", key=SplitKey(("partition",), ("int",)), event_time="ts",
        future_guard_us=300_000_000, sketch_lg=13, detail=False, sample_names=False,
    )  # fmt: skip
    observed = measure.observe(df)
    spent: dict[str, list[float]] = {"native": [], "wrapped": []}
    for turn in range(rounds + 1):
        for side, each in {"native": df, "wrapped": observed}.items():
            began = time.perf_counter()
            each.write.format("noop").mode("overwrite").save()
            if turn:
                spent[side].append((time.perf_counter() - began) * 1000)
    row = Row.pairs("pitfall 53", f"{tasks:,} tasks x {SPLITS:,} splits: the whole job", "ms",
                    spent["native"], spent["wrapped"])  # fmt: skip
    assert row.added is not None
    note = f"{row.added.median / tasks:.2f} ms more per task, rows included"
    return replace(row, note=note)
