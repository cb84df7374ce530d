"""Cuts the rows of single splits into batches of all splits, by `ByTime`, `ByRows`, `Proportional` or `AsRead`.

Splits may be read in any order and at any pace: rows wait here until every split has come as far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from lowmark.watermark import format_duration_us
from lowmark.watermark.replay.open_rows import starts_of
from lowmark.watermark.replay.profile import Flags
from lowmark.watermark.replay.replay import Batches, Numbers

_AHEAD_ROWS = 50_000  # rows of one split that may wait for other splits
_TRIGGER_US = 10_000_000  # between the batches of a query that keeps up
_ROWS_PER_BATCH = 10_000
_NONE = -(1 << 63)  # in place of the newest key of a split without a row
_BATCHES = 100  # a small backlog is cut into at least so many


class _Waiting:
    """The rows of one split that wait."""

    def __init__(self) -> None:
        self.keys = np.zeros(0, np.int64)
        self.times_us = np.zeros(0, np.int64)
        self.timed = np.zeros(0, np.bool_)
        self.reached = _NONE  # the newest key so far
        self.ended = False

    def add(self, keys: Numbers, times_us: Numbers, timed: Flags) -> None:
        keys = np.maximum(keys, self.reached)  # a broker's clock may step back, but its log does not
        self.keys = np.concatenate((self.keys, np.maximum.accumulate(keys)))
        self.times_us = np.concatenate((self.times_us, times_us))
        self.timed = np.concatenate((self.timed, timed))
        self.reached = int(self.keys[-1])

    def take(self, before: int | None) -> tuple[Numbers, Numbers, Flags]:
        """Take the rows with a key below `before`, or all rows."""
        at = len(self.keys) if before is None else int(np.searchsorted(self.keys, before))
        taken = self.keys[:at], self.times_us[:at], self.timed[:at]
        self.keys, self.times_us, self.timed = self.keys[at:], self.times_us[at:], self.timed[at:]
        return taken


class Cut(ABC):
    """Makes batches of the given rows."""

    def __init__(self, splits: int) -> None:
        self._waiting = [_Waiting() for _ in range(splits)]

    def add(self, split: int, keys: Numbers, times_us: Numbers, timed: Flags) -> None:
        """Add rows of a split in the order in which they are read; a key is a time of writing (us) or an offset.

        Shapes (n,); `times_us` and `timed` as in `EventTimes`.
        """
        if len(keys):
            self._waiting[split].add(keys, times_us, timed)

    def end(self, split: int) -> None:
        self._waiting[split].ended = True

    def end_all(self) -> None:
        for waiting in self._waiting:
            waiting.ended = True

    def waits(self, split: int) -> bool:
        """Whether so many rows of a split wait that the other splits should be read first."""
        waiting = self._waiting[split]
        return len(waiting.keys) >= _AHEAD_ROWS and split not in self._behind()

    @abstractmethod
    def drain(self) -> Batches | None:
        """Return the complete batches, None if there is none; after `end_all` all remaining batches."""

    @abstractmethod
    def _behind(self) -> Sequence[int]:
        """The splits for which the others wait."""


class _Ordered(Cut):
    """Orders rows by a key that all splits share: when they were written."""

    def _safe(self) -> int | None:
        """The key below which every row has been read; None: all rows have been read."""
        return min((waiting.reached for waiting in self._waiting if not waiting.ended), default=None)

    def _behind(self) -> Sequence[int]:
        safe = self._safe()
        return [n for n, waiting in enumerate(self._waiting) if not waiting.ended and waiting.reached == safe]

    def _merged(self, before: int | None) -> tuple[Numbers, Numbers, Numbers, Flags]:
        """Split, key, time and whether there is a time, of all rows before a key, in order."""
        parts = [waiting.take(before) for waiting in self._waiting]
        numbers = np.repeat(np.arange(len(parts)), [len(keys) for keys, _, _ in parts])
        keys, times_us, timed = (np.concatenate([part[at] for part in parts]) for at in range(3))
        order = np.argsort(keys, kind="stable")
        return numbers[order], keys[order], times_us[order], timed[order]


class ByTime(_Ordered):
    """A batch for each trigger that finds rows: a query that keeps up."""

    def __init__(self, splits: int, trigger_us: int) -> None:
        super().__init__(splits)
        self._trigger_us = trigger_us
        self._last: int | None = None

    def drain(self) -> Batches | None:
        safe = self._safe()
        numbers, keys, times_us, timed = self._merged(None if safe is None else safe - safe % self._trigger_us)
        if not len(keys):
            return None
        triggers = keys // self._trigger_us
        starts = starts_of(triggers)
        own = triggers[starts]
        first = own[:1] if self._last is None else np.array([self._last + 1])
        pauses = np.diff(own, prepend=first - 1) - 1
        self._last = int(own[-1])
        return Batches(numbers, times_us, timed, np.append(starts[1:], len(keys)), (own + 1) * self._trigger_us, pauses)


class ByRows(_Ordered):
    """Batches of a fixed number of rows."""

    def __init__(self, splits: int, rows: int) -> None:
        super().__init__(splits)
        self._rows = rows
        self._left = self._merged(None)  # the rows of a batch that is not full; none yet

    def drain(self) -> Batches | None:
        safe = self._safe()
        columns = [np.concatenate(pair) for pair in zip(self._left, self._merged(safe), strict=True)]
        numbers, keys, times_us, timed = columns
        whole = len(keys) if safe is None else len(keys) // self._rows * self._rows
        self._left = numbers[whole:], keys[whole:], times_us[whole:], timed[whole:]
        if not whole:
            return None
        ends = np.array([*range(self._rows, whole, self._rows), whole])
        return Batches(
            numbers[:whole], times_us[:whole], timed[:whole], ends, keys[ends - 1] + 1, np.zeros(len(ends), np.int64)
        )


class Proportional(Cut):
    """Batches of `rows`, shared among the splits in proportion to their remaining rows; no split becomes idle.

    As Spark's Kafka source with a backlog under `maxOffsetsPerTrigger`, between each split's first offset and the
    offset after its last. No time passes between batches.
    """

    def __init__(self, begins: Sequence[int], ends: Sequence[int], rows: int, now_us: int) -> None:
        super().__init__(len(begins))
        self._at, self._ends, self._rows = np.array(begins, np.int64), np.array(ends, np.int64), rows
        self._bounds = spark_shares(self._at, self._ends, rows)
        self._clock_us = now_us

    def drain(self) -> Batches | None:
        parts: list[tuple[int, Numbers, Flags]] = []
        ends: list[int] = []
        count = 0
        while not self._behind() and (self._bounds > self._at).any():
            before = count
            for split in np.flatnonzero(self._bounds > self._at).tolist():
                keys, times_us, timed = self._waiting[split].take(int(self._bounds[split]))
                if len(keys):
                    parts.append((split, times_us, timed))
                    count += len(keys)
            self._at = self._bounds
            self._bounds = spark_shares(self._at, self._ends, self._rows)
            if count > before:
                ends.append(count)
        if not ends:
            return None
        first, self._clock_us = self._clock_us, self._clock_us + len(ends)
        return _batches(parts, ends, first)

    def _behind(self) -> Sequence[int]:
        return [
            split
            for split, waiting in enumerate(self._waiting)
            if not waiting.ended and self._at[split] < self._bounds[split] and waiting.reached < self._bounds[split] - 1
        ]


class AsRead(Cut):
    """Batches that the reader ends: files. Splits may be added at any time."""

    def __init__(self, now_us: int) -> None:
        super().__init__(0)
        self._clock_us = now_us
        self._parts: list[tuple[int, Numbers, Flags]] = []
        self._ends: list[int] = []
        self._rows = 0

    def add(self, split: int, keys: Numbers, times_us: Numbers, timed: Flags) -> None:
        if len(keys):
            self._parts.append((split, times_us, timed))
            self._rows += len(keys)

    def batch_over(self) -> None:
        if self._rows > (self._ends[-1] if self._ends else 0):
            self._ends.append(self._rows)

    def end_all(self) -> None:
        self.batch_over()

    def drain(self) -> Batches | None:
        if not self._ends or self._ends[-1] < self._rows:
            return None
        made = _batches(self._parts, self._ends, self._clock_us)
        self._clock_us += len(self._ends)
        self._parts, self._ends, self._rows = [], [], 0
        return made

    def _behind(self) -> Sequence[int]:
        return ()


def by_time_of_writing(splits: int, rows_per_batch: int | None, trigger_us: int | None) -> tuple[Cut, str]:
    """The cut for rows whose times of writing are known, and its batches in words."""
    if rows_per_batch is not None:
        return ByRows(splits, rows_per_batch), f"{rows_per_batch:,} rows a batch"
    trigger_us = _TRIGGER_US if trigger_us is None else trigger_us
    return ByTime(splits, trigger_us), f"a batch every {format_duration_us(trigger_us)}"


def by_offset(
    begins: Sequence[int], ends: Sequence[int], rows_per_batch: int | None, *, total: int, now_us: int
) -> tuple[Cut, str]:
    """The cut for rows that have offsets alone, about `total` rows, and its batches in words."""
    rows = min(_ROWS_PER_BATCH, max(1, total // _BATCHES)) if rows_per_batch is None else rows_per_batch
    return Proportional(begins, ends, rows, now_us), f"maxOffsetsPerTrigger={rows}"


def _batches(parts: Sequence[tuple[int, Numbers, Flags]], ends: Sequence[int], clock_us: int) -> Batches:
    """Make batches of consecutive parts, with a clock on which no time passes."""
    return Batches(
        np.repeat([split for split, _, _ in parts], [len(times_us) for _, times_us, _ in parts]),
        np.concatenate([times_us for _, times_us, _ in parts]),
        np.concatenate([timed for _, _, timed in parts]),
        np.array(ends),
        clock_us + np.arange(len(ends)),
        np.zeros(len(ends), np.int64),
    )


def spark_shares(begins: Numbers, ends: Numbers, limit: int) -> Numbers:
    """The offset up to which Spark reads each partition in a batch of `limit` rows; arguments and result of shape (n,).

    Source: Spark's ``KafkaOffsetReader`` rate limit: proportional to the remaining rows, rounded down, at least one.

    >>> spark_shares(np.array([0, 0, 5]), np.array([900, 100, 5]), 100).tolist()
    [90, 10, 5]
    >>> spark_shares(np.array([0, 0]), np.array([9_999, 1]), 100).tolist()
    [99, 1]
    """
    sizes = ends - begins
    total = int(sizes.sum())
    if total < 1:
        return ends
    share = limit * (sizes / total)
    whole = np.where(share < 1, np.ceil(share), np.floor(share)).astype(np.int64)
    bounds: Numbers = np.minimum(ends, begins + whole)
    return bounds
