"""Splits of several sources: each split carries the index of its source, which plans and reads the split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from lowmark.sources.api import (
    Fetched,
    ResultT,
    SourceSplit,
    SplitChange,
    SplitEnd,
    SplitPlanner,
    SplitReader,
    SplitRows,
    SplitsAddition,
    SplitsRemoval,
)
from lowmark.sources.metric_group import added_up

from .succession import Succession

AnyPlanner = SplitPlanner[Any]
AnyReader = SplitReader[Any]


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


def _by_source(splits: Iterable[HybridSplit]) -> list[tuple[int, list[SourceSplit]]]:
    """The index of each source with its own splits, earlier sources first."""
    found: dict[int, list[SourceSplit]] = {}
    for split in splits:
        found.setdefault(split.source_index, []).append(split.unwrap())
    return sorted(found.items())


def _close_all(opened: Iterable[AnyPlanner | AnyReader]) -> None:
    """Close every planner or reader, even if an earlier one raises."""
    with ExitStack() as closing:
        for each in opened:
            closing.callback(each.close)


class HybridPlanner(SplitPlanner[HybridSplit]):
    """Asks each source's own planner, which is made on first use."""

    def __init__(self, sources: Succession) -> None:
        self._sources = sources
        self._planners: dict[int, AnyPlanner] = {}

    def latest(self, splits: Sequence[HybridSplit]) -> Mapping[str, SplitEnd]:
        return self._asked(splits, lambda planner, mine: planner.latest(mine))

    def after_rows(self, split: HybridSplit, rows: int, end: SplitEnd) -> int:
        return self._planner(split.source_index).after_rows(split.unwrap(), rows, end)

    def rows_before(self, split: HybridSplit, position: int) -> int:
        return self._planner(split.source_index).rows_before(split.unwrap(), position)

    def find_time(self, splits: Sequence[HybridSplit], time_us: int) -> Mapping[str, int | None] | None:
        found: dict[str, int | None] = {}
        for index, mine in _by_source(splits):
            positions = self._planner(index).find_time(mine, time_us)
            if positions is None:
                return None
            found.update((f"{index}:{split_id}", position) for split_id, position in positions.items())
        return found

    def claim_us(self, split: HybridSplit, position: int, time_us: int) -> int:
        return self._planner(split.source_index).claim_us(split.unwrap(), position, time_us)

    def claims(self, splits: Sequence[HybridSplit], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
        return self._asked(splits, lambda planner, mine: planner.claims(mine, time_us, until_us))

    def passed_us(self, split: HybridSplit) -> int | None:
        return self._planner(split.source_index).passed_us(split.unwrap())

    def cut(self, stops: Sequence[tuple[HybridSplit, int]]) -> Sequence[tuple[HybridSplit, HybridSplit]]:
        parts: dict[str, tuple[HybridSplit, HybridSplit]] = {}
        at = {split.split_id: stop for split, stop in stops}
        for index, mine in _by_source(split for split, _ in stops):
            names = [f"{index}:{split.split_id}" for split in mine]
            cut = self._planner(index).cut([(split, at[name]) for split, name in zip(mine, names, strict=True)])
            for name, (part, rest) in zip(names, cut, strict=True):
                parts[name] = HybridSplit.wrap(index, part), HybridSplit.wrap(index, rest)
        return [parts[split.split_id] for split, _ in stops]

    def notify_checkpoint_complete(self, splits: Sequence[HybridSplit]) -> None:
        for index, mine in _by_source(splits):
            self._planner(index).notify_checkpoint_complete(mine)

    def metric_values(self) -> Mapping[str, float]:
        return added_up(each.metric_values() for each in self._planners.values())

    def trouble(self) -> str | None:
        return next((told for planner in self._planners.values() if (told := planner.trouble()) is not None), None)

    def close(self) -> None:
        _close_all(self._planners.values())

    def _asked(
        self, splits: Sequence[HybridSplit], ask: Callable[[AnyPlanner, list[Any]], Mapping[str, ResultT]]
    ) -> dict[str, ResultT]:
        return {
            f"{index}:{split_id}": answer
            for index, mine in _by_source(splits)
            for split_id, answer in ask(self._planner(index), mine).items()
        }

    def _planner(self, index: int) -> AnyPlanner:
        if index not in self._planners:
            self._planners[index] = self._sources[index].create_planner()
        return self._planners[index]


class HybridSplitReader(SplitReader[HybridSplit]):
    """Reads each split by its own source's reader, which is made on first use, earlier sources first."""

    def __init__(self, sources: Succession) -> None:
        self._sources = sources
        self._readers: dict[int, AnyReader] = {}
        self._open: dict[int, set[str]] = {}  # source -> its unfinished splits
        self._woken = False

    def fetch(self) -> Fetched:
        index = min((index for index, ids in self._open.items() if ids), default=None)
        if index is None or self._woken:
            self._woken = False
            return Fetched()
        fetched = self._readers[index].fetch()
        self._woken = False
        self._open[index] -= fetched.finished_splits
        return Fetched(
            tuple(SplitRows(f"{index}:{one.split_id}", one.rows, one.position) for one in fetched.batches),
            frozenset(f"{index}:{split_id}" for split_id in fetched.finished_splits),
        )

    def handle_splits_changes(self, change: SplitChange[HybridSplit]) -> None:
        for index, mine in _by_source(change.splits):
            ids = {split.split_id for split in mine}
            if isinstance(change, SplitsAddition):
                if index not in self._readers:
                    self._readers[index] = self._sources[index].create_split_reader()
                self._open.setdefault(index, set()).update(ids)
                self._readers[index].handle_splits_changes(SplitsAddition(tuple(mine)))
            elif index in self._readers:
                self._open[index] -= ids
                self._readers[index].handle_splits_changes(SplitsRemoval(tuple(mine)))

    def wake_up(self) -> None:
        self._woken = True
        for reader in list(self._readers.values()):
            reader.wake_up()

    def metric_values(self) -> Mapping[str, float]:
        return added_up(each.metric_values() for each in self._readers.values())

    def close(self) -> None:
        _close_all(self._readers.values())
