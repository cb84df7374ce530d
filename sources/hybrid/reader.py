"""Reads splits of several sources by each source's own reader."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from lowmark.sources.api import Fetched, SplitChange, SplitReader, SplitRows, SplitsAddition, SplitsRemoval
from lowmark.sources.metric_group import added_up

from .split import HybridSplit, by_source
from .succession import Succession


class HybridSplitReader(SplitReader[HybridSplit]):
    """Reads each split by its own source's reader, which is made on first use, earlier sources first."""

    def __init__(self, sources: Succession) -> None:
        self._sources = sources
        self._readers: dict[int, SplitReader[Any]] = {}
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
        for index, mine in by_source(change.splits):
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
        with ExitStack() as closing:  # closes every reader, even if an earlier one raises
            for reader in self._readers.values():
                closing.callback(reader.close)
