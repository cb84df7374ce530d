"""A reader group of Pravega: the position of a query, for retention and for applications that share the position.

A checkpoint of the group is complete when all its readers have read up to it. It waits for ever for a dead reader,
until `readerOffline` is called or the group is reset, as in `join`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lowmark.sources.worker import Worker
from lowmark.watermark import LowmarkError

from .client import PravegaClient, StreamCut, positions_of
from .cuts import stream_cuts
from .errors import PravegaGroupTaken, PravegaStreamMissing
from .java_error import JavaError, cause_of
from .jvm import java_class, leave_java
from .segment import PravegaSplit

log = logging.getLogger("lowmark")

REFRESH_MS = 200
"""How often readers look at the shared state of the group; a checkpoint takes some of these intervals."""
_READ_MS = 200
_CLOSE_SECONDS = 5.0
_POLL_SECONDS = 0.02


class PravegaGroup:
    """One reader group. For one thread; its reader has a thread of its own.

    Every call may raise PravegaGroupTaken, PravegaAccessDenied, PravegaUnavailable, PravegaStreamMissing or GroupReset.
    """

    def __init__(self, client: PravegaClient, name: str, streams: Sequence[str]) -> None:
        self._client, self._name, self._streams = client, name, tuple(streams)
        self._manager = java_class("io.pravega.client.admin.ReaderGroupManager").withScope(
            client.settings.scope, client.java_config
        )
        self._group: Any = None
        self._reader: _Reader | None = None
        self._due: Any = None

    def subscribe(self, splits: Collection[PravegaSplit]) -> None:
        """Make the group at the starts of splits, so that retention keeps all events that the group has not released.

        An existing group that keeps the same streams stays. Raises PravegaGroupTaken where a reset would move readers.
        """
        cuts = self._cuts(splits)
        config = self._config(cuts)
        group, streams = self._make(config)
        if streams == cuts.keys() and _keeps(group):
            return
        if readers := self.readers():
            raise self._taken(f"{', '.join(sorted(streams))} with the readers {', '.join(readers)}")
        self._ask("reset", lambda: group.resetReaderGroup(config))

    def join(self, splits: Collection[PravegaSplit]) -> None:
        """Set the group to the starts of splits and read on. Its other readers must be made again, as Pravega says."""
        config = self._config(self._cuts(splits))
        self._leave()
        group, _ = self._make(config)

        def joined() -> _Reader:
            group.resetReaderGroup(config)  # drops the reader of a try that had no answer, too
            return _Reader(self._client, self._name)

        self._reader = self._ask("join", joined)

    def checkpoint(self, seconds: float) -> Mapping[tuple[str, int], int] | None:
        """Take a checkpoint of the group, or go on waiting for a begun checkpoint.

        Returns:
            (stream, segment) -> the byte up to which the group has read it, of segments that it reads or can read now;
            None: the checkpoint is not complete yet.
        """
        if self._due is None:
            self._due = self._ask(
                "take a checkpoint of",
                lambda: self._group.initiateCheckpoint(f"lowmark-{uuid.uuid4().hex}", self._client.executor),
            )
        deadline = time.monotonic() + seconds
        while not bool(self._due.isDone()):
            if self._reader is not None and self._reader.failed is not None:
                raise GroupReset(self._reader.failed)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)
        due, self._due = self._due, None
        import jpype

        try:
            done = due.get()
        except jpype.JException as failed:
            if JavaError.GROUP_BUSY.is_in(cause := cause_of(failed)):
                return None  # applications have begun as many checkpoints as the group allows: try later
            raise GroupReset(cause) from None
        return {
            (str(stream.getStreamName()), segment): position
            for stream, cut in dict(done.asImpl().getPositions()).items()
            for segment, position in positions_of(cut).items()
        }

    def readers(self) -> list[str]:
        """Return the names of the group's readers, sorted; the name of this process's begins with `lowmark-`."""
        return sorted(str(name) for name in self._ask("look up the readers of", self._group.getOnlineReaders))

    def release(self, splits: Collection[PravegaSplit], kept: frozenset[str] = frozenset()) -> None:
        """Let Pravega truncate events before the starts of splits, by the stream's retention policy.

        A stream that a batch has found is not released until the group has that stream, too.

        Args:
            kept: the streams that the group has to have.

        Raises GroupReset, also if somebody has set the group so that Pravega keeps fewer events.
        """
        cuts = self._cuts(splits)
        if self._group is None:
            self._group = self._ask("look up", lambda: self._manager.getReaderGroup(self._name))
        streams = self._ask("look up the streams of", lambda: _streams_of(self._group))
        held = self._java_cuts({stream: cut for stream, cut in cuts.items() if stream in streams})
        gone = cuts.keys() & kept - streams if _keeps(self._group) else cuts.keys()
        if gone:
            named = f"{self._client.settings.scope}/{self._name} keeps no events of {', '.join(sorted(gone))}"
            raise GroupReset(f"reader group {named} any more, because somebody has set it anew")
        self._ask("move the retention of", lambda: self._group.updateRetentionStreamCut(held))

    def close(self) -> None:
        """Leave the group; its other readers take over the segments of this process's reader."""
        self._leave()
        if self._group is not None:
            self._group.close()
        self._manager.close()

    def _leave(self) -> None:
        self._due = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _make(self, config: Any) -> tuple[Any, set[str]]:
        import jpype

        def made() -> Any:
            try:
                self._manager.createReaderGroup(self._name, config)
            except jpype.JException as there:
                if not JavaError.GROUP_MISMATCH.is_in(cause_of(there)):
                    raise
            return self._manager.getReaderGroup(self._name)

        if self._group is not None:
            self._group.close()
        self._group = group = self._ask("make", made)
        streams = self._ask("look up the streams of", lambda: _streams_of(group))
        if not streams <= set(self._streams):
            raise self._taken(", ".join(sorted(streams)))
        return group, streams

    def _taken(self, streams: str) -> PravegaGroupTaken:
        return PravegaGroupTaken(self._client.settings.scope, self._name, streams, ", ".join(self._streams))

    def _cuts(self, splits: Collection[PravegaSplit]) -> Mapping[str, StreamCut]:
        return stream_cuts(self._client, {split.split_id: split.start for split in splits})

    def _config(self, cuts: Mapping[str, StreamCut]) -> Any:
        config = java_class("io.pravega.client.stream.ReaderGroupConfig")
        retention = java_class("io.pravega.client.stream.ReaderGroupConfig$StreamDataRetention")
        described = config.builder().disableAutomaticCheckpoints().groupRefreshTimeMillis(REFRESH_MS)
        described.retentionType(retention.MANUAL_RELEASE_AT_USER_STREAMCUT)
        return described.startFromStreamCuts(self._java_cuts(cuts)).build()

    def _java_cuts(self, cuts: Mapping[str, StreamCut]) -> dict[Any, Any]:
        return {self._client.java_stream(stream): self._client.java_cut(cut) for stream, cut in cuts.items()}

    def _ask(self, action: str, call: Callable[[], Any]) -> Any:
        def missing() -> Any:
            scope, controller = self._client.settings.scope, self._client.settings.controller
            for stream in self._streams:
                if not self._client.exists(stream):
                    raise PravegaStreamMissing(scope, stream, controller, f"{action} reader group {self._name}")
            raise GroupReset(f"reader group {scope}/{self._name} was deleted")

        return self._client.ask(f"{action} reader group {self._name}", call, missing=missing)


