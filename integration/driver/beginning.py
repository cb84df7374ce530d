"""Begins a run from the farewell of the run before, else from the heartbeat's offset, else from nothing."""

from __future__ import annotations

from functools import partial

from lowmark.integration.spark.queries import Queries
from lowmark.integration.transport.driver_rpc import HeartbeatRequest
from lowmark.watermark import CorruptSnapshot

from . import farewells
from .ending_queries import Ending
from .stream import Stream
from .stream_run import StreamRun

__all__ = ["begin"]


def begin(stream: Stream, request: HeartbeatRequest, queries: Queries, ending: Ending | None, now_us: int) -> StreamRun:
    """Return the run of a heartbeat reader that asks for the first time; refused if the query must not go on.

    Args:
        stream: the stream of the heartbeat.
        request: the reader's first question, with the offset from the checkpoint.
        queries: Spark's running queries.
        ending: set for an AvailableNow query whose reader Spark has not told so; None: the query goes on.
        now_us: now, on the service's clock.
    """
    attach = partial(
        StreamRun.attach,
        stream,
        token=request.token,
        resumes=request.resumes,
        now_us=now_us,
        restored_low_us=request.low_watermark_us,
    )
    run = None
    if (left_behind := farewells.find(queries, request, stream.name)) is not None:
        try:
            run = attach(state=left_behind.state or request.state)
        except CorruptSnapshot as corrupt:
            farewells.warn(stream.name, request.resumes, corrupt)
            left_behind = None
    if run is None:
        try:
            run = attach(state=request.state)
        except CorruptSnapshot as corrupt:
            run = attach(state=None)
            run.refuse(f'stream "{stream.name}": the state in the checkpoint cannot be read. {corrupt}')
    if not stream.reads and request.split not in (None, stream.key.text):
        run.refuse(
            f'stream "{stream.name}": its splits are told by ({stream.key.text}), and in the checkpoint by '
            f"({request.split}). Splits of before would be waited for in vain. "
            "Hint: pass split= as before, or start with a new checkpoint."
        )
    if stream.finds_splits and run.refusal is None:
        lost = farewells.lost_report(queries, stream.stream_id, request, left_behind)
        if lost is not None:
            run.lose(lost, now_us)
    if ending is not None:
        run.available_now = True
        if (refusal := ending.refusal(stream.name)) is not None:
            run.refuse(refusal)
    return run
