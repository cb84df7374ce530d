"""The needed marks of time of a stream, as few as possible: a year of marks every ten seconds is three million.

A mark stays as long as the position of a segment can still meet it. So marks are read from the mark in force at the
slowest segment (its floor) on; a split carries the place of its floor in the stream of marks, so that a restarted
driver, and the readers of slices, begin there. Marks far ahead are read only when they are near.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .notes import Mark, Marks, place_in
from .segment import PravegaSplit, parent_segments

MOST_POSITIONS = 200_000
"""No more marks of a stream are read while this number of positions (one segment in one mark each) is kept."""


class MarkWindow:
    """Successive marks of a stream that segments can still meet. For one thread.

    Attributes:
        begin: the place in the stream of marks where they begin.
        end: the place up to which marks were read.
        origin: the stream of marks that was read; "" before the first read.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.marks: list[Mark] = []
        self.begin = self.end = self.changes = 0
        self._positions = 0  # number of positions in all marks

    @property
    def is_full(self) -> bool:
        """Whether some marks must be forgotten before more are read."""
        return len(self.marks) > 1 and self._positions >= MOST_POSITIONS

    def start_at(self, place: int) -> None:
        """Forget all marks, and begin at a place."""
        self.marks.clear()
        self.origin = ""
        self.begin, self.end, self._positions = place, place, 0
        self.changes += 1

    def add(self, found: Marks) -> None:
        """Take in the next marks."""
        self.origin = found.origin
        if found.marks:
            self.marks += found.marks
            self._positions += sum(len(mark.positions) for mark in found.marks)
            self.end = found.marks[-1].after
            self.changes += 1

    def covers(self, split: PravegaSplit) -> bool:
        """Whether the window has, or will have, the mark in force at a split's start."""
        return self.begin <= split.noted_from or self._floor(split, split.start) >= 0

    def floor_place(self, split: PravegaSplit, position: int) -> int:
        """Return the place of the mark in force at a position of a split, or of an earlier mark."""
        index = self._floor(split, position)
        return self.marks[index].place if index >= 0 else max(self.begin, split.noted_from)

    def reaches(self, split: PravegaSplit) -> bool:
        """Whether the window has all marks of a slice: a mark knows its segment, and no later mark is before its stop.

        If no mark knows the segment, the marks may be those of an earlier stream of the same name.
        """
        if split.stop is None or not self.marks:
            return False
        if place_in(self.marks[-1], split.segment, parent_segments(split)) < split.stop:
            return False
        return any(split.segment in mark.positions for mark in self.around(split))

    def around(self, split: PravegaSplit) -> Sequence[Mark]:
        """Return the marks of a slice, from the mark in force at its start on."""
        last = len(self.marks) if split.stop is None else self._floor(split, split.stop) + 2
        return self.marks[max(0, self._floor(split, split.start)) : last]

    def forget(self, standing: Iterable[PravegaSplit]) -> None:
        """Forget the marks before those in force at the starts of splits."""
        first = min((self._floor(split, split.start) for split in standing), default=0)
        if first > 0:
            self._positions -= sum(len(mark.positions) for mark in self.marks[:first])
            del self.marks[:first]
            self.begin = self.marks[0].place
            self.changes += 1

    def _floor(self, split: PravegaSplit, position: int) -> int:
        """The index of the mark in force at a position, -1 if it lies before the window."""
        parents = parent_segments(split)
        return bisect_right(self.marks, position, key=lambda mark: place_in(mark, split.segment, parents)) - 1
