"""Says that the first batch is being planned, or one from before a restart is read, as long as that takes.

To search hundreds of splits, or to read the times of files once, may take minutes in which nobody hears of the source;
so may a batch whose reader waits for its system.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lowmark.sources.worker import Worker

__all__ = ["saying_again"]


@contextmanager
def saying_again(say: Callable[[], None], *, first_seconds: float, again_seconds: float) -> Iterator[None]:
    """Call `say` from a thread of its own until the block is left, which waits for a call that is under way.

    Args:
        say: is not called at all where the block takes no longer than `first_seconds`.
        first_seconds: how long before the first call.
        again_seconds: how long between two calls.
    """
    over = threading.Event()

    def repeat() -> None:
        seconds = first_seconds
        while not over.wait(seconds):
            say()
            seconds = again_seconds

    worker = Worker("lowmark-first-batch", repeat)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(threading.TIMEOUT_MAX)
