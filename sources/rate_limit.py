"""How fast a source may be read (FLIP-535): by the second, by the checkpoint, or as fast as it goes.

A strategy is chosen by the user and holds numbers only. Readers get a limiter each, with an even share. A planner of
batches asks the strategy itself, before a batch: `rows_per_checkpoint`.

Source: `org.apache.flink.api.connector.source.util.ratelimit`, FLIP-535.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from lowmark.watermark import LowmarkError

from .api import SourceSplit
from .coordinator.notifier import ActionQueue, MonotonicClock, WaitingClock

__all__ = [
    "GatedRateLimiter",
    "InvalidRate",
    "NoRateLimiter",
    "PacedRateLimiter",
    "RateLimiter",
    "RateLimiterStrategy",
]

_SECOND_US = 1_000_000


class InvalidRate(LowmarkError, ValueError):
    """A rate that lets nothing through, or a request for no rows.

    Attributes:
        what: the setting or request.
        got: its value.
        expected: what would have been accepted.
        hint: what to do.
    """

    def __init__(self, what: str, got: float, expected: str, hint: str) -> None:
        super().__init__(what, got, expected, hint)
        self.what, self.got, self.expected, self.hint = what, got, expected, hint

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.got:g}. Hint: {self.hint}"


class RateLimiter(ABC):
    """The share of one reader. Requests are granted in the order in which they come."""

    def acquire(self, rows: int = 1) -> Future[None]:
        """Ask for permission to emit rows.

        Returns:
            A future that is done when they may be emitted.

        Raises:
            InvalidRate: `rows` is less than 1.
        """
        if rows < 1:
            raise InvalidRate("rows to acquire", rows, "1 or more", "ask when there is a row.")
        return self._acquire(rows)

    @abstractmethod
    def _acquire(self, rows: int) -> Future[None]: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint was completed. Most limiters need not know."""
        del checkpoint_id

    def notify_adding_split(self, split: SourceSplit) -> None:
        """The reader got another split. Most limiters need not know."""
        del split

    @abstractmethod
    def close(self) -> None:
        """Let go of threads. What waits is granted, for the reader ends."""


class NoRateLimiter(RateLimiter):
    """Lets everything through at once."""

    def _acquire(self, rows: int) -> Future[None]:
        del rows
        granted: Future[None] = Future()
        granted.set_result(None)
        return granted

    def close(self) -> None:
        pass


class GatedRateLimiter(RateLimiter):
    """Lets a number of rows through per checkpoint.

    A request larger than that takes the whole of the next cycle: it must not wait for ever.

    Args:
        rows_per_checkpoint: 1 or more.

    >>> limiter = GatedRateLimiter(2)
    >>> first, second = limiter.acquire(2), limiter.acquire(1)
    >>> first.done(), second.done()
    (True, False)
    >>> limiter.notify_checkpoint_complete(1)
    >>> second.done()
    True
    """

    def __init__(self, rows_per_checkpoint: int) -> None:
        if rows_per_checkpoint < 1:
            raise InvalidRate("rows per checkpoint", rows_per_checkpoint, "1 or more", "0 rows would never end.")
        self._capacity = self._left = rows_per_checkpoint
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def _acquire(self, rows: int) -> Future[None]:
        request: Future[None] = Future()
        with self._lock:
            self._waiting.append((rows, request))
            granted = self._grant(new_cycle=False)
        _done(granted)
        return request

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        del checkpoint_id  # whichever it is, a cycle is over
        with self._lock:
            self._left = self._capacity
            granted = self._grant(new_cycle=True)
        _done(granted)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            granted = self._grant(new_cycle=True)
        _done(granted)

    def _grant(self, *, new_cycle: bool) -> list[Future[None]]:
        granted = []
        while self._waiting:
            rows, request = self._waiting[0]
            if not self._closed and rows > self._left and not (new_cycle and self._left == self._capacity):
                break
            self._left -= rows
            granted.append(request)
            self._waiting.popleft()
        return granted


