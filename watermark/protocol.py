"""The messages of FLINK-4576, and the listener that hears of each new low watermark.

In a round the coordinator sends ``RetrieveLowWatermark``, every task answers ``ReplyLowWatermark``, and when
the minimum rose all tasks hear ``NotifyNewLowWatermark``. A task without splits emits the notified low watermark, so
that windows downstream go on and a split may still be given to it later. Times are microseconds since the
epoch, UTC.

Beside the rounds a task comes and goes: ``TaskRegistered``, ``LeaseRenewed``, ``TaskDeregistered``. Every registration
brings a new run token, and messages with an older token are refused, so that no message of a replaced process is
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
    """The id of a task, unique even if two jobs both read a stream "orders".

    >>> print(TaskId("billing", "orders", "0"))
    billing/orders/0
    """

    job_id: str  # the application, or the query
    source_id: str  # the stream's name
    task_id: str  # unique within the job and the stream

    def __str__(self) -> str:
        return f"{self.job_id}/{self.source_id}/{self.task_id}"

    @property
    def parts(self) -> tuple[str, str, str]:
        """A fast sort key, and the form in JSON."""
        return self.job_id, self.source_id, self.task_id


@dataclass(frozen=True, slots=True)
class _RoundMessage:
    """A message of a round, to or from a task."""

    job_id: str
    source_id: str
    task_id: str
    timestamp: int

    @property
    def task(self) -> TaskId:
        return TaskId(self.job_id, self.source_id, self.task_id)


@dataclass(frozen=True, slots=True)
class RetrieveLowWatermark(_RoundMessage):
    """The coordinator asks a task for its low watermark."""


class LeftOut(Enum):
    """Why a task asks to be left out of the minimum.

    WITHOUT_SPLITS: the task has no split yet. IDLE: the splits of the task are quiet and caught up; with a patience the
        task still counts until others delivered for that long. FINISHED: all splits of the task have ended and no other
        splits come, so others do not wait for the task when it is away, either.
    """

    WITHOUT_SPLITS = "without splits"
    IDLE = "idle"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class ReplyLowWatermark(_RoundMessage):
    """A task's answer, or a report without a question.

    The low watermarks of one run of a task do not go back. For other fields the newest reply counts: largest
    ``sequence``, then largest ``timestamp``. So replies may come twice, late, or in any order.

    Attributes:
        timestamp: that of the answered question; without a question, the time of the report.
        current_low_watermark: None while a split of the task is silent so far, which holds the other tasks, and while
            the task has no split (see ``left_out``).
        left_out: why it shall be left out until it replies otherwise; None: it takes part.
        next_wanted_us: its watermark after its next row, for alignment; None if unknown.
        sequence: grows with every reply of one run; a task that only answers questions may leave it 0.
        silent_us: the time since its last row, 0 or more; None: it has rows now. If it is left out, None: the time is
            unknown.
        patience_us: how long others must deliver after its last rows before it is left out as IDLE, more than 0; None:
            it is left out at once.
        complete_until_us: the sink of its query has everything up to this event time; None: not known. The coordinator
            only keeps the time, for `lowmark wait --job`.
    """

    current_low_watermark: int | None
    token: str = ""
    left_out: LeftOut | None = None
    next_wanted_us: int | None = None
    sequence: int = 0
    silent_us: int | None = None
    patience_us: int | None = None
    complete_until_us: int | None = None


@dataclass(frozen=True, slots=True)
class NotifyNewLowWatermark(_RoundMessage):
    """The low watermark of the stream rose.

    Attributes:
        timestamp: when, microseconds since the epoch.
        new_low_watermark: microseconds of event time; larger than in every earlier message.
    """

    new_low_watermark: int


# -- tasks come and go


@dataclass(frozen=True, slots=True)
class TaskRegistered:
    """A task begins a run. Until its first report it counts with its restored low watermark, or holds.

    While fewer than the expected tasks live, the source waits for tasks that are away, and before that number of tasks
    has come nothing is published.
    """

    task: TaskId
    token: str = ""  # new for every run of the task; the same token again repeats the registration
    low_watermark_us: int | None = None  # restored from its checkpoint; None: it begins without one, and holds
    alignment: AlignmentParams | None = None
    throttled: bool = True  # whether it obeys the group's cap
    expected_tasks: int = 1  # how many tasks its source has in all
    # How long others wait for it when it is away, 0 or more; None: until it is back. Time without a waiting task, or
    # without the coordinator, does not count.
    away_limit_us: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """A task is alive. Every reply renews the lease too.

    If the task has not heard the newest low watermark, the coordinator notifies it again, because notifications may be
    lost.
    """

    task: TaskId
    token: str = ""
    heard_low_us: int | None = None


@dataclass(frozen=True, slots=True)
class TaskDeregistered:
    """The run of a task is over, because its query was stopped. A new registration begins a new run."""

    task: TaskId
    token: str = ""


@dataclass(frozen=True, slots=True)
class TaskForgotten:
    """An operator declares an absent task gone for good, which ends the wait of the other tasks.

    If the task comes back all the same, it takes its place.
    """

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLost:
    """A task was given up because its lease ran out. The task is away, and has to register again."""

    task: TaskId
    why: str  # completes the sentence "task x was lost: <why>"


@dataclass(frozen=True, slots=True)
class TaskReturnedLate:
    """A new task, or a task that was left out, came in below the low watermark, so that its rows may be late."""

    task: TaskId
    behind_us: int  # how far below the low watermark, more than 0
    why: str  # completes "task x came in below the low watermark: <why>"


# -- the listener


class LowWatermarkListener(Protocol):
    """A listener that wants every new low watermark."""

    def on_new_low_watermark(self, message: NotifyNewLowWatermark) -> None:
        """Take a rise. Must not block."""
