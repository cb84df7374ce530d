"""The wire between applications and a coordinator of their own (`lowmark serve`): messages and codecs of both ends.

    Say       what the tasks of one application have to say, as a stream: each message has its answer, in order, and
              each statement is taken in or refused by itself
    Watch     what its tasks are to hear, as a stream: questions, new low watermarks, caps
    Status    what a person wants to know

Bytes are msgpack, typed and validated by msgspec; a field that is not known is an error. A message that is malformed
as a whole ends in a gRPC status; what a single statement is refused for stands in its answer, under the name of the
same status, with the sentence of the error.

`Say` takes many statements, because the tasks of one application are asked at the same moment: a round of 1,000
tasks is a handful of messages, not 1,000 at once. They go through one call that stays open, because a call of its own
would cost a message twice as much; who has but one message may make a plain call.
"""

from __future__ import annotations

from typing import Annotated

import grpc
import msgspec
from lowmark.integration.process.method import Method, encode
from lowmark.watermark import (
    AlignmentParams,
    Cap,
    CapAnnounced,
    CoordinatorStatus,
    DisagreeingGroup,
    LeaseRenewed,
    LeftOut,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    StaleRun,
    TaskDeregistered,
    TaskId,
    TaskRegistered,
    TooManyTasks,
    UnknownTask,
)
from lowmark.watermark.tasks.cap import CapKind
from lowmark.watermark.tasks.message_check import MOST_NAME

__all__ = [
    "MOST_BYTES",
    "SAY",
    "SERVICE",
    "STATUS",
    "WATCH",
    "Alignment",
    "Answer",
    "Asked",
    "Capped",
    "Deregister",
    "Finished",
    "LowWatermarkRose",
    "Message",
    "Refused",
    "Register",
    "Renew",
    "Reply",
    "Say",
    "SayAnswer",
    "Statement",
    "StatusAnswer",
    "StatusQuestion",
    "Taken",
    "Task",
    "Told",
    "Watch",
    "encode",
    "refusal",
    "to_event",
    "to_message",
]

SERVICE = "lowmark.v1.Authority"
"""The coordinator's name on the wire, as version 0.1.0 gave it; there the driver's service is called Coordinator."""

MOST_BYTES = 1 << 20
"""The largest message a coordinator reads, bytes: 1 MiB. A sender splits what is more."""

# What a member is told goes on into its own arithmetic.
Micros = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See `lowmark.watermark.TaskId`."""

    job_id: str
    source_id: str
    task_id: str

    @classmethod
    def of(cls, task: TaskId) -> Task:
        """The task as it goes over the wire."""
        return cls(task.job_id, task.source_id, task.task_id)

    def id(self) -> TaskId:
        """The task as the coordinator knows it."""
        return TaskId(self.job_id, self.source_id, self.task_id)


class Alignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See `lowmark.watermark.AlignmentParams`."""

    group: str
    max_drift_us: int
    update_interval_us: int


# -- what a task says


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A run of a task begins; see `lowmark.watermark.TaskRegistered`."""

    task: Task
    run: str
    low_watermark_us: int | None = None
    alignment: Alignment | None = None
    throttled: bool = True
    priority: int = 0  # not read: version 0.1.0 sent it, and the lease, and nobody set them
    lease_us: int | None = None
    expected_tasks: int = 1


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=True):
    """How far a task is; see `lowmark.watermark.ReplyLowWatermark`.

    What is as usual is not sent, so that a coordinator of before, which knows fewer fields, takes what it knows.
    """

    task: Task
    run: str
    timestamp: int
    current_low_watermark: int | None
    left_out: LeftOut | None = None
    next_wanted_us: int | None = None
    sequence: int = 0
    silent_us: int | None = None
    patience_us: int | None = None


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A task is alive, and the application of this message speaks for it; see `lowmark.watermark.LeaseRenewed`."""

    task: Task
    run: str
    heard_low_us: int | None = None


