"""Answers heartbeat readers: the low watermark, and before the first batch whether the query may begin."""

from __future__ import annotations

from functools import partial

from lowmark.integration.errors import UnreadableReport
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.watermark.splits.events import Polled, Tick

from . import failures
from .aside import Talk
from .beginning import Beginnings
from .reports import Reports
from .runs import Runs
from .stream_run import StreamRun

_LISTEN_US = 1_000_000
"""An idle query's reader asks so often, because a person may have left a split out meanwhile."""


class Heartbeats:
    """The conversations with heartbeat readers.

    Args:
        runs: the runs of the service.
        reports: brings the progress of finished batches.
        beginnings: begins the run of a reader that asks for the first time.
    """

    def __init__(self, runs: Runs, reports: Reports, beginnings: Beginnings) -> None:
        self._runs, self._reports, self._beginnings = runs, reports, beginnings

    def answer(self, request: HeartbeatRequest) -> Talk[HeartbeatReply]:
        """Answer a heartbeat reader, after taking the reports of all batches that are over.

        Raises:
            UnknownStream: the reader's stream or run does not belong to this service.
        """
        now_us = self._runs.clock.now_us()
        run = self._runs.get(request.token)
        if run is None:
            run = yield from self._beginnings.begin_run(request, now_us)
        if run.stream.tells_late:
            if (query := self._runs.queries.get(run.run_id)) is None:  # it has had no batch, so its offset log is read
                yield partial(self._runs.queries.tell_late, run.stream.stream_id)
            else:
                query.tell_late()
        try:
            self._reports.catch_up(run, planned_at_us=self._own_time(request.planned_at_us))
        except UnreadableReport as unreadable:  # the next report will be no better, and the watermark would hold
            run.give_up("a report", unreadable)
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
        said = yield lambda: {failures.conflict_of(query, streams) for query in beginning}
        # If several queries begin together, the heartbeat may belong to any of them.
        why = said.pop() if len(said) == 1 else None
        return None if why is None else f'stream "{self._runs.streams[stream_id].name}": {why}'

    def worth_waiting(self, request: HeartbeatRequest) -> bool:
        """Whether a reader that will not ask again may soon get a better answer."""
        run = self._runs.get(request.token)
        ends = run is not None and (request.available_now or run.available_now)
        return run is not None and ends and self._runs.cooperation.worth_waiting(run)

    def _wake_at_us(self, run: StreamRun, now_us: int) -> int:
        """When an idle query's reader must ask again, monotonic microseconds."""
        wake_at_us = self._runs.cooperation.wake_at_us(run, run.watermarks.wake_at_us(now_us))
        listen_us = now_us + _LISTEN_US
        if wake_at_us is None or (run.stream.withholds and wake_at_us <= now_us):
            wake_at_us = listen_us  # the second case: only a batch can settle this silence, because polls show nothing
        return self._runs.clock.to_monotonic_us(min(wake_at_us, listen_us))

    def _own_time(self, monotonic_us: int | None) -> int:
        clock = self._runs.clock
        return clock.now_us() if monotonic_us is None else clock.from_monotonic_us(monotonic_us)
