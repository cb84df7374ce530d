"""Counts the lateness of rows in buckets: memory is bounded for any input, and quantiles are never too small.

A bucket spans a sixteenth of a power of two, so a quantile is at most 6.25 % above the true value, and never
below. Up to 31 us every value has a bucket of its own.

Source: the layout of HdrHistogram (Gil Tene), with 4 bits of precision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Micros = npt.NDArray[np.int64]

_BITS = 4
_STEPS = 1 << _BITS


def buckets_of(values_us: Micros) -> npt.NDArray[np.intp]:
    """The bucket of each value, shape (n,) in and out; a negative value counts as 0.

    >>> buckets_of(np.array([-5, 0, 1, 31, 32, 1_000_000])).tolist()
    [0, 0, 1, 31, 32, 270]
    """
    values = np.maximum(values_us, 0)
    power = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1  # of the highest bit; -1 for 0
    power -= (values >> np.maximum(power, 0)) == 0  # a double rounds up beyond 2**53
    shift = np.maximum(power - _BITS, 0)
    return (shift * _STEPS + (values >> shift)).astype(np.intp)


def upper_edges(buckets: npt.NDArray[np.intp]) -> Micros:
    """The largest value of each bucket, shape (n,) in and out.

    >>> upper_edges(np.array([0, 31, 32, 270])).tolist()
    [0, 31, 33, 1015807]
    """
    at = np.asarray(buckets, np.int64)
    shift = np.maximum(at // _STEPS - 1, 0)
    edges: Micros = ((at - shift * _STEPS + 1) << shift) - 1
    return edges


class SliceLateness:
    """Counts the rows of one split that one task reads, in the order of reading.

    A task knows the largest time before a row only within its own slice. So it also counts rows by their time, from
    which the coordinator finds how far the rows lie behind earlier batches.

    >>> rows = SliceLateness()
    >>> rows.add(np.array([1_000_000, 3_000_000, 2_000_000]))
    >>> rows.behind == {0: 2, int(buckets_of(np.array([1_000_000]))[0]): 1}
    True
    >>> rows.times                                 # near the first row exactly, further away 6.25 % too early at most
    {1000000: 1, 1983040: 1, 2966080: 1}
    """

    __slots__ = ("_first_us", "_top_us", "behind", "times")

    def __init__(self) -> None:
        self.behind: dict[int, int] = {}
        """Rows by bucket of their distance behind the largest time before them."""
        self.times: dict[int, int] = {}
        """Rows by event time, rounded down by a share of the distance to the first row."""
        self._first_us: int | None = None
        self._top_us = 0

    def add(self, times_us: Micros) -> None:
        """Count rows, shape (n,), of 1970 or later. O(n)."""
        if not len(times_us):
            return
        if self._first_us is None:
            self._first_us = self._top_us = int(times_us[0])
        tops_us = np.maximum.accumulate(np.append(self._top_us, times_us))
        self._top_us = int(tops_us[-1])
        _count(self.behind, buckets_of(tops_us[:-1] - times_us))
        from_us = times_us - self._first_us
        lower_edges_us = upper_edges(buckets_of(from_us) - 1) + 1
        down_us = np.where(from_us < 0, -upper_edges(buckets_of(-from_us)), lower_edges_us)
        _count(self.times, self._first_us + down_us)


def _count(counted: dict[int, int], values: npt.NDArray[np.intp] | Micros) -> None:
    for value, rows in zip(*(column.tolist() for column in np.unique(values, return_counts=True)), strict=True):
        counted[value] = counted.get(value, 0) + rows


class LatenessHistogram:
    """Rows by lateness, and the exact largest lateness.

    >>> lateness = LatenessHistogram()
    >>> lateness.add(np.array([0] * 98 + [5_000_000, 60_000_000]))
    >>> lateness.quantile_us(0.5), lateness.quantile_us(0.99), lateness.quantile_us(1.0)
    (0, 5242879, 60000000)
    >>> lateness.rows_above(5_242_879)
    1
    """

    __slots__ = ("_counts", "largest_us")

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)  # as long as the highest bucket in use
        self.largest_us = 0

    def add(self, values_us: Micros) -> None:
        """Count rows; a negative lateness counts as none. O(n)."""
        if not len(values_us):
            return
        self._add(np.bincount(buckets_of(values_us)), int(values_us.max()))

    def quantile_us(self, share: float) -> int:
        """A lateness that at least this share of the rows, 0 to 1, does not exceed; 0 without rows."""
        if not len(self._counts):
            return 0
        up_to = np.cumsum(self._counts)
        needed = max(1, int(np.ceil(up_to[-1] * share - 1e-9)))
        bucket = int(np.searchsorted(up_to, needed))
        return min(int(upper_edges(np.array([bucket]))[0]), self.largest_us)

    def rows_above(self, bound_us: int) -> int:
        """How many rows are certainly later than the bound: not those in its bucket."""
        bucket = int(buckets_of(np.array([bound_us]))[0])
        return int(self._counts[bucket + 1 :].sum())

    def merge(self, other: LatenessHistogram) -> None:
        self._add(other._counts, other.largest_us)

    def _add(self, counts: npt.NDArray[np.int64], largest_us: int) -> None:
        if len(counts) > len(self._counts):
            self._counts = np.pad(self._counts, (0, len(counts) - len(self._counts)))
        self._counts[: len(counts)] += counts
        self.largest_us = max(self.largest_us, largest_us)
