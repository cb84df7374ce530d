"""Farewells: the last report of a run, written to the checkpoint because no heartbeat's offset carried it.

A farewell is written when a query ends, and after a batch while the next heartbeat has not come yet, so a query that is
killed in between leaves one, too. If splits are known by their rows alone and the newest batch left no farewell, a
restart holds the low watermark for splits that were new in that batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lowmark.integration.process.loop import Loop
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.sessions import Query
from lowmark.integration.transport.driver_rpc import HeartbeatRequest
from lowmark.sources.worker import WorkerDied

from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_WRITE_SECONDS = 60.0
UNREADABLE = (
    'stream "%s": the file lowmark/%s in the checkpoint cannot be read (%s). The query goes on from its last offset; a '
    "window may wait for one more row of each split"
)
_NOT_LEFT = (
    'stream "%s": the report of a batch could not be left in the checkpoint (%s). The next heartbeat carries it. A '
    "query that is killed before holds for a grace when it is started again"
)
_LAST_NOT_LEFT = (
    'stream "%s": the last report could not be left in the checkpoint (%s); after a restart, windows may wait for one '
    "more row of each split"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Unwritten:
    query: Query
    farewell: Farewell
    resumes: str | None  # token of the run before, whose farewell is of no use once this one is written
    stream: str
    over: bool


class Farewells:
    """Writes farewells on a thread of its own, because a file system may be slow and the loop must not wait for it."""

    def __init__(self) -> None:
        self._unwritten: dict[str, _Unwritten] = {}  # by token, the newest of each
        self._lock = threading.Lock()  # no newer one comes between the look and the removal
        self._loop: Loop | None = None

    def keep(self, query: Query | None, run: StreamRun, *, over: bool = False) -> None:
        """Write the last report of a run soon; `over` says whether the run has ended. Returns at once."""
        farewell = _of(run, over=over)
        if query is not None and farewell is not None:
            with self._lock:
                self._unwritten[run.token] = _Unwritten(query, farewell, run.resumes, run.stream.name, over)
            with suppress(RuntimeError):  # Python 3.12 begins no thread while a process ends; `close` writes it then
                self._writer.post(partial(self._write, run.token))

    def unwritten(self, token: str | None) -> Farewell | None:
        """Return the farewell of a run, if the farewell is not in the checkpoint yet; else None."""
        found = None if token is None else self._unwritten.get(token)
        return None if found is None else found.farewell

    def close(self) -> None:
        """Write all farewells that are not written yet, log what cannot be written in time, and end the thread."""
        if self._loop is None:  # nothing was kept, or no thread could begin
            for token in tuple(self._unwritten):
                self._write(token)
            return
        for token in tuple(self._unwritten):
            self._writer.post(partial(self._write, token))
        try:
            self._writer.call(lambda: None, "leave the last reports", seconds=_WRITE_SECONDS)
        except (TimeoutError, WorkerDied) as failed:
            for each in self._unwritten.copy().values():
                warn_unwritten(each.stream, failed, over=each.over)
            self._loop.stop(0.0)
        else:
            self._loop.stop()
        self._loop = None

    @property
    def _writer(self) -> Loop:
        if self._loop is None or self._loop.failed is not None:
            self._loop = Loop("lowmark-farewells")
        return self._loop

    def _write(self, token: str) -> None:
        found = self._unwritten.get(token)
        if found is None:
            return  # a newer farewell was written in its place
        try:
            found.query.farewells.write(found.farewell)
            if found.resumes is not None:
                found.query.farewells.forget(found.resumes)
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
            # The write of a newer farewell, if one waits, and `close` try again.
            warn_unwritten(found.stream, failed, over=found.over)
            return
        with self._lock:
            if self._unwritten.get(token) is found:
                del self._unwritten[token]
            if found.resumes is not None:
                self._unwritten.pop(found.resumes, None)


def _of(run: StreamRun, *, over: bool) -> Farewell | None:
    """Return the last report of a run, None if the run has none that may be written.

    A run that counts claims of a plan whose batch is not reported has none, because Spark may not have written that
    plan: a restart may plan less far, and the rows in between would be late. If Spark has written the plan, the offset
    of that batch carries the state. The state is left out if the offset of the last answer carries it. An ended run
    writes its state in any case, because Spark may have stopped before it wrote that offset.
    """
    if run.last_batch_id is None or not run.written or run.broken or run.splits.unreported_plan is not None:
        return None
    state = run.state() if over or run.epoch != run.told_epoch else ""
    return Farewell(run.token, run.told_epoch, run.last_batch_id, state)


def lost_report(
    queries: Sequence[Query], stream_id: str, request: HeartbeatRequest, left_behind: Farewell | None
) -> int | None:
    """Return the batch committed before this run and never reported; None if no unreported batch may bring splits.

    A batch without progress of a source had no rows, so its report brings no split. Raises whatever py4j or the file
    system raises.
    """
    if request.resumes is None:
        return None
    for query in queries:
        if stream_id in query.streams():
            runs = query.newest() is not None
            lost = query.farewells.lost_batch(request.resumes, runs=runs, left_behind=left_behind)
            if lost is not None:
                return lost
    return None


def find(
    queries: Sequence[Query], request: HeartbeatRequest, stream: str, unwritten: Farewell | None
) -> Farewell | None:
    """Return the farewell of the run before, None if there is none that fits the run's last offset.

    Args:
        unwritten: the farewell of that run, if this driver has not written it yet.
    """
    if request.resumes is None:
        return None
    if unwritten is not None and _fits(unwritten, request):
        return unwritten
    for query in queries:
        try:
            farewell = query.farewells.read(request.resumes)
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
            log.warning(UNREADABLE, stream, request.resumes, failed)
            continue
        if farewell is not None and _fits(farewell, request):
            return farewell
    return None


def _fits(farewell: Farewell, request: HeartbeatRequest) -> bool:
    """Whether a farewell may be used with an offset.

    A farewell with a state may be newer than the offset, because Spark may stop before it writes the offset of an
    answer. A farewell without a state relies on the state in one offset, so it fits that offset alone.
    """
    return farewell.epoch == request.epoch or bool(farewell.state and farewell.epoch > request.epoch)


def warn_unwritten(stream: str, failed: Exception, *, over: bool) -> None:
    """Log that a report is not in the checkpoint, and the consequence; `over` says whether its run has ended."""
    log.warning(_LAST_NOT_LEFT if over else _NOT_LEFT, stream, failed)
