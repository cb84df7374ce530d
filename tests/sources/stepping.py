"""A split reader that a test leads step by step, and what polls the reader around it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from lowmark.sources import (
    Fetched,
    InputStatus,
    SourceReader,
    SourceSplit,
    SplitReader,
    SplitRows,
    SplitsAddition,
    SplitsRemoval,
)
from lowmark.sources.testing_context import CollectingOutput

SECONDS = 20.0
SCHEMA = pa.schema([("value", pa.int64())])


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values)}, schema=SCHEMA)


class SteppingReader(SplitReader[SourceSplit]):
    """Gives one row of each of its splits a fetch, and as many fetches as it was given leave for.

    Args:
        values: split id -> its rows; a position is a row.
        steps: fetches it has leave for; None: any number.
        no_pause: splits that it refuses to pause.
    """

    def __init__(
        self, values: Mapping[str, Sequence[int]], *, steps: int | None = None, no_pause: Sequence[str] = ()
    ) -> None:
        self.values, self.no_pause = dict(values), no_pause
        self.splits: dict[str, int] = {}
        self.paused: set[str] = set()
        self.calls: list[str] = []
        self.thread: str | None = None
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
        self.thread = threading.current_thread().name
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
            if name in self.paused:
                continue
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

    def pause_or_resume_splits(self, to_pause: Sequence[SourceSplit], to_resume: Sequence[SourceSplit]) -> None:
        pause = {split.split_id for split in to_pause}
        if pause & set(self.no_pause):
            raise NotImplementedError
        self.paused |= pause
        self.paused -= {split.split_id for split in to_resume}

    def wake_up(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        self.calls.append("close")
        self.closed.set()


class Polling:
    """Polls a source reader as a task does, with a deadline."""

    def __init__(self, reader: SourceReader[Any]) -> None:
        self.reader, self.output = reader, CollectingOutput()
        self.status = InputStatus.NOTHING_AVAILABLE

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            if self.status is not InputStatus.MORE_AVAILABLE:
                self.reader.is_available().result(timeout=max(0.0, deadline - time.monotonic()))
            self.status = self.reader.poll_next(self.output)
            assert time.monotonic() < deadline, "nothing more came in time"

    def to_the_end(self) -> None:
        self.until(lambda: self.status is InputStatus.END_OF_INPUT)

    def values(self, split_id: str | None = None) -> list[int]:
        return self.output.column("value", split_id)
