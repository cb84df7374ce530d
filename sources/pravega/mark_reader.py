"""Reads the marks of time of one stream, through Java's `RevisionedStreamClient`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .jvm import java_class
from .notes import Mark, Marks

_REVISION = "io.pravega.client.state.Revision"


class MarkReader:
    """Reads marks, without keeping them, by the reader of Java that `connect` makes, once `find` has had an answer."""

    def __init__(self, connect: Callable[[], Any], find: Callable[[], None]) -> None:
        self.lock = threading.Lock()  # held by the caller of each method, because Java's reader is for one thread
        self._connect, self._find = connect, find
        self._reader: Any = None
        self._oldest: str | None = None  # the begin of the marks, in Java's form

    def read(self, place: int, most: int | None, origin: str) -> Marks:
        """Read on, as `PravegaClient.marks` says."""
        self._find()
        if self._reader is None:
            self._reader = self._connect()
        truncated = java_class("io.pravega.client.stream.TruncatedDataException")
        try:
            return self._read_from(place, most, origin)
        except truncated:
            self._oldest = None
            return self._read_from(place, most, origin)

    def forget(self) -> None:
        """Forget a deleted stream, because a new stream of its name has other marks."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._oldest = None

    def _read_from(self, place: int, most: int | None, origin: str) -> Marks:
        if self._oldest is None:
            self._oldest = str(self._reader.fetchOldestRevision())
        segment, first, event = self._oldest.rsplit(":", 2)
        place = max(place if origin in {"", segment} else 0, int(first))
        found: list[Mark] = []
        entries = self._reader.readFrom(java_class(_REVISION).fromString(f"{segment}:{place}:{event}"))
        while (most is None or len(found) < most) and entries.hasNext():
            entry = entries.next()
            mark, after = entry.getValue(), int(str(entry.getKey()).rsplit(":", 2)[1])
            at = {int(each.getSegmentId()): int(byte) for each, byte in dict(mark.getStreamCut()).items()}
            found.append(Mark(int(mark.getLowerTimeBound()), at, place, after))
            place = after
        return Marks(segment, found)


def mark_stream_of(stream: str) -> str:
    """Return the name of the stream that has the marks of a stream."""
    return str(java_class("io.pravega.shared.NameUtils").getMarkStreamForStream(stream))


def java_reader(scope: str, stream: str, controller: Any, pool: Any) -> Any:
    """Make Java's reader of the marks of a stream."""
    return java_class("io.pravega.client.stream.impl.ClientFactoryImpl")(
        scope, controller, pool
    ).createRevisionedStreamClient(
        mark_stream_of(stream),
        java_class("io.pravega.client.watermark.WatermarkSerializer")(),
        java_class("io.pravega.client.state.SynchronizerConfig").builder().build(),
    )
