"""Low watermarks for streams of many splits: the theory, in pure Python.

Importing this package imports no Spark, reads no clock and starts nothing. It exports the names that users, listeners
and connectors need: ``WatermarkStrategy`` says how a watermark is made, ``LowWatermarkCoordinator`` combines the low
watermarks of many tasks, ``StreamStatus`` is the status of a stream. Other names are imported from their modules:
``splits.stream`` has the coordinator of one stream (events in, effects out), ``splits.events`` its events and effects.
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
    TaskNotAway,
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
    TaskForgotten,
    TaskId,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from .splits.events import Tick
from .splits.status import (
    Cause,
    HolderSpell,
    SplitStatus,
    StreamStatus,
    WrongClock,
    explain,
    format_time_us,
    to_json,
)
from .state import AllIdle, SplitId, SplitState
from .strategy import AlignmentParams, TimestampAssigner, WatermarkStrategy
from .tasks.cap import Cap, CapAnnounced
from .tasks.coordinator import LowWatermarkCoordinator
from .tasks.status import CoordinatorStatus

__all__ = [
    "AlignmentParams",
    "AllIdle",
    "BoundedOutOfOrderness",
    "Cap",
    "CapAnnounced",
    "Cause",
    "CoordinatorStatus",
    "CorruptSnapshot",
    "DisagreeingGroup",
    "DuplicateSplit",
    "FinishedSplit",
    "HolderSpell",
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
    "NoWatermarks",
    "NotifyNewLowWatermark",
    "ReplyLowWatermark",
    "RetrieveLowWatermark",
    "SplitId",
    "SplitState",
    "SplitStatus",
    "StaleRun",
    "StreamStatus",
    "TaskDeregistered",
    "TaskForgotten",
    "TaskId",
    "TaskLost",
    "TaskNotAway",
    "TaskRegistered",
    "TaskReturnedLate",
    "Tick",
    "TimestampAssigner",
    "TooManyTasks",
    "UnknownSplit",
    "UnknownTask",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WrongClock",
    "duration_us",
    "explain",
    "format_duration_us",
    "format_time_us",
    "to_json",
]
