"""A split reader that a test steps through."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa
from lowmark.sources import Fetched, SourceSplit, SplitReader, SplitRows, SplitsAddition, SplitsRemoval

SECONDS = 20.0
SCHEMA = pa.schema([("value", pa.int64())])


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values)}, schema=SCHEMA)


class SteppingReader(SplitReader[SourceSplit]):
    """Gives one row of each split per fetch, for the allowed number of fetches.

    Args:
        values: split id -> its rows; a position is a row's index.
        steps: the allowed number of fetches; None: any number.
    """

    def __init__(self, values: Mapping[str, Sequence[int]], *, steps: int | None = None) -> None:
        self.values = dict(values)
        self.splits: dict[str, int] = {}
        self.calls: list[str] = []
        self.fail: deque[Exception | None] = deque()
        self.fetched = 0
        self.closed = threading.Event()
        self._changed = threading.Condition()
        self._steps, self._woken = steps, False

    def allow(self, steps: int) -> None:
        with self._changed:
            assert self._steps is not None
            self._steps += steps
            self._changed.notify_all()

    def fetch(self) -> Fetched:
        with self._changed:
            assert self._changed.wait_for(lambda: self._woken or self._steps is None or self._steps > 0, SECONDS)
            if self._woken:
                self._woken = False
                return Fetched()
            if self._steps is not None:
                self._steps -= 1
            self.fetched += 1
        if self.fail and (error := self.fail.popleft()):
            raise error
        batches, finished = [], set()
        for name, position in self.splits.items():
            if position < len(self.values[name]):
                batches.append(SplitRows(name, rows(self.values[name][position]), position + 1))
                self.splits[name] = position + 1
            if position + 1 >= len(self.values[name]):
                finished.add(name)
        for name in finished:
            del self.splits[name]
        return Fetched(tuple(batches), frozenset(finished))

    def handle_splits_changes(self, change: SplitsAddition[SourceSplit] | SplitsRemoval[SourceSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                self.splits[split.split_id] = split.start
            else:
                self.splits.pop(split.split_id, None)
            self.calls.append(f"{'add' if isinstance(change, SplitsAddition) else 'remove'} {split.split_id}")

    def wake_up(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        self.calls.append("close")
        self.closed.set()
