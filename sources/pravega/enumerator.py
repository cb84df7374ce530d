"""Finds segments: first the segments of a position, and from then on their successors.

    position    head, tail or a StreamCut: its segments, each from its byte on; the tail of a sealed stream is the ends
                of its last segments
    successors  asked for each sealed segment; Pravega keeps them for the life of a stream, also for truncated
                segments, so an unseen scaling is found, and with it any lost events

Scalings seal some segments and make others for the same keys: every successor names all of its predecessors.

    discovery   one question for each stream, its open segments; only if an open segment is new, the segments between
                are asked for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowmark.sources.kit.discovery import DiscoveredSplits
from lowmark.sources.kit.subscription import Subscription

from .client import PravegaClient, StreamCut
from .cuts import readable
from .errors import InvalidPravegaOption, PravegaStreamMissing
from .segment import PravegaSplit, segment_epoch, segment_of, split_of


@dataclass(frozen=True)
class Positions:
    """The positions where streams begin, or end.

    Attributes:
        otherwise: "head" or "tail", for other streams.
        cuts: stream -> "head", "tail" or the text of a StreamCut of the stream.
    """

    otherwise: str
    cuts: Mapping[str, str]

    def __str__(self) -> str:
        cuts = [f"{stream}: {readable(text)}" for stream, text in sorted(self.cuts.items())]
        return ", otherwise ".join([", ".join(cuts), self.otherwise] if cuts else [self.otherwise])

    def resolve(self, client: PravegaClient, stream: str) -> StreamCut:
        given = self.cuts.get(stream, self.otherwise)
        if given == "head":
            return client.head(stream)
        return _tail(client, stream) if given == "tail" else client.cut_of(given)


class SegmentWalk:
    """The discovery of a `DiscoveringEnumerator`; each call is one look. Used by one thread at a time.

    Args:
        client: makes the client, on the thread that looks.
        known: the state to go on from. Streams of a pattern that are new since its discovery begin at their head.
    """

    def __init__(
        self,
        client: Callable[[], PravegaClient],
        streams: Subscription,
        start: Positions,
        stop: Positions | None,
        known: DiscoveredSplits[PravegaSplit],
    ) -> None:
        self._client, self._streams, self._start, self._stop = client, streams, start, stop
        self._late = known.discovered
        self._known: dict[str, set[int]] = {}
        for split_id in (*known.assigned, *(split.split_id for split in known.pending)):
            stream, segment = segment_of(split_id)
            self._known.setdefault(stream, set()).add(segment)
        self._carried_on: set[tuple[str, int]] = set()  # segments whose successors are all known
        self._found: list[PravegaSplit] = []

    def __call__(self) -> Sequence[PravegaSplit]:
        """Look; return all splits that were found, now or before. Raises PravegaStreamMissing for a named stream."""
        client = self._client()
        for stream in self._streams.find(client.streams):
            try:
                self._look(client, stream)
            except PravegaStreamMissing:
                if self._streams.pattern is None or client.exists(stream):
                    raise
        self._late = True
        return list(self._found)

    def _look(self, client: PravegaClient, stream: str) -> None:
        if self._stop is not None:
            self._found += self._bounded(client, stream, self._stop)
        elif stream in self._known:
            self._found += self._walk(client, stream, self._known[stream])
        else:
            late = self._late and self._streams.pattern is not None
            cut = client.head(stream) if late else self._start.resolve(client, stream)
            begun = [split_of(stream, segment, start) for segment, start in sorted(cut.positions.items())]
            self._found += begun + self._walk(client, stream, cut.positions)

    def _walk(self, client: PravegaClient, stream: str, begun: Iterable[int]) -> list[PravegaSplit]:
        """Find the successors of known segments."""
        known, found, carried_on = set(begun), list[PravegaSplit](), set[tuple[str, int]]()
        is_open = client.open_segments(stream)
        # All at once: a stream has few segments that are sealed and not done.
        sealed = [] if is_open and is_open <= known else sorted(known - is_open)
        asked = [segment for segment in sealed if (stream, segment) not in self._carried_on]
        while asked:
            again: dict[int, None] = {}
            for segment, successors in client.successors(stream, asked).items():
                if successors or not is_open:
                    carried_on.add((stream, segment))
                for successor, predecessors in sorted(successors.items()):
                    if successor not in known:
                        known.add(successor)
                        found.append(split_of(stream, successor, parents=predecessors))
                        # A segment that was asked before it was sealed has to be asked again.
                        again |= dict.fromkeys(each for each in (successor, *predecessors) if each in known)
            asked = [segment for segment in again if (stream, segment) not in self._carried_on | carried_on]
        if not is_open <= known:  # an open segment carries no known one on, so its events would never be read
            when = "it was deleted and made anew"
            raise PravegaStreamMissing(client.settings.scope, stream, client.settings.place, when)
        self._known[stream] = known
        self._carried_on |= carried_on
        return found

    def _bounded(self, client: PravegaClient, stream: str, stop: Positions) -> list[PravegaSplit]:
        first, last = self._start.resolve(client, stream), stop.resolve(client, stream)
        if _is_later(first, last):  # Pravega answers with an internal error
            hint = "if start= is the head, the stream was truncated beyond the stop, and nothing of the range is left."
            raise InvalidPravegaOption("stop", f"a position of {stream} before its start", "one at or after it", hint)
        segments = client.between(first, last)
        parents: dict[int, tuple[int, ...]] = {}
        for successors in client.successors(stream, segments).values():
            parents |= {each: predecessors for each, predecessors in successors.items() if each in segments}
        open_ended = [(stream, segment) for segment in segments if segment not in last.positions]
        states = client.all_states(open_ended, f"look up where segments of {stream} end")
        splits = []
        for segment in segments:
            state, start = states.get((stream, segment)), first.positions.get(segment, 0)
            # The end of a wholly truncated segment is unknown; its planner reports the loss.
            end = last.positions.get(segment, None if state is None else state.tail)
            mine = tuple(parent for parent in parents.get(segment, ()) if parent in segments)
            splits.append(split_of(stream, segment, start, None if end is None else max(start, end), mine))
        return splits


def _is_later(one: StreamCut, other: StreamCut) -> bool:
    """Whether a position lies after another position of the stream: a successor has a later epoch."""
    first, last = one.positions, other.positions
    if any(first[segment] > last[segment] for segment in first.keys() & last.keys()):
        return True
    newest = [max(map(segment_epoch, alone), default=-1) for alone in (first.keys() - last, last.keys() - first)]
    return bool(last) and newest[0] > newest[1]


def _tail(client: PravegaClient, stream: str) -> StreamCut:
    """Return where a stream ends; a sealed stream ends with its last segments.

    Without segments, a restart would take a sealed stream for a new one, because the state has ids of segments only.
    """
    cut = client.tail(stream)
    if cut.positions:
        return cut
    successors = client.successors(stream, client.between(client.head(stream), cut))
    last = [(stream, segment) for segment, after in successors.items() if not after]
    action = f"look up where segments of {stream} end"
    positions = {}
    for (_, segment), state in client.all_states(last, action).items():
        if state is None:  # the stream was deleted meanwhile
            raise PravegaStreamMissing(client.settings.scope, stream, client.settings.place, action)
        positions[segment] = state.tail
    return StreamCut(stream, positions)