class Finished(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """What version 0.1.0 could say; it means `Deregister`."""

    task: Task
    run: str


class Deregister(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """See `lowmark.watermark.TaskDeregistered`."""

    task: Task
    run: str


Statement = Register | Reply | Renew | Finished | Deregister


class Say(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the tasks of one application have to say.

    Attributes:
        application: the token of the application, the same as in its `Watch`: there its tasks hear what is for them.
        statements: counted one after the other.
    """

    application: Token
    statements: list[Statement]


class Taken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A statement was counted, and what it changed will survive a crash of the coordinator.

    Attributes:
        low_watermark_us: the published low watermark of the task's source, microseconds of event time; None: no news.
        cap: how far the task may read; None: no news.
    """

    low_watermark_us: Micros | None = None
    cap: Capped | None = None


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A statement was refused, and changed nothing.

    Attributes:
        status: the name of a gRPC status: INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION or RESOURCE_EXHAUSTED.
        error: the error's name, such as ``StaleRun``.
        text: its sentence.
    """

    status: str
    error: str
    text: str


Answer = Taken | Refused


class SayAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer to every statement, in their order."""

    answers: list[Taken | Refused]


# -- what a task hears


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whoever watches hears what is for the tasks of one application that speak from now on.

    Attributes:
        application: its token. A second watch with the same token ends the first.
    """

    application: Token


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """See `lowmark.watermark.RetrieveLowWatermark`."""

    task: Task
    timestamp: Micros


class LowWatermarkRose(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Lowered"):
    """See `lowmark.watermark.NotifyNewLowWatermark`."""

    task: Task
    timestamp: Micros
    new_low_watermark: Micros


class Capped(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """See `lowmark.watermark.CapAnnounced`.

    Attributes:
        group, task, epoch: as there.
        kind: hold, up_to or free.
        us: the number, if the kind is up_to.
    """

    group: str
    task: Task
    epoch: int
    kind: CapKind
    us: Micros | None = None

    def __post_init__(self) -> None:
        Cap(self.kind, self.us)  # refused here, where a message is read, rather than in the loop of a member


Message = Asked | LowWatermarkRose | Capped


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has come up since the last of these. Who takes them slowly gets of each kind and task only the newest.

    Attributes:
        messages: the first `Told` of a watch has none: it says that the watch has begun.
        lease_us: how long a task may be silent that asked for no other lease; in the first `Told`.
    """

    messages: list[Asked | LowWatermarkRose | Capped]
    lease_us: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


# -- status


class StatusQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks for the status.

    Attributes:
        limit: how many tasks of each source and members of each group, those that need attention first; None: all.
    """

    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class StatusAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `StatusQuestion`.

    Attributes:
        version: of lowmark.
        pid: the coordinator's process.
        applications: how many watch.
        journal: where it keeps its state, or None.
        coordinator: its sources, tasks and groups.
    """

    version: str
    pid: int
    applications: int
    journal: str | None
    coordinator: CoordinatorStatus


# -- codecs

SAY = Method(SERVICE, "Say", Say, SayAnswer)
WATCH = Method(SERVICE, "Watch", Watch, Told)
STATUS = Method(SERVICE, "Status", StatusQuestion, StatusAnswer)


# -- between the wire and the core

Event = TaskRegistered | ReplyLowWatermark | LeaseRenewed | TaskDeregistered


def to_event(said: Statement) -> Event:
    """What the coordinator takes in.

    Raises:
        InvalidStrategy: alignment parameters out of range.
    """
    task = said.task.id()
    match said:
        case Reply():
            return ReplyLowWatermark(
                task.job_id,
                task.source_id,
                task.task_id,
                said.timestamp,
                said.current_low_watermark,
                said.run,
                said.left_out,
                said.next_wanted_us,
                said.sequence,
                said.silent_us,
                said.patience_us,
            )
        case Renew():
            return LeaseRenewed(task, said.run, said.heard_low_us)
        case Register():
            asked = said.alignment
            return TaskRegistered(
                task,
                said.run,
                said.low_watermark_us,
                None if asked is None else AlignmentParams(asked.group, asked.max_drift_us, asked.update_interval_us),
                said.throttled,
                said.expected_tasks,
            )
        case Deregister() | Finished():
            return TaskDeregistered(task, said.run)


def to_message(effect: RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced) -> Message:
    """What goes to the task's application.

    >>> to_message(RetrieveLowWatermark("job", "orders", "0", 7))
    Asked(task=Task(job_id='job', source_id='orders', task_id='0'), timestamp=7)
    """
    if isinstance(effect, CapAnnounced):
        return Capped(effect.group, Task.of(effect.task), effect.epoch, effect.cap.kind, effect.cap.us)
    task = Task(effect.job_id, effect.source_id, effect.task_id)
    if isinstance(effect, RetrieveLowWatermark):
        return Asked(task, effect.timestamp)
    return LowWatermarkRose(task, effect.timestamp, effect.new_low_watermark)


def refusal(error: Exception) -> Refused:
    """An error of the coordinator as it goes back to the sender.

    >>> refusal(StaleRun("job/orders/0", "run-1", "is over")).status
    'FAILED_PRECONDITION'
    """
    return Refused(_status(error).name, type(error).__name__, str(error))


def _status(error: Exception) -> grpc.StatusCode:
    if isinstance(error, UnknownTask):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, StaleRun | DisagreeingGroup):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, TooManyTasks):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.INVALID_ARGUMENT
