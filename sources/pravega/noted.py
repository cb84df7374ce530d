"""Reads the marks of time that the splits of a planner can still meet, or the marks of a reader's slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .client import PravegaClient
from .marks import MarkWindow
from .notes import Mark, SegmentNotes, notes_of
from .segment import PravegaSplit, parent_segments

MARKS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Noted:
    """Reads the time that writers note."""

    unit_us: int

    def of(self, client: PravegaClient, split: PravegaSplit) -> SegmentNotes:
        """Return the notes of a slice: from the mark in force at its start to the first mark after its stop.

        Slices near each other in a process read each mark once, because an answer may take long.
        """
        lock, window = client.mark_window(split.stream)
        with lock:
            if not window.changes or not window.covers(split):
                window.start_at(split.noted_from)
            elif window.is_full:
                window.forget([split])
            while not window.reaches(split):
                more = self._read(client, split.stream, window)
                if window.is_full:
                    window.forget([split])
                if not more:
                    break
            return self.in_window(window.around(split), split)

    def in_window(self, marks: Sequence[Mark], split: PravegaSplit) -> SegmentNotes:
        """Return the notes of a split in some marks."""
        return notes_of(marks, split.segment, self.unit_us, parent_segments(split))

    def read_on(self, client: PravegaClient, stream: str, window: MarkWindow, standing: Sequence[PravegaSplit]) -> None:
        """Bring a window up to date for splits of a stream, each at its start."""
        if not window.changes or not all(map(window.covers, standing)):
            window.start_at(min(split.noted_from for split in standing))
        window.forget(standing)
        more = True
        while more and not window.is_full:
            more = self._read(client, stream, window)
            window.forget(standing)

    @staticmethod
    def _read(client: PravegaClient, stream: str, window: MarkWindow) -> bool:
        """Read some more marks; return whether more may follow."""
        found = client.marks(stream, window.end, MARKS_AT_ONCE, window.origin)
        if found is None and window.origin:  # the stream is gone, and may have been made again
            found = client.marks(stream, 0, MARKS_AT_ONCE)
        if found is None or window.origin not in {"", found.origin}:
            window.start_at(0)
        if found is None:
            return False
        window.add(found)
        return len(found.marks) == MARKS_AT_ONCE
