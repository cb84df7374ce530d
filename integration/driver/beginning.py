"""Begins a run from the farewell of the run before, else from the heartbeat's offset, else from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lowmark.integration.errors import UnknownStream
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.sessions import Query
from lowmark.integration.transport.driver_rpc import HeartbeatRequest
from lowmark.watermark import CorruptSnapshot

from . import farewells
from .aside import Talk
from .ending_queries import Ending, EndingQueries
from .reports import Reports
from .runs import Runs
from .stream import Stream
from .stream_run import StreamRun


class Beginnings:
    """Begins the runs of a service with the first questions of heartbeat readers.

    Args:
        reports: brings the progress of finished batches.
        ending: AvailableNow queries whose readers Spark has not told so.
    """

    def __init__(self, runs: Runs, reports: Reports, ending: EndingQueries) -> None:
        self._runs, self._reports, self._ending = runs, reports, ending

    def begin_run(self, request: HeartbeatRequest, now_us: int) -> Talk[StreamRun]:
        """Begin the run of a reader that asks for the first time, and end the run that it resumes.

        The run is not among those of the service before all is read that it begins with.

        Raises:
            UnknownStream: the reader's stream or run does not belong to this service, or its query has ended meanwhile.
        """
        stream = self._runs.streams.get(request.stream_id)
        if stream is None or not request.first:
            raise UnknownStream(request.stream_id, self._runs.streams.names())
        before = self._runs.get(request.resumes)
        if before is not None and not before.ended:  # the query was restarted before the news of its end came
            self._reports.leave_last(before)
        ending = self._ending.of_heartbeat(stream.stream_id)
        self._runs.queries.find()
        reading = [query for query in self._runs.queries if stream.stream_id in query.streams()]
        tied = {run.run_id for run in self._runs}
        beginning = [query for query in reading if query.run_id not in tied]
        unwritten = self._reports.farewells.unwritten(request.resumes)
        asked = beginning or reading  # another's checkpoint may be on a file system that hangs
        run = yield from _begin(stream, request, asked, ending, now_us, unwritten)
        names = {query.query_id if query.name is None else query.name for query in beginning}
        run.begun_as = names.pop() if len(names) == 1 else None
        # A query that begins again before the news of its end came is there with two runs.
        run.begun_run_id = beginning[0].run_id if len(beginning) == 1 else None
        if (marking := self._runs.markings.get(stream.name)) is not None:
            for query in asked:
                yield partial(marking.begin, query)
        if beginning and not any(self._runs.queries.get(query.run_id) for query in beginning):
            raise UnknownStream(request.stream_id, self._runs.streams.names())  # nothing would end its run any more
        if before is not None:
            run.complete_until_us = before.complete_until_us  # the sink stays as it is
        run.shares = self._runs.cooperation.shares(stream)
        self._runs.keep(run)
        return run


def _begin(
    stream: Stream,
    request: HeartbeatRequest,
    queries: Sequence[Query],
    ending: Ending | None,
    now_us: int,
    unwritten: Farewell | None,
) -> Talk[StreamRun]:
    """Return the run of a heartbeat reader that asks for the first time; refused if the query must not go on.

    Args:
        request: the reader's first question, with the offset from the checkpoint.
        queries: those whose reader may ask.
        ending: set for an AvailableNow query whose reader Spark has not told so; None: the query goes on.
        unwritten: the farewell of the run before, if this driver has not written it yet.
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
    left_behind: Farewell | None = yield partial(farewells.find, queries, request, stream.name, unwritten)
    if left_behind is not None:
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
        lost: int | None = yield partial(farewells.lost_report, queries, stream.stream_id, request, left_behind)
        if lost is not None:
            run.lose(lost, now_us)
    if ending is not None:
        run.available_now = True
        if (refusal := ending.refusal(stream.name)) is not None:
            run.refuse(refusal)
    return run
