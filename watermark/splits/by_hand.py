"""Splits that a person has left out of the minimum: by whom, and until when.

A split that is left out by hand is IDLE, and neither rows that wait in it nor, before its time is over, rows that are
read bring it back. So the hour of a dead device can close without another strategy and without a restart. The mark is a
part of the snapshot, and survives what the snapshot survives.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.watermark.moment import format_time_us


@dataclass(frozen=True, slots=True)
class IdleMark:
    """One split's mark, by a person, with its begin on the clock of ``handle``, and its end on the wall clock.

    Without an end the mark ends with the first row of a batch that was planned after ``since_us``.

    >>> print(IdleMark("anna", 0, None)); print(IdleMark("anna", 0, 3_600_000_000))
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
