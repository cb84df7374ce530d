"""Splits that continue other splits: the watermark that a silent child of a reshard inherits.

    child      its watermark
    has spoken its own watermark, as for every split; the inherited watermark is dropped
    silent     the minimum of its parents' watermarks; no watermark (the child absorbs) while a parent has none

The minimum is taken again whenever a parent moves, so the order in which reshards, discoveries and reports arrive
has no influence, and a parent may deliver after its children exist. A silent child holds the low watermark at the
inherited watermark, because its first rows come after the last rows of its parents. While a parent may still deliver,
the silence of the child does not count, because many sources read a child only after its parents.

A removed parent leaves its watermark behind. A parent that was never known leaves nothing, so its
children absorb until they speak: a minimum with an unknown is unknown. A child that finishes silent inherits no more.

Source: FLINK-4576 (resharding must be transparent); Kinesis' parent and child shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from lowmark.watermark.errors import InvalidReshard
from lowmark.watermark.state import LEFT_OUT, SplitId, SplitState, split_order

from .coalescer import Coalescer

Ancestry = Mapping[SplitId, tuple[tuple[SplitId, ...], int | None]]
"""For every silent child: its parents, sorted, and the smallest watermark of its removed parents."""


class Lineage:
    """The splits of a coalescer, and the children among them that inherit. Without reshards it costs one look-up.

    The coalescer counts an inheriting child as active; callers of this class see its true state: PENDING, without a
    watermark. They change splits that may be children through this class.
    """

    def __init__(self, coalescer: Coalescer, ancestry: Ancestry) -> None:
        self._coalescer = coalescer
        self._parents: dict[SplitId, set[SplitId]] = {}  # of silent children
        self._left_us: dict[SplitId, int] = {}  # what the removed parents of a silent child stood at, at least
        self._heirs: dict[SplitId, int] = {}  # silent children that stand at a value, and the value
        # Silent children and their parents, parents first; splits that spoke or were removed, until the next reshard.
        self._order: tuple[SplitId, ...] | None = None
        for child, (parents, left_us) in ancestry.items():
            self._parents[child] = set(parents)
            if left_us is not None:
                self._left_us[child] = left_us

    # -- queries

    def state(self, split: SplitId) -> SplitState:
        state = self._coalescer.state(split)
        return SplitState.PENDING if state is SplitState.ACTIVE and split in self._heirs else state

    def watermark_us(self, split: SplitId) -> int | None:
        """The watermark that the split itself reported; None before its first report."""
        return None if split in self._heirs else self._coalescer.watermark_us(split)

    def standings(self) -> Iterator[tuple[SplitId, SplitState, int | None]]:
        if not self._heirs:
            return self._coalescer.standings()
        return ((split, self.state(split), self.watermark_us(split)) for split in self._coalescer.splits)

    def inherited_us(self, split: SplitId) -> int | None:
        """The inherited watermark of a silent child; None for every other split."""
        return self._heirs.get(split)

    @property
    def pending(self) -> frozenset[SplitId]:
        """The splits that hold and have not spoken, including silent children with an inherited watermark."""
        holding = (split for split in self._heirs if self._coalescer.state(split) not in LEFT_OUT)
        return self._coalescer.pending.union(holding)

    @property
    def states(self) -> Mapping[SplitState, int]:
        states = dict(self._coalescer.states)
        for split in self._heirs:
            if self._coalescer.state(split) is SplitState.ACTIVE:
                states[SplitState.ACTIVE] -= 1
                states[SplitState.PENDING] += 1
        return states

    @property
    def children(self) -> Iterable[SplitId]:
        return self._parents.keys()

    @property
    def ancestry(self) -> Ancestry:
        """For a restart; the constructor takes it."""
        return {
            child: (tuple(sorted(parents, key=split_order)), self._left_us.get(child))
            for child, parents in self._parents.items()
        }

    def lacks_parents(self, split: SplitId) -> bool:
        """See `SplitWatermarks.lacks_parents`."""
        return split not in self._parents and (split not in self._coalescer or self.watermark_us(split) is None)

    def waits(self, child: SplitId) -> bool:
        """Whether a parent of this silent child may still deliver, so that the child's silence does not count."""
        known = (parent for parent in self._parents.get(child, ()) if parent in self._coalescer)
        return any(self._coalescer.state(parent) not in LEFT_OUT for parent in known)

    # -- changes

    def check(self, parents_of: Mapping[SplitId, tuple[SplitId, ...]]) -> None:
        """Raises `InvalidReshard`: a child has no parent, or a split would be its own ancestor."""
        merged = {**self._parents, **{c: self._parents.get(c, set()) | set(parents_of[c]) for c in parents_of}}
        for child, parents in parents_of.items():
            if not parents:
                raise InvalidReshard(repr(parents), repr(child), "at least one parent")
            ancestors, ahead = set(parents), list(parents)
            while ahead:
                further = merged.get(ahead.pop(), set()) - ancestors
                ancestors |= further
                ahead += further
            if child in ancestors:
                raise InvalidReshard(repr(parents), repr(child), f"no split to be its own ancestor, as {child!r} is")

    def reshard(self, parents_of: Mapping[SplitId, tuple[SplitId, ...]]) -> list[SplitId]:
        """Note the parents whose rows go on in these children, which are assigned. Returns those to which it is news.

        A child that has spoken does not change. A known silent child keeps its parents and gets the new parents too.
        """
        news = []
        for child, parents in parents_of.items():
            known = self._parents.get(child, set())
            if self.watermark_us(child) is None and not known.issuperset(parents):
                self._parents[child] = known | set(parents)
                self._order = None
                news.append(child)
        return news

    def speak(self, split: SplitId) -> None:
        """Drop the inherited watermark of a split that is about to report."""
        if self._parents.pop(split, None) is not None:
            self._left_us.pop(split, None)
            if split in self._heirs:
                self._stand(split, None)

    def remove(self, splits: Sequence[SplitId]) -> None:
        """Forget known splits, except the watermarks that their silent children inherit. O(c) for ``c`` of those."""
        if self._parents:
            stands_at_us = self._stands_at()
            gone_us = {split: stands_at_us.get(split, self.watermark_us(split)) for split in splits}
            for child, parents in self._parents.items():
                for split in parents & gone_us.keys():
                    at_us = gone_us[split]
                    if at_us is not None:  # without a watermark it stays, as an unknown parent
                        parents.discard(split)
                        self._left_us[child] = min(at_us, self._left_us.get(child, at_us))
        for split in splits:
            self._parents.pop(split, None)
            self._left_us.pop(split, None)
            self._heirs.pop(split, None)
            self._coalescer.remove(split)

    def settle(self) -> None:
        """Give every silent child the watermark that it inherits now. O(c) for ``c`` silent children."""
        if not self._parents:
            return
        for child, at_us in self._stands_at().items():
            stands_us = None if self._coalescer.state(child) is SplitState.FINISHED else at_us
            if stands_us != self._heirs.get(child):
                self._stand(child, stands_us)

    # -- how

    def _stands_at(self) -> dict[SplitId, int | None]:
        """The inherited watermarks by their definition: the table above, parents before their children."""
        at_us: dict[SplitId, int | None] = {}
        if self._order is None:
            self._order = tuple(TopologicalSorter(self._parents).static_order())
        for split in self._order:
            if split in self._parents:
                inherited = [at_us[parent] for parent in self._parents[split]]
                if split in self._left_us:
                    inherited.append(self._left_us[split])
                known = [value for value in inherited if value is not None]
                at_us[split] = min(known) if len(known) == len(inherited) else None
            else:
                at_us[split] = self.watermark_us(split) if split in self._coalescer else None
        return {split: at_us[split] for split in self._parents}

    def _stand(self, child: SplitId, at_us: int | None) -> None:
        """Assign a silent child again, because its watermark becomes smaller when another parent becomes known."""
        state = self.state(child)
        self._coalescer.remove(child)
        if at_us is None:
            self._heirs.pop(child, None)
        else:
            self._heirs[child] = at_us
            state = SplitState.ACTIVE if state is SplitState.PENDING else state
        self._coalescer.assign(child, state=state, watermark_us=at_us)
