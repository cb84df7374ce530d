"""How fast a source may be read (FLIP-535): by the second, by the checkpoint, or as fast as it goes.

A strategy is chosen by the user and holds numbers only. Flink gives every reader a limiter with its share; here a batch
is planned for all readers at once, so a planner keeps one `RateBudget` and asks it before it plans.

Source: `org.apache.flink.api.connector.source.util.ratelimit`, FLIP-535; the token bucket of network schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lowmark.watermark import LowmarkError

__all__ = ["InvalidRate", "RateBudget", "RateLimiterStrategy"]

_SECOND_US = 1_000_000


class InvalidRate(LowmarkError, ValueError):
    """A rate that lets nothing through."""

    what: str  # the setting or request
    got: float  # its value
    expected: str  # what would have been accepted
    hint: str  # what to do
    _fact = "{what}: expected {expected}, got {got:g}"


@dataclass(frozen=True, slots=True)
class RateLimiterStrategy:
    """How fast a whole source is read. Made by `per_second`, `per_checkpoint` or `no_op`.

    Attributes:
        second_rows: rows in a second, None: not limited by time.
        checkpoint_rows: rows in a checkpoint, None: not limited by checkpoint.

    >>> RateLimiterStrategy.per_second(2.5)
    RateLimiterStrategy(second_rows=2.5, checkpoint_rows=None)
    """

    second_rows: float | None = None
    checkpoint_rows: int | None = None

    @classmethod
    def per_second(cls, rows: float) -> RateLimiterStrategy:
        """At most `rows` rows in a second, by all readers together, whatever the trigger; see `RateBudget`.

        Raises:
            InvalidRate: `rows` is 0 or less.
        """
        if not 0 < rows < float("inf"):
            raise InvalidRate("rows per second", rows, "a number more than 0", "no_op() does not limit.")
        return cls(second_rows=rows)

    @classmethod
    def per_checkpoint(cls, rows: int) -> RateLimiterStrategy:
        """At most `rows` rows from one checkpoint to the next, by all readers together.

        Raises:
            InvalidRate: `rows` is less than 1.
        """
        if rows < 1:
            raise InvalidRate("rows per checkpoint", rows, "1 or more", "no_op() does not limit.")
        return cls(checkpoint_rows=rows)

    @classmethod
    def no_op(cls) -> RateLimiterStrategy:
        """As fast as it goes."""
        return cls()


class RateBudget:
    """How many rows the next batch of one planner may have: a token bucket, filled by time, emptied by batches.

    Over any time a source is read at its rate, and never by more than one batch's rows above it:

    - what a batch was granted and did not take, because slices seldom fit exactly, is there for the next one, up to as
      much as came in since the batch before; what was not there to be read is not saved up, one row apart;
    - a batch that took more, because a step of its source is read as a whole, is waited for;
    - the first batch, when nobody knows yet how often batches come, has a second's rows. As much as comes in until the
      next one should have been its own: what it took beyond that is waited for, and of what it lacks the next one has
      up to a second's rows.

    Counts in whole numbers, in parts of a row so small that a microsecond brings some: no fraction is lost.

    Args:
        rate: how fast.

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
        self._parts = 0  # less than 0 while a batch that took more is waited for
        self._came_in = 0  # parts since the batch before
        self._at_us: int | None = None
        self._first: int | None = None  # parts that the first batch took, or should have had, of what had not come in

    def grant(self, now_us: int) -> int | None:
        """Return how many rows a batch that is planned now may have; 0: none yet; None: any number.

        Args:
            now_us: the time, microseconds. Where it goes back, nothing comes in.
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
        """Say what a batch takes.

        Args:
            rows: its rows; 0 for no batch.
            more: whether rows are left that might have been read.
        """
        if self._per_us is None:
            return
        self._parts -= rows * self._row
        if self._first is not None:
            self._first = rows * self._row + (self._per_us * _SECOND_US if more else 0)
            return
        self._parts = min(self._parts, max(self._row, self._came_in if more else 0))
        self._came_in = 0
