"""The demo's stream, and where its rows come from: made by Spark's own tasks, or by whoever else feeds it.

Event times are those of yesterday, 12:00 to 13:00 UTC, because the future guard goes by the clock.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.planning.options import PlanOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "demo"
MINUTE_US = 60_000_000
SHUFFLE_US = 8_000_000
TICKS_PER_BATCH = 15
_DAY_US = 24 * 60 * MINUTE_US
_TICK_US = 10_000_000
_TICKS = 360
_BEHIND_US = 10 * MINUTE_US


def yesterday_noon_us(now: dt.datetime) -> int:
    """Return 12:00 UTC of the day before, microseconds since the epoch."""
    noon = dt.datetime.combine(now.astimezone(dt.timezone.utc).date(), dt.time(12), dt.timezone.utc)
    return int(noon.timestamp()) * 1_000_000 - _DAY_US


def demo_script(seed: int, *, start_us: int) -> StreamScript:
    """The demo's stream: eight splits, an hour of events; one split is ten minutes behind, one falls silent for good,
    one has a row dated a year ahead. Who, when, and how many rows, is the seed's choice.

    >>> demo_script(42, start_us=0) == demo_script(42, start_us=0) != demo_script(43, start_us=0)
    True
    """
    chance = random.Random(seed)
    behind, silent, stray = chance.sample(range(8), 3)
    splits = []
    for index in range(8):
        rows = chance.randint(40, 60)
        silent_from, stray_tick = chance.randint(100, 140), chance.randint(280, 300)
        splits.append(
            SplitScript(
                name=f"orders-{index}",
                rows_per_tick=rows,
                behind_us=_BEHIND_US if index == behind else 0,
                silent_from_tick=silent_from if index == silent else None,
                stray_tick=stray_tick if index == stray else None,
                stray_us=365 * _DAY_US if index == stray else 0,
                last_us=(2 if index == behind else 3) * MINUTE_US,
            )
        )
    return StreamScript(tuple(splits), start_us=start_us, ticks=_TICKS, tick_us=_TICK_US, shuffle_us=SHUFFLE_US)


class Feed(Protocol):
    """Where the demo's rows come from. `split` names the column that tells a row's split."""

    script: StreamScript
    seed: int
    split: str
    batches: int  # with rows; the queries make more

    def read(self, spark: SparkSession) -> DataFrame:
        """Open the stream: one DataFrame per call, with `split` and event_time."""

    def splits(self) -> Sequence[object] | None:
        """The ids of all splits where the service has to be told them."""

    def name(self, value: object) -> str:
        """The split's name in the script, from its value in the column or its name in a status."""

    def next(self) -> None:
        """Called by each query in a batch; returns when the next batch's rows are there, or raises DemoImpossible."""

    def abandon(self) -> None:
        """Let go of a query that waits in `next`: the other one has failed."""


class GeneratorFeed:
    """The embedded source: rows are made in Spark's own tasks, no server is needed."""

    split = "split"

    def __init__(self, script: StreamScript, seed: int) -> None:
        self.script, self.seed = script, seed
        self.batches = -(-script.end // TICKS_PER_BATCH)

    def read(self, spark: SparkSession) -> DataFrame:
        from lowmark.sources.spark import Binding, load

        source = GeneratorSource(self.script, seed=self.seed, ticks_per_batch=TICKS_PER_BATCH)
        return load(spark, Binding(source, STREAM, PlanOptions(slots=2)))

    def splits(self) -> Sequence[object] | None:
        return [split.name for split in self.script.splits]

    def name(self, value: object) -> str:
        return str(value)

    def next(self) -> None:
        """The rows are always there."""

    def abandon(self) -> None:
        """Nobody waits."""
