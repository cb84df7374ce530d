"""Talks: work of the loop that reads a checkpoint between its steps, beside the loop, because a file system may hang.

A talk is a generator. Its steps run on the loop. A step yields a read, and the result of the read begins the next step.
The read has a thread of its own, so a read that never returns holds neither the loop, nor a thread of gRPC, nor the end
of the process. Only the talk waits: its local variables are the state of a run that has not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

from lowmark.sources.worker import Worker, answer

Result = TypeVar("Result")

READ_SECONDS = 8.0
"""For all reads of a talk: a reader's call ends after 10 seconds, and shall hear why."""

Talk = Generator[Callable[[], Any], Any, Result]

Beside = Callable[[Callable[[], Result], Callable[[Result], object]], None]
"""Begins a read beside the loop, and returns; what was read is given to a function on the loop."""


class OnLoop(Protocol):
    """Runs work on the service's loop, and waits for it."""

    def __call__(self, work: Callable[[], Result], action: str) -> Result:
        """Return the result of the work; an error names the `action` that failed."""
        ...


def hold(talk: Talk[Result], on_loop: OnLoop, action: str) -> Result:
    """Hold a talk on the caller's thread, and return its result. An error of a read ends the talk."""
    found: Any = None
    began = monotonic()
    while True:
        try:
            read = on_loop(partial(talk.send, found), action)
        except StopIteration as over:
            result: Result = over.value
            return result
        found = aside(read, action, seconds=READ_SECONDS, spent=monotonic() - began)


def aside(read: Callable[[], Result], action: str, *, seconds: float, spent: float = 0.0) -> Result:
    """Return the result of a read that runs on a thread of its own.

    Raises `TimeoutError` after so many seconds; `spent` of them have passed.
    """
    done: Future[Result] = Future()
    Worker("lowmark-checkpoint", partial(answer, done, read)).start()
    if not wait([done], max(0.0, seconds - spent)).done:
        why = f"the file system of its checkpoint has not answered for {seconds:g} seconds"
        raise TimeoutError(f"cannot {action}: {why}")
    return done.result()
