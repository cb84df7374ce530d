"""Farewells: the last report of a run, written to the checkpoint because no heartbeat's offset carried it.

A farewell is written when a query ends, and after a batch while the next heartbeat has not come yet, so a query that is
killed in between leaves one, too. If splits are known by their rows alone and the newest batch left no farewell, a
restart holds the low watermark for splits that were new in that batch.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TypeAlias

from lowmark.integration.process.loop import Loop
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.queries import Queries
from lowmark.integration.spark.sessions import Query
from lowmark.integration.transport.driver_rpc import HeartbeatRequest

from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_WRITE_SECONDS = 60.0
_Unwritten: TypeAlias = tuple[Query, Farewell, str | None]
"""A query, the farewell of its run, and the token of the run before, whose farewell is then of no use."""


class Farewells:
    """Writes farewells on a thread of its own, because a file system may be slow and the loop must not wait for it."""

    def __init__(self) -> None:
        self._newest: dict[str, _Unwritten] = {}  # by token
        self._loop: Loop | None = None

    def keep(self, query: Query | None, run: StreamRun) -> None:
        """Write the last report of a running run soon, without waiting."""
        farewell = _of(run)
        if query is not None and farewell is not None:
            self._newest[run.token] = query, farewell, run.resumes
            self._writer.post(partial(self._write_or_warn, run))

    def leave(self, query: Query | None, run: StreamRun) -> None:
        """Write the last report of an ended run, and return when it is written.

        Raises:
            Exception: whatever py4j or the file system raises.
        """
        farewell = _of(run, over=True)
        if query is not None and farewell is not None:
            last = query, farewell, run.resumes
            self._writer.call(partial(self._write_last, last), "leave the last report", seconds=_WRITE_SECONDS)

    def close(self) -> None:
        """Write all pending farewells, and end the thread."""
        if self._loop is not None:
            self._loop.stop()

    @property
    def _writer(self) -> Loop:
        if self._loop is None or self._loop.failed is not None:
            self._loop = Loop("lowmark-farewells")
        return self._loop

    def _write_last(self, last: _Unwritten) -> None:
        _, farewell, _ = last
        self._newest.pop(farewell.token, None)
        _write(last)

    def _write_or_warn(self, run: StreamRun) -> None:
        found = self._newest.pop(run.token, None)
        if found is None:
            return  # a newer farewell was written in its place
        try:
            _write(found)
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
            self._newest.setdefault(run.token, found)  # the write of a newer farewell, if one waits, is a second try
            log.warning(
                'stream "%s": the report of a batch could not be left in the checkpoint (%s). The next heartbeat '
                "carries it. A query that is killed before holds for a grace when it is started again",
                run.stream.name,
                failed,
            )


def _write(unwritten: _Unwritten) -> None:
    query, farewell, resumed = unwritten
    query.farewells.write(farewell)
    if resumed is not None:
        query.farewells.forget(resumed)


def _of(run: StreamRun, *, over: bool = False) -> Farewell | None:
    """Return the last report of a run, None if the run has none that may be written.

    Returns None if the run counts claims of a plan that Spark may not have written: a restart may plan less far, and
    the rows in between would be late. The state is left out if the offset of the last answer carries it. An ended run
    writes its state in any case, because Spark may have stopped before it wrote that offset.
    """
    if run.last_batch_id is None or not run.written or run.broken or run.goes_beyond_its_offset:
        return None
    state = run.state() if over or run.epoch != run.told_epoch else ""
    return Farewell(run.token, run.told_epoch, run.last_batch_id, state)


def lost_report(
    queries: Queries, stream_id: str, request: HeartbeatRequest, left_behind: Farewell | None
) -> int | None:
    """Return the batch committed before this run and never reported; None if no unreported batch may bring splits.

    A batch without progress of a source had no rows, so its report brings no split.

    Args:
        request: the first question of the heartbeat reader.

    Raises:
        Exception: whatever py4j or the file system raises.
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


def find(queries: Queries, request: HeartbeatRequest, stream: str) -> Farewell | None:
    """Return the farewell of the run before, None if there is none that fits the run's last offset.

    A farewell with a state may be newer than the offset, because Spark may stop before it writes the offset of an
    answer. A farewell without a state relies on the state in one offset, so it fits that offset alone.
    """
    if request.resumes is None:
        return None
    queries.find()
    for query in queries:
        try:
            farewell = query.farewells.read(request.resumes)
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class of errors
            warn(stream, request.resumes, failed)
            continue
        if farewell is not None and (
            farewell.epoch == request.epoch or (farewell.state and farewell.epoch > request.epoch)
        ):
            return farewell
    return None


def warn(stream: str, token: str | None, failed: Exception) -> None:
    """Log that a farewell cannot be read, and the consequence."""
    log.warning(
        'stream "%s": the file lowmark/%s in the checkpoint cannot be read (%s). The query goes on from its last '
        "offset; a window may wait for one more row of each split",
        stream,
        token,
        failed,
    )
