"""Pravega's own time: the times noted by writers (`noteTime`), combined by the controller for a stream.

Every few seconds the controller writes a mark into a second stream: a position, a lower time (no event from the
position on is earlier), and an upper time, which is not read here. This is the `TimeWindow` that readers of a reader
group get; the marks can be read without a group.

For one segment a mark says that from a byte on no event is earlier than a time. So the noted time of an event is the
time of the last mark at or before the event. Later marks lie after all earlier marks, so events before the newest mark
have their final noted time, and a segment is read only up to that mark. The position of a mark in a segment:

    the mark names the segment      its byte there
    ...only segments before it      the segment's first byte: it was not there yet
    ...one that it carries on       the same: writers learn of a scaling segment by segment
    ...none of it any more          its end: all of it lies before the mark

Source: `io.pravega.client.stream.impl.WatermarkReaderImpl`; Pravega's design of watermarking (PDP-33).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import numpy as np
import numpy.typing as npt
from lowmark.watermark.generator import WatermarkOutput, bounded_watermark_us
from lowmark.watermark.moment import us_of

from .event_time import NO_TIME
from .segment import PravegaSplit, parent_segments, segment_epoch

NOTED_TIME = "noted_time"
ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Mark:
    """The noted time at one position of a stream, in the writers' unit."""

    lower: int  # no event from `positions` on is earlier
    positions: Mapping[int, int]  # segment -> byte
    place: int = 0  # its first byte in the stream of marks
    after: int = 0  # the byte after it there


@dataclass(frozen=True, slots=True)
class Marks:
    """Some marks of a stream."""

    origin: str  # names the stream of marks that was read; a stream that is made again has another origin
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class SegmentNotes:
    """The noted times of one segment."""

    positions: npt.NDArray[np.int64]  # bytes where a noted time begins, ascending
    lower_us: npt.NDArray[np.int64]  # for each position a time such that no event from there on is earlier; ascending
    known: int  # the byte up to which events have their final noted time

    def at_us(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the noted times of events that begin at these positions; `NO_TIME` before the first mark."""
        found = np.searchsorted(self.positions, positions, side="right") - 1
        times = np.append(self.lower_us, NO_TIME)  # the last element is for index -1
        return times[found]

    def find_time(self, time_us: int) -> int | None:
        """Return the byte from which on events have that noted time or a later time; None: not known yet."""
        index = bisect_left(self.lower_us, time_us)
        return int(self.positions[index]) if index < len(self.positions) else None


def place_in(mark: Mark, segment: int, parents: Collection[int]) -> int:
    """Return the position of a mark in a segment: 0 before the segment existed, `ENDLESS` after its end."""
    at = mark.positions.get(segment)
    if at is not None:
        return at
    epoch = segment_epoch(segment)
    early = all(segment_epoch(each) < epoch for each in mark.positions) or not mark.positions.keys().isdisjoint(parents)
    return 0 if early else ENDLESS


def notes_of(marks: Sequence[Mark], split: PravegaSplit, unit_us: int) -> SegmentNotes:
    """Return the notes of one segment from the marks of its stream.

    >>> from lowmark.sources.pravega.segment import split_of
    >>> marks = [Mark(10, {0: 100}), Mark(15, {0: 250}), Mark(40, {1 << 32 | 1: 7})]
    >>> notes = notes_of(marks, split_of("orders", 0), 1_000)
    >>> notes.at_us(np.array([0, 100, 260])).tolist() == [NO_TIME, 10_000, 15_000], notes.known == ENDLESS
    (True, True)
    >>> notes = notes_of(marks, split_of("orders", 1 << 32 | 1), 1_000)
    >>> notes.find_time(15_000), notes.known
    (0, 7)
    """
    parents = parent_segments(split)
    positions: list[int] = []
    lower_us: list[int] = []
    known = 0
    for mark in marks:
        known = at = place_in(mark, split.segment, parents)
        if at == ENDLESS:
            break
        if not lower_us or mark.lower * unit_us > lower_us[-1]:
            positions.append(at)
            lower_us.append(mark.lower * unit_us)
    return SegmentNotes(np.array(positions, np.int64), np.array(lower_us, np.int64), known)


@dataclass
class NotedBound:
    """A watermark generator that never goes beyond the time noted by writers, for any event times in rows.

    Attributes:
        bound_us: how late rows may come, by the event time, microseconds.

    Use: ``WatermarkStrategy.for_generator(lambda: NotedBound(10_000_000))`` with a source that has `noted_time=True`.
    """

    bound_us: int
    _max_us: int | None = None
    _noted_us: int | None = None

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None:
        """Take a row with its column `noted_time`."""
        del output
        self._max_us = timestamp_us if self._max_us is None else max(timestamp_us, self._max_us)
        noted = cast("Mapping[str, datetime | None]", event).get(NOTED_TIME)
        if noted is not None:
            noted_us = us_of(noted)
            self._noted_us = noted_us if self._noted_us is None else max(noted_us, self._noted_us)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the smaller of both times; nothing before the first noted time."""
        if self._max_us is not None and self._noted_us is not None:
            noted_us = bounded_watermark_us(self._noted_us, 0)
            output.emit_watermark(min(bounded_watermark_us(self._max_us, self.bound_us), noted_us))
