"""Low watermarks for streams of many splits: the theory, in pure Python.

Importing this package imports no Spark, reads no clock and starts nothing. ``StreamCoordinator`` is the
whole of it for one stream: events in, effects out. ``LowWatermarkCoordinator`` is the same for many streams and
applications. ``WatermarkStrategy`` says how a watermark is made.
"""

from .aggregate import WatermarkAggregator
from .alignment import AlignmentGroup, GroupStatus, MemberStatus
from .cap import Cap, CapAnnounced, CapKind
from .clock import Clock, PausableClock, VirtualClock
from .coalescer import Advance, Coalescer
from .coordinator import EMPTY_SOURCE_KEPT_US, CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator
from .coordinator_status import CoordinatorStatus, SourceStatus, TaskStatus
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
    UnknownSplit,
    UnknownTask,
)
from .events import (
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
from .generator import BoundedOutOfOrderness, NoWatermarks, WatermarkGenerator, WatermarkOutput
from .history import HOUR_US, Held, History, Rise
from .idleness import Idleness
from .membership import RETIRED_RUNS, Membership
from .message_check import MOST_NAME
from .protocol import (
    LeaseRenewed,
    LeftOut,
    LowWatermarkCooperatingTask,
    LowWatermarkListener,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskFinished,
    TaskId,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from .rounds import Answer, SourceRounds
from .snapshot import StreamSnapshot
from .split_alignment import PAUSE_SAMPLES, PauseOrResume, SplitAlignment, WatermarkSampler
from .state import AllIdle, IdleClock, SplitId, SplitState
from .status import HolderSpell, SplitStatus, StreamStatus, explain, format_time_us, to_json
from .strategy import FUTURE_GUARD_US, AlignmentParams, TimestampAssigner, WatermarkStrategy
from .stream import ALL_IDLE_STEP_US, KNOWN_EMPTY_GRACE_US, StreamCoordinator
from .tracker import SplitMark, SplitTracker

__all__ = [
    "ALL_IDLE_STEP_US",
    "EMPTY_SOURCE_KEPT_US",
    "FUTURE_GUARD_US",
    "HOUR_US",
    "KNOWN_EMPTY_GRACE_US",
    "MOST_NAME",
    "PAUSE_SAMPLES",
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
    "Clock",
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
    "PausableClock",
    "PauseOrResume",
    "Polled",
    "ReplyLowWatermark",
    "RetrieveLowWatermark",
    "Rise",
    "SourceRounds",
    "SourceStatus",
    "SplitAlignment",
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
    "TaskFinished",
    "TaskId",
    "TaskLost",
    "TaskRegistered",
    "TaskReturnedLate",
    "TaskStatus",
    "Tick",
    "TimestampAssigner",
    "UnknownSplit",
    "UnknownTask",
    "VirtualClock",
    "WatermarkAggregator",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkSampler",
    "WatermarkStrategy",
    "duration_us",
    "explain",
    "format_duration_us",
    "format_time_us",
    "to_json",
]
