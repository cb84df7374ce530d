"""The reports on the splits of one stream: their counts, their backlogs, and when each split was last heard.

`SplitReports` changes no state and no watermark: ``split_states.py`` decides which splits are waited for, and
``low_watermark.py`` what follows. Counts are for people. Decisions use the times and the backlogs. The numbers of
splits that report together are in a cohort (``cohort.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np
from lowmark.watermark.errors import InvalidWatermark
from lowmark.watermark.moment import LEAST_US, MOST_US
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import WatermarkStrategy

from .adaptive import AdaptiveBounds
from .cause import unusable_times
from .cohort import Cohort
from .events import BatchPlanned, BatchReported, SplitColumn
from .tally import SplitTally, Tally

Batch = TypeVar("Batch", BatchReported, BatchPlanned)


class SplitReports:
    """Keeps what was reported of each split. Without ``bounds`` the splits share one bound."""

    def __init__(self, out_of_orderness_us: int, bounds: AdaptiveBounds | None) -> None:
        self.tally = Tally(out_of_orderness_us)
        self.bounds = bounds
        self.backlog_rows: dict[SplitId, int] = {}
        """Unread rows of each split whose backlog is known."""
        self.read_until_us: int | None = None
        """Up to when the sources were read; None: not known yet."""
        self.planned_us: int | None = None
        """When the newest batch was planned; None: no batch was reported yet."""
        self.filled_us: int | None = None
        """When the newest batch was planned that had rows of a split; None: no batch had rows yet."""
        self.cohort: Cohort | None = None
        """The splits that report together, with their numbers; None: each split has its numbers here."""
        self._heard_us: dict[SplitId, int] = {}  # without the splits of the cohort
        self._last_column: SplitColumn | None = None  # the newest column, perhaps the first of a cohort

    # -- of a split

    def heard_us(self, split: SplitId) -> int | None:
        """When the newest batch was planned that had rows or a claim of a split; None: never."""
        if self.cohort is not None and split in self.cohort:
            return self.cohort.heard_us(split)
        return self._heard_us.get(split)

    def counted(self, split: SplitId) -> SplitTally:
        """The counts of a split; all are 0 before its first report."""
        tally = self.tally.splits.get(split, SplitTally())
        return self.cohort.tally(split, tally) if self.cohort is not None and split in self.cohort else tally

    def unusable_times(self, low_us: int | None) -> str | None:
        """See ``cause.unusable_times``."""
        tally = self.tally
        return unusable_times(tally.counts, tally.newest_us, low_us, spoken=bool(tally.splits))

    def hear(self, split: SplitId, planned_at_us: int) -> bool:
        """Note that a batch planned at this moment tells of a split. Returns whether no newer batch told before."""
        heard_us = self._heard_us.get(split)
        if heard_us is not None and planned_at_us <= heard_us:
            return False
        self._heard_us[split] = planned_at_us
        return True

    def forget(self, split: SplitId) -> None:
        self._heard_us.pop(split, None)
        self.backlog_rows.pop(split, None)
        self.tally.forget(split)
        if self.bounds is not None:
            self.bounds.forget(split)

    # -- of a batch

    def read(self, until_us: int) -> None:
        self.read_until_us = until_us if self.read_until_us is None else max(self.read_until_us, until_us)

    def learn(self, event: BatchReported) -> None:
        """Learn from a batch how late the rows of its splits are. A repeated batch teaches nothing."""
        if self.bounds is not None and self.tally.fresh(event.batch_id):
            self.bounds.learn(event)

    def bounded(self, event: Batch, watermark_us: Callable[[SplitId], int | None]) -> Batch:
        """Take each split's own bound off the watermarks of an event, which were made with the least bound.

        Args:
            watermark_us: gives the present watermark of a split; None: the split has none, or is unknown.
        """
        if self.bounds is None:
            return event
        return replace(event, watermarks_us=self.bounds.bounded(event.watermarks_us, watermark_us))

    def count(
        self, made: BatchReported, event: BatchReported, cohort: Cohort | None, low_us: int | None, now_us: int
    ) -> None:
        """Count a fresh batch.

        Args:
            made: the batch before ``bounded``; native Spark has no bound for a split.
            cohort: the splits of the batch, if they report together.
            low_us: the low watermark before the batch.
        """
        tally, native_us = self.tally, self.tally.native_of(made)
        in_force_us = low_us if made.in_force_us is None else made.in_force_us
        tally.count_batch(made, now_us)
        if cohort is None:
            late_reports, native_late_rows = tally.count_splits(made, in_force_us, native_us, now_us)
        else:
            late_reports, native_late_rows = cohort.count_late(made, in_force_us, native_us, tally.bound_us)
        tally.late_reports += late_reports
        top_us = _top_us(made.watermarks_us)
        of_all = cohort is not None or made.rows.keys() <= made.watermarks_us.keys()
        tally.count_native_late(made, native_late_rows, top_us if of_all else None)
        tally.saw(top_us if made is event else _top_us(event.watermarks_us))
        tally.saw_rows(top_us, made.newest_us)
        self.planned_us = event.planned_at_us
        if event.watermarks_us or any(rows > 0 for rows in event.rows.values()):
            self.filled_us = event.planned_at_us

    def note_backlogs(self, event: BatchReported | BatchPlanned) -> None:
        """Note backlogs. A backlog stays until its split reports another, or delivers rows without a backlog."""
        if self.backlog_rows:
            for split in chain(event.rows, event.future_rows, event.watermarks_us):
                self.backlog_rows.pop(split, None)
        self.backlog_rows.update(event.backlog_rows)

    # -- of splits that report together

    def gather(self, event: BatchReported, steady_us: Callable[[SplitId, int], int | None]) -> Cohort | None:
        """Make a cohort of the splits if they report together a second time.

        Args:
            steady_us: gives the watermark of a split, timed from its last report, that only reports can change now;
                None for every other split.
        """
        column, last = event.watermarks_us, self._last_column
        self._last_column = column if isinstance(column, SplitColumn) else None
        if not isinstance(column, SplitColumn) or last is None or not column:
            return None
        if not np.array_equal(column.splits, last.splits) or len(column) < len(column.splits):
            return None
        own_us, heard_us = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
        for row, split in enumerate(column):
            heard_at_us = self._heard_us.get(split)
            at_us = None if heard_at_us is None else steady_us(split, heard_at_us)
            if at_us is None or heard_at_us is None:
                return None
            own_us[row], heard_us[row] = at_us, heard_at_us
        self.cohort = Cohort(SplitColumn(column.splits, own_us), heard_us)
        return self.cohort

    def dissolve(self) -> Cohort | None:
        """Move the numbers of the cohort back to its splits, before an event of single splits."""
        cohort, self.cohort = self.cohort, None
        if cohort is not None:
            for split in cohort:
                self._heard_us[split] = cohort.heard_us(split)
                self.tally.splits[split] = cohort.tally(split, self.tally.splits.get(split, SplitTally()))
        return cohort


def check_range(watermarks_us: Mapping[SplitId, int]) -> None:
    """Raises `InvalidWatermark` if a watermark does not fit 64 bits."""
    if isinstance(watermarks_us, SplitColumn):
        return  # its numbers have 64 bits
    for split, watermark_us in watermarks_us.items():
        if not LEAST_US <= watermark_us <= MOST_US:
            raise InvalidWatermark(split, watermark_us)


def within_guard(event: BatchPlanned, strategy: WatermarkStrategy, wall_ahead_us: int = 0) -> BatchPlanned:
    """Drop the claims beyond the future guard, because rows beyond the guard move no watermark either.

    >>> strategy = WatermarkStrategy(future_guard_us=1_000_000)
    >>> within_guard(BatchPlanned(0, {"a": 5_000, "b": 9_000_000}, {}), strategy).watermarks_us
    {'a': 5000}
    """
    guard_us, top_us = strategy.future_guard_us, _top_us(event.watermarks_us)
    if guard_us is None or top_us is None:
        return event
    most_us = strategy.watermark_of_max(event.planned_at_us + wall_ahead_us + guard_us)
    if top_us <= most_us:
        return event
    kept = {split: watermark_us for split, watermark_us in event.watermarks_us.items() if watermark_us <= most_us}
    return replace(event, watermarks_us=kept)


def raising(claims_us: Mapping[SplitId, int], watermark_us: Callable[[SplitId], int | None]) -> dict[SplitId, int]:
    """The claims beyond the watermarks of their splits: a claim that is only repeated is no sign of its split."""
    stood_at = ((split, us, watermark_us(split)) for split, us in claims_us.items())
    return {split: us for split, us, at_us in stood_at if at_us is None or us > at_us}


def _top_us(watermarks_us: Mapping[SplitId, int]) -> int | None:
    if isinstance(watermarks_us, SplitColumn) and watermarks_us:
        return int(watermarks_us.values_of.max())
    return max(watermarks_us.values(), default=None)
