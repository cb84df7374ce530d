"""The splits of one plan as columns: a plan of thousands of splits is arithmetic on arrays, not a loop of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import numpy.typing as npt
from lowmark.sources.api import SourceSplit, SplitEnd, SplitPlanner
from lowmark.watermark import LowmarkError

from .plan import SliceLimits

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

MOST_POSITION = 2**63 - 1
"""No position is larger, because the columns keep 64 bits of each."""


def is_position(given: object, least: int, most: int = MOST_POSITION) -> bool:
    """Whether a planner's answer is a whole number between two others; the columns would cut off the rest of others."""
    return isinstance(given, int | np.integer) and least <= int(given) <= most


class InvalidPosition(LowmarkError, ValueError):
    """A planner answered an impossible position."""

    split: str  # id of the split
    action: str  # the question
    got: float | str | None  # the position, or what was answered in its place
    expected: str  # the accepted positions
    _fact = "split {split!r}: {action} answered position {got!r}, expected {expected}; nothing was planned"
    _hint = (
        "positions of a split never go back. If what it reads was deleted and made anew, give it a new split id; else "
        "repair the planner."
    )


class SliceTable:
    """The splits with rows, as columns: row `i` of every column is of `splits[i]`.

    `limit` is the position where a split ends in this plan, `rows` an upper bound of its rows up to `limit`, `cost` the
    cost of one row in units of `budget`, and `observed_us` the largest trusted event time of a split, -inf if none was
    seen.
    """

    def __init__(
        self,
        planner: SplitPlanner[SourceSplit],
        parts: Sequence[tuple[SourceSplit, SplitEnd, int]],
        limits: SliceLimits,
    ) -> None:
        self.planner = planner
        self.splits = [split for split, _, _ in parts]
        self.ends = [end for _, end, _ in parts]
        self.start: Integers = np.array([split.start for split in self.splits], np.int64)
        self.end: Integers = np.array([end.position for end in self.ends], np.int64)
        self.limit: Integers = np.array([limit for _, _, limit in parts], np.int64)
        self._upper: Integers = np.array([2**62 if end.rows is None else end.rows for end in self.ends], np.int64)
        # The default `rows_before` counts positions, which is one subtraction for all splits.
        self._dense = type(planner).rows_before is SplitPlanner.rows_before
        self._counted: dict[tuple[int, int], int] = {}
        self.rows: Integers = self.rows_to(self.limit)
        self.cost, self.budget = _costs(self.ends, limits.rows, limits.size_bytes)
        self.believed_until_us = believed_until_us = limits.believed_until_us
        self.observed_us: Floats = np.full(len(parts), -np.inf)
        for i, split in enumerate(self.splits) if limits.observed_us else ():
            us = limits.observed_us.get(split.split_id)
            if us is not None and (believed_until_us is None or us <= believed_until_us):
                self.observed_us[i] = us

    def rows_to(self, stop: Integers) -> Integers:
        """Return the number of rows from each start to each stop, as upper bounds."""
        rows: Integers = stop - self.start
        if not self._dense:
            stops = stop.tolist()
            for i in np.flatnonzero(rows > 0).tolist():
                rows[i] = self._rows_before(i, stops[i])
        return np.minimum(rows, self._upper)

    def count(self, i: int, stop: int) -> int:
        """Return the number of rows from the start of one split to a stop, an upper bound."""
        rows = stop - int(self.start[i])
        if rows > 0 and not self._dense:
            rows = self._rows_before(i, stop)
        return min(rows, int(self._upper[i]))

    def _rows_before(self, i: int, stop: int) -> int:
        if (i, stop) not in self._counted:
            self._counted[i, stop] = max(0, self.planner.rows_before(self.splits[i], stop))
        return self._counted[i, stop]

    def after_rows(self, i: int, rows: int, limit: int) -> int:
        end, split = self.ends[i], self.splits[i]
        if limit != end.position:
            end = replace(end, position=limit, rows=self.count(i, limit), finished=False)
        stop = self.planner.after_rows(split, rows, end)
        if not is_position(stop, split.start + 1, limit):
            raise InvalidPosition(split.split_id, f"after_rows({rows})", stop, f"{split.start + 1} to {limit}")
        return stop

    @property
    def seed(self) -> int:
        """A number that changes whenever a row was read, and is the same in any process."""
        return crc32(b"%d" % sum(split.start for split in self.splits))


def _costs(ends: Sequence[SplitEnd], row_budget: int | None, byte_budget: int | None) -> tuple[Floats, float]:
    """Return the cost of a row of each split, and a single budget. Rows within the single budget fit both budgets.

    Bytes are estimated: the rows of a split without a known size have the mean size of the other splits' rows.
    """
    sized = [(end.size_bytes, end.rows) for end in ends if end.size_bytes is not None and end.rows]
    if byte_budget is None or not sized:
        return np.ones(len(ends)), np.inf if row_budget is None else float(row_budget)
    mean = sum(size for size, _ in sized) / sum(rows for _, rows in sized)
    row_bytes: Floats = np.array(
        [end.size_bytes / end.rows if end.size_bytes is not None and end.rows else mean for end in ends]
    )
    if row_budget is None:
        return row_bytes, float(byte_budget)
    return np.maximum(1.0, row_bytes * (row_budget / byte_budget)), float(row_budget)
