"""What the offsets of Spark's own Kafka source say: positions, rows and backlog of each partition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .progress import SourceProgress

__all__ = ["backlog_rows", "kafka_positions", "kafka_rows"]

_PARTITION = re.compile(r"[0-9]{1,10}")
Positions = Mapping[tuple[str, int], int]


def kafka_positions(offset: Any) -> dict[tuple[str, int], int]:
    """Read an offset of Spark's Kafka source; anything else gives nothing.

    Returns:
        (topic, partition) -> position of the next record.

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


def backlog_rows(sources: Sequence[SourceProgress]) -> dict[tuple[str, int], int]:
    """Rows that each Kafka partition still had unread when the batch was planned: latest minus end."""
    backlog: dict[tuple[str, int], int] = {}
    for source in sources:
        latest = kafka_positions(source.latest_offset)
        for partition, position in kafka_positions(source.end_offset).items():
            if partition in latest:
                backlog[partition] = max(0, latest[partition] - position)
    return backlog


def kafka_rows(sources: Sequence[SourceProgress]) -> dict[tuple[str, int], int]:
    """Offsets that each Kafka partition moved in the batch; aborted and compacted records count, too.

    A partition that is not in the start offset was added meanwhile, and Spark reads it from its beginning. A source
    without a start offset is left out: nobody knows where it began.
    """
    rows: dict[tuple[str, int], int] = {}
    for source in sources:
        start = kafka_positions(source.start_offset)
        if start:
            for partition, position in kafka_positions(source.end_offset).items():
                rows[partition] = max(0, position - start.get(partition, 0))
    return rows
