"""The position of a query as Pravega's own text, for another reader of the same streams, such as Flink's."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import zlib
from collections.abc import Mapping, Sequence

from lowmark.watermark.errors import shown

from .client import PravegaClient, StreamCut
from .errors import InvalidPravegaOption
from .segment import segment_of

_READABLE = re.compile(r"\d+:(?P<scope>[^/:]+)/(?P<stream>[^/:]+):.*")


def readable(text: str) -> str:
    """Return what a StreamCut's text says; "head" and "tail" say it themselves."""
    return text if text in {"head", "tail"} else gzip.decompress(base64.b64decode(text, validate=True)).decode()


def check_stream_cut(text: object, option: str, scope: str, stream: str | None = None) -> str:
    """Return the stream of a StreamCut's text. Needs no Java, so a source can refuse a wrong text when it is made.

    Raises InvalidPravegaOption, also for a StreamCut of another scope or stream.
    """
    try:
        found = _READABLE.fullmatch(readable(text) if isinstance(text, str) else "")
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError):
        found = None
    if found is None:
        raise InvalidPravegaOption(
            option, shown(text), '"head", "tail" or the text of a StreamCut', "StreamCut.asText() makes it."
        )
    if found["scope"] != scope or stream not in {None, found["stream"]}:
        wanted = f"one of scope {scope}" if stream is None else f"one of {scope}/{stream}"
        raise InvalidPravegaOption(option, f"a StreamCut of {found['scope']}/{found['stream']}", wanted, "look it up.")
    return found["stream"]


def stream_cuts(client: PravegaClient, positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Return the present StreamCut of each stream.

    Contains a waiting segment's unread predecessors instead of the segment itself, including predecessors already read
    to their end. So it covers every routing key once, as a StreamCut must. `positions` is of all unfinished splits.
    """
    by_stream: dict[str, dict[int, int]] = {}
    for split_id, position in positions.items():
        stream, segment = segment_of(split_id)
        by_stream.setdefault(stream, {})[segment] = position
    return {stream: StreamCut(stream, _covering(client, stream, at)) for stream, at in sorted(by_stream.items())}


def _covering(client: PravegaClient, stream: str, at: Mapping[int, int]) -> dict[int, int]:
    """The segments that do not wait for others of them, and the read predecessors of the waiting segments."""
    predecessors: dict[int, tuple[int, ...]] = {}
    asked: Sequence[int] = sorted(at)
    while asked:
        found = {each: parents for of in client.successors(stream, asked).values() for each, parents in of.items()}
        asked = sorted(found.keys() - predecessors.keys())
        predecessors |= found
    behind = predecessors.keys()  # segments with a predecessor that is not read to its end
    read = sorted({parent for each in behind for parent in predecessors[each]} - behind - at.keys())
    cut = {segment: position for segment, position in at.items() if segment not in behind}
    states = client.all_states(((stream, segment) for segment in read), f"look up where segments of {stream} end")
    return cut | {segment: 0 if state is None else state.tail for (_, segment), state in states.items()}
