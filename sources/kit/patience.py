"""Asks a system again until it answers, by one rule for all systems: say it once, pause longer each time, give up."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from lowmark.watermark.errors import without_login

log = logging.getLogger("lowmark")

SAY_AFTER_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
# A shorter rest of the time is no pause: added to a clock in float seconds, it may leave the clock where it is.
_LEAST_PAUSE_SECONDS = 1e-6


class Patience:
    """How long one question is asked again. Make one for each question; not for several threads.

    Args:
        system: the system and its place, such as "Kafka at broker:9092".
        action: the purpose of the question, completing "cannot ...".
        seconds: how long all attempts may take.
        say_after_seconds: the log names a question that has no answer after this time, once.
        longest_pause_seconds: pauses begin at 0.1 seconds and double up to this one.
        jitter: whether a pause has a random length up to its full one, so that clients which were refused together do
            not come back together.
        pause: waits a number of seconds; returns True to give up at once.

    >>> clock, pauses = [0.0], []
    >>> def pause(seconds):
    ...     pauses.append(round(seconds, 1))
    ...     clock[0] += seconds
    >>> patience = Patience("Redis at shop:6379", "read orders", 2.0, now_seconds=lambda: clock[0], pause=pause)
    >>> while patience.goes_on("connection refused"):
    ...     pass
    >>> pauses, round(patience.spent_seconds, 1)
    ([0.1, 0.2, 0.4, 0.8, 0.5], 2.0)
    """

    def __init__(
        self,
        system: str,
        action: str,
        seconds: float,
        *,
        say_after_seconds: float = SAY_AFTER_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
        jitter: bool = False,
        now_seconds: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._system, self._action, self._seconds = without_login(system), action, seconds
        self._say_after_seconds, self._longest_pause_seconds = say_after_seconds, longest_pause_seconds
        self._jitter, self._now_seconds, self._pause = jitter, now_seconds, pause
        self._said = False
        self.renew()

    @property
    def spent_seconds(self) -> float:
        """Seconds since the question was first asked, or since the last part of its answer."""
        return self._now_seconds() - self._began_seconds

    @property
    def left_seconds(self) -> float:
        """Seconds for further attempts; 0 or less: the time is over."""
        return self._seconds - self.spent_seconds

    def renew(self) -> None:
        """Begin again, because a part of the answer came."""
        self._began_seconds, self._pause_seconds = self._now_seconds(), FIRST_PAUSE_SECONDS

    def goes_on(self, cause: str) -> bool:
        """Pause after an attempt without an answer, or return False if the question is given up.

        `cause` says, without secrets, why there is no answer.
        """
        spent = self.spent_seconds
        if self._seconds - spent < _LEAST_PAUSE_SECONDS:
            return False
        if spent >= self._say_after_seconds and not self._said:
            self._said = True
            log.warning(
                "%s: cannot %s for %.0f seconds by now, and tries again for %g seconds in all: %s",
                self._system, self._action, spent, self._seconds, without_login(cause),
            )  # fmt: skip
        pause_seconds = random.uniform(0.0, self._pause_seconds) if self._jitter else self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, self._longest_pause_seconds)
        return not self._pause(min(pause_seconds, self._seconds - spent))
