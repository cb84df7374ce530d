"""A thread that never ends unseen: callers that wait for its work get its last error, and do not wait for ever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TypeVar

from lowmark.watermark import LowmarkError

_log = logging.getLogger("lowmark")
_LOOK_SECONDS = 0.1  # how soon a waiting caller hears that the thread has ended

Result = TypeVar("Result")


class WorkerDied(LowmarkError, RuntimeError):
    """A needed thread has ended. Its `__cause__` is the error that ended the thread, if any."""

    worker: str  # name of the thread
    action: str  # the action that needed the thread
    cause: str  # type and text of the error; "" if the thread was stopped
    _fact = "cannot {action}: the thread {worker} {_how}"
    _hint = "{_next}"
    _cause_knows_best = True

    @property
    def _how(self) -> str:
        return f"was ended by an error: {self.cause}" if self.cause else "was stopped"

    @property
    def _next(self) -> str:
        if not self.cause:
            return "begin anew what it belongs to."
        return (
            "the log has the error with its stack. LowWatermarkService(spark) makes a new service in the place of one "
            "whose thread ended; a query that is started again goes on from its checkpoint."
        )


class Worker:
    """One thread that runs one function; when the function returns, the thread ends in good order.

    `died` is called on the thread with the error that ended `run`, after the error is visible to callers.
    """

    def __init__(
        self, name: str, run: Callable[[], object], *, died: Callable[[BaseException], object] | None = None
    ) -> None:
        self.name, self._run, self._died = name, run, died
        self._error: BaseException | None = None
        self._returned = False
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system has no thread left."""
        self._thread.start()

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the thread; None while the thread runs, and if it ended in good order."""
        if self._error is None and self.ended and not self._returned:
            return RuntimeError("it ended without a word")  # the error came before `_supervise` could keep it
        return self._error

    @property
    def ended(self) -> bool:
        """Whether the thread has begun and `run` has ended, for any reason."""
        return self._error is not None or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def check(self, action: str) -> None:
        """Do nothing while the thread may still do its work. Raises `WorkerDied` if the thread has ended."""
        if self.ended:
            error = self.failed
            raise WorkerDied(self.name, action, "" if error is None else described(error)) from error

    def wait(self, done: Future[Result], action: str, *, seconds: float) -> Result:
        """Wait for a result of this thread, and return it.

        Raises `WorkerDied` if the thread has ended, so that no result will come, and
        `concurrent.futures.TimeoutError` after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended, left = self.ended, deadline - time.monotonic()
            try:
                return done.result(0 if ended else min(max(left, 0), _LOOK_SECONDS))
            except FutureTimeout:
                if done.done():
                    return done.result(0)  # the result came at the last moment, or the work itself timed out
                if ended:  # the thread had ended before this look at the result
                    self.check(action)
                if left <= 0:
                    raise

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end, unless the caller runs on it; return whether it has ended."""
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        try:
            self._run()
            self._returned = True
        except BaseException as error:  # noqa: BLE001  # callers must know of every error
            self._error = error
            try:
                _log.critical("the thread %s was ended by an error: %s", self.name, described(error), exc_info=error)
            finally:
                if self._died is not None:
                    self._died(error)


def answer(done: Future[Result], work: Callable[[], Result]) -> None:
    """Run work and give its result or its error to the caller that waits for `done`, unless the caller has given up."""
    if not done.set_running_or_notify_cancel():
        return
    with suppress(InvalidStateError):
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # the caller raises it again
            done.set_exception(error)


def described(error: BaseException) -> str:
    """Type and text of an error.

    >>> described(ValueError("no number"))
    'ValueError: no number'
    """
    return f"{type(error).__name__}: {error}".removesuffix(": ")
