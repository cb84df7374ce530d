"""Which watermark judges the rows of a batch: native Spark's and lowmark's, as Spark 4 puts them in force.

Spark takes two watermarks into a batch. Rows are late by the one of the batch before, state is given up by the one of
this batch, and what the batch shows makes the next one:

                     late rows by         state by             makes
    native, batch n  the maximum of n-2   the maximum of n-1   the maximum of all to n
    lowmark, batch n the minimum of n-3   the minimum of n-2   the heartbeat of n+1

A batch without rows runs when a watermark rose that no batch has used, so a pause brings both up to date: with one
empty trigger natively, with two under lowmark, whose heartbeat comes first. Values here have no delay taken off yet: a
delay is the same for every batch, so one replay answers for all delays.

Source: Spark's ``WatermarkTracker`` and ``WatermarkPropagator`` (4.2), with
``spark.sql.streaming.statefulOperator.allowMultiple``; ``numRowsDroppedByWatermark``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NativeRule:
    """One watermark of all rows: the largest event time, whichever split it is of. Any one unit.

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
        """So many triggers find no row."""
        if pauses > 0:
            self.used = self._next

    def begin(self) -> None:
        """A batch with rows begins."""
        self.late, self.used = self.used, self._next

    def end(self, largest: int | None) -> None:
        """The batch is over; None: it had no row with a time."""
        if largest is not None and (self._next is None or largest > self._next):
            self._next = largest


@dataclass(slots=True)
class HeartbeatRule:
    """A low watermark that a heartbeat carries into the batch after the one that made it.

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
        """So many triggers find no row: the first runs the heartbeat, the second puts it in force."""
        for _ in range(min(pauses, 2)):
            self.used, self._next = self._next, self._low

    def begin(self) -> None:
        """A batch with rows begins."""
        self.late, self.used, self._next = self.used, self._next, self._low

    def end(self, low: int | None) -> None:
        """The batch is over, or a trigger; this is the low watermark."""
        self._low = low
