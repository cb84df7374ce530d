"""`lowmark serve`: one coordinator as a process, for many applications.

One event loop owns the `LowWatermarkCoordinator`. Other threads never touch the coordinator, so it needs no lock.

Rule 1: a change that a restart must know (`epoch` grew) is in the journal before any application hears of it: no effect
        is sent earlier, and no task is told earlier that it has come or gone. Changes during a write go with the next.
Rule 2: the server waits for no application. A message that an application does not take in time is replaced by a newer
        message of the same kind for the same task, so the number of its tasks bounds what is kept for it.
Rule 3: no burst keeps others waiting: a round's questions are spread over a quarter of the interval, and so are its
        answers; a message for every task is put in for 100 tasks at a time; changed rows are encoded bit by bit before
        they are taken; taking them takes at most a twentieth of the time, and a write at most 2 MiB a second, but the
        last write waits for nothing.
Rule 4: an application hears news of its tasks on its watch. Speaking for a task makes the task the application's, and
        the application does so again after a lost connection; so the way to a task is no state that could be lost.
Rule 5: a state that may be half changed, because an error came in the middle of a change, is never used and never
        written. The server drops it with all that follows from it, ends every call, and begins again from the journal,
        which has only sound states. Applications connect again and report again.

One file, because the journal's rule 1 orders every effect, so all code that sends an effect stands beside the loop.
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
from dataclasses import replace
from itertools import islice
from typing import Any

import grpc
import grpc.aio
from lowmark.integration.errors import CoordinatorFailed, JournalRefused, MalformedMessage
from lowmark.integration.process.codec import Method, Question
from lowmark.sources.coordinator.failover import Failover, FailoverPolicy
from lowmark.sources.worker import described
from lowmark.watermark import CorruptSnapshot, LowmarkError, TaskId
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.protocol import (
    LeaseRenewed,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskLost,
    TaskReturnedLate,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.cap import CapAnnounced
from lowmark.watermark.tasks.coordinator import DEFAULTS, CoordinatorEffect, LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.snapshot import ChangedRows

from .access import Door, TokenCheck, room_for_connections
from .journal import Journal, patience_seconds
from .messages import (
    MOST_BYTES,
    REFUSALS,
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
    WatchNews,
    encode,
    refusal,
)

_STEP_SECONDS = 0.05  # between two steps of a round's questions; each question is a message to a task
_CALM = 4  # the part of the interval over which questions are spread
_LEAST_AT_ONCE = 16  # questions in one step, so that a few tasks are asked at once
_ROWS_SHARE = 20  # taking the changed rows takes at most one part in so many of the time, however many they are
_JOURNAL_BYTES = 2 << 20  # written in a second at most, because a disk has other users and wears out
_TAKEN_AT_ONCE = 20  # statements of one application before others have their turn
_TOLD_AT_ONCE = 100  # messages for watchers in one step, because a round or a group may have one for every task
_ENCODED_AT_ONCE = 50  # rows in one step
_AGAIN_SECONDS = 0.5  # between two attempts to write the journal
_UNWRITTEN = 10_000  # effects kept during a write of the journal, before effects with a newer one are dropped
_LAST_TURNS = 50  # turns for other work while due rows are encoded; more might delay it for ever
_SHORTEST_US = 5_000  # between two calls by the timer, because a group may ask for an announcement every microsecond
_RESTORE_SECONDS = 60.0  # for reading the journal, after a write that is under way
_GRACE_SECONDS = 1.0  # for calls under way, when the process ends
_WATCH_OVER = "the coordinator ends, or begins again from its journal, or the application watches elsewhere"
_MOST_CALLS = 20_000  # calls at once; an application has two
_SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.so_reuseport", 0),  # a second process at the same port is an error, not half of the calls
    # Callers ping every 20 seconds while they watch, and the server notices a vanished watcher 10 seconds later than
    # that. Without its last option gRPC waits a minute for the answer to a ping.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Anyone who reaches the port can connect. A connection without a handshake or a call is closed soon, and one
    # connection has few calls; `serve` bounds the number of connections, too.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_concurrent_streams", 100),
    # No compression, because a small message could unpack to a huge one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]

log = logging.getLogger("lowmark")


def restore(journal: Journal, now_us: int, settings: Settings = DEFAULTS) -> LowWatermarkCoordinator:
    """Restore the coordinator from a journal, which may be empty. Raises JournalRefused."""
    rows = journal.read()
    if not rows:
        return LowWatermarkCoordinator(settings)
    try:
        return LowWatermarkCoordinator.restore(rows, settings, now_us=now_us)
    except CorruptSnapshot as corrupt:
        raise journal.damaged(corrupt.reason) from corrupt


class Watcher:
    """Messages that wait for one application: the newest of each kind and task."""

    def __init__(self) -> None:
        self.tasks: set[TaskId] = set()
        self.caps: dict[TaskId, CapAnnounced] = {}
        self._waiting: dict[tuple[type[News], TaskId], News] = {}
        self._news = asyncio.Event()
        self._over = False

    def tell(self, message: News) -> None:
        key = (type(message), message.task)
        self._waiting.pop(key, None)  # so that the newest message stands last
        self._waiting[key] = message
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def next(self) -> list[News] | None:
        """Wait for messages, and return them; None: the watch has ended."""
        await self._news.wait()
        self._news.clear()
        if self._over:
            return None
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting


class CoordinatorServer:
    """The server behind `lowmark serve`: rules, watchers, and the journal between them. Used in one event loop.

    Once it has `failed` or is `closing`, nobody is told anything, and `say` is cancelled. When it begins again from its
    journal (`begun_again`), every earlier call is cancelled, too.
    """

    def __init__(self, coordinator: LowWatermarkCoordinator, now_us: Callable[[], int], *, journal: Journal) -> None:
        self.closing = False
        self.begun_again: BegunAgain | None = None
        self.listening: set[asyncio.Task[Any]] = set()  # calls that wait for their caller's next message
        self._failover = Failover(FailoverPolicy())
        self._version = importlib.metadata.version("lowmark")  # reads a file, so not while descriptors lack
        self._calm_seconds = coordinator.settings.interval_us / _CALM / 1e6
        self._coordinator, self._now_us, self._journal = coordinator, now_us, journal
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unseen)
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._watchers: dict[str, Watcher] = {}
        self._watcher_of: dict[TaskId, Watcher] = {}
        self._durable = coordinator.epoch
        self._most_unwritten = _UNWRITTEN
        self._unwritten: list[CoordinatorEffect] = []  # not to be told before the journal has their cause
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # epoch, and a future for its write
        self._writing: asyncio.Task[None] | None = None
        self._no_room: JournalRefused | None = None  # while a write is tried again
        self._rows_at = 0.0  # earliest time of the next write, on the loop's clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="lowmark-journal")
        self._timer: asyncio.TimerHandle | None = None
        self._untold: deque[CoordinatorEffect] = deque()  # in order; the journal has their cause
        self._telling: asyncio.Handle | None = None
        self._questions: dict[TaskId, RetrieveLowWatermark] = {}  # questions to ask, in order
        self._asking: asyncio.TimerHandle | None = None
        self._at_once = 0  # questions in one step, until all are asked
        self._plan()

    # -- for applications

    async def say(self, said: Say) -> SayAnswer:
        """Take statements one after the other; answer those that add or remove a task once the journal has them."""
        state, answers = self._coordinator, list[Answer]()
        before = state.epoch
        for number, statement in enumerate(said.statements):
            if number and number % _TAKEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._go_on_with(state)
            with self._sound():
                # Looked up for each statement, because the application may have begun a new watch meanwhile.
                answers.append(self._take(statement, self._watchers.get(said.application)))
            self._go_on_with(state)
        with self._sound():
            self._follow_up()
        self._go_on_with(state)
        watcher, epoch = self._watchers.get(said.application), state.epoch
        # A reply may be lost, because a task that is asked again replies again. Coming and going are said only once.
        # A person who forgets a task for the second time had no answer, and the first change may not be written yet.
        once = {type(statement) for statement in said.statements} - {ReplyLowWatermark, LeaseRenewed}
        if once and (epoch > before or TaskForgotten in once) and epoch > self._durable:
            safe = self._loop.create_future()
            self._waiting.append((epoch, safe))
            await safe
        if self._durable < state.epoch:
            return SayAnswer(answers)  # news is not in the journal yet; the watch tells it in a moment
        return SayAnswer([self._with_news(*each, watcher) for each in zip(said.statements, answers, strict=True)])

    async def watch(self, application: str) -> AsyncIterator[WatchNews]:
        """Yield all messages for the tasks of an application, until it is gone or begins a new watch."""
        before = self._watchers.get(application)
        if before is not None:
            before.end()
        watcher = self._watchers[application] = Watcher()
        try:
            yield WatchNews([], self._coordinator.settings.lease_us)
            while (messages := await watcher.next()) is not None:
                yield WatchNews(messages)
        finally:
            if self._watchers.get(application) is watcher:
                del self._watchers[application]
            for task in watcher.tasks:
                if self._watcher_of.get(task) is watcher:
                    del self._watcher_of[task]

    def status(self, limit: int | None = None) -> StatusAnswer:
        seen = self._coordinator.status(self._now_us(), limit=limit)
        if self._no_room is not None:
            why = f"no application hears of a rise, because the journal cannot be written: {self._no_room}"
            seen = replace(seen, sources=tuple(replace(source, why=why) for source in seen.sources))
        return StatusAnswer(
            version=self._version,
            pid=os.getpid(),
            applications=len(self._watchers),
            journal=str(self._journal.path),
            coordinator=seen,
            begun_again=self.begun_again,
        )

    def tick(self) -> None:
        with self._sound():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._unwritten += self._coordinator.handle(Tick(), self._now_us())
            self._follow_up()

    async def close(self) -> None:
        """End every watch, and let the journal finish. Later statements are not taken."""
        self.closing = True
        try:
            self._hang_up()
            if self._writing is not None:
                await asyncio.wait([self._writing])
        finally:
            self._writer.shutdown()

    # -- how

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Handle errors of the block, which may leave the state half changed; no error is raised."""
        try:
            yield
        except JournalRefused as refused:  # the journal itself is broken
            self._fail(refused)
        except Exception as error:  # noqa: BLE001  # any error may leave it half changed
            self._begin_again(error)

    def _unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error in the event loop: an error in one of our own timers would stop time here."""
        loop.default_exception_handler(context)
        error, handle = context.get("exception"), context.get("handle")
        if isinstance(error, Exception) and handle and handle in (self._timer, self._telling, self._asking):
            self._begin_again(error)

    def _begin_again(self, error: Exception) -> None:
        if self.failed.done() or self.closing:
            return
        times = 0 if self.begun_again is None else self.begun_again.times
        while self._failover.failed(self._now_us()) is not None:
            self._drop()
            at_us, why = self._now_us(), described(error)
            try:
                # The writer has one thread, so reading follows a write that is under way, which is of a sound state.
                reading = self._writer.submit(restore, self._journal, at_us, self._coordinator.settings)
                self._coordinator = reading.result(_RESTORE_SECONDS)
                self._durable = self._coordinator.epoch
                self._plan()
            except JournalRefused as refused:
                self._fail(refused)
                return
            except Exception as again:  # counts as the next error
                log.error("the coordinator cannot begin again from its journal: %s", why, exc_info=error)
                error = again
                continue
            self.begun_again = BegunAgain(times + 1, at_us, why)
            log.error(
                "the coordinator began again from its journal, because an error may have left its state half changed: "
                "%s. Applications connect again; nothing that was published goes back.",
                why,
                exc_info=error,
            )
            return
        self._drop()
        policy = self._failover.policy
        failed = CoordinatorFailed(described(error), policy.most, str(policy.window))
        failed.__cause__ = error
        log.critical("%s", failed, exc_info=error)
        self._fail(failed)

    def _fail(self, failed: Exception) -> None:
        """Make `serve` raise this error, to end the process; a new process begins from the journal."""
        if not self.failed.done():
            self.failed.set_exception(failed)
        for _, safe in self._waiting:
            safe.cancel()

    def _drop(self) -> None:
        """Forget the state's effects and all calls. A write under way goes on, but nobody waits for it."""
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
        for handle in (self._timer, self._telling, self._asking):
            if handle is not None:
                handle.cancel()
        for watcher in self._watchers.values():
            watcher.end()
        for call in self.listening:
            call.cancel()

    def _go_on_with(self, state: LowWatermarkCoordinator) -> None:
        """Raise CancelledError if the state was dropped since the message began."""
        if self.failed.done() or self.closing or self._coordinator is not state:
            raise asyncio.CancelledError

    def _take(self, statement: Statement | TaskForgotten | LowmarkError, watcher: Watcher | None) -> Answer:
        if isinstance(statement, LowmarkError):
            return refusal(statement)
        try:
            effects = self._coordinator.handle(statement, self._now_us())
        except REFUSALS as refused:
            return refusal(refused)
        task = statement.task
        if isinstance(statement, ReplyLowWatermark):
            question = self._questions.get(task)
            if question is not None and statement.timestamp >= question.timestamp:
                del self._questions[task]  # the question is answered already
        if isinstance(statement, TaskDeregistered):
            self._forget_if_away(task)
        elif watcher is not None and self._watcher_of.get(task) is not watcher:
            self._forget(task)
            self._watcher_of[task] = watcher
            watcher.tasks.add(task)
        self._unwritten += effects
        return Taken()

    def _with_news(self, statement: Any, answer: Answer, watcher: Watcher | None) -> Answer:
        if not isinstance(answer, Taken):
            return answer
        task = statement.task
        low_us = self._coordinator.low_watermark_us(task.job_id, task.source_id)
        return Taken(low_us, None if watcher is None else watcher.caps.get(task))

    def _forget_if_away(self, task: TaskId) -> None:
        """Forget who hears the news of a task, unless another run of the task lives: its application hears them."""
        if not self._coordinator.lives(task):
            self._forget(task)

    def _forget(self, task: TaskId) -> None:
        watcher = self._watcher_of.pop(task, None)
        if watcher is not None:
            watcher.tasks.discard(task)
            watcher.caps.pop(task, None)

    def _follow_up(self) -> None:
        """After every change: tell the effects, or write the journal first."""
        self._plan()
        if self._writing is not None and not self._writing.done():
            return  # `_write` goes on until the journal has this change, too, and then tells the effects
        if self._durable == self._coordinator.epoch:
            unwritten, self._unwritten = self._unwritten, []
            self._release(unwritten)
        elif not self.failed.done():
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        """Write until the journal has every change; changes during a write share the next."""
        with self._sound():
            while self._durable < self._coordinator.epoch:
                await self._prepare()
                began = self._loop.time()
                epoch, rows = self._coordinator.epoch, self._coordinator.take_changes()
                share = _ROWS_SHARE * (self._loop.time() - began)
                size = sum(len(state) for state in rows.values() if state is not None)
                self._rows_at = began + max(share, size / _JOURNAL_BYTES)
                unwritten, self._unwritten = self._unwritten, []
                await self._keep(rows)
                self._durable = epoch
                self._release(unwritten)
            unwritten, self._unwritten = self._unwritten, []
            self._release(unwritten)

    async def _keep(self, rows: ChangedRows) -> None:
        """Write, with retries for a while if there is no room; meanwhile nobody hears any news."""
        since = self._loop.time()
        try:
            while True:
                try:
                    return await self._loop.run_in_executor(self._writer, self._journal.write, rows)
                except JournalRefused as refused:
                    passed = self._loop.time() - since
                    if self.closing or passed >= patience_seconds(refused):
                        raise
                    if self._no_room is None:
                        log.warning("%s Until then no low watermark rises; it is tried again.", refused)
                    self._no_room = refused
                self._drop_replaced()
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._no_room = None

    def _drop_replaced(self) -> None:
        """Keep the newest unwritten effect of each kind and task, so that the number of tasks bounds them."""
        if len(self._unwritten) > self._most_unwritten:
            newest: dict[Any, CoordinatorEffect] = {}
            for effect in self._unwritten:
                key = type(effect), effect.task
                newest.pop(key, None)
                newest[key] = effect
            self._unwritten = list(newest.values())
            self._most_unwritten = max(_UNWRITTEN, 2 * len(self._unwritten))

    async def _prepare(self) -> None:
        """Wait until the next write may begin, with little left to encode for it then."""
        while not self.closing and (left := self._rows_at - self._loop.time()) > 0:
            more = self._coordinator.encode(_ENCODED_AT_ONCE)
            await asyncio.sleep(0 if more else min(left, _STEP_SECONDS))
        for _ in range(_LAST_TURNS):
            if not self._coordinator.encode(_ENCODED_AT_ONCE):
                return
            await asyncio.sleep(0)

    def _release(self, effects: list[CoordinatorEffect]) -> None:
        """Tell the effects that the journal covers, and answer the calls that wait for it."""
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
        """Tell some effects, let the loop do other work, tell the rest, and then begin to ask."""
        with self._sound():
            self._telling = None
            for _ in range(min(len(self._untold), _TOLD_AT_ONCE)):
                self._tell(self._untold.popleft())
            if self._untold:
                self._telling = self._loop.call_soon(self._tell_some)
            elif self._questions:
                steps = max(int(self._calm_seconds / _STEP_SECONDS), 1)
                self._at_once = max(self._at_once, -(-len(self._questions) // steps), _LEAST_AT_ONCE)
                if self._asking is None:
                    self._ask()

    def _tell(self, effect: CoordinatorEffect) -> None:
        task = effect.task
        match effect:
            case TaskLost():
                log.warning("task %s was lost: %s", task, effect.why)
                self._forget_if_away(task)
            case TaskReturnedLate():
                late = "task %s came in %s below the low watermark, so its rows in between are late: %s"
                log.warning(late, task, rough_duration_us(effect.behind_us), effect.why)
            case RetrieveLowWatermark():
                self._questions[task] = effect
            case _ if (watcher := self._watcher_of.get(task)) is not None:  # otherwise it is told when it speaks
                if isinstance(effect, CapAnnounced):
                    watcher.caps[task] = effect
                watcher.tell(effect)

    def _ask(self) -> None:
        """Ask some questions now, and the others a little later."""
        with self._sound():
            self._asking = None
            for task in list(islice(self._questions, self._at_once)):
                question, watcher = self._questions.pop(task), self._watcher_of.get(task)
                if watcher is not None:
                    watcher.tell(question)
            if self._questions:
                self._asking = self._loop.call_later(_STEP_SECONDS, self._ask)
            else:
                self._at_once = 0

    def _plan(self) -> None:
        now_us = self._now_us()
        wake_at_us = self._coordinator.wake_at_us(now_us)
        at = None if wake_at_us is None else self._loop.time() + max(wake_at_us - now_us, _SHORTEST_US) / 1e6
        if self._timer is not None:
            if at is not None and self._timer.when() <= at:
                return  # otherwise frequent messages would put it off for ever
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self.tick)


# -- gRPC


async def serve(
    coordinator: CoordinatorServer, door: Door, *, stop: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Serve applications until told to stop, and close the coordinator.

    Args:
        ready: called with the address once calls are answered.

    Raises:
        AddressRefused, SocketsRefused, TokenRefused: see `Door`.
        JournalRefused: the journal could no longer be written.
        CoordinatorFailed: an error ended the coordinator; the journal has everything that applications were told.
    """
    token = door.token()
    server = grpc.aio.server(
        interceptors=() if token is None else (TokenCheck(token),),
        options=[*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", room_for_connections())],
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
        try:
            await coordinator.close()
        finally:
            await server.stop(_GRACE_SECONDS)
    if coordinator.failed.done():
        coordinator.failed.result()


def _handlers(coordinator: CoordinatorServer) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    # Handlers take and give bytes, because gRPC's own message for bytes that it cannot decode names no field.
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
