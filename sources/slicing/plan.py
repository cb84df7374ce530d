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
    got: str  # its value (`repr`)
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
    """The limits of one batch. Times are microseconds since the epoch.

    Attributes:
        now_us: the time.
        rows: the largest number of rows, 1 or more; None: all rows.
        size_bytes: the rough largest size, bytes, 1 or more; None: any size. Ignored if no split knows its size.
        read_before_us: rows at or after this event time are not read; None: no cap.
        paused: ids of splits that alignment holds back for their observed times.
        observed_us: id -> largest event time observed of the split so far; may be incomplete. When a far-future row
            spoils time lookups, this shows which splits are really ahead.
        future_guard_us: rows further ahead of `now_us` than this are not trusted; None: all rows are trusted.
        targets: id -> the position where this run ends (AvailableNow). Splits without a target are no part of the
            run. None: the run does not end.
        by_time: False: shares of rows instead of slices of time.
        max_slice_us: the longest span of event time of a batch, 1 millisecond or more; None: any span. A gap in the
            data may make a batch longer.
        previous_span_us: the distance between the times of the last two slices; saves lookups.

    Raises:
        InvalidSliceLimits: a limit that is out of range.
    """

    now_us: int
    rows: int | None = None
    size_bytes: int | None = None
    read_before_us: int | None = None
    paused: Collection[str] = frozenset()
    observed_us: Mapping[str, int] = field(default_factory=dict)
    future_guard_us: int | None = None
    targets: Mapping[str, int] | None = None
    by_time: bool = True
    max_slice_us: int | None = None
    previous_span_us: int | None = None

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
    """The slice of one split in a batch.

    Attributes:
        start, stop: positions, stop not included; equal if the split gets no rows.
        rows: number of rows from start to stop, an upper bound.
        claim_us: a time, at most the plan's time: every row from `stop` on is at or after it, except for the
            out-of-orderness that the strategy allows. None: unknown.
        backlog_rows: number of unread rows after the slice, an upper bound.
        finished: whether the split is done with this slice.
    """

    start: int
    stop: int
    rows: int
    claim_us: int | None
    backlog_rows: int
    finished: bool


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The slices of a batch.

    Attributes:
        slices: id -> its slice, for every split with an end from the source.
        time_us: the event time up to which splits are read; None if all were read to their ends, or not by time.
        without_rows: id -> why a split with rows, or perhaps with rows, gets none.
        next_us: the event time of the next row, if only alignment keeps that row from being read; the largest time that
            was read before the row, if it cannot be searched by time. None from `plan_slices`, which does not search.
    """

    slices: Mapping[str, PlannedSlice]
    time_us: int | None
    without_rows: Mapping[str, NoRowsReason]
    next_us: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the batch, an upper bound."""
        return sum(planned.rows for planned in self.slices.values())

    @property
    def more(self) -> bool:
        """Whether a larger budget would have read more rows."""
        return any(
            planned.backlog_rows > 0 and self.without_rows.get(name) in (None, NoRowsReason.AHEAD)
            for name, planned in self.slices.items()
        )
