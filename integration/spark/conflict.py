"""Explains why a query cannot continue from a checkpoint because of lowmark, with the command that helps.

Spark's own words are "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the
query". The second source is the heartbeat, which the user does not know.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark.printable import counted

from .checkpoint_store import is_elsewhere
from .offset_log import json_object

_AGAIN = (
    "late_to reads the source of its stream once more, which counts as one more source, and Spark lets a checkpoint "
    "neither gain nor lose a source"
)


def conflict(
    written: Sequence[str | None],
    wrapped: Sequence[str],
    read: Sequence[str],
    sources: Mapping[str, Sequence[int]],
    *,
    checkpoint: str = "CHECKPOINT",
    kinds: Sequence[bool] = (),
    uses: int | None = None,
    renumbered: bool = False,
) -> str | None:
    """Say why a query cannot continue from a checkpoint, if lowmark is the reason.

    Args:
        written: the newest offset of each source in the checkpoint; None: it has none.
        wrapped: names of the streams that the query wraps, in the order of their heartbeats.
        read: names of the streams that it reads, likewise.
        sources: name of each wrapped stream -> numbers of its sources.
        kinds: for each place where the query uses a source, whether it is a heartbeat; empty: not known.
        uses: number of these places, if the checkpoint has a line for each (version 1 of its log); None: not known.
        renumbered: whether a source in the checkpoint has a number that no source of the query has (version 2 of its
            log). Spark would read the source anew from its start, and say nothing.

    Returns:
        The content of the checkpoint, the sources of the query, and a hint; None if lowmark is not the reason.
    """
    offsets = [json_object(text) for text in written]
    heartbeats = [HeartbeatOffset.find(offset) for offset in offsets]
    before = [found.stream for found in heartbeats if found is not None]
    read_before = any((batch := BatchOffset.find(offset)) is not None and batch.source in before for offset in offsets)
    now = [*wrapped, *read]
    if not before and not now:
        return None
    was, is_now = _streams(before), _streams(now)
    anew = f"or start with a new checkpoint, where `lowmark offsets {shlex.quote(checkpoint)}` says"
    if not before and read:
        return (
            "its checkpoint was written by a query without lowmark, and this one reads with service.read, which does "
            f"not know those offsets. Hint: use service.wrap on the source of before, {anew}."
        )
    if not before:
        command = adopt_command(checkpoint, wrapped, sources)
        return f"{_native(len(written), uses, len(now), command)} and start it again, all state stays; {anew}."
    if read_before and not read:
        how = "wraps a source of Spark's, which" if wrapped else "reads otherwise, with a source that"
        return (
            f"its checkpoint is of {was}, read by service.read, and this query {how} does not know those offsets. "
            "Hint: use service.read as before, or start with a new checkpoint."
        )
    if not now:
        return (
            f"its checkpoint is of a query with lowmark ({was}), and this one is without: it has a heartbeat too many. "
            f"Hint: run {leave_command(checkpoint)} and start it again, all state stays; or wrap the stream as before."
        )
    if read and not read_before:
        return (
            f"its checkpoint is of {was}, a wrapped source of Spark's, and this query reads with service.read, which "
            f"does not know those offsets. Hint: use service.wrap as before, {anew}."
        )
    if len(before) != len(now):
        return (
            f"its checkpoint is of {was}, and this query has {is_now}: Spark lets a checkpoint neither gain nor lose "
            "a source. Hint: use the streams of before, or start with a new checkpoint."
        )
    if before != now and sorted(before) == sorted(now):
        return (
            f"its checkpoint is of {was}, in this order, and this query has {is_now}, so each would go on from the "
            "other's state. Hint: put them in the earlier order, or start with a new checkpoint."
        )
    if not _is_misplaced(heartbeats, kinds):
        return _late_to_came_or_went(len(written), uses, renumbered=renumbered)
    hint = "put the sources in the order of before, or start with a new checkpoint."
    return (
        f"its checkpoint has {was} over other sources than this query: a heartbeat stands where a source of the "
        f"query should. Hint: {hint if read else _adopted_anew(checkpoint, wrapped, sources) + hint}"
    )


def _late_to_came_or_went(lines: int, uses: int | None, *, renumbered: bool) -> str | None:
    if uses not in (None, lines):
        fact = f"has {counted(lines, 'source')}, heartbeats counted, and this query has {counted(uses, 'source')}"
    elif renumbered:
        fact = "does not number its sources as this query does, so Spark would read a source anew from its start"
    else:
        return None
    hint = "pass late_to, or leave it out, as before, or start with a new checkpoint."
    return f"its checkpoint {fact}: {_AGAIN}. Hint: {hint}"


def _adopted_anew(checkpoint: str, wrapped: Sequence[str], sources: Mapping[str, Sequence[int]]) -> str:
    back, over = leave_command(checkpoint), adopt_command(checkpoint, wrapped, sources)
    return f"run {back}, then {over}, and start it again, all state stays; or "


def _native(lines: int, uses: int | None, heartbeats: int, command: str) -> str:
    """Say what a native checkpoint of so many lines lacks for a query of so many heartbeats, and begin the hint."""
    if uses is None or uses - heartbeats == lines:
        fact = "so it lacks the heartbeat, which is a source to Spark. Hint: run"
    else:
        fact = (
            f"and has {counted(lines, 'source')}, and this query has {counted(uses - heartbeats, 'source')} beside its "
            f"heartbeats: {_AGAIN}. Hint: leave late_to out, run"
        )
    return f"its checkpoint was written by a query without lowmark, {fact} {command}"


def adopt_command(checkpoint: str, streams: Sequence[str], sources: Mapping[str, Sequence[int]]) -> str:
    """Return the command that lets a query with lowmark continue from a native checkpoint.

    >>> adopt_command("/tmp/orders", ["orders"], {"orders": [0]})
    '`lowmark adopt /tmp/orders --stream orders`'
    >>> adopt_command("/tmp/orders", ["a", "b"], {"a": [0], "b": [1, 2]})
    '`lowmark adopt /tmp/orders --stream a=0 --stream b=1,2`'
    """
    plain = len(streams) == sum(map(len, sources.values())) == 1
    if is_elsewhere(checkpoint):
        named = {name: list(sources[name]) for name in streams}
        return f"`lowmark.adopt({checkpoint!r}, {streams[0] if plain else named!r}, spark=spark)`"
    # Otherwise "a=1" would mean stream "a" over source 1.
    bare = plain and "=" not in streams[0]
    given = [name if bare else f"{name}={','.join(map(str, sources[name]))}" for name in streams]
    return f"`lowmark adopt {shlex.quote(checkpoint)} {' '.join(f'--stream {shlex.quote(each)}' for each in given)}`"


def leave_command(checkpoint: str) -> str:
    """Return the command that lets a native query continue from a wrapped checkpoint.

    >>> leave_command("s3a://bucket/orders")
    "`lowmark.leave('s3a://bucket/orders', spark=spark)`"
    """
    if is_elsewhere(checkpoint):
        return f"`lowmark.leave({checkpoint!r}, spark=spark)`"
    return f"`lowmark leave {shlex.quote(checkpoint)}`"


def _is_misplaced(heartbeats: Sequence[HeartbeatOffset | None], kinds: Sequence[bool]) -> bool:
    """Whether a heartbeat in the checkpoint stands at the place of one of the query's native sources."""
    if len(kinds) != len(heartbeats):  # for another length Spark itself refuses the query
        return False
    return any(found is not None and not kind for found, kind in zip(heartbeats, kinds, strict=True))


def _streams(names: Sequence[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"stream {quoted}" if len(names) == 1 else f"streams {quoted}"
