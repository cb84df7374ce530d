"""The columns of rows, as in Databricks' Kinesis source. A packet of the KPL gives all its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lowmark.sources.kit.options import chosen_columns

from .aggregated import MalformedPacket, is_packed, md5, unpacked
from .client import arrived_ms
from .errors import InvalidKinesisOption
from .split import KinesisSplit, stream_name

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

UserRecord = tuple[str, bytes, "int | None", "str | None"]
"""Partition key, data, number within a packet (None without a packet), explicit hash key."""


class KinesisColumns:
    """The chosen columns. Raises InvalidKinesisOption for an unknown name, or a name twice."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = chosen_columns(names, list(COLUMNS), InvalidKinesisOption, "names are case-sensitive.")
        self.schema = pa.schema([(name, COLUMNS[name]) for name in self.names])

    def batch(
        self,
        split: KinesisSplit,
        records: Sequence[dict[str, Any]],
        on_malformed: Callable[[dict[str, Any], MalformedPacket], None],
    ) -> pa.RecordBatch:
        """Make rows from records of one shard, in their order; a packet gives all its rows.

        Args:
            on_malformed: called with each record that begins as a packet but is not valid; the record gives one row.
        """
        if not any(is_packed(record["Data"]) for record in records):
            columns = [self._column(name, split, records) for name in self.names]
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        held = [user_records(record, split, on_malformed) for record in records]
        owners: npt.NDArray[np.int64] = np.repeat(np.arange(len(records)), [len(users) for users in held])
        columns = [
            pa.array([user[at] for users in held for user in users], COLUMNS[name])
            if (at := _OF_USER.get(name)) is not None
            else self._column(name, split, records).take(owners)
            for name in self.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, split: KinesisSplit, records: Sequence[dict[str, Any]]) -> pa.Array[Any]:
        if (field := _OF_RECORD.get(name)) is not None:
            return pa.array([record[field] for record in records], COLUMNS[name])
        if name == "approximateArrivalTimestamp":
            return pa.array([arrived_ms(record) * 1_000 for record in records], pa.int64()).cast(COLUMNS[name])
        if name in ("stream", "shardId"):
            text = stream_name(split.stream) if name == "stream" else split.shard
            return pa.repeat(pa.scalar(text, pa.string()), len(records))
        kind: Any = COLUMNS[name]
        nulls: pa.Array[Any] = pa.nulls(len(records), kind)  # only a record in a packet has the others
        return nulls


_OF_RECORD = {"partitionKey": "PartitionKey", "data": "Data", "sequenceNumber": "SequenceNumber"}
_OF_USER = {"partitionKey": 0, "data": 1, "subSequenceNumber": 2, "explicitHashKey": 3}


def rows_in(record: dict[str, Any]) -> int:
    """The largest possible number of rows of a record."""
    if not is_packed(record["Data"]):
        return 1
    try:
        return max(1, len(unpacked(record["Data"])))
    except MalformedPacket:
        return 1


def user_records(
    record: dict[str, Any], split: KinesisSplit, on_malformed: Callable[[dict[str, Any], MalformedPacket], None]
) -> list[UserRecord]:
    """Return the record itself, or the records packed into it.

    Records of another shard are left out, because the producer sends them again after a reshard.
    """
    alone: list[UserRecord] = [(record["PartitionKey"], record["Data"], None, None)]
    if not is_packed(record["Data"]):
        return alone
    try:
        packed = unpacked(record["Data"])
    except MalformedPacket as why:
        on_malformed(record, why)
        return alone
    low, high = int(split.hash_from), int(split.hash_to)
    of_key: dict[str, int] = {}
    held: list[UserRecord] = []
    for number, (key, explicit, data) in enumerate(packed):
        if explicit is None and key not in of_key:
            of_key[key] = int.from_bytes(md5(key.encode()), "big")
        if low <= (of_key[key] if explicit is None else int(explicit)) <= high:
            held.append((key, data, number, explicit))
    return held
