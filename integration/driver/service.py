"""The low-watermark service in a driver: wraps streams, takes reports of their batches, answers their heartbeats.

One thread, the loop, owns every run and its coordinator (`Runs`). Spark's listener, the gRPC server, a scrape and the
user's calls only hand work to the loop.

One file, because the service is one public class, and its calls for users stand with their docstrings.
"""

from __future__ import annotations

import atexit
import datetime as dt
import inspect
import logging
import os
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lowmark.integration.errors import NotComplete, ServiceStopped, StreamNameTaken, StreamRunning, UnknownStream
from lowmark.integration.process import sockets
from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.process.loop import Loop, LoopTimes
from lowmark.integration.run_status import RunStatus
from lowmark.integration.spark.queries import Queries
from lowmark.integration.spark.sessions import QueryEvent, Session, session_of
from lowmark.integration.transport.driver_rpc import MarkRequest, Server, SetRequest
from lowmark.sources import FailoverPolicy, RateLimiterStrategy, Source
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.worker import Worker, WorkerDied
from lowmark.watermark import (
    LowWatermarkListener,
    StreamStatus,
    WatermarkStrategy,
    duration_us,
    format_time_us,
)
from lowmark.watermark.moment import datetime_of, time_us, utc
from lowmark.watermark.splits.status import Explanation
from lowmark.watermark.tasks.alignment import GroupStatus

from . import by_hand, check, marking, passing, stream_factory, wrap
from .answers import Answers
from .audited import Audits
from .cooperation import Cooperation, check_group
from .desks import Desks
from .done_partition import DonePartition
from .late_output import LateOutput
from .listeners import Listeners
from .marking import Marking
from .passing import Wait
from .running import Running
from .runs import Runs
from .standing import Standing
from .stream import Stream, Streams
from .stream_factory import UserRows

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import CoordinatorClient
    from lowmark.integration.page.app import PageServer
    from pyspark.sql import Column, DataFrame, SparkSession
    from typing_extensions import Self

log = logging.getLogger("lowmark")

Result = TypeVar("Result")

_RUNNING = Running()
_MAX_SPLITS = 4_096
_CALL_SECONDS = 60.0
_LOOK_SECONDS = 0.5  # between two checks whether a query still runs


