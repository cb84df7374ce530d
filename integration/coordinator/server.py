"""`lowmark serve`: one coordinator as a process, for many applications.

One event loop owns the `LowWatermarkCoordinator`; nobody else touches it, so there are no locks.

Rule 1: what a snapshot is for (`epoch` grew) is in the journal before anybody hears of it: no effect is sent ahead of
        that, and no task is told that it has come or gone. What comes while a write is under way goes with the next.
Rule 2: nobody waits for an application. What it does not take in time is replaced by what is newer of the same kind for
        the same task, so what is kept for it is bounded by its tasks.
Rule 3: no burst keeps others waiting: a round's questions go out over a quarter of the interval, so its answers come
        so; what everybody is told at once is put in for 100 tasks at a time; what a snapshot needs is encoded bit by
        bit before it is made; and putting it together takes a twentieth of the time at most, writing it 2 MiB a
        second, however large it is.
Rule 4: an application hears what is for its tasks on its watch. Which tasks are its own it says by speaking for them,
        and says again after the connection was lost; so where to send is no state that could be lost.
Rule 5: a state that may be half changed, because an error came in the middle of a change, is never used and never
        written. The server drops it with all that follows from it, ends every call, and begins again from the journal,
        which has sound states only. Applications connect again and say where they are.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import grpc
import grpc.aio
from lowmark.integration.errors import CoordinatorFailed, JournalRefused, MalformedMessage
from lowmark.integration.process import sockets
from lowmark.integration.process.method import Method
from lowmark.sources.coordinator.failover import Failover, FailoverPolicy
from lowmark.sources.worker import described
from lowmark.watermark import (
    CapAnnounced,
    CorruptSnapshot,
    LeaseRenewed,
    LowmarkError,
    LowWatermarkCoordinator,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskId,
    TaskLost,
    TaskReturnedLate,
    Tick,
)
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.tasks.coordinator import CoordinatorEffect

from .access import Door, TokenCheck
from .journal import Journal, patience_seconds
from .messages import (
    MOST_BYTES,
    SAY,
    SERVICE,
    STATUS,
    WATCH,
    Answer,
    BegunAgain,
    News,
    Say,
    SayAnswer,
    Statement,
    StatusAnswer,
    Taken,
    Told,
    encode,
    refusal,
)

__all__ = ["Coordinator", "Watcher", "restore", "serve"]

_STEP_SECONDS = 0.05  # between some questions of a round and the next: each is a message to everybody
_CALM = 4  # the part of the interval over which questions are spread
_LEAST_AT_ONCE = 16  # questions in one step, so that a few tasks are asked at once
_SNAPSHOT_SHARE = 20  # the part of the time snapshots take at most, however large they are
_JOURNAL_BYTES = 2 << 20  # written in a second at most: a disk has others to serve, and wears out
_TAKEN_AT_ONCE = 20  # statements of one application, before others are let in
_TOLD_AT_ONCE = 100  # messages put in for watchers, likewise: a round or a group may have one for everybody
_ENCODED_AT_ONCE = 50  # sources, and tasks of theirs
_AGAIN_SECONDS = 0.5  # between two attempts to write the journal
_UNWRITTEN = 10_000  # effects kept while the journal is written, before those that a newer one replaces are dropped
_LAST_TURNS = 50  # others get these between parts of a snapshot that is due; not more, or it might never be made
_SHORTEST_US = 5_000  # between two calls that time alone makes: a group may ask for an announcement every microsecond
_RESTORE_SECONDS = 60.0  # for the journal to be read, after a write that is under way
_GRACE_SECONDS = 1.0  # for calls under way, when the process ends
_WATCH_OVER = "the coordinator ends, or begins again from its journal, or the application watches elsewhere"
_MOST_CALLS = 20_000  # under way at once: an application has two
_SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.so_reuseport", 0),  # a second process at the same port is an error, not half of the calls
    # Callers ping every 20 seconds while they watch, and a watcher that vanished is noticed in as many.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Anybody who reaches the port can connect. A connection without handshake, or without a call, does not stay, and
    # one connection has few calls; `serve` bounds their number, too.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_concurrent_streams", 100),
    # Nobody compresses: what is small and unpacks to much is refused before it is unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]

_log = logging.getLogger("lowmark")


def restore(journal: Journal, now_us: int, **settings: Any) -> LowWatermarkCoordinator:
    """The coordinator whose state is in a journal; a new one if there is none.

    Args:
        journal: where the state is.
        now_us: now, microseconds since the epoch.
        settings: what `LowWatermarkCoordinator` takes.

    Raises:
        JournalRefused: the journal cannot be read.
    """
    state = journal.read()
    if state is None:
        return LowWatermarkCoordinator(**settings)
    try:
        return LowWatermarkCoordinator.restore(state, now_us=now_us, **settings)
    except CorruptSnapshot as corrupt:
        raise JournalRefused(
            str(journal.path),
            f"its {corrupt.size} bytes are no state that can be restored: {corrupt.reason}",
            "put a good copy in its place, or move it away: then every application registers again with the low "
            "watermarks it has, and what was published before is not known here any more.",
        ) from corrupt


class Watcher:
    """What waits for one application, of each kind and task the newest."""

    def __init__(self) -> None:
        self.tasks: set[TaskId] = set()
        self.caps: dict[TaskId, CapAnnounced] = {}
        self._waiting: dict[tuple[type[News], TaskId], News] = {}
        self._news = asyncio.Event()
        self._over = False

    def tell(self, message: News) -> None:
        """Have the application hear of something; never waits."""
        key = (type(message), message.task)
        self._waiting.pop(key, None)  # the newest stands last
        self._waiting[key] = message
        self._news.set()

    def end(self) -> None:
        """There is nothing more to hear here."""
        self._over = True
        self._news.set()

    async def next(self) -> list[News] | None:
        """What has come up, once there is anything; None: nothing will."""
        await self._news.wait()
        self._news.clear()
        if self._over:
            return None
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting


class Coordinator:
    """What `lowmark serve` runs: the rules, those who watch, and the journal between them. Used in one event loop.

    Args:
        coordinator: decides everything; nobody else may touch it.
        now_us: the clock, microseconds since the epoch, steady.
        journal: where the state is kept; None: a restart begins anew.
        interval_us: what the coordinator was told.
        lease_us: likewise, for those who ask for no other.
        quorum: likewise.

    Attributes:
        failed: what ended the journal or the coordinator itself, once something did; then nobody is told anything, and
            `say` is cancelled.
        closing: whether ``close`` was called; then likewise.
        begun_again: the newest error after which it began again from its journal; None: there was none. The calls of
            before are cancelled.
        listening: calls that wait for their caller's next message.
    """

    def __init__(
        self,
        coordinator: LowWatermarkCoordinator,
        now_us: Callable[[], int],
        *,
        journal: Journal | None,
        interval_us: int = 1_000_000,
        lease_us: int = 30_000_000,
        quorum: float = 1.0,
    ) -> None:
        self.closing = False
        self.begun_again: BegunAgain | None = None
        self.listening: set[asyncio.Task[Any]] = set()
        self._failover = Failover(FailoverPolicy())
        self._settings: dict[str, Any] = {"interval_us": interval_us, "lease_us": lease_us, "quorum": quorum}
        self._version = importlib.metadata.version("lowmark")  # reads a file: not while all descriptors are taken
        self._calm_seconds = interval_us / _CALM / 1e6
        self._coordinator, self._now_us, self._journal, self._lease_us = coordinator, now_us, journal, lease_us
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unseen)
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._watchers: dict[str, Watcher] = {}
        self._watcher_of: dict[TaskId, Watcher] = {}
        self._durable = coordinator.epoch
        self._most_unwritten = _UNWRITTEN
        self._unwritten: list[CoordinatorEffect] = []  # not to be told before the journal has what they follow from
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # epoch, and what waits until the journal has it
        self._writing: asyncio.Task[None] | None = None
        self._snapshot_at = 0.0  # not before, on the loop's clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="lowmark-journal")
        self._timer: asyncio.TimerHandle | None = None
        self._untold: deque[CoordinatorEffect] = deque()  # in order; the journal has what they follow from
        self._telling: asyncio.Handle | None = None
        self._questions: dict[TaskId, RetrieveLowWatermark] = {}  # to be asked, in order
        self._asking: asyncio.TimerHandle | None = None
        self._plan()

    # -- what applications do

    async def say(self, said: Say) -> SayAnswer:
        """Take in what tasks say, one after the other; answer those that have come or gone once that is safe."""
        state, answers = self._coordinator, list[Answer]()
        before = state.epoch
        for number, statement in enumerate(said.statements):
            if number and number % _TAKEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._go_on_with(state)
            with self._sound():
                # Asked for every one: meanwhile the application may have begun to watch anew.
                answers.append(self._take(statement, self._watchers.get(said.application)))
            self._go_on_with(state)
        with self._sound():
            self._follow_up()
        self._go_on_with(state)
        watcher, epoch = self._watchers.get(said.application), state.epoch
        # A reply may be lost: a task that is asked again says it again. That a task has come or gone is said once.
        once = any(not isinstance(statement, ReplyLowWatermark | LeaseRenewed) for statement in said.statements)
        if once and epoch > before and epoch > self._durable:
            safe = self._loop.create_future()
            self._waiting.append((epoch, safe))
            await safe
        if self._durable < state.epoch:
            return SayAnswer(answers)  # what is published is not safe yet; the watch tells it in a moment
        return SayAnswer(
            [
                answer
                if isinstance(statement, LowmarkError) or not isinstance(answer, Taken)
                else self._with_news(statement, watcher)
                for statement, answer in zip(said.statements, answers, strict=True)
            ]
        )

    async def watch(self, application: str) -> AsyncIterator[Told]:
        """Everything for the tasks of an application, until it is gone or watches anew."""
        before = self._watchers.get(application)
        if before is not None:
            before.end()
        watcher = self._watchers[application] = Watcher()
        try:
            yield Told([], self._lease_us)
            while (messages := await watcher.next()) is not None:
                yield Told(messages)
        finally:
            if self._watchers.get(application) is watcher:
                del self._watchers[application]
            for task in watcher.tasks:
                if self._watcher_of.get(task) is watcher:
                    del self._watcher_of[task]

    def status(self, limit: int | None = None) -> StatusAnswer:
        """What a person wants to know; with a limit, of so many tasks of each source and group."""
        return StatusAnswer(
            version=self._version,
            pid=os.getpid(),
            applications=len(self._watchers),
            journal=None if self._journal is None else str(self._journal.path),
            coordinator=self._coordinator.status(self._now_us(), limit=limit),
            begun_again=self.begun_again,
        )

    def tick(self) -> None:
        """Let time do what it does."""
        with self._sound():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._unwritten += self._coordinator.handle(Tick(), self._now_us())
            self._follow_up()

    async def close(self) -> None:
        """End every watch, and let the journal finish. Nothing is taken in afterwards."""
        self.closing = True
        self._hang_up()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._writer.shutdown()

    # -- how

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """An error in here may leave the state half changed. It is dealt with; nothing is raised."""
        try:
            yield
        except JournalRefused as refused:  # there is nothing to begin again from
            self._fail(refused)
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._begin_again(error)

    def _unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that reached the event loop. One of a call of ours would leave time standing still here."""
        loop.default_exception_handler(context)
        error, ours = context.get("exception"), (self._timer, self._telling, self._asking)
        if isinstance(error, Exception) and context.get("handle") in [handle for handle in ours if handle is not None]:
            self._begin_again(error)

    def _begin_again(self, error: Exception) -> None:
        """Drop the state, and all that follows from it; go on with what the journal has, or fail."""
        if self.failed.done() or self.closing:
            return
        times = 0 if self.begun_again is None else self.begun_again.times
        while (journal := self._journal) is not None and self._failover.failed(self._now_us()) is not None:
            self._drop()
            at_us, why = self._now_us(), described(error)
            try:
                # The writer has one thread, so this comes after a write that is under way, which is of a sound state.
                reading = self._writer.submit(self._restored, journal, at_us)
                self._coordinator = reading.result(_RESTORE_SECONDS)
                self._durable = self._coordinator.epoch
                self._plan()
            except JournalRefused as refused:
                self._fail(refused)
                return
            except Exception as again:  # noqa: BLE001  # it counts as the next one
                _log.error("the coordinator cannot begin again from its journal: %s", why, exc_info=error)
                error = again
                continue
            self.begun_again = BegunAgain(times + 1, at_us, why)
            _log.error(
                "the coordinator began again from its journal, because an error may have left its state half changed: "
                "%s. Applications connect again; nothing that was published goes back.",
                why,
                exc_info=error,
            )
            return
        self._drop()
        self._fail(self._hopeless(error))

    def _drop(self) -> None:
        """Forget the state's effects and all calls. A write that is under way goes on, and nobody waits for it."""
        self._hang_up()
        self._unwritten, self._waiting, waiting = [], [], self._waiting
        self._untold.clear()
        self._questions.clear()
        self._watchers.clear()
        self._watcher_of.clear()
        self._timer = self._telling = self._asking = None
        for _, safe in waiting:
            safe.cancel()
        if self._writing is not None and self._writing is not asyncio.current_task():
            self._writing.cancel()
        self._writing = None

    def _hang_up(self) -> None:
        """Let no time pass any more, and end every call."""
        for handle in (self._timer, self._telling, self._asking):
            if handle is not None:
                handle.cancel()
        for watcher in self._watchers.values():
            watcher.end()
        for call in self.listening:
            call.cancel()

    def _restored(self, journal: Journal, now_us: int) -> LowWatermarkCoordinator:
        state = restore(journal, now_us, **self._settings)
        journal.write(state.snapshot())  # the error may have come before the last one was safe
        return state

    def _hopeless(self, error: Exception) -> CoordinatorFailed:
        cause, policy = described(error), self._failover.policy
        most = 0 if self._journal is None else policy.most
        failed = CoordinatorFailed(cause, most, str(policy.window))
        failed.__cause__ = error
        _log.critical("%s", failed, exc_info=error)
        return failed

    def _go_on_with(self, state: LowWatermarkCoordinator) -> None:
        """Raises CancelledError where the state was dropped after a message began with it."""
        if self.failed.done() or self.closing or self._coordinator is not state:
            raise asyncio.CancelledError

    def _take(self, statement: Statement | TaskForgotten | LowmarkError, watcher: Watcher | None) -> Answer:
        if isinstance(statement, LowmarkError):
            return refusal(statement)
        try:
            effects = self._coordinator.handle(statement, self._now_us())
        except LowmarkError as refused:
            return refusal(refused)
        task = statement.task
        if isinstance(statement, ReplyLowWatermark):
            question = self._questions.get(task)
            if question is not None and statement.timestamp >= question.timestamp:
                del self._questions[task]  # it is answered already
        if isinstance(statement, TaskDeregistered):
            self._forget(task)
        elif watcher is not None and self._watcher_of.get(task) is not watcher:
            self._forget(task)
            self._watcher_of[task] = watcher
            watcher.tasks.add(task)
        self._unwritten += effects
        return Taken()

    def _with_news(self, statement: Statement | TaskForgotten, watcher: Watcher | None) -> Taken:
        task = statement.task
        low_us = self._coordinator.low_watermark_us(task.job_id, task.source_id)
        return Taken(low_us, None if watcher is None else watcher.caps.get(task))

    def _forget(self, task: TaskId) -> None:
        watcher = self._watcher_of.pop(task, None)
        if watcher is not None:
            watcher.tasks.discard(task)
            watcher.caps.pop(task, None)

    def _follow_up(self) -> None:
        """After every change: plan the next call, tell what may be told, or write first."""
        self._plan()
        if self._writing is not None and not self._writing.done():
            return  # it looks again when it is done
        if self._journal is None:
            self._durable = self._coordinator.epoch
        if self._durable == self._coordinator.epoch:
            unwritten, self._unwritten = self._unwritten, []
            self._release(unwritten)
        elif not self.failed.done():
            assert self._journal is not None
            self._writing = self._loop.create_task(self._write(self._journal))

    async def _write(self, journal: Journal) -> None:
        """Write until the journal has everything; all that came meanwhile is one write."""
        with self._sound():
            while self._durable < self._coordinator.epoch:
                await self._prepare()
                began = self._loop.time()
                epoch, state = self._coordinator.epoch, self._coordinator.snapshot()
                share = _SNAPSHOT_SHARE * (self._loop.time() - began)
                self._snapshot_at = began + max(share, len(state) / _JOURNAL_BYTES)
                unwritten, self._unwritten = self._unwritten, []
                await self._keep(journal, state)
                self._durable = epoch
                self._release(unwritten)
            unwritten, self._unwritten = self._unwritten, []
            self._release(unwritten)

    def _fail(self, failed: Exception) -> None:
        """It cannot go on: `serve` raises this, so that the process ends and another begins from the journal."""
        if not self.failed.done():
            self.failed.set_exception(failed)
        for _, safe in self._waiting:
            safe.cancel()

    async def _keep(self, journal: Journal, state: bytes) -> None:
        """Write. Without a descriptor, or for a while without room, everybody keeps what he has, and it tries again."""
        since = self._loop.time()
        warned = False
        while True:
            try:
                return await self._loop.run_in_executor(self._writer, journal.write, state)
            except JournalRefused as refused:
                passed = self._loop.time() - since
                if self.closing or passed >= patience_seconds(refused):
                    raise
                if not warned:
                    _log.warning("%s Until then no low watermark rises; it is tried again.", refused)
                warned = True
            self._drop_replaced()
            await asyncio.sleep(_AGAIN_SECONDS)

    def _drop_replaced(self) -> None:
        """Of what the journal has not yet, keep the newest of each kind and task: then it is bounded by the tasks."""
        if len(self._unwritten) > self._most_unwritten:
            newest: dict[Any, CoordinatorEffect] = {}
            for effect in self._unwritten:
                key = type(effect), effect.task
                newest.pop(key, None)
                newest[key] = effect
            self._unwritten = list(newest.values())
            self._most_unwritten = max(_UNWRITTEN, 2 * len(self._unwritten))

    async def _prepare(self) -> None:
        """Wait until the next snapshot may be made, and have little left to do for it then."""
        while (left := self._snapshot_at - self._loop.time()) > 0:
            more = self._coordinator.encode(_ENCODED_AT_ONCE)
            await asyncio.sleep(0 if more else min(left, _STEP_SECONDS))
        for _ in range(_LAST_TURNS):
            if not self._coordinator.encode(_ENCODED_AT_ONCE):
                return
            await asyncio.sleep(0)

    def _release(self, effects: list[CoordinatorEffect]) -> None:
        """Tell what follows from what the journal has, and answer those who waited for it."""
        self._untold += effects
        if self._telling is None:
            self._tell_some()
        waiting, self._waiting = self._waiting, []
        for epoch, safe in waiting:
            if epoch > self._durable:
                self._waiting.append((epoch, safe))
            elif not safe.done():
                safe.set_result(None)

    def _tell_some(self) -> None:
        """Tell some, let the loop do its other work, tell the others, and then begin to ask."""
        with self._sound():
            self._telling = None
            for _ in range(min(len(self._untold), _TOLD_AT_ONCE)):
                self._tell(self._untold.popleft())
            if self._untold:
                self._telling = self._loop.call_soon(self._tell_some)
            elif self._questions and self._asking is None:
                steps = max(int(self._calm_seconds / _STEP_SECONDS), 1)
                self._ask(max(-(-len(self._questions) // steps), _LEAST_AT_ONCE))

    def _tell(self, effect: CoordinatorEffect) -> None:
        if isinstance(effect, TaskLost):
            _log.warning("task %s was lost: %s", effect.task, effect.why)
            self._forget(effect.task)
            return
        if isinstance(effect, TaskReturnedLate):
            late = "task %s came in %s below the low watermark, so its rows in between are late: %s"
            _log.warning(late, effect.task, rough_duration_us(effect.behind_us), effect.why)
            return
        task = effect.task
        if isinstance(effect, RetrieveLowWatermark):
            self._questions[task] = effect
            return
        watcher = self._watcher_of.get(task)
        if watcher is None:
            return  # its application is away; it is told when it speaks
        if isinstance(effect, CapAnnounced):
            watcher.caps[task] = effect
        watcher.tell(effect)

    def _ask(self, at_once: int) -> None:
        """Ask some, and the others a little later."""
        with self._sound():
            self._asking = None
            for task in list(islice(self._questions, at_once)):
                question, watcher = self._questions.pop(task), self._watcher_of.get(task)
                if watcher is not None:
                    watcher.tell(question)
            if self._questions:
                self._asking = self._loop.call_later(_STEP_SECONDS, self._ask, at_once)

    def _plan(self) -> None:
        now_us = self._now_us()
        wake_at_us = self._coordinator.wake_at_us(now_us)
        at = None if wake_at_us is None else self._loop.time() + max(wake_at_us - now_us, _SHORTEST_US) / 1e6
        if self._timer is not None:
            if at is not None and self._timer.when() <= at:
                return  # else messages that keep coming would put it off for ever
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self.tick)


# -- gRPC

Question = TypeVar("Question")


async def serve(
    coordinator: Coordinator, door: Door, *, stop: asyncio.Event, ready: Callable[[str], None] = lambda _address: None
) -> None:
    """Let applications in until told to stop.

    Args:
        coordinator: answers them; closed at the end.
        door: where, and who.
        stop: set it to end in good order.
        ready: called with the address once calls are answered.

    Raises:
        AddressRefused, SocketsRefused, TokenRefused: see ``Door``.
        JournalRefused: the journal could not be written any more.
        CoordinatorFailed: it was ended by an error; the journal has all that was told.
    """
    token = door.token()
    server = grpc.aio.server(
        interceptors=() if token is None else (TokenCheck(token),),
        options=[*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", sockets.room_for_connections())],
        maximum_concurrent_rpcs=_MOST_CALLS,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, _handlers(coordinator))])
    try:
        address = door.open(server)
        await server.start()
        ready(address)
        stopped = asyncio.ensure_future(stop.wait())
        both: list[asyncio.Future[Any]] = [stopped, coordinator.failed]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
    finally:
        await coordinator.close()
        await server.stop(_GRACE_SECONDS)
    if coordinator.failed.done():
        coordinator.failed.result()


def _handlers(coordinator: Coordinator) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """What answers each method."""

    # Handlers take and give bytes: what gRPC says of bytes that it cannot decode itself names no field.
    async def say(_messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        call: Any = asyncio.current_task()
        since = coordinator.begun_again
        try:
            while not coordinator.closing and coordinator.begun_again is since:
                coordinator.listening.add(call)
                data: Any = await context.read()
                coordinator.listening.discard(call)
                if data is grpc.aio.EOF:
                    return
                await context.write(encode(await coordinator.say(await _question(SAY, data, context))))
        except asyncio.CancelledError:
            if coordinator.failed.done():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator cannot go on; its log says why")
            if not coordinator.closing and coordinator.begun_again is since:
                raise  # the caller hung up
        finally:
            coordinator.listening.discard(call)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator ends, or begins again from its journal")

    async def status(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        question = await _question(STATUS, data, context)
        return encode(coordinator.status(question.limit))

    async def watch(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        question = await _question(WATCH, data, context)
        async for told in coordinator.watch(question.application):
            yield encode(told)
        await context.abort(grpc.StatusCode.UNAVAILABLE, _WATCH_OVER)

    return {
        SAY.name: grpc.stream_stream_rpc_method_handler(say),
        STATUS.name: grpc.unary_unary_rpc_method_handler(status),
        WATCH.name: grpc.unary_stream_rpc_method_handler(watch),
    }


async def _question(
    method: Method[Question, Any], data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
) -> Question:
    try:
        return method.decode_question(data)
    except MalformedMessage as malformed:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(malformed))
