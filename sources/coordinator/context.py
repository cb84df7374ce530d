"""The context of an enumerator: its view of the coordinator and of the readers.

Each enumerator has its own context. When the enumerator is replaced, its context is closed, so that late work of the
old enumerator reaches neither the new enumerator nor a reader. Python cannot interrupt a thread, so a call of
`call_async` that still runs then is given up: its handler gets `CallAbandoned`, and its result is dropped.

Source: `org.apache.flink.runtime.source.coordinator.ExecutorNotifier`, for `call_async`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from lowmark.sources.api import ReaderInfo, ResultT, SourceEvent, SourceSplit, SplitsAssignment, SplitT
from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark import LowmarkError

from .action_queue import ActionQueue, MonotonicClock

_log = logging.getLogger("lowmark")
_SECOND_US = 1_000_000
_CALLS_AT_ONCE = 2


SplitT_contra = TypeVar("SplitT_contra", bound=SourceSplit, contravariant=True)


class ReaderGateway(Protocol[SplitT_contra]):
    """Sends from a coordinator to its readers. Called on the coordinator's thread; must not block.

    It keeps the assigned splits of each reader. `checkpointed` and `restored` let it go back with the enumerator.
    """

    def add_splits(self, subtask: int, splits: Sequence[SplitT_contra]) -> None:
        """Give splits to a reader."""

    def no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it will get no more splits."""

    def source_event(self, subtask: int, event: SourceEvent) -> Future[None]:
        """Hand an event over; the future is done then."""

    def backlog(self, subtask: int, is_processing_backlog: bool) -> None:  # noqa: FBT001  # the flag is the message
        """Tell a reader whether the source reads history."""

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the enumerator's state was taken. The checkpoint has the assignments up to now."""

    def restored(self, checkpoint_id: int | None) -> None:
        """Go back with the enumerator to this checkpoint; None: to the beginning.

        Forget splits assigned, ends signalled and events sent since its `checkpointed`, because they will come again.
        The readers stay registered, and the coordinator repeats the messages that they sent since.
        """


class UnregisteredReader(LowmarkError, ValueError):
    """A message to a reader that is not registered."""

    source: str  # name of the source
    what: str  # the message
    subtask: int  # the reader
    registered: tuple[int, ...]  # the registered readers, sorted
    _fact = (
        "source {source!r}: cannot send {what} to reader {subtask}: it is not registered ({_there} are), and nothing "
        "was sent"
    )
    _hint = "keep it until add_reader({subtask})."

    @property
    def _there(self) -> str:
        return str(list(self.registered))


class WrongThread(LowmarkError, RuntimeError):
    """The context was used on another thread than the coordinator's."""

    source: str  # name of the source
    what: str  # the call
    _fact = "source {source!r}: {what} was called on another thread than the coordinator's"
    _hint = "use what call_async's callable returns in its handler, or call run_in_coordinator_thread."


class CallAbandoned(LowmarkError, RuntimeError):
    """A call was still running when the enumerator that had asked for it was closed."""

    call: str  # name of the call
    _fact = "{call} was still running when its enumerator was closed"
    _hint = "nothing needs to be done."


