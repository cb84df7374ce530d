"""What a batch reads of every split: all of them up to one event time, which is found before anything is read."""

from .next_row import NextRow, next_row
from .plan import HeldReason, InvalidSliceLimits, PlannedSlice, SliceLimits, SlicePlan
from .slicer import plan_slices
from .table import InvalidPosition

__all__ = [
    "HeldReason",
    "InvalidPosition",
    "InvalidSliceLimits",
    "NextRow",
    "PlannedSlice",
    "SliceLimits",
    "SlicePlan",
    "next_row",
    "plan_slices",
]
