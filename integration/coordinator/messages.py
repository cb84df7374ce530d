"""The wire between applications and a coordinator of their own (`lowmark serve`): its messages, and their codec.

    Say       what the tasks of one application have to say, as a stream: each message has its answer, in order, and
              each statement is taken in or refused by itself
    Watch     what its tasks are to hear, as a stream: questions, new low watermarks, caps
    Status    what a person wants to know

What tasks say and hear are the dataclasses of the protocol; `CODEC` is the table of how they stand on the wire. A
message that is malformed as a whole ends in a gRPC status; what a single statement is refused for stands in its answer,
under the name of the same status, with the sentence of the error.

`Say` takes many statements, because the tasks of one application are asked at the same moment: a round of 1,000
tasks is a handful of messages, not 1,000 at once. They go through one call that stays open, because a call of its own
would cost a message twice as much; a client that has but one message may make a plain call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import grpc
import msgspec
from lowmark.integration.process.codec import Codec, Row
from lowmark.integration.process.method import Method
from lowmark.watermark import (
    AlignmentParams,
    Cap,
    CapAnnounced,
    CoordinatorStatus,
    DisagreeingGroup,
    LeaseRenewed,
    LowmarkError,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    StaleRun,
    TaskDeregistered,
    TaskForgotten,
    TaskId,
    TaskNotAway,
    TaskRegistered,
    TooManyTasks,
    UnknownTask,
)
from lowmark.watermark.tasks.message_check import MOST_NAME

__all__ = [
    "CODEC",
    "MOST_BYTES",
    "SAY",
    "SERVICE",
    "STATUS",
    "WATCH",
    "Answer",
    "News",
    "Refused",
    "Say",
    "SayAnswer",
    "Statement",
    "StatusAnswer",
    "StatusQuestion",
    "Taken",
    "Told",
    "Watch",
    "encode",
    "refusal",
]

SERVICE = "lowmark.v1.Coordinator"
"""The coordinator's name on the wire."""

MOST_BYTES = 1 << 20
"""The largest message a coordinator reads, bytes: 1 MiB. A sender splits what is more."""

# What a member is told goes on into its own arithmetic. What it says is checked by the coordinator, each for itself.
Micros = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]

# -- what tasks say

Statement = TaskRegistered | ReplyLowWatermark | LeaseRenewed | TaskDeregistered


@dataclass(frozen=True, slots=True)
class Say:
    """What the tasks of one application have to say.

    Attributes:
        application: the token of the application, the same as in its `Watch`: there its tasks hear what is for them.
        statements: counted one after the other. One that was well-formed and cannot be is read as its error. That a
            task is to be forgotten says a person, of a task that is nobody's at the moment.
    """

    application: Token
    statements: list[Statement | TaskForgotten | LowmarkError]


@dataclass(frozen=True, slots=True)
class Taken:
    """A statement was counted, and what it changed will survive a crash of the coordinator.

    Attributes:
        low_watermark_us: the published low watermark of the task's source, microseconds of event time; None: no news.
        cap: how far the task may read; None: no news.
    """

    low_watermark_us: Micros | None = None
    cap: CapAnnounced | None = None


@dataclass(frozen=True, slots=True)
class Refused:
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


@dataclass(frozen=True, slots=True)
class SayAnswer:
    """One answer to every statement, in their order."""

    answers: list[Taken | Refused]


# -- what tasks hear

News = RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A watcher hears what is for the tasks of one application that speak from now on.

    Attributes:
        application: its token. A second watch with the same token ends the first.
    """

    application: Token


@dataclass(frozen=True, slots=True)
class Told:
    """What has come up since the last of these. A slow watcher gets of each kind and task only the newest.

    Attributes:
        messages: the first `Told` of a watch has none: it says that the watch has begun.
        lease_us: how long a task may be silent; in the first `Told`.
    """

    messages: list[News]
    lease_us: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


# -- status


class StatusQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks for the status.

    Attributes:
        limit: how many tasks of each source and members of each group, those that need attention first; None: all.
    """

    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class BegunAgain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error may have left the state half changed, so the coordinator went on from its journal.

    Attributes:
        times: how often that was necessary since the process began.
        at_us: when it was the last time, microseconds since the epoch.
        why: type and text of the error then; the log has its stack.
    """

    times: int
    at_us: int
    why: str


class StatusAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer to `StatusQuestion`.

    Attributes:
        version: of lowmark.
        pid: the coordinator's process.
        applications: how many watch.
        journal: where it keeps its state, or None.
        coordinator: its sources, tasks and groups.
        begun_again: the newest error after which it went on from its journal; None: there was none.
    """

    version: str
    pid: int
    applications: int
    journal: str | None
    coordinator: CoordinatorStatus
    begun_again: BegunAgain | None = None


# -- the table

_TASK = {"task": TaskId}
CODEC = Codec(
    Row(TaskId),
    Row(AlignmentParams),
    # what tasks say
    Row(TaskRegistered, "Register"),
    Row(ReplyLowWatermark, "Reply", together=_TASK),
    Row(LeaseRenewed, "Renew"),
    Row(TaskDeregistered, "Deregister"),
    Row(TaskForgotten, "Forget"),
    # what they hear
    Row(RetrieveLowWatermark, "Asked", together=_TASK, whole=Micros),
    Row(NotifyNewLowWatermark, "NewLowWatermark", together=_TASK, whole=Micros),
    Row(CapAnnounced, "Capped", apart={"cap": Cap}, whole=Micros),
    # what is answered
    Row(Taken, "Taken"),
    Row(Refused, "Refused"),
    # what goes as a message
    Row(Say),
    Row(SayAnswer),
    Row(Told),
)
"""How each class stands on the wire."""

encode = CODEC.encode
"""A message as bytes."""

SAY = Method(SERVICE, "Say", Say, SayAnswer, CODEC)
WATCH = Method(SERVICE, "Watch", Watch, Told, CODEC)
STATUS = Method(SERVICE, "Status", StatusQuestion, StatusAnswer, CODEC)


def refusal(error: Exception) -> Refused:
    """An error of the coordinator as it goes back to the sender.

    >>> refusal(StaleRun("job/orders/0", "run-1", "is over")).status
    'FAILED_PRECONDITION'
    """
    return Refused(_status(error).name, type(error).__name__, str(error))


def _status(error: Exception) -> grpc.StatusCode:
    if isinstance(error, UnknownTask):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, StaleRun | DisagreeingGroup | TaskNotAway):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, TooManyTasks):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.INVALID_ARGUMENT
