"""Pravega's own time: what writers noted (`noteTime`), as the controller puts it together for a stream.

Every few seconds the controller writes a mark into a stream beside the stream: a position, a time that no event behind
it is before, and one that no event before it is after. That is all of `TimeWindow`, which readers of a reader group are
shown; the marks can be read without a group.

Of one segment a mark says: from this byte on, no event is before this time. So an event has a noted time: that of the
last mark at or before it. A mark that comes later lies behind all earlier ones; what lies before the newest mark has
its noted time for good, and only so far is a segment read.

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
from datetime import datetime, timedelta, timezone
from typing import cast

import numpy as np
import numpy.typing as npt
from lowmark.watermark.generator import WatermarkOutput, bounded_watermark_us

from .event_time import NO_TIME
from .segment import segment_epoch

__all__ = ["NOTED_TIME", "Mark", "Marks", "NotedBound", "SegmentNotes", "notes_of", "place_in"]

NOTED_TIME = "noted_time"
ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Mark:
    """What writers noted, at one position of a stream.

    Attributes:
        lower: no event from `positions` on is before it. In whatever unit the writers used.
        upper: no event before `positions` is after it.
        positions: segment -> byte.
        place, after: where it lies in the stream of marks: its first byte, and the one behind it.
    """

    lower: int
    upper: int
    positions: Mapping[int, int]
    place: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Marks:
    """Some marks of a stream.

    Attributes:
        origin: what they were read from. A stream that is made anew under its name has another one.
        marks: in order.
    """

    origin: str
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class SegmentNotes:
    """Of one segment, where which times begin.

    Attributes:
        positions: bytes, ascending.
        lower_us: no event from there on is before it; ascending.
        known: up to which byte events have their noted time for good.
    """

    positions: npt.NDArray[np.int64]
    lower_us: npt.NDArray[np.int64]
    known: int

    def at_us(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the noted times of events that begin there; `NO_TIME` before the first mark."""
        found = np.searchsorted(self.positions, positions, side="right") - 1
        times = np.append(self.lower_us, NO_TIME)  # the last one is for -1
        result: npt.NDArray[np.int64] = times[found]
        return result

    def find_time(self, time_us: int) -> int | None:
        """Return from which byte on events have that noted time or a later one; None: not known yet."""
        index = bisect_left(self.lower_us, time_us)
        return int(self.positions[index]) if index < len(self.positions) else None


def place_in(mark: Mark, segment: int, parents: Collection[int] = ()) -> int:
    """Return where in a segment a mark lies: 0 where the segment was not there yet, `ENDLESS` where it was over.

    Args:
        mark: which.
        segment: Pravega's number of it.
        parents: the segments that it carries on.
    """
    at = mark.positions.get(segment)
    if at is not None:
        return at
    epoch = segment_epoch(segment)
    early = all(segment_epoch(each) < epoch for each in mark.positions) or not mark.positions.keys().isdisjoint(parents)
    return 0 if early else ENDLESS


def notes_of(marks: Sequence[Mark], segment: int, unit_us: int, parents: Collection[int] = ()) -> SegmentNotes:
    """Return what the marks of a stream say of one segment.

    >>> marks = [Mark(10, 20, {0: 100}), Mark(15, 30, {0: 250}), Mark(40, 50, {1 << 32 | 1: 7})]
    >>> notes = notes_of(marks, 0, 1_000)
    >>> notes.at_us(np.array([0, 100, 260])).tolist() == [NO_TIME, 10_000, 15_000], notes.known == ENDLESS
    (True, True)
    >>> notes_of(marks, 1 << 32 | 1, 1_000).find_time(15_000), notes_of(marks, 1 << 32 | 1, 1_000).known
    (0, 7)
    """
    positions: list[int] = []
    lower_us: list[int] = []
    known = 0
    for mark in marks:
        known = at = place_in(mark, segment, parents)
        if at == ENDLESS:
            break
        if not lower_us or mark.lower * unit_us > lower_us[-1]:
            positions.append(at)
            lower_us.append(mark.lower * unit_us)
    return SegmentNotes(np.array(positions, np.int64), np.array(lower_us, np.int64), known)


@dataclass
class NotedBound:
    """A watermark generator that no payload's time brings beyond what writers have noted.

    Attributes:
        bound_us: how late rows come at most, by the event time, microseconds.

    Use: ``WatermarkStrategy.for_generator(lambda: NotedBound(10_000_000))`` with a source that has `noted_time=True`.
    """

    bound_us: int
    _max_us: int | None = None
    _noted_us: int | None = None

    def on_event(self, event: object, timestamp_us: int, output: WatermarkOutput) -> None:
        """See a row with its column `noted_time`."""
        del output
        self._max_us = timestamp_us if self._max_us is None else max(timestamp_us, self._max_us)
        noted = cast("Mapping[str, datetime | None]", event).get(NOTED_TIME)
        if noted is not None:
            since = noted - datetime(1970, 1, 1, tzinfo=timezone.utc)
            noted_us = since // timedelta(microseconds=1)
            self._noted_us = noted_us if self._noted_us is None else max(noted_us, self._noted_us)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the smaller of both; nothing before writers have noted anything."""
        if self._max_us is not None and self._noted_us is not None:
            noted_us = bounded_watermark_us(self._noted_us, 0)
            output.emit_watermark(min(bounded_watermark_us(self._max_us, self.bound_us), noted_us))
