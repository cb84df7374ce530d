"""Splits that come of other splits: what a silent child of a reshard inherits.

    child      what it stands at
    has spoken its own watermark, like every split; what it inherited is over
    silent     the minimum of what its parents stand at; no value at all (it absorbs) while one of them has none

The minimum is taken anew whenever a parent moves, so the order in which reshards, discoveries and reports arrive
has no influence, and a parent may deliver after its children exist. A silent child holds at what it inherits, and
nobody passes it there: its first rows come after its parents' last. While one of its parents may still deliver,
its silence means nothing either, for many sources read a child only after its parents.

A parent that is removed leaves behind what it stood at. A parent that was never known leaves nothing, so its
children absorb until they speak: a minimum with an unknown is unknown.

Source: FLINK-4576 (resharding must be transparent); Kinesis' parent and child shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from lowmark.watermark.errors import InvalidReshard
from lowmark.watermark.state import INFLUENCE, Influence, SplitId, SplitState, split_order

from .coalescer import Coalescer

Ancestry = Mapping[SplitId, tuple[tuple[SplitId, ...], int | None]]
"""Of every silent child: its parents, sorted, and what the removed ones among them stood at."""


class Lineage:
    """The splits of a coalescer, with those among them that inherit. Without reshards it costs one look-up.

    A child that inherits stands in the coalescer as a split that takes part; here it is PENDING and has no
    watermark, which is what it is.

    Args:
        coalescer: the splits; a caller changes those that may be children through this.

    >>> coalescer = Coalescer()
    >>> for split in ("parent", "other", "child"): coalescer.assign(split)
    >>> coalescer.report("parent", 10); coalescer.report("other", 90)
    >>> lineage = Lineage(coalescer)
    >>> lineage.reshard(("parent",), ("child",)); lineage.settle()
    True
    >>> coalescer.finish("parent"), coalescer.advance().after_us    # up to the parent's, not beyond
    (True, 10)
    >>> lineage.state("child"), lineage.watermark_us("child"), lineage.inherited_us("child")
    (<SplitState.PENDING: 'pending'>, None, 10)
    """

    def __init__(self, coalescer: Coalescer, ancestry: Ancestry | None = None) -> None:
        self._coalescer = coalescer
        self._parents: dict[SplitId, set[SplitId]] = {}  # of silent children
        self._left_us: dict[SplitId, int] = {}  # what the removed parents of a silent child stood at, at least
        self._heirs: dict[SplitId, int] = {}  # silent children that stand at a value, and the value
        # Silent children and their parents, parents first; splits that spoke or were removed, until the next reshard.
        self._order: tuple[SplitId, ...] | None = None
        for child, (parents, left_us) in ({} if ancestry is None else ancestry).items():
            self._parents[child] = set(parents)
            if left_us is not None:
                self._left_us[child] = left_us

    # -- what is known

    def state(self, split: SplitId) -> SplitState:
        """The state of a split. Raises UnknownSplit."""
        state = self._coalescer.state(split)
        return SplitState.PENDING if state is SplitState.ACTIVE and split in self._heirs else state

    def watermark_us(self, split: SplitId) -> int | None:
        """What a split itself reported; None before. Raises UnknownSplit."""
        return None if split in self._heirs else self._coalescer.watermark_us(split)

    def standings(self) -> Iterator[tuple[SplitId, SplitState, int | None]]:
        """Id, ``state`` and ``watermark_us`` of every split, in no particular order. O(n)."""
        if not self._heirs:
            return self._coalescer.standings()
        return ((split, self.state(split), self.watermark_us(split)) for split in self._coalescer.splits)

    def inherited_us(self, split: SplitId) -> int | None:
        """What a silent child stands at; None for every other split."""
        return self._heirs.get(split)

    @property
    def pending(self) -> frozenset[SplitId]:
        """The splits that hold and have not spoken, heirs among them."""
        return self._coalescer.pending | self._heirs.keys() - self._left_out()

    @property
    def states(self) -> Mapping[SplitState, int]:
        """How many splits are in each state; every state is there."""
        states = dict(self._coalescer.states)
        for split in self._heirs:
            if self._coalescer.state(split) is SplitState.ACTIVE:
                states[SplitState.ACTIVE] -= 1
                states[SplitState.PENDING] += 1
        return states

    @property
    def children(self) -> Iterable[SplitId]:
        """The silent children."""
        return self._parents.keys()

    @property
    def ancestry(self) -> Ancestry:
        """What a restart needs; the constructor takes it."""
        return {
            child: (tuple(sorted(parents, key=split_order)), self._left_us.get(child))
            for child, parents in self._parents.items()
        }

    def waits(self, child: SplitId) -> bool:
        """Whether a parent of this silent child may still deliver, so that its own silence means nothing."""
        known = (parent for parent in self._parents.get(child, ()) if parent in self._coalescer)
        return any(INFLUENCE[self._coalescer.state(parent)] is not Influence.IDENTITY for parent in known)

    # -- what happens

    def check(self, parents: tuple[SplitId, ...], children: tuple[SplitId, ...]) -> None:
        """Whether ``reshard`` would accept these.

        Raises:
            InvalidReshard: there is no parent or no child, or a split would be its own ancestor.
        """
        if not parents or not children:
            raise InvalidReshard(repr(parents), repr(children), "at least one parent and one child")
        ancestors, ahead = set(parents), list(parents)
        while ahead:
            further = self._parents.get(ahead.pop(), set()) - ancestors
            ancestors |= further
            ahead += further
        for child in children:
            if child in ancestors:
                raise InvalidReshard(repr(parents), repr(children), f"no split to be its own ancestor, as {child!r} is")

    def reshard(self, parents: tuple[SplitId, ...], children: tuple[SplitId, ...]) -> bool:
        """Rows of ``parents`` go on in ``children``, which are assigned. Returns whether that was news.

        A child that has spoken needs nothing any more. More parents of a known child are added to those it has.
        """
        news = False
        for child in children:
            known = self._parents.get(child, set())
            if self.watermark_us(child) is None and not known.issuperset(parents):
                self._parents[child] = known | set(parents)
                self._order, news = None, True
        return news

    def speak(self, split: SplitId) -> None:
        """A split is about to report for itself: what it inherited is over."""
        if self._parents.pop(split, None) is not None:
            self._left_us.pop(split, None)
            if split in self._heirs:
                self._stand(split, None)

    def remove(self, split: SplitId) -> bool:
        """Forget a split, but for what its silent children inherit. Returns whether it was known."""
        if split not in self._coalescer:
            return False
        if self._parents:
            at_us = self._stands_at().get(split, self.watermark_us(split))
            for child, parents in self._parents.items():
                if split in parents and at_us is not None:  # without a value it stays, as an unknown parent
                    parents.discard(split)
                    self._left_us[child] = min(at_us, self._left_us.get(child, at_us))
            self._parents.pop(split, None)
            self._left_us.pop(split, None)
            self._heirs.pop(split, None)
        return self._coalescer.remove(split)

    def settle(self) -> None:
        """Let every silent child stand at what it inherits by now. O(c) for ``c`` silent children."""
        if not self._parents:
            return
        for child, at_us in self._stands_at().items():
            if at_us != self._heirs.get(child) and self._coalescer.state(child) is not SplitState.FINISHED:
                self._stand(child, at_us)

    # -- how

    def _stands_at(self) -> dict[SplitId, int | None]:
        """The definition: the table above, parents before their children."""
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
        """Put a silent child anew: what it stands at may be less than before, when a parent becomes known."""
        state = self.state(child)
        self._coalescer.remove(child)
        if at_us is None:
            self._heirs.pop(child, None)
        else:
            self._heirs[child] = at_us
            state = SplitState.ACTIVE if state is SplitState.PENDING else state
        self._coalescer.assign(child, state=state, watermark_us=at_us)

    def _left_out(self) -> set[SplitId]:
        return {s for s in self._heirs if INFLUENCE[self._coalescer.state(s)] is Influence.IDENTITY}
