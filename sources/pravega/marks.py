"""The marks of time of a stream, as few of them as are needed: a year of marks every ten seconds is three million.

A mark stays as long as a segment's standing position can still meet it. So it is read on from the mark that is in force
where the slowest segment stands (its floor); a split carries the place of its floor in the stream of marks, so that a
restarted driver, and whoever reads a slice, begin there. Marks far ahead are not read before they are near.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .notes import Mark, SegmentNotes, notes_of, place_in
from .segment import PravegaSplit, parent_segments

if TYPE_CHECKING:
    from .client import PravegaClient

__all__ = ["MarkWindow", "Noted"]

MOST_POSITIONS = 200_000
"""So many positions, of one segment in one mark each, are kept of a stream before more marks are read."""
MARKS_AT_ONCE = 1_000


class MarkWindow:
    """Some marks of a stream in a row: those that segments can still meet. For one thread.

    Attributes:
        marks: in order.
        begin: the place in the stream of marks from which on they are here.
        end: the place up to which they were read.
        changes: grows with every change.
    """

    def __init__(self) -> None:
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
        self.begin, self.end, self._positions = place, place, 0
        self.changes += 1

    def add(self, marks: Sequence[Mark]) -> None:
        """Take in the marks that come next."""
        if marks:
            self.marks += marks
            self._positions += sum(len(mark.positions) for mark in marks)
            self.end = marks[-1].after
            self.changes += 1

    def covers(self, split: PravegaSplit) -> bool:
        """Whether the mark is here, or comes yet, that is in force where a split stands."""
        return self.begin <= split.noted_from or self._floor(split, split.start) >= 0

    def floor_place(self, split: PravegaSplit, position: int) -> int:
        """Return the place of the mark that is in force at a position of a split, or of one before."""
        index = self._floor(split, position)
        return self.marks[index].place if index >= 0 else max(self.begin, split.noted_from)

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


@dataclass(frozen=True)
class Noted:
    """That the time is read that writers note.

    Attributes:
        unit_us: microseconds in what they note.
    """

    unit_us: int

    def of(self, client: PravegaClient, split: PravegaSplit) -> SegmentNotes:
        """Return what is noted of a slice: from the mark in force at its start to the first behind its stop."""
        marks, place, parents = list[Mark](), split.noted_from, parent_segments(split)
        while True:
            found = client.marks(split.stream, place, MARKS_AT_ONCE)
            marks += found or ()
            if not found or len(found) < MARKS_AT_ONCE:
                break
            if split.stop is not None and place_in(found[-1], split.segment, parents) >= split.stop:
                break
            # Those that lie before the one in force are passed by.
            del marks[: max(0, bisect_right(marks, split.start, key=lambda m: place_in(m, split.segment, parents)) - 1)]
            place = found[-1].after
        return self.in_window(marks, split)

    def in_window(self, marks: Sequence[Mark], split: PravegaSplit) -> SegmentNotes:
        """Return what some marks say of a split."""
        return notes_of(marks, split.segment, self.unit_us, parent_segments(split))

    def read_on(self, client: PravegaClient, stream: str, window: MarkWindow, standing: Sequence[PravegaSplit]) -> None:
        """Bring a window up to date for splits of a stream, each with where it stands as its start."""
        if not window.changes or not all(map(window.covers, standing)):
            window.start_at(min(split.noted_from for split in standing))
        window.forget(standing)
        while not window.is_full:
            found = client.marks(stream, window.end, MARKS_AT_ONCE)
            if found is None:
                window.start_at(0)
                return
            window.add(found)
            window.forget(standing)
            if len(found) < MARKS_AT_ONCE:
                return
