"""The standing of a service's streams in each query, in figures and in words. Belongs to the loop."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from lowmark.integration.errors import UnknownStream
from lowmark.integration.run_status import RunStatus
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import Cause, StreamStatus, explain, format_time_us
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.printable import printable
from lowmark.watermark.splits.status import behind

from . import passing
from .audited import AuditedRun, Audits
from .cooperation import explained_by
from .known_planner import KnownPlanner
from .runs import Runs
from .stream import Stream
from .stream_run import StreamRun

_LONG_US = 10_000_000
"""After this time the status mentions a batch that still runs."""


class Standing:
    """The streams of a service, including audited streams, for status, metrics, page and command line."""

    def __init__(self, runs: Runs, audits: Audits) -> None:
        self._runs, self._audits = runs, audits

    def status_of(self, name: str, query: str | None) -> StreamStatus:
        """Return the status of a stream, by default in the query furthest behind; raises `UnknownStream`."""
        stream = self._runs.streams.named(name) or self._audits.streams.named(name)
        if stream is None:
            raise UnknownStream(name, self.names())
        now_us = self._runs.clock.now_us()
        runs = self._runs_of(name, query)
        live = [run for run in runs if not run.ended]
        tied = [run for run in live if run.run_id is not None]  # an untied run's query may have failed at once
        candidates = tied if tied else live if live else runs[-1:]
        if not candidates or (not live and self._heard(stream, now_us)):
            return self._status(self._run_before(stream, now_us), now_us)
        return min((self._status(run, now_us) for run in candidates), key=behind)

    def explain(self, name: str, query: str | None) -> str:
        """Explain the status in words; raises `UnknownStream`."""
        others = [self._runs.cooperation.explain(run) for run in self._runs_of(name, query) if not run.ended]
        failed = self._runs.could_not_begin.get(name)
        others.append(None if failed is None else f"  failed a query could not begin: {failed}")
        return in_words(self.status_of(name, query), *others)

    def statuses(self, limit: int | None = None) -> list[tuple[str | None, StreamStatus]]:
        """Return (query, status) of every run of a running query. Here and below, `limit` bounds the splits of each."""
        now_us = self._runs.clock.now_us()
        return [
            *((run.query, self._status(run, now_us, limit)) for run in self._runs if not run.ended),
            *((None, self._status(run, now_us)) for run in self._waiting(now_us)),
            *((run.query, self._status(run, now_us, limit)) for run in self._audits if not run.ended),
        ]

    def run_statuses(self, without: Container[str] = (), limit: int | None = None) -> list[RunStatus]:
        """Return all runs except those with the given tokens."""
        now_us = self._runs.clock.now_us()
        runs = (run for run in (*self._runs, *self._audits) if run.token not in without and not run.of_nobody)
        return [self._run_status(run, now_us, limit) for run in runs]

    def shown(self, *, stream: str | None, limit: int | None) -> list[RunStatus]:
        """Return the runs to show to people, including queries of which only the planner has asked.

        An ended run is among them if no newer run of the same query exists.

        Args:
            stream: name of a stream; None: all.
        """
        now_us = self._runs.clock.now_us()
        runs = [
            run
            for run in (*self._runs.known(), *self._waiting(now_us), *self._audits)
            if stream in (None, run.stream.name)
        ]
        newest = {(run.stream.name, run.query): run for run in runs}
        runs = [run for run in runs if not run.ended or newest[run.stream.name, run.query] is run]
        return [self._run_status(run, now_us, limit) for run in runs]

    def names(self) -> tuple[str, ...]:
        return tuple(sorted((*self._runs.streams.names(), *self._audits.streams.names())))

    # -- how

    def _runs_of(self, name: str, query: str | None) -> list[StreamRun]:
        # The name may have been that of a stream that was released.
        runs = (run for run in self._runs if run.stream.stream_id in self._runs.streams)
        return passing.of_stream((*runs, *self._audits), name, query)

    def _status(self, run: StreamRun, now_us: int, limit: int | None = None) -> StreamStatus:
        """The status of the stream, with its source's waiting and the running batch."""
        status, planner = run.status(now_us, limit), self._planner(run, now_us)
        if run.broken:
            return replace(status, why=f"the query ends with its next batch: {run.refusal}")
        why = status.why
        query = None if run.ended else self._runs.queries.get(run.run_id)
        if query is not None and (trouble := query.trouble) is not None:
            why = f"{why} {trouble}"
        if run.unmeasured_batches:
            why = (
                f"{why} Batches with rows that were not measured, and so moved no watermark: "
                f"{run.unmeasured_batches:,}. Hint: the driver's log has the cause."
            )
        if planner is not None and (plan := planner.newest) is not None:
            if plan.missing is not None and not run.watermarks.splits:
                why = f"no split is known yet: {plan.missing}"
            if planner.being_read is not None and not run.watermarks.splits:
                why = f"no split has been reported yet: the first batch is being read {_amount(plan)}."
            if plan.trouble is not None:
                why = f"{why} Waiting for the source: {plan.trouble}"
            if planner.being_read is not None and now_us - planner.planned_us >= _LONG_US:
                why = (
                    f"{why} A batch has been read since {format_time_us(planner.planned_us)} {_amount(plan)}. "
                    "Hint: a reader that waits for its system, away or throttling, says so in the log of its executor."
                )
        return self._cause_first(run, replace(status, why=why), now_us)

    def _cause_first(self, run: StreamRun, status: StreamStatus, now_us: int) -> StreamStatus:
        """Return the status with causes outside of the stream in place of its splits' causes."""
        failure = run.failure if run.refusal is None or isinstance(run, AuditedRun) else run.refusal
        if failure is not None:
            why = f"the query failed: {failure}"
            what_next = "The query is started again: it goes on from its checkpoint."
            return replace(status, cause=Cause.QUERY_FAILED, holder=None, why=why, next=what_next)
        link = None if run.ended or isinstance(run, AuditedRun) else self._runs.cooperation.link(run)
        if link is None or not link.holds:
            return status
        alone = format_time_us(run.watermarks.low_watermark_us)
        if not link.connected:
            away = "" if link.since_us is None else f" for {rough_duration_us(max(0, now_us - link.since_us))}"
            job = self._runs.cooperation.job
            held = (
                f'the low watermark of job "{job}" is held; these splits alone would allow {alone}'
                if run.shares
                else "the stream is read no further than its alignment group allowed before"
            )
            why = f"the coordinator at {link.address} has not answered{away} ({link.why}), so {held}."
            holder = None if run.shares else status.holder
            what_next = "The coordinator answers again."
            return replace(status, cause=Cause.COORDINATOR_AWAY, holder=holder, why=why, next=what_next)
        if run.shares and run.job_low.held_by_others(now_us):
            why = (
                f'other queries of job "{self._runs.cooperation.job}" hold it; these splits alone would allow {alone}. '
                f"{explained_by(link.address)} names the query that holds it."
            )
            return replace(status, cause=None, holder=None, why=why, next="The query that holds it goes on.")
        return status

    def _waiting(self, now_us: int) -> list[StreamRun]:
        """Queries of which only the planner has asked, as runs without any knowledge."""
        begun = {run.stream.stream_id for run in self._runs if not run.ended}
        streams = [each for stream_id, each in self._runs.streams.items() if stream_id not in begun]
        return [self._run_before(each, now_us) for each in streams if self._heard(each, now_us)]

    def _heard(self, stream: Stream, now_us: int) -> KnownPlanner | None:
        """The planner of a query that waits for its first splits, if only the planner has asked; else None."""
        planner = self._runs.planners.newest(stream.stream_id, None, now_us)
        if planner is None or planner.newest is None or planner.newest.missing is None:
            return None
        # A planner that was not heard since a query of the stream ended is the planner of that query.
        over_us = max((run.seen_at_us for run in self._runs if run.ended and run.stream is stream), default=0)
        return planner if planner.heard_us > over_us else None

    def _planner(self, run: StreamRun, now_us: int) -> KnownPlanner | None:
        return None if run.ended else self._runs.planners.newest(run.stream.stream_id, run.token, now_us)

    def _run_before(self, stream: Stream, now_us: int) -> StreamRun:
        """A run for a stream without a live run: no query of it has asked yet, or all are over."""
        planner = self._heard(stream, now_us)
        at_us = now_us if planner is None else planner.planned_us
        kind = StreamRun if stream.stream_id in self._runs.streams else AuditedRun
        return kind.attach(stream, token=stream.stream_id, now_us=at_us)

    def _run_status(self, run: StreamRun, now_us: int, limit: int | None) -> RunStatus:
        spent_us = run.watermarks.spent_us(run.seen_at_us if run.ended else now_us)
        audited, cooperation = isinstance(run, AuditedRun), self._runs.cooperation
        planner = self._planner(run, now_us)
        return RunStatus(
            token=run.token,
            query=run.query,
            query_id=run.query_id,
            status=self._status(run, now_us, limit),
            emits=run.stream.strategy.emits and not audited,
            unmeasured_batches=run.unmeasured_batches,
            lost_reports=run.lost_reports,
            refused=run.refusal is not None and not audited,  # an audited query goes on although it cannot be measured
            failed=run.failure is not None,
            ended=run.ended,
            asked_at_us=run.asked_at_us,
            reported_at_us=run.reported_at_us,
            seen_at_us=run.seen_at_us,
            source_metrics=run.splits.source_metrics,
            late_reports=run.watermarks.late_reports,
            rows_at_us=run.rows_at_us,
            backlog_rows=run.watermarks.backlog_rows,
            batch_since_us=None if planner is None or planner.being_read is None else planner.planned_us,
            alignment=cooperation.alignment(run),
            spent_us={state.value: us for state, us in spent_us.items()},
            gaps=run.gaps,
            others=None if run.ended else cooperation.explain(run),
            coordinator=None if run.ended or audited else cooperation.link(run),
            complete_until_us=run.complete_until_us,
            rises=() if limit is not None or run.shares else run.watermarks.rises(now_us),
            now_us=now_us,
            wall_ahead_us=self._runs.clock.wall_ahead_us(),
        )


def _amount(plan: Planned) -> str:
    rows = plan.rows.values()
    return f"(rows: {sum(rows):,}; splits: {sum(count > 0 for count in rows):,})"


def in_words(status: StreamStatus, *others: str | None) -> str:
    """Return the explanation of a status, and below it the run's relation to other queries."""
    return "\n".join([explain(status), *(printable(each) for each in others if each is not None)])
