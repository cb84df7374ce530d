"""The watermarks that judge the rows of a batch, native Spark's and lowmark's, as Spark 4 puts them in force.

Spark takes two watermarks into a batch. The watermark of the previous batch decides which rows are late, the watermark
of this batch decides which state is given up, and the rows of this batch make the next watermark:

                     late rows by         state by             makes
    native, batch n  the maximum of n-2   the maximum of n-1   the maximum of all to n
    lowmark, batch n the minimum of n-3   the minimum of n-2   the heartbeat of n+1

When a watermark rose that no batch has used, a batch without rows runs, so a pause brings both up to date: natively
with one empty trigger, under lowmark with two, because its heartbeat comes first. No delay is taken off these values: a
delay is the same for every batch, so one replay answers for all delays.

Source: Spark's ``WatermarkTracker`` and ``WatermarkPropagator`` (4.2), with
``spark.sql.streaming.statefulOperator.allowMultiple``; ``numRowsDroppedByWatermark``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NativeRule:
    """One watermark for all rows: the largest event time of all splits, in any unit.

    >>> rule = NativeRule()
    >>> for largest in (10, 50, 30):
    ...     rule.begin(); rule.late, rule.used; rule.end(largest)
    (None, None)
    (None, 10)
    (10, 50)
    >>> rule.settle(pauses=1); rule.begin(); rule.late
    50
    """

    late: int | None = None
    used: int | None = None
    _next: int | None = None

    def settle(self, pauses: int) -> None:
        """Replay a number of triggers that find no row."""
        if pauses > 0:
            self.used = self._next

    def begin(self) -> None:
        self.late, self.used = self.used, self._next

    def end(self, largest: int | None) -> None:
        """End the batch, with its largest time; None if it had no time."""
        if largest is not None and (self._next is None or largest > self._next):
            self._next = largest


@dataclass(slots=True)
class HeartbeatRule:
    """A low watermark that a heartbeat carries into the batch after the batch that made it.

    >>> rule = HeartbeatRule()
    >>> for low in (10, 50, 60, 70):
    ...     rule.begin(); rule.late, rule.used; rule.end(low)
    (None, None)
    (None, None)
    (None, 10)
    (10, 50)
    >>> rule.settle(pauses=1); rule.begin(); rule.late
    60
    """

    late: int | None = None
    used: int | None = None
    _next: int | None = None
    _low: int | None = None

    def settle(self, pauses: int) -> None:
        """Replay a number of triggers that find no row: the first runs the heartbeat, the second puts it in force."""
        for _ in range(min(pauses, 2)):
            self.used, self._next = self._next, self._low

    def begin(self) -> None:
        self.late, self.used, self._next = self.used, self._next, self._low

    def end(self, low: int | None) -> None:
        """End the batch, or a trigger, with the low watermark after it."""
        self._low = low
