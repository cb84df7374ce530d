"""`lowmark demo`: the same rows through native Spark and through lowmark, side by side, and what each made of them.

Eight splits, an hour of events, minute windows per split in append mode, one watermark delay for both queries. One
split runs ten minutes behind, one falls silent for good, one has a single row dated a year ahead, five are regular; the
seed decides which ones, when, and how many rows.

Every figure is counted from what the two queries did:

    rows in                      observed by Spark at the source of each query
    rows in windows              summed over the windows the query emitted, and over those it holds open in its state
    rows dropped                 the rest: their window was emitted without them
    windows wrong, missing       emitted with another count than the rows have, made again and counted here; or neither
                                 emitted nor open

Nothing depends on the speed of the machine. Batches are cut by ticks. A regular split has rows in every batch, so no
pause makes it idle; the silent split has missed fourteen batches by the end, so it is idle long before. Event times are
those of yesterday, 12:00 to 13:00 UTC, because the future guard goes by the clock; results give them relative to the
stream's start, so one seed gives one result on any day.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from lowmark.integration.driver.service import LowWatermarkService
from lowmark.integration.errors import DemoImpossible
from lowmark.integration.spark.progress import Progress
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.planning.planner import PlanOptions
from lowmark.watermark import SplitState, StreamStatus, WatermarkStrategy, duration_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "DemoResult",
    "Feed",
    "GeneratorFeed",
    "LaneResult",
    "SplitResult",
    "demo_script",
    "run_demo",
    "yesterday_noon_us",
]

_MINUTE_US = 60_000_000
_DAY_US = 24 * 60 * _MINUTE_US
_TICK_US = 10_000_000
_TICKS = 360
TICKS_PER_BATCH = 15
_BEHIND_US = 10 * _MINUTE_US
_SHUFFLE_US = 8_000_000
_BOUND = "10 seconds"
# Shorter than the silent split's silence by far: it misses fourteen batches, each of a tenth of a second or more.
_IDLENESS = "1 second"
_STREAM = "demo"
_IDLE_SECONDS = 30.0
_STOP_SECONDS = 10.0

NATIVE, LOWMARK = "native", "lowmark"


def yesterday_noon_us(now: dt.datetime) -> int:
    """Return 12:00 UTC of the day before, microseconds since the epoch."""
    noon = dt.datetime.combine(now.astimezone(dt.timezone.utc).date(), dt.time(12), dt.timezone.utc)
    return int(noon.timestamp()) * 1_000_000 - _DAY_US


def demo_script(seed: int, *, start_us: int) -> StreamScript:
    """Return the demo's stream: who is behind, silent or stray, when, and how many rows, is the seed's choice.

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
                last_us=(2 if index == behind else 3) * _MINUTE_US,
            )
        )
    return StreamScript(tuple(splits), start_us=start_us, ticks=_TICKS, tick_us=_TICK_US, shuffle_us=_SHUFFLE_US)


class Feed(Protocol):
    """Where the demo's rows come from. `split` names the column that tells a row's split."""

    script: StreamScript
    seed: int
    split: str
    batches: int  # with rows; the queries make more

    def read(self, spark: SparkSession) -> DataFrame:
        """Open the stream: one DataFrame per call, with `split` and event_time."""
        ...

    def splits(self) -> Sequence[object] | None:
        """The ids of all splits where the service has to be told them."""
        ...

    def name(self, value: object) -> str:
        """The split's name in the script, from its value in the column or its name in a status."""
        ...

    def next(self, batch: int) -> None:
        """Called by each query while it runs a batch; returns when the next batch's rows are there."""
        ...

    def abandon(self) -> None:
        """Let go of a query that waits in `next`: the other one has failed."""
        ...


