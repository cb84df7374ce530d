"""`late=`: a row is marked exactly if Spark drops it, batch by batch, on random streams.

Spark's own judgement is `dropDuplicates` with the event time among its columns: it passes on every row with an id of
its own, except for rows at or below the watermark. The query observes which rows are marked before that operator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, Ran, Row, lose_commit, seconds, start

SPLITS = ["a", "b", "c"]


def random_batches(seed: int, count: int) -> list[list[Row]]:
    """Batches in which each split's time grows, and some rows come far too late; one is before 1970, one without time."""
    draw = random.Random(seed)
    at = dict.fromkeys(SPLITS, 0.0)
    made: list[list[Row]] = []
    v = 0
    for _ in range(count):
        batch: list[Row] = []
        for _ in range(draw.randint(1, 12)):
            split = draw.choice(SPLITS)
            at[split] += draw.choice([0, 0.001, 1, 10])
            behind = draw.choice([0, 0, 0, 0.001, 0.0005, 5, 30])
            batch.append((split, v, draw.choice([at[split] - behind] * 12 + [None, -1_800_000_000])))
            v += 1
        made.append(batch)
    return made


def judged(df: DataFrame) -> DataFrame:
    marked = F.collect_set(F.when(F.col("is_late"), F.col("v"))).alias("late")
    return df.observe("judged", marked).dropDuplicates(["v", "ts"]).select("v", "is_late")


class Judgement:
    """What Spark made of each batch: ids of the rows it was given, passed on, and marked."""

    def __init__(self) -> None:
        self.emitted: dict[int, list[Row]] = {}
        self.marked: dict[int, set[int]] = {}
        self.dropped: dict[int, int] = {}
        self.watermark: dict[int, float] = {}

    def take(self, ran: Ran) -> None:
        for progress in ran.progress:
            self.marked[progress.batch_id] = set(progress.observed_metrics.get("judged", {}).get("late", []))
            self.dropped[progress.batch_id] = progress.dropped_rows
            self.watermark[progress.batch_id] = (progress.watermark_us or 0) / 1e6

    def check(self, batches: list[list[Row]], note: str) -> int:
        """Compare with Spark's drops and with the definition; return the number of late rows."""
        from tests.integration.feed import ZERO

        marked = set().union(*self.marked.values())
        passed = {v for rows in self.emitted.values() for v, _ in rows}
        assert not any(is_late for rows in self.emitted.values() for _, is_late in rows), note
        assert marked | passed == {v for batch in batches for _, v, _ in batch}, note
        assert not marked & passed, note
        for batch_id, late in self.marked.items():
            assert len(late) == self.dropped[batch_id], f"{note}, batch {batch_id}"
        times = {v: None if ts is None else ts + ZERO.timestamp() for batch in batches for _, v, ts in batch}
        for batch_id, rows in self.emitted.items():
            limit = self.watermark.get(batch_id - 1, 0.0)
            mine = {v for v, _ in rows} | self.marked[batch_id]
            late = {v for v in mine if (ts := times[v]) is not None and round(ts * 1e6) <= round(limit * 1e6)}
            assert late == self.marked[batch_id], f"{note}, batch {batch_id}"
        return len(marked)


@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_marked_if_spark_drops_it_also_when_a_batch_runs_again(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    batches, seen = random_batches(seed, 8), Judgement()
    feed, checkpoint, draw = Feed(spark, tmp_path / "feed"), str(tmp_path / "checkpoint"), random.Random(seed)
    for part in (batches[:3], batches[3:6], batches[6:]):
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=SPLITS, late="is_late")
        ran = start(judged(df), checkpoint, emitted=seen.emitted)
        for batch in part:
            feed.put(*batch)
            ran.settle()
        seen.take(ran)
        ran.query.stop()
        if draw.random() < 0.7:
            lose_commit(checkpoint)
    assert seen.check(batches, f"seed {seed}") > 0, "no row was late, so the test shows nothing"
