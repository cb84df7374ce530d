"""The last report of a run, which no heartbeat carried: left in the checkpoint for the run that goes on from it."""

from __future__ import annotations

import logging

from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.queries import Queries, RunningQuery
from lowmark.integration.transport.driver_rpc import HeartbeatRequest

from .stream_run import StreamRun

__all__ = ["find", "leave", "warn"]

log = logging.getLogger("lowmark")


def find(queries: Queries, request: HeartbeatRequest, stream: str) -> Farewell | None:
    """What the run before left in the checkpoint after its last offset, if it belongs to that very offset."""
    if request.resumes is None:
        return None
    queries.find()
    for query in queries:
        try:
            farewell = query.farewells.read(request.resumes)
        except Exception as failed:  # noqa: BLE001  # py4j's and the file system's have no common base
            warn(stream, request.resumes, failed)
            continue
        if farewell is not None and farewell.epoch == request.epoch:
            return farewell
    return None


def leave(query: RunningQuery | None, run: StreamRun) -> None:
    """Leave the last report of a run in its query's checkpoint, where no heartbeat carried it.

    None with the claims of a plan that Spark may not have written: a restart plans anew, perhaps not so far, and the
    rows between would be late.

    Raises:
        Exception: whatever py4j and the file system raise.
    """
    if query is None or run.last_batch_id is None or run.broken:
        return
    if run.epoch != run.told_epoch and not run.goes_beyond_its_offset:
        query.farewells.write(Farewell(run.token, run.told_epoch, run.last_batch_id, run.state()))
    if run.resumes is not None:
        query.farewells.forget(run.resumes)


def warn(stream: str, token: str | None, failed: Exception) -> None:
    """Say that a last report cannot be read, and what follows."""
    log.warning(
        'stream "%s": the file lowmark/%s in the checkpoint cannot be read (%s). The query goes on from its last '
        "offset; a window may wait for one more row of each split",
        stream,
        token,
        failed,
    )
