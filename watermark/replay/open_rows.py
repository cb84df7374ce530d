"""Counts the rows that a query keeps in state, the rows of open windows, for several delays at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from lowmark.watermark.lateness import Micros

_MOST_BINS = 1 << 16


class OpenRows:
    """Rows by the end of their window, in bins; the bins grow wider when there would be too many.

    Args:
        width_us: width of a bin, microseconds: the window's length if rows have windows.

    >>> rows = OpenRows(10)
    >>> rows.add(np.array([10, 10, 20, 40]))
    >>> rows.above(np.array([5, 10, 30, 40])).tolist()
    [4, 2, 1, 0]
    """

    def __init__(self, width_us: int) -> None:
        self._width_us = width_us
        self._bins = np.zeros(0, np.int64)
        self._rows = np.zeros(0, np.int64)

    def add(self, ends_us: Micros) -> None:
        """Take in rows by the end of their window, shape (n,)."""
        if not len(ends_us):
            return
        bins, rows = np.unique(-(-ends_us // self._width_us), return_counts=True)
        self._bins, self._rows = _sums(np.concatenate((self._bins, bins)), np.concatenate((self._rows, rows)))
        while len(self._bins) > _MOST_BINS:
            self._width_us *= 2
            self._bins, self._rows = _sums(-(-self._bins // 2), self._rows)

    def above(self, thresholds_us: Micros) -> npt.NDArray[np.int64]:
        """How many rows end after each threshold, shape (k,) in and out; exact if a bin is as wide as a window."""
        after = np.concatenate((np.cumsum(self._rows[::-1])[::-1], [0]))
        return after[np.searchsorted(self._bins, thresholds_us // self._width_us, side="right")]

    def forget(self, threshold_us: int) -> None:
        """Forget rows that end at the threshold or earlier, because later calls ask for larger thresholds only."""
        at = int(np.searchsorted(self._bins, threshold_us // self._width_us, side="right"))
        self._bins, self._rows = self._bins[at:], self._rows[at:]


def _sums(bins: Micros, rows: npt.NDArray[np.int64]) -> tuple[Micros, npt.NDArray[np.int64]]:
    """The bins in order, each once, with the sum of its rows."""
    order = np.argsort(bins, kind="stable")
    bins = bins[order]
    starts = starts_of(bins)
    return bins[starts], np.add.reduceat(rows[order], starts)


def starts_of(column: Micros) -> npt.NDArray[np.int64]:
    """Where each run of equal values of a column begins. ``np.unique`` would sort the column.

    >>> starts_of(np.array([7, 7, 3, 3, 3, 7])).tolist()
    [0, 2, 5]
    """
    return np.flatnonzero(np.diff(column, prepend=column[:1] - 1))
