"""Waits for times: how far the sinks of a stream are complete, and who is told when a time is passed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from lowmark.sources.worker import Worker
from lowmark.watermark import format_time_us
from lowmark.watermark.moment import least_us

from .insist import insist
from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_STOP_SECONDS = 10.0


def complete_until(runs: Iterable[StreamRun], name: str, query: str | None) -> int | None:
    """Return the time until which the sinks of all queries on a stream are complete; None if it is not known.

    The newest run of a query counts, also if the query has ended, because its sink stays as it is.

    Args:
        runs: in the order in which they attached.
        query: name or id of one query; None: all of them.
    """
    newest = {run.query: run for run in of_stream(runs, name, query)}
    return least_us(run.complete_until_us for run in newest.values())


def why_not(runs: Iterable[StreamRun], name: str, query: str | None) -> str | None:
    """Say that no query will bring a time; None: one runs, or none has begun yet."""
    mine = of_stream(runs, name, query)
    if not mine or not all(run.ended for run in mine):
        return None
    return "its queries have ended, and go on from their checkpoints when they are started again"


def of_stream(runs: Iterable[StreamRun], name: str, query: str | None) -> list[StreamRun]:
    """Return the runs of a stream in a query, by its name or id; None: in all queries."""
    return [run for run in runs if run.stream.name == name and query in (None, run.query_name, run.query_id)]


@dataclass(frozen=True)
class Wait:
    """Somebody waits for a time."""

    name: str  # this and the next as in `complete_until`
    query: str | None
    time_us: int
    call: Callable[[int], object]  # takes the time until which the sink is complete; repeated until it returns

    def __str__(self) -> str:
        return f'the function for {format_time_us(self.time_us)} of stream "{self.name}"'


class Passing:
    """The waits of a service. Belongs to its loop; each function is called on a thread of its own."""

    def __init__(self) -> None:
        self._waits: list[Wait] = []
        self._calls: list[Worker] = []  # that may still run
        self._stopped = threading.Event()

    def add(self, wait: Wait, runs: Iterable[StreamRun]) -> None:
        """Add a wait, which may be over already."""
        self._waits.append(wait)
        self.look(runs, wait.name)

    def look(self, runs: Iterable[StreamRun], name: str) -> None:
        """Call the functions whose time a stream has passed."""
        mine = [wait for wait in self._waits if wait.name == name]
        if not mine:
            return
        runs = tuple(runs)
        for wait in mine:
            until_us = complete_until(runs, name, wait.query)
            if until_us is not None and until_us >= wait.time_us:
                worker = Worker("lowmark-passed", partial(self._call, wait, until_us))
                worker.start()
                # Last, because the system may have no thread left.
                self._waits = [each for each in self._waits if each is not wait]
                self._calls = [*(each for each in self._calls if not each.ended), worker]

    def stop(self) -> None:
        """End all repetitions, log which functions will not be called any more, and wait a bounded time for others.

        The end of the program would cut off a function that the last batch of a query has called.
        """
        self._stopped.set()
        for wait in self._waits:
            log.warning("the service stops before a time is passed: %s is not called", wait)
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in self._calls:
            worker.join(deadline - time.monotonic())

    def _call(self, wait: Wait, until_us: int) -> None:
        if not insist(partial(wait.call, until_us), str(wait), self._stopped):
            log.warning("the service stops before %s has returned: it is not called again", wait)
