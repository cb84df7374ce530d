"""An application's end of `lowmark serve`: reports low watermarks of tasks, and hears those of all tasks.

One thread owns everything (`client_state.py` has the rules); calls of the application only put work into its queue, so
they never block. Without a connection an application keeps its low watermarks and caps, and shows the reason in
`connected`, `since_us` and `why`.

An error in the thread may leave its state half changed. Then the thread drops the state and the connection, and makes
both anew from the application's knowledge of each task. After too many errors the link ends: every task is given up
with the error, because a query that shares a low watermark cannot go on without its link.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import grpc
from lowmark.integration.errors import CoordinatorUnreachable, MalformedMessage
from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.process.codec import Method
from lowmark.sources.coordinator.failover import Failover, FailoverPolicy
from lowmark.sources.worker import Worker, WorkerDied, described
from lowmark.watermark import LowmarkError, TaskId, UnknownTask
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.message_check import check_registration, check_reply

from .access import Caller, cause_of
from .client_state import GivenUp, NewLow
from .holdings import Holdings
from .messages import SAY, WATCH, Say, SayAnswer, Watch, WatchNews, encode

log = logging.getLogger("lowmark")


class CoordinatorClient:
    """One application's link to a shared coordinator: its tasks take part through it.

    Args:
        on_low: called with a task and the new low watermark of its source, microseconds; the low watermark never falls.
        on_given_up: called with the token of a run that cannot go on, and with the reason: the coordinator refuses the
            run for good (another process replaced the run, or its group has other parameters), or errors have ended the
            link. Another run of the task may have begun meanwhile.
        deadline_seconds: how long a call may take before the connection counts as lost.

    One thread calls the callbacks in turn, so a callback must not block.

    Raises:
        AddressRefused, TokenRefused: a file of the caller cannot be used.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        on_low: Callable[[TaskId, int], None] | None = None,
        on_given_up: Callable[[str, LowmarkError], None] | None = None,
        deadline_seconds: float = 5.0,
        now_us: Callable[[], int] | None = None,
    ) -> None:
        self.address, self._caller = caller.address, caller
        caller.metadata()
        caller.channel().close()
        self._on_low, self._on_given_up = on_low, on_given_up
        self._deadline_seconds, self._no_answer = deadline_seconds, f"no answer within {deadline_seconds:g} seconds"
        self._now_us = SteadyClock().now_us if now_us is None else now_us
        self._application = uuid.uuid4().hex
        self._holdings = Holdings(self._application, Random())
        self._state = self._holdings.state()
        self._failover = Failover(FailoverPolicy())
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._link: _Link | None = None
        self._answer_by_us: int | None = None  # deadline of the connection or the message under way
        self._closing = threading.Event()
        self._finishing = threading.Event()  # `close` has queued the last work; set by the thread
        self._quiet = threading.Event()  # all of it was sent and answered
        self._tried = threading.Event()
        self._died_us: int | None = None
        self._worker = Worker("lowmark-client", self._run, died=self._die)
        self._worker.start()

    # -- for the application

    def register(self, registration: TaskRegistered) -> None:
        """Begin a run of a task. Raises InvalidMessage."""
        check_registration(registration)
        self._holdings.register(registration)
        self._hand_over(lambda: self._state.register(registration))
        if self._worker.failed is not None:
            self._give_up(registration.task)

    def report(self, reply: ReplyLowWatermark, heard_us: int | None = None) -> None:
        """Report the low watermark of a task, and when it last had rows. Raises UnknownTask and InvalidMessage.

        The message that brings it has the newest token, its own time and number, and the silence.
        """
        self._check_known(reply.task)
        check_reply(reply)
        self._holdings.report(reply, heard_us)
        self._hand_over(lambda: self._state.report(reply, heard_us))
        if self._worker.failed is not None:
            self._give_up(reply.task)

    def deregister(self, task: TaskId) -> None:
        """End the run of a task, because its query was stopped. Raises UnknownTask."""
        self._check_known(task)
        self._holdings.end(task)
        self._hand_over(lambda: self._state.end(task))

    def reach(self) -> None:
        """Wait until the first attempt to connect has ended.

        Raises:
            CoordinatorUnreachable: the attempt failed; more attempts follow until `close`.
            WorkerDied: errors have ended the link.
        """
        self._tried.wait(self._deadline_seconds + 1)
        self._worker.check("reach the coordinator")
        if not self.connected:
            raise CoordinatorUnreachable(self.address, "create the service", self.why)

    def close(self, *, seconds: float = 2.0) -> None:
        """Send pending messages for at most `seconds`, and hang up.

        Leases keep tasks that did not deregister, because the same application may come back for them.
        """
        if not self._closing.is_set():
            if self.connected:
                self._hand_over(self._finishing.set)
                self._quiet.wait(seconds)
            self._closing.set()
            self._hand_over(lambda: None)
        self._worker.join(10)

    def __enter__(self) -> CoordinatorClient:  # noqa: PYI034  # Self is not in Python 3.10
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_known(self, task: TaskId) -> None:
        if self._holdings.token(task) is None:
            raise UnknownTask(str(task), "this application", len(self._holdings.tasks))

    def _hand_over(self, work: Callable[[], None]) -> None:
        if not self._worker.ended:  # otherwise the queue would never be emptied
            self._work.put(work)

    # -- the link's own state

    @property
    def connected(self) -> bool:
        """Whether a coordinator listens and no answer is overdue; if not, low watermarks and caps stay."""
        return self._state.connected and not self._worker.ended and not self._overdue(self._now_us())

    @property
    def since_us(self) -> int | None:
        """When `connected` last changed, microseconds since the epoch; None before the first attempt ended."""
        return self._state.since_us if self._died_us is None else self._died_us

    @property
    def why(self) -> str:
        """Why there is no connection; empty if there is one."""
        if (error := self._worker.failed) is not None:
            return f"the thread of this link was ended by an error: {described(error)}"
        if self._worker.ended:
            return "this link was closed"
        return self._no_answer if self._state.connected and not self.connected else self._state.why

    @property
    def failed(self) -> BaseException | None:
        """The error that has ended the link for good; None without one."""
        return self._worker.failed

    def low_us(self, task: TaskId) -> int | None:
        """The newest low watermark that the task's source has heard, microseconds; None without one."""
        return self._state.low_us(task)

    def cap(self, task: TaskId) -> Cap | None:
        """The newest cap that the task has heard; None without one."""
        return self._state.cap(task)

    # -- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._work_on()
            except Exception as error:
                if self._failover.failed(self._now_us()) is None:
                    raise
                self._begin_again(error)
        if self._link is not None:
            self._link.close()

    def _work_on(self) -> None:
        try:
            work = self._work.get(timeout=self._wait_seconds())
            while True:  # all queued work, because it may fit into one message
                work()
                work = self._work.get_nowait()
        except queue.Empty:
            pass
        self._step(self._now_us())

    def _begin_again(self, error: Exception) -> None:
        why = f"an error has ended the connection: {described(error)}"
        log.error(
            "the link to the coordinator at %s begins again with what this application said last, because an error may "
            "have left its state half changed: %s",
            self.address,
            described(error),
            exc_info=error,
        )
        state = self._holdings.state()
        state.detached(why, self._now_us())
        link, self._link, self._answer_by_us, self._state = self._link, None, None, state
        self._tried.set()
        if link is not None:
            link.close()

    def _die(self, _error: BaseException) -> None:
        """Give all tasks up, because the link cannot speak for them any more. Runs on the thread, at its end."""
        self._died_us = self._now_us()
        self._tried.set()
        self._quiet.set()
        for task in self._holdings.tasks:
            self._give_up(task)
        if self._link is not None:
            self._link.close()

    def _give_up(self, task: TaskId) -> None:
        token = self._holdings.token(task)
        try:
            self._worker.check(f"share the low watermark of task {task}")
        except WorkerDied as died:
            if token is not None:  # otherwise the run has ended meanwhile
                self._call_back(GivenUp(task, token, died))

    def _wait_seconds(self) -> float | None:
        if self._link is None:
            moments = [self._state.retry_at_us or 0]
        else:
            moments = [us for us in (self._state.wake_at_us, self._answer_by_us) if us is not None]
        return max(0, min(moments) - self._now_us()) / 1e6 if moments else None

    def _step(self, now_us: int) -> None:
        state = self._state
        if self._link is None:
            if state.retry_at_us is None or now_us >= state.retry_at_us:
                self._connect(now_us)
        elif self._overdue(now_us):
            self._hang_up(self._link, self._no_answer)
        for heard in state.heard():  # before sending: the application must know a new token first
            if isinstance(heard, NewLow | GivenUp):
                self._call_back(heard)
            self._holdings.hear(heard)  # last, so that after an error a new state hears it again
        say = state.take(now_us)
        if say is not None and self._link is not None:
            self._answer_by_us = now_us + int(self._deadline_seconds * 1e6)
            self._link.say(say)
        if self._finishing.is_set() and state.quiet:
            self._quiet.set()

    def _overdue(self, now_us: int) -> bool:
        answer_by_us = self._answer_by_us  # copied, because other threads read it, too
        return answer_by_us is not None and now_us >= answer_by_us

    def _call_back(self, heard: NewLow | GivenUp) -> None:
        try:
            match heard:
                case NewLow() if self._on_low is not None:
                    self._on_low(heard.task, heard.low_us)
                case GivenUp():
                    log.error("%s", heard.error)
                    if self._on_given_up is not None:
                        self._on_given_up(heard.token, heard.error)
        except Exception:  # an error of the application; the connection goes on
            log.exception("a callback of the application raised; the connection goes on")

    def _connect(self, now_us: int) -> None:
        self._answer_by_us = now_us + int(self._deadline_seconds * 1e6)
        try:
            self._link = _Link(self._caller, self._application, self._post)
        except LowmarkError as refused:  # a file was replaced by an unusable one
            self._detach(str(refused))

    def _post(self, link: _Link, news: WatchNews | SayAnswer | str) -> None:
        self._work.put(partial(self._take, link, news))

    def _take(self, link: _Link, news: WatchNews | SayAnswer | str) -> None:
        if link is not self._link:
            return  # an older connection
        now_us = self._now_us()
        match news:
            case WatchNews():
                if not self._state.connected:
                    self._state.attached(news.lease_us, now_us)
                    self._answer_by_us = None
                    self._tried.set()
                    log.info("connected to the coordinator at %s", self.address)
                self._state.told(news.messages)
            case SayAnswer():
                self._answer_by_us = None
                try:
                    self._state.answered(news.answers, now_us)
                except MalformedMessage as malformed:  # raised, it would end this thread and hold all tasks
                    self._hang_up(link, str(malformed))
            case str():
                self._hang_up(link, news)

    def _hang_up(self, link: _Link, why: str) -> None:
        self._link = self._answer_by_us = None
        self._detach(why)
        link.close()

    def _detach(self, why: str) -> None:
        if self._state.connected:
            log.warning("lost the coordinator at %s (%s); low watermarks are held meanwhile", self.address, why)
        elif self._state.since_us is None and not self._closing.is_set():
            log.warning(
                "no coordinator answers at %s (%s); until one does, low watermarks are held and aligned streams wait. "
                "It is asked again. Hint: start it with `lowmark serve`, or check the address.",
                self.address,
                why,
            )
        self._state.detached(why, self._now_us())
        self._tried.set()


