"""A shard as a split.

A place in a shard lies between two records, and is written in the form of the service's requests, so that no digit of a
sequence number (128 bits and more, as text) is lost:

    TRIM_HORIZON                before its first record
    AT_TIMESTAMP 1700000000000  before the first record that arrived at this time, in milliseconds, or later
    AT_SEQUENCE_NUMBER n        before record n
    AFTER_SEQUENCE_NUMBER n     after record n

Batches are planned by positions, which are arrival times in milliseconds: at a position, a split has read all records
that arrived earlier. Positions decide how far a batch goes; only the two places of a slice (`cursor`, `until`) fix
its rows, and both are in the offset before a row is read. Arrival times may go back along a shard; a position then
still grows, by a millisecond with each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.api import SourceSplit
from lowmark.sources.kit.data_loss import KnownLosses

from .errors import KinesisDataLost

TRIM_HORIZON = "TRIM_HORIZON"


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisSplit(SourceSplit):
    """A shard of a stream, or a slice of one.

    Attributes:
        cursor: the place to go on from.
        until: the place where a slice ends; "" for a split that is no slice.
        records: rough number of records of a slice, for the size of reads. 0 in a split that is no slice.
        looked_ms: the service's time, milliseconds, at which no record after `cursor` was missing; 0: unknown. The
            records of that time stay for the stream's retention.
        hash_from, hash_to: the range of hash keys of the shard, as text.
        wait_ms: for a slice: how long to wait before reading its shard, milliseconds, because the planner has just
            read the shard; so both together stay within the service's limits.
    """

    stream: str
    shard: str
    cursor: str = TRIM_HORIZON
    until: str = ""
    records: int = 0
    looked_ms: int = 0
    hash_from: str = "0"
    hash_to: str = "340282366920938463463374607431768211455"
    wait_ms: int = 0


def split_id(stream: str, shard: str) -> str:
    """Return a split's id.

    >>> split_id("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "shardId-000000000003")
    'orders/shardId-000000000003'
    """
    return f"{stream_name(stream)}/{shard}"


def stream_name(stream: str) -> str:
    """Return the name of a stream, given by name or ARN."""
    return stream.rpartition("/")[2] if stream.startswith("arn:") else stream


def at(sequence: int) -> str:
    """The place before a record."""
    return f"AT_SEQUENCE_NUMBER {sequence}"


def after(sequence: int) -> str:
    """The place after a record."""
    return f"AFTER_SEQUENCE_NUMBER {sequence}"


def at_time(time_ms: int) -> str:
    """The place before the first record that arrived at this time or later."""
    return f"AT_TIMESTAMP {time_ms}"


def time_ms_of(place: str) -> int | None:
    """The arrival time that fixes a place, milliseconds since the epoch; None if a record fixes the place.

    >>> time_ms_of(at_time(1_700_000_000_000)), time_ms_of(TRIM_HORIZON)
    (1700000000000, None)
    """
    kind, _, time_ms = place.partition(" ")
    return int(time_ms) if kind == "AT_TIMESTAMP" else None


class KinesisLosses(KnownLosses):
    """The records of shards that expired before they were read."""

    def found(self, split: KinesisSplit, reason: str) -> None:
        """Handle the loss of records from a split's cursor on, once. Raises KinesisDataLost unless reading goes on."""
        self.take(KinesisDataLost(split.split_id, split.cursor, reason), (split.split_id, split.cursor))

    def check_first(self, split: KinesisSplit, first: int | None) -> None:
        """Handle a loss if a split begins at a record, and another record, or none, is the first that is there."""
        if split.cursor.startswith("AT_SEQUENCE_NUMBER") and (first is None or split.cursor != at(first)):
            there = "there is none behind it" if first is None else f"the first that is there is {first}"
            self.found(split, f"that record expired: {there}")
