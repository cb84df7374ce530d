"""Spark's running queries, as the service sees them: their runs, reports and checkpoints.

Belongs to the service's loop, except for the listener's callback, which enqueues events and adds queries. Spark puts a
progress event into a query's buffer before it asks any source for new offsets, so the newest event is there when a
heartbeat asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lowmark.integration.transport.heartbeat import HeartbeatSource
from lowmark.sources.spark.source import register_class

from . import forgotten, late, logical_plan, native_state
from .available_now import AvailableNow, Told
from .checkpoint import FarewellFiles
from .listener import QueryEvents
from .progress import Progress

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

__all__ = ["Queries", "RunningQuery"]

log = logging.getLogger("lowmark")

_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class RunningQuery:
    """One run of one query.

    Attributes:
        run_id: Spark's id of this run; a restart has another.
        query_id: Spark's id of the query, the same over restarts from one checkpoint.
        farewells: the files of lowmark in its checkpoint.
    """

    run_id: str
    query_id: str
    farewells: FarewellFiles
    _query: JavaObject

    @property
    def name(self) -> str | None:
        """The user's name for the query."""
        name: str | None = self._query.name()
        return name

    @property
    def active(self) -> bool:
        """False once the query has ended; the event of its end comes a little later."""
        return bool(self._query.isActive())

    def newest(self, after: int | None = None) -> Progress | None:
        """Return the progress of the newest finished batch; None before the first, and if it is batch `after`."""
        progress = self._query.lastProgress()
        if progress is not None and not _ran(progress):
            if progress.batchId() - 1 == after:
                return None
            progress = next((each for each in reversed([*self._query.recentProgress()]) if _ran(each)), None)
        return None if progress is None or progress.batchId() == after else Progress.from_java(progress)

    def history(self) -> list[Progress]:
        """Return the progress of the batches Spark still remembers (100 by default), oldest first."""
        return [Progress.from_java(progress) for progress in self._query.recentProgress() if _ran(progress)]

    def streams(self) -> list[str]:
        """Ids of the streams of any service whose heartbeat is in the query."""
        return [stream_id for stream_id, _ in self.heartbeats()]

    def heartbeats(self) -> list[tuple[str, list[int]]]:
        """(id of the stream, numbers of its sources, heartbeats not counted) of each heartbeat, in order.

        Read from the analyzed plan, which exists before the query has begun.
        """
        return self._heartbeats

    @cached_property
    def _heartbeats(self) -> list[tuple[str, list[int]]]:
        # Cached: the plan does not change, a walk takes many calls into the JVM, and each new run asks all queries.
        return logical_plan.heartbeats(self._query.streamingQuery().analyzedPlan())

    def source_kinds(self) -> list[bool]:
        """Whether each place where the query uses a source is a heartbeat."""
        return logical_plan.source_kinds(self._query.streamingQuery().analyzedPlan())

    def stream_sources(self) -> dict[int, list[int]]:
        """Number of each heartbeat among the query's sources -> numbers of its stream's sources."""
        return logical_plan.stream_sources(self._query.streamingQuery().analyzedPlan())

    def observed(self) -> set[str]:
        """Names of the metrics that are observed in the query."""
        nodes = logical_plan.nodes(self._query.streamingQuery().analyzedPlan())
        return {node.name() for node in nodes if node.nodeName() == "CollectMetrics"}

    def tell_late(self) -> None:
        """Tell the tasks of its newest batch and of the next the watermarks by which Spark drops rows there."""
        late.tell(self._query, self.farewells)

    def fault(self) -> str | None:
        """Return the part of this query that would break the low watermark, None without such a part.

        Only the running query shows what was built on top of a wrapped DataFrame.
        """
        execution = self._query.streamingQuery()
        watermarks = [
            node for node in logical_plan.nodes(execution.logicalPlan()) if node.nodeName() == "EventTimeWatermark"
        ]
        if any(logical_plan.has_watermark(node.child()) for node in watermarks):
            return (
                "withWatermark stands on top of a wrapped stream, where it would replace the low watermark by the "
                "largest event time again. Hint: remove it; the strategy's bound takes its place."
            )
        if len(watermarks) > 1 and execution.sparkSessionForStream().conf().get(_POLICY) == "max":
            return (
                f"{_POLICY} is max, so the stream that is ahead would decide, and rows of the other would be dropped. "
                "Hint: set it to min; it is kept in the checkpoint, so the query needs a new one."
            )
        return None