class PacedRateLimiter(RateLimiter):
    """Lets rows through at a steady pace: each request waits for what the ones before it used up.

    Args:
        rows_per_second: more than 0.
        clock: what seconds are measured by.
    """

    def __init__(self, rows_per_second: float, *, clock: WaitingClock | None = None) -> None:
        if not rows_per_second > 0:
            raise InvalidRate("rows per second", rows_per_second, "more than 0", "0 rows would never end.")
        self._rate = rows_per_second
        self._clock: WaitingClock = clock if clock is not None else MonotonicClock()
        self._free_us = self._clock.now_us()
        self._timer: ActionQueue | None = None
        self._waiting: dict[Future[None], None] = {}
        self._closed = False
        self._lock = threading.Lock()

    def _acquire(self, rows: int) -> Future[None]:
        request: Future[None] = Future()
        with self._lock:
            now_us = self._clock.now_us()
            due_us = max(now_us, self._free_us)
            self._free_us = due_us + round(rows * _SECOND_US / self._rate)
            waits = due_us > now_us and not self._closed
            if waits:
                if self._timer is None:
                    self._timer = ActionQueue("lowmark rate limiter", clock=self._clock)
                self._waiting[request] = None
                self._timer.post("let rows through", lambda: self._grant(request), due_us=due_us)
        if not waits:
            request.set_result(None)
        return request

    def close(self) -> None:
        with self._lock:
            self._closed = True
            granted, self._waiting = list(self._waiting), {}
            if self._timer is not None:
                self._timer.close()
        _done(granted)

    def _grant(self, request: Future[None]) -> None:
        with self._lock:
            waited = request in self._waiting
            self._waiting.pop(request, None)
        if waited:
            _done([request])


@dataclass(frozen=True, slots=True)
class RateLimiterStrategy:
    """How fast a whole source is read. Made by `per_second`, `per_checkpoint` or `no_op`.

    Attributes:
        second_rows: rows in a second, None: not limited by time.
        checkpoint_rows: rows in a checkpoint, None: not limited by checkpoint.

    >>> RateLimiterStrategy.per_second(2.5).rows_per_checkpoint(elapsed_seconds=3)
    7
    >>> RateLimiterStrategy.per_checkpoint(100).rows_per_checkpoint(elapsed_seconds=3)
    100
    >>> RateLimiterStrategy.no_op().rows_per_checkpoint(elapsed_seconds=3) is None
    True
    """

    second_rows: float | None = None
    checkpoint_rows: int | None = None

    @classmethod
    def per_second(cls, rows: float) -> RateLimiterStrategy:
        """At most `rows` rows in a second, by all readers together.

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

    def create_rate_limiter(self, parallelism: int, *, clock: WaitingClock | None = None) -> RateLimiter:
        """Make the limiter of one of `parallelism` readers: an even share, whole rows.

        Raises:
            InvalidRate: fewer rows in a checkpoint than there are readers.
        """
        if self.second_rows is not None:
            return PacedRateLimiter(self.second_rows / parallelism, clock=clock)
        if self.checkpoint_rows is not None:
            if self.checkpoint_rows < parallelism:
                raise InvalidRate(
                    "rows per checkpoint", self.checkpoint_rows, f"{parallelism} or more, as many as there are readers",
                    "use fewer readers, or allow more rows.",
                )  # fmt: skip
            return GatedRateLimiter(self.checkpoint_rows // parallelism)
        return NoRateLimiter()

    def rows_per_checkpoint(self, elapsed_seconds: float) -> int | None:
        """Return how many rows a batch may have, None for any number. A pure function.

        Args:
            elapsed_seconds: time since the last batch that was granted rows. A caller that is granted none goes on
                counting from there, so that slow rates get their rows too. 0: there was no batch; a second is granted.

        Returns:
            0 or more: 0 means wait. Whole rows, so a rate is never exceeded.
        """
        if self.second_rows is None:
            return self.checkpoint_rows
        if elapsed_seconds <= 0:
            return max(1, int(self.second_rows))
        return int(self.second_rows * elapsed_seconds)


def _done(requests: list[Future[None]]) -> None:
    """Grant requests, with no lock held: what waits for them runs here."""
    for request in requests:
        if request.set_running_or_notify_cancel():
            request.set_result(None)
