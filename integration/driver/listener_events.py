"""Takes from Spark's listener the events that no heartbeat asks for: the last batch of a query, its start, its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from lowmark.integration.spark.sessions import Query, QueryEvent, UnheardEnd, called

from . import failures
from .aside import Beside
from .reports import Reports
from .runs import Runs
from .stream_run import StreamRun

log = logging.getLogger("lowmark")

_SILENT_US = 10_000_000


class _Ended(NamedTuple):
    """A query that ended before a run was tied to it."""

    query_id: str
    run_id: str
    name: str | None
    failure: str | None


class ListenerEvents:
    """Takes the events of Spark's listener."""

    def __init__(self, runs: Runs, reports: Reports, beside: Beside[Mapping[str, str]]) -> None:
        self._runs, self._reports, self._beside = runs, reports, beside
        self._ended_untied: list[_Ended] = []  # at most two, whose runs cannot be told apart
        self._inactive: frozenset[str] = frozenset()  # Spark's runs that were over when the service last looked

    def take_event(self, kind: str, event: QueryEvent) -> None:
        """Take an event: "started", "progress", "idle" or "terminated"."""
        match kind:
            case "started":
                self._runs.queries.find()
            case "progress":
                self._take_progress(event)
                if self._ended_untied:  # this batch may have tied the run that a failed query had beside it
                    self._end_untied()
            case "idle":
                # Spark's sign that an idle query lives: every ten seconds, or with each trigger of a longer interval.
                for run in self._runs.of_query(event.run_id):
                    run.seen_at_us = self._runs.clock.now_us()
            case "terminated":
                self._take_end(event)

    def unheard_ends(self) -> Iterator[UnheardEnd]:
        """Yield the end of each query that two calls in a row found over, and of which no event has come.

        Spark's queue of events drops some when it is full, and nothing else says that a query has ended for good: its
        group and job would wait for the query for ever. A query that was heard of lately is not asked.
        """
        now_us = self._runs.clock.now_us()
        heard = {run.run_id for run in self._runs if max(run.asked_at_us, run.seen_at_us) > now_us - _SILENT_US}
        over = {query.run_id: query for query in self._runs.queries if query.run_id not in heard and not query.active}
        before, self._inactive = self._inactive, frozenset(over)
        for run_id in before & self._inactive:
            query = over[run_id]
            log.warning("query %s has ended, and no event of Spark's has said so", called(query))
            yield UnheardEnd(query)

    def _take_progress(self, event: QueryEvent) -> None:
        run_id, batch_id = event.run_id, event.batch_id
        runs = [run for run in self._runs if run.run_id in (run_id, None) and not run.ended]
        behind = [run for run in runs if run.last_batch_id is None or run.last_batch_id < batch_id]
        if behind:  # between two batches and at the end of a query; otherwise the heartbeat took the report first
            progress = event.progress()
            for run in behind:
                self._reports.take(run, progress, planned_at_us=run.asked_at_us)
                self._runs.after(run, self._runs.clock.now_us())
                if run.last_batch_id == batch_id:
                    self._reports.keep_last(run)

    def _take_end(self, event: QueryEvent) -> None:
        query_id, run_id, failure = event.query_id, event.run_id, event.failure
        query = self._runs.queries.get(run_id)
        told = failures.brief(failure)
        for run in self._runs:
            # By the run and not by the query, because the query may have begun again before this news came.
            if query is not None and run.run_id is None and run.begun_run_id == run_id:
                run.tie(query.query_id, run_id, query.name)
        tied = self._runs.of_query(run_id)
        for run in tied:
            if not run.ended:
                self._reports.end(run, told)
        if not tied:
            ended = _Ended(query_id, run_id, None if query is None else query.name, told)
            self._ended_untied = [*self._ended_untied[:1], ended]
        self._runs.queries.forget(run_id)
        self._end_untied()
        # Last, because both ask Spark.
        if not tied and query is not None:
            self._runs.ending.forget(query.streams())
        if failure:
            if query is not None:
                self._keep_failed(query, told)
            names, streams = {run.stream.name for run in self._runs.of_query(run_id)}, dict(self._runs.streams)
            explain = partial(failures.explain, failure, query, query_id=query_id, names=names, streams=streams)
            self._beside(explain, partial(self._take_explanation, run_id))

    def _take_explanation(self, run_id: str, known: Mapping[str, str]) -> None:
        """Take why a query could not begin, unless another has begun on its stream meanwhile."""
        live = {run.stream.name for run in self._runs if run.run_id is not None and not run.ended}
        self._runs.could_not_begin |= {name: why for name, why in known.items() if name not in live}
        for run in self._runs.of_query(run_id):
            run.failure = known.get(run.stream.name, run.failure)

    def _keep_failed(self, query: Query, told: str | None) -> None:
        """Keep a failed query for status and metrics, including a query that failed before its heartbeat asked."""
        now_us = self._runs.clock.now_us()
        runs = self._runs.of_query(query.run_id)
        for stream_id in () if runs else query.streams():
            if (stream := self._runs.streams.get(stream_id)) is not None:
                token = f"{stream_id}-{query.run_id}"
                run = StreamRun.attach(stream, token=token, now_us=now_us)
                run.tie(query.query_id, query.run_id, query.name)
                run.ended = True
                runs.append(run)
                self._runs.keep(run)
        for run in runs:
            run.failure = told

    def _end_untied(self) -> None:
        """End the run of a query that failed in its first batch: the run was never tied, and its query is gone.

        While another untied query reads the stream, the runs of the two queries cannot be told apart.
        """
        tied = {run.run_id for run in self._runs}
        begins = {each for query in self._runs.queries if query.run_id not in tied for each in query.streams()}
        failure = self._ended_untied[-1].failure if self._ended_untied else None
        untied = [run for run in self._runs if run.run_id is None and not run.ended]
        gone = [run for run in untied if run.stream.stream_id not in begins]
        for run in gone:
            run.ended, run.failure = True, failure
            if len(self._ended_untied) == 1:
                [ended] = self._ended_untied
                run.tie(ended.query_id, ended.run_id, ended.name)
        if len(gone) == len(untied):
            self._ended_untied.clear()
