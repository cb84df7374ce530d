"""An index of a segment: the positions of its events, and the event times reached there. Pravega keeps neither.

A segment is bytes. To cut it after a number of events, or before an event time, it has to be read; an index remembers
the results, so that the planner reads every byte once. It keeps two numbers for each block of 256 events. The events
inside a block are read again when they are needed, and the blocks that were used last are kept.

    positions   of the blocks' first events
    largest_us  the largest time of all events up to the end of each block

Bytes are read only when needed: without limits and times an index stays empty. Blocks far before
the position where reading goes on are forgotten, so the size of an index follows the backlog, for any age of the query.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from .chunks import Chunk
from .event_time import NO_TIME

BLOCK_ROWS = 256
KEPT_BLOCKS = 2_048
BLOCKS_BEHIND = 4_096
"""How many blocks stay before the position where reading goes on, because a batch may be planned again."""
LEAST_EVENT_BYTES = 8

Integers = npt.NDArray[np.int64]
Block = tuple[Integers, Integers]
"""Positions of the events of a block and the position after the last; the largest time up to and with each event."""


class SegmentIndex:
    """The index of one segment from a position on: from `begin`, or later, once blocks were forgotten.

    Args:
        read: (start, stop) -> the events between.
        times_us: chunk -> the time of each event, `NO_TIME` for an event without a time.
    """

    def __init__(
        self, begin: int, read: Callable[[int, int], Iterator[Chunk]], times_us: Callable[[Chunk], Integers]
    ) -> None:
        self.begin = self.end = begin
        self._read, self._times_us = read, times_us
        self._positions: list[int] = []
        self._largest_us: list[int] = []
        self._open: Block = np.array([begin], np.int64), np.empty(0, np.int64)  # the last block, not full yet
        self._kept: OrderedDict[int, Block] = OrderedDict()
        self._forgotten, self._forgotten_us = 0, NO_TIME  # number of forgotten blocks, and their largest time

    @property
    def rows(self) -> int:
        """The number of indexed events, also of forgotten ones."""
        return self._number_of_open * BLOCK_ROWS + len(self._open[1])

    def forget(self, position: int) -> None:
        """Forget blocks far before the position where reading goes on."""
        over = bisect_right(self._positions, position) - 1 - BLOCKS_BEHIND
        if over < BLOCKS_BEHIND:  # many at once, because forgetting moves all other blocks
            return
        self._forgotten_us = self._largest_us[over - 1]
        del self._positions[:over], self._largest_us[:over]
        self._forgotten += over
        self.begin = self._positions[0]
        for number in [number for number in self._kept if number < self._forgotten]:
            del self._kept[number]

    def extend(self, stop: int, *, rows: int | None = None) -> None:
        """Index up to `stop`, a position between events, or up to a number of rows."""
        if stop <= self.end or (rows is not None and self.rows >= rows):
            return
        for chunk in self._read(self.end, stop):
            self._add(chunk)
            if rows is not None and self.rows >= rows:
                return

    def rows_before(self, position: int) -> int:
        """The number of events before a position, or before `begin`; an upper bound if the position is not indexed."""
        if position >= self.end:
            return self.rows + -(-(position - self.end) // LEAST_EVENT_BYTES)
        if position <= self.begin:
            return self._forgotten * BLOCK_ROWS
        number = self._number_of_open
        if position < int(self._open[0][0]):
            number = self._forgotten + bisect_right(self._positions, position) - 1
        return number * BLOCK_ROWS + int(np.searchsorted(self._block(number)[0], position, side="left"))

    def after_rows(self, rows: int) -> int:
        """Return the position after a number of events from the beginning, or the end of the index."""
        if rows >= self.rows:
            return self.end
        number, within = divmod(rows, BLOCK_ROWS)
        if number < self._forgotten:
            return self.begin
        positions = self._block(number)[0]
        return int(positions[min(within, len(positions) - 1)])  # of a truncated block, the end is known

    def find_time(self, time_us: int) -> int | None:
        """Return the position of the first event with that time or a later time; None: no such event is indexed."""
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
            parts = [(chunk.begins, self._times_us(chunk)) for chunk in self._read(self._positions[place], stop)]
            before = self._largest_us[place - 1] if place else self._forgotten_us
            positions = np.concatenate([*(begins for begins, _ in parts), [stop]])
            times = np.concatenate([np.empty(0, np.int64), *(times for _, times in parts)])
            self._keep(number, (positions, np.maximum(np.maximum.accumulate(times), before)))
        self._kept.move_to_end(number)
        return self._kept[number]

    def _keep(self, number: int, block: Block) -> None:
        self._kept[number] = block
        while len(self._kept) > KEPT_BLOCKS:
            self._kept.popitem(last=False)

    def _add(self, chunk: Chunk) -> None:
        positions, largest_us = self._open
        before = largest_us[-1] if len(largest_us) else self._largest_us[-1] if self._largest_us else NO_TIME
        after = np.maximum(np.maximum.accumulate(self._times_us(chunk)), before)
        positions = np.concatenate([positions[:-1], chunk.begins, [chunk.after]])
        largest_us = np.concatenate([largest_us, after])
        full = len(largest_us) // BLOCK_ROWS
        for number in range(full):
            begin, end = number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS
            # Copies, because a view would keep the whole array.
            self._keep(self._number_of_open, (positions[begin : end + 1].copy(), largest_us[begin:end].copy()))
            self._positions.append(int(positions[begin]))
            self._largest_us.append(int(largest_us[end - 1]))
        self._open = positions[full * BLOCK_ROWS :].copy(), largest_us[full * BLOCK_ROWS :].copy()
        self.end = chunk.after
