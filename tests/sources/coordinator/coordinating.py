"""Parts for tests of coordinators: a clock, a gateway that records its calls, and a source of a few splits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lowmark.sources import (
    DataclassSerializer,
    Source,
    SourceEvent,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAssignment,
)
from lowmark.sources.coordinator import SourceCoordinator, SourceCoordinatorContext
from lowmark.sources.coordinator.action_queue import ActionQueue, MonotonicClock
from lowmark.sources.metric_group import MetricGroup

DEADLINE_SECONDS = 20.0  # every wait here takes less than a tenth of a second, unless it is endless


class ManualClock(MonotonicClock):
    """A clock that tests advance; with `leaps` it jumps to the due time of every wait."""

    def __init__(self, *, leaps: bool = False) -> None:
        self._now_us, self._leaps = 0, leaps
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[threading.Condition, int | None]] = {}
        self._somebody = threading.Condition(self._lock)

    def now_us(self) -> int:
        return self._now_us

    def wait_until(self, condition: threading.Condition, due_us: int | None) -> None:
        with self._lock:
            if due_us is not None and self._leaps:
                self._now_us = max(self._now_us, due_us)
            if due_us is not None and self._now_us >= due_us:
                return
            me = threading.get_ident()
            self._waiting[me] = (condition, due_us)
            self._somebody.notify_all()
        condition.wait()
        with self._lock:
            self._waiting.pop(me, None)

    def advance(self, *, us: int) -> None:
        with self._lock:
            self._now_us += us
            woken = list(self._waiting.values())
        for condition, _ in woken:
            with condition:
                condition.notify_all()

    def await_waiter(self, due_us: int) -> None:
        """Wait until a thread waits for this moment."""
        with self._somebody:
            waits = self._somebody.wait_for(
                lambda: any(due == due_us for _, due in self._waiting.values()), DEADLINE_SECONDS
            )
            assert waits, f"nobody waits for {due_us}: {[due for _, due in self._waiting.values()]}"


class Gateway:
    """The readers as a coordinator knows them: keeps each reader's splits, and can restore earlier splits."""

    def __init__(self) -> None:
        self.owned: dict[int, list[SourceSplit]] = {}
        self.sent: list[tuple[Any, ...]] = []
        self.at_checkpoint: dict[int, dict[int, list[SourceSplit]]] = {}

    def add_splits(self, subtask: int, splits: Sequence[SourceSplit]) -> None:
        self.owned.setdefault(subtask, []).extend(splits)
        self.sent.append(("splits", subtask, *(split.split_id for split in splits)))

    def no_more_splits(self, subtask: int) -> None:
        self.sent.append(("no more", subtask))

    def source_event(self, subtask: int, event: SourceEvent) -> Future[None]:
        self.sent.append(("event", subtask, event))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def backlog(self, subtask: int, is_processing_backlog: bool) -> None:
        self.sent.append(("backlog", subtask, is_processing_backlog))

    def checkpointed(self, checkpoint_id: int) -> None:
        self.at_checkpoint[checkpoint_id] = {subtask: list(splits) for subtask, splits in self.owned.items()}

    def restored(self, checkpoint_id: int | None) -> None:
        self.sent.append(("restored", checkpoint_id))
        then = {} if checkpoint_id is None else self.at_checkpoint.get(checkpoint_id, {})
        self.owned = {subtask: list(splits) for subtask, splits in then.items()}

    def ids(self, subtask: int) -> list[str]:
        return [split.split_id for split in self.owned.get(subtask, [])]


@dataclass(frozen=True, slots=True)
class Ping(SourceEvent):
    number: int


@dataclass(frozen=True, slots=True)
class State:
    unassigned: tuple[SourceSplit, ...]
    known: tuple[tuple[str, int | None], ...]
    requests: int = 0
    events: tuple[int, ...] = ()


Fault = Callable[[str], None]


