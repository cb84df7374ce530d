"""Asks Pravega through the classes of its Java client; `segment_bytes`, `mark_reader` and `group` call it, too.

A process has one client for equal settings, shared by planner, enumerator and all readers, so connections outlive a
batch. Questions are repeated until `give_up_seconds` are over; errors that waiting does not cure are raised at once.

`io.pravega.client.BatchClientFactory`, the public way to read ranges, gives one event in each call. This module uses
the classes beneath it (`ControllerImpl`, `SegmentMetadataClient`, `SegmentInputStream`), which give bytes, ask many
segments at once, and know predecessors. These classes are the same in 0.12 and 0.13.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lowmark.sources.kit.patience import Patience
from lowmark.watermark import LowmarkError

from .errors import InvalidPravegaOption, PravegaAccessDenied, PravegaStreamMissing, PravegaUnavailable
from .java_error import JavaError, cause_of
from .jvm import java_class, start_java
from .mark_reader import MarkReader, java_reader, mark_stream_of
from .notes import Marks
from .segment import segment_name
from .segment_bytes import ANSWER_MS, SegmentBytes, Truncated
from .settings import PravegaSettings

Answer = TypeVar("Answer")

OPENED_TOGETHER = 16
"""How many segments are asked for bytes before the first is read; Java keeps a megabyte for each segment."""


class Silent(LowmarkError):
    """No answer came in time; the text is the last error."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The present state of a segment."""

    head: int
    tail: int  # the position after its last event
    sealed: bool  # whether no event will be added


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in a stream: a position in each of the segments that cover the stream."""

    stream: str
    positions: Mapping[int, int]  # segment -> byte


_clients: dict[PravegaSettings, PravegaClient] = {}
_making = threading.Lock()


def client_of(settings: PravegaSettings) -> PravegaClient:
    """Return the client of this process. Raises PravegaClientMissing, InvalidPravegaOption."""
    with _making:
        start_java(settings.jars, settings.jvm_options)
        if settings not in _clients:
            _clients[settings] = PravegaClient(settings)
        return _clients[settings]


class PravegaClient:
    """Asks one Pravega about one scope. For many threads."""

    def __init__(self, settings: PravegaSettings) -> None:
        self.settings = settings
        config = self.java_config = _config(settings)
        pool = self._pool = java_class("io.pravega.client.connection.impl.ConnectionPoolImpl")(
            config, java_class("io.pravega.client.connection.impl.SocketConnectionFactoryImpl")(config)
        )
        # Few tries in Java, because `ask` tries again and logs that.
        described = java_class("io.pravega.client.control.impl.ControllerImplConfig").builder().clientConfig(config)
        executor = pool.getInternalExecutor()
        self._controller = java_class("io.pravega.client.control.impl.ControllerImpl")(
            described.retryAttempts(2).initialBackoffMillis(10).build(), executor
        )
        channel = self._controller.getClass().getDeclaredField("channel")
        channel.setAccessible(True)  # ControllerImpl shows its gRPC channel to nobody
        self._channel = channel.get(self._controller)
        self.executor = executor  # Java's executor; like `java_config`, for other parts of Java's client
        self._metadata = java_class("io.pravega.client.segment.impl.SegmentMetadataClientFactoryImpl")(
            self._controller, pool
        )
        self._inputs = java_class("io.pravega.client.segment.impl.SegmentInputStreamFactoryImpl")(
            self._controller, pool
        )
        self._cut_helper = java_class("io.pravega.client.admin.impl.StreamCutHelper")(self._controller, pool)
        self._tokens: dict[str, Any] = {}
        self._segments: dict[tuple[str, int], Any] = {}  # Java's
        self._watched: dict[tuple[str, int], Any] = {}  # metadata clients of open segments
        self._marks: dict[str, MarkReader] = {}
        self._lock = threading.RLock()

    def streams(self) -> list[str]:
        """Return the names of the scope's streams, sorted."""

        def listed() -> Any:
            names: set[str] = set()
            iterator = self._controller.listStreams(self.settings.scope)
            while (stream := _result(iterator.getNext())) is not None:
                names.add(str(stream.getStreamName()))
            return names

        found = self.ask(f"list the streams of scope {self.settings.scope}", listed, missing=self._scope_missing)
        return sorted(name for name in found if not name.startswith("_"))

    def head(self, stream: str) -> StreamCut:
        at = self.java_stream(stream)
        cut = self._future(stream, "look up the head of", lambda: self._cut_helper.fetchHeadStreamCut(at))
        return StreamCut(stream, positions_of(cut))

    def tail(self, stream: str) -> StreamCut:
        """Return where a stream ends; a sealed stream has no open end, so its StreamCut has no positions."""
        at = self.java_stream(stream)
        cut = self._future(stream, "look up the tail of", lambda: self._cut_helper.fetchTailStreamCut(at))
        return StreamCut(stream, positions_of(cut))

    def open_segments(self, stream: str) -> frozenset[int]:
        scope = self.settings.scope
        found = self._future(
            stream, "look up the segments of", lambda: self._controller.getCurrentSegments(scope, stream)
        )
        return frozenset(int(segment.getSegmentId()) for segment in found.getSegments())

    def successors(self, stream: str, segments: Sequence[int]) -> dict[int, dict[int, tuple[int, ...]]]:
        """Return the successors of each segment: successor -> its predecessors; empty while the segment is open."""

        def asked() -> list[Any]:
            return [self._controller.getSuccessors(self._java_segment(stream, segment)) for segment in segments]

        answers = self._futures(stream, "look up the successors in", asked)
        return {
            segment: {
                int(successor.getSegment().getSegmentId()): tuple(sorted(int(each) for each in predecessors))
                for successor, predecessors in dict(answer.getSegmentToPredecessor()).items()
            }
            for segment, answer in zip(segments, answers, strict=True)
        }

    def between(self, start: StreamCut, stop: StreamCut) -> list[int]:
        """Return the segments between two positions, sorted."""
        first, last = self.java_cut(start), self.java_cut(stop)
        found = self._future(
            start.stream, "look up the segments between two StreamCuts of",
            lambda: self._controller.getSegments(first, last),
        )  # fmt: skip
        return sorted(int(segment.getSegmentId()) for segment in found.getSegments())

    def cut_of(self, text: str) -> StreamCut:
        """Read a text that `check_stream_cut` has taken. Raises InvalidPravegaOption if it is no StreamCut."""
        import jpype

        try:
            cut = java_class("io.pravega.client.stream.StreamCut").from_(text).asImpl()
            stream, positions = str(cut.getStream().getStreamName()), positions_of(cut)
        except jpype.JException as wrong:
            hint = f"{cause_of(wrong)}; StreamCut.asText() makes it."
            raise InvalidPravegaOption("start, stop", repr(text[:60]), "the text of a StreamCut", hint) from None
        return StreamCut(stream, positions)

    def text_of(self, cut: StreamCut) -> str:
        return str(self.java_cut(cut).asText())

    def marks(self, stream: str, place: int = 0, most: int | None = None, origin: str = "") -> Marks | None:
        """Return the marks of time that writers have noted in a stream; None if no mark was ever noted.

        Args:
            place: the place in the stream of marks to begin at: 0, or `after` of a mark. Truncated marks are skipped.
            origin: the origin of the place, "" if unknown. For another origin, all marks are returned.
        """
        with self._lock:
            connect = partial(java_reader, self.settings.scope, stream, self._controller, self._pool)
            reader = self._marks.setdefault(stream, MarkReader(connect, partial(self._find_marks, stream)))
        action = f"read the marks of time of stream {self.settings.scope}/{stream}"
        with reader.lock:
            return self.ask(action, lambda: reader.read(place, most, origin), missing=reader.forget)

    def _find_marks(self, stream: str) -> None:
        """Ask for an answer in time, because Java's reader of marks waits for minutes by itself."""
        import jpype

        name = mark_stream_of(stream)
        for each in _result(self._controller.getCurrentSegments(self.settings.scope, name)).getSegments():
            segment = int(each.getSegmentId())
            try:
                _result(self._watch(name, segment).getSegmentInfo())
            except jpype.JException:
                self._unwatch(name, segment)
                raise

    def states(
        self, segments: Iterable[tuple[str, int]], *, patience_seconds: float
    ) -> dict[tuple[str, int], SegmentState | None]:
        """Return the states of segments, asked side by side; None for a segment that does not exist.

        Segments without an answer within `patience_seconds` are missing; if all are, that is a `Silent`.
        """
        import jpype

        deadline = time.monotonic() + patience_seconds
        asked = {key: self._watch(*key) for key in dict.fromkeys(segments)}
        futures = {key: client.getSegmentInfo() for key, client in asked.items()}
        found: dict[tuple[str, int], SegmentState | None] = {}
        last = "no answer"
        for key, future in futures.items():
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            try:
                info = _result(future, left_ms)
            except jpype.JException as failed:
                said = cause_of(failed)
                if JavaError.DENIED.is_in(said):
                    action = f"read segment {key[0]}/{segment_name(key[1])}"
                    raise PravegaAccessDenied(self.settings.place, action, said) from None
                self._unwatch(*key)
                if JavaError.MISSING.is_in(said):
                    found[key] = None
                else:
                    last = said
                    future.cancel(True)
                continue
            found[key] = SegmentState(int(info.getStartingOffset()), int(info.getWriteOffset()), bool(info.isSealed()))
        if asked and not found:
            raise Silent(last)
        return found

    def all_states(
        self, segments: Iterable[tuple[str, int]], action: str
    ) -> dict[tuple[str, int], SegmentState | None]:
        """Return the state of every segment. Raises PravegaAccessDenied, PravegaUnavailable."""
        keys, seconds = list(dict.fromkeys(segments)), self.settings.give_up_seconds
        found: dict[tuple[str, int], SegmentState | None] = {}
        cause = "no answer"
        try:
            found = self.states(keys, patience_seconds=seconds)
        except Silent as silent:
            cause = str(silent)
        if len(found) < len(keys):
            raise PravegaUnavailable(self.settings.place, action, seconds, cause)
        return found

    def segment_state(self, stream: str, segment: int) -> SegmentState | None:
        """Return the present state of a segment; None: it does not exist. Raises as `all_states`."""
        key = stream, segment
        return self.all_states([key], f"look up the head of {stream}/{segment_name(segment)}")[key]

    def exists(self, stream: str) -> bool:
        scope = self.settings.scope
        return bool(
            self.ask(
                f"look for stream {scope}/{stream}",
                lambda: _result(self._controller.checkStreamExists(scope, stream)),
                missing=lambda: False,
            )
        )

    def open(self, stream: str, segment: int, position: int) -> SegmentBytes:
        """Begin to read the bytes of a segment."""
        name = f"segment {stream}/{segment_name(segment)}"
        token = self._token(stream)

        def opened() -> Any:
            _result(token.retrieveToken())
            return self._inputs.createInputStreamForSegment(self._java_segment(stream, segment), token, position)

        source = self.ask(f"read {name}", opened, missing=lambda: self._no_segment(stream, name))
        patience, tail = self._patience(f"read {name}"), partial(self._tail_of, stream, segment)
        return SegmentBytes(source, self.settings.place, f"read {name}", patience, tail=tail)

    def _tail_of(self, stream: str, segment: int) -> int | None:
        try:
            [state] = self.states([(stream, segment)], patience_seconds=ANSWER_MS / 1_000).values()
        except Silent:
            return None
        return 0 if state is None else state.tail

    def open_ahead(self, stream: str, segment: int, position: int) -> SegmentBytes:
        """Do `open`, and ask Pravega for the first bytes at once, so that several segments can be awaited together."""
        opened = self.open(stream, segment, position)
        opened.fill()
        return opened

    def forget(self, stream: str, segment: int) -> None:
        self._unwatch(stream, segment)
        self._segments.pop((stream, segment), None)

    def _watch(self, stream: str, segment: int) -> Any:
        with self._lock:
            if (stream, segment) not in self._watched:
                self._watched[stream, segment] = self._metadata.createSegmentMetadataClient(
                    self._java_segment(stream, segment), self._token(stream)
                )
            return self._watched[stream, segment]

    def _unwatch(self, stream: str, segment: int) -> None:
        with self._lock:
            client = self._watched.pop((stream, segment), None)
        if client is not None:
            client.close()

    def _token(self, stream: str) -> Any:
        with self._lock:
            if stream not in self._tokens:
                read = java_class("io.pravega.shared.security.auth.AccessOperation").READ
                factory = java_class("io.pravega.client.security.auth.DelegationTokenProviderFactory")
                self._tokens[stream] = factory.create(self._controller, self.settings.scope, stream, read)
            return self._tokens[stream]

    def java_stream(self, stream: str) -> Any:
        return java_class("io.pravega.client.stream.Stream").of(self.settings.scope, stream)

    def _java_segment(self, stream: str, segment: int) -> Any:
        made = self._segments.get((stream, segment))
        if made is None:  # making it takes half a millisecond
            kind = java_class("io.pravega.client.segment.impl.Segment")
            made = self._segments[stream, segment] = kind(self.settings.scope, stream, segment)
        return made

    def java_cut(self, cut: StreamCut) -> Any:
        positions = {self._java_segment(cut.stream, segment): position for segment, position in cut.positions.items()}
        return java_class("io.pravega.client.stream.impl.StreamCutImpl")(self.java_stream(cut.stream), positions)

    def _future(self, stream: str, action: str, call: Callable[[], Any]) -> Any:
        return self._futures(stream, action, lambda: [call()])[0]

    def _futures(self, stream: str, action: str, calls: Callable[[], Sequence[Any]]) -> list[Any]:
        name = f"{action} stream {self.settings.scope}/{stream}"

        def missing() -> Any:
            raise PravegaStreamMissing(self.settings.scope, stream, self.settings.place, f"{action} it")

        return self.ask(name, lambda: [_result(future) for future in calls()], missing=missing)

    def ask(self, action: str, call: Callable[[], Answer], *, missing: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer. Raises PravegaAccessDenied, PravegaUnavailable, and the errors of `missing`."""
        import jpype

        patience = self._patience(action)
        while True:
            try:
                return call()
            except jpype.JException as failed:
                cause = cause_of(failed)
            if JavaError.DENIED.is_in(cause):
                raise PravegaAccessDenied(self.settings.place, action, cause)
            if JavaError.MISSING.is_in(cause):
                return missing()
            if JavaError.FOR_GOOD.is_in(cause) or not patience.goes_on(cause):
                raise PravegaUnavailable(self.settings.place, action, patience.spent_seconds, cause)

    def _patience(self, action: str) -> Patience:
        place, seconds = self.settings.place, self.settings.give_up_seconds
        return Patience(f"Pravega at {place}", action, seconds, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._channel.resetConnectBackoff()  # gRPC's own pauses grow to two minutes

    def _scope_missing(self) -> Any:
        raise PravegaStreamMissing(self.settings.scope, "", self.settings.place, "list its streams")

    def _no_segment(self, stream: str, name: str) -> Any:
        if not self.exists(stream):
            raise PravegaStreamMissing(self.settings.scope, stream, self.settings.place, f"read {name}")
        raise Truncated(name)


def _config(settings: PravegaSettings) -> Any:
    builder = java_class("io.pravega.client.ClientConfig").builder()
    builder.controllerURI(java_class("java.net.URI")(settings.controller))
    if settings.username:
        credentials = java_class("io.pravega.shared.security.auth.DefaultCredentials")
        builder.credentials(credentials(settings.password, settings.username))
    if settings.trust_store:
        builder.trustStore(settings.trust_store)
    builder.validateHostName(settings.validate_host_name)
    return builder.build()


def positions_of(cut: Any) -> dict[int, int]:
    """Segment -> byte of one of Java's StreamCuts."""
    return {
        int(segment.getSegmentId()): int(position) for segment, position in dict(cut.asImpl().getPositions()).items()
    }


def _result(future: Any, wait_ms: int = ANSWER_MS) -> Any:
    return future.get(wait_ms, java_class("java.util.concurrent.TimeUnit").MILLISECONDS)
