"""All runs of all streams of a service: attached by heartbeats, fed by progress, ended by Spark's events.

When a heartbeat reader asks, Spark has just finished a batch and put its progress where `Queries` finds it, so it is
taken before the answer is given: the report of batch N is in the heartbeat of batch N + 1 without waiting for anybody.
Spark's listener brings what nobody asks for: the last batch of a query, its start and its end. Belongs to the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from lowmark.integration.errors import UnknownStream
from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.spark.kafka_offsets import kafka_positions
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.queries import Queries, RunningQuery
from lowmark.integration.transport.driver_rpc import GuideRequest, HeartbeatReply, HeartbeatRequest
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.watermark import LowmarkError, NotifyNewLowWatermark, TaskId, Tick
from lowmark.watermark.splits.events import Effect, Polled

from . import beginning, failures
from .cooperation import Cooperation
from .ending_queries import EndingQueries
from .farewells import Farewells
from .known_planner import KnownPlanner, Planners
from .planned_splits import PlannedSplits, planned_to
from .run_log import log_ahead
from .stream import Stream
from .stream_run import StreamRun
from .streams import Streams

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import Member
    from py4j.java_gateway import JavaObject

__all__ = ["Runs"]

log = logging.getLogger("lowmark")

_ENDED_RUNS_KEPT = 100


class Runs:
    """What became of the streams of a service in queries; goes through its runs in the order in which they attached.

    Args:
        queries: Spark's running queries.
        notify: called with every new low watermark; must not block.
        member, job, job_queries, job_away_us: see `Cooperation`.

    Attributes:
        clock: the service's.
        streams: those that were wrapped or read.
        planners: of the sources of ours.
        ending: queries that end when nothing is new, and whose readers do not know it.
        farewells: leaves last reports in checkpoints.
        cooperation: what the runs have to do with others.
        could_not_begin: why no query has begun, by the name of the stream; until one does.
    """

    def __init__(
        self,
        queries: Queries,
        notify: Callable[[NotifyNewLowWatermark], None],
        member: Member | None = None,
        job: str | None = None,
        job_queries: int = 1,
        job_away_us: int | None = None,
    ) -> None:
        self._queries, self._notify = queries, notify
        self.clock = SteadyClock()
        self.streams, self.planners, self.ending = Streams(), Planners(), EndingQueries()
        self.farewells = Farewells()
        self.cooperation = Cooperation(self.clock.now_us, member, job, job_queries, job_away_us)
        self.could_not_begin: dict[str, str] = {}
        self._runs: dict[str, StreamRun] = {}  # by token, in order of attachment
        self._ended_untied: list[tuple[str, str, str | None]] = []  # (query, its run, its name), two at most

    def add(self, stream: Stream) -> None:
        """Know a wrapped stream, before its first heartbeat asks.

        Raises:
            DisagreeingGroup: its alignment group has other parameters.
        """
        self.cooperation.check(stream)
        self.streams.add(stream)

    def readers(self, name: str) -> tuple[str, ...]:
        """Names, or ids, of the queries that read a stream now."""
        mine = {stream.stream_id for stream in self.streams.named(name)}
        if not mine:
            return ()
        self._queries.find()
        reading = [query for query in self._queries if query.active and not mine.isdisjoint(query.streams())]
        return tuple(query.query_id if query.name is None else query.name for query in reading)

    def release(self, name: str) -> None:
        """Forget the streams of a name."""
        for stream in self.streams.release(name):
            self.cooperation.forget(stream, self.streams.values())

    def __iter__(self) -> Iterator[StreamRun]:
        return iter(tuple(self._runs.values()))

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Answer a heartbeat reader, after taking the reports of all batches that are over.

        Raises:
            UnknownStream: the reader's stream or run is not of this service.
        """
        now_us = self.clock.now_us()
        run = self._runs.get(request.run)
        if run is None:
            run = self._attach(request, now_us)
        self._catch_up(run, planned_at_us=self._own_time(request.planned_at_us))
        run.asked_at_us = now_us
        polled = request.polled_until_us is not None and not run.stream.withholds
        said = Polled(self._own_time(request.polled_until_us)) if polled else Tick()
        self._publish(run, run.hear(said, now_us))
        if run.refusal is not None:  # nothing of the run is written any more
            return HeartbeatReply(low_watermark_us=None, epoch=run.told_epoch, state="", refusal=run.refusal)
        run.tell()
        self._cooperate(run, now_us)
        wake_at_us = self.cooperation.wake_at_us(run, run.coordinator.wake_at_us(now_us))
        if run.stream.withholds and wake_at_us is not None and wake_at_us <= now_us:
            wake_at_us = None  # a silence that only a batch can settle, since polls show nothing here
        wake_at_us = None if wake_at_us is None else self.clock.to_monotonic_us(wake_at_us)
        state = run.answer(now_us)
        return HeartbeatReply(run.low_watermark_us, run.told_epoch, state, wake_at_us)

    def refuses(self, stream_id: str) -> str | None:
        """Say why the query that is about to begin with a stream cannot, None if it can for all that is known."""
        if (released := self.streams.why_released(stream_id)) is not None:
            return released
        self._queries.find()
        beginning = [q for q in self._queries if q.newest() is None and stream_id in q.streams()]
        said = {failures.conflict_of(query, self.streams) for query in beginning}
        # Of several that begin together, nobody can tell whose heartbeat it is that asks.
        why = said.pop() if len(said) == 1 else None
        return None if why is None else f'stream "{self.streams[stream_id].name}": {why}'

    # -- planners of our own sources ------------------------------------------------------------------------------

    def guide(self, request: GuideRequest) -> Guidance:
        """Say how far a planner may read.

        Raises:
            UnknownStream: it reads no stream of this service.
        """
        planner = self._planner(request.stream_id, request.run)
        run = None if planner.run is None else self._runs.get(planner.run)
        guidance = self.cooperation.guidance(self.streams[request.stream_id], run)
        observed_us = {} if run is None else dict(run.splits.observed_us)
        return replace(
            guidance, observed_us=observed_us, events=planner.take_events(), available_now=planner.available_now
        )

    def take_plan(self, stream_id: str, token: str, planned: Planned) -> None:
        """Hear what a planner has planned. Its query is known once a batch showed planner and heartbeat together."""
        planner = self._planner(stream_id, token)
        run = None if planner.run is None else self._runs.get(planner.run)
        concerns = run is not None and not run.ended and planner.is_news(planned)
        now_us = self.clock.now_us()
        if run is not None and concerns:
            self._publish(run, run.plan(planned, now_us))
        planner.keep(planned)  # once it was taken: a planner that gets no answer says it again
        if run is not None and concerns:
            self._cooperate(run, now_us)

    def _planner(self, stream_id: str, token: str) -> KnownPlanner:
        if stream_id not in self.streams:
            raise UnknownStream(stream_id, self.streams.names())
        planner = self.planners.get(token)
        if planner is None:
            ends = self.ending.of_planner(stream_id) is not None
            planner = KnownPlanner(stream_id, available_now=ends)
            self.planners.add(token, planner, self._is_over)
        planner.heard_us = self.clock.now_us()
        return planner

    def _is_over(self, run: str) -> bool:
        return run not in self._runs or self._runs[run].ended

    def _tie_planner(self, run: StreamRun, progress: Progress, heartbeat: int) -> None:
        """A batch shows which planner belongs to which heartbeat: both are in its offsets."""
        splits = run.splits
        if not isinstance(splits, PlannedSplits) or splits.planner is not None:
            return  # once is enough: a planner and a heartbeat live as long as their query's run
        offset = planned_to(run.sources_in(progress, heartbeat))
        planner = None if offset is None else self.planners.get(offset.run)
        if planner is None or planner.run is not None or planner.stream_id != run.stream.stream_id:
            return
        now_us = self.clock.now_us()
        for planned in planner.plans.values():
            self._publish(run, run.plan(planned, now_us))
        planner.run, run.splits.planner = run.token, planner

    def _attach(self, request: HeartbeatRequest, now_us: int) -> StreamRun:
        stream = self.streams.get(request.stream_id)
        if stream is None or not request.first:
            raise UnknownStream(request.stream_id, self.streams.names())
        before = None if request.resumes is None else self._runs.get(request.resumes)
        if before is not None and not before.ended:  # it was restarted before the news of its end came
            self._say_farewell(before)
        run = beginning.begin(stream, request, self._queries, self.ending.of_heartbeat(stream.stream_id), now_us)
        run.begun_as = self._begins_as(stream.stream_id)
        run.shares = self.cooperation.shares(stream)
        self._runs[request.run] = run
        self._forget_old_runs()
        return run

    def _begins_as(self, stream_id: str) -> str | None:
        """The name, or else the id, of the one query that is about to begin with a stream; None of several."""
        self._queries.find()
        tied = {run.run_id for run in self._runs.values()}
        beginning = [q for q in self._queries if q.run_id not in tied and stream_id in q.streams()]
        names = {query.query_id if query.name is None else query.name for query in beginning}
        return names.pop() if len(names) == 1 else None

    def _forget_old_runs(self) -> None:
        """A driver may start queries for months; status and metrics need the ended ones only for a while."""
        ended = [token for token, run in self._runs.items() if run.ended]
        for token in ended[: max(0, len(ended) - _ENDED_RUNS_KEPT)]:
            del self._runs[token]

    def _catch_up(self, run: StreamRun, *, planned_at_us: int) -> None:
        """Take the reports of all batches that are over: the newest as a rule, missed ones from the history."""
        query = self._queries.get(run.run_id)
        if query is None and run.run_id is None:
            self._queries.find()
            query = next((q for q in self._queries if self._belongs(run, q.newest())), None)
        if query is None:
            return
        newest = query.newest(run.last_batch_id)
        if newest is None:
            return
        missed = 0 if run.last_batch_id is None else newest.batch_id - run.last_batch_id - 1
        for progress in [*(query.history() if missed > 0 else ()), newest]:
            self._take_report(run, progress, planned_at_us=planned_at_us)

    def _take_report(self, run: StreamRun, progress: Progress, *, planned_at_us: int) -> None:
        if not self._belongs(run, progress):
            return
        if run.run_id is None:
            run.tie(progress.id, progress.run_id, progress.name)
            self.could_not_begin.pop(run.stream.name, None)
        if not run.checked and (query := self._find(run.run_id)) is not None:
            run.places, fault = query.stream_sources(), query.fault()
            run.checked = True
            if fault is not None:
                run.refuse(f'stream "{run.stream.name}": {fault}')
            log_ahead(run.stream, progress.watermark_us, self.clock.now_us())
        progress = self._with_starts(run, progress)
        known = len(run.coordinator.splits)
        for index, offset in progress.heartbeats():
            if run.wrote(offset):
                run.written |= offset.run == run.token
                self._tie_planner(run, progress, index)
                now_us = self.clock.now_us()
                self._publish(run, run.report(progress, index, planned_at_us=planned_at_us, now_us=now_us))
        if run.stream.finds_splits and len(run.coordinator.splits) > known:
            self.farewells.keep(
                self._queries.get(run.run_id), run
            )  # a heartbeat carries it soon, and a kill may come before

    def _find(self, run_id: str | None) -> RunningQuery | None:
        """The query of a run; None where it is over, and was never asked for."""
        if self._queries.get(run_id) is None:
            self._queries.find()
        return self._queries.get(run_id)

    def _with_starts(self, run: StreamRun, progress: Progress) -> Progress:
        """Spark does not say where Kafka's sources began in their first batch; the checkpoint does."""
        query = self._queries.get(run.run_id)
        if not run.stream.kafka or query is None:
            return progress
        sources = list(progress.sources)
        for index, source in enumerate(sources):
            if source.start_offset is None and kafka_positions(source.end_offset):
                try:
                    start = query.farewells.kafka_start(index)
                except Exception as failed:  # noqa: BLE001  # py4j's and the file system's have no common base
                    log.warning('stream "%s": rows of the first batch are not counted (%s)', run.stream.name, failed)
                    continue
                sources[index] = msgspec.structs.replace(source, start_offset=start)
        return msgspec.structs.replace(progress, sources=sources)

    def _belongs(self, run: StreamRun, progress: Progress | None) -> bool:
        return progress is not None and any(run.wrote(offset) for _, offset in progress.heartbeats())

    def _publish(self, run: StreamRun, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, NotifyNewLowWatermark) and not run.shares:
                self._notify(effect)

    def _cooperate(self, run: StreamRun, now_us: int) -> None:
        if not run.broken and self.cooperation.report(run) and (low_watermark_us := run.low_watermark_us) is not None:
            ids = (run.stream.stream_id, run.stream.name, run.token)
            self._notify(NotifyNewLowWatermark(*ids, now_us, low_watermark_us))

    def _own_time(self, monotonic_us: int | None) -> int:
        return self.clock.now_us() if monotonic_us is None else self.clock.from_monotonic_us(monotonic_us)

    def worth_waiting(self, request: HeartbeatRequest) -> bool:
        """Whether the answer to a reader that will not ask again may soon be a better one."""
        run = self._runs.get(request.run)
        ends = run is not None and (request.available_now or run.available_now)
        return run is not None and ends and self.cooperation.worth_waiting(run)

    def refuse(self, task: TaskId, refused: LowmarkError) -> None:
        """Nobody shares a run's low watermark any more: the query would hold for ever, so it ends and says why."""
        for run in self._runs.values():
            if not run.ended and self.cooperation.is_task(run, task):
                run.refusal = f'stream "{run.stream.name}": {refused}'

    # -- events of queries ----------------------------------------------------------------------------------------

    def take_event(self, kind: str, event: JavaObject) -> None:
        """Take an event of Spark's listener."""
        match kind:
            case "started":
                self._queries.find()
            case "progress":
                self._take_progress(event.progress())
            case "idle":
                self._take_sign_of_life(event)
            case "terminated":
                self._take_end(event)

    def _take_progress(self, java_progress: JavaObject) -> None:
        run_id, batch_id = java_progress.runId().toString(), java_progress.batchId()
        runs = [run for run in self._runs.values() if run.run_id in (run_id, None) and not run.ended]
        behind = [run for run in runs if run.last_batch_id is None or run.last_batch_id < batch_id]
        if behind:  # between two batches, and at the end of a query; else the heartbeat was faster
            progress = Progress.from_java(java_progress)
            for run in behind:
                self._take_report(run, progress, planned_at_us=run.asked_at_us)
                self._cooperate(run, self.clock.now_us())
                if run.stream.finds_splits and run.last_batch_id == batch_id:
                    self.farewells.keep(self._queries.get(run.run_id), run)

    def _take_sign_of_life(self, event: JavaObject) -> None:
        """Spark says every ten seconds that a query lives and has nothing to do."""
        run_id = event.runId().toString()
        for run in self._runs.values():
            if run.run_id == run_id:
                run.seen_at_us = self.clock.now_us()

    def _take_end(self, event: JavaObject) -> None:
        run_id = event.runId().toString()
        failure = event.exception().get() if event.exception().isDefined() else ""
        query = self._queries.get(run_id)
        told = failures.brief(failure)
        for run in self._runs.values():
            if query is not None and run.run_id is None and run.begun_as in (query.query_id, query.name or ""):
                run.tie(query.query_id, run_id, query.name)
        names = {run.stream.name for run in self._runs.values() if run.run_id == run_id}
        for run in self._runs.values():
            if run.run_id == run_id and not run.ended:
                self._say_farewell(run)
                run.ended, run.failed, run.failure = True, bool(failure), told
                self.cooperation.end(run)
                if run.stream.tracks is not None and run.query_id is not None and run.last_batch_id is not None:
                    run.stream.tracks.forget(run.query_id, run.last_batch_id)
        untied = all(run.run_id != run_id for run in self._runs.values())
        if untied:
            ended = event.id().toString(), run_id, None if query is None else query.name
            self._ended_untied = [*self._ended_untied[:1], ended]  # of two, nobody can tell which it was
        self._queries.forget(run_id)
        self._end_untied(told)
        # Last, for both ask Spark.
        if untied and query is not None:
            self.ending.forget(query.streams())
        if failure:
            query_id = event.id().toString()
            known = failures.explain(failure, query, query_id=query_id, names=names, streams=self.streams)
            self.could_not_begin |= known
            if query is not None:
                self._keep_failed(query, told, known)

    def _keep_failed(self, query: RunningQuery, told: str | None, known: Mapping[str, str]) -> None:
        """Keep a failed query for status and metrics, also one that failed before its heartbeat asked for anything."""
        now_us = self.clock.now_us()
        of_query = {run.stream.stream_id: run for run in self._runs.values() if run.run_id == query.run_id}
        for stream_id in () if of_query else query.streams():
            if (stream := self.streams.get(stream_id)) is not None:
                token = f"{stream_id}-{query.run_id}"
                run = StreamRun.attach(stream, token=token, resumes=None, state=None, now_us=now_us)
                run.tie(query.query_id, query.run_id, query.name)
                run.ended = run.failed = True
                self._runs[token] = of_query[stream_id] = run
        for run in of_query.values():
            run.failure = known.get(run.stream.name, told)
        self._forget_old_runs()

    def _end_untied(self, failure: str | None) -> None:
        """A query that failed in its first batch was never tied to its run; no query is left that could own it."""
        tied = {run.run_id for run in self._runs.values()}
        if any(query.run_id not in tied for query in self._queries):
            return
        for run in self._runs.values():
            if run.run_id is None and not run.ended:
                run.ended, run.failed, run.failure = True, failure is not None, failure
                if len(self._ended_untied) == 1:
                    run.tie(*self._ended_untied[0])
        self._ended_untied.clear()

    def say_farewells(self) -> None:
        """Leave the last reports in the checkpoints, and say which queries go on without a service."""
        live = [run for run in self._runs.values() if not run.ended]
        for run in live:
            self._say_farewell(run)
        running = {run.stream.name for run in live if (query := self._queries.get(run.run_id)) and query.active}
        if running:
            names = ", ".join(sorted(running))
            log.warning("the service stops while queries on %s run: their watermark holds from now on", names)

    def _say_farewell(self, run: StreamRun) -> None:
        """Leave the last report in the checkpoint, where no heartbeat carried it."""
        try:
            # When the service stops right after its query, Spark's listener has not brought the last batch yet.
            self._catch_up(run, planned_at_us=run.asked_at_us)
            self.farewells.leave(self._queries.get(run.run_id), run)
        except Exception as failed:  # noqa: BLE001  # py4j's and the file system's have no common base
            log.warning(
                'stream "%s": the last report could not be left in the checkpoint (%s); after a restart, windows may '
                "wait for one more row of each split",
                run.stream.name,
                failed,
            )
