"""The replay: rows in batches, and what native Spark and lowmark would have made of each of them.

The reader of the rows cuts the batches; here is only what follows. A row is late when its window is over, or itself
where there is no window, by the watermark that `rules.py` puts in force. Lowmark's minimum is made by the coordinator
that makes it in a query, so idleness, guard and all are what they are there.

Rows are held for no longer than a call, and counts are by split, delay and bucket: memory is bounded whatever comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.splits.events import BatchReported, Polled, SplitColumn, SplitsDiscovered
from lowmark.watermark.splits.stream import StreamCoordinator
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import WatermarkStrategy

from .open_rows import OpenRows
from .rules import HeartbeatRule, NativeRule

Micros = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SECOND_US = 1_000_000
# So far on both sides nothing overflows: the years -71,000 to 75,000.
_FURTHEST_US = 1 << 61
# What a query keeps in state is asked for these, too: one of them is near the smallest delay without a loss.
_STATE_DELAYS_US = tuple(
    seconds * _SECOND_US
    for seconds in (0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200)
) + tuple(days * 86_400 * _SECOND_US for days in (1, 2, 5, 10, 20, 50, 100, 200, 400))
_NEVER_US = -(1 << 62)  # no watermark yet, among arrays
_SAMPLE_ROWS = 4_096
_SAMPLE_BATCHES = 64
_MOST_MOMENTS = 256


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows of some batches, one batch after the other.

    Attributes:
        splits: number of the split of each row, shape (n,).
        times_us: event times, microseconds since the epoch, shape (n,).
        timed: which of them are times at all, shape (n,).
        ends: where each batch ends among the rows, growing, shape (b,); the last is n.
        clock_us: when each batch was planned, growing, shape (b,).
        pauses: how many triggers before each batch found no row, shape (b,).
    """

    splits: Numbers
    times_us: Micros
    timed: Flags
    ends: Numbers
    clock_us: Micros
    pauses: Numbers


@dataclass(frozen=True, slots=True)
class Moment:
    """How far everybody was at one moment of the replay.

    Attributes:
        rows: rows read by then.
        front_us: the largest event time of a good clock.
        native_us: native Spark's watermark without a delay, None before the first.
        low_us: lowmark's without a bound, None before the first.
        tops_us: largest good event time of each split, by number.
        spoken: which splits have one.
    """

    rows: int
    front_us: int | None
    native_us: int | None
    low_us: int | None
    tops_us: Micros
    spoken: Flags


