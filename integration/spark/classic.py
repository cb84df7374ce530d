"""A session in a driver: Spark's JVM runs beside the service and is reached through Py4J."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from lowmark.integration.errors import SessionUnfit
from lowmark.integration.transport.heartbeat import HeartbeatSource
from lowmark.sources.spark import prefer_own_python
from lowmark.sources.spark.source import register_class
from lowmark.sources.spark.versions import TRIED

from . import handover, logical_plan, workers
from .available_now import let_it_end
from .progress import Progress
from .queries import RunningQuery
from .sessions import Answer, Enqueue, HearOfEnding, InputPlan, Query

if TYPE_CHECKING:
    from lowmark.sources import Source
    from lowmark.watermark import WatermarkStrategy
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("lowmark")


class JavaEvent:
    """See `QueryEvent`. Each field is a call into the JVM, so a field is read at its use."""

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
        failure = self._event.exception()
        return str(failure.get()) if failure.isDefined() else None

    def progress(self) -> Progress:
        return Progress.from_java(self._told)


class QueryEvents:
    """Implements Spark's Java interface for Python listeners: puts each event into the service's queue and returns.

    Spark delivers all listeners' events through one bounded queue that task events fill, too; a slow callback would
    make Spark drop progress events. So this callback reads no field of an event: the loop reads it later. pyspark's own
    listener would first rebuild the whole event in Python, with some forty calls into the JVM per batch.

    Args:
        enqueue: takes an event with its kind, "started", "progress", "idle" or "terminated", and returns at once.
        begin: called with the start event of a query in the query's own thread, which waits for the call.
    """

    def __init__(self, enqueue: Callable[[str, JavaObject], None], begin: Callable[[JavaObject], None]) -> None:
        self._enqueue, self._begin = enqueue, begin

    def onQueryStarted(self, event: JavaObject) -> None:
        try:
            self._begin(event)
        except Exception:
            log.exception("could not look at a query that starts; it goes on as Spark would have it")
        self._enqueue("started", event)

    def onQueryProgress(self, event: JavaObject) -> None:
        self._enqueue("progress", event)

    def onQueryIdle(self, event: JavaObject) -> None:
        self._enqueue("idle", event)

    def onQueryTerminated(self, event: JavaObject) -> None:
        self._enqueue("terminated", event)

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


class ClassicSession:
    """See `Session`."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._listener: JavaObject | None = None

    @property
    def application(self) -> str:
        return self.spark.sparkContext.applicationId

    @property
    def ended(self) -> bool:
        return self.spark.sparkContext._jsc is None

    def is_of(self, spark: object) -> bool:
        other = getattr(spark, "_jsparkSession", None)
        # A new session may have the number of a session whose context was stopped.
        return other is not None and (spark is self.spark or _same(self.spark._jsparkSession, other))

    def require_driver(self, action: str) -> None:
        pass

    def check_workers(
        self,
        strategy: WatermarkStrategy,  # noqa: ARG002  # its code comes with the task
        source: Source[Any, Any] | None = None,
    ) -> None:
        workers.check(self.spark, workers.needed(source))

    def input_plan(self, df: DataFrame) -> InputPlan:
        return logical_plan.input_plan(df._jdf.queryExecution().analyzed())

    def heartbeat_address(self, stream_id: str, name: str, service: str) -> str:  # noqa: ARG002  # one for all
        return service

    def listen(
        self,
        enqueue: Enqueue,
        keep: Callable[[Query], None],
        ending: HearOfEnding,
        answer: Answer,  # noqa: ARG002  # the readers reach the service's socket
    ) -> None:
        spark = self.spark
        prefer_own_python(spark)  # first, because Spark remembers it when the heartbeat's source is registered
        register_class(spark, HeartbeatSource)

        def begin(event: JavaObject) -> None:
            # In Spark's thread, because the query may end before the loop takes the event.
            query = spark._jsparkSession.streams().get(event.id())
            assert query is not None, "Spark lists a query before the query starts (`StreamingQueryManager.startQuery`)"
            known = RunningQuery.of(spark, query)
            keep(known)
            if streams := known.streams():
                let_it_end(spark, query, streams, ending)
                handover.take_over_state(query, known.farewells)
            else:
                handover.warn_of_forgotten_heartbeat(query, known.farewells)

        events = QueryEvents(lambda kind, event: enqueue(kind, JavaEvent(kind, event)), begin)
        self._listener = add_listener(spark, events)

    def running(self) -> Iterator[RunningQuery]:
        for query in self.spark.streams.active:
            yield RunningQuery.of(self.spark, query._jsq)

    def any_active(self) -> bool:
        try:
            return bool(self.spark.streams.active)
        except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not ask for running queries: %s", gone)
            return False

    def stop_listening(self) -> None:
        if self._listener is None:
            return
        try:
            self.spark._jsparkSession.streams().removeListener(self._listener)
        except Exception as gone:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not remove the listener: %s", gone)
        # The JVM's listener holds the service and the service holds the JVM's listener, which no collector sees whole.
        self._listener = None


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one.equals(other))
    except Exception:  # noqa: BLE001  # a stopped session's JVM may be gone, and py4j has many errors for this
        return False
