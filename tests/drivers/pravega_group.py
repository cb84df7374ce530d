"""An application that reads in the reader group of a query, and the positions of that group."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.pravega.client import positions_of
from lowmark.sources.pravega.cuts import stream_cuts
from lowmark.sources.pravega.java_error import cause_of
from lowmark.sources.pravega.jvm import java_class, leave_java

from tests.servers.pravega import Pravega

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_MS = 200
Cuts = dict[str, dict[int, int]]
"""stream -> segment -> byte."""


class Application:
    """Reads in a group as any application does, and starts again after each reset of the group.

    Attributes:
        events: all events received; events from before a reset are repeated.
        checkpoints: the names of the checkpoints seen.
        resets: the number of resets of the group.
    """

    def __init__(self, pravega: Pravega, group: str) -> None:
        self._pravega, self._group = pravega, group
        self.events: Counter[bytes] = Counter()
        self.checkpoints: list[str] = []
        self.resets = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="application", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(20)

    def _run(self) -> None:
        import jpype

        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
        config = java_class("io.pravega.client.stream.ReaderConfig").builder().build()
        while not self._ended.is_set():
            try:
                reader = self._pravega._writers.createReader(
                    f"app-{uuid.uuid4().hex[:8]}", self._group, serializer, config
                )
            except jpype.JException:  # the query has not created the group yet
                self._ended.wait(0.2)
                continue
            try:
                while not self._ended.is_set():
                    self._take(reader.readNextEvent(POLL_MS))
            except java_class("io.pravega.client.stream.ReinitializationRequiredException"):
                self.resets += 1
            finally:
                reader.close()
        leave_java()

    def _take(self, read: Any) -> None:
        if bool(read.isCheckpoint()):
            self.checkpoints.append(str(read.getCheckpointName()))
        elif read.getEvent() is not None:
            self.events[bytes(read.getEvent())] += 1


def set_to(pravega: Pravega, group: str) -> tuple[int, Cuts]:
    """Return how often a group was set to a position, and the last position; 0 if the group does not exist."""
    import jpype

    try:
        config = pravega.client._controller.getReaderGroupConfig(pravega.scope, group).get()
    except jpype.JException as failed:
        if not any(each in cause_of(failed) for each in ("ReaderGroupNotFound", "NOT_FOUND")):  # or not complete
            raise
        return 0, {}
    cuts = dict(config.getStartingStreamCuts())
    return int(config.getGeneration()) + 1, {str(s.getStreamName()): positions_of(cut) for s, cut in cuts.items()}


def standing(pravega: Pravega, offset: BatchOffset) -> Cuts:
    """The position in one of Spark's offsets, as StreamCuts."""
    return {stream: dict(cut.positions) for stream, cut in stream_cuts(pravega.client, offset.positions).items()}


def newest_offset(checkpoint: Path) -> BatchOffset | None:
    """The source's offset in the query's newest planned batch; None before the first."""
    files = [file for file in (checkpoint / "offsets").glob("*") if file.name.isdigit()]
    for file in sorted(files, key=lambda each: -int(each.name)):
        for line in file.read_text().splitlines():
            if (found := BatchOffset.find(line)) is not None:
                return found
    return None
