"""A query by hand, without Spark, for the live tests of all sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import pyarrow as pa
from lowmark.sources import DataclassSerializer, Source
from lowmark.sources.api import SplitT
from lowmark.sources.reading.checked_reader import count_nothing
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.testing import ManualEnumeratorContext


class Reading(Generic[SplitT]):
    """An enumerator with one reader, and the positions of its splits.

    Args:
        source: the source to read.
        split: the class of its splits.
        state: the enumerator's state to restore.
        splits: the splits at their positions at that state.

    Attributes:
        splits: by id, at their positions; finished splits at their ends.
        finished: ids of the finished splits.
        counted: what the readers of its batches have counted, by name.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        split: type[SplitT],
        state: bytes | None = None,
        splits: dict[str, SplitT] | None = None,
    ) -> None:
        self.source, self._split = source, split
        self.context = ManualEnumeratorContext[SplitT](num_subtasks=1)
        formats = source.enumerator_state_serializer
        self.enumerator = (
            source.create_enumerator(self.context)
            if state is None
            else source.restore_enumerator(self.context, formats.deserialize(formats.version, state))
        )
        self.planner = source.create_planner()
        self.splits = {} if splits is None else dict(splits)
        self.finished: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.enumerator.start()
        self.context.register(0)
        self.enumerator.add_reader(0)
        self.context.run_async()
        self._take()

    def _take(self) -> None:
        plain = DataclassSerializer(self._split)  # only the checkpoint's content survives
        for _, split in self.context.assigned:
            self.splits.setdefault(split.split_id, plain.deserialize(1, plain.serialize(split)))

    @property
    def going(self) -> list[SplitT]:
        """The splits that are not finished."""
        return [split for name, split in self.splits.items() if name not in self.finished]

    def discover(self) -> list[str]:
        """Discover splits once; return the new ids."""
        before = set(self.splits)
        self.context.next_period()
        self._take()
        return sorted(self.splits.keys() - before)

    def snapshot(self) -> bytes:
        return self.source.enumerator_state_serializer.serialize(self.enumerator.snapshot_state(1))

    def count(self, name: str) -> float:
        """Return what planner and readers have counted under a name."""
        return self.planner.metric_values()[name] + self.counted[name]

    def close(self) -> None:
        self.enumerator.close()
        self.planner.close()


def read_tables(
    source: Source[SplitT, Any],
    slices: Sequence[SplitT],
    count: Callable[[Mapping[str, float]], None] = count_nothing,
) -> dict[str, pa.Table]:
    """Read slices; return split id -> rows, with empty tables too."""
    parts: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in slices}
    for part in read_slices(source, slices, stalled_seconds=30, count=count):
        parts[part.split_id].append(part.rows)
    return {name: pa.Table.from_batches(batches, schema=source.schema) for name, batches in parts.items()}
