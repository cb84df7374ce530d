"""Splits that report together, with their numbers as columns.

In the usual stream every batch has rows of the same splits, and all these splits are active. A batch then changes no
state, only numbers of each split. A cohort keeps these numbers, so that a batch of 100,000 splits costs a few calls
of numpy and no Python for a single split. The cohort also takes claims of a source for all or some of the splits of a
batch that is not read yet. Any other event of a split in the cohort dissolves the cohort: its numbers go back to the
records of the single splits, and later results are the same as without a cohort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
from lowmark.watermark.moment import LEAST_US, MILLISECOND_US, MOST_US
from lowmark.watermark.state import SplitId

from .coalescer import Rows
from .events import BatchReported, SplitColumn
from .tally import SplitTally

Column = npt.NDArray[np.int64]


class Cohort:
    """Active splits that delivered rows in each batch since the cohort began.

    Args:
        column: the splits, each once, in the order of reports, with their present watermarks.
        heard_us: for each split, in this order, when the newest batch with rows or a claim of the split was planned.
    """

    def __init__(self, column: SplitColumn, heard_us: Column) -> None:
        self.splits = column.splits
        self._heard_us = heard_us
        self.last_report_us: int | None = None
        self._ids: list[int] = column.splits.tolist()
        self._row_of: dict[SplitId, int] = {split: row for row, split in enumerate(self._ids)}
        self.watermarks_us = column.values_of
        self._rows = np.zeros(len(self._ids), np.int64)
        self._late_reports = np.zeros(len(self._ids), np.int64)
        self._native_late_rows = np.zeros(len(self._ids), np.int64)
        self._first_us: Column | None = None

    def __contains__(self, split: object) -> bool:
        return split in self._row_of

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[SplitId]:
        return iter(self._ids)

    @property
    def earliest_heard_us(self) -> int:
        return int(self._heard_us.min())

    def heard_us(self, split: SplitId) -> int:
        """When the newest batch was planned that had rows or a claim of this split."""
        return self._heard_us.item(self._row_of[split])

    def takes(self, event: BatchReported) -> bool:
        """Whether the batch has rows of exactly the splits of the cohort, and watermarks in the order of the cohort."""
        return (
            self._same(event.watermarks_us)
            and event.future_rows.keys() <= self._row_of.keys()
            and (self._same(event.rows) or event.rows.keys() <= self._row_of.keys())
            and (not event.first_us or self._same(event.first_us) or event.first_us.keys() == self._row_of.keys())
        )

    def report(self, event: BatchReported, now_us: int) -> bool:
        """Take a batch for which ``takes`` is true. Returns whether a watermark rose."""
        assert isinstance(event.watermarks_us, SplitColumn)
        values_us = event.watermarks_us.values_of
        rose = bool((values_us > self.watermarks_us).any())
        self.watermarks_us = np.maximum(self.watermarks_us, values_us)
        self._heard_us = np.maximum(self._heard_us, event.planned_at_us)
        self.last_report_us = now_us
        self._rows += self._column(event.rows)
        self._first_us = self._column(event.first_us) if event.first_us else None
        return rose

    def sort_out(self, watermarks_us: Mapping[SplitId, int]) -> tuple[Rows, Column, dict[SplitId, int]]:
        """Divide the claims of a plan: rows of the cohort and their values, and the claims of the other splits."""
        if self._same(watermarks_us):
            return slice(None), watermarks_us.values_of, {}
        values_us = np.fromiter(watermarks_us.values(), np.int64, len(watermarks_us))
        rows = np.fromiter((self._row_of.get(split, -1) for split in watermarks_us), np.intp, len(watermarks_us))
        known = rows >= 0
        if known.all():
            return rows, values_us, {}
        others = {split: us for (split, us), row in zip(watermarks_us.items(), rows.tolist(), strict=True) if row < 0}
        return rows[known], values_us[known], others

    def claim(self, rows: Rows, values_us: Column, planned_at_us: int) -> bool:
        """Take the claims of a plan: values as in a report, but without rows. Returns whether a watermark rose."""
        top_us, heard_us = self.watermarks_us.copy(), self._heard_us.copy()
        rose = values_us > top_us[rows]
        top_us[rows] = np.maximum(top_us[rows], values_us)
        heard_us[rows] = np.where(rose, np.maximum(heard_us[rows], planned_at_us), heard_us[rows])
        self.watermarks_us, self._heard_us = top_us, heard_us
        return bool(rose.any())

    def count_late(
        self, event: BatchReported, in_force_us: int | None, native_us: int | None, bound_us: int
    ) -> tuple[int, int]:
        """Count the late reports of a batch; see ``Tally.count_splits``."""
        assert isinstance(event.watermarks_us, SplitColumn)
        values_us, behind_us = event.watermarks_us.values_of, bound_us + 2 * MILLISECOND_US
        first_us = self._column(event.first_us) if event.first_us else None
        late_reports = 0
        if in_force_us is not None:
            known_us, limit_us = (values_us, in_force_us - behind_us) if first_us is None else (first_us, in_force_us)
            came_late = _up_to(known_us, limit_us)
            self._late_reports += came_late
            late_reports = int(np.count_nonzero(came_late))
        if native_us is None:
            return late_reports, 0
        all_late = _up_to(values_us, native_us - behind_us)
        first_late = all_late if first_us is None else _up_to(first_us, native_us)
        if not (all_late.any() or first_late.any()):
            return late_reports, 0
        late = np.where(all_late, self._column(event.rows, missing=1), first_late)
        self._native_late_rows += late
        return late_reports, int(late.sum())

    def tally(self, split: SplitId, before: SplitTally) -> SplitTally:
        """The counts of one split, from before the split joined the cohort and since."""
        row = self._row_of[split]
        if self.last_report_us is None:
            return before
        return SplitTally(
            rows=before.rows + self._rows.item(row),
            first_us=None if self._first_us is None else self._first_us.item(row),
            last_report_us=self.last_report_us,
            late_reports=before.late_reports + self._late_reports.item(row),
            native_late_rows=before.native_late_rows + self._native_late_rows.item(row),
        )

    def _same(self, column: Mapping[SplitId, int]) -> TypeGuard[SplitColumn]:
        """Whether this is a column of the splits of the cohort, in their order."""
        return isinstance(column, SplitColumn) and np.array_equal(column.splits, self.splits)

    def _column(self, values: Mapping[SplitId, int], missing: int = 0) -> Column:
        if self._same(values):
            return values.values_of
        if not values:
            return np.full(len(self._ids), missing, np.int64)
        return np.fromiter((values.get(split, missing) for split in self._ids), np.int64, len(self._ids))


def _up_to(column: Column, limit_us: int) -> npt.NDArray[np.bool_]:
    """Which values are at most the limit, which may be beyond 64 bits."""
    return (column <= min(limit_us, MOST_US)) if limit_us >= LEAST_US else np.zeros(len(column), np.bool_)
