"""Low watermarks for streams of many splits: the theory, in pure Python.

Importing this package imports no Spark, reads no clock and starts nothing. It exports the names that users, listeners
and connectors need: ``WatermarkStrategy`` says how a watermark is made, ``StreamStatus`` is the status of a stream.
Other names are imported from their modules: ``splits.stream`` has the watermarks of one stream's splits (events in,
effects out), ``tasks.coordinator`` the coordinator of many tasks, ``protocol`` its messages.

Names are imported at their first use, because Spark waits for a process of each stream, which needs few of them.
"""

from typing import TYPE_CHECKING

from .first_use import at_first_use

if TYPE_CHECKING:
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
        InvalidTime,
        InvalidWatermark,
        LowmarkError,
        StaleRun,
        TaskNotAway,
        TooManyTasks,
        UnknownSplit,
        UnknownTask,
    )
    from .generator import BoundedOutOfOrderness, NoWatermarks, WatermarkGenerator, WatermarkOutput
    from .moment import format_time_us
    from .protocol import (
        LowWatermarkListener,
        NotifyNewLowWatermark,
        TaskId,
    )
    from .splits.status import (
        Cause,
        HolderSpell,
        SetByHand,
        SplitStatus,
        StreamStatus,
        WrongClock,
        explain,
        to_json,
    )
    from .state import AllIdle, SplitId, SplitState
    from .strategy import TimestampAssigner, WatermarkStrategy

__all__ = [
    "AllIdle",
    "BoundedOutOfOrderness",
    "Cause",
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
    "InvalidTime",
    "InvalidWatermark",
    "LowWatermarkListener",
    "LowmarkError",
    "NoWatermarks",
    "NotifyNewLowWatermark",
    "SetByHand",
    "SplitId",
    "SplitState",
    "SplitStatus",
    "StaleRun",
    "StreamStatus",
    "TaskId",
    "TaskNotAway",
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

__getattr__ = at_first_use(
    __name__,
    {
        "duration": ("duration_us", "format_duration_us"),
        "errors": (
            "CorruptSnapshot",
            "DisagreeingGroup",
            "DuplicateSplit",
            "FinishedSplit",
            "InvalidDuration",
            "InvalidMessage",
            "InvalidReshard",
            "InvalidSplitId",
            "InvalidStrategy",
            "InvalidTime",
            "InvalidWatermark",
            "LowmarkError",
            "StaleRun",
            "TaskNotAway",
            "TooManyTasks",
            "UnknownSplit",
            "UnknownTask",
        ),
        "generator": ("BoundedOutOfOrderness", "NoWatermarks", "WatermarkGenerator", "WatermarkOutput"),
        "moment": ("format_time_us",),
        "protocol": (
            "LowWatermarkListener",
            "NotifyNewLowWatermark",
            "TaskId",
        ),
        "splits.status": (
            "Cause",
            "HolderSpell",
            "SetByHand",
            "SplitStatus",
            "StreamStatus",
            "WrongClock",
            "explain",
            "to_json",
        ),
        "state": ("AllIdle", "SplitId", "SplitState"),
        "strategy": ("TimestampAssigner", "WatermarkStrategy"),
    },
)
