"""The marks of time of a stream, as few of them as are needed: a year of marks every ten seconds is three million.

A mark stays as long as a segment's standing position can still meet it. So it is read on from the mark that is in force
where the slowest segment stands (its floor); a split carries the place of its floor in the stream of marks, so that a
restarted driver, and whoever reads a slice, begin there. Marks far ahead are not read before they are near.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .notes import Mark, Marks, place_in
from .segment import PravegaSplit, parent_segments

__all__ = ["MarkWindow"]

MOST_POSITIONS = 200_000
"""So many positions, of one segment in one mark each, are kept of a stream before more marks are read."""


class MarkWindow:
    """Some marks of a stream in a row: those that segments can still meet. For one thread.

    Attributes:
        marks: in order.
        begin: the place in the stream of marks from which on they are here.
        end: the place up to which they were read.
        origin: what they were read from; "" before any was.
        changes: grows with every change.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.marks: list[Mark] = []
        self.begin = self.end = self.changes = 0
        self._positions = 0  # in all of them

    @property
    def is_full(self) -> bool:
        """Whether more is not to be read before some of these are forgotten."""
        return len(self.marks) > 1 and self._positions >= MOST_POSITIONS

    def start_at(self, place: int) -> None:
        """Forget all, and begin at a place."""
        self.marks.clear()
        self.origin = ""
        self.begin, self.end, self._positions = place, place, 0
        self.changes += 1

    def add(self, found: Marks) -> None:
        """Take in the marks that come next."""
        self.origin = found.origin
        if found.marks:
            self.marks += found.marks
            self._positions += sum(len(mark.positions) for mark in found.marks)
            self.end = found.marks[-1].after
            self.changes += 1

    def covers(self, split: PravegaSplit) -> bool:
        """Whether the mark is here, or comes yet, that is in force where a split stands."""
        return self.begin <= split.noted_from or self._floor(split, split.start) >= 0

    def floor_place(self, split: PravegaSplit, position: int) -> int:
        """Return the place of the mark that is in force at a position of a split, or of one before."""
        index = self._floor(split, position)
        return self.marks[index].place if index >= 0 else max(self.begin, split.noted_from)

    def reaches(self, split: PravegaSplit) -> bool:
        """Whether all marks of a slice are here: no later one lies before its stop, and one knows its segment.

        Where none does, these may be marks of a stream that had its name before.
        """
        if split.stop is None or not self.marks:
            return False
        if place_in(self.marks[-1], split.segment, parent_segments(split)) < split.stop:
            return False
        return any(split.segment in mark.positions for mark in self.around(split))

    def around(self, split: PravegaSplit) -> Sequence[Mark]:
        """Return the marks of a slice: from the one in force at its start on."""
        last = len(self.marks) if split.stop is None else self._floor(split, split.stop) + 2
        return self.marks[max(0, self._floor(split, split.start)) : last]

    def forget(self, standing: Iterable[PravegaSplit]) -> None:
        """Forget what lies before the marks that are in force where splits stand, each with its start."""
        first = min((self._floor(split, split.start) for split in standing), default=0)
        if first > 0:
            self._positions -= sum(len(mark.positions) for mark in self.marks[:first])
            del self.marks[:first]
            self.begin = self.marks[0].place
            self.changes += 1

    def _floor(self, split: PravegaSplit, position: int) -> int:
        """The index of the mark in force at a position, -1 if it lies before those that are here."""
        parents = parent_segments(split)
        return bisect_right(self.marks, position, key=lambda mark: place_in(mark, split.segment, parents)) - 1
