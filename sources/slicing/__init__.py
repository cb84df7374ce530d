"""What a batch reads of every split: all of them up to one event time, which is found before anything is read."""

from .next_row import NextRow, next_row
from .slicer import HeldReason, InvalidPosition, InvalidSliceLimits, PlannedSlice, SliceLimits, SlicePlan, plan_slices

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
