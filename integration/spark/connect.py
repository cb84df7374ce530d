"""A session of Spark Connect: Spark's driver is another process, and this is its client.

The client's listener brings the progress of each batch, with the measurements and with the offsets of all sources, so
also with the heartbeat's. `relay.py` makes of each batch the question that the heartbeat's reader would have asked, and
tells the answer on the server's host (`transport/told.py`). The watermark is one batch later than in a driver, because
the reader does not wait for the client, except with availableNow.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lowmark.integration.errors import SessionUnfit
from lowmark.integration.transport.heartbeat import HeartbeatSource
from lowmark.integration.transport.told import FORMAT, SCHEME, TellSource, Told, seal_of
from lowmark.sources.spark.source import register_class
from lowmark.sources.spark.versions import major_minor
from lowmark.sources.worker import Worker
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from . import plan_text
from .classic import QueryEvents
from .client_checkpoint import ClientCheckpoint
from .connect_query import ClientEvent, ConnectQuery
from .logical_plan import WATERMARK_POLICY, InputPlan
from .progress import RAN
from .relay import END_SECONDS, Answer, Relay
from .workers import on_the_server

if TYPE_CHECKING:
    from lowmark.sources import Source
    from lowmark.watermark import WatermarkStrategy
    from pyspark.sql import DataFrame, SparkSession

    from .checkpoint import Farewell

log = logging.getLogger("lowmark")

_OLDEST = (4, 2)
_GOT = "a Spark Connect session, whose driver is another process"
_SESSION_GONE = (
    "the server of Spark Connect no longer knows the client's session: the server was restarted, or the session "
    "timed out"
)


class ConnectSession:
    """See `ClassicSession`."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Any = spark
        self._secrets: dict[str, str] = {}  # by id of a stream
        self._names: dict[str, str] = {}  # likewise
        self._left: dict[str, Farewell] = {}
        self._queries: dict[str, ConnectQuery] = {}  # by run
        self._listener: QueryEvents | None = None  # until the session listened for the first time
        self._keep: Callable[[ConnectQuery], None]  # since `listen`, as the next
        self._relay: Relay

    @property
    def application(self) -> str:
        return str(self.spark.session_id)

    @property
    def ended(self) -> bool:
        return bool(self.spark.is_stopped)

    def is_of(self, spark: object) -> bool:
        return spark is self.spark or getattr(spark, "session_id", None) == self.application

    def require_driver(self, action: str) -> None:
        raise SessionUnfit(f"{action} needs the session of a driver", _GOT, "run it in the driver itself.")

    def check_workers(self, strategy: WatermarkStrategy, source: Source[Any, Any] | None = None) -> None:  # noqa: ARG002
        if strategy.runs_python:
            raise SessionUnfit(
                "a strategy with Python of yours, a timestamp assigner or a generator, needs the session of a driver",
                _GOT,
                "compute the event time as a column, with Spark's functions, before wrapping.",
            )

    def input_plan(self, df: DataFrame) -> InputPlan:
        own = [column for column in plan_text.SPLIT_COLUMNS if column in df.columns]
        chosen: Any = df.select(*own) if own else df
        return plan_text.input_plan(plan_text.nodes(chosen._explain_string(extended=True)))

    def heartbeat_address(self, stream_id: str, name: str, service: str) -> str:  # noqa: ARG002  # out of reach
        self._names[stream_id] = name
        return f"{SCHEME}{seal_of(self._secrets.setdefault(stream_id, secrets.token_hex(32)))}"

    def listen(
        self,
        enqueue: Callable[[str, ClientEvent], None],
        keep: Callable[[ConnectQuery], None],
        ending: object,  # noqa: ARG002  # only before 4.2
        answer: Answer,
    ) -> None:
        spark = self.spark
        if _in_a_pipeline():
            raise SessionUnfit(
                "LowWatermarkService needs a session whose queries it may hear of",
                "the session of a declarative pipeline, whose function may not analyze, and whose run fails as soon as "
                "another Python process of the session has counted something",
                "wrap in a client of its own, and let the pipeline read what its query writes.",
            )
        if major_minor(spark.version) < _OLDEST:
            raise SessionUnfit(
                "LowWatermarkService in a client needs a server with Spark 4.2, whose JVM measures splits",
                f"a Spark Connect session of Spark {spark.version}",
                "use Spark 4.2 or newer, or make the service in the driver itself.",
            )
        register_class(spark, HeartbeatSource)
        register_class(spark, TellSource)
        with on_the_server():
            spark.read.format(FORMAT).load().schema  # noqa: B018  # the analysis asks whether lowmark is there
        self._keep = keep
        self._relay = Relay(answer, enqueue, self._tell, self._listen_again, self._sign, self._names)
        listener = QueryEvents(self._put)
        try:
            self._add(listener)
        except BaseException:
            self._relay.close()  # nobody stops a session that was never listened to
            raise
        self._listener = listener  # last, because the relay would add it, too

    def _put(self, kind: str, raw: Any) -> None:
        """Take an event; both the listener and the relay may tell of an end."""
        event = ClientEvent(raw)
        query = self._queries.get(event.run_id)
        if query is None:
            farewells, name = ClientCheckpoint(self._left), getattr(raw, "name", None)
            query = ConnectQuery(
                self._explained, self.spark.conf.get, event.query_id, event.run_id, name, farewells, self._relay.silence
            )
            self._queries[event.run_id] = query
            self._keep(query)
        self._relay.put(kind, event, query)
        if kind == "terminated":
            self._queries.pop(event.run_id, None)

    def _add(self, listener: QueryEvents) -> bool:
        """Listen to the session's queries, and return whether it worked."""
        if not self.spark.streams._sqlb._listener_bus:
            # The server never answers while the session has a listener of before: of a client that was killed, or of a
            # bus that an error ended. Spark sends what Python processes have counted with the answer to the next
            # command. The bus of listeners takes it for an error and ends, so another command goes before anyway.
            self._remove_from_server()
        self.spark.streams.addListener(listener)
        return self._hears(listener)

    def _hears(self, listener: QueryEvents | None) -> bool:
        """Whether a listener is on the session's bus, which drops its listeners when the connection breaks."""
        return listener in self.spark.streams._sqlb._listener_bus

    def _listen_again(self) -> None:
        """Listen again after a break, and take the batches that were over meanwhile."""
        if self.ended:
            return
        if self._program_is_over():
            self._leave()
            return
        if self._listener is None or self._hears(self._listener):
            return
        try:
            with self._relay.asking():
                if not self._add(self._listener):
                    return  # Spark has warned of the reason, and the next second is another try
            log.warning("listening to Spark's events again, after a break of the connection to its server")
            for query in self.running():
                self._catch_up(query)
        except Exception as gone:  # noqa: BLE001  # gRPC and Spark have no common base class of errors
            if "INVALID_HANDLE" not in str(gone):
                log.debug("the server does not answer: %s", gone)
                return
            for query in self.running():
                self._end(query, _SESSION_GONE)

    def _catch_up(self, query: ConnectQuery) -> None:
        with self._relay.asking():
            running = self.spark.streams.get(query.query_id)
            recent = [] if running is None else running.recentProgress
        if running is None or str(running.runId) != query.run_id:
            self._end(query, self._failure(query))
            return
        newest = query.newest()
        for progress in recent:
            if RAN in progress.durationMs and (newest is None or progress.batchId > newest.batch_id):
                # At once, because the listener may have told of a later batch already.
                self._relay.take("progress", ClientEvent(QueryProgressEvent(progress)), query)

    def _failure(self, query: ConnectQuery) -> str | None:
        """Return why an ended run has failed, as the server remembers for a while; None if it has not."""
        from pyspark.sql.connect.streaming.query import StreamingQuery

        try:
            with self._relay.asking():
                failed = StreamingQuery(self.spark, query.query_id, query.run_id).exception()
        except Exception as unknown:  # gRPC and Spark have no common base class of errors
            if "INVALID_HANDLE" in str(unknown):
                raise
            return f"its server does not say how it ended: {unknown}"
        return None if failed is None else str(failed)

    def _end(self, query: ConnectQuery, failure: str | None) -> None:
        log.warning("query %s ended while nothing was heard of it", query.query_id)
        ids = uuid.UUID(query.query_id), uuid.UUID(query.run_id)
        self._put("terminated", QueryTerminatedEvent(*ids, failure, None))

    def running(self) -> list[ConnectQuery]:
        return [query for query in tuple(self._queries.values()) if query.active]

    def stop_listening(self) -> None:
        self._relay.close()
        for query in self.running():
            query.active = False  # nobody tells of its end any more
        self._leave()

    def _leave(self) -> None:
        if self.ended or not self._hears(self._listener):
            return
        # On a thread, because Spark's client tries for minutes to reach a server that is gone.
        leaving = Worker("lowmark-leave", self._remove_listener)
        try:
            leaving.start()
        except RuntimeError:  # Python 3.12 begins no thread while a process ends
            self._remove_listener()
        else:
            leaving.join(END_SECONDS)

    def _remove_listener(self) -> None:
        try:
            self._end_listening()
        except RuntimeError as ends:  # while a process ends, Spark's client has no thread that releases an answer
            log.debug("the client ends before the server has released its answer: %s", ends)

    def _end_listening(self) -> None:
        bus = self.spark.streams._sqlb
        if len(bus._listener_bus) > 1:
            bus.remove(self._listener)
            return
        # SPARK-59623: the bus would hold its lock while it waits for its thread, and the next event needs the lock.
        self._remove_from_server()
        if bus._execution_thread is not None:
            bus._execution_thread.join(END_SECONDS)
        with bus._lock:
            bus._listener_bus.remove(self._listener)
            bus._execution_thread = None

    def _remove_from_server(self) -> None:
        """Remove the session's listener from the server, if the server has one."""
        from pyspark.sql.connect.proto import Command, StreamingQueryListenerBusCommand

        command = Command()
        command.streaming_query_listener_bus_command.CopyFrom(
            StreamingQueryListenerBusCommand(remove_listener_bus_listener=True)
        )
        self.spark.client.execute_command(command)

    def _program_is_over(self) -> bool:
        """Whether only Spark's thread of events keeps this process alive: it is no daemon, so Python waits for it."""
        events = self.spark.streams._sqlb._execution_thread
        live = [thread for thread in threading.enumerate() if not thread.daemon and thread is not events]
        return not any(thread.is_alive() for thread in live)

    def _explained(self, query_id: str) -> str:
        """Return Spark's plan of a running query's newest batch as text; empty if the query has ended."""
        query = self.spark.streams.get(query_id)
        if query is None:
            return ""
        from pyspark.sql.connect.proto import StreamingQueryCommand

        command = StreamingQueryCommand()
        command.explain.extended = True
        return str(query._execute_streaming_query_cmd(command).explain.result)  # `explain` itself would print it

    def _sign(self) -> None:
        if self.running():
            self.spark.conf.get(WATERMARK_POLICY, "min")

    def _tell(self, stream_id: str, token: str, told: Told | None) -> None:
        options = {"secret": self._secrets[stream_id], "token": token}
        if told is not None:
            options["reply"] = told.to_json()
        self.spark.read.format(FORMAT).options(**options).load().schema  # noqa: B018  # the analysis is the telling


def _in_a_pipeline() -> bool:
    """Whether this code defines a declarative pipeline (`spark-pipelines`)."""
    registry: Any = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if registry is None:
        return False
    try:
        registry.get_active_graph_element_registry()
    except PySparkException:
        return False
    return True
