"""Spark's running queries, as the service sees them: their runs, reports and checkpoints.

Belongs to the service's loop, except for the listener's callback, which enqueues events and adds queries. Spark puts a
progress event into a query's buffer before it asks any source for new offsets, so the newest event is there when a
heartbeat asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from . import late, logical_plan
from .checkpoint import FarewellFiles
from .progress import RAN, Progress
from .sessions import WATERMARK_POLICY, Answer, Enqueue, HearOfEnding, Query, Session, fault_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunningQuery:
    """A run in the JVM beside the service: see `Query`."""

    run_id: str
    query_id: str
    farewells: FarewellFiles
    _query: JavaObject

    @classmethod
    def of(cls, spark: SparkSession, query: JavaObject) -> RunningQuery:
        """Return a query of a session, which must not have ended."""
        files = FarewellFiles(spark, query.streamingQuery().resolvedCheckpointRoot())
        return cls(query.runId().toString(), query.id().toString(), files, query)

    @property
    def name(self) -> str | None:
        name: str | None = self._query.name()
        return name

    @property
    def active(self) -> bool:
        return bool(self._query.isActive())

    def newest(self, after: int | None = None) -> Progress | None:
        progress = self._query.lastProgress()
        if progress is not None and not _ran(progress):
            if progress.batchId() - 1 == after:
                return None
            progress = next((each for each in reversed([*self._query.recentProgress()]) if _ran(each)), None)
        return None if progress is None or progress.batchId() == after else Progress.from_java(progress)

    def history(self) -> list[Progress]:
        return [Progress.from_java(progress) for progress in self._query.recentProgress() if _ran(progress)]

    @property
    def _plan(self) -> JavaObject:
        """The analyzed plan, which exists before the query has begun, and does not change."""
        return self._query.streamingQuery().analyzedPlan()

    def streams(self) -> list[str]:
        return [stream_id for stream_id, _ in self.heartbeats]

    @cached_property
    def heartbeats(self) -> list[tuple[str, list[int]]]:
        # Cached, because a walk takes many calls into the JVM, and each new run asks all queries.
        return logical_plan.heartbeats(self._plan)

    def source_kinds(self) -> list[bool]:
        return logical_plan.source_kinds(self._plan)

    def source_numbers(self) -> frozenset[int]:
        return logical_plan.source_numbers(self._plan)

    def stream_sources(self) -> dict[int, list[int]]:
        return logical_plan.stream_sources(self._plan)

    def observed(self) -> set[str]:
        return {node.name() for node in logical_plan.nodes(self._plan) if node.nodeName() == "CollectMetrics"}

    def tell_late(self) -> None:
        late.tell(self._query, self.farewells)

    @property
    def failure(self) -> str | None:
        failure = self._query.exception()
        return str(failure.get()) if failure.isDefined() else None

    @property
    def trouble(self) -> str | None:
        return None  # the query runs beside the service

    def fault(self) -> str | None:
        execution = self._query.streamingQuery()
        watermarks = [
            node for node in logical_plan.nodes(execution.logicalPlan()) if node.nodeName() == "EventTimeWatermark"
        ]
        return fault_of(
            stacked=any(logical_plan.has_watermark(node.child()) for node in watermarks),
            watermarks=len(watermarks),
            policy=execution.sparkSessionForStream().conf().get(WATERMARK_POLICY),
        )


def _ran(progress: JavaObject) -> bool:
    """Whether the event tells of a batch. Spark's sign of life for an idle query has the number of the next batch."""
    return bool(progress.durationMs().containsKey(RAN))


class Queries:
    """The queries of all sessions the service listens to.

    See `Session.listen` for the arguments.
    """

    def __init__(self, enqueue: Enqueue, ending: HearOfEnding, answer: Answer) -> None:
        self._enqueue, self._ending, self._answer = enqueue, ending, answer
        self._sessions: list[Session] = []
        self._running: dict[str, Query] = {}
        self._late: set[str] = set()  # ids of the streams with a column of late rows

    def listen_to(self, session: Session) -> Session:
        """Listen to a session's queries, and return the session as it is known.

        Every session has its own listener bus and its own registry of sources.
        """
        for known in self._sessions:
            if known.is_of(session.spark):
                return known
        session.listen(self._enqueue, self._begin, self._ending, self._answer)
        self._sessions.append(session)
        return session

    def find(self) -> None:
        """Take hold of started queries while they run, because Spark does not return an ended query."""
        for session in self._sessions:
            for query in session.running():
                self._keep(query)

    def tell_late_of(self, stream_id: str) -> None:
        """From now on tell queries on a stream, as soon as they start, which rows are late."""
        self._late = self._late | {stream_id}  # a new set, because Spark's thread may go through the old one

    def tell_late(self, stream_id: str) -> None:
        """Tell the queries on a stream the watermarks by which Spark drops rows in this batch and the next."""
        for query in self:
            if query.active and stream_id in query.streams():
                query.tell_late()

    def _begin(self, query: Query) -> None:
        """Take a query that begins, in Spark's thread, which starts the first batch after the return."""
        self._keep(query)
        if (streams := self._late) and not streams.isdisjoint(query.streams()):
            query.tell_late()

    def _keep(self, query: Query) -> None:
        self._running.setdefault(query.run_id, query)

    def get(self, run_id: str | None) -> Query | None:
        return None if run_id is None else self._running.get(run_id)

    def forget(self, run_id: str) -> None:
        self._running.pop(run_id, None)

    def __iter__(self) -> Iterator[Query]:
        return iter(tuple(self._running.values()))

    def any_active(self) -> bool:
        """Whether a query runs in the sessions; may be called from any thread. False if Spark is gone."""
        return any(session.any_active() for session in self._sessions)

    def close(self) -> None:
        """Stop listening. Spark may be gone already."""
        for session in self._sessions:
            session.stop_listening()
        self._sessions.clear()
