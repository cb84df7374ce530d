"""The messages of FLINK-4576, and the two roles that speak them.

In a round the coordinator sends ``RetrieveLowWatermark``, every task answers ``ReplyLowWatermark``, and when
the aggregate rose all hear ``NotifyNewLowWatermark``. A task without splits emits what it was notified of, so
that windows downstream go on and a split may still be given to it later. Times are microseconds since the
epoch, UTC.

Around the rounds a task comes and goes: ``TaskRegistered``, ``LeaseRenewed``, ``TaskDeregistered``. Every registration
brings a new run token, and what carries an older one is refused, so that no message of a process that was replaced is
ever counted.

Source: FLINK-4576 "Low Watermark Service", which Flink itself never built; run tokens are the sequencers of
MillWheel (section 7.2), leases are what FLINK-40505 lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from .strategy import AlignmentParams


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Who a task is: unique, where a name alone is not (two jobs may both read a stream "orders").

    >>> print(TaskId("billing", "orders", "0"))
    billing/orders/0

    Attributes:
        job_id: the application, or the query.
        source_id: the stream's name.
        task_id: the task, unique within these.
    """

    job_id: str
    source_id: str
    task_id: str

    def __str__(self) -> str:
        return f"{self.job_id}/{self.source_id}/{self.task_id}"

    @property
    def parts(self) -> tuple[str, str, str]:
        """Its fields: a sort key that is fast, and what JSON takes."""
        return self.job_id, self.source_id, self.task_id


@dataclass(frozen=True, slots=True)
class RetrieveLowWatermark:
    """The coordinator asks a task for its low watermark.

    Attributes:
        job_id: the application, or the query.
        source_id: the stream's name.
        task_id: the task asked.
        timestamp: when it was asked, microseconds since the epoch.
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int

    @property
    def task(self) -> TaskId:
        """The task asked."""
        return TaskId(self.job_id, self.source_id, self.task_id)


class LeftOut(Enum):
    """Why a task asks to be left out of the minimum.

    WITHOUT_SPLITS: it has none yet. IDLE: it has some, and they are quiet and caught up; if it is patient, it is waited
        for until others delivered meanwhile. FINISHED: all its splits have ended, and no others come, so nobody waits
        for the task when it is away, either.
    """

    WITHOUT_SPLITS = "without splits"
    IDLE = "idle"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class ReplyLowWatermark:
    """A task's answer, or what it says unasked.

    The values of one run of a task do not go back. The rest goes by the newest reply: largest ``sequence``, then
    largest ``timestamp``. So replies may come twice, late, or in any order.

    Attributes:
        job_id, source_id, task_id: who answers.
        timestamp: of the round that is answered: the question's. Unasked: when it is said.
        current_low_watermark: microseconds of event time; None while the task knows none (a split of it is
            silent so far, which holds; or it has no split, see ``left_out``).
        run: the token it registered with.
        left_out: why it is to be left out until it replies otherwise; None: it takes part.
        next_wanted_us: the watermark it would have after its next row, for alignment; None if it does not know.
        sequence: grows with every reply of one run; a task that only answers questions may leave it 0.
        silent_us: how long ago it had rows, microseconds, 0 or more; None: now, or nobody knows if it is left out.
        patience_us: how long others are to deliver since then before it is left out as IDLE, microseconds, more than
            0; None: it is left out at once.
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int
    current_low_watermark: int | None
    run: str = ""
    left_out: LeftOut | None = None
    next_wanted_us: int | None = None
    sequence: int = 0
    silent_us: int | None = None
    patience_us: int | None = None

    @property
    def task(self) -> TaskId:
        """Who answers."""
        return TaskId(self.job_id, self.source_id, self.task_id)


@dataclass(frozen=True, slots=True)
class NotifyNewLowWatermark:
    """The low watermark of the stream rose.

    Attributes:
        new_low_watermark: microseconds of event time; larger in every message than in the one before.
    """

    job_id: str
    source_id: str
    task_id: str
    timestamp: int
    new_low_watermark: int

    @property
    def task(self) -> TaskId:
        """The task that is told."""
        return TaskId(self.job_id, self.source_id, self.task_id)


# -- tasks come and go


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A task begins a run. Until it says more it counts with the low watermark it restored, or holds.

    Attributes:
        task: who.
        run: a new token for every run of the task; the same token again is the same registration again.
        low_watermark_us: what it restored from its checkpoint; None: it begins without one, and holds.
        alignment: the group it takes part in, or None.
        throttled: whether it obeys the group's cap.
        expected_tasks: how many tasks its source has in all. While fewer live, those that are away are waited for, and
            nothing is published before so many have come.
        away_limit_us: how long others wait for it when it is away, microseconds, 0 or more; None: until it is back.
            Time in which nobody waits, or the coordinator does not run, is not counted.
    """

    task: TaskId
    run: str = ""
    low_watermark_us: int | None = None
    alignment: AlignmentParams | None = None
    throttled: bool = True
    expected_tasks: int = 1
    away_limit_us: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """A task is alive. Every reply says so too.

    Attributes:
        task: who.
        run: the token it registered with.
        heard_low_us: the newest low watermark it was notified of: it is told again if there is a newer one, for
            notifications may be lost.
    """

    task: TaskId
    run: str = ""
    heard_low_us: int | None = None


@dataclass(frozen=True, slots=True)
class TaskDeregistered:
    """This run of the task is over: its query was stopped. Registering again begins a new one."""

    task: TaskId
    run: str = ""


@dataclass(frozen=True, slots=True)
class TaskForgotten:
    """A person says of a task that is away: it is gone for good, nobody is to wait for it.

    Attributes:
        task: who. It may come back all the same, and then takes its place.
    """

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLost:
    """A task was given up: its lease ran out. It is away, and has to register again.

    Attributes:
        task: who.
        why: completes the sentence "task x was lost: <why>".
    """

    task: TaskId
    why: str


@dataclass(frozen=True, slots=True)
class TaskReturnedLate:
    """A task that was left out, or is new, came in below the low watermark: its rows below that are late.

    Attributes:
        task: who.
        behind_us: how far below, event time, more than 0.
        why: why the low watermark went past it, completing "task x came in below the low watermark: <why>".
    """

    task: TaskId
    behind_us: int
    why: str


# -- the roles


class LowWatermarkCooperatingTask(Protocol):
    """A task that can say how far it is."""

    def retrieve_low_watermark(self, message: RetrieveLowWatermark) -> ReplyLowWatermark:
        """Answer at once, from memory."""
        ...


class LowWatermarkListener(Protocol):
    """Anyone who wants every new low watermark."""

    def on_new_low_watermark(self, message: NotifyNewLowWatermark) -> None:
        """Hear of a rise. Must not block."""
        ...
