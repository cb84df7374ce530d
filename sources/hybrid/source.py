"""Several sources, read one after the other as if they were one: history first, then what is live (FLIP-150).

    files of last year ──► files of this year ──► Kafka
    bounded                bounded                may be unbounded

The next source is switched to when every reader has finished the present one: its enumerator has told the reader that
there is no more, and every split of the reader was planned to its end (`handle_splits_finished`). Splits carry the
index of their source in `HybridSplit.source_index` and in their id ("0:orders/3"), so planner, split reader and
serializers find the right one. Whatever a source does not know of the others stays its own: it sees its splits, its
ids, its readers.

The start of a source may depend on how the one before it ended: `DeferredSource` makes it then. Whoever else needs it,
after a restart or on an executor, makes it without that knowledge; so what is known only then belongs into the splits.

Source: `org.apache.flink.connector.base.source.hybrid`, FLIP-150.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from lowmark.sources.api import (
    Boundedness,
    Fetching,
    ReaderInfo,
    ResultT,
    Source,
    SourceEvent,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAssignment,
    VersionedSerializer,
)
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.serializer import UnreadableState
from lowmark.watermark import LowmarkError

from .reader import HybridPlanner, HybridSplit, HybridSplitReader

__all__ = ["DeferredSource", "HybridSource", "HybridSplit", "HybridState", "InvalidHybrid"]

AnySource = Source[Any, Any]
AnyEnumerator = SplitEnumerator[Any, Any]


class InvalidHybrid(LowmarkError, ValueError):
    """Sources that cannot be read one after the other."""

    index: int  # the source at fault, from 0
    reason: str  # what is wrong
    hint: str  # what to do
    _fact = "source {index} of a HybridSource: {reason}"


@dataclass(frozen=True, slots=True)
class DeferredSource:
    """A source that is made when it is switched to.

    Attributes:
        create: gets the enumerator of the source before, which has ended and is not closed yet; None after a restart
            and on executors. A module's function, or whatever else can be pickled.
        boundedness: of the source that it makes.
    """

    create: Callable[[AnyEnumerator | None], AnySource]
    boundedness: Boundedness = Boundedness.BOUNDED


@dataclass(frozen=True, slots=True)
class HybridState:
    """What a `HybridSource` goes on from.

    Attributes:
        source_index: the source that is read.
        state: its enumerator's state.
        complete: readers that were told that there is no more of it.
        unfinished: ids of its splits that are assigned and not finished, sorted.
        returned: none. A checkpoint has a place for splits that were given back, and no reader gives any back.
    """

    source_index: int
    state: Any
    complete: tuple[int, ...] = ()
    unfinished: tuple[str, ...] = ()
    returned: tuple[HybridSplit, ...] = ()


class HybridSource(Source[HybridSplit, HybridState]):
    """Reads sources one after the other.

    Args:
        sources: two or more, all but the last of them bounded; all rows are of one schema. The first is not deferred.

    Raises:
        InvalidHybrid: one of the above does not hold; for a deferred source, when it is made.
    """

    def __init__(self, *sources: AnySource | DeferredSource) -> None:
        if len(sources) < 2:
            raise InvalidHybrid(0, f"expected two sources or more, got {len(sources)}", "read a single one as it is.")
        if isinstance(sources[0], DeferredSource):
            raise InvalidHybrid(0, "nothing comes before it, so it cannot be deferred", "give the source itself.")
        for index, source in enumerate(sources[:-1]):
            if source.boundedness is not Boundedness.BOUNDED:
                raise InvalidHybrid(index, "it is unbounded, so nothing would ever follow", "bound it, or put it last.")
        self._first, self._sources = sources[0], sources
        self._made: dict[int, AnySource] = {}
        for index, source in enumerate(sources):
            if not isinstance(source, DeferredSource):
                self._made[index] = self._checked(index, source)

    @property
    def schema(self) -> pa.Schema:
        return self._first.schema

    @property
    def event_time(self) -> str | None:
        """The one column that sources which are known by now name; a source that names none is not searched by time."""
        named = {source.event_time for source in self._made.values()} - {None}
        return named.pop() if len(named) == 1 else None

    @property
    def boundedness(self) -> Boundedness:
        return self._sources[-1].boundedness

    @property
    def fetching(self) -> Fetching:  # type: ignore[override]
        """That of the source which asks for the most threads."""
        return max((source.fetching for source in self._made.values()), key=lambda each: each.threads)

    @property
    def last_index(self) -> int:
        """Index of the last source."""
        return len(self._sources) - 1

    @property
    def split_serializer(self) -> VersionedSerializer[HybridSplit]:
        return _SplitSerializer(self)

    @property
    def enumerator_state_serializer(self) -> VersionedSerializer[HybridState]:
        return _StateSerializer(self)

    def create_enumerator(self, context: SplitEnumeratorContext[HybridSplit]) -> HybridEnumerator:
        return HybridEnumerator(self, context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[HybridSplit], state: HybridState) -> HybridEnumerator:
        return HybridEnumerator(self, context, state)

    def create_planner(self) -> HybridPlanner:
        return HybridPlanner(lambda index: self.source(index).create_planner())

    def create_split_reader(self) -> HybridSplitReader:
        return HybridSplitReader(lambda index: self.source(index).create_split_reader())

    def source(self, index: int) -> AnySource:
        """Return a source; a deferred one that nobody switched to here is made without the enumerator before it."""
        if index not in self._made:
            self.switch_to(index, None)
        return self._made[index]

    def switch_to(self, index: int, previous: AnyEnumerator | None) -> AnySource:
        """Make a deferred source, knowing how the one before it ended; others are there."""
        source = self._sources[index]
        if isinstance(source, DeferredSource):
            made = source.create(previous)
            if made.boundedness is not source.boundedness:
                raise InvalidHybrid(
                    index, f"it was announced as {source.boundedness.value} and is {made.boundedness.value}",
                    "give DeferredSource the boundedness of what it makes.",
                )  # fmt: skip
            self._made[index] = self._checked(index, made)
        return self._made[index]

    def _checked(self, index: int, source: AnySource) -> AnySource:
        for unlike, what in (
            (source.externally_induced, "it decides itself where batches end"),
            (source.event_serializer is not None, "its readers send events, which do not say whose they are"),
        ):
            if unlike:
                raise InvalidHybrid(index, what, "read it as a stream of its own, and unite the streams.")
        first, other = self._first.schema, source.schema
        if not first.equals(other):
            differing = [
                f"{name}: {_type_of(first, name)} in source 0, {_type_of(other, name)} here"
                for name in dict.fromkeys([*first.names, *other.names])
                if _type_of(first, name) != _type_of(other, name)
            ]
            reason = "; ".join(differing) if differing else f"columns in the order {other.names}, not {first.names}"
            raise InvalidHybrid(index, f"its columns differ: {reason}", "select and cast until all have one schema.")
        return source


class HybridEnumerator(SplitEnumerator[HybridSplit, HybridState]):
    """Runs the enumerator of the present source, and switches to the next."""

    def __init__(
        self, source: HybridSource, context: SplitEnumeratorContext[HybridSplit], state: HybridState | None
    ) -> None:
        if state is not None and state.returned:
            raise UnreadableState(
                "HybridState",
                f"it has splits that were given back ({', '.join(split.split_id for split in state.returned)}), which "
                "nobody would read",
                "go on with an earlier checkpoint of the query.",
            )
        self._source, self._context, self._restored = source, context, state
        self._index = 0 if state is None else state.source_index
        self._complete = set[int]() if state is None else set(state.complete)
        self._unfinished = set[str]() if state is None else set(state.unfinished)
        self._child: AnyEnumerator | None = None
        self._child_context: ChildContext | None = None
        context.metric_group.gauge("source_index", lambda: self._index)

    @property
    def source_index(self) -> int:
        """The source that is read."""
        return self._index

    def start(self) -> None:
        source = self._source.source(self._index)
        self._child_context = child_context = self._new_context()
        if self._restored is None:
            self._child = source.create_enumerator(child_context)
        else:
            self._child = source.restore_enumerator(child_context, self._restored.state)
        self._child.start()

    def add_reader(self, subtask: int) -> None:
        self._running.add_reader(subtask)
        self._switch_if_done()

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        self._running.handle_split_request(subtask, requester_hostname)
        self._switch_if_done()

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        self._running.handle_source_event(subtask, event)
        self._switch_if_done()

    def handle_splits_finished(self, subtask: int, split_ids: Sequence[str]) -> None:
        mine = [split_id for split_id in split_ids if HybridSplit.index_of(split_id) == self._index]
        self._unfinished.difference_update(mine)
        self._running.handle_splits_finished(subtask, [HybridSplit.child_id(split_id) for split_id in mine])
        self._switch_if_done()

    def snapshot_state(self, checkpoint_id: int) -> HybridState:
        return HybridState(
            self._index,
            self._running.snapshot_state(checkpoint_id),
            tuple(sorted(self._complete)),
            tuple(sorted(self._unfinished)),
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._running.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        if self._child_context is not None:
            self._child_context.close()
        if self._child is not None:
            self._child.close()

    # -- what the present source says

    def assigned(self, assignment: SplitsAssignment[Any]) -> None:
        """It assigned splits."""
        wrapped = {
            subtask: [HybridSplit.wrap(self._index, split) for split in splits]
            for subtask, splits in assignment.assignment.items()
        }
        self._context.assign_splits(SplitsAssignment(wrapped))
        self._unfinished.update(split.split_id for splits in wrapped.values() for split in splits)

    def completed(self, subtask: int) -> None:
        """It told a reader that there is no more; the reader itself hears that of the last source only."""
        if self._index == self._source.last_index:
            self._context.signal_no_more_splits(subtask)
        else:
            self._complete.add(subtask)
            # Not at once: it is in the middle of something, and would be closed.
            self._context.run_in_coordinator_thread(self._switch_if_done)

    # -- switching

    @property
    def _running(self) -> AnyEnumerator:
        assert self._child is not None, "started first"
        return self._child

    def _new_context(self) -> ChildContext:
        last = self._index == self._source.last_index
        self._context.set_is_processing_backlog(is_processing_backlog=not last)
        return ChildContext(self, self._context, last=last)

    def _switch_if_done(self) -> None:
        while (
            self._index < self._source.last_index
            and not self._unfinished
            and self._complete >= set(range(self._context.num_subtasks))
        ):
            self._switch()

    def _switch(self) -> None:
        previous, previous_context, following = self._running, self._child_context, self._index + 1
        source = self._source.switch_to(following, previous)
        if previous_context is not None:
            previous_context.close()
        previous.close()
        self._index = following
        self._complete.clear()
        self._child_context = child_context = self._new_context()
        self._child = source.create_enumerator(child_context)
        self._child.start()
        for subtask in sorted(self._context.registered_readers):
            self._child.add_reader(subtask)


class ChildContext:
    """The coordinator, as the enumerator of one source sees it. Closed when the next source is switched to."""

    def __init__(self, parent: HybridEnumerator, context: SplitEnumeratorContext[HybridSplit], *, last: bool) -> None:
        self._parent, self._context, self._last, self._closed = parent, context, last, False

    def close(self) -> None:
        self._closed = True

    @property
    def metric_group(self) -> MetricGroup:
        return self._context.metric_group

    @property
    def num_subtasks(self) -> int:
        return self._context.num_subtasks

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return self._context.registered_readers

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        return self._context.send_event_to_source_reader(subtask, event)

    def assign_splits(self, assignment: SplitsAssignment[Any]) -> None:
        if not self._closed:
            self._parent.assigned(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        if not self._closed:
            self._parent.completed(subtask)

    def call_async(
        self,
        callable: Callable[[], ResultT],  # noqa: A002  # FLIP-27's name
        handler: Callable[[ResultT | None, BaseException | None], None],
        initial_delay: float | None = None,
        period: float | None = None,
    ) -> None:
        def unless_closed() -> ResultT | None:
            return None if self._closed else callable()

        def handle(result: ResultT | None, error: BaseException | None) -> None:
            if not self._closed:
                handler(result, error)

        self._context.call_async(unless_closed, handle, initial_delay, period)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        self._context.run_in_coordinator_thread(lambda: None if self._closed else action())

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        # History is backlog until it ends, whatever one part of it says.
        if self._last and not self._closed:
            self._context.set_is_processing_backlog(is_processing_backlog=is_processing_backlog)


# -- formats


class _SplitWire(msgspec.Struct, frozen=True, array_like=True):
    source_index: int
    version: int
    split: bytes


class _StateWire(msgspec.Struct, frozen=True, array_like=True):
    source_index: int
    version: int
    state: bytes
    complete: tuple[int, ...]
    unfinished: tuple[str, ...]
    returned: tuple[bytes, ...]


class _SplitSerializer:
    version = 1

    def __init__(self, source: HybridSource) -> None:
        self._source = source

    def serialize(self, value: HybridSplit) -> bytes:
        inner = self._source.source(value.source_index).split_serializer
        wire = _SplitWire(value.source_index, inner.version, inner.serialize(value.unwrap()))
        return msgspec.msgpack.encode(wire)

    def deserialize(self, version: int, data: bytes) -> HybridSplit:
        wire = _decoded("HybridSplit", version, data, _SplitWire)
        inner = _known(self._source, wire.source_index).split_serializer
        return HybridSplit.wrap(wire.source_index, inner.deserialize(wire.version, wire.split))


class _StateSerializer:
    version = 1

    def __init__(self, source: HybridSource) -> None:
        self._source = source
        self._splits = _SplitSerializer(source)

    def serialize(self, value: HybridState) -> bytes:
        inner = self._source.source(value.source_index).enumerator_state_serializer
        returned = tuple(self._splits.serialize(split) for split in value.returned)
        return msgspec.msgpack.encode(
            _StateWire(
                value.source_index,
                inner.version,
                inner.serialize(value.state),
                value.complete,
                value.unfinished,
                returned,
            )
        )

    def deserialize(self, version: int, data: bytes) -> HybridState:
        wire = _decoded("HybridState", version, data, _StateWire)
        inner = _known(self._source, wire.source_index).enumerator_state_serializer
        returned = tuple(self._splits.deserialize(self._splits.version, each) for each in wire.returned)
        state = inner.deserialize(wire.version, wire.state)
        return HybridState(wire.source_index, state, wire.complete, wire.unfinished, returned)


def _decoded(what: str, version: int, data: bytes, wire: type[ResultT]) -> ResultT:
    if version > 1:
        raise UnreadableState.newer(what, version, 1)
    try:
        return msgspec.msgpack.decode(data, type=wire)
    except (ValueError, RecursionError) as invalid:
        raise UnreadableState.broken(what, version, invalid) from invalid


def _known(source: HybridSource, index: int) -> AnySource:
    if not 0 <= index <= source.last_index:
        raise UnreadableState(
            "HybridSource",
            f"the checkpoint is of source {index} of a HybridSource that has sources 0 to {source.last_index} now",
            "sources may be added behind the last one, and none taken away that was read.",
        )
    return source.source(index)


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"
