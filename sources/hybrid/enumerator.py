"""The enumerator of a `HybridSource`: runs the present source's enumerator, and switches to the next source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import wraps
from typing import Any

from lowmark.sources.api import (
    ReaderInfo,
    ResultT,
    SourceEvent,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAssignment,
)

from .split import HybridSplit
from .succession import AnyEnumerator, AnySource, Succession


@dataclass(frozen=True, slots=True)
class HybridState:
    """The state of a `HybridSource`.

    Attributes:
        source_index: index of the present source.
        state: its enumerator's state.
        complete: readers that were told that the present source has no more splits for them.
        unfinished: ids of its splits that are assigned and not finished, sorted.
    """

    source_index: int
    state: Any
    complete: tuple[int, ...] = ()
    unfinished: tuple[str, ...] = ()


class HybridEnumerator(SplitEnumerator[HybridSplit, HybridState]):
    """Runs the enumerator of the present source, and switches to the next source."""

    def __init__(
        self, sources: Succession, context: SplitEnumeratorContext[HybridSplit], state: HybridState | None
    ) -> None:
        self._sources, self._context, self._restored = sources, context, state
        begin = HybridState(0, None) if state is None else state
        self._index, self._complete, self._unfinished = begin.source_index, set(begin.complete), set(begin.unfinished)
        # The state before the switch to a deferred source, and the state of the deferred source right after the switch.
        # A restart goes back until the deferred source has found splits, because the begin of the deferred source may
        # depend on the enumerator of the source before.
        self._switched: tuple[HybridState, Any] | None = None
        self._snapshot_id = 0
        self._child: AnyEnumerator | None = None
        self._child_context: ChildContext | None = None
        context.metric_group.gauge("source_index", lambda: self._index)

    def start(self) -> None:
        self._begin(self._sources[self._index], self._restored)

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
        prefix = f"{self._index}:"
        mine = [split_id for split_id in split_ids if split_id.startswith(prefix)]
        self._unfinished.difference_update(mine)
        self._running.handle_splits_finished(subtask, [split_id.removeprefix(prefix) for split_id in mine])
        self._switch_if_done()

    def snapshot_state(self, checkpoint_id: int) -> HybridState:
        self._snapshot_id = checkpoint_id
        state = self._running.snapshot_state(checkpoint_id)
        if self._switched is not None and state == self._switched[1]:
            return self._switched[0]
        self._switched = None
        return HybridState(self._index, state, tuple(sorted(self._complete)), tuple(sorted(self._unfinished)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._running.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        if self._child_context is not None:
            self._child_context.closed = True
        child, self._child = self._child, None  # closed once, also if the next source's cannot be made
        if child is not None:
            child.close()

    # -- calls of the present source

    def assigned(self, assignment: SplitsAssignment[Any]) -> None:
        wrapped = {
            subtask: [HybridSplit.wrap(self._index, split) for split in splits]
            for subtask, splits in assignment.assignment.items()
        }
        self._context.assign_splits(SplitsAssignment(wrapped))
        self._switched = None
        self._unfinished.update(split.split_id for splits in wrapped.values() for split in splits)

    def completed(self, subtask: int) -> None:
        """Note that the present source has no more splits for a reader; only the last source tells the reader."""
        if self._index == self._sources.last_index:
            self._context.signal_no_more_splits(subtask)
        else:
            self._complete.add(subtask)
            # Not at once, because the calling enumerator would be closed during its own call.
            self._context.run_in_coordinator_thread(self._switch_if_done)

    # -- switching

    @property
    def _running(self) -> AnyEnumerator:
        assert self._child is not None, "started first"
        return self._child

    def _begin(self, source: AnySource, state: HybridState | None) -> None:
        last = self._index == self._sources.last_index
        self._context.set_is_processing_backlog(is_processing_backlog=not last)
        self._child_context = context = ChildContext(self, self._context, last=last)
        self._child = (
            source.create_enumerator(context) if state is None else source.restore_enumerator(context, state.state)
        )
        self._child.start()

    def _switch_if_done(self) -> None:
        while (
            self._index < self._sources.last_index
            and not self._unfinished
            and self._complete >= set(range(self._context.num_subtasks))
        ):
            self._switch()

    def _switch(self) -> None:
        following = self._index + 1
        before = self.snapshot_state(self._snapshot_id) if self._sources.is_deferred(following) else None
        source = self._sources.switch_to(following, self._running)
        self.close()
        self._index = following
        self._complete.clear()
        self._begin(source, None)
        self._switched = None if before is None else (before, self._running.snapshot_state(self._snapshot_id))
        for subtask in sorted(self._context.registered_readers):
            self._running.add_reader(subtask)


class ChildContext:
    """The coordinator for the enumerator of one source. Closed at the switch to the next source."""

    def __init__(self, parent: HybridEnumerator, context: SplitEnumeratorContext[HybridSplit], *, last: bool) -> None:
        self._parent, self._context, self._last, self.closed = parent, context, last, False
        self.metric_group = context.metric_group

    @property
    def num_subtasks(self) -> int:
        return self._context.num_subtasks

    @property
    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return self._context.registered_readers

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        if self.closed:
            dropped: Future[None] = Future()
            dropped.cancel()
            return dropped
        return self._context.send_event_to_source_reader(subtask, event)

    def assign_splits(self, assignment: SplitsAssignment[Any]) -> None:
        if not self.closed:
            self._parent.assigned(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        if not self.closed:
            self._parent.completed(subtask)

    def call_async(
        self,
        callable: Callable[[], ResultT],  # noqa: A002  # FLIP-27's name
        handler: Callable[[ResultT | None, BaseException | None], None],
        initial_delay: float | None = None,
        period: float | None = None,
    ) -> None:
        self._context.call_async(self._unless_closed(callable), self._unless_closed(handler), initial_delay, period)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        self._context.run_in_coordinator_thread(self._unless_closed(action))

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        # History is backlog until it ends, so only the last source may say otherwise.
        if self._last and not self.closed:
            self._context.set_is_processing_backlog(is_processing_backlog=is_processing_backlog)

    def _unless_closed(self, call: Callable[..., ResultT]) -> Callable[..., Any]:
        @wraps(call)  # the name of the call is in logs and errors
        def unless_closed(*given: Any) -> ResultT | None:
            return None if self.closed else call(*given)

        return unless_closed
