"""The limits of a batch and its slices: input and result of `plan_slices`. Times are microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lowmark.watermark import LowmarkError
from lowmark.watermark.moment import MILLISECOND_US


class InvalidSliceLimits(LowmarkError, ValueError):
    """A limit that allows no rows, or a list with a split twice."""

    setting: str  # the setting at fault
    got: str  # its value (``repr``)
    expected: str  # the accepted values
    _fact = "limits of a slice: {setting} is {got}, expected {expected}"
    _hint = "None means no limit."


class NoRowsReason(Enum):
    """Why a split gets no rows."""

    CAP = "its next rows are at or after the alignment cap"
    NOT_REACHABLE = "the source cannot say how far it can be read now"
    PARENTS = "the splits it carries on are not finished"
    TARGET = "this run reads no further"
    CHECKPOINT = "its system has not taken the checkpoint yet at which the batch ends"
    AHEAD = "it has been read beyond this slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """The limits of one batch; None: no limit."""

    now_us: int
    rows: int | None = None  # the largest number, 1 or more
    size_bytes: int | None = None  # the rough largest size, 1 or more; ignored if no split knows its size
    read_before_us: int | None = None  # rows at or after this event time are not read
    paused: Collection[str] = frozenset()  # ids of splits that alignment holds back for their observed times
    # Id -> largest event time observed of the split so far; may be incomplete. When a far-future row spoils time
    # lookups, this shows which splits are really ahead.
    observed_us: Mapping[str, int] = field(default_factory=dict)
    future_guard_us: int | None = None  # rows further ahead of `now_us` than this are not trusted
    # Id -> the position where this run ends (AvailableNow). Splits without a target are no part of the run.
    targets: Mapping[str, int] | None = None
    by_time: bool = True  # False: shares of rows instead of slices of time
    # The longest span of event time of a batch, 1 millisecond or more. A gap in the data may make a batch longer.
    max_slice_us: int | None = None
    previous_span_us: int | None = None  # the distance between the times of the last two slices; saves lookups

    def __post_init__(self) -> None:
        least = {
            "rows": 1,
            "size_bytes": 1,
            "future_guard_us": 0,
            "max_slice_us": MILLISECOND_US,
            "previous_span_us": 0,
        }
        for setting, minimum in least.items():
            value = getattr(self, setting)
            if value is not None and value < minimum:
                raise InvalidSliceLimits(setting, repr(value), f"{minimum} or more, or None")

    @property
    def believed_until_us(self) -> int | None:
        """The largest event time that is not taken for a bad clock; None: no limit."""
        return None if self.future_guard_us is None else self.now_us + self.future_guard_us


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """The slice of one split in a batch: positions from `start` up to and without `stop`, equal without rows.

    Rows are upper bounds.
    """

    start: int
    stop: int
    rows: int
    # At most the plan's time: every row from `stop` on is at or after it, except for the out-of-orderness that the
    # strategy allows. None: unknown.
    claim_us: int | None
    backlog_rows: int  # unread after the slice
    finished: bool  # whether the split is done with this slice


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The slices of a batch."""

    slices: Mapping[str, PlannedSlice]  # by id, for every split with an end from the source
    time_us: int | None  # up to which splits are read; None: all were read to their ends, or not by time
    without_rows: Mapping[str, NoRowsReason]  # why a split with rows, or perhaps with rows, gets none
    lookups: int  # how often the source was asked where a time begins

    @property
    def rows(self) -> int:
        """An upper bound."""
        return sum(planned.rows for planned in self.slices.values())

    @property
    def more(self) -> bool:
        """Whether a larger budget would have read more rows."""
        return any(
            planned.backlog_rows > 0 and self.without_rows.get(name) in (None, NoRowsReason.AHEAD)
            for name, planned in self.slices.items()
        )