class ListEnumerator(SplitEnumerator[SourceSplit, State]):
    """Has its splits from the start. Pushes split n to reader n % readers, or gives a split per request."""

    def __init__(self, source: ListSource, context: SplitEnumeratorContext[SourceSplit], state: State | None) -> None:
        self.source, self.context = source, context
        source.fault("create" if state is None else "restore")
        self.unassigned = [split(n) for n in range(source.count)] if state is None else list(state.unassigned)
        # split -> its reader
        self.known = dict.fromkeys(each.split_id for each in self.unassigned) if state is None else dict(state.known)
        self.requests = 0 if state is None else state.requests
        self.events = [] if state is None else list(state.events)
        self.log: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self.closed = threading.Event()
        context.metric_group.gauge("unassigned_splits", lambda: len(self.unassigned))

    def _on(self, what: str, *more: Any) -> None:
        self.threads.add(threading.get_ident())
        self.log.append((what, *more))
        self.source.fault(what)

    def start(self) -> None:
        self._on("start")

    def add_reader(self, subtask: int) -> None:
        self._on("add_reader", subtask)
        self.push()

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        self._on("handle_split_request", subtask, requester_hostname)
        self.requests += 1
        if self.source.pulled and self.unassigned:
            self.assign({subtask: [self.unassigned[0]]})

    def snapshot_state(self, checkpoint_id: int) -> State:
        self._on("snapshot_state", checkpoint_id)
        return State(tuple(self.unassigned), tuple(sorted(self.known.items())), self.requests, tuple(self.events))

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        self._on("handle_source_event", subtask, event)
        assert isinstance(event, Ping)
        self.events.append(event.number)

    def handle_splits_finished(self, subtask: int, split_ids: Sequence[str]) -> None:
        self._on("handle_splits_finished", subtask, *split_ids)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._on("notify_checkpoint_complete", checkpoint_id)

    def close(self) -> None:
        self.closed.set()
        self._on("close")

    def push(self) -> None:
        """Assign to every registered reader its own splits."""
        readers = self.context.registered_readers
        if self.source.pulled:
            return
        ready: dict[int, list[SourceSplit]] = {}
        for each in self.unassigned:
            if (owner := int(each.split_id) % self.context.num_subtasks) in readers:
                ready.setdefault(owner, []).append(each)
        self.assign(ready)

    def assign(self, ready: dict[int, list[SourceSplit]]) -> None:
        if ready:
            self.context.assign_splits(SplitsAssignment(ready))
            given = {each.split_id: subtask for subtask, splits in ready.items() for each in splits}
            self.known.update(given)
            self.unassigned = [each for each in self.unassigned if each.split_id not in given]

    def discover(self, *numbers: int) -> None:
        self.unassigned.extend(split(n) for n in numbers)
        self.known.update((str(n), None) for n in numbers)
        self.push()


class ListSource(Source[SourceSplit, State]):
    """A source that keeps its enumerators in `made`, the newest last."""

    def __init__(self, count: int = 6, *, pulled: bool = False, fault: Fault | None = None) -> None:
        self.count, self.pulled = count, pulled
        self.fault: Fault = fault if fault is not None else lambda what: None
        self.made: list[ListEnumerator] = []

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([])

    @property
    def split_serializer(self) -> DataclassSerializer[SourceSplit]:
        return DataclassSerializer(SourceSplit)

    @property
    def enumerator_state_serializer(self) -> DataclassSerializer[State]:
        return DataclassSerializer(State, version=3)

    def create_enumerator(self, context: SplitEnumeratorContext[SourceSplit]) -> ListEnumerator:
        self.made.append(ListEnumerator(self, context, None))
        return self.made[-1]

    def restore_enumerator(self, context: SplitEnumeratorContext[SourceSplit], state: State) -> ListEnumerator:
        self.made.append(ListEnumerator(self, context, state))
        return self.made[-1]

    def create_planner(self) -> Any:
        raise NotImplementedError

    def create_split_reader(self) -> Any:
        raise NotImplementedError

    @property
    def newest(self) -> ListEnumerator:
        return self.made[-1]


def split(number: int) -> SourceSplit:
    return SourceSplit(split_id=str(number))


def fail_on(what: str, *, times: int = 1, error: Callable[[], BaseException] | None = None) -> Fault:
    """Return a fault that makes the first `times` calls of an action fail."""
    left = [times]

    def strike(done: str) -> None:
        if done == what and left[0] > 0:
            left[0] -= 1
            raise error() if error is not None else RuntimeError(f"cannot {what}")

    return strike


def settle(coordinator: SourceCoordinator[Any, Any]) -> None:
    """Wait until the coordinator has run all posted actions."""
    coordinator.run("settle", lambda: None)


def queue_by(
    clock: MonotonicClock, *, threads: int = 1, uncaught: Callable[[str, BaseException], None] = lambda *_: None
) -> ActionQueue:
    return ActionQueue("q", clock=clock, threads=threads, uncaught=uncaught, died=lambda _: None)


def done_on(queue: ActionQueue) -> None:
    passed = threading.Event()
    queue.post("pass", passed.set)
    assert passed.wait(DEADLINE_SECONDS)


def context_on(queue: ActionQueue, clock: MonotonicClock) -> SourceCoordinatorContext[SourceSplit]:
    return SourceCoordinatorContext(
        "orders", queue=queue, clock=clock, gateway=Gateway(), readers={}, metric_group=MetricGroup(), num_subtasks=1
    )


class Calls:
    """A context with a queue in place of its coordinator's thread."""

    def __init__(self, clock: ManualClock) -> None:
        self.uncaught: list[tuple[str, BaseException]] = []
        self.queue = queue_by(clock, uncaught=lambda action, error: self.uncaught.append((action, error)))
        self.context = context_on(self.queue, clock)
        self.handled: list[tuple[object, BaseException | None]] = []
        self.arrived = threading.Semaphore(0)

    def handle(self, result: object, error: BaseException | None) -> None:
        assert self.queue.on_thread
        self.handled.append((result, error))
        self.arrived.release()

    def await_handled(self) -> None:
        assert self.arrived.acquire(timeout=DEADLINE_SECONDS)
        done_on(self.queue)

    def close(self) -> None:
        self.queue.post("close", self.context.close)
        done_on(self.queue)
        self.queue.close()
