"""Where shards begin that are there when a stream is first read, in the words of Kinesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from lowmark.watermark.errors import shown

from .client import milliseconds
from .errors import InvalidKinesisOption

__all__ = ["KinesisPosition", "ShardKey"]

ShardKey = tuple[str, str]
"""(name of a stream, id of a shard)."""


@dataclass(frozen=True, slots=True)
class KinesisPosition:
    """A place in every shard. Made by one of the methods, or of what `of` takes.

    Attributes:
        kind: TRIM_HORIZON, LATEST, AT_TIMESTAMP or AFTER_SEQUENCE_NUMBER.
        time_us: of AT_TIMESTAMP.
        after: of AFTER_SEQUENCE_NUMBER, sorted: the last record that was read of each shard.

    >>> KinesisPosition.of({("orders", "shardId-000000000000"): "495903382714902566085596925383615710959"}).kind
    'AFTER_SEQUENCE_NUMBER'
    """

    kind: str
    time_us: int = 0
    after: tuple[tuple[ShardKey, str], ...] = ()

    @classmethod
    def at_timestamp(cls, time_us: int) -> KinesisPosition:
        """Before the first record that arrived at this time, microseconds since the epoch, or later."""
        return cls("AT_TIMESTAMP", time_us=time_us)

    @classmethod
    def after_sequence_numbers(cls, read: Mapping[ShardKey, str]) -> KinesisPosition:
        """Where somebody else has stopped: (stream, shard) -> sequence number of the last record that was read.

        Their parents are done with; every other shard begins at its first record.
        """
        return cls("AFTER_SEQUENCE_NUMBER", after=tuple(sorted(read.items())))

    @classmethod
    def of(cls, given: Any, *, option: str = "start") -> KinesisPosition:
        """Read what a user may give: a word of Kinesis, a time, or sequence numbers by (stream, shard).

        Raises:
            InvalidKinesisOption: it is none of these.
        """
        if isinstance(given, KinesisPosition):
            return given
        if isinstance(given, str) and given.upper() in {"TRIM_HORIZON", "LATEST"}:
            return cls(given.upper())
        if isinstance(given, datetime):
            return cls.at_timestamp(milliseconds(given if given.tzinfo else given.replace(tzinfo=timezone.utc)) * 1_000)
        if isinstance(given, Mapping) and given and all(map(_is_sequence_number, given.items())):
            return cls.after_sequence_numbers(given)
        raise InvalidKinesisOption(
            option,
            shown(given),
            '"TRIM_HORIZON", "LATEST", a datetime, or {(stream, shard): sequence number}',
            "sequence numbers are text: as numbers of JSON they lose digits.",
        )


def _is_sequence_number(pair: tuple[Any, Any]) -> bool:
    match pair:
        case ((str(), str()), str(sequence)):
            return sequence.isascii() and sequence.isdigit()
        case _:
            return False
