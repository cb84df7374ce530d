"""The needed marks of time of a stream, as few as possible: a year of marks every ten seconds is three million.

A mark stays as long as the position of a segment can still meet it. So marks are read from the mark in force at the
slowest segment (its floor) on; a split carries the place of its floor in the stream of marks, so that a restarted
driver, and the readers of slices, begin there. Marks far ahead are read only when they are near.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .client import PravegaClient
from .notes import Mark, SegmentNotes, notes_of, place_in
from .segment import PravegaSplit, parent_segments

MARKS_AT_ONCE = 1_000
MOST_POSITIONS = 200_000
"""No more marks of a stream are read while this number of positions (one segment in one mark each) is kept."""


class MarkWindow:
    """Successive marks of a stream that segments can still meet. For one thread."""

    def __init__(self, client: PravegaClient, stream: str) -> None:
        self._client, self._stream = client, stream
        self.marks: list[Mark] = []
        self.begin = 0  # the place in the stream of marks where they begin
        self.changes = 0  # grows with each change of the marks
        self._end = 0  # the place up to which marks were read
        self._origin = ""  # the stream of marks that was read
        self._positions = 0  # number of positions in all marks

    def read_on(self, standing: Sequence[PravegaSplit]) -> None:
        """Read the marks of splits of the stream, each at its start."""
        if not self.changes or not all(map(self._covers, standing)):
            self._start_at(min(split.noted_from for split in standing))
        self._forget(standing)
        more = True
        while more and not self._is_full:
            more = self._read_more()
            self._forget(standing)

    def read_slice(self, split: PravegaSplit) -> Sequence[Mark]:
        """Return the marks of a slice: from the mark in force at its start to the first mark after its stop."""
        if not self.changes or not self._covers(split):
            self._start_at(split.noted_from)
        elif self._is_full:
            self._forget([split])
        while not self._reaches(split):
            more = self._read_more()
            if self._is_full:
                self._forget([split])
            if not more:
                break
        return self._around(split)

    def floor_place(self, split: PravegaSplit, position: int) -> int:
        """Return the place of the mark in force at a position of a split, or of an earlier mark."""
        index = self._floor(split, position)
        return self.marks[index].place if index >= 0 else max(self.begin, split.noted_from)

    @property
    def _is_full(self) -> bool:
        return len(self.marks) > 1 and self._positions >= MOST_POSITIONS

    def _start_at(self, place: int) -> None:
        self.marks.clear()
        self._origin = ""
        self.begin, self._end, self._positions = place, place, 0
        self.changes += 1

    def _read_more(self) -> bool:
        """Read some more marks; return whether more may follow."""
        found = self._client.marks(self._stream, self._end, MARKS_AT_ONCE, self._origin)
        if found is None and self._origin:  # the stream is gone, and may have been made again
            found = self._client.marks(self._stream, 0, MARKS_AT_ONCE)
        if found is None or self._origin not in {"", found.origin}:
            self._start_at(0)
        if found is None:
            return False
        self._origin = found.origin
        if found.marks:
            self.marks += found.marks
            self._positions += sum(len(mark.positions) for mark in found.marks)
            self._end = found.marks[-1].after
            self.changes += 1
        return len(found.marks) == MARKS_AT_ONCE

    def _covers(self, split: PravegaSplit) -> bool:
        """Whether the window has, or will have, the mark in force at a split's start."""
        return self.begin <= split.noted_from or self._floor(split, split.start) >= 0

    def _reaches(self, split: PravegaSplit) -> bool:
        """Whether the window has all marks of a slice: a mark knows its segment, and no later mark is before its stop.

        If no mark knows the segment, the marks may be those of an earlier stream of the same name.
        """
        if split.stop is None or not self.marks:
            return False
        if place_in(self.marks[-1], split.segment, parent_segments(split)) < split.stop:
            return False
        return any(split.segment in mark.positions for mark in self._around(split))

    def _around(self, split: PravegaSplit) -> Sequence[Mark]:
        last = len(self.marks) if split.stop is None else self._floor(split, split.stop) + 2
        return self.marks[max(0, self._floor(split, split.start)) : last]

    def _forget(self, standing: Iterable[PravegaSplit]) -> None:
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


_windows: dict[tuple[PravegaClient, str], tuple[threading.Lock, MarkWindow]] = {}


def notes_of_slice(client: PravegaClient, split: PravegaSplit, unit_us: int) -> SegmentNotes:
    """Return the notes of a slice. Neighbouring slices of a process read each mark once, because answers take long."""
    key = client, split.stream
    lock, window = _windows.setdefault(key, (threading.Lock(), MarkWindow(*key)))
    with lock:
        return notes_of(window.read_slice(split), split, unit_us)
