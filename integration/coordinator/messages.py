"""The wire between applications and a separate coordinator (`lowmark serve`): its messages, and their codec.

    Say       a stream of statements by the tasks of one application: each message has its answer, in order, and each
              statement is counted or refused separately
    Watch     a stream of news to its tasks: questions, new low watermarks, caps
    Status    the status for people

Statements and news are the dataclasses of the protocol; `CODEC` is the table of their wire format. A message that is
malformed as a whole ends in a gRPC status. The answer to a refused statement has the name and the text of the error.

`Say` takes many statements, because the tasks of one application are asked at the same moment: a round of 1,000 tasks
needs a few messages instead of 1,000. The messages go through one open call, because a call per message would double
the cost of a message; a client with a single message may make a plain call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from lowmark.integration.process.codec import Codec, Method, Row
from lowmark.watermark import (
    DisagreeingGroup,
    InvalidMessage,
    LowmarkError,
    NotifyNewLowWatermark,
    StaleRun,
    TaskId,
    TaskNotAway,
    TooManyTasks,
    UnknownTask,
)
from lowmark.watermark.names import MOST_NAME
from lowmark.watermark.protocol import (
    LeaseRenewed,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskRegistered,
)
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.status import CoordinatorStatus

SERVICE = "lowmark.v1.Coordinator"

MOST_BYTES = 1 << 20
"""The largest message that a coordinator reads, bytes: 1 MiB. A sender splits larger messages."""

# The bounds protect the arithmetic of a client, which computes with received numbers. The coordinator checks each
# statement.
Micros = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]

# -- statements of tasks

Statement = TaskRegistered | ReplyLowWatermark | LeaseRenewed | TaskDeregistered


@dataclass(frozen=True, slots=True)
class Say:
    """The statements of one application's tasks."""

    application: Token  # its token, the same as in its `Watch`
    statements: list[Statement | TaskForgotten | LowmarkError]  # in order; an impossible value is read as its error


@dataclass(frozen=True, slots=True)
class Taken:
    """A statement was counted, and its changes will survive a crash of the coordinator."""

    low_watermark_us: Micros | None = None  # published, of the task's source; None: no news
    cap: CapAnnounced | None = None  # None: no news


@dataclass(frozen=True, slots=True)
class Refused:
    """A statement was refused, and changed nothing."""

    error: str  # the name of the error, such as StaleRun
    text: str


Answer = Taken | Refused


@dataclass(frozen=True, slots=True)
class SayAnswer:
    """One answer per statement, in order."""

    answers: list[Answer]


# -- news to tasks

News = RetrieveLowWatermark | NotifyNewLowWatermark | CapAnnounced


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the news to those tasks of one application that make a statement from now on.

    A second watch with the same token of an application ends the first.
    """

    application: Token


@dataclass(frozen=True, slots=True)
class WatchNews:
    """The news since the last `WatchNews`; a slow watcher gets only the newest of each kind and task.

    The first one has the lease: how long a task may be silent.
    """

    messages: list[News]  # empty in the first `WatchNews` of a watch, which confirms the watch
    lease_us: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


# -- status


class StatusQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks for the status."""

    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None  # of each source and group, by need; None: all


class BegunAgain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error may have left the state half changed, so the coordinator continued from its journal."""

    times: int
    at_us: int
    why: str  # type and text of the newest error; the log has its stack


class StatusAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer to `StatusQuestion`."""

    version: str
    pid: int
    applications: int
    journal: str
    coordinator: CoordinatorStatus
    begun_again: BegunAgain | None = None


# -- the table

CODEC = Codec(
    Row(TaskId),
    Row(AlignmentParams),
    # what tasks say
    Row(TaskRegistered, "Register"),
    Row(ReplyLowWatermark, "Reply"),
    Row(LeaseRenewed, "Renew"),
    Row(TaskDeregistered, "Deregister"),
    Row(TaskForgotten, "Forget"),
    # what they hear
    Row(RetrieveLowWatermark, "Asked", whole=Micros),
    Row(NotifyNewLowWatermark, "NewLowWatermark", whole=Micros),
    Row(Cap, whole=Micros),
    Row(CapAnnounced, "Capped", whole=Micros),
    # what is answered
    Row(Taken, "Taken"),
    Row(Refused, "Refused"),
    # what goes as a message
    Row(Say),
    Row(SayAnswer),
    Row(WatchNews),
)
encode = CODEC.encode

SAY = Method(SERVICE, "Say", Say, SayAnswer, CODEC)
WATCH = Method(SERVICE, "Watch", Watch, WatchNews, CODEC)
STATUS = Method(SERVICE, "Status", StatusQuestion, StatusAnswer, CODEC)

REFUSALS = (InvalidMessage, UnknownTask, StaleRun, DisagreeingGroup, TaskNotAway, TooManyTasks)
"""The errors by which a coordinator refuses a statement, before any change. Another error is a fault of its own."""


def refusal(error: LowmarkError) -> Refused:
    """Make the answer to a statement that the coordinator refuses, or that has an impossible value."""
    return Refused(type(error).__name__, str(error))
