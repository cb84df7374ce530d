"""The loop: one thread that owns all mutable state. Other threads post calls to the loop, and may wait for results."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from lowmark.integration.process.clock import monotonic_us
from lowmark.sources.worker import Worker, answer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """How busy a loop has been since it began: finished calls, and their duration in microseconds."""

    calls: int = 0
    busy_us: int = 0
    longest_us: int = 0
    waiting: int = 0  # calls that have not begun
    failed: bool = False


class Loop:
    """Runs calls one after the other, in the order of arrival.

    Args:
        tick: called `tick_us` after it ended last, between two calls; as of posted work, an error of it ends the loop.
    """

    def __init__(self, name: str, tick: Callable[[], object] | None = None, *, tick_us: int = 10_000_000) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._tick, self._tick_us, self._ticks_at_us = tick, tick_us, monotonic_us() + tick_us
        self._times = LoopTimes()
        self._worker = Worker(name, self._run)
        self._worker.start()

    def post(self, work: Callable[[], object]) -> None:
        """Queue work, and return at once.

        If the work raises, the loop ends with that error and runs nothing more, because the state that the work was
        changing may be half changed.
        """
        if not self._worker.ended:  # otherwise the queue would never be emptied
            self._work.put(work)

    def call(self, work: Callable[[], Result], action: str, *, seconds: float) -> Result:
        """Run work on the loop, and return its result.

        Args:
            seconds: how long to wait; work that has not begun by then never begins.

        Raises:
            TimeoutError: the loop was busy for longer.
            WorkerDied: an error or ``stop`` has ended the loop.
        """
        done: Future[Result] = Future()
        self.post(partial(answer, done, work))
        try:
            return self._worker.wait(done, action, seconds=seconds)
        except FutureTimeout:
            if done.done():
                return done.result(0)  # the result came at the last moment, or the work itself timed out
            done.cancel()
            raise TimeoutError(f"cannot {action}: the service's loop is busy, tried for {seconds:g} seconds") from None

    @property
    def times(self) -> LoopTimes:
        """How busy the loop is; callable from any thread, even while the loop is busy."""
        return replace(self._times, waiting=self._work.qsize(), failed=self.failed is not None)

    @property
    def failed(self) -> BaseException | None:
        return self._worker.failed

    def stop(self, seconds: float = 10.0) -> None:
        """Run the waiting work, then end."""
        self._work.put(None)
        self._worker.join(seconds)

    def _run(self) -> None:
        try:
            self._take_all()
        finally:
            with suppress(queue.Empty):  # calls that never run must keep no object alive
                while True:
                    self._work.get_nowait()

    def _take_all(self) -> None:
        while (work := self._next()) is not None:
            began_us = monotonic_us()
            work()
            ended_us, past = monotonic_us(), self._times
            took_us = ended_us - began_us
            if work is self._tick:  # from its end, because a tick that takes longer would come instead of all calls
                self._ticks_at_us = ended_us + self._tick_us
            longest_us = max(past.longest_us, took_us)
            self._times = LoopTimes(past.calls + 1, past.busy_us + took_us, longest_us)

    def _next(self) -> Callable[[], object] | None:
        """Return what is to be run next: the tick if it is due, else the oldest call; None: the loop was stopped."""
        if self._tick is None:
            return self._work.get()
        left_us = self._ticks_at_us - monotonic_us()
        if left_us > 0:
            with suppress(queue.Empty):
                return self._work.get(timeout=left_us / 1e6)
        return self._tick
