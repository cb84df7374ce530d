"""Unpacks the records that the Kinesis Producer Library (KPL) packed into one record of Kinesis.

A packed record is four bytes of magic, a message of protobuf, and the MD5 of the message:

    AggregatedRecord  1 partition_key_table, 2 explicit_hash_key_table (texts), 3 records (each a Record)
    Record            1 partition_key_index, 2 explicit_hash_key_index (may be missing), 3 data, 4 tags

Awslabs' `aws_kinesis_agg` is not used because it needs a module that is found only after its aggregator was imported,
and executors do not import the aggregator. Every writer of the stream may write any bytes after the magic. So unpacking
takes time and memory in proportion to the packet, and an invalid packet is not an error.

Source: awslabs/amazon-kinesis-producer, aggregation-format.md; amazon-kinesis-client's `AggregatorUtil`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from lowmark.watermark import LowmarkError

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
MOST_KEY_BYTES_A_BYTE = 64
"""Largest ratio of unpacked key bytes to packet bytes: a packet has each key once, its rows repeat the keys. Real
packets stay below, because a row takes at least six bytes of the packet, and an ASCII key has at most 256 bytes."""
MOST_HASH_KEY = 2**128 - 1

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5

PackedRecord = tuple[str, "str | None", bytes]
"""Partition key, explicit hash key, data."""


class MalformedPacket(LowmarkError):
    """A record begins as a packet but is no valid one; the caller that knows the record catches this error."""


def is_packed(data: bytes) -> bool:
    """Whether a record of Kinesis begins as a packet."""
    return data[:4] == MAGIC


def unpacked(data: bytes) -> list[PackedRecord]:
    """Return the records in a packet, in order. Raises MalformedPacket.

    >>> message = bytes([0x0A, 1, 97, 0x1A, 5, 0x08, 0, 0x1A, 1, 120])
    >>> unpacked(MAGIC + message + md5(message))
    [('a', None, b'x')]
    """
    message = data[len(MAGIC) : -DIGEST_BYTES]
    if len(data) < len(MAGIC) + DIGEST_BYTES or md5(message) != data[-DIGEST_BYTES:]:
        raise MalformedPacket("its checksum is another one")
    keys, hashes, bodies = list[str](), list[str](), list[bytes]()
    for field, value in _fields(message):
        if field == 1:
            keys.append(_text(_sized(value)))
        elif field == 2:
            hashes.append(_hash_key(_text(_sized(value))))
        elif field == 3:
            bodies.append(_sized(value))
    found = [_record(body, keys, hashes) for body in bodies]
    if sum(len(key) for key, _, _ in found) > MOST_KEY_BYTES_A_BYTE * len(data):
        raise MalformedPacket(f"its keys would take more than {MOST_KEY_BYTES_A_BYTE} times its size")
    return found


def md5(data: bytes) -> bytes:
    """The digest that checks packets and spreads keys over shards."""
    return hashlib.md5(data, usedforsecurity=False).digest()


def _record(body: bytes, keys: list[str], hashes: list[str]) -> PackedRecord:
    key: str | None = None
    explicit: str | None = None
    data: bytes | None = None
    for field, value in _fields(body):
        if field == 1:
            key = _entry(keys, value)
        elif field == 2:
            explicit = _entry(hashes, value)
        elif field == 3:
            data = _sized(value)
    if key is None or data is None:
        raise MalformedPacket("a record in it has no partition key or no data")
    return key, explicit, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of protobuf: (number, an integer or bytes)."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield field, number
            continue
        if kind == _SIZED:
            size, at = _varint(message, at)
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise MalformedPacket(f"field {field} is of kind {kind}")
        if size > end - at:
            raise MalformedPacket(f"field {field} ends behind its message")
        yield field, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place of a message, and the place after the number."""
    number = shift = 0
    for byte in message[at : at + 10]:  # of 64 bits
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise MalformedPacket("a number in it has no end")


def _sized(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise MalformedPacket("a number stands where bytes are expected")
    return value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("a key in it is no UTF-8") from None


def _hash_key(text: str) -> str:
    if not (text.isascii() and text.isdigit() and len(text) <= 39 and int(text) <= MOST_HASH_KEY):
        raise MalformedPacket("an explicit hash key in it is no number of 128 bits")
    return text


def _entry(table: list[str], index: int | bytes) -> str:
    if not isinstance(index, int) or index >= len(table):
        raise MalformedPacket("a record in it names a key that it does not have")
    return table[index]
