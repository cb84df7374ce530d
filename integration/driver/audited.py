"""Audited streams: they keep their own `withWatermark`, and lowmark adds an observation but decides nothing.

Measurements make watermarks as in other runs. Their low watermark has no effect, because an audited stream has no
heartbeat. Spark judges the rows of a batch by its own watermark of the batch before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial

from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.spark.sessions import QueryEvent
from lowmark.watermark import StreamStatus
from lowmark.watermark.printable import counted
from lowmark.watermark.splits.events import BatchReported, Effect, Event

from . import failures
from .run_log import RowsLog
from .runs import KeptRuns
from .stream import Streams
from .stream_run import StreamRun

log = logging.getLogger("lowmark")


@dataclass
class AuditedRun(StreamRun):
    """One audited stream in one query, from its first progress event."""

    late_us: int | None = field(default=None, init=False)  # by which Spark judges the rows of the next batch
    used_us: int | None = field(default=None, init=False)  # the watermark of the newest batch
    dropped_rows: int = field(default=0, init=False)
    _counted_batch_id: int | None = field(default=None, init=False)
    _rows_log: RowsLog = field(default_factory=partial(RowsLog, looked_at_watermark=True))  # it is the user's own

    def take(self, progress: Progress, now_us: int) -> None:
        if self.last_batch_id is not None and progress.batch_id <= self.last_batch_id:
            return
        if progress.batch_id != self._counted_batch_id:  # otherwise an error has ended the first try
            self._counted_batch_id = progress.batch_id
            self.late_us, self.used_us = self.used_us, progress.watermark_us
            self.dropped_rows += progress.dropped_rows
        self.asked_at_us = now_us
        self.report(progress, len(progress.sources), planned_at_us=now_us, now_us=now_us)

    def refuse(self, why: str) -> None:
        """Warn once that the stream cannot be measured; the query goes on."""
        if self.refusal is None:
            log.warning("%s", why)
        self.refusal = why

    def give_up(self, what: str, failed: BaseException) -> None:
        super().give_up(what, failed)
        self.broken = False  # the next batch may be measured

    def sources_in(self, progress: Progress, heartbeat: int) -> list[SourceProgress]:  # noqa: ARG002
        """Return the query's sources if all belong to this stream, else none: Spark does not tell them apart."""
        return progress.sources if len(progress.sources) == self.stream.sources else []

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        if isinstance(event, BatchReported):
            event = replace(event, in_force_us=self.late_us, judged_by_us=self.late_us)
        return self.watermarks.handle(event, now_us)

    def status(self, now_us: int, limit: int | None = None) -> StreamStatus:
        status = super().status(now_us, limit)
        lost = f"{counted(self.dropped_rows, 'row') if self.dropped_rows else 'no row'} dropped by it so far"
        why = f"audited only: Spark goes by its own watermark, {lost}. Under lowmark: {status.why}"
        return replace(status, why=why, native_watermark_us=self.used_us)


class Audits(KeptRuns[AuditedRun]):
    """The audited streams of a service. Belongs to its loop."""

    def __init__(self, clock: SteadyClock) -> None:
        super().__init__()
        self._clock, self.streams = clock, Streams()

    def readers(self, name: str) -> tuple[str, ...]:
        """Names, or else ids, of the running queries on the stream with this name."""
        return tuple(str(run.query) for run in self if run.stream.name == name and not run.ended)

    def release(self, name: str) -> None:
        self.streams.release(name)
        self._runs = {token: run for token, run in self._runs.items() if run.stream.name != name}

    def take_event(self, kind: str, event: QueryEvent) -> None:
        if not self.streams:
            return
        match kind:
            case "progress":
                self._take(event.progress())
            case "idle":
                for run in self.of_query(event.run_id):
                    run.seen_at_us = self._clock.now_us()
            case "terminated":
                for run in self.of_query(event.run_id):
                    run.ended, run.failure = True, failures.brief(event.failure)

    def _take(self, progress: Progress) -> None:
        now_us = self._clock.now_us()
        for stream_id, stream in self.streams.items():
            token = f"{stream_id}-{progress.run_id}"
            run = self.get(token)
            if run is None and stream.metric in progress.observed_metrics:
                run = AuditedRun.attach(stream, token=token, now_us=now_us)
                run.tie(progress.id, progress.run_id, progress.name)
                self.keep(run)
            if run is not None:
                run.take(progress, now_us)
