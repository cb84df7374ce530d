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
    from .duration import duration_us as duration_us
    from .duration import format_duration_us as format_duration_us
    from .errors import CorruptSnapshot as CorruptSnapshot
    from .errors import DisagreeingGroup as DisagreeingGroup
    from .errors import InvalidDuration as InvalidDuration
    from .errors import InvalidMessage as InvalidMessage
    from .errors import InvalidReshard as InvalidReshard
    from .errors import InvalidSplitId as InvalidSplitId
    from .errors import InvalidStrategy as InvalidStrategy
    from .errors import InvalidTime as InvalidTime
    from .errors import InvalidWatermark as InvalidWatermark
    from .errors import LowmarkError as LowmarkError
    from .errors import StaleRun as StaleRun
    from .errors import TaskNotAway as TaskNotAway
    from .errors import TooManyTasks as TooManyTasks
    from .errors import UnknownTask as UnknownTask
    from .generator import BoundedOutOfOrderness as BoundedOutOfOrderness
    from .generator import NoWatermarks as NoWatermarks
    from .generator import WatermarkGenerator as WatermarkGenerator
    from .generator import WatermarkOutput as WatermarkOutput
    from .moment import format_time_us as format_time_us
    from .protocol import LowWatermarkListener as LowWatermarkListener
    from .protocol import NotifyNewLowWatermark as NotifyNewLowWatermark
    from .protocol import TaskId as TaskId
    from .splits.status import Cause as Cause
    from .splits.status import HolderSpell as HolderSpell
    from .splits.status import SetByHand as SetByHand
    from .splits.status import SplitStatus as SplitStatus
    from .splits.status import StreamStatus as StreamStatus
    from .splits.status import WrongClock as WrongClock
    from .splits.status import explain as explain
    from .splits.status import to_json as to_json
    from .state import AllIdle as AllIdle
    from .state import SplitId as SplitId
    from .state import SplitState as SplitState
    from .strategy import TimestampAssigner as TimestampAssigner
    from .strategy import WatermarkStrategy as WatermarkStrategy

_PLACES = {
    "duration": ("duration_us", "format_duration_us"),
    "errors": (
        "CorruptSnapshot",
        "DisagreeingGroup",
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
        "UnknownTask",
    ),
    "generator": ("BoundedOutOfOrderness", "NoWatermarks", "WatermarkGenerator", "WatermarkOutput"),
    "moment": ("format_time_us",),
    "protocol": ("LowWatermarkListener", "NotifyNewLowWatermark", "TaskId"),
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
}
__all__ = [name for names in _PLACES.values() for name in names]
__getattr__ = at_first_use(__name__, _PLACES)