@dataclass(slots=True)
class Verdict:
    """What one rule makes of the rows, whatever the delay.

    Attributes:
        delays_us: the delays asked for, growing, whole milliseconds.
        dropped: rows that are late, shape (delays, splits).
        needed_us: the largest delay at which a row of a split is late, shape (splits,); -1: none ever is.
        kept_rows: rows in state at most at once, by delay, as far as it was looked.
        before_epoch_rows: rows that end before 1970 does, late whatever the delay, shape (splits,).
    """

    delays_us: tuple[int, ...]
    dropped: Numbers
    needed_us: Micros
    kept_rows: dict[int, int] = field(default_factory=dict)
    before_epoch_rows: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def new(cls, delays_us: tuple[int, ...]) -> Verdict:
        """Nothing judged yet."""
        return cls(delays_us, np.zeros((len(delays_us), 0), np.int64), np.zeros(0, np.int64))

    def grow(self, splits: int) -> None:
        """Have a place for so many splits."""
        more = splits - len(self.needed_us)
        if more > 0:
            self.dropped = np.pad(self.dropped, ((0, 0), (0, more)))
            self.needed_us = np.pad(self.needed_us, (0, more), constant_values=-1)
            self.before_epoch_rows = np.pad(self.before_epoch_rows, (0, more))

    def judge(self, splits: Numbers, behind_us: Micros) -> None:
        """Take in rows: how far the end of each lies behind the watermark that judges it, with no delay taken off."""
        late = behind_us >= 0
        if not late.any():
            return
        splits, behind_us = splits[late], behind_us[late]
        np.maximum.at(self.needed_us, splits, behind_us)
        width = self.dropped.shape[1]
        for row, delay_us in enumerate(self.delays_us):
            self.dropped[row] += np.bincount(splits[behind_us >= delay_us], minlength=width)

    def keep(self, delays_us: Iterable[int], rows: Numbers) -> None:
        """Take in how many rows are in state at some moment."""
        for delay_us, kept in zip(delays_us, rows.tolist(), strict=True):
            self.kept_rows[delay_us] = max(kept, self.kept_rows.get(delay_us, 0))

    def dropped_at(self, delay_us: int) -> Numbers:
        """Rows of each split that are late at one of the delays, those before 1970 among them, shape (splits,)."""
        dropped: Numbers = self.dropped[self.delays_us.index(delay_us)] + self.before_epoch_rows
        return dropped

    @property
    def smallest_delay_us(self) -> int:
        """The smallest delay, whole milliseconds, at which no row from 1970 on is late."""
        needed_us = int(self.needed_us.max(initial=-1))
        return 0 if needed_us < 0 else (needed_us // MILLISECOND_US + 1) * MILLISECOND_US

    def kept_at(self, delay_us: int) -> int | None:
        """Rows kept at most with this delay: of the nearest longer one that was looked at; None beyond them."""
        return next((rows for at_us, rows in sorted(self.kept_rows.items()) if at_us >= delay_us), None)


class Replay:
    """Judges batch after batch.

    Args:
        splits: names of those that are known to exist; others may come later.
        delays_us: the delays, and bounds, to count late rows for; rounded up to whole milliseconds.
        window_us: length of the query's windows; None: a row is over when it is.
        strategy: idleness, grace, guard and so on of lowmark; its bound is no part of it, as it is asked for all.
        now_us: when the replay begins, by the clock of `Batches.clock_us`.
        empty: numbers of splits that are known to have no row.

    >>> replay = Replay(["a", "b"], delays_us=[0, 5_000_000], window_us=None, strategy=WatermarkStrategy(), now_us=0)
    >>> seconds = np.array([10, 10, 20, 12, 30, 13])     # a is on time, b is behind: batches of two
    >>> replay.take(Batches(np.array([0, 1] * 3), seconds * 1_000_000, np.array([True] * 6), np.array([2, 4, 6]),
    ...                     np.array([20, 30, 40]) * 1_000_000, np.zeros(3, np.int64)))
    >>> replay.native.dropped.tolist(), replay.native.smallest_delay_us, replay.lowmark.dropped.tolist()
    ([[0, 0], [0, 0]], 0, [[0, 0], [0, 0]])
    >>> more = np.array([40, 14])
    >>> replay.take(Batches(np.array([0, 1]), more * 1_000_000, np.array([True] * 2), np.array([2]),
    ...                     np.array([50_000_000]), np.zeros(1, np.int64)))
    >>> replay.native.dropped.tolist(), replay.native.smallest_delay_us, replay.lowmark.dropped.tolist()
    ([[0, 1], [0, 1]], 6001000, [[0, 0], [0, 0]])
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
        self._coordinator = StreamCoordinator(self._strategy, job_id="replay", source_id="replay", task_id="replay")
        delays = tuple(sorted({-(-us // MILLISECOND_US) * MILLISECOND_US for us in delays_us}))
        self.native, self.lowmark = Verdict.new(delays), Verdict.new(delays)
        self._native, self._lowmark = NativeRule(), HeartbeatRule()
        self._state_delays_us = np.array(sorted({*delays, *_STATE_DELAYS_US}), np.int64)
        self._open = OpenRows(_SECOND_US if window_us is None else window_us)
        self._tops_us, self._spoken = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        self._clock_us = now_us
        self._unsampled: list[Micros] = []
        self._samples, self._every = 0, 1
        self.names: list[str] = []
        self.rows, self.batches = 0, 0
        self.moments: list[Moment] = []
        self.discover(splits, empty)

    def discover(self, splits: Sequence[str], empty: Iterable[int] = ()) -> None:
        """Splits that exist besides those that are known; their numbers go on from those.

        Args:
            splits: their names.
            empty: numbers of those that have no row.
        """
        if not splits:
            return
        first = len(self.names)
        self.names.extend(splits)
        ids = tuple(range(first, len(self.names)))
        self._coordinator.handle(SplitsDiscovered(ids, frozenset(empty)), self._clock_us)
        for verdict in (self.native, self.lowmark):
            verdict.grow(len(self.names))
        self._tops_us = np.pad(self._tops_us, (0, len(splits)))
        self._spoken = np.pad(self._spoken, (0, len(splits)))

    def take(self, batches: Batches) -> None:
        """Judge some batches, each after those before it."""
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
            self._native.begin()
            self._lowmark.begin()
            for row, late in enumerate((self._native.late, self._lowmark.late)):
                late_us[row, batch] = _NEVER_US if late is None else late
            self._native.end(largest[batch])
            self._report(tops[batch], batches.splits[begin:end], clock_us)
            self.rows, self.batches = self.rows + end - begin, self.batches + 1
            self._unsampled.append(ends_us[begin:end][batches.timed[begin:end]])
            self._sample()
            begin = end
        self._judge(batches.splits[batches.timed], ends_us[batches.timed], batch_of[batches.timed], late_us)

    def finish(self) -> None:
        """The last row was taken: what is in state, and where everybody is, is looked at once more."""
        if self._unsampled:
            self._look()
        if not self.moments or self.moments[-1].rows < self.rows:
            self._remember()

    # -- how

    def _pause(self, pauses: int, clock_us: int) -> None:
        """Triggers that found no row: batches without data, and time in which splits may become idle."""
        for rule in (self._native, self._lowmark):
            rule.settle(pauses)
        if pauses and clock_us - 1 > self._clock_us:
            self._coordinator.handle(Polled(clock_us - 1), clock_us - 1)
            self._lowmark.end(self._coordinator.low_watermark_us)
            self._lowmark.settle(pauses - 1)
        self._clock_us = max(self._clock_us, clock_us)

    def _report(self, tops: tuple[Numbers, Micros], splits: Numbers, clock_us: int) -> None:
        spoken, tops_us = tops
        # A split whose rows have no good time delivers all the same: it is not idle.
        mute = np.setdiff1d(splits, spoken)
        rows: dict[SplitId, int] = dict.fromkeys(mute.tolist(), 1)
        watermarks = SplitColumn(spoken.astype(np.uint64), self._strategy.watermarks_of_max(tops_us))
        self._coordinator.handle(BatchReported(self.batches, clock_us, watermarks, rows=rows), clock_us)
        self._lowmark.end(self._coordinator.low_watermark_us)
        known = self._spoken[spoken]
        self._tops_us[spoken] = np.where(known, np.maximum(self._tops_us[spoken], tops_us), tops_us)
        self._spoken[spoken] = True

    def _judge(self, splits: Numbers, ends_us: Micros, batch_of: Numbers, late_us: Micros) -> None:
        before_epoch = ends_us <= 0
        for verdict, marks_us in zip((self.native, self.lowmark), late_us, strict=True):
            verdict.before_epoch_rows += np.bincount(splits[before_epoch], minlength=len(self.names))
            of_row = marks_us[batch_of]
            judged = ~before_epoch & (of_row > _NEVER_US)
            verdict.judge(splits[judged], of_row[judged] - ends_us[judged])

    def _sample(self) -> None:
        """Every some thousand rows, or some dozen batches."""
        if len(self._unsampled) >= _SAMPLE_BATCHES or sum(map(len, self._unsampled)) >= _SAMPLE_ROWS:
            self._look()

    def _look(self) -> None:
        self._open.add(np.concatenate(self._unsampled))
        self._unsampled = []
        forgotten = []
        for verdict, rule in ((self.native, self._native), (self.lowmark, self._lowmark)):
            used_us = _NEVER_US if rule.used is None else rule.used
            verdict.keep(self._state_delays_us.tolist(), self._open.above(used_us - self._state_delays_us))
            forgotten.append(used_us - int(self._state_delays_us[-1]))
        self._open.forget(min(forgotten))
        self._samples += 1
        if self._samples % self._every == 0:
            self._remember()

    def _remember(self) -> None:
        tops_us = self._tops_us[self._spoken]
        native_us = self._native.used
        front_us = int(tops_us.max()) if len(tops_us) else None
        low_us = self._coordinator.low_watermark_us
        here = Moment(self.rows, front_us, native_us, low_us, self._tops_us.copy(), self._spoken.copy())
        self.moments.append(here)
        if len(self.moments) > _MOST_MOMENTS:
            del self.moments[1::2]
            self._every *= 2


def _largest(batch_of: Numbers, times_us: Micros, count: int) -> list[int | None]:
    """The largest time of each batch as Spark keeps it, in whole milliseconds; None: it has no row with a time."""
    largest: list[int | None] = [None] * count
    if len(batch_of):
        starts = np.flatnonzero(np.concatenate(([True], batch_of[1:] != batch_of[:-1])))
        tops_us = np.maximum.reduceat(times_us, starts) // MILLISECOND_US * MILLISECOND_US
        for batch, top_us in zip(batch_of[starts].tolist(), tops_us.tolist(), strict=True):
            largest[batch] = top_us
    return largest


def _tops(
    batch_of: Numbers, splits: Numbers, times_us: Micros, good: Flags, width: int, count: int
) -> list[tuple[Numbers, Micros]]:
    """For each batch its splits with good rows, growing, and the largest time of each."""
    nothing = np.zeros(0, np.int64)
    made = [(nothing, nothing)] * count
    key, times_us = (batch_of * width + splits)[good], times_us[good]
    if not len(key):
        return made
    order = np.argsort(key, kind="stable")
    key, times_us = key[order], times_us[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    tops_us, key = np.maximum.reduceat(times_us, starts), key[starts]
    batches, numbers = key // width, key % width
    firsts = np.flatnonzero(np.concatenate(([True], batches[1:] != batches[:-1])))
    for first, after in zip(firsts.tolist(), [*firsts[1:].tolist(), len(key)], strict=True):
        made[int(batches[first])] = (numbers[first:after], tops_us[first:after])
    return made
