"""A source as a streaming DataFrame: exact rows, whatever the batches."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lowmark.sources.generator import SplitScript, StreamScript
from lowmark.sources.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = StreamScript(
    (
        SplitScript("a", 3, last_us=60_000_000),
        SplitScript("b", 2, behind_us=4_000_000),
        SplitScript("c", 1, silent_from_tick=2),
    ),
    start_us=1_700_000_000_000_000,
    ticks=10,
    tick_us=1_000_000,
    shuffle_us=2_000_000,
)


@pytest.mark.parametrize("ticks_per_batch", [3, 11])
def test_a_paced_generator_gives_its_rows_in_batches_of_whole_ticks(
    spark: SparkSession, tmp_path: Path, ticks_per_batch: int
) -> None:
    register(spark)
    options = {"seed": 1, "ticksPerBatch": ticks_per_batch, "tasks": 2}
    stream = spark.readStream.format("lowmark_generator").option("script", json.dumps(SCRIPT.to_plain()))
    frame = stream.options(**options).load()
    query = (
        frame.selectExpr("split", "number", "unix_micros(event_time) us")
        .writeStream.format("memory")
        .queryName(f"generated_{ticks_per_batch}")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.processAllAvailable()

    rows = spark.table(f"generated_{ticks_per_batch}").collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (split.name, number, us)
        for split in SCRIPT.splits
        for number, us in enumerate(SCRIPT.times_us(split.name, 0, SCRIPT.end, seed=1).tolist())
    )
    edges = [*range(0, SCRIPT.end, ticks_per_batch), SCRIPT.end]
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [
        sum(SCRIPT.count_rows(split.name, start, end) for split in SCRIPT.splits) for start, end in pairwise(edges)
    ]
