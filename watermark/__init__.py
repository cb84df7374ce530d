"""Low watermarks for streams of many splits: the theory, in pure Python.

Importing this package imports no Spark, reads no clock and starts nothing. ``StreamCoordinator`` is the
whole of it for one stream: events in, effects out. ``WatermarkStrategy`` says how its watermark is made.
"""

from .aggregate import WatermarkAggregator
from .clock import Clock, PausableClock, VirtualClock
from .coalescer import Advance, Coalescer
from .duration import duration_us, format_duration_us
from .errors import (
    CorruptSnapshot,
    DuplicateSplit,
    FinishedSplit,
    InvalidDuration,
    InvalidSplitId,
    InvalidStrategy,
    InvalidWatermark,
    LowmarkError,
    UnknownSplit,
)
from .events import (
    BatchCounts,
    BatchReported,
    Effect,
    Event,
    Polled,
    SplitReturnedLate,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    SplitsRemoved,
    SplitsResumed,
    SplitStateChanged,
    Tick,
)
from .generator import BoundedOutOfOrderness, NoWatermarks, WatermarkGenerator, WatermarkOutput
from .idleness import Idleness
from .protocol import (
    LowWatermarkCooperatingTask,
    LowWatermarkListener,
    NotifyNewLowWatermark,
    ReplyLowWatermark,
    RetrieveLowWatermark,
)
from .snapshot import StreamSnapshot
from .state import AllIdle, SplitId, SplitState
from .status import SplitStatus, StreamStatus, explain, format_time_us, to_json
from .strategy import FUTURE_GUARD_US, AlignmentParams, TimestampAssigner, WatermarkStrategy
from .stream import ALL_IDLE_STEP_US, KNOWN_EMPTY_GRACE_US, StreamCoordinator
from .tracker import SplitMark, SplitTracker

__all__ = [
    "ALL_IDLE_STEP_US",
    "FUTURE_GUARD_US",
    "KNOWN_EMPTY_GRACE_US",
    "Advance",
    "AlignmentParams",
    "AllIdle",
    "BatchCounts",
    "BatchReported",
    "BoundedOutOfOrderness",
    "Clock",
    "Coalescer",
    "CorruptSnapshot",
    "DuplicateSplit",
    "Effect",
    "Event",
    "FinishedSplit",
    "Idleness",
    "InvalidDuration",
    "InvalidSplitId",
    "InvalidStrategy",
    "InvalidWatermark",
    "LowWatermarkCooperatingTask",
    "LowWatermarkListener",
    "LowmarkError",
    "NoWatermarks",
    "NotifyNewLowWatermark",
    "PausableClock",
    "Polled",
    "ReplyLowWatermark",
    "RetrieveLowWatermark",
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
    "SplitsResumed",
    "StreamCoordinator",
    "StreamSnapshot",
    "StreamStatus",
    "Tick",
    "TimestampAssigner",
    "UnknownSplit",
    "VirtualClock",
    "WatermarkAggregator",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "duration_us",
    "explain",
    "format_duration_us",
    "format_time_us",
    "to_json",
]
