"""What ties a source of ours to the service: what is planned and what is read, on its way to the driver.

    planner -> service   `ServicePeer` asks before a batch is planned how far alignment lets it read, and tells what was
                         planned: the watermark of a split is known before a row of it is read
    task -> service      `AccumulatorRecorder` measures what is read, by whole Arrow batches, without a second pass; it
                         arrives with the task's end

Both ends are here; `Reader` is what the service keeps of a planner. Executors import this module, so it imports gRPC
only where it calls.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from lowmark.sources.batches import Guidance, Planned, Task
from lowmark.watermark import SplitMark
from lowmark.watermark.status import printable

from .accumulate import BatchTrack, Tracks
from .clock import monotonic_us
from .errors import ServiceUnreachable
from .splits import SplitKey

if TYPE_CHECKING:
    from lowmark.sources import SourceEvent, SplitRows, VersionedSerializer
    from pyspark.accumulators import Accumulator

    from .rpc import Client

__all__ = ["SPLIT_TYPE", "AccumulatorRecorder", "Reader", "ServicePeer"]

SPLIT_TYPE = "string"
_RETRY_US = 1_000_000
_PLANS_KEPT = 8


@dataclass
class Reader:
    """A planner, as the service knows it.

    Attributes:
        stream_id: what it reads.
        run: token of the heartbeat of the same query; None until a batch showed the two together.
        plans: what it planned last, by checkpoint, the newest last.
        events: what its readers sent to the enumerator, not taken yet.
    """

    stream_id: str
    run: str | None = None
    plans: dict[int, Planned] = field(default_factory=dict)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)

    def keep(self, planned: Planned) -> bool:
        """Remember a plan until its batch was reported; the newest few.

        Returns:
            Whether it is news. A planner that got no answer says it again, also after it has said a newer one.
        """
        newest = not self.plans or planned.checkpoint >= next(reversed(self.plans))
        news = newest and self.plans.get(planned.checkpoint) != planned
        self.plans = dict(sorted({**self.plans, planned.checkpoint: planned}.items())[-_PLANS_KEPT:])
        return news

    def take_events(self) -> list[tuple[int, int, bytes]]:
        taken, self.events = self.events, []
        return taken


class ServicePeer:
    """A planner's way to the service. Pickled: opens its connection when it first asks.

    When the service is gone, what it last said holds: the watermark stays, and alignment lets nobody further.

    Args:
        address: where the service listens.
        stream_id: what is read.
        stream: its name, for errors.
    """

    def __init__(self, *, address: str, stream_id: str, stream: str) -> None:
        self._address, self._stream_id, self._stream = address, stream_id, stream
        self._client: Client | None = None
        self._guidance = Guidance()
        self._retry_at_us: int | None = None
        self._untold: dict[int, Planned] = {}  # by checkpoint

    def ask(self, run: str) -> Guidance:
        from .rpc import GuideRequest

        if not self._may_try():
            return self._guidance
        try:
            for planned in list(self._untold.values()):
                self._say(run, planned)
            reply = self._connected().guide(GuideRequest(stream_id=self._stream_id, run=run))
        except ServiceUnreachable as gone:
            self._note(gone)
            return self._guidance
        self._retry_at_us = None
        self._guidance = Guidance(reply.cap_us, reply.hold, frozenset(reply.held), reply.observed_us, reply.events)
        return self._guidance

    def tell(self, run: str, planned: Planned) -> None:
        self._untold[planned.checkpoint] = planned
        if not self._may_try():
            return
        try:
            self._say(run, planned)
        except ServiceUnreachable as gone:
            self._note(gone)

    def _say(self, run: str, planned: Planned) -> None:
        from .rpc import PlannedRequest

        self._connected().planned(PlannedRequest(stream_id=self._stream_id, run=run, **_fields(planned)))
        self._untold.pop(planned.checkpoint, None)

    def _may_try(self) -> bool:
        return self._retry_at_us is None or monotonic_us() >= self._retry_at_us

    def _connected(self) -> Client:
        from .rpc import Client

        if self._client is None:
            self._client = Client(self._address)
        return self._client

    def _note(self, gone: ServiceUnreachable) -> None:
        if self._retry_at_us is None:
            # No logging is set up in this process; Spark passes its standard error on to the driver's.
            line = f'lowmark: stream "{self._stream}": what alignment said last holds. {gone}'
            sys.stderr.write(printable(line) + "\n")
            sys.stderr.flush()
        self._retry_at_us = monotonic_us() + _RETRY_US
        if self._client is not None:
            self._client.close()
        self._client = None
        # Events were taken with the answer that brought them; they are not handed on a second time.
        self._guidance = replace(self._guidance, events=())


@dataclass(frozen=True)
class AccumulatorRecorder:
    """Measures event times per split while a task reads.

    Attributes:
        event_time: the column to measure.
        future_guard_us: later rows than this ahead of the task's clock move no watermark; None: no guard.
        key: makes ids of the splits' names.
        tracks: the accumulator.
        events: the format of the events that readers send.
    """

    event_time: str
    future_guard_us: int | None
    key: SplitKey
    tracks: Accumulator[Tracks]
    events: VersionedSerializer[Any] | None

    def begin(self, task: Task[Any]) -> _TaskRecording:
        return _TaskRecording(self, task)


class _TaskRecording:
    """One task: what it saw so far."""

    def __init__(self, recorder: AccumulatorRecorder, task: Task[Any]) -> None:
        self._recorder, self._cell = recorder, task.subtask
        self._track = BatchTrack()
        self._ids: dict[str, int] = {}
        self._sent: list[tuple[int, int, bytes]] = []
        guard_us = recorder.future_guard_us
        self._latest_us = None if guard_us is None else time.time_ns() // 1_000 + guard_us

    def see(self, rows: SplitRows) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(rows.rows) == 0:
            return
        split = self._ids.get(rows.split_id)
        if split is None:
            split = self._ids[rows.split_id] = self._recorder.key.split_id((rows.split_id,))
            self._track.names[split] = rows.split_id
        micros = rows.rows.column(self._recorder.event_time).cast(pa.int64())
        ends = pc.min_max(micros)
        top, first = ends["max"].as_py(), ends["min"].as_py()
        tracker = self._track.tracker
        if micros.null_count == 0 and first >= 0 and (self._latest_us is None or top <= self._latest_us):
            tracker.observe_many(split, SplitMark(top, first, len(micros)), self._cell)
            return
        # Bad rows among them: each is counted for what it is. Nulls, the past before 1970, clocks that run ahead.
        for time_us in micros.to_pylist():
            tracker.observe(split, time_us, self._cell, latest_us=self._latest_us)

    def send(self, event: SourceEvent) -> None:
        serializer = self._recorder.events
        if serializer is None:
            raise RuntimeError(
                f"reader {self._cell} sends {event!r}, and its source has no format for events. "
                "Hint: give the source an event_serializer."
            )
        self._sent.append((self._cell, serializer.version, serializer.serialize(event)))

    def end(self) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "sources are read in tasks"
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        if self._sent:
            self._track.events[self._cell] = tuple(self._sent)
        if batch_id is not None and query_id is not None:
            self._recorder.tracks.add({(query_id, int(batch_id)): self._track})


def _fields(planned: Planned) -> dict[str, Any]:
    return {field.name: getattr(planned, field.name) for field in fields(planned)}
