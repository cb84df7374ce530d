"""Each split's own bound, as late as its rows were seen to come: Flink's bound, found instead of guessed.

The bound of a split is the lateness that all but a share of 1 - coverage of its rows does not exceed. A row is late
against the largest time before it, in its own batch or in an earlier one. Streams show different parts of it:

    rows          in a stream that our sources read: of every row how far it lies behind the largest before it in its
                  slice, and its time, which is held against all batches before
    batches       in a wrapped stream: how far the earliest row of a batch lies behind all batches before.
                  All rows of the batch count as so late, so coverage is the share of rows in batches that are in time
                  as a whole

What was seen is remembered for three spans, in which the weight of a batch fades, and the largest answer counts. The
shortest takes in within a few batches that rows come to be later. The longest is there for what recurs: rows that are
late for a while are lost until their event time has made up for it, so a split must know of them before they come
again. What recurs after a longer time than about half of the longest span is forgotten in part, and more of it is late
than the share. Until enough was seen the bound is the largest that is allowed.

A bound that grows lowers no watermark: a split stays where it is until its event time has made up for it.

Source: Confluent's automatic watermarks for Flink (a quantile of what was seen, between a least and a most, 250 rows
before it begins).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from lowmark.watermark.generator import LOWEST_US
from lowmark.watermark.lateness import buckets_of, upper_edges
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import AdaptiveBound

from .events import BatchReported, SplitColumn

ENOUGH_ROWS, ENOUGH_BATCHES = 250, 20
"""So much must be seen of a split before its bound is its own,"""
ENOUGH_SHARE = 0.2
"""and this share of the rows, or batches, of which one on average may be late."""
SPANS = (10, 100)
"""In so many batches of a split the weight of a batch fades to 37 %, in the two shorter spans,"""
LONGEST_SPAN = 2_000
"""and in so many in the longest one, but"""
LEAST_LATE, MOST_LATE = 3, 20
"""so many batches must be late in it on average: with fewer none could tell the share, and more tell nothing."""

_ROUNDED_US = 2 * MILLISECOND_US - 1  # a watermark is 1 ms behind the largest time, and rounded down to a whole one

_FURTHEST_US = 1 << 61  # so far on both sides no difference overflows: the years -71,000 to 75,000
_MOST_ROWS = 1e18

_Weights = npt.NDArray[np.float32]  # of rows, by how late they are


class _Split:
    """One split: its bound, and what it is made of."""

    __slots__ = ("beyond", "bound_us", "by_rows", "enough", "found", "latest_us", "seen", "spans")

    def __init__(self, bound_us: int, spans: _Weights) -> None:
        self.bound_us = bound_us
        self.beyond = 0
        self.spans = spans  # one line each
        self.seen = 0
        self.by_rows = False
        self.enough = False  # was seen to tell its bound
        self.found = False  # has a bound of its own, which may be from before a restart
        self.latest_us: int | None = None  # the largest event time, at most 2 ms more


class AdaptiveBounds:
    """The bounds of the splits of one stream. Some 2 kB a split, whatever comes.

    Args:
        params: coverage, and between what the bounds stay.
        kept_us: bounds from before a restart, by split.
        kept_rows: about how many rows each of them comes of; missing: not known.

    >>> bounds = AdaptiveBounds(AdaptiveBound(0.9, 0, 60_000_000))
    >>> for batch in range(30):        # ten rows a batch, one of them 3 to 4 seconds late
    ...     bounds.learn(BatchReported(batch, 0, {"a": batch}, lateness={"a": {0: 9, 300: 1}}))
    >>> bounds.bound_us("a") < 4_000_000, bounds.bound_us("b")
    (True, 60000000)
    """

    def __init__(
        self,
        params: AdaptiveBound,
        kept_us: Mapping[SplitId, int] | None = None,
        kept_rows: Mapping[SplitId, int] | None = None,
    ) -> None:
        self._params = params
        self._late_share = 1.0 - params.coverage
        longest = round(min(max(LONGEST_SPAN, LEAST_LATE / self._late_share), MOST_LATE / self._late_share))
        self._fades = np.array([[1 - 1 / batches] for batches in sorted({*SPANS, longest})], np.float32)
        # No answer depends on what is below the least bound, or above the largest: each is one column.
        at_least, at_most = buckets_of(np.array([params.at_least_us, params.at_most_us])).tolist()
        self._first = max(0, at_least - 1)
        edges_us = upper_edges(np.arange(self._first, at_most + 2))
        whole_us = -(-edges_us // MILLISECOND_US) * MILLISECOND_US
        self._bounds_us = np.clip(whole_us, params.at_least_us, params.at_most_us)  # of each column
        self._splits: dict[SplitId, _Split] = {}
        for split, bound_us in ({} if kept_us is None else kept_us).items():
            self._splits[split] = self._restored(bound_us, 0 if kept_rows is None else kept_rows.get(split, 0))

    def bound_us(self, split: SplitId) -> int:
        """How late a row of a split may be: a multiple of 1,000 us within the limits."""
        known = self._splits.get(split)
        return self._params.at_most_us if known is None else known.bound_us

    def beyond(self, split: SplitId) -> int:
        """Rows, or batches where these alone are seen, that came later than the bound was then."""
        known = self._splits.get(split)
        return 0 if known is None else known.beyond

    @property
    def kept_us(self) -> Mapping[SplitId, int]:
        """What a restart needs: the bounds that were found, microseconds."""
        return {split: known.bound_us for split, known in self._splits.items() if known.found}

    @property
    def kept_rows(self) -> Mapping[SplitId, int]:
        """About how many rows each of these bounds comes of, in the longest span; missing: not known."""
        counted = {split: _about(known.spans[-1].sum()) for split, known in self._splits.items() if known.enough}
        return {split: rows for split, rows in counted.items() if rows}

    def forget(self, split: SplitId) -> None:
        """The split is not known any more."""
        self._splits.pop(split, None)

    def learn(self, event: BatchReported) -> None:
        """Take in what a batch, which was not taken before, shows of its splits."""
        for split, watermark_us in event.watermarks_us.items():
            known = self._splits.get(split)
            if known is None:
                known = self._splits[split] = _Split(self._params.at_most_us, self._nothing())
            known.by_rows |= split in event.lateness
            late = self._late(event, split, known.latest_us)
            if late is not None:
                self._take(known, late)
            latest_us = watermark_us + self._params.at_least_us + _ROUNDED_US
            known.latest_us = latest_us if known.latest_us is None else max(known.latest_us, latest_us)

    def bounded(
        self, watermarks_us: Mapping[SplitId, int], stands_at_us: Mapping[SplitId, int]
    ) -> Mapping[SplitId, int]:
        """Watermarks that were made with the least bound, with what each split's own takes off beyond it.

        Args:
            watermarks_us: of some splits.
            stands_at_us: what those splits stand at that are known: no watermark becomes smaller than that.
        """
        made: dict[SplitId, int] = {}
        for split, us in watermarks_us.items():
            own_us = max(us + self._params.at_least_us - self.bound_us(split), LOWEST_US)
            made[split] = max(own_us, stands_at_us.get(split, own_us))
        if not isinstance(watermarks_us, SplitColumn):
            return made
        return SplitColumn(watermarks_us.splits, np.fromiter(made.values(), np.int64, len(made)))

    # -- how

    def _late(self, event: BatchReported, split: SplitId, latest_us: int | None) -> _Weights | None:
        """The rows of a split in a batch by how late they are; None if the batch does not show it."""
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
        # So many rows at least are so late, by what came in their slice or by what came before.
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
            # Beyond the column of the bound is no more than the share that may be late, in each span.
            columns = np.count_nonzero(above > self._late_share * above[:, :1], axis=1)
            known.bound_us = int(self._bounds_us[columns.max() - 1])

    def _restored(self, bound_us: int, rows: int) -> _Split:
        most = len(self._bounds_us) - 2
        known = _Split(
            int(self._bounds_us[min(int(np.searchsorted(self._bounds_us, bound_us)), most)]), self._nothing()
        )
        known.found, known.enough = True, rows > 0  # not known how many: it holds until enough was seen anew
        share = min(1.0, 2.0 * self._late_share)  # so it holds for two thirds of the longest span at least
        known.spans[-1, 0] = rows * (1.0 - share)
        known.spans[-1, self._column(known.bound_us)] += rows * share
        return known

    def _nothing(self) -> _Weights:
        return np.zeros((len(self._fades), len(self._bounds_us)), np.float32)

    def _by_column(self, buckets: npt.NDArray[np.int64] | npt.NDArray[np.intp], rows: Mapping[int, int]) -> _Weights:
        columns, width = np.clip(buckets - self._first, 0, len(self._bounds_us) - 1), len(self._bounds_us)
        return np.bincount(columns, np.fromiter(rows.values(), np.float64, len(rows)), width).astype(np.float32)

    def _column(self, bound_us: int) -> int:
        """The last with this bound; the one after the largest bound is for what lies beyond it."""
        return min(int(np.searchsorted(self._bounds_us, bound_us, "right")) - 1, len(self._bounds_us) - 2)


def _keys(counted: Mapping[int, int]) -> npt.NDArray[np.int64]:
    return np.fromiter(counted, np.int64, len(counted))


def _and_above(weights: _Weights) -> _Weights:
    """Sum up each column and the columns behind it."""
    above: _Weights = weights[..., ::-1].cumsum(axis=-1)[..., ::-1]
    return above


def _about(rows: float) -> int:
    """Two digits of a number: what is remembered in more changes with every batch and says no more."""
    return int(float(f"{min(rows, _MOST_ROWS):.1e}"))