class LowWatermarkService:
    """Makes Spark's watermark the low watermark over the splits of a stream.

    Args:
        spark: the session; from now on the service hears of its queries.
        metrics_port: port of the Prometheus endpoint, 0 for any free port, None for no HTTP server.
        metrics_host: address the endpoint binds to.
        page_port: port of the page on 127.0.0.1 that shows the streams live, 0 for any free port, None for no page.
        coordinator: address of a `lowmark serve` that this application shares with others: ``unix:/path`` or
            ``host:port``; None: alignment groups are kept in this driver.
        coordinator_ca: PEM file with the coordinator's certificate; needed with ``host:port``.
        coordinator_token_file: file with the coordinator's token; needed with ``host:port``.
        coordinator_cert: PEM file with this application's own certificate, for a coordinator that was started with
            ``--tls-client-ca``.
        coordinator_key: PEM file with the private key of that certificate.
        require_coordinator: refuse to begin while the coordinator does not answer. False: warn, ask again, and hold low
            watermarks until the coordinator answers.
        job: the job of this application; needs a coordinator. All queries of one job on streams of one name share
            a low watermark across applications. None: every query keeps a separate low watermark.
        job_queries: number of queries in the job, as long as the job lives. Before so many have begun there is no low
            watermark. While fewer run, it stays at the smallest value that an absent query last reported. With 1, an
            absent query is not waited for.
        job_away: the longest wait of the other queries for an absent query of this application, such as "2 hours".
            Time without another running query or without the coordinator does not count. None: until the query is
            back, or until `lowmark forget` removes the query.
        beside: make a service even if the session already has another. False: return the session's service if its
            arguments are the same, so a notebook's cell may run again.

    Raises:
        ServiceDiffers: the session has a service with other arguments.
        SessionUnfit: the session is no session, or a Spark Connect session of a Spark before 4.2.
        WorkersUnfit: the server of a Spark Connect session has no lowmark.
        ServiceRefused: a job, or `require_coordinator`, without a coordinator; `job_queries` or `job_away` without a
            job; a job with less than one query; an invalid port.
        InvalidDuration: `job_away` is no duration.
        AddressRefused, TokenRefused: the coordinator's address is none, an argument that it needs is missing, or a file
            cannot be used.
        CoordinatorUnreachable: the coordinator does not answer, and `require_coordinator` is set.
        MetricsUnavailable, PageUnavailable: no server can listen at the port.

    Once the service is stopped, every call but `stop` raises `ServiceStopped`.

    Use it as a context manager around the queries::

        with LowWatermarkService(spark) as service:
            events = service.wrap(df, name="orders", event_time="ts", split=["topic", "partition"])
            events.groupBy(...).count().writeStream.start().awaitTermination()
    """

    _made = False  # whether __new__ returned an existing service
    _users = 0  # how many callers have the service

    def __new__(cls, spark: SparkSession, *, beside: bool = False, **arguments: Any) -> Self:
        """Return the session's service if it was made with the same arguments, else a new service."""
        _RUNNING.stop_those_of_no_use()
        defaults = _defaults(cls)
        unknown = arguments.keys() - defaults.keys()  # for __init__ to refuse
        found = None if beside or unknown else _RUNNING.find(spark, {**defaults, **arguments})
        return super().__new__(cls) if found is None else cast("Self", found)

    def __init__(
        self,
        spark: SparkSession,
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        page_port: int | None = None,
        coordinator: str | None = None,
        coordinator_ca: str | os.PathLike[str] | None = None,
        coordinator_token_file: str | os.PathLike[str] | None = None,
        coordinator_cert: str | os.PathLike[str] | None = None,
        coordinator_key: str | os.PathLike[str] | None = None,
        require_coordinator: bool = False,
        job: str | None = None,
        job_queries: int = 1,
        job_away: str | dt.timedelta | None = None,
        beside: bool = False,
    ) -> None:
        self._users += 1
        if self._made:
            return
        arguments = {name: value for name, value in locals().items() if name in _defaults(type(self))}
        check.session(spark)
        check.service(
            coordinator=coordinator,
            require_coordinator=require_coordinator,
            job=job,
            job_queries=job_queries,
            job_away=job_away,
        )
        job_away_us = None if job_away is None else duration_us(job_away, what="job_away")
        self._process = os.getpid()
        self.address = sockets.new_address()  # before any thread starts, because the address may be refused
        self._low_heard = threading.Event()
        self._client: CoordinatorClient | None = None
        self._session, self._spark = session_of(spark), spark
        self._stopping = False
        self._metrics = None
        self._page: PageServer | None = None
        with ExitStack() as undo:  # whoever gets an error, or presses Ctrl-C, gets no service that could be stopped
            if coordinator is not None:
                from lowmark.integration.coordinator.access import Caller
                from lowmark.integration.coordinator.client import CoordinatorClient

                given = coordinator_ca, coordinator_token_file, coordinator_cert, coordinator_key
                # Absolute, because each connection reads them, and the application may change its folder.
                files = [None if path is None else Path(path).absolute() for path in given]
                self._client = CoordinatorClient(
                    Caller(coordinator, *files),
                    on_low=lambda *_: self._low_heard.set(),
                    on_given_up=lambda *refused: self._loop.post(lambda: self._runs.refuse(*refused)),
                )
                undo.callback(self._client.close)
            self._listeners = Listeners()
            undo.callback(self._listeners.stop)
            self._queries = Queries(
                lambda kind, event: self._loop.post(lambda: self._take_event(kind, event)),
                lambda streams, fault: self._loop.post(lambda: self._runs.ending.expect(streams, fault)),
                lambda request: self._answers.heartbeat(request),  # noqa: PLW0108  # the answers are made below
            )
            clock = SteadyClock()
            cooperation = Cooperation(clock.now_us, self._client, job, job_queries, job_away_us)
            self._runs = Runs(self._queries, clock, cooperation, self._listeners.notify)
            self._desks = Desks(self._runs, self._beside)
            self._audits = Audits(clock)
            self._standing = Standing(self._runs, self._audits)
            self._loop = Loop("lowmark-loop", self._look_for_ends)
            undo.callback(self._loop.stop)
            self._answers = answers = Answers(
                self._call, self._desks, self._standing, self._session.application, self._low_heard
            )
            self._server = Server(self.address, *answers.handlers)
            undo.pop_all()
            undo.callback(self.stop)  # ends all of them; it needs every part that was made here
            if require_coordinator and self._client is not None:
                self._client.reach()
            if metrics_port is not None:
                from lowmark.integration.metrics.endpoint import MetricsServer

                self._metrics = MetricsServer(self, host=metrics_host, port=metrics_port)
            if page_port is not None:
                from lowmark.integration.page.app import PageServer

                self._page = PageServer(lambda asked, _: {self.address: answers.status(asked)}, port=page_port)
            self._queries.listen_to(self._session)
            undo.pop_all()
        atexit.register(self.stop)
        self._made = True
        if not beside:
            _RUNNING.add(self, self._session, arguments)

    # -- for users ------------------------------------------------------------------------------------------------

    def wrap(
        self,
        df: DataFrame,
        *,
        name: str,
        event_time: str,
        split: str | Sequence[str],
        strategy: WatermarkStrategy | None = None,
        splits: Iterable[object] | None = None,
        max_splits: int = _MAX_SPLITS,
        detail: bool = False,
        late: str | None = None,
        watermark: str | None = None,
        late_to: str | os.PathLike[str] | None = None,
        late_until: str | Column | None = None,
    ) -> DataFrame:
        """Return the same rows under the low watermark of their splits.

        Args:
            df: a streaming DataFrame without `withWatermark`.
            name: of the stream, unique in this service; used in metrics and status.
            event_time: its TIMESTAMP column.
            split: the column or columns that say which split a row came from.
            strategy: how the watermark of a split is made; by default monotonous timestamps.
            splits: ids of all splits, if they are known: single values, or tuples for several split columns. Kafka's
                partitions are known without this argument. An unknown split cannot be waited for.
            max_splits: the number of splits that a batch may have. At least twice as many are told apart; a batch with
                more than are told apart ends the query with an error.
            detail: also measure rows and earliest event time per split, at about a quarter more work per row.
            late: name for an added boolean column, such as "is_late": true for a row at or below the watermark by which
                Spark drops rows in the row's batch, exactly, also when the batch runs again. None: no such column.
            watermark: name for an added TIMESTAMP column with that watermark, 1970 before the first, which tells which
                rows a window drops. None: no such column.
            late_to: folder for the rows that Spark drops, each once, as Parquet: a path of this machine, or an address
                on S3, HDFS, Google's storage or Azure's. The query reads its source twice. None: Spark drops them.
            late_until: the time until which a row still counts, an SQL expression over df's columns, such as
                "window(ts, '10 minutes').end". None: the event time, by which deduplication, joins and timers drop.

        Returns:
            A DataFrame with df's columns, all nullable. It may feed several queries.

        Raises:
            WrapRefused: df cannot be wrapped; the text gives the reason and the remedy.
            StreamNameTaken: the name is in use.
            DisagreeingGroup: a stream of this service has the same alignment group with other parameters.
            WorkersUnfit: the Python of Spark's workers lacks required packages.
        """
        strategy = self._begin("wrap", name, strategy, max_splits)
        wrap.check_arguments(df, name=name, event_time=event_time, split=split, splits=splits)
        session_of(df.sparkSession).check_workers(strategy)
        given = UserRows(name, event_time, split, strategy, max_splits, detail, splits)
        df, stream = stream_factory.wrapped(df, given, LateOutput(late, watermark, late_to, late_until))
        return self._build(df, stream, event_time)

    def read(
        self,
        source: Source[Any, Any],
        *,
        name: str,
        strategy: WatermarkStrategy | None = None,
        event_time: str | None = None,
        prepare: Callable[[DataFrame], DataFrame] | None = None,
        split_column: str = "split_id",
        max_rows_per_batch: int | None = 1_000_000,
        max_bytes_per_batch: int | None = None,
        max_slice: str | dt.timedelta | None = None,
        by_time: bool = True,
        rate: RateLimiterStrategy | None = None,
        tasks: int | None = None,
        failover: FailoverPolicy | None = None,
        timeout: str | dt.timedelta = "1 minute",
        max_splits: int = _MAX_SPLITS,
        late: str | None = None,
        watermark: str | None = None,
        late_to: str | os.PathLike[str] | None = None,
        late_until: str | Column | None = None,
    ) -> DataFrame:
        """Return the rows of a source under the low watermark of their splits.

        A batch takes every split up to one event time: the largest whose rows fit the limits, as far as the source can
        search by time. So a backfill comes in event-time order and keeps little state, and the watermark is known when
        a batch is planned. In an alignment group the source is read no further than the group allows.

        Args:
            source: the source, such as a `lowmark.sources.kafka.KafkaSource`.
            name: of the stream, unique in this service; used in metrics and status.
            strategy: how the watermark of a split is made; by default monotonous timestamps.
            event_time: the TIMESTAMP column; by default the source's own.
            prepare: turns the source's rows into yours, for an event time inside a payload:
                ``lambda df: df.selectExpr("split_id", "from_json(...) as order")``. It must keep the split's column.
            split_column: name of the added column with the split's id.
            max_rows_per_batch: approximate largest number of rows in a batch; None: no limit.
            max_bytes_per_batch: approximate largest number of bytes, if the source knows sizes; None: no limit.
            max_slice: largest span of event time in a batch; None: no limit.
            by_time: False takes a fair share of each split instead.
            rate: largest rate of reading; None: no limit.
            tasks: number of tasks that read a batch; by default as many as the session runs at once.
            failover: how often a failed enumerator is restored before the query fails; by default three times in ten
                minutes.
            timeout: a step of the enumerator, or a pause of the source's own `SourceReader`, counts as hung after this
                time; AvailableNow fails if a split gives no answer for this time.
            max_splits: as in `wrap`, for prepared rows, and with a generator or timestamp assigner.
            late: name for an added boolean column, as in `wrap`.
            watermark: name for an added TIMESTAMP column, as in `wrap`.
            late_to: folder for the rows that Spark drops, as in `wrap`; each batch is planned once and read twice.
            late_until: the time until which a row still counts, as in `wrap`.

        Returns:
            A DataFrame with the source's columns and the split's, all nullable. It may feed several queries.

        Raises:
            WrapRefused: the source cannot be read like this; the text gives the reason and the remedy.
            StreamNameTaken, DisagreeingGroup, WorkersUnfit: as in `wrap`.
        """
        self._session.require_driver(f'read("{name}"), which tells the times of a batch before it is read,')
        strategy = self._begin("read", name, strategy, max_splits)
        stream_factory.check_arguments(
            source, name=name, event_time=event_time, prepare=prepare, split_column=split_column
        )
        self._session.check_workers(strategy, source)
        slots = self._spark.sparkContext.defaultParallelism if tasks is None else tasks
        options = PlanOptions(
            slots=slots,
            max_rows=max_rows_per_batch,
            max_bytes=max_bytes_per_batch,
            max_slice_us=None if max_slice is None else duration_us(max_slice, what="max_slice"),
            by_time=by_time,
            future_guard_us=strategy.future_guard_us,
            rate=rate,
            failover=failover,
            timeout_seconds=duration_us(timeout, what="timeout") / 1_000_000,
        )
        stream_factory.check_options(name, options)
        time = stream_factory.event_time_of(source, name, event_time)
        given = UserRows(name, time, split_column, strategy, max_splits)
        rows_too_late = LateOutput(late, watermark, late_to, late_until)
        df, stream = stream_factory.read(self._spark, source, given, prepare, options, rows_too_late, self.address)
        return self._build(df, stream, time)

    def audit(
        self,
        df: DataFrame,
        *,
        name: str,
        event_time: str,
        split: str | Sequence[str],
        splits: Iterable[object] | None = None,
        max_splits: int = _MAX_SPLITS,
        detail: bool = True,
    ) -> DataFrame:
        """Watch a stream that has its own `withWatermark`, by adding an observation.

        Rows, watermark, results, sources and checkpoint stay as they are: a query continues from its checkpoint with
        the audit, and later without it. Status, metrics and `explain` show how far behind each split is, the low
        watermark that the splits would have, and how many rows came behind the watermark that Spark judged them by: a
        least number for each split, and the number that Spark dropped in total.

        Args:
            df: a streaming DataFrame, before or after its `withWatermark`.
            name: of the stream, unique in this service; used in metrics and status.
            event_time: its TIMESTAMP column.
            split: the column or columns that say which split a row came from.
            splits: ids of the splits, if they are known, as in `wrap`; gives the splits their names.
            max_splits: the number of splits that a batch may have, as in `wrap`; with too many, nothing is reported.
            detail: also measure rows and earliest event time per split; without it no late row is assigned to a split.

        Returns:
            A DataFrame with df's rows and columns. It may feed several queries.

        Raises:
            WrapRefused: df cannot be observed; the text gives the reason and the remedy.
            StreamNameTaken: a query is read or audited under that name.
        """
        self._session.require_driver(f'audit("{name}")')
        strategy = self._begin("audit", name, None, max_splits)
        wrap.check_arguments(df, name=name, event_time=event_time, split=split, splits=splits)
        given = UserRows(name, event_time, split, strategy, max_splits, detail, splits)
        stream = stream_factory.audited(df, given)
        observed = stream.measure.observe(df)
        self._know(stream, df, self._audits.streams, f'audit stream "{name}"')
        return observed

    def _begin(self, action: str, name: str, strategy: WatermarkStrategy | None, max_splits: int) -> WatermarkStrategy:
        self._check_open(f'{action} stream "{name}"')
        check.name(name)
        # A notebook's cell may wrap a name again; a second stream under the name of a running query would be a mistake.
        running = self._call(lambda: self._readers(name), f'{action} stream "{name}"')
        if running:
            raise StreamNameTaken(name, running)
        return check.strategy_of(name, strategy, max_splits)

    def _build(self, df: DataFrame, stream: Stream, event_time: str) -> DataFrame:
        session = self._know(stream, df, self._runs.streams, f'wrap stream "{stream.name}"')
        if stream.tells_late:
            self._queries.tell_late_of(stream.stream_id)
        address = session.heartbeat_address(stream.stream_id, stream.name, self.address)
        return wrap.build(df, stream, event_time=event_time, address=address)

    def _know(self, stream: Stream, df: DataFrame, streams: Streams, action: str) -> Session:
        def instead() -> Marking | None:
            check_group(stream, self._runs.streams.values())  # first, so a refused stream takes nobody's place
            marking = self._release(stream.name)  # the stream that had the name before
            streams.add(stream)
            return marking

        _stop(self._call(instead, action))
        return self._call(lambda: self._queries.listen_to(session_of(df.sparkSession)), action)

    def release(self, name: str) -> None:
        """Forget a stream whose queries have ended, which frees its name.

        Wrapping or reading under the name again has the same effect. A `mark_done` of the stream ends, too. A query on
        a released DataFrame cannot be started.

        Raises:
            UnknownStream: nothing was wrapped under that name.
            StreamRunning: a query reads it.
        """

        def forget() -> Marking | None:
            if name not in (names := self._standing.names()):
                raise UnknownStream(name, names)
            if running := self._readers(name):
                raise StreamRunning(name, running)
            return self._release(name)

        _stop(self._call(forget, f'release stream "{name}"'))

    def status(self, name: str, *, query: str | None = None) -> StreamStatus:
        """Return the status of a stream.

        Args:
            query: name or id of a query, if the stream has several; by default the query furthest behind.

        Raises:
            UnknownStream: nothing was wrapped under that name.
        """
        return self._call(lambda: self._standing.status_of(name, query), f'give the status of "{name}"')

    def statuses(self, limit: int | None = None) -> list[tuple[str | None, StreamStatus]]:
        """Return (query name or id, status) of every stream in every running query.

        Args:
            limit: number of splits of each stream, those that need attention first; None: all (slow with 100,000).
        """
        return self._call(lambda: self._standing.statuses(limit), "give the status")

    def run_statuses(
        self, *, without: Container[str] = (), seconds: float = _CALL_SECONDS, limit: int | None = None
    ) -> list[RunStatus]:
        """Return every run of every stream at one moment, including ended runs, for the metrics.

        Args:
            without: tokens of runs to leave out; an ended run does not change any more.
            seconds: how long to wait for the loop.
            limit: number of splits of each run, those that need attention first; None: all.

        Raises:
            TimeoutError: the loop was busy for longer.
        """
        what = "give the status of all runs"
        return self._call(lambda: self._standing.run_statuses(without, limit), what, seconds=seconds)

    def loop_times(self) -> LoopTimes:
        """Return how busy the loop is that decides low watermarks; works without the loop, even while it hangs."""
        return self._loop.times

    def explain(self, name: str, *, query: str | None = None) -> Explanation:
        """Explain in words who holds the low watermark, why and since when, and how it would move."""
        return Explanation(self._call(lambda: self._standing.explain(name, query), f'explain "{name}"'))

    def wait_until(
        self, name: str, time: str | dt.datetime, *, timeout: str | dt.timedelta = "1 hour", query: str | None = None
    ) -> None:
        """Return once everything of a stream up to a time can be read in the sinks of its queries.

        All rows up to the time are committed then, and the windows that it closes are emitted.

        Args:
            time: with its zone: a datetime, or a text such as "2026-11-23T10:00Z".
            timeout: the longest wait.
            query: name or id of a query; None: all queries on the stream. A query that has ended counts with the time
                that its sink had; without a query no time is passed.

        Raises:
            NotComplete: the time is not passed at the time-out; the text explains who holds the low watermark.
            InvalidTime: the time is no time, or has no zone.
            UnknownStream: nothing was wrapped under that name.
        """
        past_us = time_us(time, what="time")
        deadline = monotonic() + duration_us(timeout, what="timeout") / 1_000_000
        action = f'wait for stream "{name}"'
        while True:
            until_us = self._call(lambda: self._complete_until(name, query), action)
            if until_us is not None and until_us >= past_us:
                return
            if (left_seconds := deadline - monotonic()) <= 0:
                why = self._call(lambda: passing.why_not(self._runs.known(), name, query), action)
                why = str(self.explain(name, query=query)) if why is None else why
                raise NotComplete(name, format_time_us(past_us), why)
            sleep(min(_LOOK_SECONDS, left_seconds))

    def when_passed(
        self, name: str, time: str | dt.datetime, call: Callable[[dt.datetime], object], *, query: str | None = None
    ) -> None:
        """Call a function once everything of a stream up to a time can be read in the sinks of its queries.

        The function runs on a thread of its own. It is called again after an error, until it returns; that it hangs is
        in the log. A function that was not called when the service stops is named in the log.

        Args:
            time: as in `wait_until`.
            call: takes the time until which the sinks are complete.
            query: as in `wait_until`.

        Raises:
            WrapRefused: `call` is no function.
            InvalidTime: the time is no time, or has no zone.
            UnknownStream: nothing was wrapped under that name.
        """
        check.function(name, "when_passed: call", call)
        wait = Wait(name, query, time_us(time, what="time"), lambda until_us: call(datetime_of(until_us)))

        def add() -> None:
            self._complete_until(name, query)  # which knows the stream
            self._runs.passing.add(wait, self._runs.known())

        self._call(add, f'wait for stream "{name}"')

    def complete_until(self, name: str, *, query: str | None = None) -> dt.datetime | None:
        """Return the time, UTC, until which everything of a stream can be read in the sinks; None while not known.

        Also None before the year 1, which Python does not have; an unset time of another system may lie there.

        A `foreachBatch` that has written its rows may store this time beside the rows, such as in a table's properties:
        the time is that of an earlier, committed batch.

        Args:
            query: as in `wait_until`.

        Raises:
            UnknownStream: nothing was wrapped under that name.
        """
        return utc(self._call(lambda: self._complete_until(name, query), f'ask how far stream "{name}" is complete'))

    def _complete_until(self, name: str, query: str | None) -> int | None:
        if self._runs.streams.named(name) is None:
            raise UnknownStream(name, self._runs.streams.names())
        return passing.complete_until(self._runs.known(), name, query)

    def mark_done(
        self,
        df: DataFrame,
        *,
        name: str,
        time: str,
        partition: str | dt.timedelta = "1 hour",
        layout: str = "dt=%Y-%m-%d/hour=%H",
        delay: str | dt.timedelta = "0 seconds",
        success_files: str | os.PathLike[str] | None = None,
        call: Callable[[DonePartition], object] | None = None,
        post: str | None = None,
    ) -> DataFrame:
        """Mark the partitions of a table as done once all their rows can be read in it.

        Write the returned rows; they are the given ones. Each partition with rows is marked, in order, when the sink is
        complete until its end and the delay: at least once, again after a crash, never early. The mark is repeated
        until it succeeds. Late rows of a marked partition are counted, and named in the log.

        Args:
            df: what the query writes, made of a wrapped or read stream.
            time: the TIMESTAMP column that the partitions are made of. For windows that are partitioned by their start,
                pass the start, and a delay of the windows' width unless they end where partitions end.
            partition: length of a partition; partitions begin at multiples of it since 1970, UTC.
            layout: the name of a partition for `strftime`, also its folder; characters are escaped as Spark does. With
                `success_files`, partitions side by side need names of their own.
            delay: how long to wait, in event time, behind the end of a partition.
            success_files: the table's folder, on any file system of Spark's: ``_SUCCESS`` goes into the folder of each
                partition.
            call: a function that takes a `DonePartition`.
            post: an HTTP address that is sent each partition as JSON.

        Returns:
            A DataFrame with df's rows and columns. Only one query may write it. A later call for the stream takes its
            place.

        Raises:
            WrapRefused: the arguments do not fit, or a query with an earlier `mark_done` of the stream runs; the text
                gives the reason and the remedy.
            InvalidDuration: `partition` or `delay` is no duration.
            UnknownStream: nothing was wrapped under that name.
        """
        self._check_open(f'mark partitions of stream "{name}"')
        self._session.require_driver(f'mark_done("{name}")')
        wrap.check_text(name, "time", time, "ts")
        made = marking.marking_of(
            self._spark, name, time, partition, layout, delay, success_files=success_files, call=call, post=post
        )
        observed = made.observe(df)

        def add() -> Marking | None:
            if self._runs.streams.named(name) is None:
                raise UnknownStream(name, self._runs.streams.names())
            before = self._desks.reports.end_marking(name)
            self._runs.markings[name] = made
            return before

        _stop(self._call(add, f'mark partitions of stream "{name}"'))
        return observed

    def rows_after_mark(self, name: str) -> dict[str, int]:
        """Return the rows that came to a partition after it was marked, by its name; empty without a `mark_done`."""

        def look() -> dict[str, int]:
            made = self._runs.markings.get(name)
            return {} if made is None else dict(made.rows_after_mark)

        return self._call(look, f'count rows after their mark in stream "{name}"')

    def mark_idle(self, name: str, split: str, *, until: str | dt.timedelta | dt.datetime | None = None) -> None:
        """Leave a split out of the minimum by hand, in every running query on a stream.

        The low watermark goes on without the split from the next batch on, and the rows of the split below the low
        watermark are late. The mark is written with the offset of that batch, so it outlives restarts and kills.

        Args:
            split: the split's name, as a status gives it.
            until: how long, such as "1 hour", or a time with a zone; None: until the split's next row, in a batch that
                is planned after this call.

        Raises:
            ByHandRefused: no query runs on such a stream, no split has that name, or the time is over or has no zone.
            InvalidDuration: `until` is no length of time.
        """
        self._mark(by_hand.request(name, split, idle=True, until=until))

    def mark_active(self, name: str, split: str) -> None:
        """Take `mark_idle` back: the low watermark waits for the split again. A split without a mark stays as it is.

        Raises:
            ByHandRefused: no query runs on such a stream, or no split has that name.
        """
        self._mark(by_hand.request(name, split, idle=False))

    def _mark(self, request: MarkRequest) -> None:
        self._call(lambda: self._desks.by_hand.take(request), f'mark splits of "{request.stream}" by hand')

    def set_strategy(
        self, name: str, *, delay: str | dt.timedelta | None = None, idleness: str | dt.timedelta | None = None
    ) -> None:
        """Set delay and idleness in every running query on a stream, until the next start of the query.

        They count from the next batch on. For a larger delay the low watermark does not go back; it stands until event
        time has caught up. For a smaller delay Spark drops rows for good that come later. Only the code changes a
        strategy for ever.

        Args:
            delay: how late a row may be, such as "30 seconds"; None: as it is.
            idleness: the timeout of `with_idleness`, which does not grow then; "off": no split becomes idle. None: as
                it is. Every silence counts anew, and an idle split stays idle until it speaks.

        Raises:
            ByHandRefused: no query runs on such a stream, or its strategy has no such value.
            InvalidDuration: a value is no length of time.
        """
        self._set(SetRequest.of(name, delay=delay, idleness=idleness))

    def reset_strategy(self, name: str) -> None:
        """Take `set_strategy` back: the strategy of the code counts again.

        Raises:
            ByHandRefused: no query runs on such a stream.
        """
        self._set(SetRequest.of(name, code=True))

    def _set(self, request: SetRequest) -> None:
        self._call(lambda: self._desks.by_hand.set(request), f'set the strategy of "{request.stream}" by hand')

    def groups(self) -> tuple[GroupStatus, ...]:
        """Return the alignment groups of this application's streams, by name.

        Empty if a coordinator elsewhere keeps the groups; ask it with `lowmark status --coordinator ADDRESS`.
        """
        return self._call(self._runs.cooperation.groups, "give the status of the alignment groups")

    def add_listener(self, listener: LowWatermarkListener) -> None:
        """Call `listener.on_new_low_watermark` on every new low watermark, in order, on a separate thread.

        Raises:
            ServiceRefused: the listener has no such method.
        """
        self._check_open("add a listener")
        check.listener(listener)
        self._listeners.add(listener)

    @property
    def metrics_port(self) -> int | None:
        """The port of the Prometheus endpoint, None without one."""
        return None if self._metrics is None else self._metrics.port

    @property
    def page_address(self) -> str | None:
        """The page's address for a browser, ``http://127.0.0.1:PORT/``; None without a page."""
        return None if self._page is None else self._page.address

    @property
    def failed(self) -> BaseException | None:
        """The error that ended a thread that the service cannot do without, also in the log; None: no such error.

        Every call raises the error, and every query ends with it. If the link to a coordinator has ended, only the
        queries that need the coordinator end. `LowWatermarkService(spark)` makes a new service.
        """
        link = None if self._client is None else self._client.failed
        return link if self._loop.failed is None else self._loop.failed

    def stop(self) -> None:
        """Stop the service. Running queries keep their watermark. May be called more than once.

        A failed service frees its resources and writes nothing. Running queries receive the service's error and end at
        their next heartbeat; then the service closes its socket.
        """
        if self._stopping or os.getpid() != self._process:  # a fork of the driver shares its sockets, and has no thread
            return
        _RUNNING.remove(self)
        queries_run = False
        try:
            self._call(self._desks.reports.say_farewells, "stop")
        except WorkerDied as died:
            log.error("the service stops, and leaves no last report: %s", died)
            queries_run = self._queries_run()
        finally:
            self._stopping = True
            atexit.unregister(self.stop)
            with ExitStack() as parts:  # the last ends first; all end, also if Ctrl-C interrupts the end of one
                if self._client is not None:
                    parts.callback(self._client.close)
                parts.callback(self._listeners.stop)
                parts.callback(self._runs.streams.close)
                parts.callback(self._desks.reports.farewells.close)
                for made in self._runs.markings.values():
                    parts.callback(made.stop)
                parts.callback(self._runs.passing.stop)
                parts.callback(self._loop.stop)
                for server in (self._page, self._metrics):
                    if server is not None:
                        parts.callback(server.stop)
                parts.callback(self._end_door, queries_run=queries_run)  # before the loop, which may answer a heartbeat
                parts.callback(self._queries.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._users -= 1
        if self._users < 1:  # otherwise another caller still uses the service
            self.stop()

    # -- for the threads ------------------------------------------------------------------------------------------

    def _call(self, work: Callable[[], Result], action: str, *, seconds: float = _CALL_SECONDS) -> Result:
        self._check_open(action)
        return self._loop.call(work, action, seconds=seconds)

    def _end_door(self, *, queries_run: bool) -> None:
        if queries_run:
            with suppress(RuntimeError):  # Python 3.12 begins no thread while a process ends
                Worker("lowmark-door", self._close_door_after_queries).start()
                return
        self._close_door()

    def _close_door_after_queries(self) -> None:
        """Answer the queries of a failed service until each has ended with the service's error, or Spark is gone."""
        while self._queries_run():
            sleep(_LOOK_SECONDS)
        self._close_door()

    def _queries_run(self) -> bool:
        """Whether a query of this service runs, which asks here; no if Spark is gone."""
        with suppress(Exception):  # of Spark that is gone
            return any(query.active for query in self._queries)
        return False

    def _close_door(self) -> None:
        try:
            self._server.stop()
        finally:
            sockets.remove(self.address)

    def _check_open(self, action: str) -> None:
        if self._stopping and self._loop.failed is None:
            raise ServiceStopped(action)

    def _beside(self, read: Callable[[], Result], then: Callable[[Result], object]) -> None:
        def look() -> None:
            try:
                found = read()
            except Exception:
                log.exception("could not read the checkpoint of a query that has ended; why it ended is not explained")
            else:
                self._loop.post(lambda: then(found))

        Worker("lowmark-checkpoint", look).start()

    # -- on the loop

    def _take_event(self, kind: str, event: QueryEvent) -> None:
        """Take an event of Spark's listener, with one retry after an error; a repeated event has no effect.

        A second error is logged, because nobody waits for the result: the next heartbeat reads a missed report again.
        """
        for taker in (self._audits, self._desks.events):
            for then in ("it is taken once more", "the next heartbeat of its query reads the progress again"):
                try:
                    taker.take_event(kind, event)
                    break
                except Exception:
                    log.exception('could not take a "%s" event of a query; %s', kind, then)

    def _look_for_ends(self) -> None:
        """End queries whose end no event told. An error is no end of the loop, because the next tick looks again."""
        try:
            for end in self._desks.events.unheard_ends():
                self._take_event("terminated", end)
        except Exception as failed:  # noqa: BLE001  # py4j and the JVM have no common base class of errors
            log.debug("could not ask Spark which queries have ended: %s", failed)

    def _readers(self, name: str) -> tuple[str, ...]:
        return (*self._runs.readers(name), *self._audits.readers(name))

    def _release(self, name: str) -> Marking | None:
        marking = self._desks.reports.end_marking(name)
        self._runs.streams.release(name)
        self._runs.could_not_begin.pop(name, None)
        self._audits.release(name)
        return marking


def _stop(marking: Marking | None) -> None:
    if marking is not None:
        marking.stop()


def _defaults(kind: type[LowWatermarkService]) -> dict[str, Any]:
    """The default arguments of a service, without `beside`, which is no property of a service."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty and each.name != "beside"}
