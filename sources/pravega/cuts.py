"""Where a query stands as Pravega's own text, for another reader of the same streams: Flink's, or a new query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .client import PravegaClient, StreamCut
from .segment import segment_of

__all__ = ["stream_cuts"]


def stream_cuts(client: PravegaClient, positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Return the StreamCut at which each stream stands.

    Segments that wait for others to be read are not in it, but these; and of those that they carry on, too, what is
    read to its end already. So it covers every routing key once, as a StreamCut has to.

    Args:
        client: asks Pravega.
        positions: split id -> the byte from which it is read on; of all splits that are not finished.

    Raises:
        PravegaUnavailable, PravegaAccessDenied, PravegaStreamMissing: see there.
    """
    by_stream: dict[str, dict[int, int]] = {}
    for split_id, position in positions.items():
        stream, segment = segment_of(split_id)
        by_stream.setdefault(stream, {})[segment] = position
    return {stream: StreamCut(stream, _covering(client, stream, at)) for stream, at in sorted(by_stream.items())}


def _covering(client: PravegaClient, stream: str, at: Mapping[int, int]) -> dict[int, int]:
    """What of the segments does not carry on another of them, and what was read beside those that do."""
    predecessors: dict[int, tuple[int, ...]] = {}
    asked: Sequence[int] = sorted(at)
    while asked:
        found = {each: parents for of in client.successors(stream, asked).values() for each, parents in of.items()}
        asked = sorted(found.keys() - predecessors.keys())
        predecessors |= found
    behind = predecessors.keys()  # each of them carries on one that is not read to its end
    read = sorted({parent for each in behind for parent in predecessors[each]} - behind - at.keys())
    cut = {segment: position for segment, position in at.items() if segment not in behind}
    if not read:
        return cut
    states = client.all_states(((stream, segment) for segment in read), f"look up where segments of {stream} end")
    return cut | {segment: 0 if state is None else state.tail for (_, segment), state in states.items()}
