"""Which partitions of a table are over, and which of them are still to be marked. Pure: no clock, thread or file.

A partition is a number n, the times from n * width to (n + 1) * width. It is passed once the sink is complete until its
end and the delay. A passed partition that has rows is marked, the smallest first; a partition without rows is passed
over and named. Rows of a partition below the last marked one are late.

If batches are missing (a kill between a commit and its report, or a batch without a measurement), partitions of that
time may have rows that no report names. The mark of such a partition says that the rows are not known. After a row with
a time of 1970, all hours since 1970 can be such partitions, so only the newest hours are marked one by one, and one
mark stands for all earlier hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

import msgspec
from lowmark.watermark.moment import none_first, us_of, utc
from sortedcontainers import SortedSet

_YEAR_1_US = us_of(datetime.min.replace(tzinfo=timezone.utc))
_MOST_ONE_BY_ONE = 10_000
"""Partitions in a row whose rows are not known; a year of hours, a week of minutes."""


def has_times(number: int, width_us: int) -> bool:
    """Return whether a partition has a start and an end as datetimes, which a mark needs.

    >>> has_times(0, 3_600_000_000), has_times(-20_000_000, 3_600_000_000)
    (True, False)
    """
    return utc(number * width_us) is not None and utc((number + 1) * width_us) is not None


class Kept(msgspec.Struct, frozen=True):
    """The state that a crash must not take away."""

    width_us: int  # length of a partition, which the numbers count
    batch_id: int = -1  # the newest batch that was taken; the batches begin with 0
    open: tuple[int, ...] = ()  # numbers of partitions that have rows and are not marked, sorted
    next: int | None = None  # every partition before it is marked or was passed over; None before the first mark
    until_us: int | None = None  # the sink was complete until this time after the batch; None: not known
    unsure: tuple[int, int] | None = None  # first and last partition whose rows are not known


class Due(msgspec.Struct, frozen=True):
    """A partition that is to be marked now."""

    number: int
    has_rows: bool
    empty: tuple[int, int] | None = None  # first and last partition without rows since the mark before
    since: int | None = None  # the mark stands for all from this one to `number`, whose rows are not known


class Partitions:
    """The partitions of one query.

    Args:
        kept: the state to begin with.
        delay_us: time after the end of a partition before it is passed.
    """

    def __init__(self, kept: Kept, delay_us: int) -> None:
        self._width_us, self._delay_us = kept.width_us, delay_us
        self._first = -(-_YEAR_1_US // kept.width_us)  # the first partition with a start as a datetime
        self.batch_id, self._next, self._unsure = kept.batch_id, kept.next, kept.unsure  # as in `Kept`
        self._open: SortedSet[int] = SortedSet(kept.open)
        self.until_us = kept.until_us
        self._acting: int | None = None  # the partition whose mark has begun

    @property
    def kept(self) -> Kept:
        """The state to begin again from. O(n) in the open partitions."""
        return Kept(self._width_us, self.batch_id, tuple(self._open), self._next, self.until_us, self._unsure)

    def report(
        self, batch_id: int, rows: Mapping[int, int] | None, *, until_us: int | None, now_us: int
    ) -> dict[int, int]:
        """Take a committed batch, once, and return its rows of partitions that were marked before.

        Args:
            rows: number of rows of each partition; None: not measured.
            until_us: the sink is complete until this time, this batch included; None: not known.
            now_us: now, by the wall clock; rows from beyond are those of bad clocks.
        """
        if batch_id <= self.batch_id:
            return {}
        if batch_id != self.batch_id + 1 or rows is None:
            # The sink had rows up to that time, so a clock before it was set back.
            self._miss(rows or {}, max([now_us, *(us for us in (self.until_us, until_us) if us is not None)]))
        self.until_us = max(self.until_us, until_us, key=none_first)
        self.batch_id = batch_id
        late = {number: count for number, count in (rows or {}).items() if self._is_late(number)}
        self._open |= {number for number in rows or {} if number not in late}
        return late

    @property
    def _passed(self) -> int | None:
        return None if self.until_us is None else (self.until_us - self._delay_us) // self._width_us - 1

    def _miss(self, rows: Mapping[int, int], now_us: int) -> None:
        """Note that partitions may have rows that no report tells of: from the first one that was not passed before."""
        last = now_us // self._width_us
        if self._next is not None:
            first = self._next
        elif self._passed is not None:
            first = self._passed + 1
        else:  # rows of before the first low watermark; nothing says how far back they go
            first = min([*self._open, *rows], default=last)
        if self._unsure is not None:
            first, last = min(first, self._unsure[0]), max(last, self._unsure[1])
        self._unsure = (first, last) if first <= last else None

    def begins_with_a_gap(self, batch_id: int) -> bool:
        """Whether batches before this one are missing, and nothing says how old their rows may be."""
        return self.batch_id == -1 and batch_id > 0 and self.until_us is None

    def _is_late(self, number: int) -> bool:
        return (self._next is not None and number < self._next) or (self._acting is not None and number <= self._acting)

    def due(self) -> Due | None:
        """Return the partition to be marked next, None if none is due. It stays due until it is marked."""
        passed = self._passed
        if passed is None:
            return None
        number = self._open[0] if self._open and self._open[0] <= passed else None
        has_rows, since = number is not None, None
        if self._unsure is not None:
            first = max(self._unsure[0], self._first if self._next is None else self._next)
            last = min(self._unsure[1], passed if number is None else number - 1)
            if first <= last:
                has_rows, number = False, max(first, last - _MOST_ONE_BY_ONE)
                since = None if number == first else first
        if number is None:
            return None
        self._acting, begin = number, number if since is None else since
        empty = None if self._next is None or self._next >= begin else (self._next, begin - 1)
        return Due(number, has_rows, empty, since)

    def mark(self, number: int) -> None:
        """Count the due partition and all earlier ones as marked."""
        self._open.discard(number)
        self._next, self._acting = number + 1, None
        if self._unsure is not None and self._unsure[1] <= number:
            self._unsure = None
