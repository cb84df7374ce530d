"""Plans the slices of a batch: every split up to one event time, which is found before rows are read."""

from .next_row import NextRow, next_row
from .plan import InvalidSliceLimits, NoRowsReason, PlannedSlice, SliceLimits, SlicePlan
from .slicer import plan_slices
from .table import InvalidPosition

__all__ = [
    "InvalidPosition",
    "InvalidSliceLimits",
    "NextRow",
    "NoRowsReason",
    "PlannedSlice",
    "SliceLimits",
    "SlicePlan",
    "next_row",
    "plan_slices",
]
