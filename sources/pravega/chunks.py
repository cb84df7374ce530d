"""Reads a range of a segment in chunks with the ends of their events, for reading and indexing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .client import PravegaClient
from .errors import PravegaEventBroken
from .events import HEADER_BYTES, NotAnEvent, ends_of_events
from .segment import PravegaSplit
from .segment_bytes import SegmentBytes

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole events. The next chunk uses `data` again."""

    position: int
    data: bytearray  # perhaps with more bytes after the events
    ends: npt.NDArray[np.int64]  # where in `data` each event ends

    @property
    def after(self) -> int:
        return self.position + int(self.ends[-1])

    @property
    def begins(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], self.ends[:-1])) + self.position


def chunks(
    client: PravegaClient, split: PravegaSplit, start: int, stop: int, *, opened: SegmentBytes | None = None
) -> Iterator[Chunk]:
    """Read the events from `start` up to a later `stop`, both of them positions between events.

    Args:
        opened: the segment, opened at `start`; it is closed at the end.

    Raises PravegaEventBroken, and the errors of `PravegaClient.open` and `SegmentBytes`.
    """
    with closing(client.open(split.stream, split.segment, start) if opened is None else opened) as source:
        data, position, kept = bytearray(min(CHUNK_BYTES, stop - start)), start, 0
        while position < stop:
            size = min(len(data), stop - position)
            source.read_into(memoryview(data)[kept:size])
            try:
                ends = ends_of_events(data, size)
            except NotAnEvent as wrong:
                raise PravegaEventBroken(split.split_id, position + wrong.at, wrong.what) from None
            used = int(ends[-1]) if len(ends) else 0
            kept = size - used
            if kept and position + size >= stop:
                what = f"an event that does not end at {stop}, the end of the segment"
                raise PravegaEventBroken(split.split_id, position + used, what)
            if not used:  # one event is larger than the chunk
                needed = HEADER_BYTES + int.from_bytes(data[4:8], "big") if size >= HEADER_BYTES else HEADER_BYTES
                data = bytearray(data[:size]) + bytearray(max(needed, 2 * size) - size)
                continue
            yield Chunk(position, data, ends)
            data[:kept] = data[used:size]
            position += used
