"""Finds segments: those of a position at first, and from then on what carries them on.

    position    head, tail or a StreamCut: its segments, each from its byte on
    successors  a segment that is sealed is asked for them; Pravega keeps that for the life of a stream, also of what
                was truncated, so a scaling that nobody saw is found, and with it what is lost, if something is

Scalings seal some segments and make others whose keys they had: every successor names all of its predecessors.

    discovery   one question a stream, which segments are open; only if one of them is new, what lies between is asked
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .client import PravegaClient, StreamCut
from .errors import InvalidPravegaOption, PravegaStreamMissing
from .segment import PravegaSplit, segment_of, split_of

__all__ = ["Positions", "SegmentWalk", "StreamList", "StreamPattern", "Streams"]


@dataclass(frozen=True, slots=True)
class StreamList:
    """Streams by name: each has to be there."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamPattern:
    """Streams whose whole name matches, also those that are made later."""

    pattern: str


Streams = StreamList | StreamPattern


@dataclass(frozen=True)
class Positions:
    """Where streams begin, or end.

    Attributes:
        otherwise: "head" or "tail".
        cuts: stream -> "head", "tail" or the text of a StreamCut.
        texts: texts of StreamCuts, each of which names its stream itself.
    """

    otherwise: str
    cuts: Mapping[str, str]
    texts: tuple[str, ...] = ()

    def resolve(self, client: PravegaClient, stream: str) -> StreamCut:
        """Look a position up.

        Raises:
            InvalidPravegaOption: it is of another stream.
        """
        given = self.cuts.get(stream, self.otherwise)
        for cut in map(client.cut_of, self.texts):
            if cut.stream == stream:
                return cut
        if given == "head":
            return client.head(stream)
        if given == "tail":
            return client.tail(stream)
        cut = client.cut_of(given)
        if cut.stream != stream:
            raise InvalidPravegaOption(
                "start, stop", f"a StreamCut of {cut.stream} for {stream}", f"one of {stream}", "look it up again."
            )
        return cut


class SegmentWalk:
    """What `DiscoveringEnumerator` calls to discover; each call is one look. Used by one thread at a time.

    Args:
        client: makes the client, on the thread that looks.
        streams: which streams.
        start: where they begin.
        stop: where they end; None: nowhere.
        known: ids of splits that are known.
        late: whether streams were looked for before: those of a pattern that are new since begin at their head.
    """

    def __init__(
        self,
        client: Callable[[], PravegaClient],
        streams: Streams,
        start: Positions,
        stop: Positions | None,
        known: Sequence[str],
        *,
        late: bool,
    ) -> None:
        self._client, self._streams, self._start, self._stop, self._late = client, streams, start, stop, late
        self._known: dict[str, set[int]] = {}
        for split_id in known:
            stream, segment = segment_of(split_id)
            self._known.setdefault(stream, set()).add(segment)
        self._carried_on: set[tuple[str, int]] = set()  # segments of which all successors are known
        self._found: list[PravegaSplit] = []

    def __call__(self) -> Sequence[PravegaSplit]:
        """Look.

        Returns:
            The splits that were found by this walk, now or before.

        Raises:
            PravegaStreamMissing: a stream that is named is not there.
        """
        client = self._client()
        for stream in self._names(client):
            try:
                self._look(client, stream)
            except PravegaStreamMissing:
                if isinstance(self._streams, StreamList):
                    raise
        self._late = True
        return list(self._found)

    def _names(self, client: PravegaClient) -> Sequence[str]:
        if isinstance(self._streams, StreamList):
            return self._streams.names
        matches = re.compile(self._streams.pattern).fullmatch
        return [name for name in client.streams() if matches(name)]

    def _look(self, client: PravegaClient, stream: str) -> None:
        if self._stop is not None:
            self._found += self._bounded(client, stream, self._stop)
        elif stream in self._known:
            self._found += self._walk(client, stream)
        else:
            late = self._late and isinstance(self._streams, StreamPattern)
            cut = client.head(stream) if late else self._start.resolve(client, stream)
            self._known[stream] = set(cut.positions)
            found = [split_of(stream, segment, start) for segment, start in sorted(cut.positions.items())]
            try:
                found += self._walk(client, stream)
            except BaseException:
                del self._known[stream]
                raise
            self._found += found

    def _walk(self, client: PravegaClient, stream: str) -> list[PravegaSplit]:
        """Find what carries on the segments that are known."""
        known, found, carried_on = set(self._known[stream]), list[PravegaSplit](), set[tuple[str, int]]()
        is_open = client.open_segments(stream)
        if is_open and is_open <= known:
            return []
        asked = [
            segment for segment in sorted(known - is_open) if (stream, segment) not in self._carried_on
        ]  # all at once: they are sealed, and a stream has few that are sealed and not done
        while asked:
            again: dict[int, None] = {}
            for segment, successors in client.successors(stream, asked).items():
                if successors or not is_open:
                    carried_on.add((stream, segment))
                for successor, predecessors in sorted(successors.items()):
                    if successor not in known:
                        known.add(successor)
                        found.append(split_of(stream, successor, parents=predecessors))
                        # One that was asked before it was sealed has been asked too early.
                        again |= dict.fromkeys(each for each in (successor, *predecessors) if each in known)
            asked = [segment for segment in again if (stream, segment) not in self._carried_on | carried_on]
        self._known[stream] = known
        self._carried_on |= carried_on
        return found

    def _bounded(self, client: PravegaClient, stream: str, stop: Positions) -> list[PravegaSplit]:
        first, last = self._start.resolve(client, stream), stop.resolve(client, stream)
        segments = client.between(first, last)
        parents: dict[int, tuple[int, ...]] = {}
        for successors in client.successors(stream, segments).values():
            parents |= {each: predecessors for each, predecessors in successors.items() if each in segments}
        open_ended = [(stream, segment) for segment in segments if segment not in last.positions]
        states = client.all_states(open_ended, f"look up where segments of {stream} end")
        splits = []
        for segment in segments:
            state, start = states.get((stream, segment)), first.positions.get(segment, 0)
            # Of one that was truncated as a whole nobody knows the end: who plans it says that it is lost.
            end = last.positions.get(segment, None if state is None else state.tail)
            mine = tuple(parent for parent in parents.get(segment, ()) if parent in segments)
            splits.append(split_of(stream, segment, start, None if end is None else max(start, end), mine))
        return splits
