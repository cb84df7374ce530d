"""Reads offsets of Kafka sources: positions of each partition; of Spark's own source also rows and backlog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowmark.sources.planning.offset import BatchOffset, UnreadableOffset

from .offset_log import json_object
from .progress import SourceProgress

_PARTITION = re.compile(r"[0-9]{1,10}")
Starting = dict[str, dict[str, int]]
"""Kafka's `startingOffsets`: topic -> partition -> offset of the first record to read."""


def kafka_positions(offset: Any) -> dict[tuple[str, int], int]:
    """Return (topic, partition) -> position of the next record, of an offset of Spark's Kafka source; else nothing.

    >>> kafka_positions({"orders": {"0": 12}})
    {('orders', 0): 12}
    """
    if not isinstance(offset, Mapping):
        return {}
    positions: dict[tuple[str, int], int] = {}
    for topic, partitions in offset.items():
        if not isinstance(partitions, Mapping):
            return {}
        for partition, position in partitions.items():
            if not (isinstance(partition, str) and _PARTITION.fullmatch(partition) and type(position) is int):
                return {}
            positions[topic, int(partition)] = position
    return positions


def starting_at(offsets: Iterable[str | None]) -> Starting:
    """Return where a query goes on whose Kafka sources, Spark's or lowmark's, stand at these offsets.

    With two sources on one topic, the earlier position loses no row.
    """
    found: Starting = {}
    for offset in offsets:
        read = BatchOffset.find(offset)
        positions = kafka_positions(json_object(offset)) if read is None else read_positions(read)
        for (topic, partition), position in sorted(positions.items()):
            mine = found.setdefault(topic, {})
            mine[str(partition)] = min(position, mine.get(str(partition), position))
    return found


def read_positions(offset: BatchOffset) -> dict[tuple[str, int], int]:
    """Return the same of an offset of lowmark's Kafka source.

    A partition that has ended, or was not known yet, has no position. While a topic that was made again has partitions
    of its old and of its new form, the smaller position counts, because it loses no row.
    """
    from lowmark.sources.kafka import KafkaSplit  # only for a command: it imports the whole connector
    from lowmark.sources.serializer import DataclassSerializer

    try:
        live = offset.decode(DataclassSerializer(KafkaSplit)).live
    except UnreadableOffset:
        return {}
    positions: dict[tuple[str, int], int] = {}
    for split in (placed.split for placed in live):
        partition = split.topic, split.partition
        positions[partition] = min(split.start, positions.get(partition, split.start))
    return positions


def backlog_rows(sources: Sequence[SourceProgress]) -> dict[tuple[str, int], int]:
    """Unread rows of each Kafka partition when the batch was planned."""
    backlog: dict[tuple[str, int], int] = {}
    for source in sources:
        latest = kafka_positions(source.latest_offset)
        for partition, position in kafka_positions(source.end_offset).items():
            if partition in latest:
                backlog[partition] = backlog.get(partition, 0) + max(0, latest[partition] - position)
    return backlog


def kafka_rows(sources: Sequence[SourceProgress]) -> dict[tuple[str, int], int]:
    """Number of offsets that each Kafka partition moved in the batch, including aborted and compacted records.

    A partition that is missing in the start offset is new, and begins at 0 if the start offset has its topic. A new
    topic, and a source without a start offset, are left out, because their beginning is unknown.
    """
    rows: dict[tuple[str, int], int] = {}
    for source in sources:
        start = kafka_positions(source.start_offset)
        known = {topic for topic, _ in start}
        for partition, position in kafka_positions(source.end_offset).items():
            if partition[0] in known:
                rows[partition] = rows.get(partition, 0) + max(0, position - start.get(partition, 0))
    return rows
