"""Bounds of the service's time from the Date of its answers, independent of the driver's wall clock.

Kinesis refuses a time in its future, and clocks of drivers are often some seconds wrong. An answer gives the
service's time in whole seconds, written after the question was sent and before the answer arrived. So the service's
time is at least that second plus the time since the arrival, and at most the end of that second plus the time since
the question. Answers at different parts of a second narrow both bounds.
"""

from __future__ import annotations

WINDOW_MS = 60_000
"""Bounds come from the answers of the last two windows of this length, because clocks run at different speeds."""


class ServiceClock:
    """Bounds of the service's time, milliseconds since the epoch. The own clock counts milliseconds, too."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._window: tuple[int, int] | None = None  # least and largest lead of the service over the own clock
        self._before: tuple[int, int] | None = None

    def hear(self, date_ms: int, *, asked_ms: int, answered_ms: int) -> None:
        """Take in the Date of an answer, in whole seconds; the own times are of a clock that never goes back."""
        window = self._window
        if self._began_ms is None or answered_ms >= self._began_ms + WINDOW_MS:
            self._before, self._began_ms, window = window, answered_ms, None
        least, most = date_ms - answered_ms, date_ms + 1_000 - asked_ms
        if window is not None:
            narrow = max(least, window[0]), min(most, window[1])
            # If the bounds contradict each other, a clock was set, and the newest answer counts.
            least, most = narrow if narrow[0] <= narrow[1] else (least, most)
        self._window = least, most

    def bounds_ms(self, *, at_ms: int) -> tuple[int, int] | None:
        """A time that is not in the service's future, and one that is not in its past; None before the first answer."""
        if self._window is None:
            return None
        least, most = self._window
        least_before, most_before = self._window if self._before is None else self._before
        earliest = max(least, least_before) if least_before <= most else least
        latest = min(most, most_before) if most_before >= least else most
        return at_ms + earliest, at_ms + latest
