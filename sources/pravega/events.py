"""Finds events in the bytes of a segment: each has a type (4 bytes, 0), a length (4 bytes, big-endian) and its bytes.

Bytes come from Java a megabyte at a time and are divided here, because a call from Python into Java for every event
costs more than all other work.

Source: `io.pravega.shared.protocol.netty.WireCommands.Event`, `EventSegmentReaderImpl`.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lowmark.watermark import LowmarkError

HEADER_BYTES = 8
_LENGTH = struct.Struct(">i").unpack_from


class NotAnEvent(LowmarkError):
    """Bytes that are no event. The caller that knows the split catches this error."""

    at: int  # the place of the bytes
    what: str  # the found bytes
    _fact = "{what} at byte {at}"
    _hint = ""


def ends_of_events(data: bytearray | memoryview, size: int) -> npt.NDArray[np.int64]:
    r"""Return where each whole event in the first `size` bytes ends; the first begins at 0. Raises NotAnEvent.

    >>> ends_of_events(bytearray(b"\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\2bc\0\0\0"), 22)
    array([ 9, 19])
    """
    ends: list[int] = []
    append, length_of, at, last = ends.append, _LENGTH, 0, size - HEADER_BYTES
    while at <= last:
        (length,) = length_of(data, at + 4)
        after = at + HEADER_BYTES + length
        if length < 0:
            raise NotAnEvent(at, f"a length of {length}")
        if after > size:
            break
        append(after)
        at = after
    found = np.array(ends, np.int64)
    if len(found):
        _check_types(data, found)
    elif size >= HEADER_BYTES and (kind := _LENGTH(data, 0)[0]) != 0:
        raise NotAnEvent(0, f"type {kind}")
    return found


def _check_types(data: bytearray | memoryview, ends: npt.NDArray[np.int64]) -> None:
    raw = np.frombuffer(data, np.uint8)
    begins = np.concatenate(([0], ends[:-1]))
    wrong = raw[begins] | raw[begins + 1] | raw[begins + 2] | raw[begins + 3]
    if wrong.any():
        at = int(begins[np.flatnonzero(wrong)[0]])
        raise NotAnEvent(at, f"type {_LENGTH(data, at)[0]}")


def payloads(data: bytearray | memoryview, ends: npt.NDArray[np.int64]) -> pa.BinaryArray:
    r"""Return the events without their headers, copied.

    >>> payloads(bytearray(b"\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\2bc"), np.array([9, 19])).to_pylist()
    [b'a', b'bc']
    """
    # An array of headers and payloads in turn over the same bytes; then every second element is taken.
    offsets = np.empty(2 * len(ends) + 1, np.int32)
    offsets[0] = 0
    offsets[2::2] = ends
    offsets[1::2] = offsets[0:-1:2] + HEADER_BYTES
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(ends), buffers)
    events = both.take(pa.array(np.arange(1, 2 * len(ends), 2), pa.int64()))
    assert isinstance(events, pa.BinaryArray), "of the type that was taken from"
    return events
