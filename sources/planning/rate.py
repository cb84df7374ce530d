"""Limits how fast a source is read (FLIP-535): by the second, by the checkpoint, or not at all.

The user chooses a strategy, which has only numbers. Flink gives every reader a limiter with a share; here a batch
is planned for all readers at once, so a planner keeps one `RateBudget` for all its plans.

Source: `org.apache.flink.api.connector.source.util.ratelimit`, FLIP-535; the token bucket of network schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from numbers import Real

from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown

_SECOND_US = 1_000_000


class InvalidRate(LowmarkError, ValueError):
    """A rate that lets nothing through."""

    what: str  # the setting or request
    got: str  # its value, as text
    expected: str  # the accepted values
    hint: str  # what to do
    _fact = "{what}: expected {expected}, got {got}"


@dataclass(frozen=True, slots=True)
class RateLimiterStrategy:
    """How fast a whole source is read. Made by `per_second`, `per_checkpoint` or `no_op`.

    >>> RateLimiterStrategy.per_second(2.5)
    RateLimiterStrategy(second_rows=2.5, checkpoint_rows=None)
    """

    second_rows: float | None = None
    checkpoint_rows: int | None = None

    @classmethod
    def per_second(cls, rows: float) -> RateLimiterStrategy:
        """Allow at most `rows` rows in a second, more than 0, by all readers together, for any trigger."""
        given: object = rows  # users pass texts in spite of the types
        if not isinstance(given, Real) or not 0 < rows < float("inf"):
            raise InvalidRate("rows per second", shown(rows), "a number more than 0", "no_op() does not limit.")
        return cls(second_rows=rows)

    @classmethod
    def per_checkpoint(cls, rows: int) -> RateLimiterStrategy:
        """Allow at most `rows` rows, 1 or more, from one checkpoint to the next, by all readers together."""
        given: object = rows
        if not isinstance(given, Real) or not 1 <= rows < float("inf"):
            raise InvalidRate("rows per checkpoint", shown(rows), "1 or more", "no_op() does not limit.")
        return cls(checkpoint_rows=rows)

    @classmethod
    def no_op(cls) -> RateLimiterStrategy:
        return cls()


class RateBudget:
    """The number of rows that the next batch of one planner may have: a token bucket, filled by time.

    Over any time a source is read at its rate, and at most one batch's rows above its rate:

    - if a batch takes fewer rows than granted, because slices seldom fit exactly, the next batch may take the rest, up
      to the tokens of the last interval; tokens for rows that were not there to read are not saved, except for one row;
    - if a batch took more, because a step of its source is read as a whole, the next batches wait;
    - the first batch has one second's rows, because the interval of batches is still unknown. The tokens until the
      second batch count as its own: if the first batch took too many rows the next batches wait; if it took too few,
      the next batch may take up to one second's rows more.

    Counts in whole numbers, in parts of a row so small that every microsecond brings whole parts: no fraction is lost.

    >>> budget, granted = RateBudget(RateLimiterStrategy.per_second(2.5)), []
    >>> for second in range(5):
    ...     granted.append(budget.grant(second * 1_000_000))
    ...     budget.take(granted[-1], more=True)
    >>> granted
    [2, 3, 2, 3, 2]
    """

    def __init__(self, rate: RateLimiterStrategy) -> None:
        self._checkpoint_rows = rate.checkpoint_rows
        self._per_us: int | None = None
        if rate.second_rows is not None:
            # One part is 1 / (denominator * 10^6) of a row.
            self._per_us, denominator = Fraction(rate.second_rows).as_integer_ratio()
            self._row = denominator * _SECOND_US
        self._parts = 0  # less than 0 while batches wait, after a batch took more
        self._came_in = 0  # parts since the last batch
        self._at_us: int | None = None
        self._first: int | None = None  # parts that the first batch took, or could have had, before they came in

    def grant(self, now_us: int) -> int | None:
        """Return how many rows a batch planned now may have; 0: no row yet; None: any number.

        If the time goes back, no tokens come in.
        """
        if self._per_us is None:
            return self._checkpoint_rows
        if self._at_us is None:
            self._at_us, self._first = now_us, 0
            return max(1, self._per_us * _SECOND_US // self._row)
        came_in = self._per_us * max(0, now_us - self._at_us)
        if self._first is not None:
            self._parts += min(self._first, came_in)
        self._at_us, self._first = now_us, None
        self._parts += came_in
        self._came_in += came_in
        return max(0, self._parts // self._row)

    def take(self, rows: int, *, more: bool) -> None:
        """Take the rows of a batch from the budget, 0 for no batch; `more`: more rows could have been read."""
        if self._per_us is None:
            return
        self._parts -= rows * self._row
        if self._first is not None:
            self._first = rows * self._row + (self._per_us * _SECOND_US if more else 0)
            return
        self._parts = min(self._parts, max(self._row, self._came_in if more else 0))
        self._came_in = 0
