"""A thread that never ends unseen: whoever waits for its work hears that it ended, and why.

A thread of Python's that raises prints a traceback and is gone. Who waits for its work waits for ever, and who asks how
it is doing is told what was true before. A `Worker` keeps the error, and raises it for everybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from lowmark.watermark import LowmarkError

__all__ = ["Worker", "WorkerDied", "described"]

_log = logging.getLogger("lowmark")
_LOOK_SECONDS = 0.1  # how soon whoever waits hears that the thread has ended

Result = TypeVar("Result")


class WorkerDied(LowmarkError, RuntimeError):
    """A thread has ended that was needed for something. The error that ended it, if one did, is the `__cause__`."""

    worker: str  # name of the thread
    action: str  # what it was needed for
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
    """One thread that runs one function.

    Args:
        name: of the thread.
        run: what the thread runs; when it returns, the thread ends in good order.
        died: called with the error that ended `run`, on the thread, after everybody can know of it.

    >>> done = Future()
    >>> worker = Worker("example", lambda: done.set_result(6 * 7))
    >>> worker.start()
    >>> worker.wait(done, "multiply", seconds=60)
    42
    """

    def __init__(
        self, name: str, run: Callable[[], object], *, died: Callable[[BaseException], object] | None = None
    ) -> None:
        self.name, self._run, self._told = name, run, died
        self._error: BaseException | None = None
        self._returned = False
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def start(self) -> None:
        """Let the thread begin. Raises RuntimeError where the system has no thread left."""
        self._thread.start()

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the thread; None while it runs, and if it ended in good order."""
        if self._error is None and self.ended and not self._returned:
            return RuntimeError("it ended without a word")  # the error came before this class could take it
        return self._error

    @property
    def ended(self) -> bool:
        """Whether the thread has begun and does not run `run` any more, for whatever reason."""
        return self._error is not None or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def check(self, action: str) -> None:
        """Do nothing while the thread may still do its work.

        Raises:
            WorkerDied: it has ended.
        """
        if self.ended:
            error = self.failed
            raise WorkerDied(self.name, action, "" if error is None else described(error)) from error

    def wait(self, done: Future[Result], action: str, *, seconds: float) -> Result:
        """Wait for a result that this thread is to bring, and return it.

        Args:
            done: it holds the result, or what is to be raised.
            action: what it is for, for errors.
            seconds: how long to wait.

        Raises:
            WorkerDied: the thread has ended, so there will be no result.
            TimeoutError: of `concurrent.futures`, where there is none in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended, left = self.ended, deadline - time.monotonic()
            try:
                return done.result(0 if ended else min(max(left, 0), _LOOK_SECONDS))
            except FutureTimeout:
                if done.done():
                    raise  # the work itself timed out
                if ended:  # before it was asked for the result
                    self.check(action)
                if left <= 0:
                    raise

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end, unless it is the caller's; say whether it has."""
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        try:
            self._run()
            self._returned = True
        except BaseException as error:  # noqa: BLE001  # whatever it is, everybody is to know
            self._error = error
            try:
                _log.critical("the thread %s was ended by an error: %s", self.name, described(error), exc_info=error)
            finally:
                if self._told is not None:
                    self._told(error)


def described(error: BaseException) -> str:
    """Type and text of an error.

    >>> described(ValueError("no number"))
    'ValueError: no number'
    """
    return f"{type(error).__name__}: {error}"
