"""What bounds a batch, and what a batch reads: the question and the answer of `plan_slices`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lowmark.watermark import LowmarkError
from lowmark.watermark.moment import MILLISECOND_US

__all__ = ["InvalidSliceLimits", "NoRowsReason", "PlannedSlice", "SliceLimits", "SlicePlan"]


class InvalidSliceLimits(LowmarkError, ValueError):
    """A limit that allows no rows, or a list of splits that names one twice."""

    setting: str  # which
    got: str  # its value (``repr``)
    expected: str  # what would have been accepted
    _fact = "limits of a slice: {setting} is {got}, expected {expected}"
    _hint = "None means no limit."


class NoRowsReason(Enum):
    """Why a split gets no rows."""

    CAP = "its next rows are at or after the alignment cap"
    NOT_REACHABLE = "the source cannot say how far it can be read now"
    PARENTS = "the splits it carries on are not finished"
    TARGET = "it has been read as far as this run goes"
    CHECKPOINT = "its system has not taken the checkpoint yet at which the batch ends"
    AHEAD = "it has been read further than this slice goes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """What bounds one batch. Times are microseconds since the epoch.

    Attributes:
        now_us: the time.
        rows: how many rows, 1 or more; None: all there are.
        size_bytes: how many bytes, roughly, 1 or more; None: any number, and so it is where no split knows its size.
        cap_us: no row at or after this event time is read; None: there is no cap.
        paused: ids of splits that alignment keeps from being read because of what was observed of them.
        observed_us: id -> largest event time observed of the split so far. For as many as known: it is what tells a
            split that is ahead from one that a bad row hides, where lookups cannot.
        future_guard_us: rows from further ahead of `now_us` than this are not believed; None: all are.
        targets: id -> position that this run ends at (AvailableNow). A split that is not named is no part of the
            run. None: the run does not end.
        by_time: False: shares of rows instead of slices of time.
        max_slice_us: the longest event time a batch may span, 1 millisecond or more; None: any. It gives way to a gap.
        previous_span_us: how far the previous slice's time lay behind the one before it; saves lookups.

    Raises:
        InvalidSliceLimits: a limit that is out of range.
    """

    now_us: int
    rows: int | None = None
    size_bytes: int | None = None
    cap_us: int | None = None
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
        """The largest event time that is not taken for a bad clock; None: there is none."""
        return None if self.future_guard_us is None else self.now_us + self.future_guard_us


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """What a batch reads of one split.

    Attributes:
        start, stop: positions, stop not included; equal if it gets no rows.
        rows: how many rows lie between, an upper bound.
        claim_us: the split's record time has reached this, at most the plan's time: every row from `stop` on is at
            or after it, apart from the out-of-orderness that the strategy allows. None: that is not known.
        backlog_rows: how many rows are unread after it, an upper bound.
        finished: with this slice the split is done.
    """

    start: int
    stop: int
    rows: int
    claim_us: int | None
    backlog_rows: int
    finished: bool


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What a batch reads.

    Attributes:
        slices: id -> its slice, for every split that the source answered for.
        time_us: the event time up to which splits are read; None if all were read to their ends, or not by time.
        without_rows: id -> why it gets no rows though it has some, or may have.
        lookups: how often the source was asked where a time begins.
    """

    slices: Mapping[str, PlannedSlice]
    time_us: int | None
    without_rows: Mapping[str, NoRowsReason]
    lookups: int

    @property
    def rows(self) -> int:
        """How many rows the batch reads, an upper bound."""
        return sum(planned.rows for planned in self.slices.values())

    @property
    def more(self) -> bool:
        """Whether rows are left that a larger budget would have read."""
        return any(
            planned.backlog_rows > 0 and self.without_rows.get(name) in (None, NoRowsReason.AHEAD)
            for name, planned in self.slices.items()
        )
