"""A context to run an enumerator by hand: without thread or clock, keeping all its calls.

>>> from lowmark.sources import SourceSplit
>>> from lowmark.sources.kit.discovery import DiscoveringEnumerator
>>> context = ManualEnumeratorContext[SourceSplit](num_subtasks=1)
>>> enumerator = DiscoveringEnumerator(context, lambda: [SourceSplit(split_id="a")], period_seconds=60)
>>> enumerator.start()
>>> context.register(0)
>>> enumerator.add_reader(0)
>>> context.run_async()
>>> [(subtask, split.split_id) for subtask, split in context.assigned]
[(0, 'a')]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic

from lowmark.sources.api import ReaderInfo, ResultT, SourceEvent, SplitsAssignment, SplitT
from lowmark.sources.metric_group import MetricGroup


class ManualEnumeratorContext(Generic[SplitT]):
    """A `SplitEnumeratorContext` that does asynchronous calls on request, and keeps the arguments of the other calls.

    Attributes:
        registered_readers: the readers that `register` added.
        assigned, events: (subtask, split) and (subtask, event), in their order.
        no_more_splits: the subtasks that were told that no more splits come.
        is_processing_backlog: the last value, None before any.
    """

    def __init__(self, *, num_subtasks: int = 1) -> None:
        self.metric_group = MetricGroup()
        self.num_subtasks = num_subtasks
        self.registered_readers: dict[int, ReaderInfo] = {}
        self.assigned: list[tuple[int, SplitT]] = []
        self.no_more_splits: set[int] = set()
        self.events: list[tuple[int, SourceEvent]] = []
        self.is_processing_backlog: bool | None = None
        self._due: deque[Callable[[], None]] = deque()
        self._periodic: dict[Callable[[], None], float] = {}
        self._actions: deque[Callable[[], None]] = deque()

    def register(self, subtask: int) -> None:
        """Register a reader; tell the enumerator with `add_reader`."""
        self.registered_readers[subtask] = ReaderInfo(subtask)

    def unregister(self, subtask: int) -> None:
        del self.registered_readers[subtask]
        self.no_more_splits.discard(subtask)

    def run_async(self) -> None:
        """Do all requested calls with their handlers, including newly requested calls. Periodic calls run once."""
        while self._due or self._actions:
            while self._actions:
                self._actions.popleft()()
            if self._due:
                self._due.popleft()()

    def next_period(self) -> None:
        """Do every periodic call once more."""
        self._due.extend(self._periodic)
        self.run_async()

    @property
    def periods(self) -> list[float]:
        """The periods of all periodic calls, seconds."""
        return list(self._periodic.values())

    # -- SplitEnumeratorContext

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        self._require([subtask])
        self.events.append((subtask, event))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        self._require(assignment.assignment)
        for subtask, splits in assignment.assignment.items():
            self.assigned.extend((subtask, split) for split in splits)

    def signal_no_more_splits(self, subtask: int) -> None:
        self._require([subtask])
        self.no_more_splits.add(subtask)

    def call_async(
        self,
        callable: Callable[[], ResultT],  # noqa: A002  # FLIP-27's name
        handler: Callable[[ResultT | None, BaseException | None], None],
        initial_delay: float | None = None,
        period: float | None = None,
    ) -> None:
        del initial_delay  # tests decide when the delay is over

        def call() -> None:
            try:
                result = callable()
            except Exception as error:  # noqa: BLE001  # the handler gets it
                handler(None, error)
            else:
                handler(result, None)

        self._due.append(call)
        if period is not None:
            self._periodic[call] = period

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        self.is_processing_backlog = is_processing_backlog

    def _require(self, subtasks: Iterable[int]) -> None:
        missing = sorted(set(subtasks) - self.registered_readers.keys())
        if missing:
            raise ValueError(f"reader {missing[0]} is not registered; {sorted(self.registered_readers)} are")
