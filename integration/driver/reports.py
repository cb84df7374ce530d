"""Takes Spark's progress of finished batches in order, and leaves the last report of a run in its checkpoint.

When a heartbeat reader asks, Spark has just finished a batch and put its progress where `Queries` finds it. The
progress is taken before the reader is answered, so the heartbeat of batch N + 1 carries the report of batch N.
"""

from __future__ import annotations

import logging
from functools import partial

import msgspec
from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.kafka_offsets import kafka_positions
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.sessions import Query
from lowmark.integration.transport.heartbeat import HeartbeatOffset

from .aside import aside
from .farewells import Farewells, warn_unwritten
from .marking import Marking
from .plans import Plans
from .runs import Runs
from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_START_SECONDS = 2.0  # the loop waits once in the life of a query, and only for a count of rows


class Reports:
    """Brings the progress of queries to their runs."""

    def __init__(self, runs: Runs, plans: Plans) -> None:
        self._runs, self._plans = runs, plans
        self.farewells = Farewells()

    def catch_up(self, run: StreamRun, *, planned_at_us: int) -> None:
        """Take the reports of all finished batches: the newest directly, missed batches from Spark's history."""
        queries = self._runs.queries
        query = queries.get(run.run_id)
        if query is None and run.run_id is None:
            queries.find()
            query = next((q for q in queries if self._own_heartbeats(run, q.newest())), None)
        newest = None if query is None else query.newest(run.last_batch_id)
        if query is None or newest is None:
            return
        missed = 0 if run.last_batch_id is None else newest.batch_id - run.last_batch_id - 1
        for progress in [*(query.history() if missed > 0 else ()), newest]:
            self.take(run, progress, planned_at_us=planned_at_us)

    def take(self, run: StreamRun, progress: Progress, *, planned_at_us: int) -> None:
        """Take the report of one batch if the batch belongs to this run."""
        own = self._own_heartbeats(run, progress)
        if not own:
            return
        query = self._query_of(run, progress.run_id)
        progress = self._with_starts(run, progress, query)
        if run.run_id is None:
            self._runs.tie(run, progress.id, progress.run_id, progress.name)
            self._runs.could_not_begin.pop(run.stream.name, None)
        known = len(run.watermarks.splits)
        for index, offset in own:
            run.written |= offset.token == run.token
            self._plans.tie(run, run.sources_in(progress, index), planned_by_run=offset.token == run.token)
            now_us = self._runs.clock.now_us()
            run.report(progress, index, planned_at_us=planned_at_us, now_us=now_us, low_us=offset.low_us)
            self._mark(run, progress, query)
        if len(run.watermarks.splits) > known:
            self.keep_last(run)  # a heartbeat carries the new splits soon, but a kill may come first

    def _query_of(self, run: StreamRun, run_id: str) -> Query | None:
        """Return the query of a run, None if the query is over. The first call looks at the query's plan."""
        query = self._runs.queries.get(run_id)
        if run.places is not None:
            return query
        if query is None:
            self._runs.queries.find()
            query = self._runs.queries.get(run_id)
        if query is not None:
            run.places, fault = query.stream_sources(), query.fault(tells_late=run.stream.tells_late)
            if fault is not None:
                run.refuse(f'stream "{run.stream.name}": {fault}')
        return query

    def _with_starts(self, run: StreamRun, progress: Progress, query: Query | None) -> Progress:
        """Add the start offsets of Kafka sources in their first batch, which only the checkpoint has."""
        if not run.stream.kafka or query is None:
            return progress
        sources = list(progress.sources)
        for index, source in enumerate(sources):
            if source.start_offset is None and kafka_positions(source.end_offset):
                try:
                    read = partial(query.farewells.kafka_start, index)
                    start = aside(read, "read where its rows begin", seconds=_START_SECONDS)
                except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class
                    log.warning('stream "%s": rows of the first batch are not counted (%s)', run.stream.name, failed)
                    continue
                sources[index] = msgspec.structs.replace(source, start_offset=start)
        return msgspec.structs.replace(progress, sources=sources)

    def _mark(self, run: StreamRun, progress: Progress, query: Query | None) -> None:
        marking = self._runs.markings.get(run.stream.name)
        if marking is not None and query is not None and run.last_batch_id == progress.batch_id:
            marking.take(progress, query)

    def end_marking(self, name: str) -> Marking | None:
        """Take the marking of a stream away, if there is one, and return it to be stopped beside the loop.

        Raises `WrapRefused` while its query runs, because all marks would end without a word.
        """
        marking = self._runs.markings.get(name)
        if marking is None:
            return None
        if (running := marking.running) is not None:
            fact = f"query {running} runs with an earlier mark_done, and nothing would mark its partitions any more"
            raise WrapRefused(name, fact, "stop it first: query.stop().")
        for run in self._runs:  # Spark's listener may not have brought the last batch yet
            if run.query_id == marking.query_id and not run.ended:
                self.leave_last(run)
        return self._runs.markings.pop(name)

    def keep_last(self, run: StreamRun) -> None:
        """Leave the last report of a running run, if later rows would not make good that it is lost.

        A split that only its rows name would stay unknown, and an input with an end may have no later row.
        """
        if run.stream.finds_splits or run.splits.complete:
            self.farewells.keep(self._runs.queries.get(run.run_id), run)

    def leave_last(self, run: StreamRun) -> None:
        """Leave the last report of a run that ends, because no heartbeat carries it."""
        try:
            # When the service stops right after its query, Spark's listener may not have brought the last batch yet.
            self.catch_up(run, planned_at_us=run.asked_at_us)
            self.farewells.keep(self._runs.queries.get(run.run_id), run, over=True)
            self._runs.after(run, self._runs.clock.now_us())
        except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class
            warn_unwritten(run.stream.name, failed, over=True)

    def end(self, run: StreamRun, failure: str | None = None) -> None:
        """End a run whose reader is gone; `failure` says why its query failed, None if it did not fail."""
        self.leave_last(run)
        run.ended, run.failure = True, failure
        self._runs.cooperation.end(run)
        if run.query_id is not None and run.last_batch_id is not None:
            run.stream.measure.forget(run.query_id, run.last_batch_id)

    def end_before(self, run: StreamRun) -> None:
        """End the run that a run of the same query resumes, once the newer run is in its place in group and job.

        A query that ends in a reader's first batch runs that batch again when it is started again. A client of Spark
        Connect hears only of the batch, and so begins a run of the reader that is gone.
        """
        before = None if run.resumes == run.token else self._runs.get(run.resumes)
        if before is not None and not before.ended and before.run_id is not None and before.run_id == run.run_id:
            self.end(before)

    def say_farewells(self) -> None:
        """Leave the last reports in the checkpoints soon, end the tasks of queries that have ended, name the others."""
        live = [run for run in self._runs if not run.ended]
        for run in live:
            self.leave_last(run)
        try:
            found = [(run, query.active) for run in live if (query := self._runs.queries.get(run.run_id)) is not None]
        except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not ask Spark which queries run: %s", gone)
            return
        running = {run.stream.name for run, active in found if active}
        for run, active in found:
            if not active:  # Spark's listener has not brought its end yet, and its group would wait for a lease
                self._runs.cooperation.end(run)
        if running:
            names = ", ".join(sorted(running))
            log.warning("the service stops while queries on %s run: their watermark holds from now on", names)

    def _own_heartbeats(self, run: StreamRun, progress: Progress | None) -> list[tuple[int, HeartbeatOffset]]:
        """Return the heartbeats of a run in a batch with their indexes among the sources; none: another run's batch.

        A batch of the run that this run resumes is another run's, also if the news of that batch or of the end of its
        query comes late. Its offset has the same token as the offset of a batch that this run runs again.
        """
        if progress is None:
            return []
        before = self._runs.get(run.resumes)
        late = before is not None and before.run_id == progress.run_id
        found = [(index, offset) for index, offset in progress.heartbeats() if run.wrote(offset)]
        return [(index, offset) for index, offset in found if not late or offset.token == run.token]
