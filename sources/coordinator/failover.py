"""Decides how often a failed enumerator is restored, and after which pause."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

from lowmark.watermark import InvalidStrategy, LowmarkError, duration_us


class SuppressRestarts(LowmarkError):
    """An error that a restart does not mend: an enumerator that fails with it, or because of it, fails the source.

    A mixin for errors of connectors: a missing topic, or brokers after a long wait.

    Source: Flink's `SuppressRestartsException`.
    """

    @classmethod
    def is_behind(cls, error: BaseException | None) -> bool:
        """Whether an error, or one of its causes, is a `SuppressRestarts`."""
        while error is not None and not isinstance(error, cls):
            error = error.__cause__
        return error is not None


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """Restores a failed enumerator at most `most` times, 0 or more, within `window`, pausing longer each time.

    Attributes:
        most: number of failures within the window after which the enumerator is restored; 0: the first failure fails
            the source.
        window: how long a failure counts.
        backoff: the first pause; it doubles with each failure, up to `max_backoff`.
        reset_after: the time without a failure after which pauses begin with `backoff` again; longer than
            `max_backoff`.

    Raises:
        InvalidStrategy: `most` is negative, or `max_backoff` is shorter than `backoff`, or `reset_after` is not
            longer than `max_backoff`.
        InvalidDuration: one of the other values is no duration.

    Source: Flink's failure-rate and exponential-delay restart strategies.

    >>> failover = Failover(FailoverPolicy(most=2))
    >>> [failover.failed(now_us) for now_us in (0, 5_000_000, 10_000_000)]
    [1000000, 2000000, None]
    """

    most: int = 3
    window: str | timedelta = "10 minutes"
    backoff: str | timedelta = "1 second"
    max_backoff: str | timedelta = "30 seconds"
    reset_after: str | timedelta = "2 minutes"

    def __post_init__(self) -> None:
        Failover(self)  # raises what is wrong


class Failover:
    """Counts the failures of one enumerator. Time is an argument. Raises the errors of `FailoverPolicy`."""

    def __init__(self, policy: FailoverPolicy) -> None:
        self.policy = policy
        if policy.most < 0:
            raise InvalidStrategy("FailoverPolicy.most", repr(policy.most), "0 or more", "0 fails at the first error.")
        self._window_us = duration_us(policy.window, what="failover window")
        self._longest_us = duration_us(policy.max_backoff, what="longest failover back-off")
        self._first_us = duration_us(policy.backoff, what="failover back-off")
        if self._longest_us < self._first_us:
            raise InvalidStrategy(
                "FailoverPolicy.max_backoff", repr(policy.max_backoff), f"{policy.backoff!r} or more",
                "the first pause may not be longer than the longest.",
            )  # fmt: skip
        self._reset_us = duration_us(policy.reset_after, what="failover reset")
        if self._reset_us <= self._longest_us:
            raise InvalidStrategy(
                "FailoverPolicy.reset_after", repr(policy.reset_after), f"more than {policy.max_backoff!r}",
                "the pause itself is time without a failure.",
            )  # fmt: skip
        self._failures_us: deque[int] = deque()
        self._backoff_us = self._first_us

    @property
    def failures(self) -> int:
        return len(self._failures_us)

    def failed(self, now_us: int) -> int | None:
        """Count a failure; return the pause before a restore, microseconds; None: the enumerator failed too often."""
        calm = not self._failures_us or now_us - self._failures_us[-1] >= self._reset_us
        self._failures_us.append(now_us)
        while now_us - self._failures_us[0] >= self._window_us and len(self._failures_us) > 1:
            self._failures_us.popleft()
        if len(self._failures_us) > self.policy.most:
            return None
        doubled_us = self._first_us if calm else 2 * self._backoff_us
        self._backoff_us = min(doubled_us, self._longest_us)
        return self._backoff_us
