"""Named actions on threads of their own: due actions in the order of arrival, other actions when they are due.

A queue with one thread is the coordinator's: its actions have the enumerator to themselves. A queue with several
threads makes calls that may block.

All threads are daemons, because Python cannot interrupt a thread, and a hanging thread must not keep the process alive.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from lowmark.sources.api import ResultT
from lowmark.sources.worker import Worker

_FRAMES_SHOWN = 5
_LONGEST_WAIT_SECONDS = 3_600.0


class MonotonicClock:
    """The machine's monotonic time, on which threads can wait. Tests have a clock that they move themselves."""

    def now_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def wait_until(self, condition: threading.Condition, due_us: int | None) -> None:
        """Wait, holding `condition`, until it is notified or the time is `due_us`; may return early."""
        seconds = _LONGEST_WAIT_SECONDS if due_us is None else (due_us - self.now_us()) / 1_000_000
        condition.wait(min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS))


class ActionQueue:
    """Runs named actions: due actions in the order of arrival, other actions when they are due.

    Args:
        threads: the largest number of threads; threads are started when actions need them.
        uncaught: gets (action, error) for an error of an action, on its thread.
        died: gets the error that ended a thread of the queue, on that thread: an error of the queue itself, or of
            `uncaught`. The queue is closed then.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: MonotonicClock,
        threads: int = 1,
        uncaught: Callable[[str, BaseException], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self._name, self._clock, self._most, self._uncaught, self._died = name, clock, threads, uncaught, died
        self._condition = threading.Condition()
        self._ready: deque[tuple[str, Callable[[], object]]] = deque()
        self._later: list[tuple[int, int, str, Callable[[], object]]] = []
        self._number = count()
        self._workers: list[Worker] = []
        self._live = self._waiting = 0
        self._running: dict[int, str] = {}  # thread -> action
        self._closed = False

    def post(self, action: str, work: Callable[[], object], *, due_us: int | None = None) -> None:
        """Queue an action for `due_us`, or for now; after `close` the action is dropped."""
        with self._condition:
            if self._closed:
                return
            if due_us is None:
                self._ready.append((action, work))
            else:
                heapq.heappush(self._later, (due_us, next(self._number), action, work))
            self._need_thread()
            self._condition.notify_all()

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    @property
    def on_thread(self) -> bool:
        return threading.get_ident() in self._running

    @property
    def doing(self) -> str:
        return self._running[threading.get_ident()]

    def now_doing(self, action: str) -> None:
        self._running[threading.get_ident()] = action

    def pause_until(self, due_us: int) -> bool:
        """Let time pass on the calling thread, a thread of this queue; return False if the queue was closed."""
        with self._condition:
            while not self._closed and self._clock.now_us() < due_us:
                self._clock.wait_until(self._condition, due_us)
            return not self._closed

    def where(self) -> tuple[str, str]:
        """Return the running action and its stack, the innermost call first; empty texts if no action runs."""
        for thread, action in list(self._running.items()):
            frame = sys._current_frames().get(thread)  # noqa: SLF001  # the only way to see another thread's stack
            calls = traceback.extract_stack(frame)[-_FRAMES_SHOWN:] if frame is not None else []
            return action, " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls[::-1])
        return "", ""

    @property
    def failed(self) -> BaseException | None:
        """The error that ended a thread of the queue; None if no error did."""
        return next((worker.failed for worker in self._workers if worker.failed is not None), None)

    def wait(self, done: Future[ResultT], action: str, *, seconds: float) -> ResultT:
        """Wait for the result of an action; for a queue with one thread. See `Worker.wait`."""
        return self._workers[-1].wait(done, action, seconds=seconds)

    def close(self, *, last: tuple[str, Callable[[], object]] | None = None) -> None:
        """Drop waiting actions, run `last` if given, and let the threads end. Does not wait for running actions."""
        with self._condition:
            if not self._closed:  # otherwise the last action of another call may be waiting
                self._ready.clear()
                self._later.clear()
            self._closed = True
            if last is not None:
                self._ready.append(last)
                self._need_thread()
            self._condition.notify_all()

    def join(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        others = [worker for worker in self._workers if not worker.is_current]
        return all(worker.join(deadline - time.monotonic()) for worker in others)

    def _need_thread(self) -> None:
        if not self._waiting and self._live < self._most:
            worker = Worker(self._name, self._run, died=self._die)
            worker.start()  # the thread waits for the condition, which the caller holds
            self._live += 1
            self._workers.append(worker)

    def _die(self, error: BaseException) -> None:
        """Close the queue, because a thread has ended and its action is lost."""
        try:
            with self._condition:
                self._live -= 1  # a last action gets a thread
                self.close()
        finally:
            self._died(error)

    def _next(self) -> tuple[str, Callable[[], object]] | None:
        with self._condition:
            while self._ready or not self._closed:
                while self._later and self._later[0][0] <= self._clock.now_us():
                    self._ready.append(heapq.heappop(self._later)[2:])
                if self._ready:
                    item = self._ready.popleft()
                    if self._ready or self._later:
                        self._need_thread()
                    return item
                self._waiting += 1
                try:
                    self._clock.wait_until(self._condition, self._later[0][0] if self._later else None)
                finally:
                    self._waiting -= 1
            self._live -= 1
            return None

    def _run(self) -> None:
        me = threading.get_ident()
        while (item := self._next()) is not None:
            action, work = item
            self._running[me] = action
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the thread must live, and the error must be told
                self._uncaught(action, error)
            finally:
                del self._running[me]
                del work, item  # an idle thread must keep no object alive
