"""Counts of a stream for people; no decision uses them.

A wrong count loses no row, so the counts are kept apart from the decisions. Every run of a query begins at 0, also in
the same process. For splits that report together, `cohort.py` counts by split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowmark.watermark.generator import bounded_watermark_us
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.state import SplitId

from .events import BatchCounts, BatchReported


@dataclass(slots=True)
class SplitTally:
    """Counts of one split."""

    rows: int = 0
    first_us: int | None = None  # of its last batch
    last_report_us: int | None = None
    late_reports: int = 0
    native_late_rows: int = 0


@dataclass(slots=True)
class FutureTally:
    """Rows of one split beyond the future guard, and when the first and the last of them were reported."""

    rows: int
    since_us: int
    last_us: int


_MOST_FUTURE_SPLITS = 1_000  # future rows of further splits count in `counts` only


class Tally:
    """Counts of a stream and its splits, and of the rows that Spark's own watermark would have judged late.

    Native Spark has one watermark for the stream: the largest event time of all splits, less the delay. Without a
    pause Spark judges the rows of a batch by the watermark that all batches but the last one made (the rules are in
    ``replay/rules.py``); rows at or below that watermark are late. From a split's smallest and largest event time
    follows how many rows *at least* that would have been. If no event time of a batch is beyond that watermark, but
    for wrong clocks, all its rows are late, and no split need tell how many it had.

    Args:
        bound_us: the delay of native Spark.
    """

    def __init__(self, bound_us: int) -> None:
        self.bound_us = bound_us
        self.splits: dict[SplitId, SplitTally] = {}
        self.future: dict[SplitId, FutureTally] = {}
        self.newest_us: int | None = None  # the largest event time, rows beyond the future guard included
        self.counts = BatchCounts()
        self.batches = 0
        self.rows_by_split = True  # the newest batch with watermarks had rows by split, too
        self.last_batch_id: int | None = None
        self.late_reports = 0  # removed splits included
        self.returned_late = 0
        self.fastest_us: int | None = None  # the largest watermark of a split
        self.native_us: int | None = None
        self._judges_us: int | None = None  # the native watermark before the newest batch raised it
        self.native_late_rows = 0

    def fresh(self, batch_id: int) -> bool:
        """Whether this batch is newer than all counted batches; a repeated batch must not count again."""
        return self.last_batch_id is None or batch_id > self.last_batch_id

    def count_batch(self, event: BatchReported, now_us: int) -> None:
        """Count a fresh batch, and its rows beyond the future guard by split; such a row is a report of its split."""
        self.last_batch_id = event.batch_id
        self.batches += 1
        self.counts += event.counts
        if event.watermarks_us:
            self.rows_by_split = bool(event.rows)
        for split, rows in event.future_rows.items():
            if split in self.future or len(self.future) < _MOST_FUTURE_SPLITS:
                of_split = self.future.setdefault(split, FutureTally(0, now_us, now_us))
                of_split.rows, of_split.last_us = of_split.rows + rows, now_us
                self.splits.setdefault(split, SplitTally())
            if split in self.splits:
                self.splits[split].last_report_us = now_us

    def count_splits(
        self, event: BatchReported, in_force_us: int | None, native_us: int | None, now_us: int
    ) -> tuple[int, int]:
        """Count a fresh batch split by split, before a bound of a single split is taken off (``adaptive.py``).

        Returns the number of late reports and the least number of rows that native Spark calls late.
        """
        late_reports = native_late_rows = 0
        for split in event.watermarks_us.keys() | {split for split, rows in event.rows.items() if rows > 0}:
            tally = self.splits.setdefault(split, SplitTally())
            tally.rows += event.rows.get(split, 0)
            tally.first_us, tally.last_report_us = event.first_us.get(split), now_us
            watermark_us = event.watermarks_us.get(split)
            # Where the earliest row is not measured, the newest decides: if it came late, all rows of the split did.
            newest_us = None if watermark_us is None else self._newest_us(watermark_us)
            known_us = newest_us if tally.first_us is None else tally.first_us
            if known_us is not None and in_force_us is not None and known_us <= in_force_us:
                tally.late_reports += 1
                late_reports += 1
            if native_us is not None:
                of_split = self._native_late(tally.first_us, watermark_us, event.rows.get(split), native_us)
                native_late_rows += of_split
                tally.native_late_rows += of_split
        return late_reports, native_late_rows

    def native_of(self, event: BatchReported) -> int | None:
        """The one watermark that native Spark judges the rows of a batch by."""
        return self._judges_us if event.judged_by_us is None else event.judged_by_us

    def count_native_late(self, event: BatchReported, by_split: int, top_us: int | None) -> None:
        """Count the rows of a batch that native Spark judges late: all of them, or as many as its splits tell of.

        Args:
            top_us: the largest watermark of the splits that delivered rows, None if it is not known of all.
        """
        native_us, counts = self.native_of(event), event.counts
        if native_us is None:
            return
        with_time = counts.rows - counts.null_time_rows - counts.null_split_rows
        if event.newest_us is not None and event.newest_us <= native_us:
            by_split = max(by_split, with_time)
        elif top_us is not None and self._newest_us(top_us) <= native_us:
            by_split = max(by_split, with_time - counts.future_rows)
        self.native_late_rows += by_split

    def _newest_us(self, watermark_us: int) -> int:
        return watermark_us + self.bound_us + 2 * MILLISECOND_US  # 1 ms back, and up to 1 ms of rounding

    def restore(self, watermarks_us: Iterable[int]) -> None:
        """Note where the splits stood before a restart."""
        top_us = max(watermarks_us, default=None)
        self.saw(top_us)
        self.saw_rows(top_us, None)

    def saw(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            self.fastest_us = watermark_us if self.fastest_us is None else max(self.fastest_us, watermark_us)

    def _saw_native(self, watermark_us: int) -> None:
        """Raise the native watermark: Spark takes the bound off the event time, without the extra millisecond."""
        native_us = watermark_us + MILLISECOND_US
        self.native_us = native_us if self.native_us is None else max(self.native_us, native_us)

    def saw_rows(self, top_us: int | None, newest_us: int | None) -> None:
        """Note the largest event time of a batch, or if it is not measured, its largest watermark, perhaps a claim.

        Spark has no future guard, so native Spark's watermark follows that time.
        """
        self._judges_us = self.native_us
        if newest_us is not None:
            self.newest_us = newest_us if self.newest_us is None else max(self.newest_us, newest_us)
            self._saw_native(bounded_watermark_us(newest_us, self.bound_us))
        elif top_us is not None:
            self._saw_native(top_us)

    def forget(self, split: SplitId) -> None:
        self.splits.pop(split, None)
        self.future.pop(split, None)

    def _native_late(self, first_us: int | None, watermark_us: int | None, rows: int | None, native_us: int) -> int:
        if watermark_us is not None and self._newest_us(watermark_us) <= native_us:
            return 1 if rows is None else rows
        return int(first_us is not None and first_us <= native_us)
