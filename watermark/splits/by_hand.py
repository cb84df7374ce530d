"""Splits that a person has left out of the minimum: by whom, and until when.

A split that is left out by hand is IDLE, and neither rows that wait in it nor, before its time is over, rows that are
read bring it back. So the hour of a dead device can close without another strategy and without a restart. The mark is a
part of the snapshot, and survives what the snapshot survives.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.watermark.moment import format_time_us
from lowmark.watermark.state import SplitId, split_order


@dataclass(frozen=True, slots=True)
class Mark:
    """One split's mark, by a person, with its begin on the clock of ``handle``, and its end on the wall clock.

    Without an end the mark ends with the first row of a batch that was planned after ``since_us``.

    >>> print(Mark("anna", 0, None)); print(Mark("anna", 0, 3_600_000_000))
    left out by hand by anna until it speaks
    left out by hand by anna until 1970-01-01 01:00:00.000 UTC
    """

    by: str
    since_us: int
    until_us: int | None

    def ends_with(self, planned_at_us: int) -> bool:
        return self.until_us is None and planned_at_us > self.since_us

    def __str__(self) -> str:
        ends = "it speaks" if self.until_us is None else format_time_us(self.until_us)
        return f"left out by hand by {self.by} until {ends}"


class Marks(dict[SplitId, Mark]):
    """The marks of a stream.

    >>> marks = Marks({"a": Mark("anna", 0, 10), "b": Mark("anna", 0, None)})
    >>> marks.next_us, marks.over(9), marks.over(10)
    (10, [], ['a'])
    """

    @property
    def next_us(self) -> int | None:
        """When the first mark ends by time; None: no mark does."""
        return min((mark.until_us for mark in self.values() if mark.until_us is not None), default=None)

    def over(self, wall_us: int) -> list[SplitId]:
        """The splits whose time is over, sorted."""
        over = (split for split, mark in self.items() if mark.until_us is not None and mark.until_us <= wall_us)
        return sorted(over, key=split_order)
