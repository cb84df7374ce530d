"""Finds the shards of named streams, or of all streams that match a pattern. A split or merge makes new shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lowmark.sources.api import SplitEnumeratorContext
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator, still_wanted
from lowmark.sources.kit.subscription import Subscription
from lowmark.watermark import format_time_us
from lowmark.watermark.moment import first_ms_from

from .client import KinesisClient, parents_of
from .connections import KinesisSettings
from .errors import InvalidKinesisOption, KinesisStreamMissing
from .positions import KinesisPosition
from .split import TRIM_HORIZON, KinesisLosses, KinesisSplit, after, at_time, split_id, time_ms_of

FIRST_RECORD = KinesisPosition(TRIM_HORIZON)


def create_enumerator(
    context: SplitEnumeratorContext[KinesisSplit],
    settings: KinesisSettings,
    streams: Subscription,
    *,
    start: KinesisPosition,
    stop: KinesisPosition | None,
    go_on: bool,
    period_seconds: float | None,
    known: DiscoveredSplits[KinesisSplit],
    client: KinesisClient | None = None,
) -> DiscoveringEnumerator[KinesisSplit]:
    """Make the enumerator. The first shards begin at `start`, later ones at their first record."""
    asks = client if client is not None else KinesisClient(settings)
    loss = KinesisLosses(go_on=go_on, metrics=context.metric_group)

    def prepare(splits: Sequence[KinesisSplit], late: bool) -> list[KinesisSplit]:  # noqa: FBT001  # the kit's order
        if not late:
            _check_listed(splits, start, loss)
        return _prepared(splits, FIRST_RECORD if late else start, stop, *asks.now_between_ms())

    return DiscoveringEnumerator(
        context,
        lambda: discovered(streams, asks),
        period_seconds=period_seconds,
        bounded=stop is not None,
        known=still_wanted(known, lambda name: streams.wants(name.rpartition("/")[0])),
        prepare=prepare,
        end=str(stop),
        source=f"KinesisSource at {settings.place}",
    )


def discovered(streams: Subscription, client: KinesisClient) -> list[KinesisSplit]:
    """Return all existing shards. Raises KinesisStreamMissing for a named stream."""
    found: list[KinesisSplit] = []
    for stream in streams.find(client.streams):
        try:
            found += _splits(stream, client.shards(stream))
        except KinesisStreamMissing:
            if streams.pattern is None:
                raise
            # A stream of a pattern was deleted after its listing.
    return found


def _splits(stream: str, shards: Sequence[Mapping[str, Any]]) -> list[KinesisSplit]:
    there = {str(shard["ShardId"]) for shard in shards}
    return [
        KinesisSplit(
            split_id=split_id(stream, shard["ShardId"]),
            stream=stream,
            shard=shard["ShardId"],
            # Children must not wait for an expired parent, so expired parents are left out.
            parents=tuple(split_id(stream, parent) for parent in parents_of(shard) if parent in there),
            hash_from=shard["HashKeyRange"]["StartingHashKey"],
            hash_to=shard["HashKeyRange"]["EndingHashKey"],
        )
        for shard in shards
    ]


def _check_listed(splits: Sequence[KinesisSplit], start: KinesisPosition, loss: KinesisLosses) -> None:
    """Report each shard where another reader stopped, if the shard is not listed and so cannot be read on."""
    listed = {split.split_id for split in splits}
    for (stream, shard), sequence in start.after:
        if (name := split_id(stream, shard)) not in listed:
            unlisted = KinesisSplit(split_id=name, stream=stream, shard=shard, cursor=after(int(sequence)))
            loss.found(
                unlisted,
                "start= names this shard, and the stream has no such shard: the name is wrong, or the shard has "
                "expired. Leave the shard out of start= if it was read to its end",
            )


def _prepared(
    splits: Sequence[KinesisSplit],
    start: KinesisPosition,
    stop: KinesisPosition | None,
    earliest_ms: int,
    latest_ms: int,
) -> list[KinesisSplit]:
    """Say where new shards begin and end, once. The present lies between the two times.

    "LATEST" as a start is the first time, as a stop the second time, so that no record is lost.
    """
    if start.kind == "AT_TIMESTAMP" and start.time_us > latest_ms * 1_000:
        raise InvalidKinesisOption(
            "start",
            format_time_us(start.time_us),
            f"a time that is not in the future: for the service it is {format_time_us(earliest_ms * 1_000)}",
            '"LATEST" begins now.',
        )
    cursors, over = _cursors(splits, start, earliest_ms)
    end_ms = None
    if stop is not None:
        end_ms = latest_ms if stop.kind == "LATEST" else min(first_ms_from(stop.time_us), latest_ms)
    begun = [replace(split, cursor=cursors[split.split_id]) for split in splits]
    # At the cursor of a time, no record before that time is left to read.
    timed = [replace(split, start=time_ms_of(split.cursor) or 0) for split in begun]
    ended = timed if end_ms is None else [replace(split, stop=max(split.start, end_ms)) for split in timed]
    return [replace(split, stop=split.start) if split.split_id in over else split for split in ended]


def _cursors(
    splits: Sequence[KinesisSplit], start: KinesisPosition, present_ms: int
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the begin of each split, and the splits that end before their begin."""
    if start.kind == "LATEST":
        return {split.split_id: at_time(present_ms) for split in splits}, frozenset()
    if start.kind == "AT_TIMESTAMP":
        # Half milliseconds do not exist in Kinesis: the first one at the time or later.
        return {split.split_id: at_time(first_ms_from(start.time_us)) for split in splits}, frozenset()
    cursors = {split.split_id: TRIM_HORIZON for split in splits}
    read = {split_id(*key): sequence for key, sequence in start.after}
    cursors.update((name, after(int(sequence))) for name, sequence in read.items() if name in cursors)
    # If a shard was read, its parents were read to their end.
    over = frozenset(_ancestors(splits, read) - read.keys())
    return cursors | {name: at_time(present_ms) for name in over}, over


def _ancestors(splits: Sequence[KinesisSplit], names: Mapping[str, str]) -> set[str]:
    parents = {split.split_id: split.parents for split in splits}
    found: set[str] = set()
    waiting = [parent for name in names for parent in parents.get(name, ())]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += parents.get(name, ())
    return found