class SourceCoordinatorContext(Generic[SplitT]):
    """The `SplitEnumeratorContext` of one enumerator.

    The coordinator shares `readers`, the successive enumerators of the source share `metric_group`.
    """

    def __init__(
        self,
        source: str,
        *,
        queue: ActionQueue,
        clock: MonotonicClock,
        gateway: ReaderGateway[SplitT],
        readers: Mapping[int, ReaderInfo],
        metric_group: MetricGroup,
        num_subtasks: int,
    ) -> None:
        self._source, self._queue, self._clock, self._gateway = source, queue, clock, gateway
        self.metric_group, self.num_subtasks = metric_group, num_subtasks
        self.registered_readers = MappingProxyType(readers)
        self._workers = ActionQueue(
            f"lowmark {source} worker",
            clock=clock,
            threads=_CALLS_AT_ONCE,
            uncaught=self._lose,
            died=partial(self._lose, "run calls"),
        )
        # work -> when it began, its name, its handler
        self._running: dict[object, tuple[int, str, Callable[[None, BaseException], None]]] = {}
        self.is_processing_backlog: bool | None = None  # the enumerator's last answer
        self.assignments = 0  # number of splits given to readers
        self._closed = False

    def send_event_to_source_reader(self, subtask: int, event: SourceEvent) -> Future[None]:
        self._check("send_event_to_source_reader", f"the event {event!r}", subtask)
        if self._closed:
            dropped: Future[None] = Future()
            dropped.cancel()
            return dropped
        return self._gateway.source_event(subtask, event)

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        for subtask, splits in assignment.assignment.items():
            self._check("assign_splits", f"splits {[split.split_id for split in splits][:5]}", subtask)
        if self._closed:
            return
        for subtask, splits in assignment.assignment.items():
            self.assignments += len(splits)
            self._gateway.add_splits(subtask, tuple(splits))

    def signal_no_more_splits(self, subtask: int) -> None:
        self._check("signal_no_more_splits", "the end of splits", subtask)
        if not self._closed:
            self._gateway.no_more_splits(subtask)

    def call_async(
        self,
        callable: Callable[[], ResultT],  # noqa: A002  # FLIP-27's name
        handler: Callable[[ResultT | None, BaseException | None], None],
        initial_delay: float | None = None,
        period: float | None = None,
    ) -> None:
        for what, seconds in (("initial_delay", initial_delay), ("period", period)):
            if seconds is not None and (seconds < 0 or (what == "period" and not seconds)):
                raise ValueError(f"call_async of source {self._source!r}: {what} of {seconds} seconds, expected more")
        name = _name_of(callable)
        delay_us = 0 if initial_delay is None else round(initial_delay * _SECOND_US)
        period_us = None if period is None else max(1, round(period * _SECOND_US))

        def work() -> None:
            if self._closed:
                return
            result, error, started_us = None, None, self._clock.now_us()
            self._running[work] = started_us, name, handler
            try:
                result = callable()
            except BaseException as failed:  # noqa: BLE001  # the handler gets the error
                error = failed
            self._post(f"handle the result of {name}", lambda: handle(result, error, started_us))

        def handle(result: ResultT | None, error: BaseException | None, started_us: int) -> None:
            if self._running.pop(work, None) is None:
                return  # closed meanwhile, and abandoned
            handler(result, error)
            if period_us is not None:  # never two at once, and a period after the last begin
                self._workers.post(name, work, due_us=started_us + period_us)

        self._workers.post(name, work, due_us=self._clock.now_us() + delay_us if delay_us else None)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        self._post(f"run {_name_of(action)}", action)

    def set_is_processing_backlog(self, *, is_processing_backlog: bool) -> None:
        self._check_thread("set_is_processing_backlog")
        self.is_processing_backlog = is_processing_backlog
        if not self._closed:
            for subtask in sorted(self.registered_readers):
                self._gateway.backlog(subtask, is_processing_backlog)

    # -- for the coordinator

    def close(self) -> None:
        """Drop all later work, and give up running calls. Runs on the coordinator's thread; raises nothing."""
        self._closed = True
        self._workers.close()
        abandoned, self._running = self._running, {}
        for _, name, handler in abandoned.values():
            try:
                handler(None, CallAbandoned(name))
            except BaseException:  # noqa: BLE001  # after the close no error may spread
                _log.debug("the handler of %s failed after its enumerator was closed", name, exc_info=True)

    def oldest_call(self) -> tuple[int, str] | None:
        """Return when the oldest running call began, and its name; None: no call runs."""
        return min(((began_us, name) for began_us, name, _ in list(self._running.values())), default=None)

    def _lose(self, action: str, error: BaseException) -> None:
        """Fail on the coordinator's thread, which restores the enumerator, because a call ended without a result."""

        def fail() -> None:
            raise error

        self._post(action, fail)

    def _post(self, action: str, work: Callable[[], None]) -> None:
        def unless_closed() -> None:
            if not self._closed:
                work()

        self._queue.post(action, unless_closed)

    def _check(self, call: str, what: str, subtask: int) -> None:
        self._check_thread(call)
        if subtask not in self.registered_readers:
            raise UnregisteredReader(self._source, what, subtask, tuple(sorted(self.registered_readers)))

    def _check_thread(self, call: str) -> None:
        if not self._queue.on_thread and not self._closed:
            raise WrongThread(self._source, call)


def _name_of(call: Callable[[], object]) -> str:
    return str(getattr(call, "__qualname__", repr(call))).replace("<locals>.", "")
