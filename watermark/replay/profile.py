"""Counts the rows of one split in the order of reading, without batches.

A time beyond the guard comes from a bad clock: it is counted, and makes no other row late. A time before 1970 is
late in Spark for any delay, so it is counted apart, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from lowmark.watermark.lateness import LatenessHistogram, Micros

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which a split had no row."""

    since_us: int = 0  # when the last row before the silence was written
    length_us: int = 0


@dataclass(slots=True)
class SplitProfile:
    """Counts of one split.

    >>> profile = SplitProfile()
    >>> times = np.array([10, 30, 20, 999, 40]) * 1_000_000
    >>> profile.add(times, np.array([True] * 5), latest_us=np.full(5, 100_000_000), written_us=times)
    >>> profile.rows, profile.future_rows, profile.last_us, profile.disorder.largest_us
    (5, 1, 40000000, 10000000)
    """

    rows: int = 0
    null_rows: int = 0
    unreadable_rows: int = 0  # with a value that is no event time
    before_epoch_rows: int = 0
    future_rows: int = 0
    first_us: int | None = None  # smallest and largest event time of the good rows
    last_us: int | None = None
    disorder: LatenessHistogram = field(default_factory=LatenessHistogram)  # distance behind the largest time before
    written_us: tuple[int, int] | None = None  # when the first and the newest row were written
    silence: Silence = Silence()
    furthest_future_us: int = 0  # how far the furthest future row is ahead of the clock

    def add(self, times_us: Micros, timed: Flags, *, latest_us: Micros, written_us: Micros | None = None) -> None:
        """Take in rows of the split in the order in which they are read.

        Args:
            times_us: event times, shape (n,), like all arguments.
            timed: whether each row has an event time; the caller counts rows without one.
            latest_us: the guard of each row: a later time comes from a bad clock.
            written_us: when each row was written, or None.
        """
        self.rows += len(times_us)
        if written_us is not None:  # a producer's clock may be ahead, and -1 ms is a record without a time
            self._see_silence(written_us[(written_us >= 0) & (written_us <= latest_us)])
        future = timed & (times_us > latest_us)
        early = timed & (times_us < 0)
        self.future_rows += int(future.sum())
        self.before_epoch_rows += int(early.sum())
        if future.any():
            self.furthest_future_us = max(self.furthest_future_us, int((times_us - latest_us)[future].max()))
        good = times_us[timed & ~future & ~early]
        if not len(good):
            return
        before = np.maximum.accumulate(np.append(good[0] if self.last_us is None else self.last_us, good))
        self.disorder.add(before[:-1] - good)
        first = int(good.min())
        self.first_us = first if self.first_us is None else min(first, self.first_us)
        self.last_us = int(before[-1])

    def _see_silence(self, written_us: Micros) -> None:
        if not len(written_us):
            return
        before = written_us[:1] if self.written_us is None else np.array([self.written_us[1]], np.int64)
        all_us = np.maximum.accumulate(np.concatenate((before, written_us)))
        gaps = np.diff(all_us)
        longest = int(gaps.argmax())
        if gaps[longest] > self.silence.length_us:
            self.silence = Silence(int(all_us[longest]), int(gaps[longest]))
        first = int(all_us[0]) if self.written_us is None else self.written_us[0]
        self.written_us = first, int(all_us[-1])
