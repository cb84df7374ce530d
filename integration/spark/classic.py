"""A session in a driver: Spark's JVM runs beside the service and is reached through Py4J."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any, ClassVar

from lowmark.integration.errors import SessionUnfit
from lowmark.integration.transport.heartbeat import HeartbeatSource
from lowmark.sources.spark import prefer_own_python
from lowmark.sources.spark.source import register_class
from lowmark.sources.spark.versions import TRIED
from pyspark.sql.streaming.listener import StreamingQueryListener

from . import handover, late, logical_plan, workers
from .available_now import HearOfEnding, let_it_end
from .checkpoint import FarewellFiles
from .logical_plan import WATERMARK_POLICY, InputPlan, fault_of
from .progress import RAN, Progress

if TYPE_CHECKING:
    from lowmark.sources import Source
    from lowmark.watermark import WatermarkStrategy
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("lowmark")


class JavaEvent:
    """An event of Spark's listener. Each field is a call into the JVM, so a field is read at its use."""

    def __init__(self, kind: str, event: JavaObject) -> None:
        self._kind, self._event = kind, event

    @cached_property
    def _told(self) -> JavaObject:
        return self._event.progress() if self._kind == "progress" else self._event

    @property
    def query_id(self) -> str:
        return str(self._told.id().toString())

    @property
    def run_id(self) -> str:
        return str(self._told.runId().toString())

    @property
    def batch_id(self) -> int:
        return int(self._told.batchId())

    @property
    def failure(self) -> str | None:
        """Spark's text of the error that ended a query; None: the query ended without an error."""
        failure = self._event.exception()
        return str(failure.get()) if failure.isDefined() else None

    def progress(self) -> Progress:
        """Return the progress of a batch. Raises `UnreadableReport` if a field is missing, or is not what it can be."""
        return Progress.from_java(self._told)


class QueryEvents(StreamingQueryListener):
    """A listener that passes on each event with the kind of the event, and returns at once.

    In a driver it implements Spark's Java interface for Python listeners. Spark delivers all listeners' events through
    one bounded queue that task events fill, too; a slow callback would make Spark drop progress events. So the callback
    reads no field of an event: the loop reads it later. pyspark itself would first rebuild the whole event in Python,
    with some forty calls into the JVM per batch.
    """

    def __init__(self, take: Callable[[str, Any], None]) -> None:
        self._take = take

    def onQueryStarted(self, event: Any) -> None:
        self._take("started", event)

    def onQueryProgress(self, event: Any) -> None:
        self._take("progress", event)

    def onQueryIdle(self, event: Any) -> None:
        self._take("idle", event)

    def onQueryTerminated(self, event: Any) -> None:
        self._take("terminated", event)

    class Java:  # noqa: D106  # read by py4j
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def add_listener(spark: SparkSession, events: QueryEvents) -> JavaObject:
    """Pass the events of a session's queries on, and return Spark's listener, by which they are removed again."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = spark._jvm
    try:
        listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(events)
    except TypeError as missing:  # py4j takes the name of a class that is not there for a package
        raise SessionUnfit(
            "LowWatermarkService needs Spark's class PythonStreamingQueryListenerWrapper",
            f"Spark {spark.version} without it",
            f"use a version of Spark that lowmark was tried with, {TRIED}.",
        ) from missing
    spark._jsparkSession.streams().addListener(listener)
    return listener


@dataclass(frozen=True)
class RunningQuery:
    """One run of one query, in the JVM beside the service."""

    run_id: str
    query_id: str  # Spark's id of the query, the same over restarts from one checkpoint
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
        """False once the query has ended; the event of its end comes a little later."""
        return bool(self._query.isActive())

    def newest(self, after: int | None = None) -> Progress | None:
        """Return the newest finished batch; None before the first, and if it is batch `after`."""
        progress = self._query.lastProgress()
        if progress is not None and not _ran(progress):
            if progress.batchId() - 1 == after:
                return None
            progress = next((each for each in reversed([*self._query.recentProgress()]) if _ran(each)), None)
        return None if progress is None or progress.batchId() == after else Progress.from_java(progress)

    def history(self) -> list[Progress]:
        """Return the batches that are still remembered, 100 by default, the oldest first."""
        return [Progress.from_java(progress) for progress in self._query.recentProgress() if _ran(progress)]

    @property
    def _plan(self) -> JavaObject:
        """The analyzed plan, which exists before the query has begun, and does not change."""
        return self._query.streamingQuery().analyzedPlan()

    def streams(self) -> list[str]:
        """Return the ids of the streams of any service whose heartbeat is in the query."""
        return [stream_id for stream_id, _ in self.heartbeats]

    @cached_property
    def heartbeats(self) -> list[tuple[str, list[int]]]:
        """See `logical_plan.heartbeats`."""
        # Cached, because a walk takes many calls into the JVM, and each new run asks all queries.
        return logical_plan.heartbeats(self._plan)

    def source_kinds(self) -> list[bool]:
        return logical_plan.source_kinds(self._plan)

    def source_numbers(self) -> frozenset[int]:
        return logical_plan.source_numbers(self._plan)

    def stream_sources(self) -> dict[int, list[int]]:
        return logical_plan.stream_sources(self._plan)

    def observed(self) -> set[str]:
        """Return the names of the metrics that are observed in the query."""
        return {node.name() for node in logical_plan.nodes(self._plan) if node.nodeName() == "CollectMetrics"}

    def tell_late(self) -> None:
        """Tell the tasks of the newest batch and of the next the watermarks by which Spark drops rows there."""
        late.tell(self._query, self.farewells)

    @property
    def failure(self) -> str | None:
        """Spark's text of the error that has ended the query; None without a known error."""
        failure = self._query.exception()
        return str(failure.get()) if failure.isDefined() else None

    @property
    def trouble(self) -> str | None:
        """A sentence on what keeps a query from its service; None: nothing does."""
        return None  # the query runs beside the service

    def fault(self, *, tells_late: bool) -> str | None:
        """Say what was built on a wrapped DataFrame, as only a running query shows, and breaks the low watermark."""
        execution = self._query.streamingQuery()
        if tells_late and "AsyncProgressTracking" in execution.getClass().getSimpleName():
            return (
                "with asyncProgressTrackingEnabled Spark leaves batches out of its log, by which late rows are told. "
                "Hint: leave this option out, or late=, watermark= and late_to=."
            )
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


