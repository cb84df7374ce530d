"""What rows look like, and the records that a producer library has packed into one.

Columns are those of Databricks' Kinesis source. The KPL packs many records of users into one of Kinesis ("aggregated"),
in a format whose messages awslabs' `aws_kinesis_agg` defines. Its own de-aggregation is not used: it takes events of
Lambda, with base64, and puts its folder in front of `sys.path` when it is imported.

Source: awslabs/amazon-kinesis-producer, aggregation-format.md; amazon-kinesis-client's `AggregatorUtil`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .client import milliseconds
from .errors import InvalidKinesisOption
from .split import KinesisSplit, stream_name

__all__ = ["COLUMNS", "DEFAULT_COLUMNS", "KinesisColumns", "UserRecord", "rows_in", "user_records"]

COLUMNS: dict[str, pa.DataType] = {
    "partitionKey": pa.string(),
    "data": pa.binary(),
    "stream": pa.string(),
    "shardId": pa.string(),
    "sequenceNumber": pa.string(),
    "approximateArrivalTimestamp": pa.timestamp("us", tz="UTC"),
    "subSequenceNumber": pa.int64(),
    "explicitHashKey": pa.string(),
}
DEFAULT_COLUMNS = tuple(COLUMNS)[:6]

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16

UserRecord = tuple[str, bytes, "int | None", "str | None"]
"""Partition key, data, number within an aggregated record (None of others), explicit hash key."""


class KinesisColumns:
    """The columns that were asked for.

    Args:
        names: some of `COLUMNS`, each once.

    Raises:
        InvalidKinesisOption: another name, or one twice.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        if not self.names or len(set(self.names)) < len(self.names) or not set(self.names) <= COLUMNS.keys():
            raise InvalidKinesisOption(
                "columns", repr(list(names)), f"some of {', '.join(COLUMNS)}, each once", "names are case-sensitive."
            )
        fields: list[pa.Field[Any]] = [pa.field(name, COLUMNS[name]) for name in self.names]
        self.schema = pa.schema(fields)

    def batch(self, split: KinesisSplit, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Make rows of records of one shard, in their order; aggregated ones give all that they hold."""
        if not any(record["Data"][:4] == MAGIC for record in records):
            return self._plain(split, records)
        owners: list[dict[str, Any]] = []
        users: list[UserRecord] = []
        for record in records:
            held = user_records(record, split)
            users += held
            owners += [record] * len(held)
        made = self._plain(split, owners)
        columns = [
            pa.array([user[at] for user in users], COLUMNS[name])
            if (at := _OF_USER.get(name)) is not None
            else made.column(index)
            for index, name in enumerate(self.names)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _plain(self, split: KinesisSplit, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [self._column(name, split, records) for name in self.names], self.schema.names
        )

    def _column(self, name: str, split: KinesisSplit, records: Sequence[dict[str, Any]]) -> pa.Array[Any]:
        count = len(records)
        match name:
            case "partitionKey":
                return pa.array([record["PartitionKey"] for record in records], pa.string())
            case "data":
                return pa.array([record["Data"] for record in records], pa.binary())
            case "sequenceNumber":
                return pa.array([record["SequenceNumber"] for record in records], pa.string())
            case "approximateArrivalTimestamp":
                times = [milliseconds(record["ApproximateArrivalTimestamp"]) * 1_000 for record in records]
                return pa.array(times, pa.int64()).cast(COLUMNS[name])
            case "stream":
                return pa.array([stream_name(split.stream)] * count, pa.string())
            case "shardId":
                return pa.array([split.shard] * count, pa.string())
            case _:
                return pa.array([None] * count, COLUMNS[name])


_OF_USER = {"partitionKey": 0, "data": 1, "subSequenceNumber": 2, "explicitHashKey": 3}


def rows_in(record: dict[str, Any]) -> int:
    """How many rows a record gives, at most."""
    found = _aggregated(record["Data"])
    return 1 if found is None else max(1, len(found.records))


def user_records(record: dict[str, Any], split: KinesisSplit) -> list[UserRecord]:
    """Return what a record of Kinesis holds: itself, or the records of users that were packed into it.

    What belongs to another shard is left out: when a stream was resharded under a producer, that sends it again.
    """
    found = _aggregated(record["Data"])
    if found is None:
        return [(record["PartitionKey"], record["Data"], None, None)]
    low, high = int(split.hash_from), int(split.hash_to)
    held: list[UserRecord] = []
    for number, user in enumerate(found.records):
        key = found.partition_key_table[user.partition_key_index]
        explicit = None
        if user.HasField("explicit_hash_key_index"):
            explicit = found.explicit_hash_key_table[user.explicit_hash_key_index]
        hashed = int(explicit) if explicit else int.from_bytes(_md5(key.encode()), "big")
        if low <= hashed <= high:
            held.append((key, user.data, number, explicit))
    return held


def _aggregated(data: bytes) -> Any:
    """The message in an aggregated record; None: it is a plain one, whatever it begins with."""
    if data[:4] != MAGIC or len(data) <= len(MAGIC) + DIGEST_BYTES:
        return None
    message, digest = data[4:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if _md5(message) != digest:
        return None
    from aws_kinesis_agg.messages_pb2 import AggregatedRecord
    from google.protobuf.message import DecodeError

    found = AggregatedRecord()
    try:
        found.ParseFromString(message)
    except DecodeError:
        return None
    keys, hashes = len(found.partition_key_table), len(found.explicit_hash_key_table)
    for user in found.records:
        if user.partition_key_index >= keys:
            return None
        if user.HasField("explicit_hash_key_index") and user.explicit_hash_key_index >= hashes:
            return None
    return found


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