def _ran(progress: JavaObject) -> bool:
    """Whether the event tells of a batch. Spark's sign of life for an idle query has the number of the next batch."""
    return bool(progress.durationMs().containsKey("addBatch"))


class Queries:
    """The queries of all sessions the service listens to.

    Args:
        enqueue: takes (kind, Java event) from Spark's listener thread and returns at once.
        available_now: hears of queries that end by themselves but whose readers Spark has not told so; see
            `AvailableNow`.
    """

    def __init__(self, enqueue: Callable[[str, JavaObject], None], available_now: Told = lambda *_: None) -> None:
        self._enqueue, self._available_now = enqueue, available_now
        self._sessions: list[tuple[SparkSession, QueryEvents]] = []
        self._running: dict[str, RunningQuery] = {}
        self._late: set[str] = set()  # ids of the streams with a column of late rows

    def listen_to(self, spark: SparkSession) -> None:
        """Listen to a session's queries; every session has its own listener bus and its own registry of sources."""
        if any(known._jsparkSession.equals(spark._jsparkSession) for known, _ in self._sessions):
            return
        register_class(spark, HeartbeatSource)
        available_now = AvailableNow(spark, self._available_now)

        def begin(event: JavaObject) -> None:
            self._hold(spark, event)
            available_now.begin(event)
            native_state.take_over(spark, event)
            forgotten.warn_of_forgotten_heartbeat(spark, event)
            for stream_id in self._late:
                self.tell_late(stream_id)

        listener = QueryEvents(self._enqueue, begin)
        spark.streams.addListener(listener)
        self._sessions.append((spark, listener))

    def find(self) -> None:
        """Take hold of started queries while they run, because Spark does not return an ended query."""
        for spark, _ in self._sessions:
            for query in spark.streams.active:
                self._keep(spark, query._jsq)

    def tell_late_of(self, stream_id: str) -> None:
        """From now on tell queries on a stream, as soon as they start, which rows are late."""
        self._late = self._late | {stream_id}  # a new set, because Spark's thread may go through the old one

    def tell_late(self, stream_id: str) -> None:
        """Tell the queries on a stream the watermarks by which Spark drops rows in this batch and the next."""
        for query in self:
            if query.active and stream_id in query.streams():
                query.tell_late()

    def _hold(self, spark: SparkSession, event: JavaObject) -> None:
        """Take hold of the query that starts, in Spark's thread: it may end before the loop takes the event."""
        query = spark._jsparkSession.streams().get(event.id())
        if query is not None:
            self._keep(spark, query)

    def _keep(self, spark: SparkSession, query: JavaObject) -> None:
        run_id = query.runId().toString()
        if run_id not in self._running:
            root = query.streamingQuery().resolvedCheckpointRoot()
            self._running[run_id] = RunningQuery(run_id, query.id().toString(), FarewellFiles(spark, root), query)

    def get(self, run_id: str | None) -> RunningQuery | None:
        return None if run_id is None else self._running.get(run_id)

    def forget(self, run_id: str) -> None:
        self._running.pop(run_id, None)

    def __iter__(self) -> Iterator[RunningQuery]:
        return iter(tuple(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    def any_active(self) -> bool:
        """Whether a query runs in the sessions; may be called from any thread. False if Spark is gone."""
        try:
            return any(spark.streams.active for spark, _ in self._sessions)
        except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not ask for running queries: %s", gone)
            return False

    def close(self) -> None:
        """Stop listening. Spark may be gone already."""
        for spark, listener in self._sessions:
            try:
                spark.streams.removeListener(listener)
            except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
                log.debug("could not remove the listener: %s", gone)
        self._sessions.clear()
