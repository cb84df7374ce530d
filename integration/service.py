"""The low-watermark service in a driver: wraps streams, hears of their batches, answers their heartbeats.

One thread, the loop, owns every run and its coordinator. Spark's listener, the gRPC server, a scrape and the user's
calls only put work into the loop's queue. When a heartbeat reader asks, Spark has just finished a batch and put its
progress where `lastProgress` finds it, so the loop reads it there before it answers: the report of batch N is in the
heartbeat of batch N + 1 without waiting for anybody. The listener brings what nobody asks for: the last batch of a
query, its start and its end.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lowmark.watermark import (
    CorruptSnapshot,
    Effect,
    LowWatermarkListener,
    NotifyNewLowWatermark,
    StreamStatus,
    WatermarkStrategy,
    explain,
    to_json,
)

from . import plan, sockets, wrap
from .accumulate import BatchTrack, EventTimeMap, TrackParam, Tracks
from .checkpoint import Farewell
from .clock import SteadyClock
from .errors import ServiceStopped, StreamNameTaken, UnknownStream, WrapRefused
from .observe import Measurement
from .progress import Progress
from .queries import Queries
from .rpc import HeartbeatReply, HeartbeatRequest, Server, StatusReply, StatusRequest
from .run import RunStatus, Stream, StreamRun
from .splits import SplitKey

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

__all__ = ["LowWatermarkService"]

log = logging.getLogger("lowmark")

Result = TypeVar("Result")

_MAX_SPLITS = 4_096
_CALL_SECONDS = 60.0
_ENDED_RUNS_KEPT = 100
# Spark's assertion when a checkpoint has another number of sources than the query.
_NO_HEARTBEAT = "sources in the checkpoint offsets"


class LowWatermarkService:
    """Makes Spark's watermark the low watermark over the splits of a stream.

    Args:
        spark: the session; its queries are heard of from now on.
        metrics_port: port of the Prometheus endpoint, 0 for any free one, None for no HTTP server.
        metrics_host: address the endpoint binds to.

    Raises:
        TypeError: the session is a Spark Connect session, whose driver is another process.

    Use it as a context manager around the queries::

        with LowWatermarkService(spark) as service:
            events = service.wrap(df, name="orders", event_time="ts", split=["topic", "partition"])
            events.groupBy(...).count().writeStream.start().awaitTermination()
    """

    def __init__(
        self, spark: SparkSession, *, metrics_port: int | None = None, metrics_host: str = "127.0.0.1"
    ) -> None:
        if not hasattr(spark, "_jsparkSession"):
            raise TypeError(
                "LowWatermarkService needs the session of a driver, got a Spark Connect session: its listeners and "
                "accumulators live in another process. Hint: create the service in the driver itself."
            )
        address = sockets.new_address()  # before anything is started: it may be refused
        self._spark = spark
        self._clock = SteadyClock()
        self._streams: dict[str, Stream] = {}  # by stream_id
        self._runs: dict[str, StreamRun] = {}  # by token, in order of attachment
        self._queries = Queries(self._enqueue_event)
        self._listeners: list[LowWatermarkListener] = []
        self._stopping = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._notices: queue.SimpleQueue[NotifyNewLowWatermark | None] = queue.SimpleQueue()
        self._loop = threading.Thread(target=self._run_loop, name="lowmark-loop", daemon=True)
        self._notifier = threading.Thread(target=self._run_notifier, name="lowmark-listeners", daemon=True)
        self._loop.start()
        self._notifier.start()
        self.address = address
        self._server = Server(self.address, heartbeat=self._answer_heartbeat, status=self._answer_status)
        self._metrics = None
        if metrics_port is not None:
            from .metrics import MetricsServer

            try:
                self._metrics = MetricsServer(self, host=metrics_host, port=metrics_port)
            except Exception:
                self.stop()  # nobody gets hold of this service, so nobody else could stop its threads
                raise
        self._queries.listen_to(spark)
        atexit.register(self.stop)

    # -- what users call ------------------------------------------------------------------------------------------

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
    ) -> DataFrame:
        """Return the same rows under the low watermark of their splits.

        Args:
            df: a streaming DataFrame without `withWatermark`.
            name: of the stream, unique in this service; used in metrics and status.
            event_time: its TIMESTAMP column.
            split: the column or columns that say which split a row came from.
            strategy: how the watermark of a split is made; by default monotonous timestamps.
            splits: ids of all splits that exist, where they are known: a value each, or a tuple each for several
                split columns. Kafka's partitions are known without it. A split that is not known cannot be waited for.
            max_splits: how many splits there may be; more end the query with an error.
            detail: also measure rows and earliest event time per split: about a quarter more work per row.

        Returns:
            A DataFrame with df's columns, all nullable. It may feed several queries.

        Raises:
            WrapRefused: df cannot be wrapped; the text says why and what to do.
            StreamNameTaken: the name is in use.
            ServiceStopped: the service was stopped.
        """
        self._check_open(f'wrap stream "{name}"')
        strategy = WatermarkStrategy.for_monotonous_timestamps() if strategy is None else strategy
        if not name:
            raise WrapRefused(name, "the name is empty", 'pass a name such as name="orders".')
        if any(stream.name == name for stream in self._streams.values()):
            raise StreamNameTaken(name)
        if not 1 <= max_splits <= 1 << 25:
            raise WrapRefused(name, f"max_splits is {max_splits!r}", "pass a number from 1 to 33554432.")
        wrap.check_input(df, name=name, event_time=event_time, strategy=strategy)
        types = {f.name: f.dataType.simpleString() for f in df.schema.fields}
        key = SplitKey.of(name, wrap.split_columns(split), types)
        wrap.check_session(df.sparkSession, name=name)
        plan_ = plan.analyzed(df)
        kafka = set(key.columns) <= plan.kafka_columns(plan_) & {"topic", "partition"} and "partition" in key.columns
        declared = {} if splits is None else key.declared(name, splits)
        stream_id = uuid.uuid4().hex[:12]
        tracks = None
        if strategy.runs_python:
            accumulator: Any = df.sparkSession.sparkContext.accumulator({}, TrackParam())
            df = EventTimeMap(name, key, event_time, strategy, accumulator).apply(df)
            tracks = _taker(accumulator)
            measurement = None
        else:
            measurement = Measurement(
                stream=name,
                key=key,
                event_time=event_time,
                future_guard_us=strategy.future_guard_us,
                # Twice the splits: a union of sketches is trimmed to its size, and nothing may be trimmed.
                sketch_lg=max(4, (2 * max_splits - 1).bit_length()),
                detail=detail,
                sample_names=not (kafka or declared or key.integral),
            )
        stream = Stream(
            name=name,
            stream_id=stream_id,
            strategy=strategy,
            key=key,
            measurement=measurement,
            sources=plan.count_sources(plan_),
            kafka=kafka,
            declared=declared,
            names=dict(declared),
            tracks=tracks,
            withholds=plan.withholds_rows(plan_),
        )
        self._call(lambda: self._streams.setdefault(stream_id, stream), f'wrap stream "{name}"')
        self._call(lambda: self._queries.listen_to(df.sparkSession), f'wrap stream "{name}"')
        return wrap.build(df, stream, event_time=event_time, address=self.address)

    def status(self, name: str, *, query: str | None = None) -> StreamStatus:
        """Return where a stream stands.

        Args:
            name: the stream's name.
            query: name or id of the query, where the stream feeds several; by default the one furthest behind.

        Raises:
            UnknownStream: nothing was wrapped under that name.
            ServiceStopped: the service was stopped.
        """
        return self._call(lambda: self._status_of(name, query), f'give the status of "{name}"')

    def statuses(self) -> list[tuple[str | None, StreamStatus]]:
        """Return (query name or id, status) of every stream in every running query."""
        return self._call(self._all_statuses, "give the status")

    def run_statuses(self, *, without: Container[str] = (), seconds: float = _CALL_SECONDS) -> list[RunStatus]:
        """Return every run of every stream, ended ones too, at one moment: what metrics are made of.

        Args:
            without: tokens of runs to leave out; a run that has ended does not change any more.
            seconds: how long to wait for the loop.

        Raises:
            TimeoutError: the loop was busy for longer.
            ServiceStopped: the service was stopped.
        """
        return self._call(lambda: self._all_run_statuses(without), "give the status of all runs", seconds=seconds)

    def explain(self, name: str, *, query: str | None = None) -> str:
        """Return who holds the low watermark, why, since when and what would move it, in words."""
        return explain(self.status(name, query=query))

    def add_listener(self, listener: LowWatermarkListener) -> None:
        """Call `listener.on_new_low_watermark` on every new low watermark, in order, on a thread of its own."""
        self._check_open("add a listener")
        self._listeners.append(listener)

    @property
    def metrics_port(self) -> int | None:
        """The port of the Prometheus endpoint, None without one."""
        return None if self._metrics is None else self._metrics.port

    def stop(self) -> None:
        """Stop serving. Queries that still run keep the watermark they have. May be called more than once."""
        if self._stopping:
            return
        try:
            self._call(self._say_farewells, "stop")
        finally:
            self._stopping = True
            atexit.unregister(self.stop)
            self._queries.close()
            self._server.stop()
            if self._metrics is not None:
                self._metrics.stop()
            self._work.put(None)
            self._notices.put(None)
            self._loop.join(timeout=10)
            self._notifier.join(timeout=10)
            sockets.remove(self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # -- the loop -------------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        while (task := self._work.get()) is not None:
            task()

    def _run_notifier(self) -> None:
        while (notice := self._notices.get()) is not None:
            for listener in tuple(self._listeners):
                try:
                    listener.on_new_low_watermark(notice)
                except Exception:
                    log.exception("a LowWatermarkListener failed on %s; it will be called again", notice)

    def _call(self, work: Callable[[], Result], action: str, *, seconds: float = _CALL_SECONDS) -> Result:
        """Run something on the loop and wait for what it returns."""
        self._check_open(action)
        done: Future[Result] = Future()

        def task() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                done.set_result(work())
            except BaseException as failed:  # noqa: BLE001  # the caller raises it again
                done.set_exception(failed)

        self._work.put(task)
        try:
            return done.result(timeout=seconds)
        except FutureTimeout:
            if done.done():
                raise  # the work itself timed out
            done.cancel()
            raise TimeoutError(f"cannot {action}: the service's loop is busy, tried for {seconds:g} seconds") from None

    def _check_open(self, action: str) -> None:
        if self._stopping:
            raise ServiceStopped(action)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def _answer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        return self._call(lambda: self._heartbeat(request), "answer a heartbeat")

    def _heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        now_us = self._clock.now_us()
        run = self._runs.get(request.run)
        if run is None:
            run = self._attach(request, now_us)
        self._catch_up(run, planned_at_us=self._own_time(request.planned_at_us))
        run.asked_at_us = now_us
        if request.polled_until_us is not None and not run.stream.withholds:
            self._publish(run.polled(self._own_time(request.polled_until_us), now_us))
        else:
            self._publish(run.tick(now_us))
        wake_at_us = run.coordinator.wake_at_us(now_us)
        if run.stream.withholds and wake_at_us is not None and wake_at_us <= now_us:
            wake_at_us = None  # a silence that only a batch can settle, since polls show nothing here
        run.told_epoch = run.coordinator.epoch
        return HeartbeatReply(
            low_watermark_us=run.coordinator.low_watermark_us,
            epoch=run.told_epoch,
            state=run.state(),
            wake_at_us=None if wake_at_us is None else self._clock.to_monotonic_us(wake_at_us),
            refusal=run.refusal,
        )

    def _attach(self, request: HeartbeatRequest, now_us: int) -> StreamRun:
        stream = self._streams.get(request.stream_id)
        if stream is None or not request.first:
            raise UnknownStream(request.stream_id, self._names())
        left_behind = self._farewell(request)
        state = request.state if left_behind is None else left_behind.state
        try:
            run = StreamRun.attach(stream, token=request.run, resumes=request.resumes, state=state, now_us=now_us)
        except CorruptSnapshot as corrupt:
            run = StreamRun.attach(stream, token=request.run, resumes=request.resumes, state=None, now_us=now_us)
            run.refusal = f'stream "{stream.name}": the state in the checkpoint cannot be read. {corrupt}'
        self._runs[request.run] = run
        self._forget_old_runs()
        return run

    def _forget_old_runs(self) -> None:
        """A driver may start queries for months; status and metrics need the ended ones only for a while."""
        ended = [token for token, run in self._runs.items() if run.ended]
        for token in ended[: max(0, len(ended) - _ENDED_RUNS_KEPT)]:
            del self._runs[token]

    def _farewell(self, request: HeartbeatRequest) -> Farewell | None:
        """What the run before left in the checkpoint after its last offset, if it belongs to that very offset."""
        if request.resumes is None:
            return None
        self._queries.find()
        for query in self._queries:
            farewell = query.farewells.read(request.resumes)
            if farewell is not None and farewell.epoch == request.epoch:
                return farewell
        return None

    def _catch_up(self, run: StreamRun, *, planned_at_us: int) -> None:
        """Take the reports of all batches that are over: the newest as a rule, missed ones from the history."""
        query = self._queries.get(run.run_id)
        if query is None and run.run_id is None:
            self._queries.find()
            query = next((q for q in self._queries if self._belongs(run, q.newest())), None)
        if query is None:
            return
        newest = query.newest()
        if newest is None:
            return
        missed = 0 if run.last_batch_id is None else newest.batch_id - run.last_batch_id - 1
        for progress in [*(query.history() if missed > 0 else ()), newest]:
            self._take_report(run, progress, planned_at_us=planned_at_us)

    def _take_report(self, run: StreamRun, progress: Progress, *, planned_at_us: int) -> None:
        if not self._belongs(run, progress):
            return
        if run.run_id is None:
            run.tie(progress)
        for index, offset in progress.heartbeats():
            if run.wrote(offset):
                self._publish(run.report(progress, index, planned_at_us=planned_at_us, now_us=self._clock.now_us()))
        query = self._queries.get(run.run_id)
        if query is not None and not run.checked:
            run.checked = True
            fault = query.fault()
            if fault is not None:
                run.refusal = f'stream "{run.stream.name}": {fault}'

    def _belongs(self, run: StreamRun, progress: Progress | None) -> bool:
        if progress is None or run.run_id not in (None, progress.run_id):
            return False
        return any(run.wrote(offset) for _, offset in progress.heartbeats())

    def _publish(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, NotifyNewLowWatermark):
                self._notices.put(effect)

    def _own_time(self, monotonic_us: int | None) -> int:
        return self._clock.now_us() if monotonic_us is None else self._clock.from_monotonic_us(monotonic_us)

    # -- events of queries ----------------------------------------------------------------------------------------

    def _enqueue_event(self, kind: str, event: JavaObject) -> None:
        self._work.put(lambda: self._take_event(kind, event))

    def _take_event(self, kind: str, event: JavaObject) -> None:
        try:
            match kind:
                case "started":
                    self._queries.find()
                case "progress":
                    self._take_progress(event.progress())
                case "idle":
                    self._take_sign_of_life(event)
                case "terminated":
                    self._take_end(event)
        except Exception:
            if not self._stopping:
                log.exception(
                    'could not take a "%s" event of a query; its next heartbeat reads the progress again',
                    kind,
                )

    def _take_progress(self, java_progress: JavaObject) -> None:
        run_id, batch_id = java_progress.runId().toString(), java_progress.batchId()
        runs = [run for run in self._runs.values() if run.run_id in (run_id, None) and not run.ended]
        behind = [run for run in runs if run.last_batch_id is None or run.last_batch_id < batch_id]
        if behind:  # only at the end of a query: while it goes on, the heartbeat was faster
            progress = Progress.from_json(java_progress.json())
            for run in behind:
                self._take_report(run, progress, planned_at_us=run.asked_at_us)

    def _take_sign_of_life(self, event: JavaObject) -> None:
        """Spark says every ten seconds that a query lives and has nothing to do."""
        run_id = event.runId().toString()
        for run in self._runs.values():
            if run.run_id == run_id:
                run.seen_at_us = self._clock.now_us()

    def _take_end(self, event: JavaObject) -> None:
        run_id = event.runId().toString()
        if event.exception().isDefined() and _NO_HEARTBEAT in event.exception().get():
            log.error(
                "query %s: its checkpoint was written without lowmark's heartbeat, and Spark does not let a checkpoint "
                "gain a source. Hint: start with a new checkpoint; `lowmark offsets CHECKPOINT` prints the Kafka "
                "startingOffsets that continue from the old one.",
                event.id().toString(),
            )
        for run in self._runs.values():
            if run.run_id == run_id and not run.ended:
                self._catch_up(run, planned_at_us=run.asked_at_us)
                self._say_farewell(run)
                run.ended, run.failed = True, event.exception().isDefined()
        self._queries.forget(run_id)
        self._end_untied(failed=event.exception().isDefined())

    def _end_untied(self, *, failed: bool) -> None:
        """A query that failed in its first batch was never tied to its run; no query is left that could own it."""
        tied = {run.run_id for run in self._runs.values()}
        if all(query.run_id in tied for query in self._queries):
            for run in self._runs.values():
                if run.run_id is None and not run.ended:
                    run.ended, run.failed = True, failed

    def _say_farewells(self) -> None:
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
            query = self._queries.get(run.run_id)
            if query is None or run.last_batch_id is None:
                return
            if run.coordinator.epoch != run.told_epoch:
                query.farewells.write(Farewell(run.token, run.told_epoch, run.last_batch_id, run.state()))
            if run.resumes is not None:
                query.farewells.forget(run.resumes)
        except Exception as failed:  # noqa: BLE001  # py4j's and the file system's have no common base
            log.warning(
                'stream "%s": the last report could not be left in the checkpoint (%s); after a restart, windows may '
                "wait for one more row of each split",
                run.stream.name,
                failed,
            )

    # -- status ---------------------------------------------------------------------------------------------------

    def _status_of(self, name: str, query: str | None) -> StreamStatus:
        streams = [s for s in self._streams.values() if s.name == name]
        if not streams:
            raise UnknownStream(name, self._names())
        now_us = self._clock.now_us()
        runs = [r for r in self._runs.values() if r.stream.name == name and query in (None, r.query_name, r.query_id)]
        live = [r for r in runs if not r.ended]
        tied = [r for r in live if r.run_id is not None]  # the others may be of a query that has failed at once
        candidates = tied if tied else live if live else runs[-1:]
        if not candidates:
            return StreamRun.attach(streams[0], token="", resumes=None, state=None, now_us=now_us).status(now_us)
        return min((r.status(now_us) for r in candidates), key=_furthest_behind)

    def _all_statuses(self) -> list[tuple[str | None, StreamStatus]]:
        now_us = self._clock.now_us()
        return [
            (r.query_name if r.query_name is not None else r.query_id, r.status(now_us))
            for r in self._runs.values()
            if not r.ended
        ]

    def _all_run_statuses(self, without: Container[str]) -> list[RunStatus]:
        now_us = self._clock.now_us()
        return [run.run_status(now_us) for token, run in self._runs.items() if token not in without]

    def _answer_status(self, request: StatusRequest) -> StatusReply:
        pairs = [(q, s) for q, s in self.statuses() if request.stream in (None, s.name)]
        return StatusReply(
            application=self._spark.sparkContext.applicationId,
            pid=os.getpid(),
            streams=[{"query": query, **to_json(status)} for query, status in pairs],
            explanations=[explain(status) for _, status in pairs],
        )

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(stream.name for stream in self._streams.values()))


def _taker(accumulator: Accumulator[Tracks]) -> Callable[[str, int], BatchTrack | None]:
    """Take what the accumulator holds for a batch, and drop what is older: it is never asked for again."""

    def take(query_id: str, batch_id: int) -> BatchTrack | None:
        tracks = accumulator.value
        for query, batch in list(tracks):
            if query == query_id and batch < batch_id:
                del tracks[query, batch]
        return tracks.get((query_id, batch_id))

    return take


def _furthest_behind(status: StreamStatus) -> tuple[bool, int]:
    low_us = status.low_watermark_us
    return low_us is not None, 0 if low_us is None else low_us
