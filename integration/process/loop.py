"""The loop: one thread that owns everything that changes. Others hand it work, and wait for the result or do not."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from lowmark.integration.process.clock import monotonic_us
from lowmark.sources.worker import Worker

__all__ = ["Loop", "LoopTimes"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """How busy a loop is, since it began.

    Attributes:
        calls: what it has run.
        busy_us: how long all of that took, microseconds; of a call that runs, nothing yet.
        longest_us: how long the longest took.
        waiting: what it was given and has not begun.
        failed: an error has ended it.
    """

    calls: int = 0
    busy_us: int = 0
    longest_us: int = 0
    waiting: int = 0
    failed: bool = False


class Loop:
    """Runs what it is given, one after the other, in the order of arrival.

    >>> loop = Loop("example")
    >>> loop.call(lambda: 6 * 7, "multiply", seconds=1)
    42
    >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._times = LoopTimes()
        self._worker = Worker(name, self._run)
        self._worker.start()

    def post(self, work: Callable[[], object]) -> None:
        """Have something run, and return at once.

        If the work raises, the loop ends with that error and runs nothing any more, because what the work was changing
        may be half changed.
        """
        if not self._worker.ended:  # else nobody would ever take it out
            self._work.put(work)

    def call(self, work: Callable[[], Result], action: str, *, seconds: float) -> Result:
        """Have something run, and return what it returns.

        Args:
            work: raises what the caller shall see.
            action: what it is for, for the error.
            seconds: how long to wait. What has not begun by then is not begun any more.

        Raises:
            TimeoutError: the loop was busy for longer.
            WorkerDied: the loop has ended, by an error or by ``stop``.
        """
        done: Future[Result] = Future()

        def task() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                done.set_result(work())
            except BaseException as failed:  # noqa: BLE001  # the caller raises it again
                done.set_exception(failed)

        self.post(task)
        try:
            return self._worker.wait(done, action, seconds=seconds)
        except FutureTimeout:
            if done.done():
                raise  # the work itself timed out
            done.cancel()
            raise TimeoutError(f"cannot {action}: the service's loop is busy, tried for {seconds:g} seconds") from None

    @property
    def times(self) -> LoopTimes:
        """How busy it is; may be asked from any thread, also while it is busy."""
        return replace(self._times, waiting=self._work.qsize(), failed=self.failed is not None)

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the loop; None if none did."""
        return self._worker.failed

    def stop(self) -> None:
        """Run what is waiting, then end; wait for that, but not for ever."""
        self._work.put(None)
        self._worker.join(10)

    def _run(self) -> None:
        try:
            self._take_all()
        finally:
            with suppress(queue.Empty):  # what was given and does not run any more keeps nothing alive
                while True:
                    self._work.get_nowait()

    def _take_all(self) -> None:
        while (work := self._work.get()) is not None:
            began_us = monotonic_us()
            work()
            took_us, past = monotonic_us() - began_us, self._times
            longest_us = max(past.longest_us, took_us)
            self._times = LoopTimes(past.calls + 1, past.busy_us + took_us, longest_us)
