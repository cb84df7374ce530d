"""A split of several sources: it carries the index of its source, which plans and reads the split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowmark.sources.api import SourceSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSplit(SourceSplit):
    """A split of one of several sources. Its own `start` and `stop` count, not those of the source's own `split`.

    >>> tagged = HybridSplit.wrap(1, SourceSplit(split_id="orders/0", start=5, parents=("old",)))
    >>> tagged.split_id, tagged.start, tagged.parents
    ('1:orders/0', 5, ('1:old',))
    >>> replace(tagged, stop=9).unwrap()
    SourceSplit(split_id='orders/0', start=5, stop=9, parents=('old',))
    """

    source_index: int
    split: SourceSplit

    @classmethod
    def wrap(cls, index: int, split: SourceSplit) -> HybridSplit:
        return cls(
            split_id=f"{index}:{split.split_id}",
            start=split.start,
            stop=split.stop,
            parents=tuple(f"{index}:{parent}" for parent in split.parents),
            source_index=index,
            split=split,
        )

    def unwrap(self) -> SourceSplit:
        """The source's own split, with the start and stop of this split."""
        if (self.split.start, self.split.stop) == (self.start, self.stop):  # nearly always, and asked for each lookup
            return self.split
        return replace(self.split, start=self.start, stop=self.stop)


def by_source(splits: Iterable[HybridSplit]) -> list[tuple[int, list[SourceSplit]]]:
    """The index of each source with its own splits, earlier sources first."""
    found: dict[int, list[SourceSplit]] = {}
    for split in splits:
        found.setdefault(split.source_index, []).append(split.unwrap())
    return sorted(found.items())