def _streams_of(group: Any) -> set[str]:
    return {str(name).rpartition("/")[2] for name in group.getStreamNames()}


def _keeps(group: Any) -> bool:
    """Whether Pravega keeps events until they are released; `_streams_of` has fetched the state of the group."""
    return "MANUAL" in str(group.getSynchronizer().getState().getConfig().getRetentionType())


class GroupReset(LowmarkError):
    """The group was reset or deleted, or its reader has stopped, so that the group must be joined again."""


class _Reader:
    """Reads on and drops its events, because only readers take part in a checkpoint."""

    def __init__(self, client: PravegaClient, group: str) -> None:
        self._ended, self._refused = threading.Event(), ""
        serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
        config = java_class("io.pravega.client.stream.ReaderConfig").builder().build()
        self._factory = java_class("io.pravega.client.EventStreamClientFactory").withScope(
            client.settings.scope, client.java_config
        )
        name = f"lowmark-{uuid.uuid4().hex[:12]}"
        try:
            self._reader = self._factory.createReader(name, group, serializer, config)
        except BaseException:
            self._factory.close()
            raise
        self._worker = Worker(f"lowmark {group}", self._run)
        self._worker.start()

    @property
    def failed(self) -> str | None:
        """Why the reader has stopped; None while it reads."""
        return self._refused or (None if self._worker.failed is None else str(self._worker.failed))

    def close(self) -> None:
        self._ended.set()
        self._worker.join(_CLOSE_SECONDS)
        self._factory.close()

    def _run(self) -> None:
        import jpype

        truncated = java_class("io.pravega.client.stream.TruncatedDataException")
        try:
            while not self._ended.is_set():
                try:
                    self._reader.readNextEvent(_READ_MS)
                except truncated:
                    continue  # read on from the head; the query itself reports lost events
                except jpype.JException as failed:
                    self._refused = cause_of(failed)
                    return
        finally:
            try:
                self._reader.close()
            except jpype.JException as failed:  # after a reset the group has forgotten the reader
                log.debug("a reader of a group could not be closed: %s", cause_of(failed))
            leave_java()
