"""A bound for each split, measured from the lateness of its rows: Flink's bound, found instead of guessed.

At most a share of 1 - coverage of a split's rows is later than the bound of the split. The lateness of a row is its
distance behind the largest event time before it, in its own batch or in an earlier batch. Streams show lateness in two
ways:

    rows          in a stream that our sources read: the distance of each row behind the largest time before it in its
                  slice, and the time of the row, which is compared with all earlier batches
    batches       in a wrapped stream: the distance of the earliest row of a batch behind all earlier batches.
                  All rows of the batch count as late by that distance, so coverage is the share of rows in batches
                  without a late row

Lateness is remembered in three spans, in which the weight of a batch fades, and the largest of the three bounds counts.
The shortest span notices within a few batches that rows have become later. The longest span covers lateness that
recurs: late rows are lost until the split's event time has made up for a larger bound, so the bound must be large
before late rows come again. If the lateness recurs after more than about half of the longest span, the span has partly
forgotten it, and more rows than the share are late. Until enough was measured the bound is the largest allowed bound.

A growing bound lowers no watermark: a split keeps its watermark until its event time has made up for the growth.

Source: Confluent's automatic watermarks for Flink (a quantile of measured lateness, within limits, after 250
rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from lowmark.watermark.generator import LOWEST_US
from lowmark.watermark.lateness import buckets_of, upper_edges
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import AdaptiveBound

from .events import BatchReported, SplitColumn

ENOUGH_ROWS, ENOUGH_BATCHES = 250, 20
"""A split has a bound of its own after this number of rows, or of batches."""
ENOUGH_SHARE = 0.2
"""A split has a bound of its own after this fraction of 1 / (1 - coverage) rows, or batches, if that is more."""
SPANS = (10, 100)
"""Batches of a split in which the weight of a batch fades to 37 %, in the two shorter spans."""
LONGEST_SPAN = 2_000
"""The same for the longest span, within the limits of ``LEAST_LATE`` and ``MOST_LATE``."""
LEAST_LATE, MOST_LATE = 3, 20
"""Least and largest number of late batches in the longest span, on average: fewer show no share, more add nothing."""

_ROUNDED_US = 2 * MILLISECOND_US - 1  # a watermark is 1 ms behind the largest time, and rounded down to a whole one

_FURTHEST_US = 1 << 61  # no difference of two times within this limit overflows: the years -71,000 to 75,000
_MOST_ROWS = 1e18

_Weights = npt.NDArray[np.float32]  # weights of rows, by lateness


class _Split:
    __slots__ = ("beyond", "bound_us", "by_rows", "enough", "found", "latest_us", "seen", "spans")

    def __init__(self, bound_us: int, spans: _Weights) -> None:
        self.bound_us = bound_us
        self.spans = spans  # one line for each span
        self.beyond = self.seen = 0
        self.by_rows = False
        self.enough = False  # whether enough was measured for a bound
        self.found = False  # whether the split has a bound of its own, perhaps from before a restart
        self.latest_us: int | None = None  # the largest event time, or up to 2 ms more


class AdaptiveBounds:
    """The bounds of the splits of one stream, at a constant 2 kB for each split.

    Args:
        kept_rows: about how many rows each of these bounds was found from; missing: not known.

    >>> bounds = AdaptiveBounds(AdaptiveBound(0.9, 0, 60_000_000), {}, {})
    >>> for batch in range(30):        # ten rows a batch, one of them 3 to 4 seconds late
    ...     bounds.learn(BatchReported(batch, 0, {"a": batch}, lateness={"a": {0: 9, 300: 1}}))
    >>> bounds.bound_us("a") < 4_000_000, bounds.bound_us("b")
    (True, 60000000)
    """

    def __init__(self, params: AdaptiveBound, kept_us: Mapping[SplitId, int], kept_rows: Mapping[SplitId, int]) -> None:
        self._params = params
        self._late_share = 1.0 - params.coverage
        longest = round(min(max(LONGEST_SPAN, LEAST_LATE / self._late_share), MOST_LATE / self._late_share))
        self._fades = np.array([[1 - 1 / batches] for batches in sorted({*SPANS, longest})], np.float32)
        # Lateness below the least bound is one column, and lateness above the largest bound is one column.
        at_least, at_most = buckets_of(np.array([params.at_least_us, params.at_most_us])).tolist()
        self._first = max(0, at_least - 1)
        edges_us = upper_edges(np.arange(self._first, at_most + 2))
        whole_us = -(-edges_us // MILLISECOND_US) * MILLISECOND_US
        self._bounds_us = np.clip(whole_us, params.at_least_us, params.at_most_us)  # of each column
        self._splits: dict[SplitId, _Split] = {}
        for split, bound_us in kept_us.items():
            self._splits[split] = self._restored(bound_us, kept_rows.get(split, 0))

    def bound_us(self, split: SplitId | None) -> int:
        """How late a row of a split may be: a multiple of 1,000 us within the limits. None: a split without rows."""
        known = None if split is None else self._splits.get(split)
        return self._params.at_most_us if known is None else known.bound_us

    def beyond(self, split: SplitId) -> int:
        """How many rows (in a wrapped stream: batches) came later than the bound at their time."""
        known = self._splits.get(split)
        return 0 if known is None else known.beyond

    @property
    def kept_us(self) -> Mapping[SplitId, int]:
        """The bounds that were found; kept for a restart."""
        return {split: known.bound_us for split, known in self._splits.items() if known.found}

    @property
    def kept_rows(self) -> Mapping[SplitId, int]:
        """About how many rows of the longest span each bound was found from; missing: not known."""
        counted = {split: _about(known.spans[-1].sum()) for split, known in self._splits.items() if known.enough}
        return {split: rows for split, rows in counted.items() if rows}

    def forget(self, split: SplitId) -> None:
        self._splits.pop(split, None)

    def learn(self, event: BatchReported) -> None:
        """Learn the lateness of the splits of a batch. Give each batch once."""
        for split, watermark_us in event.watermarks_us.items():
            known = self._splits.get(split)
            if known is None:
                known = self._splits[split] = _Split(self._params.at_most_us, self._nothing())
            known.by_rows |= split in event.lateness
            late = self._late(event, split, known.latest_us)
            if late is not None:
                self._take(known, late)
            latest_us = event.latest_us.get(split, watermark_us + self._params.at_least_us + _ROUNDED_US)
            known.latest_us = latest_us if known.latest_us is None else max(known.latest_us, latest_us)

    def bounded(
        self, watermarks_us: Mapping[SplitId, int], watermark_us: Callable[[SplitId], int | None]
    ) -> Mapping[SplitId, int]:
        """Take from watermarks the difference between each split's own bound and the least bound.

        No result is smaller than the present watermark of its split, which ``watermark_us`` gives.
        """
        made: dict[SplitId, int] = {}
        for split, us in watermarks_us.items():
            own_us = max(us + self._params.at_least_us - self.bound_us(split), LOWEST_US)
            at_us = watermark_us(split)
            made[split] = own_us if at_us is None else max(own_us, at_us)
        if not isinstance(watermarks_us, SplitColumn):
            return made
        return SplitColumn(watermarks_us.splits, np.fromiter(made.values(), np.int64, len(made)))

    # -- how

    def _late(self, event: BatchReported, split: SplitId, latest_us: int | None) -> _Weights | None:
        """The rows of a split in a batch, by lateness; None if the batch does not show the lateness."""
        counted, times = event.lateness.get(split), event.times.get(split)
        behind = None if counted is None else self._by_column(_keys(counted), counted)
        if times is None:
            first_us = event.first_us.get(split)
            times = {} if first_us is None else {first_us: max(1, event.rows.get(split, 1))}
        if latest_us is None or not times:
            return behind
        before_us = min(max(latest_us, -_FURTHEST_US), _FURTHEST_US)
        before = self._by_column(buckets_of(before_us - np.clip(_keys(times), -_FURTHEST_US, _FURTHEST_US)), times)
        if behind is None:
            return before
        # For each column, take the larger count of rows that are at least so late: in their slice, or against batches.
        late = np.maximum(_and_above(behind), _and_above(before))
        late[:-1] -= late[1:]
        return late

    def _take(self, known: _Split, late: _Weights) -> None:
        beyond = float(late[self._column(known.bound_us) + 1 :].sum())
        known.beyond += round(beyond) if known.by_rows else beyond > 0
        known.seen += round(float(late.sum())) if known.by_rows else 1
        known.spans *= self._fades
        known.spans += late
        least = ENOUGH_ROWS if known.by_rows else ENOUGH_BATCHES
        known.enough |= known.seen >= max(least, round(ENOUGH_SHARE / self._late_share))
        if known.enough:
            known.found, above = True, _and_above(known.spans)
            # In each span, at most the share of rows that may be late lies beyond the column of the bound.
            columns = np.count_nonzero(above > self._late_share * above[:, :1], axis=1)
            known.bound_us = int(self._bounds_us[columns.max() - 1])

    def _restored(self, bound_us: int, rows: int) -> _Split:
        most = len(self._bounds_us) - 2
        known = _Split(
            int(self._bounds_us[min(int(np.searchsorted(self._bounds_us, bound_us)), most)]), self._nothing()
        )
        known.found, known.enough = True, rows > 0  # with an unknown count the bound stays until enough is measured
        share = min(1.0, 2.0 * self._late_share)  # so the bound stays for at least two thirds of the longest span
        known.spans[-1, 0] = rows * (1.0 - share)
        known.spans[-1, self._column(known.bound_us)] += rows * share
        return known

    def _nothing(self) -> _Weights:
        return np.zeros((len(self._fades), len(self._bounds_us)), np.float32)

    def _by_column(self, buckets: npt.NDArray[np.int64] | npt.NDArray[np.intp], rows: Mapping[int, int]) -> _Weights:
        columns, width = np.clip(buckets - self._first, 0, len(self._bounds_us) - 1), len(self._bounds_us)
        return np.bincount(columns, np.fromiter(rows.values(), np.float64, len(rows)), width).astype(np.float32)

    def _column(self, bound_us: int) -> int:
        """The last column with this bound. The column after the largest bound holds lateness beyond that bound."""
        return min(int(np.searchsorted(self._bounds_us, bound_us, "right")) - 1, len(self._bounds_us) - 2)


def _keys(counted: Mapping[int, int]) -> npt.NDArray[np.int64]:
    return np.fromiter(counted, np.int64, len(counted))


def _and_above(weights: _Weights) -> _Weights:
    """Sum up each column and the columns after it."""
    return weights[..., ::-1].cumsum(axis=-1)[..., ::-1]


def _about(rows: float) -> int:
    """Round a number to two digits: more digits would change with every batch and carry no information."""
    return int(float(f"{min(rows, _MOST_ROWS):.1e}"))
