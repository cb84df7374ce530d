"""Calls that may block, on worker threads, and the way of their results back to the coordinator's thread.

Python cannot interrupt a thread, so a call that still runs when its enumerator is closed is given up: its handler gets
`CallAbandoned`, and its result is dropped.

Source: `org.apache.flink.runtime.source.coordinator.ExecutorNotifier`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from lowmark.sources.api import ResultT
from lowmark.watermark import LowmarkError

from .action_queue import ActionQueue, MonotonicClock

_log = logging.getLogger("lowmark")
_CALLS_AT_ONCE = 2


class CallAbandoned(LowmarkError, RuntimeError):
    """A call was still running when the enumerator that had asked for it was closed."""

    call: str  # name of the call
    _fact = "{call} was still running when its enumerator was closed"
    _hint = "nothing needs to be done."


class ExecutorNotifier:
    """Makes blocking calls on worker threads, and hands the results to the coordinator's thread, by `post`."""

    def __init__(self, name: str, post: Callable[[str, Callable[[], None]], None], *, clock: MonotonicClock) -> None:
        self._post, self._clock = post, clock
        self._workers = ActionQueue(
            name, clock=clock, threads=_CALLS_AT_ONCE, uncaught=self._lose, died=partial(self._lose, "run calls")
        )
        # work -> when it began, its name, its handler
        self._running: dict[object, tuple[int, str, Callable[[None, BaseException], None]]] = {}
        self._closed = False

    def notify_ready_async(
        self,
        call: Callable[[], ResultT],
        handler: Callable[[ResultT | None, BaseException | None], None],
        *,
        initial_delay_us: int = 0,
        period_us: int | None = None,
    ) -> None:
        """Run `call` on a worker thread, then `handler` with (result, None) or (None, error) on the coordinator's.

        A periodic call begins again a period after its last begin, but not before its handler has run.
        """
        name = getattr(call, "__qualname__", repr(call)).replace("<locals>.", "")

        def work() -> None:
            if self._closed:
                return
            result, error, started_us = None, None, self._clock.now_us()
            self._running[work] = started_us, name, handler
            try:
                result = call()
            except BaseException as failed:  # noqa: BLE001  # the handler gets the error
                error = failed
            self._post(f"handle the result of {name}", lambda: handle(result, error, started_us))

        def handle(result: ResultT | None, error: BaseException | None, started_us: int) -> None:
            if self._running.pop(work, None) is None:
                return  # closed meanwhile, and abandoned
            handler(result, error)
            if period_us is not None:
                self._workers.post(name, work, due_us=started_us + period_us)

        self._workers.post(name, work, due_us=self._clock.now_us() + initial_delay_us if initial_delay_us else None)

    def oldest_call(self) -> tuple[int, str] | None:
        """Return when the oldest running call began, and its name; None: no call runs."""
        return min(((began_us, name) for began_us, name, _ in list(self._running.values())), default=None)

    def _lose(self, action: str, error: BaseException) -> None:
        """Fail on the coordinator's thread, which restores the enumerator, because a call ended without a result."""

        def fail() -> None:
            raise error

        if not self._closed:
            self._post(action, fail)

    def close(self) -> None:
        """Start no further call, and give up running calls. Runs on the coordinator's thread; raises nothing."""
        self._closed = True
        self._workers.close()
        abandoned, self._running = self._running, {}
        for _, name, handler in abandoned.values():
            try:
                handler(None, CallAbandoned(name))
            except BaseException:  # noqa: BLE001  # after the close no error may spread
                _log.debug("the handler of %s failed after its enumerator was closed", name, exc_info=True)
