"""The coordinator of one source: runs the enumerator on one thread, and keeps it alive.

Every call of the enumerator and every handler of `call_async` is an *action* with a name, which stands in each log line
and error. Actions run in the order in which they were handed over.

An enumerator that raises is restored from its last snapshot, after a growing pause. In Flink the readers go back with
the enumerator. Here readers are rows of a plan on the driver, which never go back, so the coordinator brings both
together:

    splits assigned before the snapshot     stay with the reader
    splits assigned since                   the gateway forgets them (`restored`), the snapshot still has them
    messages of readers since               are repeated, in order
    the readers                             are added again

An enumerator that fails again and again fails the source: `failure` is set, and every later call raises it. A hanging
enumerator cannot be stopped; calls time out with an error that names its present call.

Locks: the gateway is called on the coordinator's thread. A caller with a lock that the gateway takes must not wait for
`run`.

Source: `org.apache.flink.runtime.source.coordinator.SourceCoordinator`, FLIP-27; FLINK-22133.

One file, because actions, failures and the restore share a queue and a snapshot.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any, Generic

from lowmark.sources.api import ReaderInfo, ResultT, Source, SourceEvent, SplitEnumerator, SplitT, StateT
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.serializer import UnreadableState, blames_bytes, told_briefly
from lowmark.sources.worker import WorkerDied, answer, described
from lowmark.watermark import LowmarkError
from lowmark.watermark.duration import rough_duration_us

from .action_queue import ActionQueue, MonotonicClock
from .context import ReaderGateway, SourceCoordinatorContext
from .errors import CoordinatorClosed, CoordinatorHangs, CoordinatorNotStarted, InvalidCheckpoint, SourceFailed
from .failover import Failover, FailoverPolicy, SuppressRestarts

_log = logging.getLogger("lowmark")
_HEADER = struct.Struct(">iii")  # version of this format, version of the enumerator's serializer, length of its bytes
_VERSION = 1
_CLOSE_SECONDS = 5.0  # for closing an enumerator whose thread hangs


class SourceCoordinator(Generic[SplitT, StateT]):
    """Runs the enumerator of one source. Every method may be called from any thread.

    Methods that return None hand an action over and do not wait for its end.

    Args:
        num_subtasks: number of readers, 1 or more.
        timeout_seconds: how long `run` and `wait` wait.
        clock: measures pauses, delays and periods.
    """

    def __init__(
        self,
        source: Source[SplitT, StateT],
        *,
        name: str,
        gateway: ReaderGateway[SplitT],
        num_subtasks: int,
        failover: FailoverPolicy | None = None,
        timeout_seconds: float = 60.0,
        clock: MonotonicClock | None = None,
    ) -> None:
        if num_subtasks < 1:
            raise ValueError(f"num_subtasks of source {name!r}: expected 1 or more, got {num_subtasks}")
        self.failure: SourceFailed | None = None  # the error with which the source was given up
        self.restores = 0  # how often the enumerator was restored
        self._source, self._name, self._gateway, self._num_subtasks = source, name, gateway, num_subtasks
        self._failover = Failover(failover if failover is not None else FailoverPolicy())
        self._timeout_seconds = timeout_seconds
        self._clock = clock if clock is not None else MonotonicClock()
        self._queue = ActionQueue(
            f"lowmark {name} coordinator", clock=self._clock, uncaught=self._fail_action, died=self._die
        )
        self._metrics = MetricGroup()
        self._lock = threading.Lock()  # lets one thread alone start the coordinator, close it, or take its enumerator
        self._started = self._closed = False
        self._asked: dict[Future[Any], str] = {}
        self._coming: dict[int, ReaderInfo] = {}  # all readers handed over, for a restore
        # The fields below belong to the coordinator's thread.
        self._readers: dict[int, ReaderInfo] = {}
        self._context: SourceCoordinatorContext[SplitT] | None = None
        self._enumerator: SplitEnumerator[SplitT, StateT] | None = None
        self._snapshot: tuple[int, bytes] | None = None
        self._inputs: list[tuple[str, Callable[[], None]]] = []  # messages of readers since the snapshot

    # -- life

    def start(self) -> None:
        """Make or restore the enumerator and start it, once."""
        action = "start the enumerator"
        with self._lock:
            self._check_before_start(action)
            self._started = True
        self._queue.post(action, self._begin)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Close the enumerator, started or not. Waiting actions are dropped; a second call does nothing.

        Raises `CoordinatorHangs` if the thread is stuck in an action; another thread has closed the enumerator then.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        done: Future[None] = Future()
        if self._queue.on_thread:
            self._close_enumerator(done)
        else:
            self._queue.close(last=("close the enumerator", partial(self._close_enumerator, done)))
        self._drop_asked()
        try:
            self._queue.wait(done, "close the enumerator", seconds=timeout_seconds)
        except WorkerDied:  # the thread ended before the closing or in it
            self._close_enumerator(done)
        except FutureTimeout:
            hangs = self._hangs("close the enumerator", timeout_seconds)
            helper = threading.Thread(target=self._close_enumerator, args=(done,), name="lowmark close", daemon=True)
            helper.start()
            helper.join(_CLOSE_SECONDS)
            raise hangs from None
        self._queue.join(timeout_seconds)

    # -- readers

    def register_reader(self, subtask: int, location: str = "") -> None:
        """Register a reader by its number, from 0, and its host. Does nothing if it is registered already.

        Raises ValueError if there is no reader of that number.
        """
        if not 0 <= subtask < self._num_subtasks:
            raise ValueError(
                f"source {self._name!r}: reader {subtask} cannot register, expected 0 to {self._num_subtasks - 1}"
            )
        action, info = f"register reader {subtask}", ReaderInfo(subtask, location)
        self._check(action)
        self._coming.setdefault(subtask, info)
        self._queue.post(action, lambda: self._register(info))

    def request_splits(self) -> Future[None]:
        """Let every registered reader ask for splits, until no reader gets a split any more.

        The request is not remembered: ask a restored enumerator again. The future, for `wait`, is done at the end, also
        if the enumerator failed.
        """
        action, done = "hand out the splits that readers ask for", Future[None]()

        def ask() -> None:
            before, failed = -1, None
            try:
                while self._context is not None and (assigned := self._context.assignments) != before:
                    before = assigned
                    for subtask, info in sorted(self._readers.items()):
                        self._running_enumerator.handle_split_request(subtask, info.location if info.location else None)
            except BaseException as error:  # noqa: BLE001  # not raised, because another request may have the same name
                failed = error
            with suppress(InvalidStateError):  # no caller waits any more
                done.set_result(None)
            if failed is not None:
                self._recover(action, failed)

        return self._post_asked(action, ask, done)

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        action = f"handle a {type(event).__name__} of reader {subtask}"
        self._post_input(action, lambda enumerator: enumerator.handle_source_event(subtask, event))

    def handle_splits_finished(self, subtask: int, split_ids: Sequence[str]) -> None:
        """Hand over that splits of a reader were planned up to their end.

        Call this before the checkpoint without these splits in the reader; then the enumerator hears it once.
        """
        action, finished = f"handle finished splits of reader {subtask}", tuple(split_ids)
        self._post_input(action, lambda enumerator: enumerator.handle_splits_finished(subtask, finished))

    # -- checkpoints

    def checkpoint(self, checkpoint_id: int) -> Future[bytes]:
        """Take the enumerator's state: a future, for `wait`, with the bytes for `reset_to_checkpoint`.

        The state has neither the assigned splits nor the registered readers. If taking it fails, the restored
        enumerator is asked again. Ids of checkpoints never go back.
        """
        action = f"snapshot for checkpoint {checkpoint_id}"
        return self._ask(action, lambda: self._checkpoint(action, checkpoint_id))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._post(
            f"hear that checkpoint {checkpoint_id} is complete",
            lambda: self._running_enumerator.notify_checkpoint_complete(checkpoint_id),
        )

    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes) -> None:
        """Begin at a checkpoint, by the bytes of `checkpoint`, instead of the beginning. Call this before `start`.

        Raises `InvalidCheckpoint`, and changes nothing, if the bytes cannot be restored.
        """
        action = f"go back to checkpoint {checkpoint_id}"
        self._state(checkpoint_id, data)  # raises to the caller here, instead of failing the enumerator later
        with self._lock:
            self._check_before_start(action)
            self._snapshot = checkpoint_id, data

    # -- asking

    def run(self, action: str, work: Callable[[], ResultT]) -> ResultT:
        """Run work on the coordinator's thread, after the queued actions, and return its result.

        Errors of the work are raised here, and do not fail the enumerator. `action`, the purpose, completes "cannot
        ...". Raises `CoordinatorHangs` if the thread does not get to the work in time; the work will not run then.
        """
        return work() if self._queue.on_thread else self.wait(self._ask(action, work), action)

    def wait(self, asked: Future[ResultT], action: str) -> ResultT:
        """Wait for a future of this coordinator; see `run`."""
        try:
            return self._queue.wait(asked, action, seconds=self._timeout_seconds)
        except WorkerDied:
            self._check(action)  # raises the reason
            raise
        except FutureTimeout:
            if asked.done():
                return asked.result(0)  # the result came at the last moment, or the work itself timed out
            hangs = self._hangs(action, self._timeout_seconds)
            asked.cancel()
            raise hangs from None

    def metric_values(self) -> dict[str, float]:
        """Return the enumerator's metrics and the coordinator's own, by name. Never waits for the enumerator."""
        context = self._context
        own: dict[str, float] = {
            "enumerator_restores": self.restores,
            "queued_actions": len(self._queue),
            "registered_readers": len(self._readers),
            "processing_backlog": int(context is not None and context.is_processing_backlog is True),
            "source_failed": int(self.failure is not None),
        }
        return dict(sorted((self._metrics.values() | own).items()))

    def slow_call(self) -> tuple[int, str] | None:
        """Return how long a call of the enumerator has been running, in microseconds, and its name.

        None: no call has run for longer than the coordinator's timeout. Never waits for the enumerator.
        """
        oldest = None if self._context is None else self._context.oldest_call()
        if oldest is None or (ran_us := self._clock.now_us() - oldest[0]) <= self._timeout_seconds * 1_000_000:
            return None
        return ran_us, oldest[1]

    # -- handing over

    def _check(self, action: str) -> None:
        if (error := self._queue.failed) is not None:
            self._die(error)  # again, because the first call on the thread may have failed
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self._closed:
            raise CoordinatorClosed(self._name, action)
        if not self._started:
            raise CoordinatorNotStarted(self._name, action, "the coordinator has not started yet")

    def _check_before_start(self, action: str) -> None:
        if self._closed:
            raise CoordinatorClosed(self._name, action)
        if self._started:
            raise CoordinatorNotStarted(self._name, action, "it was started already")

    def _post(self, action: str, work: Callable[[], object]) -> None:
        self._check(action)
        self._queue.post(action, work)

    def _ask(self, action: str, work: Callable[[], ResultT]) -> Future[ResultT]:
        done: Future[ResultT] = Future()
        return self._post_asked(action, partial(answer, done, work), done)

    def _post_asked(self, action: str, task: Callable[[], None], done: Future[ResultT]) -> Future[ResultT]:
        """Hand over an action with a waiting caller, who gets an error if the action is dropped."""
        self._check(action)
        self._asked[done] = action
        done.add_done_callback(lambda _: self._asked.pop(done, None))
        self._queue.post(action, task)
        if self.failure is not None or self._closed:  # perhaps set since `_check`
            self._drop_asked()
        return done

    def _post_input(self, action: str, tell: Callable[[SplitEnumerator[SplitT, StateT]], None]) -> None:
        """Hand over a message of a reader, and repeat it if the enumerator goes back to a snapshot before it."""

        def take() -> None:
            self._inputs.append((action, lambda: tell(self._running_enumerator)))
            tell(self._running_enumerator)

        self._post(action, take)

    def _hangs(self, action: str, seconds: float) -> CoordinatorHangs:
        return CoordinatorHangs(self._name, action, seconds, *self._queue.where())

    def _drop_asked(self) -> None:
        for done, action in list(self._asked.items()):
            _fail(done, self.failure if self.failure is not None else CoordinatorClosed(self._name, action))

    # -- on the coordinator's thread

    @property
    def _running_enumerator(self) -> SplitEnumerator[SplitT, StateT]:
        assert self._enumerator is not None, "actions run after the first one, which makes the enumerator"
        return self._enumerator

    def _begin(self) -> None:
        self._make_enumerator()
        self._running_enumerator.start()
        _log.info("source %r: the enumerator has started", self._name)

    def _make_enumerator(self) -> None:
        self._context = context = SourceCoordinatorContext(
            self._name,
            queue=self._queue,
            clock=self._clock,
            gateway=self._gateway,
            readers=self._readers,
            metric_group=self._metrics,
            num_subtasks=self._num_subtasks,
        )
        if self._snapshot is None:
            self._enumerator = self._source.create_enumerator(context)
        else:
            self._enumerator = self._source.restore_enumerator(context, self._state(*self._snapshot))
        if self._closed:  # while it was being made
            self._discard_enumerator()
            raise CoordinatorClosed(self._name, "make the enumerator")

    def _register(self, info: ReaderInfo) -> None:
        if info.subtask not in self._readers:
            self._readers[info.subtask] = info
            self._add_reader(info.subtask)

    def _add_reader(self, subtask: int) -> None:
        assert self._context is not None
        if self._context.is_processing_backlog is not None:  # as the other readers know (FLIP-309)
            self._gateway.backlog(subtask, self._context.is_processing_backlog)
        self._running_enumerator.add_reader(subtask)

    def _checkpoint(self, action: str, checkpoint_id: int) -> bytes:
        last = -1 if self._snapshot is None else self._snapshot[0]
        if checkpoint_id < last:
            raise ValueError(f"source {self._name!r}: cannot {action}: checkpoint {last} was taken, ids never go back")
        data: bytes | None = None
        while data is None:
            try:
                state = self._running_enumerator.snapshot_state(checkpoint_id)
                serializer = self._source.enumerator_state_serializer
                body = serializer.serialize(state)
                data = _HEADER.pack(_VERSION, serializer.version, len(body)) + body
            except BaseException as error:
                self._recover(action, error)
                if self.failure is not None:
                    raise self.failure from self.failure.__cause__
                if self._closed:
                    raise CoordinatorClosed(self._name, action) from error
        self._snapshot = (checkpoint_id, data)
        self._inputs.clear()
        self._gateway.checkpointed(checkpoint_id)
        return data

    def _state(self, checkpoint_id: int, data: bytes) -> StateT:
        invalid = partial(InvalidCheckpoint, self._name, checkpoint_id)
        if len(data) < _HEADER.size:
            raise invalid(f"{len(data)} bytes are no checkpoint")
        version, state_version, length = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise invalid(f"its format is of version {version}, and this version of lowmark knows {_VERSION}")
        if len(data) - _HEADER.size != length:
            raise invalid(f"expected {length} bytes of state, got {len(data) - _HEADER.size}")
        serializer = self._source.enumerator_state_serializer
        if state_version > serializer.version:
            raise invalid(
                f"its state is of version {state_version}, and the connector knows up to {serializer.version}"
            )
        try:
            return serializer.deserialize(state_version, data[_HEADER.size :])
        except Exception as error:
            if not blames_bytes(error):
                raise
            raise invalid(told_briefly(error)) from error

    # -- failover, on the coordinator's thread

    def _fail_action(self, action: str, error: BaseException) -> None:
        """Give the error of an action to all callers that wait for the action; then restore the enumerator."""
        for done, asked in list(self._asked.items()):
            if asked == action:
                _fail(done, error)
        self._recover(action, error)

    def _recover(self, action: str, error: BaseException) -> None:
        """Restore the enumerator, or give the source up. Called after a failed action; raises nothing."""
        while not self._closed and self.failure is None:
            cause, known = _reason(error)
            pause_us = self._failover.failed(self._clock.now_us())
            self._discard_enumerator()
            if pause_us is None or SuppressRestarts.is_behind(error) or isinstance(error, UnreadableState):
                self._give_up(action, error, cause, known=known)
                return
            pause = rough_duration_us(pause_us)
            _log.error(
                "source %r: %s; the enumerator is restored in %s",
                self._name,
                cause if known else f"cannot {action}: {cause}",
                pause,
                exc_info=None if known else error,
            )
            self._queue.now_doing(f"wait {pause} before the enumerator is restored, which could not {action}: {cause}")
            if not self._queue.pause_until(self._clock.now_us() + pause_us):
                return  # closed
            try:
                self._restore()
            except BaseException as again:  # noqa: BLE001  # counts as the next failure
                action, error = self._queue.doing, again
            else:
                self.restores += 1
                return

    def _restore(self) -> None:
        """Go back to the last snapshot, and repeat the readers' messages since."""
        checkpoint_id = None if self._snapshot is None else self._snapshot[0]
        self._queue.now_doing("restore the enumerator from " + self._origin)
        self._discard_enumerator()
        self._gateway.restored(checkpoint_id)
        self._readers.update(self._coming)
        self._make_enumerator()
        self._queue.now_doing("start the restored enumerator")
        self._running_enumerator.start()
        readers: list[tuple[str, Callable[[], None]]] = [
            (f"register reader {subtask}", partial(self._add_reader, subtask)) for subtask in sorted(self._readers)
        ]
        for action, work in (*readers, *self._inputs):
            self._queue.now_doing(f"{action} once more")
            work()
        _log.info("source %r: the enumerator was restored from %s", self._name, self._origin)

    @property
    def _origin(self) -> str:
        return "the beginning" if self._snapshot is None else f"checkpoint {self._snapshot[0]}"

    def _discard_enumerator(self) -> None:
        """Close the enumerator and its context, if there is one; errors of closing are only logged."""
        with self._lock:
            context, enumerator = self._context, self._enumerator
            self._context = self._enumerator = None
        for each in (context, enumerator):
            if each is not None:
                try:
                    each.close()
                except BaseException:  # noqa: BLE001  # the enumerator has failed, or is no longer needed
                    _log.warning("source %r: the enumerator could not be closed", self._name, exc_info=True)

    def _give_up(self, action: str, error: BaseException, cause: str, *, known: bool = False) -> None:
        restored = max(0, self._failover.failures - 1)
        failure = SourceFailed(self._name, action, cause, restored, str(self._failover.policy.window), known)
        failure.__cause__ = error
        self.failure = failure
        _log.error("%s", failure, exc_info=None if known else error)
        self._queue.close()
        self._drop_asked()

    def _die(self, error: BaseException) -> None:
        """Fail the source, because an error ended the coordinator's thread, which alone can restore the enumerator."""
        if self.failure is None and not self._closed:
            self._give_up("go on, because its thread has ended", error, described(error))
            self._discard_enumerator()

    def _close_enumerator(self, done: Future[None]) -> None:
        self._discard_enumerator()
        self._queue.close()
        if not done.done():
            done.set_result(None)


def _reason(error: BaseException) -> tuple[str, bool]:
    """Return the text for an error, and whether that text is complete: it is for our own error behind another error."""
    inner = error
    while isinstance(inner, LowmarkError) and isinstance(inner.__cause__, LowmarkError):
        inner = inner.__cause__
    known = inner is not error
    return (str(inner) if known else described(error)), known


def _fail(done: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # it has its result, or no caller waits
        done.set_exception(error)
