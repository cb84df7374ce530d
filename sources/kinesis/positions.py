"""The begin of the shards of the first discovery, in the words of Kinesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral
from typing import Any

from lowmark.watermark.errors import shown
from lowmark.watermark.moment import format_time_us, us_of

from .errors import InvalidKinesisOption

ShardKey = tuple[str, str]
"""(name of a stream, id of a shard)."""
MOST_DIGITS = 129
"""The service's limit for a sequence number. Python makes no number of thousands of digits."""


@dataclass(frozen=True, slots=True)
class KinesisPosition:
    """A place in every shard. Make it by a factory method.

    Attributes:
        kind: TRIM_HORIZON, LATEST, AT_TIMESTAMP or AFTER_SEQUENCE_NUMBER.
        time_us: for AT_TIMESTAMP: microseconds since the epoch.
        after: for AFTER_SEQUENCE_NUMBER: the last read record of each shard, sorted.

    >>> KinesisPosition.of({("orders", "shardId-000000000000"): "495903382714902566085596925383615710959"}).kind
    'AFTER_SEQUENCE_NUMBER'
    """

    kind: str
    time_us: int = 0
    after: tuple[tuple[ShardKey, str], ...] = ()

    def __str__(self) -> str:
        return format_time_us(self.time_us) if self.kind == "AT_TIMESTAMP" else self.kind

    @classmethod
    def at_timestamp(cls, time_us: int) -> KinesisPosition:
        """The place before the first record that arrived at this time, microseconds since the epoch, or later.

        Raises InvalidKinesisOption.
        """
        given: object = time_us
        if not isinstance(given, Integral):
            wanted = "microseconds since the epoch"
            raise InvalidKinesisOption("at_timestamp", shown(given), wanted, "a datetime may be given as start itself.")
        return cls("AT_TIMESTAMP", time_us=int(given))

    @classmethod
    def after_sequence_numbers(cls, read: Mapping[ShardKey, str]) -> KinesisPosition:
        """The place where another reader stopped: (stream, shard) -> sequence number of its last record.

        Parents of these shards count as read; all other shards begin at their first records. Raises
        InvalidKinesisOption.
        """
        if not _are_sequence_numbers(read):
            raise _refused("after_sequence_numbers", read, "{(stream, shard): sequence number}")
        return cls("AFTER_SEQUENCE_NUMBER", after=tuple(sorted(read.items())))

    @classmethod
    def of(cls, given: Any, *, option: str = "start") -> KinesisPosition:
        """Read a word of Kinesis, a time, or sequence numbers by (stream, shard). Raises InvalidKinesisOption."""
        if isinstance(given, KinesisPosition):
            return given
        if isinstance(given, str) and given.upper() in {"TRIM_HORIZON", "LATEST"}:
            return cls(given.upper())
        if isinstance(given, datetime):
            if given.utcoffset() is None:  # boto3 takes one for the local time of its machine
                hint = 'add tzinfo=timezone.utc, or in a text "Z".'
                raise InvalidKinesisOption(option, shown(given), "a time with its zone", hint)
            return cls.at_timestamp(us_of(given))
        if given and _are_sequence_numbers(given):
            return cls.after_sequence_numbers(given)
        wanted = '"TRIM_HORIZON", "LATEST", a datetime, or {(stream, shard): sequence number}'
        raise _refused(option, given, wanted)


def _refused(option: str, given: object, wanted: str) -> InvalidKinesisOption:
    hint = "sequence numbers are text: as numbers of JSON they lose digits."
    return InvalidKinesisOption(option, shown(given), wanted, hint)


def _are_sequence_numbers(given: object) -> bool:
    return isinstance(given, Mapping) and all(map(_is_sequence_number, given.items()))


def _is_sequence_number(pair: tuple[Any, Any]) -> bool:
    match pair:
        case ((str(), str()), str(sequence)):
            return sequence.isascii() and sequence.isdigit() and len(sequence) <= MOST_DIGITS
        case _:
            return False