class GeneratorFeed:
    """The embedded source: rows are made in Spark's own tasks, no server is needed."""

    split = "split"

    def __init__(self, script: StreamScript, seed: int) -> None:
        self.script, self.seed = script, seed
        self.batches = -(-script.end // TICKS_PER_BATCH)

    def read(self, spark: SparkSession) -> DataFrame:
        from lowmark.sources.spark import Binding, load

        source = GeneratorSource(self.script, seed=self.seed, ticks_per_batch=TICKS_PER_BATCH)
        return load(spark, Binding(source, _STREAM, PlanOptions(slots=2)))

    def splits(self) -> Sequence[object] | None:
        return [split.name for split in self.script.splits]

    def name(self, value: object) -> str:
        return str(value)

    def next(self, batch: int) -> None:
        """The rows are always there."""

    def abandon(self) -> None:
        """Nobody waits."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What became of one split's rows in one query.

    Attributes:
        rows_in: rows Spark read of it.
        rows_emitted: rows in windows that were emitted.
        rows_open: rows in windows that are still open.
    """

    rows_in: int
    rows_emitted: int
    rows_open: int

    @property
    def rows_in_windows(self) -> int:
        return self.rows_emitted + self.rows_open

    @property
    def rows_dropped(self) -> int:
        return self.rows_in - self.rows_in_windows


@dataclass(frozen=True, slots=True)
class LaneResult:
    """What one query made of the rows.

    Attributes:
        splits: by name.
        windows: windows emitted.
        windows_wrong: of these, the ones whose count is not that of the rows.
        windows_missing: windows of the rows that were neither emitted nor are open.
        watermark_us: the watermark that Spark used last.
        holder: the split that holds it there: the smallest of all with lowmark, the largest natively.
    """

    splits: Mapping[str, SplitResult]
    windows: int
    windows_wrong: int
    windows_missing: int
    watermark_us: int
    holder: str | None

    def total(self, of: Callable[[SplitResult], int]) -> int:
        return sum(of(split) for split in self.splits.values())

    def to_json(self, start_us: int) -> dict[str, Any]:
        """The figures for `json.dumps`; the watermark in seconds after the stream's start."""
        return {
            "rows_in": self.total(lambda s: s.rows_in),
            "rows_dropped": self.total(lambda s: s.rows_dropped),
            "rows_in_windows": self.total(lambda s: s.rows_in_windows),
            "rows_in_open_windows": self.total(lambda s: s.rows_open),
            "windows": self.windows,
            "windows_wrong": self.windows_wrong,
            "windows_missing": self.windows_missing,
            "final_watermark_seconds": (self.watermark_us - start_us) / 1e6,
            "held_by": self.holder,
        }


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What both queries made of the same rows.

    Attributes:
        script, seed: what was read.
        native, lowmark: the two queries.
        states: state of each split when the last rows had been read.
    """

    script: StreamScript
    seed: int
    native: LaneResult
    lowmark: LaneResult
    states: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the same for one seed, whatever the day and the source."""
        start_us = self.script.start_us
        return {
            "seed": self.seed,
            "native": self.native.to_json(start_us),
            "lowmark": self.lowmark.to_json(start_us),
            "splits": {split.name: self._split_json(split) for split in self.script.splits},
        }

    def _split_json(self, split: SplitScript) -> dict[str, Any]:
        native, lowmark = self.native.splits[split.name], self.lowmark.splits[split.name]
        return {
            "script": described(self.script, split),
            "rows_in": lowmark.rows_in,
            "native": {"rows_in_windows": native.rows_in_windows, "rows_dropped": native.rows_dropped},
            "lowmark": {"rows_in_windows": lowmark.rows_in_windows, "rows_dropped": lowmark.rows_dropped},
            "state": self.states[split.name],
        }


def described(script: StreamScript, split: SplitScript) -> str:
    """What a split does, in a few words."""
    if split.behind_us:
        return f"{split.behind_us // _MINUTE_US} minutes behind"
    if split.silent_from_tick is not None:
        return f"silent after {split.silent_from_tick * script.tick_us // _MINUTE_US} min"
    if split.stray_tick is not None:
        return "1 row a year ahead"
    return "regular"


# One window of one split: (split, start of the window in microseconds).
Window = tuple[str, int]


@dataclass
class Lane:
    """One of the two queries while it runs.

    Attributes:
        name: NATIVE or LOWMARK.
        feed: where its rows come from.
        checkpoint: its folder.
        emitted: rows by window, as emitted.
        batches: batches over.
        status: the service's, at the last batch that matters; None natively.
    """

    name: str
    feed: Feed
    checkpoint: Path
    ask: Callable[[], StreamStatus] | None = None
    emitted: Counter[Window] = field(default_factory=Counter)
    batches: int = 0
    status: StreamStatus | None = None
    query: StreamingQuery | None = None

    def observed(self, events: DataFrame) -> DataFrame:
        """Let Spark count the rows of each split where they come in."""
        from pyspark.sql import functions as F

        values = self.feed.splits()
        of_split = range(len(self.feed.script.splits)) if values is None else values
        counts = [F.count_if(F.col(self.feed.split) == F.lit(v)).alias(self.feed.name(v)) for v in of_split]
        return events.observe(f"rows_in_{self.name}", *counts)

    def start(self, events: DataFrame) -> None:
        """Count rows per split and minute, append mode."""
        from pyspark.sql import functions as F

        minute = F.window("event_time", "1 minute").alias("minute")
        self.query = (
            events.groupBy(F.col(self.feed.split).alias("split"), minute)
            .count()
            .writeStream.queryName(f"lowmark demo, {self.name}")
            .outputMode("append")
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self._take)
            .start()
        )

    def _take(self, frame: DataFrame, batch: int) -> None:
        for split, start_us, rows in frame.selectExpr("split", "unix_micros(minute.start)", "count").collect():
            window = self.feed.name(split), start_us
            assert window not in self.emitted, f"{self.name} emitted {window} twice"
            self.emitted[window] = rows
        if self.ask is not None and batch <= self.feed.batches:
            self.status = self.ask()  # as it was when this batch was planned: the batch after the last rows decides
        self.batches = batch + 1
        if self.batches < self.feed.batches:
            self.feed.next(batch)

    def newest(self) -> Progress | None:
        """The last batch's progress; raises what ended the query."""
        assert self.query is not None, "started before it is asked"
        failed = self.query.exception()
        if failed is not None:
            raise DemoImpossible(
                f"the {self.name} query failed: {str(failed).splitlines()[0]}", "run it again with --debug."
            ) from failed
        progress = self.query._jsq.lastProgress()
        return None if progress is None else Progress.from_java(progress)

    def rows_in(self) -> Counter[str]:
        """Rows that Spark read, by split: each batch counted once."""
        assert self.query is not None, "started before it is asked"
        metric, by_batch = f"rows_in_{self.name}", {}
        for progress in self.query._jsq.recentProgress():
            batch = Progress.from_java(progress)
            if metric in batch.observed_metrics:
                by_batch[batch.batch_id] = batch.observed_metrics[metric]
        return sum((Counter(counts) for counts in by_batch.values()), Counter())

    def open_windows(self, spark: SparkSession) -> Counter[Window]:
        """Rows by window in the query's state."""
        state = spark.read.format("statestore").load(str(self.checkpoint))
        rows = state.selectExpr(f"key.{self.feed.split}", "unix_micros(key.window.start)", "value.count").collect()
        return Counter({(self.feed.name(split), start_us): count for split, start_us, count in rows})

    def result(self, spark: SparkSession, truth: Counter[Window]) -> LaneResult:
        """Count what became of the rows."""
        progress = self.newest()
        watermark_us = None if progress is None else progress.watermark_us
        assert watermark_us is not None, "every batch reports its watermark"
        rows_in, still_open = self.rows_in(), self.open_windows(spark)
        splits = {
            split.name: SplitResult(rows_in[split.name], _of(self.emitted, split.name), _of(still_open, split.name))
            for split in self.feed.script.splits
        }
        return LaneResult(
            splits=splits,
            windows=len(self.emitted),
            windows_wrong=sum(truth[window] != rows for window, rows in self.emitted.items()),
            windows_missing=len(truth.keys() - self.emitted.keys() - still_open.keys()),
            watermark_us=watermark_us,
            holder=self._holder(),
        )

    def _holder(self) -> str | None:
        if self.status is not None:
            return None if self.status.holder is None else self.feed.name(self.status.holder)
        script, seed = self.feed.script, self.feed.seed
        latest_us = {split.name: script.times_us(split.name, 0, script.end, seed=seed).max() for split in script.splits}
        return max(latest_us, key=lambda split: latest_us[split])