class ClassicSession:
    """A session of Spark whose queries a service serves."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._listener: JavaObject | None = None

    @property
    def application(self) -> str:
        """Spark's id of the application; for a client, the id of its session."""
        return self.spark.sparkContext.applicationId

    @property
    def ended(self) -> bool:
        return self.spark.sparkContext._jsc is None

    def is_of(self, spark: object) -> bool:
        """Whether an object is this session, also under another Python object."""
        other = getattr(spark, "_jsparkSession", None)
        # A new session may have the number of a session whose context was stopped.
        return other is not None and (spark is self.spark or _same(self.spark._jsparkSession, other))

    def require_driver(self, action: str) -> None:
        """Refuse an action that needs the driver's JVM or file systems. Raises `SessionUnfit`."""

    def check_workers(
        self,
        strategy: WatermarkStrategy,  # noqa: ARG002  # its code comes with the task
        source: Source[Any, Any] | None = None,
    ) -> None:
        """Refuse a stream whose code Spark's workers cannot run. Raises `WorkersUnfit` or `SessionUnfit`."""
        workers.check(self.spark, workers.needed(source))

    def input_plan(self, df: DataFrame) -> InputPlan:
        return logical_plan.input_plan(df._jdf.queryExecution().analyzed())

    def heartbeat_address(self, stream_id: str, name: str, service: str) -> str:  # noqa: ARG002  # one for all
        """Return where the heartbeat reader of a stream asks, for a service that listens at `service`."""
        return service

    def listen(
        self,
        enqueue: Callable[[str, JavaEvent], None],
        keep: Callable[[RunningQuery], None],
        ending: HearOfEnding,
        answer: object,  # noqa: ARG002  # the readers reach the service's socket
    ) -> None:
        """Make the heartbeat's source known to the session, and hear of its queries from now on.

        Args:
            enqueue: takes an event with its kind, "started", "progress", "idle" or "terminated", and returns at once.
            keep: called with each query that begins, before the query may end.
            answer: answers the heartbeat readers that cannot ask the service themselves.
        """
        spark = self.spark
        prefer_own_python(spark)  # first, because Spark remembers it when the heartbeat's source is registered
        register_class(spark, HeartbeatSource)

        def begin(event: JavaObject) -> None:
            query = spark._jsparkSession.streams().get(event.id())
            assert query is not None, "Spark lists a query before the query starts (`StreamingQueryManager.startQuery`)"
            known = RunningQuery.of(spark, query)
            keep(known)
            if streams := known.streams():
                let_it_end(spark, query, streams, ending)
                handover.take_over_state(query, known.farewells)
            else:
                handover.warn_of_forgotten_heartbeat(query, known.farewells)

        calls: dict[str, Any] = {}  # by the run of each query, Py4J's connection for the calls of its thread

        def take(kind: str, event: JavaObject) -> None:
            told = JavaEvent(kind, event)
            if kind == "started":  # in the query's own thread, because the query may end before the loop looks
                try:
                    begin(event)
                    calls[told.run_id] = _connection_of_this_thread(spark)
                except Exception:
                    log.exception("could not look at a query that starts; it goes on as Spark would have it")
            enqueue(kind, told)
            if kind == "terminated":
                # Py4J keeps the connection of a thread that has ended, and a thread here that waits for its calls.
                with suppress(Exception):  # the JVM may be gone, or another service of this session was faster
                    calls.pop(told.run_id).socket.shutdown(SHUT_RDWR)

        self._listener = add_listener(spark, QueryEvents(take))

    def running(self) -> Iterator[RunningQuery]:
        for query in self.spark.streams.active:
            yield RunningQuery.of(self.spark, query._jsq)

    def stop_listening(self) -> None:
        """Stop to hear of queries. Spark may be gone already."""
        if self._listener is None:
            return
        try:
            self.spark._jsparkSession.streams().removeListener(self._listener)
        except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not remove the listener: %s", gone)
        # The JVM's listener holds the service and the service holds the JVM's listener, which no collector sees whole.
        self._listener = None


def _connection_of_this_thread(spark: SparkSession) -> Any:
    """Py4J's connection that a thread of the JVM calls this thread by; None if Py4J has none for a single thread."""
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    return client.get_thread_connection() if hasattr(client, "get_thread_connection") else None


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one.equals(other))
    except Exception:  # noqa: BLE001  # a stopped session's JVM may be gone, and py4j has many errors for this
        return False
