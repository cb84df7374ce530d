"""Where events begin in a segment, and by which of them a time was reached: what Pravega does not keep.

A segment is bytes. To cut it after so many events, or before an event time, it has to be read; an index is what is
remembered of that, so that every byte is read once by who plans. Per 256 events it keeps two numbers; what
lies within such a block is read again when it is asked for, and the blocks that were asked for last are kept.

    positions   of the blocks' first events
    largest_us  the largest time of all events up to the end of each block

Nothing is read before it is asked for: who reads all there is, and not by time, has an empty index. Blocks far before
the place where the segment is read on are forgotten, so an index is as large as what waits, however long a query runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from .chunks import Chunk
from .event_time import NO_TIME

__all__ = ["BLOCK_ROWS", "Block", "Integers", "SegmentIndex"]

BLOCK_ROWS = 256
KEPT_BLOCKS = 2_048
BLOCKS_BEHIND = 4_096
"""So many stay before the place where it is read on: who plans a batch again asks for places before."""
LEAST_EVENT_BYTES = 8

Integers = npt.NDArray[np.int64]
Block = tuple[Integers, Integers]
"""Positions of the events of a block and the one behind the last; the largest time up to and with each event."""


class SegmentIndex:
    """The index of one segment from a position on.

    Args:
        begin: the position, between two events.
        read: (start, stop) -> the events between.
        times_us: chunk -> the time of each event, `NO_TIME` where it has none; None: times are not wanted.

    Attributes:
        begin: the position from which on it answers: as given, or later, once blocks were forgotten.
        end: how far it goes.
    """

    def __init__(
        self, begin: int, read: Callable[[int, int], Iterator[Chunk]], times_us: Callable[[Chunk], Integers] | None
    ) -> None:
        self.begin = self.end = begin
        self._read, self._times_us = read, times_us
        self._positions: list[int] = []
        self._largest_us: list[int] = []
        self._open: Block = np.array([begin], np.int64), np.empty(0, np.int64)  # the last block, not full yet
        self._kept: OrderedDict[int, Block] = OrderedDict()
        self._forgotten, self._forgotten_us = 0, NO_TIME  # blocks before the first that is here, and their largest time

    @property
    def rows(self) -> int:
        """How many events were indexed, with those that were forgotten."""
        return self._number_of_open * BLOCK_ROWS + len(self._open[1])

    def forget(self, position: int) -> None:
        """Forget blocks far before a position from which on the segment is read."""
        over = bisect_right(self._positions, position) - 1 - BLOCKS_BEHIND
        if over < BLOCKS_BEHIND:  # many at once, since it moves all that stay
            return
        self._forgotten_us = self._largest_us[over - 1]
        del self._positions[:over], self._largest_us[:over]
        self._forgotten += over
        self.begin = self._positions[0]
        for number in [number for number in self._kept if number < self._forgotten]:
            del self._kept[number]

    def extend(self, stop: int, *, rows: int | None = None) -> None:
        """Index up to `stop`, a position between events, or until there are so many rows."""
        if stop <= self.end or (rows is not None and self.rows >= rows):
            return
        for chunk in self._read(self.end, stop):
            self._add(chunk)
            if rows is not None and self.rows >= rows:
                return

    def rows_before(self, position: int) -> int:
        """Return how many events lie before a position: an upper bound where it is not indexed.

        Of a position before `begin`, those before `begin`.
        """
        if position >= self.end:
            return self.rows + -(-(position - self.end) // LEAST_EVENT_BYTES)
        if position <= self.begin:
            return self._forgotten * BLOCK_ROWS
        number = self._number_of_open
        if position < int(self._open[0][0]):
            number = self._forgotten + bisect_right(self._positions, position) - 1
        return number * BLOCK_ROWS + int(np.searchsorted(self._block(number)[0], position, side="left"))

    def after_rows(self, rows: int) -> int:
        """Return the position behind so many events from the beginning, or where the index ends."""
        if rows >= self.rows:
            return self.end
        number, within = divmod(rows, BLOCK_ROWS)
        if number < self._forgotten:
            return self.begin
        return int(self._block(number)[0][within])

    def find_time(self, time_us: int) -> int | None:
        """Return the position of the first event with that time or a later one; None: none is indexed."""
        number = self._forgotten + bisect_left(self._largest_us, time_us)
        positions, largest_us = self._block(number)
        within = int(np.searchsorted(largest_us, time_us, side="left"))
        return int(positions[within]) if within < len(largest_us) else None

    @property
    def _number_of_open(self) -> int:
        return self._forgotten + len(self._positions)

    def _block(self, number: int) -> Block:
        if number == self._number_of_open:
            return self._open
        if number not in self._kept:
            place = number - self._forgotten
            stop = int(self._open[0][0]) if place + 1 == len(self._positions) else self._positions[place + 1]
            parts = list(self._blocks_of(self._positions[place], stop))
            before = self._largest_us[place - 1] if place else self._forgotten_us
            positions = np.concatenate([*(begins for begins, _ in parts), [stop]])
            times = np.concatenate([np.empty(0, np.int64), *(times for _, times in parts)])
            self._keep(number, (positions, np.maximum(np.maximum.accumulate(times), before)))
        self._kept.move_to_end(number)
        return self._kept[number]

    def _blocks_of(self, start: int, stop: int) -> Iterator[tuple[Integers, Integers]]:
        for chunk in self._read(start, stop):
            yield chunk.begins, self._times(chunk)

    def _keep(self, number: int, block: Block) -> None:
        self._kept[number] = block
        while len(self._kept) > KEPT_BLOCKS:
            self._kept.popitem(last=False)

    def _times(self, chunk: Chunk) -> Integers:
        return np.full(len(chunk.ends), NO_TIME) if self._times_us is None else self._times_us(chunk)

    def _add(self, chunk: Chunk) -> None:
        positions, largest_us = self._open
        before = largest_us[-1] if len(largest_us) else self._largest_us[-1] if self._largest_us else NO_TIME
        after = np.maximum(np.maximum.accumulate(self._times(chunk)), before)
        positions = np.concatenate([positions[:-1], chunk.begins, [chunk.after]])
        largest_us = np.concatenate([largest_us, after])
        full = len(largest_us) // BLOCK_ROWS
        for number in range(full):
            begin, end = number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS
            # Copies: what is kept must not keep the whole.
            self._keep(self._number_of_open, (positions[begin : end + 1].copy(), largest_us[begin:end].copy()))
            self._positions.append(int(positions[begin]))
            self._largest_us.append(int(largest_us[end - 1]))
        self._open = positions[full * BLOCK_ROWS :].copy(), largest_us[full * BLOCK_ROWS :].copy()
        self.end = chunk.after