Watch = Callable[[Sequence[Lane]], None]


def run_demo(
    spark: SparkSession,
    folder: Path,
    feed: Feed,
    *,
    watch: Watch = lambda _: None,
    metrics_port: int | None = None,
    serving: Callable[[int], None] = lambda _: None,
    linger: Callable[[DemoResult], None] = lambda _: None,
) -> DemoResult:
    """Run both queries over the same rows, at the same time, and count.

    Args:
        spark: a session; its `numRecentProgressUpdates` is raised.
        folder: for the checkpoints; empty.
        feed: the rows.
        watch: called ten times a second while the queries run.
        metrics_port: as for `LowWatermarkService`.
        serving: called with the port of the metrics before the first batch, where there are metrics.
        linger: called with the result while the queries still run.

    Raises:
        DemoImpossible: a query failed.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(_BOUND).with_idleness(_IDLENESS)
    truth = _true_windows(feed)
    with LowWatermarkService(spark, metrics_port=metrics_port) as service:
        native = Lane(NATIVE, feed, folder / NATIVE)
        lowmark = Lane(LOWMARK, feed, folder / LOWMARK, ask=lambda: service.status(_STREAM))
        lanes = (native, lowmark)
        try:
            if service.metrics_port is not None:
                serving(service.metrics_port)
            native.start(native.observed(feed.read(spark)).withWatermark("event_time", _BOUND))
            events = service.wrap(
                lowmark.observed(feed.read(spark)),
                name=_STREAM,
                event_time="event_time",
                split=feed.split,
                strategy=strategy,
                splits=feed.splits(),
            )
            lowmark.start(events)
            _await_rows(lanes, watch)
            _await_end(lanes, feed, watch)
            result = _result(spark, lanes, truth)
            linger(result)
            return result
        finally:
            feed.abandon()
            _stop(lanes, service)


def _stop(lanes: Sequence[Lane], service: LowWatermarkService) -> None:
    """Stop the queries, and wait until the service has heard of it: Spark tells in its own time."""
    for lane in lanes:
        if lane.query is not None:
            lane.query.stop()
    deadline = time.monotonic() + _STOP_SECONDS
    while service.statuses() and time.monotonic() < deadline:
        time.sleep(0.05)


def _await_rows(lanes: Sequence[Lane], watch: Watch) -> None:
    while any(lane.batches < lane.feed.batches for lane in lanes):
        for lane in lanes:
            lane.newest()  # raises if the query has failed
        watch(lanes)
        time.sleep(0.1)


def _await_end(lanes: Sequence[Lane], feed: Feed, watch: Watch) -> None:
    """Wait until nothing more can come out: all is read, the silent split is idle, both watermarks are in force."""
    _drain(lanes)
    lowmark = lanes[-1]
    assert lowmark.ask is not None, "the second lane is the service's"
    silent = {split.name for split in feed.script.splits if split.silent_from_tick is not None}
    deadline = time.monotonic() + _IDLE_SECONDS
    while time.monotonic() < deadline:
        left_out = {feed.name(n) for n, s in lowmark.ask().splits.items() if s.state is SplitState.IDLE}
        if silent <= left_out:
            break
        watch(lanes)
        time.sleep(0.1)
    _drain(lanes)
    watch(lanes)


def _drain(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        assert lane.query is not None, "started before"
        lane.query.processAllAvailable()


def _result(spark: SparkSession, lanes: Sequence[Lane], truth: Counter[Window]) -> DemoResult:
    native, lowmark = lanes
    feed = lowmark.feed
    assert lowmark.status is not None, "every batch asks for it"
    result = DemoResult(
        script=feed.script,
        seed=feed.seed,
        native=native.result(spark, truth),
        lowmark=lowmark.result(spark, truth),
        states={feed.name(name): split.state.value for name, split in lowmark.status.splits.items()},
    )
    for lane in (result.native, result.lowmark):
        for name, split in lane.splits.items():
            made = feed.script.count_rows(name, 0, feed.script.end)
            assert split.rows_in == made, f"split {name}: {made} rows were made, Spark read {split.rows_in}"
            assert split.rows_dropped >= 0, f"split {name}: more rows in windows than came in"
    return result


def _true_windows(feed: Feed) -> Counter[Window]:
    """Rows by window, as a batch query over all rows would count them."""
    truth: Counter[Window] = Counter()
    for split in feed.script.splits:
        minutes, rows = np.unique(
            feed.script.times_us(split.name, 0, feed.script.end, seed=feed.seed) // _MINUTE_US, return_counts=True
        )
        truth.update(
            {
                (split.name, minute * _MINUTE_US): count
                for minute, count in zip(minutes.tolist(), rows.tolist(), strict=True)
            }
        )
    return truth


def _of(windows: Counter[Window], split: str) -> int:
    return sum(rows for (name, _), rows in windows.items() if name == split)


assert duration_us(_BOUND, what="bound") >= _SHUFFLE_US, "rows are shuffled within the bound"
