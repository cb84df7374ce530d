"""Low watermarks for streams of many splits: the theory, in pure Python.

Importing this package imports no Spark, reads no clock and starts nothing. ``StreamCoordinator`` is the
whole of it for one stream: events in, effects out. ``LowWatermarkCoordinator`` is the same for many streams and
applications. ``WatermarkStrategy`` says how a watermark is made.
"""

from .duration import duration_us, format_duration_us
from .errors import (
    CorruptSnapshot,
    DisagreeingGroup,
    DuplicateSplit,
    FinishedSplit,
    InvalidDuration,
    InvalidMessage,
    InvalidReshard,
    InvalidSplitId,
    InvalidStrategy,
    InvalidWatermark,
    LowmarkError,
    StaleRun,
    TooManyTasks,
    UnknownSplit,
    UnknownTask,
)
from .generator import BoundedOutOfOrderness, NoWatermarks, WatermarkGenerator, WatermarkOutput
from .protocol import (
    LeaseRenewed,
    LeftOut,
    LowWatermarkCooperatingTask,
    LowWatermarkListener,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskId,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from .splits.coalescer import Advance, Coalescer
from .splits.events import (
    BatchCounts,
    BatchPlanned,
    BatchReported,
    Effect,
    Event,
    Polled,
    SplitColumn,
    SplitReturnedLate,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    SplitStateChanged,
    Tick,
)
from .splits.history import HOUR_US, Held, History, Rise
from .splits.idleness import Idleness
from .splits.snapshot import StreamSnapshot
from .splits.status import HolderSpell, SplitStatus, StreamStatus, explain, format_time_us, to_json
from .splits.stream import ALL_IDLE_STEP_US, KNOWN_EMPTY_GRACE_US, StreamCoordinator
from .splits.tracker import SplitMark, SplitTracker
from .state import AllIdle, IdleClock, SplitId, SplitState
from .strategy import FUTURE_GUARD_US, AlignmentParams, TimestampAssigner, WatermarkStrategy
from .tasks.alignment import AlignmentGroup, GroupStatus, MemberStatus
from .tasks.cap import Cap, CapAnnounced, CapKind
from .tasks.coordinator import EMPTY_SOURCE_KEPT_US, CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator
from .tasks.membership import RETIRED_RUNS, Membership
from .tasks.message_check import MOST_LEASE_US, MOST_NAME, MOST_TASKS
from .tasks.rounds import Answer, SourceRounds
from .tasks.status import CoordinatorStatus, SourceStatus, TaskStatus

__all__ = [
    "ALL_IDLE_STEP_US",
    "EMPTY_SOURCE_KEPT_US",
    "FUTURE_GUARD_US",
    "HOUR_US",
    "KNOWN_EMPTY_GRACE_US",
    "MOST_LEASE_US",
    "MOST_NAME",
    "MOST_TASKS",
    "RETIRED_RUNS",
    "Advance",
    "AlignmentGroup",
    "AlignmentParams",
    "AllIdle",
    "Answer",
    "BatchCounts",
    "BatchPlanned",
    "BatchReported",
    "BoundedOutOfOrderness",
    "Cap",
    "CapAnnounced",
    "CapKind",
    "Coalescer",
    "CoordinatorEffect",
    "CoordinatorEvent",
    "CoordinatorStatus",
    "CorruptSnapshot",
    "DisagreeingGroup",
    "DuplicateSplit",
    "Effect",
    "Event",
    "FinishedSplit",
    "GroupStatus",
    "Held",
    "History",
    "HolderSpell",
    "IdleClock",
    "Idleness",
    "InvalidDuration",
    "InvalidMessage",
    "InvalidReshard",
    "InvalidSplitId",
    "InvalidStrategy",
    "InvalidWatermark",
    "LeaseRenewed",
    "LeftOut",
    "LowWatermarkCooperatingTask",
    "LowWatermarkCoordinator",
    "LowWatermarkListener",
    "LowmarkError",
    "MemberStatus",
    "Membership",
    "NoWatermarks",
    "NotifyNewLowWatermark",
    "Polled",
    "ReplyLowWatermark",
    "RetrieveLowWatermark",
    "Rise",
    "SourceRounds",
    "SourceStatus",
    "SplitColumn",
    "SplitId",
    "SplitMark",
    "SplitReturnedLate",
    "SplitState",
    "SplitStateChanged",
    "SplitStatus",
    "SplitTracker",
    "SplitsDiscovered",
    "SplitsFinished",
    "SplitsPaused",
    "SplitsRemoved",
    "SplitsResharded",
    "SplitsResumed",
    "StaleRun",
    "StreamCoordinator",
    "StreamSnapshot",
    "StreamStatus",
    "TaskDeregistered",
    "TaskId",
    "TaskLost",
    "TaskRegistered",
    "TaskReturnedLate",
    "TaskStatus",
    "Tick",
    "TimestampAssigner",
    "TooManyTasks",
    "UnknownSplit",
    "UnknownTask",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "duration_us",
    "explain",
    "format_duration_us",
    "format_time_us",
    "to_json",
]
