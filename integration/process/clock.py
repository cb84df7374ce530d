"""The service's clock: microseconds since the epoch that never step.

The wall clock jumps when NTP corrects it, and a jump must not make a split idle. So the wall clock is read once, and
monotonic time is added from then on. Monotonic time is the same in all processes of a host, so times of a heartbeat
reader and of the service can be compared.

Monotonic time stands still while the host sleeps, and the wall clock may be set. So a time that is compared with the
wall clock of another program, or that a person gives, needs `wall_ahead_us`.
"""

from __future__ import annotations

import time

_STEP_US = 1_000_000


def monotonic_us() -> int:
    """Monotonic time in microseconds."""
    return time.monotonic_ns() // 1_000


class SteadyClock:
    """Microseconds since the epoch, UTC, without steps in either direction.

    >>> clock = SteadyClock()
    >>> clock.now_us() <= clock.now_us()
    True
    """

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1_000 - monotonic_us()
        self._wall_ahead_us = 0

    def now_us(self) -> int:
        return monotonic_us() + self._offset_us

    def wall_ahead_us(self) -> int:
        """Return how far the wall clock is ahead of this clock, because the host slept or its clock was set.

        The value changes by steps of a second or more, because a time that is exported must not tremble.
        """
        ahead_us = time.time_ns() // 1_000 - self.now_us()
        if abs(ahead_us - self._wall_ahead_us) >= _STEP_US:
            self._wall_ahead_us = ahead_us
        return self._wall_ahead_us

    def from_monotonic_us(self, at_us: int) -> int:
        return at_us + self._offset_us

    def to_monotonic_us(self, at_us: int) -> int:
        return at_us - self._offset_us
