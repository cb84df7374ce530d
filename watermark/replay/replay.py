"""The replay: judges rows in batches as native Spark and as lowmark would have judged them.

The reader of the rows cuts the batches. A row is late when the end of its window, or the row's own time without a
window, is at or before the watermark that `rules.py` puts in force. `SplitWatermarks` makes lowmark's minimum
here too, so idleness and the guard work as in a query.

Rows are held only during a call, and counts are kept by split, delay and bucket, so memory is bounded for any input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from lowmark.watermark.lateness import Micros
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.splits.events import BatchReported, Polled, SplitColumn, SplitsDiscovered, SplitsFinished
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import WatermarkStrategy

from .open_rows import OpenRows, starts_of
from .profile import Flags
from .rules import Rule

Numbers = npt.NDArray[np.int64]

_SECOND_US = 1_000_000
# Times within this limit do not overflow: the years -71,000 to 75,000.
_FURTHEST_US = 1 << 61
# Kept rows are also counted for these delays, because one of them is near the smallest delay without a loss.
_STATE_DELAYS_US = tuple(
    seconds * _SECOND_US
    for seconds in (0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200)
) + tuple(days * 86_400 * _SECOND_US for days in (1, 2, 5, 10, 20, 50, 100, 200, 400))
_NEVER_US = -(1 << 62)  # in arrays: no watermark yet
_SAMPLE_ROWS = 4_096
_SAMPLE_BATCHES = 64
_MOST_MOMENTS = 256


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows of some batches, one batch after the other: three columns by row, and three by batch."""

    splits: Numbers  # by number
    times_us: Micros
    timed: Flags  # whether the row has an event time
    ends: Numbers  # the row after each batch, growing; the last is the number of rows
    clock_us: Micros  # when each batch was planned, growing
    pauses: Numbers  # how many triggers before each batch found no row


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of splits and watermarks at one moment of the replay."""

    rows: int
    front_us: int | None  # the largest event time of a good clock
    native_us: int | None  # native Spark's watermark without a delay
    low_us: int | None  # lowmark's low watermark without a bound
    tops_us: Micros  # largest good event time of each split, by number
    spoken: Flags  # whether the split has a good event time


class Verdict:
    """The judgement of one rule over the rows, for all delays.

    Args:
        delays_us: the delays to judge, growing, whole milliseconds.
    """

    def __init__(self, delays_us: tuple[int, ...]) -> None:
        self.delays_us = delays_us
        self.dropped = np.zeros((len(delays_us), 0), np.int64)
        """Number of late rows, including rows that end before 1970, shape (delays, splits)."""
        self.needed_us = np.zeros(0, np.int64)
        """The largest delay at which a row of a split is late, shape (splits,); -1: no row is late."""
        self.kept_rows: dict[int, int] = {}
        """The largest number of rows in state at once, by delay, for the counted delays."""

    def grow(self, splits: int) -> None:
        more = splits - len(self.needed_us)
        if more > 0:
            self.dropped = np.pad(self.dropped, ((0, 0), (0, more)))
            self.needed_us = np.pad(self.needed_us, (0, more), constant_values=-1)

    def judge(self, splits: Numbers, behind_us: Micros) -> None:
        """Take in rows by the distance of their end behind the judging watermark, before a delay is taken off."""
        late = behind_us >= 0
        if not late.any():
            return
        splits, behind_us = splits[late], behind_us[late]
        np.maximum.at(self.needed_us, splits, behind_us)
        width = self.dropped.shape[1]
        for row, delay_us in enumerate(self.delays_us):
            self.dropped[row] += np.bincount(splits[behind_us >= delay_us], minlength=width)

    def keep(self, delays_us: Iterable[int], rows: Numbers) -> None:
        for delay_us, kept in zip(delays_us, rows.tolist(), strict=True):
            self.kept_rows[delay_us] = max(kept, self.kept_rows.get(delay_us, 0))

    @property
    def smallest_delay_us(self) -> int:
        """The smallest delay, whole milliseconds, at which no row from 1970 on is late."""
        needed_us = int(self.needed_us.max(initial=-1))
        return 0 if needed_us < 0 else (needed_us // MILLISECOND_US + 1) * MILLISECOND_US

    def kept_at(self, delay_us: int) -> int | None:
        """The most rows kept at once, for the nearest counted delay of at least this length; None if there is none."""
        return next((rows for at_us, rows in sorted(self.kept_rows.items()) if at_us >= delay_us), None)


class Replay:
    """Judges batch after batch.

    Args:
        splits: names of the known splits; other splits may come later.
        delays_us: the delays, or bounds, for which late rows are counted; rounded up to whole milliseconds.
        window_us: length of the query's windows; None: a row ends at its own time.
        strategy: idleness, grace, guard and so on of lowmark; its bound is not used, because all bounds are judged.
        now_us: when the replay begins, by the clock of `Batches.clock_us`.
        empty: numbers of splits that are known to have no row.
    """

    def __init__(
        self,
        splits: Sequence[str],
        *,
        delays_us: Iterable[int],
        window_us: int | None,
        strategy: WatermarkStrategy,
        now_us: int,
        empty: Iterable[int] = (),
    ) -> None:
        self._window_us = window_us
        self._strategy = replace(strategy, out_of_orderness_us=0, generator=None, timestamp_assigner=None)
        self._watermarks = SplitWatermarks(self._strategy, job_id="replay", source_id="replay", task_id="replay")
        delays = tuple(sorted({-(-us // MILLISECOND_US) * MILLISECOND_US for us in delays_us}))
        self.native, self.lowmark = Verdict(delays), Verdict(delays)
        self._native_rule, self._lowmark_rule = Rule(2), Rule(3)
        self._state_delays_us = np.array(sorted({*delays, *_STATE_DELAYS_US}), np.int64)
        self._open = OpenRows(_SECOND_US if window_us is None else window_us)
        self._tops_us, self._spoken = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        self._clock_us = now_us
        self._unsampled: list[Micros] = []
        self._samples, self._every = 0, 1
        self.names: list[str] = []
        self.rows, self.batches = 0, 0
        self.before_epoch_rows = 0  # rows that end before 1970, late for any delay
        self.moments: list[Moment] = []
        self.discover(splits, empty)

    def discover(self, splits: Sequence[str], empty: Iterable[int] = ()) -> None:
        """Add splits; their numbers continue those of the known splits. Those in ``empty`` have no row."""
        if not splits:
            return
        first = len(self.names)
        self.names.extend(splits)
        ids = tuple(range(first, len(self.names)))
        self._watermarks.handle(SplitsDiscovered(ids, frozenset(empty)), self._clock_us)
        for verdict in (self.native, self.lowmark):
            verdict.grow(len(self.names))
        self._tops_us = np.pad(self._tops_us, (0, len(splits)))
        self._spoken = np.pad(self._spoken, (0, len(splits)))

    def leave_out(self, split: int) -> None:
        """Wait no longer for a split of which no row comes."""
        self._watermarks.handle(SplitsFinished((split,)), self._clock_us)

    def take(self, batches: Batches) -> None:
        count = len(batches.ends)
        if not count:
            return
        batch_of = np.repeat(np.arange(count), np.diff(batches.ends, prepend=0))
        times_us = np.clip(batches.times_us, -_FURTHEST_US, _FURTHEST_US)
        guard_us = self._strategy.future_guard_us
        good = batches.timed
        if guard_us is not None:
            good = good & (times_us <= (batches.clock_us + guard_us)[batch_of])
        tops = _tops(batch_of, batches.splits, times_us, good, len(self.names), count)
        largest = _largest(batch_of[batches.timed], times_us[batches.timed], count)
        ends_us = times_us if self._window_us is None else (times_us // self._window_us + 1) * self._window_us
        late_us = np.full((2, count), _NEVER_US, np.int64)
        begin = 0
        for batch, end in enumerate(batches.ends.tolist()):
            clock_us = int(batches.clock_us[batch])
            self._pause(int(batches.pauses[batch]), clock_us)
            for row, rule in enumerate((self._native_rule, self._lowmark_rule)):
                rule.begin()
                late_us[row, batch] = _NEVER_US if rule.late is None else rule.late
            self._native_rule.end(largest[batch])
            self._report(tops[batch], batches.splits[begin:end], clock_us)
            self.rows += end - begin
            self.batches += 1
            self._unsampled.append(ends_us[begin:end][batches.timed[begin:end]])
            if len(self._unsampled) >= _SAMPLE_BATCHES or sum(map(len, self._unsampled)) >= _SAMPLE_ROWS:
                self._sample()
            begin = end
        self._judge(batches.splits[batches.timed], ends_us[batches.timed], batch_of[batches.timed], late_us)

    def finish(self) -> None:
        """End the replay after the last row: count the rows in state and note the progress once more."""
        if self._unsampled:
            self._sample()
        if not self.moments or self.moments[-1].rows < self.rows:
            self._remember()

    # -- how

    def _pause(self, pauses: int, clock_us: int) -> None:
        """Replay triggers that found no row: batches without data, and time in which splits may become idle."""
        for rule in (self._native_rule, self._lowmark_rule):
            rule.settle(pauses)
        if pauses and clock_us - 1 > self._clock_us:
            self._watermarks.handle(Polled(clock_us - 1), clock_us - 1)
            self._lowmark_rule.end(self._watermarks.low_watermark_us)
            self._lowmark_rule.settle(pauses - 1)
        self._clock_us = max(self._clock_us, clock_us)

    def _report(self, tops: tuple[Numbers, Micros], splits: Numbers, clock_us: int) -> None:
        spoken, tops_us = tops
        # A split with rows but without a good time delivers too, so it does not become idle.
        mute = np.setdiff1d(splits, spoken)
        rows: dict[SplitId, int] = dict.fromkeys(mute.tolist(), 1)
        watermarks = SplitColumn(spoken.astype(np.uint64), self._strategy.watermarks_of_max(tops_us))
        self._watermarks.handle(BatchReported(self.batches, clock_us, watermarks, rows=rows), clock_us)
        self._lowmark_rule.end(self._watermarks.low_watermark_us)
        known = self._spoken[spoken]
        self._tops_us[spoken] = np.where(known, np.maximum(self._tops_us[spoken], tops_us), tops_us)
        self._spoken[spoken] = True

    def _judge(self, splits: Numbers, ends_us: Micros, batch_of: Numbers, late_us: Micros) -> None:
        before_epoch = ends_us <= 0
        if before_epoch.any():
            early_rows = np.bincount(splits[before_epoch], minlength=len(self.names))
            self.before_epoch_rows += int(early_rows.sum())
            self.native.dropped += early_rows
            self.lowmark.dropped += early_rows
        for verdict, marks_us in zip((self.native, self.lowmark), late_us, strict=True):
            of_row = marks_us[batch_of]
            judged = ~before_epoch & (of_row > _NEVER_US)
            verdict.judge(splits[judged], of_row[judged] - ends_us[judged])

    def _sample(self) -> None:
        self._open.add(np.concatenate(self._unsampled))
        self._unsampled = []
        forgotten = []
        for verdict, rule in ((self.native, self._native_rule), (self.lowmark, self._lowmark_rule)):
            used_us = _NEVER_US if rule.used is None else rule.used
            verdict.keep(self._state_delays_us.tolist(), self._open.above(used_us - self._state_delays_us))
            forgotten.append(used_us - int(self._state_delays_us[-1]))
        self._open.forget(min(forgotten))
        self._samples += 1
        if self._samples % self._every == 0:
            self._remember()

    def _remember(self) -> None:
        tops_us, low_us = self._tops_us[self._spoken], self._watermarks.low_watermark_us
        front_us = int(tops_us.max()) if len(tops_us) else None
        columns = self._tops_us.copy(), self._spoken.copy()
        self.moments.append(Moment(self.rows, front_us, self._native_rule.used, low_us, *columns))
        if len(self.moments) > _MOST_MOMENTS:
            del self.moments[1::2]
            self._every *= 2


def _largest(batch_of: Numbers, times_us: Micros, count: int) -> list[int | None]:
    """The largest time of each batch as Spark keeps it, in whole milliseconds; None for a batch without a time."""
    largest: list[int | None] = [None] * count
    starts = starts_of(batch_of)
    tops_us = np.maximum.reduceat(times_us, starts) // MILLISECOND_US * MILLISECOND_US
    for batch, top_us in zip(batch_of[starts].tolist(), tops_us.tolist(), strict=True):
        largest[batch] = top_us
    return largest


def _tops(
    batch_of: Numbers, splits: Numbers, times_us: Micros, good: Flags, width: int, count: int
) -> list[tuple[Numbers, Micros]]:
    """For each batch its splits with good rows, growing, and the largest time of each split."""
    nothing = np.zeros(0, np.int64)
    made = [(nothing, nothing)] * count
    key, times_us = (batch_of * width + splits)[good], times_us[good]
    if not len(key):
        return made
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = starts_of(key)
    key, tops_us = key[starts], np.maximum.reduceat(times_us[order], starts)
    batches, firsts = key // width, starts_of(key // width)
    numbers_of, tops_of = (np.split(column, firsts[1:]) for column in (key % width, tops_us))
    for batch, numbers, tops_us in zip(batches[firsts].tolist(), numbers_of, tops_of, strict=True):
        made[batch] = numbers, tops_us
    return made
