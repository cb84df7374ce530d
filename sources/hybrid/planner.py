"""Plans splits of several sources by each source's own planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lowmark.sources.api import ResultT, SplitEnd, SplitPlanner
from lowmark.sources.metric_group import added_up

from .split import HybridSplit, by_source
from .succession import Succession

AnyPlanner = SplitPlanner[Any]


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
        for index, mine in by_source(splits):
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
        for index, mine in by_source(split for split, _ in stops):
            names = [f"{index}:{split.split_id}" for split in mine]
            cut = self._planner(index).cut([(split, at[name]) for split, name in zip(mine, names, strict=True)])
            for name, (part, rest) in zip(names, cut, strict=True):
                parts[name] = HybridSplit.wrap(index, part), HybridSplit.wrap(index, rest)
        return [parts[split.split_id] for split, _ in stops]

    def notify_checkpoint_complete(self, splits: Sequence[HybridSplit]) -> None:
        for index, mine in by_source(splits):
            self._planner(index).notify_checkpoint_complete(mine)

    def metric_values(self) -> Mapping[str, float]:
        return added_up(each.metric_values() for each in self._planners.values())

    def trouble(self) -> str | None:
        return next((told for planner in self._planners.values() if (told := planner.trouble()) is not None), None)

    def close(self) -> None:
        with ExitStack() as closing:  # closes every planner, even if an earlier one raises
            for planner in self._planners.values():
                closing.callback(planner.close)

    def _asked(
        self, splits: Sequence[HybridSplit], ask: Callable[[AnyPlanner, list[Any]], Mapping[str, ResultT]]
    ) -> dict[str, ResultT]:
        return {
            f"{index}:{split_id}": answer
            for index, mine in by_source(splits)
            for split_id, answer in ask(self._planner(index), mine).items()
        }

    def _planner(self, index: int) -> AnyPlanner:
        if index not in self._planners:
            self._planners[index] = self._sources[index].create_planner()
        return self._planners[index]