class _Link:
    """One connection: two long calls, one to hear and one to say. A lost connection is never used again.

    A separate call for every message would take the coordinator and the application twice the time.
    """

    def __init__(
        self, caller: Caller, application: str, post: Callable[[_Link, WatchNews | SayAnswer | str], None]
    ) -> None:
        self._post = post
        self._unsaid: queue.SimpleQueue[Say | None] = queue.SimpleQueue()
        metadata = caller.metadata()
        self._channel = caller.channel()
        watch = self._channel.unary_stream(WATCH.path, request_serializer=encode, response_deserializer=bytes)
        say = self._channel.stream_stream(SAY.path, request_serializer=encode, response_deserializer=bytes)
        try:
            news = watch(Watch(application), metadata=metadata)
            answers = say(iter(self._unsaid.get, None), metadata=metadata)
            for name, method, call in (("watch", WATCH, news), ("say", SAY, answers)):
                Worker(f"lowmark-client-{name}", partial(self._read, method, call), died=self._end).start()
        except BaseException:  # the system has no thread left; nobody else can hang up
            self.close()
            raise

    def say(self, said: Say) -> None:
        self._unsaid.put(said)

    def close(self) -> None:
        self._unsaid.put(None)  # wakes gRPC's thread, which waits for the next message
        self._channel.close()

    def _end(self, error: BaseException) -> None:
        self._post(self, f"an error has ended a thread of the connection: {described(error)}")

    def _read(self, method: Method[Any, Any], call: Any) -> None:
        try:
            for data in call:
                self._post(self, method.decode_answer(data))
            self._post(self, "the coordinator ended the call")
        except (grpc.RpcError, ValueError) as failed:  # the second is of `decode_answer`, and of a closed channel
            self._post(self, cause_of(failed))
