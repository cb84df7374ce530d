"""Clocks that a test or a loop can hold. None of them reads the machine's time.

The core takes ``now_us`` as an argument and owns no clock. The clock that does read time lives with the loop
that needs it.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in whole microseconds and never goes back."""

    def now_us(self) -> int:
        """The time now, microseconds."""
        ...


class VirtualClock:
    """A clock that moves only when told to.

    >>> clock = VirtualClock(now_us=5)
    >>> clock.advance(us=10)
    >>> clock.now_us()
    15
    """

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """The time now, microseconds."""
        return self._now_us

    def advance(self, *, us: int) -> None:
        """Move forward.

        Raises:
            ValueError: ``us`` is negative; time does not go back.
        """
        if us < 0:
            raise ValueError(f"time does not go back, asked to advance by {us} us")
        self._now_us += us


class PausableClock:
    """Another clock, minus the time spent paused. Pauses nest: the last ``unpause`` lets it run on.

    Silence is measured on such a clock, so that the time in which something could not be read proves nothing.

    Source: FLIP-471, Flink's ``PausableRelativeClock``.

    >>> base = VirtualClock(now_us=0)
    >>> clock = PausableClock(base)
    >>> base.advance(us=3); clock.pause(); base.advance(us=100); clock.unpause(); base.advance(us=4)
    >>> clock.now_us()
    7
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._pauses = 0
        self._paused_at_us = 0  # meaningful only while _pauses > 0
        self._lost_us = 0

    def now_us(self) -> int:
        """The base clock's time, less every microsecond spent paused."""
        reached_us = self._paused_at_us if self._pauses else self._base.now_us()
        return reached_us - self._lost_us

    def pause(self) -> None:
        """Stop, or stop once more."""
        if self._pauses == 0:
            self._paused_at_us = self._base.now_us()
        self._pauses += 1

    def unpause(self) -> None:
        """Take back one ``pause``.

        Raises:
            RuntimeError: the clock is not paused.
        """
        if self._pauses == 0:
            raise RuntimeError("the clock is not paused: every unpause() needs a pause() before it")
        self._pauses -= 1
        if self._pauses == 0:
            self._lost_us += self._base.now_us() - self._paused_at_us
