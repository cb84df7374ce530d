"""The messages between an application and its coordinator, without a thread, a socket or a clock.

Rule 1: one message is under way at a time; later statements go with the next message. Only the newest report of a task
        counts, so the number of tasks bounds what is kept while there is no connection.
Rule 2: every statement may be sent twice. Statements under way when a connection was lost are sent again on the next.
Rule 3: on a new connection a registered task renews its lease. A task that the coordinator no longer knows registers
        again, with a new token; first with its own token if its registration was not answered, because the registration
        may still arrive, late, and would replace a run with another token. If the coordinator knows another run of the
        task, the task registers again with its own token, because its registration may not have arrived, or the journal
        may be older. The coordinator refuses the token of a replaced run, and such a task is given up, so that two
        never fight over a task.
Rule 4: the low watermark that a task hears never goes back, whatever a coordinator sends.
Rule 5: a state can be made anew from the application's knowledge (`holdings.py`): its registrations, under the tokens
        from `TokenRenewed`, and its newest reports. All of them may have been sent before, which rule 2 allows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from lowmark.integration.errors import MalformedMessage, RefusedByCoordinator
from lowmark.watermark import LowmarkError, NotifyNewLowWatermark, TaskId
from lowmark.watermark.moment import none_first
from lowmark.watermark.protocol import (
    LeaseRenewed,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskRegistered,
)
from lowmark.watermark.tasks.cap import Cap, CapAnnounced

from .messages import MOST_BYTES, Answer, News, Refused, Say, Statement, Taken, encode

# Time between the starts of two messages: a single report is sent at once, and a hundred tasks that report one after
# the other take a few messages.
_GAP_US = 5_000
_MOST_STATEMENTS = 500  # a coordinator takes a whole message before others have their turn
_ROOM_BYTES = MOST_BYTES // 2
_FIRST_WAIT_US = 100_000  # between two attempts to connect, which doubles up to the longest wait
_LONGEST_WAIT_US = 5_000_000  # less if the lease is short


@dataclass(frozen=True, slots=True)
class NewLow:
    """The low watermark of the task's source rose to ``low_us``, microseconds of event time."""

    task: TaskId
    low_us: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The coordinator refuses a run of the task for good, so asking again would not help."""

    task: TaskId
    token: str  # under which the application registered the run; a newer run of the task is not given up
    error: LowmarkError


@dataclass(frozen=True, slots=True)
class TokenRenewed:
    """The coordinator has forgotten the task, so the task registers again, with ``token``."""

    task: TaskId
    before: str
    token: str


@dataclass(frozen=True, slots=True)
class Left:
    """The run of the task is over, and all of it was sent."""

    task: TaskId
    token: str


Heard = NewLow | GivenUp | TokenRenewed | Left


class _Phase(Enum):
    NEW = "not registered yet"
    UNCERTAIN = "a registration was sent, and its arrival is unknown"
    NOT_ARRIVED = "a registration was sent, and did not arrive yet, or its run is over"
    KNOWN = "registered"
    RENEWING = "registered before the connection was lost"


_ON_A_NEW_CONNECTION = {_Phase.KNOWN: _Phase.RENEWING, _Phase.NOT_ARRIVED: _Phase.UNCERTAIN}


@dataclass(slots=True, eq=False)
class _Mine:
    registration: TaskRegistered  # what the application said
    token: str  # under which the coordinator knows the run, or will know it (`TokenRenewed`)
    phase: _Phase = _Phase.NEW
    reported: ReplyLowWatermark | None = None  # the newest; the message that brings it adds token, time and number
    heard_us: int | None = None  # when the task last had rows
    unsaid: bool = False  # whether the newest report was not sent yet
    asked_us: int | None = None  # timestamp of the open question
    ending: bool = False
    spoke_us: int = 0
    low_us: int | None = None
    cap: Cap | None = None
    cap_version: int = 0


class ClientState:
    """The tasks of one application. Takes events; gives statements for the coordinator and news for the application.

    Args:
        application: the token of the application.
        sequences: numbers of its replies, larger than those of its earlier states.
    """

    def __init__(self, application: str, random: Random, sequences: Iterator[int]) -> None:
        self._application, self._random, self._sequences = application, random, sequences
        self._tasks: dict[TaskId, _Mine] = {}
        self._dirty: dict[TaskId, None] = {}  # those that may have something to send, in order
        self._under_way: list[Statement] | None = None
        self._next_us: int | None = None  # earliest time of the next message
        self._heard: list[Heard] = []
        self._renewal_us: int | None = None  # between two renewals, a third of the lease; None: not known yet
        self._renew_at_us: int | None = None
        self._longest_wait_us = _FIRST_WAIT_US
        self.connected = False  # whether a coordinator listens
        self.since_us: int | None = None  # when `connected` last changed; None: no attempt has ended yet
        self.why = "not connected yet"
        self.retry_at_us: int | None = None  # time of the next attempt; None: at once

    # -- events from the application

    def register(self, registration: TaskRegistered) -> None:
        """Begin a run of a task in place of the run before."""
        self._add(_Mine(registration, registration.token, low_us=self.low_us(registration.task)))

    def resume(self, registration: TaskRegistered, token: str, low_us: int | None) -> None:
        """Continue a run of an earlier state under its newest token; the task has heard ``low_us``, a low watermark."""
        self._add(_Mine(registration, token, _Phase.UNCERTAIN, low_us=low_us))

    def report(self, reply: ReplyLowWatermark, heard_us: int | None) -> None:
        """Set a task's answer from now on, and when it last had rows."""
        mine = self._tasks.get(reply.task)
        if mine is not None and not mine.ending:
            mine.reported, mine.heard_us, mine.unsaid = reply, heard_us, True
            self._dirty[reply.task] = None

    def end(self, task: TaskId) -> None:
        """End a task's run, after its last report is sent."""
        mine = self._tasks.get(task)
        if mine is not None:
            mine.ending = True
            self._dirty[task] = None

    # -- events from the connection

    def attached(self, lease_us: int | None, now_us: int) -> None:
        self.connected, self.since_us, self.why = True, now_us, ""
        self._longest_wait_us = _FIRST_WAIT_US
        self._renewal_us = None if lease_us is None else max(lease_us // 3, 1)
        for task, mine in tuple(self._tasks.items()):
            if mine.phase is _Phase.NEW and mine.ending:  # another process may run the task by now
                self._leave(mine)
                continue
            mine.phase = _ON_A_NEW_CONNECTION.get(mine.phase, mine.phase)
            mine.cap_version = 0  # the coordinator may have lost its journal, and have an earlier clock
            self._dirty[task] = None
        self._plan_renewal(now_us)

    def detached(self, why: str, now_us: int) -> None:
        """Take the loss of a connection, or a failed attempt. Statements under way count as not sent."""
        if self.connected or self.since_us is None:
            self.since_us = now_us
        self.connected, self.why, self._renew_at_us = False, why, None
        # Random, so that applications do not come in step.
        self.retry_at_us = now_us + int(self._longest_wait_us * self._random.uniform(0.5, 1))
        # The wait is within a lease, because a coordinator that begins again gives each task one lease to come back.
        most_us = _LONGEST_WAIT_US if self._renewal_us is None else max(self._renewal_us, _FIRST_WAIT_US)
        self._longest_wait_us = min(2 * self._longest_wait_us, most_us, _LONGEST_WAIT_US)
        for statement in self._under_way or ():
            mine = self._of(statement)
            if mine is not None:
                if isinstance(statement, TaskRegistered):
                    mine.phase = _Phase.UNCERTAIN
                mine.unsaid |= isinstance(statement, ReplyLowWatermark)
                self._dirty[statement.task] = None
        self._under_way = None

    def told(self, messages: Iterable[News]) -> None:
        for message in messages:
            task = message.task
            mine = self._tasks.get(task)
            if mine is None:
                continue
            match message:
                case RetrieveLowWatermark():
                    mine.asked_us = max(mine.asked_us, message.timestamp, key=none_first)
                    self._dirty[task] = None
                case NotifyNewLowWatermark():
                    self._hear_low(task, mine, message.new_low_watermark)
                case CapAnnounced():
                    self._hear_cap(mine, message)

    def answered(self, answers: Sequence[Answer], now_us: int) -> None:
        """Take the answers to the statements under way. Raises MalformedMessage if there are more or fewer."""
        statements = self._under_way or []
        if len(answers) != len(statements):
            raise MalformedMessage("SayAnswer", f"got {len(answers)} answers to {len(statements)} statements")
        self._under_way = None
        for statement, answer in zip(statements, answers, strict=True):
            mine = self._of(statement)
            if mine is None:
                continue  # another run of the task has begun meanwhile
            if isinstance(answer, Refused):
                self._refused(statement, mine, answer)
                continue
            mine.spoke_us = now_us
            self._taken(statement, mine, answer)

    # -- results

    def take(self, now_us: int) -> Say | None:
        """Return the next message, under way until it is answered or the connection is lost; None: none now."""
        if not self.connected or self._under_way is not None or self._waits(now_us):
            return None
        if self._renew_at_us is not None and now_us >= self._renew_at_us:
            self._plan_renewal(now_us)
        statements: list[Statement] = []
        size = 0
        while self._dirty and len(statements) < _MOST_STATEMENTS and size < _ROOM_BYTES:
            task = next(iter(self._dirty))
            del self._dirty[task]
            new = self._statements(self._tasks[task], now_us)
            size += sum(len(encode(statement)) for statement in new)
            statements += new
        if not statements:
            return None
        self._under_way, self._next_us = statements, now_us + _GAP_US
        return Say(self._application, [*statements])

    def heard(self) -> list[Heard]:
        heard, self._heard = self._heard, []
        return heard

    @property
    def wake_at_us(self) -> int | None:
        """When to call `take` without an event; None while only an event can change anything."""
        if self._under_way is not None or not self.connected:
            return None
        return self._next_us if self._dirty and self._next_us is not None else self._renew_at_us

    @property
    def quiet(self) -> bool:
        """Whether every statement was sent and answered."""
        return self._under_way is None and not self._dirty

    def low_us(self, task: TaskId) -> int | None:
        mine = self._tasks.get(task)
        return None if mine is None else mine.low_us

    def cap(self, task: TaskId) -> Cap | None:
        mine = self._tasks.get(task)
        return None if mine is None else mine.cap

    # -- how

    def _add(self, mine: _Mine) -> None:
        self._tasks[mine.registration.task] = mine
        self._dirty[mine.registration.task] = None

    def _leave(self, mine: _Mine) -> None:
        task = mine.registration.task
        del self._tasks[task]
        self._dirty.pop(task, None)
        self._heard.append(Left(task, mine.token))

    def _waits(self, now_us: int) -> bool:
        """Whether statements for the next message are still gathered. A clock that goes back adds no wait."""
        return self._next_us is not None and self._next_us - _GAP_US <= now_us < self._next_us

    def _of(self, statement: Statement) -> _Mine | None:
        mine = self._tasks.get(statement.task)
        return mine if mine is not None and mine.token == statement.token else None

    def _statements(self, mine: _Mine, now_us: int) -> list[Statement]:
        task, token = mine.registration.task, mine.token
        if mine.phase in (_Phase.NEW, _Phase.NOT_ARRIVED):
            if mine.ending and mine.reported is None:
                self._leave(mine)
                return []
            return [self._registration(mine)]
        if mine.phase is _Phase.UNCERTAIN:
            # The task may be registered already. It renews, because registering an expired run again would be stale.
            return [TaskDeregistered(task, token) if mine.ending else LeaseRenewed(task, token)]
        said: list[Statement] = []
        if mine.unsaid or mine.asked_us is not None:
            said.append(
                replace(
                    mine.reported or ReplyLowWatermark(*task.parts, 0, None),
                    token=token,
                    timestamp=now_us if mine.asked_us is None else mine.asked_us,
                    sequence=next(self._sequences),
                    silent_us=None if mine.heard_us is None else max(0, now_us - mine.heard_us),
                )
            )
            mine.unsaid, mine.asked_us = False, None
        if mine.ending:
            said.append(TaskDeregistered(task, token))
        if mine.phase is _Phase.RENEWING or not said:
            said.insert(0, LeaseRenewed(task, token, mine.low_us))
        return said

    def _registration(self, mine: _Mine) -> TaskRegistered:
        """The application's registration, with the newest token and the newest low watermark."""
        low_us = None if mine.reported is None else mine.reported.current_low_watermark
        if low_us is None:
            low_us = mine.registration.low_watermark_us
        return replace(mine.registration, token=mine.token, low_watermark_us=low_us)

    def _taken(self, statement: Statement, mine: _Mine, answer: Taken) -> None:
        task = statement.task
        match statement:
            case TaskRegistered() | LeaseRenewed():
                mine.phase = _Phase.KNOWN
                if mine.unsaid or mine.ending:
                    self._dirty[task] = None
            case TaskDeregistered():
                self._leave(mine)
                return
        if answer.low_watermark_us is not None:
            self._hear_low(task, mine, answer.low_watermark_us)
        if answer.cap is not None:
            self._hear_cap(mine, answer.cap)

    def _refused(self, statement: Statement, mine: _Mine, refused: Refused) -> None:
        task = statement.task
        unknown, stale = refused.error == "UnknownTask", refused.error == "StaleRun"
        replaced = stale and mine.phase is not _Phase.KNOWN and not isinstance(statement, TaskRegistered)
        over = stale and mine.phase is _Phase.NOT_ARRIVED
        if (unknown or replaced or over) and not mine.ending:
            late = unknown and mine.phase is _Phase.UNCERTAIN
            if not late and not replaced:  # the lease ran out, or the coordinator lost its journal
                fresh = uuid.uuid4().hex
                self._heard.append(TokenRenewed(task, mine.token, fresh))
                mine.token = fresh
            mine.phase = _Phase.NOT_ARRIVED if late else _Phase.NEW
            mine.unsaid = mine.reported is not None
            self._dirty[task] = None
            return
        if not (mine.ending and (unknown or stale)):  # such a run has ended already, which is no fault
            error = RefusedByCoordinator(str(task), refused.error, refused.text)
            self._heard.append(GivenUp(task, mine.registration.token, error))
        self._leave(mine)

    def _hear_low(self, task: TaskId, mine: _Mine, low_us: int) -> None:
        if mine.low_us is None or low_us > mine.low_us:
            mine.low_us = low_us
            self._heard.append(NewLow(task, low_us))

    def _hear_cap(self, mine: _Mine, capped: CapAnnounced) -> None:
        if capped.version > mine.cap_version:
            mine.cap_version, mine.cap = capped.version, capped.cap

    def _plan_renewal(self, now_us: int) -> None:
        """Plan renewals three times per lease, for tasks that sent nothing since the renewal before."""
        period_us = self._renewal_us
        if period_us is None:
            return
        for task, mine in self._tasks.items():
            if mine.phase is _Phase.KNOWN and mine.spoke_us <= now_us - period_us:
                self._dirty[task] = None
        self._renew_at_us = now_us + period_us
