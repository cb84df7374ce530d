"""Each split's own bound, as late as its rows were seen to come: Flink's bound, found instead of guessed.

The bound of a split is the lateness that all but a share of 1 - coverage of what was seen of it does not exceed. What
is seen depends on where it is seen:

    rows          where they pass through Python, as in a stream that our sources read: every row, and how far it lies
                  behind the largest before it in its slice; and the worst of each batch against all batches before
    batches       where Spark's JVM observes them: how far the earliest row of a batch lies behind all batches before.
                  Coverage then is a share of batches, all of whose rows are in time, which covers more rows than that

Two memories are kept, and the larger answer counts: a long one, in which what was seen fades by a hundredth with each
batch of the split, and a short one with a tenth. So a stream that grows unruly has its bound within a few batches, and
one that calms down within some hundreds. Until enough was seen the bound is the largest that is allowed.

A bound that grows lowers no watermark: a split stays where it is until its event time has made up for it.

Source: Confluent's automatic watermarks for Flink (a quantile of what was seen, between a least and a most, 250 rows
before it begins).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from lowmark.watermark.generator import LOWEST_US, MILLISECOND_US
from lowmark.watermark.lateness import buckets_of, upper_edges
from lowmark.watermark.state import SplitId
from lowmark.watermark.strategy import AdaptiveBound

from .events import BatchReported, SplitColumn

ENOUGH_ROWS, ENOUGH_BATCHES = 250, 20
"""So much must be seen of a split before its bound is its own."""
FADES = (0.99, 0.9)
"""What is left of a batch's weight after each batch, in the long memory and in the short one."""
SEED_BATCHES = 100.0
"""A bound that was kept over a restart weighs as much as so many batches."""

_NOTHING = 1e-12
_MOST_US = 2**63 - 1


class _Memory:
    """What was seen of one split, by bucket; the weight of what is old fades."""

    __slots__ = ("_fade", "_weights")

    def __init__(self, fade: float) -> None:
        self._fade = fade
        self._weights: dict[int, float] = {}

    def fade(self) -> None:
        kept = {bucket: weight * self._fade for bucket, weight in self._weights.items()}
        self._weights = {bucket: weight for bucket, weight in kept.items() if weight > _NOTHING}

    def add(self, bucket: int, weight: float) -> None:
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight

    def quantile_us(self, coverage: float) -> int:
        """The upper edge of the bucket beyond which no more than the rest lies."""
        allowed, beyond = (1.0 - coverage) * sum(self._weights.values()), 0.0
        for bucket in sorted(self._weights, reverse=True):
            beyond += self._weights[bucket]
            if beyond > allowed:
                return int(upper_edges(np.array([bucket]))[0])
        return 0


class _Split:
    """One split: its bound, and what it is made of."""

    __slots__ = ("beyond", "bound_us", "memories", "rows", "seed_us", "seen", "top_us")

    def __init__(self, bound_us: int, seed_us: int | None = None) -> None:
        self.bound_us = bound_us
        self.beyond = 0
        self.memories = tuple(_Memory(fade) for fade in FADES)
        self.seen = 0
        self.rows = False  # whether rows were seen, not batches alone
        self.seed_us = seed_us  # a bound from before a restart, until the first batch says what weighs how much
        self.top_us: int | None = None  # the largest watermark with the least bound


class AdaptiveBounds:
    """The bounds of the splits of one stream.

    Args:
        params: coverage, and between what the bounds stay.
        kept_us: bounds from before a restart, by split.

    >>> bounds = AdaptiveBounds(AdaptiveBound(0.9, 0, 60_000_000))
    >>> for batch in range(30):        # ten rows a batch, one of them 3 to 4 seconds late
    ...     bounds.learn(BatchReported(batch, 0, {"a": batch}, lateness={"a": {0: 9, 300: 1}}))
    >>> bounds.bound_us("a") < 4_000_000, bounds.bound_us("b")
    (True, 60000000)
    """

    def __init__(self, params: AdaptiveBound, kept_us: Mapping[SplitId, int] | None = None) -> None:
        self._params = params
        self._splits: dict[SplitId, _Split] = {
            split: _Split(self._limited(bound_us), bound_us)
            for split, bound_us in ({} if kept_us is None else kept_us).items()
        }

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
        """What a restart needs: the bounds that were found."""
        return {
            split: known.bound_us
            for split, known in self._splits.items()
            if self._enough(known) or known.seed_us is not None
        }

    def forget(self, split: SplitId) -> None:
        """The split is not known any more."""
        self._splits.pop(split, None)

    def learn(self, event: BatchReported) -> None:
        """Take in what a batch, which was not taken before, shows of its splits."""
        for split, watermark_us in event.watermarks_us.items():
            known = self._splits.get(split)
            if known is None:
                known = self._splits[split] = _Split(self._params.at_most_us)
            self._learn(known, event.lateness.get(split, {}), event.first_us.get(split))
            known.top_us = watermark_us if known.top_us is None else max(known.top_us, watermark_us)

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

    def _learn(self, known: _Split, lateness: Mapping[int, int], first_us: int | None) -> None:
        seen = dict(lateness)
        known.rows |= bool(seen)
        if first_us is not None and known.top_us is not None:
            # Less than 2 ms too much: a watermark is 1 ms behind the largest time, and rounded down.
            behind_us = known.top_us + self._params.at_least_us + 2 * MILLISECOND_US - 1 - first_us
            bucket = int(buckets_of(np.array([min(max(0, behind_us), _MOST_US)]))[0])
            if bucket > max(seen, default=-1):
                seen[bucket] = seen.get(bucket, 0) + 1
        elif not seen:
            return  # the first batch of all, of which only its largest time is known
        count = sum(seen.values())
        known.seen += count
        in_force = int(buckets_of(np.array([known.bound_us]))[0])
        known.beyond += sum(rows for bucket, rows in seen.items() if bucket > in_force)
        for memory in known.memories:
            memory.fade()
            for bucket, rows in seen.items():
                memory.add(bucket, rows)
        if known.seed_us is not None:
            self._sow(known, count)
        if self._enough(known):
            found_us = max(memory.quantile_us(self._params.coverage) for memory in known.memories)
            known.bound_us = self._limited(found_us)

    def _sow(self, known: _Split, count: int) -> None:
        """Let the bound of before the restart count like the batches that it came of."""
        assert known.seed_us is not None
        weight, bucket = count * SEED_BATCHES, int(buckets_of(np.array([known.seed_us]))[0])
        share = min(1.0, 2.0 * (1.0 - self._params.coverage))
        known.memories[0].add(0, weight * (1.0 - share))
        known.memories[0].add(bucket, weight * share)
        known.seed_us, known.seen = None, known.seen + int(weight)

    def _enough(self, known: _Split) -> bool:
        return known.seen >= (ENOUGH_ROWS if known.rows else ENOUGH_BATCHES)

    def _limited(self, bound_us: int) -> int:
        whole_us = -(-bound_us // MILLISECOND_US) * MILLISECOND_US
        return min(max(whole_us, self._params.at_least_us), self._params.at_most_us)
