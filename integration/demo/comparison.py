"""`lowmark demo`: the same rows through native Spark and through lowmark, side by side, and what each made of them.

Minute windows per split in append mode, one watermark delay for both queries; `feed.py` has the rows.

Nothing depends on the speed of the machine. Batches are cut by ticks. A regular split has rows in every batch, so no
pause makes it idle; the silent split has missed fourteen batches by the end, so it is idle long before. Results give
event times relative to the stream's start, so one seed gives one result on any day.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration.errors import DemoImpossible
from lowmark.integration.spark.progress import Progress
from lowmark.watermark import SplitState, StreamStatus, WatermarkStrategy, duration_us
from lowmark.watermark.printable import first_line

from .feed import MINUTE_US, SHUFFLE_US, STREAM, Feed
from .result import DemoResult, LaneResult, SplitResult

if TYPE_CHECKING:
    from lowmark.integration.driver.service import LowWatermarkService
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BOUND = "10 seconds"
# Shorter than the silent split's silence by far: it misses fourteen batches, each of a tenth of a second or more.
_IDLENESS = "1 second"
_IDLE_SECONDS = 30.0
_STOP_SECONDS = 10.0

NATIVE, LOWMARK = "native", "lowmark"

Window = tuple[str, int]  # split, start in microseconds


@dataclass
class Lane:
    """One of the two queries while it runs.

    Attributes:
        status: the service's, at the last batch that matters; None natively.
        impossible: why the feed had no more rows, because Spark's error begins with the stacks of two languages.
    """

    name: str
    feed: Feed
    checkpoint: Path
    ask: Callable[[], StreamStatus] | None = None
    emitted: Counter[Window] = field(default_factory=Counter)
    batches: int = 0
    status: StreamStatus | None = None
    query: StreamingQuery | None = None
    impossible: DemoImpossible | None = None

    def observed(self, events: DataFrame) -> DataFrame:
        """Let Spark count the rows of each split as they come in."""
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
            try:
                self.feed.next()
            except DemoImpossible as why:
                self.impossible = why
                raise

    def newest(self) -> Progress | None:
        """The last batch's progress; raises what ended the query."""
        assert self.query is not None, "started before it is asked"
        failed = self.query.exception()
        if failed is not None:
            raise self.impossible or DemoImpossible(
                f"the {self.name} query failed: {first_line(failed)}", "run it again with --debug."
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
        return sum(map(Counter, by_batch.values()), Counter())

    def open_windows(self, spark: SparkSession) -> Counter[Window]:
        """Rows by window in the query's state."""
        state = spark.read.format("statestore").load(str(self.checkpoint))
        rows = state.selectExpr(f"key.{self.feed.split}", "unix_micros(key.window.start)", "value.count").collect()
        return Counter({(self.feed.name(split), start_us): count for split, start_us, count in rows})

    def result(self, spark: SparkSession, truth: Counter[Window]) -> LaneResult:
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


@contextmanager
def both_queries(
    spark: SparkSession, service: LowWatermarkService, folder: Path, feed: Feed, *, watch: Watch
) -> Iterator[DemoResult]:
    """Run both queries over the same rows, at the same time, and count; both run on until the block ends.

    Args:
        spark: a session; its `numRecentProgressUpdates` is raised.
        folder: for the checkpoints; empty.
        watch: called ten times a second while the queries have rows to take.

    Raises:
        DemoImpossible: a query failed.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(_BOUND).with_idleness(_IDLENESS)
    native = Lane(NATIVE, feed, folder / NATIVE)
    lowmark = Lane(LOWMARK, feed, folder / LOWMARK, ask=lambda: service.status(STREAM))
    lanes = (native, lowmark)
    try:
        native.start(native.observed(feed.read(spark)).withWatermark("event_time", _BOUND))
        events = service.wrap(
            lowmark.observed(feed.read(spark)),
            name=STREAM,
            event_time="event_time",
            split=feed.split,
            strategy=strategy,
            splits=feed.splits(),
        )
        lowmark.start(events)
        _await_rows(lanes, watch)
        _await_end(lanes, feed, watch)
        yield _result(spark, lanes)
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
    """Wait until all is read, the silent split is idle, and both watermarks are in force."""
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


def _result(spark: SparkSession, lanes: Sequence[Lane]) -> DemoResult:
    native, lowmark = lanes
    feed = lowmark.feed
    truth = _true_windows(feed)
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
        times_us = feed.script.times_us(split.name, 0, feed.script.end, seed=feed.seed)
        truth.update((split.name, start_us) for start_us in (times_us // MINUTE_US * MINUTE_US).tolist())
    return truth


def _of(windows: Counter[Window], split: str) -> int:
    return sum(rows for (name, _), rows in windows.items() if name == split)


assert duration_us(_BOUND, what="bound") >= SHUFFLE_US, "rows are shuffled within the bound"
