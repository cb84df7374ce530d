"""The demo's stream, and where its rows come from: made by Spark's own tasks, or written to another system.

Event times are those of yesterday, 12:00 to 13:00 UTC, because the future guard goes by the clock.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lowmark.integration.errors import DemoImpossible
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.planning.options import PlanOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

STREAM = "demo"
MINUTE_US = 60_000_000
SHUFFLE_US = 8_000_000
TICKS_PER_BATCH = 15
_DAY_US = 24 * 60 * MINUTE_US
_TICK_US = 10_000_000
_TICKS = 360
_BEHIND_US = 10 * MINUTE_US
_QUERIES = 2


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


class Feed(ABC):
    """Where the demo's rows come from.

    Attributes:
        split: the column that tells a row's split.
        batches: number of batches with rows; the queries make more.
    """

    split: str

    def __init__(self, script: StreamScript, seed: int) -> None:
        self.script, self.seed = script, seed
        self.batches = -(-script.end // TICKS_PER_BATCH)

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """Open the stream: one DataFrame per call, with `split` and event_time."""

    @abstractmethod
    def splits(self) -> Sequence[object] | None:
        """The ids of all splits where the service has to be told them."""

    @abstractmethod
    def name(self, value: object) -> str:
        """The split's name in the script, from its value in the column or its name in a status."""

    def next(self) -> None:  # noqa: B027  # rows that Spark makes are always there
        """Called by each query in a batch; returns when the next batch's rows are there, or raises DemoImpossible."""

    def abandon(self) -> None:  # noqa: B027  # nobody waits for them
        """Let go of a query that waits in `next`: the other one has failed."""


class GeneratorFeed(Feed):
    """The embedded source: rows are made in Spark's own tasks, no server is needed."""

    split = "split"

    def read(self, spark: SparkSession) -> DataFrame:
        from lowmark.sources.spark import Binding, load

        source = GeneratorSource(self.script, seed=self.seed, ticks_per_batch=TICKS_PER_BATCH)
        return load(spark, Binding(source, STREAM, PlanOptions(slots=2)))

    def splits(self) -> Sequence[object] | None:
        return [split.name for split in self.script.splits]

    def name(self, value: object) -> str:
        return str(value)


class SteppedFeed(Feed):
    """Rows that are written to another system in step with the queries.

    While both queries run batch n, the rows of batch n + 1 are written. So Spark cuts the batches exactly as with the
    embedded source, and the figures are the same.
    """

    def __init__(self, script: StreamScript, seed: int) -> None:
        super().__init__(script, seed)
        self._written = 0  # batches
        self._step = threading.Barrier(_QUERIES, action=self.write_next)
        self._failed: DemoImpossible | None = None

    def __enter__(self) -> Self:
        self.create()
        try:
            self.write_next()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Delete what `create` made, unless it is kept."""

    @abstractmethod
    def create(self) -> None:
        """Make the place of the rows in the other system."""

    @abstractmethod
    def write(self, batch: Sequence[Sequence[str]]) -> None:
        """Write a batch's rows, given by the number of their split; they are there when this returns."""

    def write_next(self) -> None:
        start, end = self._written * TICKS_PER_BATCH, (self._written + 1) * TICKS_PER_BATCH
        batch = []
        for split in self.script.splits:
            times_us = self.script.times_us(split.name, start, end, seed=self.seed).tolist()
            first = self.script.count_rows(split.name, 0, start)
            batch.append([json.dumps({"number": n, "event_time_us": us}) for n, us in enumerate(times_us, first)])
        try:
            self.write(batch)
        except DemoImpossible as failed:
            self._failed = failed
            raise
        self._written += 1

    def rows(self, records: DataFrame, column: str) -> DataFrame:
        """Return the rows that were written, from the column with their texts; times of the system are not used."""
        from pyspark.sql import functions as F

        row = F.from_json(F.col(column).cast("string"), "struct<number:bigint,event_time_us:bigint>").alias("row")
        time = F.timestamp_micros("row.event_time_us").alias("event_time")
        return records.select(self.split, row).select(self.split, "row.number", time)

    def next(self) -> None:
        try:
            self._step.wait()  # until both queries run the same batch
        except threading.BrokenBarrierError:
            if self._failed is None:
                raise
            raise self._failed from None  # the other query's thread wrote, and met the error

    def abandon(self) -> None:
        self._step.abort()
