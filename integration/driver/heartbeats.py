"""Answers heartbeat readers: whether the query may begin, and then the low watermark of the run that begins with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from lowmark.integration.errors import UnknownStream, UnreadableReport
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.classic import RunningQuery
from lowmark.integration.spark.sessions import Query, called
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.watermark import CorruptSnapshot
from lowmark.watermark.splits.events import Polled, Tick

from . import failures, farewells
from .aside import Talk
from .reports import Reports
from .runs import Runs
from .stream import Stream
from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_LISTEN_US = 1_000_000
"""An idle query's reader asks so often, because a person may have left a split out meanwhile."""


class Heartbeats:
    """The conversations with heartbeat readers."""

    def __init__(self, runs: Runs, reports: Reports) -> None:
        self._runs, self._reports = runs, reports

    def answer(self, request: HeartbeatRequest) -> Talk[HeartbeatReply]:
        """Answer a heartbeat reader, after the reports of all batches that are over; errors as in `_begin_run`."""
        now_us = self._runs.clock.now_us()
        run = self._runs.get(request.token)
        if run is None:
            run = yield from self._begin_run(request, now_us)
        run.splits.ends = request.available_now or run.available_now
        try:
            self._reports.catch_up(run, planned_at_us=self._own_time(request.planned_at_us))
        except UnreadableReport as unreadable:  # the next report will be no better, and the watermark would hold
            run.give_up("a report", unreadable)
        if run.stream.tells_late and (query := self._runs.queries.get(run.run_id)) is not None:
            query.tell_late()  # before the first batch, `Queries` has told its tasks
        run.asked_at_us = now_us
        polled = request.polled_until_us is not None and not run.stream.withholds
        run.hear(Polled(self._own_time(request.polled_until_us)) if polled else Tick(), now_us)
        run.tell()
        self._runs.after(run, now_us)
        self._reports.end_before(run)
        if run.refusal is not None:  # nothing of a refused run is written
            return HeartbeatReply(low_watermark_us=None, epoch=run.told_epoch, state="", refusal=run.refusal)
        wake_at_us = self._wake_at_us(run, now_us)
        state = run.answer(now_us)
        return HeartbeatReply(run.low_watermark_us, run.told_epoch, state, wake_at_us)

    def refuses(self, stream_id: str) -> Talk[str | None]:
        """Say why a query cannot begin with a stream, None if no reason is known."""
        if (released := self._runs.streams.why_released(stream_id)) is not None:
            return released
        self._runs.queries.find()
        beginning = [q for q in self._runs.queries if q.newest() is None and stream_id in q.streams()]
        streams = dict(self._runs.streams)
        if stream_id in streams and not beginning:  # nobody would hear of its batches, and the watermark would hold
            return (
                f'stream "{streams[stream_id].name}": the query runs in another session of Spark than the DataFrame '
                "that it reads, as by a global temporary view, and lowmark hears only of queries in the DataFrame's. "
                "Hint: start the query in the DataFrame's session, or wrap the stream in the query's."
            )
        said = yield lambda: {failures.conflict_of(query, streams) for query in beginning}
        # If several queries begin together, the heartbeat may belong to any of them.
        why = said.pop() if len(said) == 1 else None
        return None if why is None else f'stream "{streams[stream_id].name}": {why}'

    def worth_waiting(self, request: HeartbeatRequest) -> bool:
        """Whether a reader that will not ask again may soon get a better answer."""
        run = self._runs.get(request.token)
        if run is None or not (request.available_now or run.available_now):
            return False
        return self._runs.cooperation.worth_waiting(run)

    def _begin_run(self, request: HeartbeatRequest, now_us: int) -> Talk[StreamRun]:
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
        ends = stream.stream_id in self._runs.ending.of_heartbeats
        fault = self._runs.ending.of_heartbeats.pop(stream.stream_id, None)
        self._runs.queries.find()
        reading = [query for query in self._runs.queries if stream.stream_id in query.streams()]
        tied = {run.run_id for run in self._runs}
        beginning = [query for query in reading if query.run_id not in tied]
        unwritten = self._reports.farewells.unwritten(request.resumes)
        asked = beginning or reading  # another's checkpoint may be on a file system that hangs
        run = yield from _restored(stream, request, asked, unwritten, now_us, self._runs.clock.wall_ahead_us)
        run.available_now = ends
        if fault is not None:
            run.refuse(
                f'stream "{stream.name}": Trigger.AvailableNow would run one batch and emit nothing, because Spark '
                f"before 4.2 does not let a source in Python take part, and lowmark could not mend it ({fault}). "
                "Hint: use a processing-time trigger, and end the query with processAllAvailable() and stop()."
            )
        names = set(map(called, beginning))
        run.begun_as = names.pop() if len(names) == 1 else None
        # A query that begins again before the news of its end came is there with two runs.
        run.begun_run_id = beginning[0].run_id if len(beginning) == 1 else None
        if (marking := self._runs.markings.get(stream.name)) is not None:
            for query in asked:
                yield partial(marking.begin, cast("RunningQuery", query))  # `mark_done` refuses a client
        if before is not None and (newest := before.last_batch_id) is not None:
            stays = yield lambda: any(query.farewells.committed(newest) for query in asked)
            # Else checkpoint, and maybe table, were set back to a copy of before.
            run.complete_until_us = before.complete_until_us if stays else None
        if beginning and not any(self._runs.queries.get(query.run_id) for query in beginning):
            raise UnknownStream(request.stream_id, self._runs.streams.names())  # nothing would end its run any more
        run.shares = self._runs.cooperation.shares(stream)
        self._runs.keep(run)
        return run

    def _wake_at_us(self, run: StreamRun, now_us: int) -> int:
        """When an idle query's reader must ask again, monotonic microseconds."""
        wake_at_us = self._runs.cooperation.wake_at_us(run, run.watermarks.wake_at_us(now_us, run.wall_ahead_us()))
        listen_us = now_us + _LISTEN_US
        if wake_at_us is None or (run.stream.withholds and wake_at_us <= now_us):
            wake_at_us = listen_us  # the second case: only a batch can settle this silence, because polls show nothing
        return self._runs.clock.to_monotonic_us(min(wake_at_us, listen_us))

    def _own_time(self, monotonic_us: int | None) -> int:
        clock = self._runs.clock
        return clock.now_us() if monotonic_us is None else clock.from_monotonic_us(monotonic_us)


def _restored(
    stream: Stream,
    request: HeartbeatRequest,
    queries: Sequence[Query],
    unwritten: Farewell | None,
    now_us: int,
    wall_ahead_us: Callable[[], int],
) -> Talk[StreamRun]:
    """Return the run of a reader of one of these queries: from a farewell, else from its offset, else from nothing.

    The run is refused if its query must not go on.
    """
    attach = partial(
        StreamRun.attach,
        stream,
        token=request.token,
        resumes=request.resumes,
        now_us=now_us,
        restored_low_us=request.low_watermark_us,
        wall_ahead_us=wall_ahead_us,
    )
    run = None
    left_behind: Farewell | None = yield partial(farewells.find, queries, request, stream.name, unwritten)
    if left_behind is not None:
        try:
            run = attach(state=left_behind.state or request.state)
        except CorruptSnapshot as corrupt:
            log.warning(farewells.UNREADABLE, stream.name, request.resumes, corrupt)
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
    return run
