"""Event times by split of ONE batch, measured where the rows are: the value of a Python accumulator.

A retried task measures the same rows again, so the second measurement must replace the first. The key of a
mark is therefore the split and the *cell*, the task partition that measured it. Two trackers merge by max of the
largest time, min of the smallest and max of the rows in each cell, which is commutative, associative and idempotent.
Only ``marks`` and ``counts`` add up, over cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import TypeVar

from lowmark.watermark.state import SplitId, split_order

from .events import BatchCounts

Key = TypeVar("Key")

_NO_ROWS = (0, 0, 0, 0, 0)  # rows, future, null time, null split, before epoch


@dataclass(frozen=True, slots=True)
class SplitMark:
    """Largest and smallest event time of a split in one batch, and its number of rows."""

    max_us: int
    min_us: int
    rows: int

    def merged(self, other: SplitMark) -> SplitMark:
        """Merge two measurements of the same rows."""
        return SplitMark(max(self.max_us, other.max_us), min(self.min_us, other.min_us), max(self.rows, other.rows))

    def added(self, other: SplitMark) -> SplitMark:
        """Merge measurements of different rows of one split."""
        return SplitMark(max(self.max_us, other.max_us), min(self.min_us, other.min_us), self.rows + other.rows)


class SplitTracker:
    """Marks per split and cell, and counts per cell."""

    def __init__(self) -> None:
        self._marks: dict[tuple[SplitId, int], SplitMark] = {}
        self._future: dict[tuple[SplitId, int], SplitMark] = {}
        self._counts: dict[int, tuple[int, ...]] = {}

    def observe(self, split: SplitId | None, ts_us: int | None, cell: int = 0, *, latest_us: int | None = None) -> None:
        """Measure one row.

        A row without a split or an event time is only counted. A row beyond ``latest_us``, the future guard, goes into
        a future mark.
        """
        future = ts_us is not None and latest_us is not None and ts_us > latest_us
        rows, far, no_time, no_split, early = self._counts.get(cell, _NO_ROWS)  # `map` takes a fifth longer, row by row
        early += ts_us is not None and ts_us < 0
        self._counts[cell] = rows + 1, far + future, no_time + (ts_us is None), no_split + (split is None), early
        if split is not None and ts_us is not None:
            _add(self._future if future else self._marks, (split, cell), SplitMark(ts_us, ts_us, 1))

    def observe_many(self, split: SplitId, mark: SplitMark, cell: int = 0) -> None:
        """Measure many good rows of one split at once, such as an Arrow batch reduced to its mark."""
        rows, *faults = self._counts.get(cell, _NO_ROWS)
        self._counts[cell] = (rows + mark.rows, *faults)
        _add(self._marks, (split, cell), mark)

    def mark_future(self, split: SplitId, mark: SplitMark, cell: int) -> None:
        """Measure rows of one split beyond the future guard at once; ``count`` counts these rows."""
        _add(self._future, (split, cell), mark)

    def count(self, counts: BatchCounts, cell: int = 0) -> None:
        """Count many rows that move no watermark at once, by their faults; ``rows`` includes all of them."""
        faults = counts.future_rows, counts.null_time_rows, counts.null_split_rows, counts.before_epoch_rows
        self._counts[cell] = tuple(map(add, self._counts.get(cell, _NO_ROWS), (counts.rows, *faults)))

    def absorb(self, other: SplitTracker, *, moved: int = 0) -> None:
        """Merge another measurement into this tracker, with ``moved`` added to its cells.

        The marks of thousands of tasks are not copied for each task.
        """
        for own_marks, marks in ((self._marks, other._marks), (self._future, other._future)):
            for (split, cell), mark in marks.items():
                key = split, cell + moved
                own = own_marks.get(key)
                own_marks[key] = mark if own is None else own.merged(mark)
        for cell, counts in other._counts.items():
            self._counts[cell + moved] = tuple(map(max, self._counts.get(cell + moved, _NO_ROWS), counts))

    def marks(self) -> dict[SplitId, SplitMark]:
        """The mark of each split in the batch, over all cells; splits sorted."""
        return _folded(self._marks)

    def future_marks(self) -> dict[SplitId, SplitMark]:
        """The rows of each split beyond the future guard, over all cells; splits sorted."""
        return _folded(self._future)

    def newest_us(self) -> int | None:
        """The largest event time of the batch, future rows included; None: no row has an event time."""
        return max((mark.max_us for marks in (self._marks, self._future) for mark in marks.values()), default=None)

    def counts(self) -> BatchCounts:
        """The totals over all cells. ``dropped_rows`` is 0 because only Spark knows it."""
        return BatchCounts(*(sum(column) for column in zip(*self._counts.values(), strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitTracker) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable


def _add(marks: dict[Key, SplitMark], key: Key, mark: SplitMark) -> None:
    known = marks.get(key)
    marks[key] = mark if known is None else known.added(mark)


def _folded(marks: dict[tuple[SplitId, int], SplitMark]) -> dict[SplitId, SplitMark]:
    folded: dict[SplitId, SplitMark] = {}
    for (split, _), mark in sorted(marks.items(), key=lambda item: split_order(item[0][0])):
        _add(folded, split, mark)
    return folded
