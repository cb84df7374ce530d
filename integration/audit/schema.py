"""Decodes values that need a schema: Avro and Protobuf in the frame of Confluent's serializers.

    Avro        a zero byte, the schema's id (4 bytes, big-endian), the data
    Protobuf    the same, with the indexes of the message type between id and data
    JSON        the same as Avro, with JSON as the data, which needs no schema

Source: Confluent's documentation of the wire format.
"""

from __future__ import annotations

import io
import json
import struct
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lowmark.integration.errors import AuditImpossible, ExtraMissing
from lowmark.watermark.moment import datetime_of

from .event_time import JsonPath

_HEAD = struct.Struct(">bI")
_JSON = b"{["


def schema_id(value: bytes) -> int | None:
    r"""Return the id of the schema that a framed value names; None if the value is not framed.

    >>> schema_id(b"\x00\x00\x00\x00\x07..."), schema_id(b'{"at": 1}')
    (7, None)
    """
    return _HEAD.unpack_from(value)[1] if len(value) > _HEAD.size and value[0] == 0 else None


def unframed(value: bytes | None) -> bytes | None:
    """Return the JSON in a framed value, and other values unchanged."""
    if value is None or schema_id(value) is None or value[_HEAD.size] not in _JSON:
        return value
    return value[_HEAD.size :]


BROKEN = object()
"""Stands for a value that cannot be decoded, and is no time."""


class Schema(ABC):
    """Reads one field of values."""

    def __init__(self) -> None:
        self.ids: set[int] = set()  # of the schemas that values name; the schema at hand is at most one of them

    @classmethod
    def read(cls, file: Path) -> Schema:
        """Read a schema file: ``.avsc`` (Avro), or output of ``protoc --include_imports --descriptor_set_out``.

        Raises AuditImpossible, ExtraMissing.
        """
        named = f"--schema {str(file)!r:.200}"
        try:
            content = file.read_bytes().removeprefix(BOM_UTF8)
        except OSError as failed:
            raise AuditImpossible(f"{named} cannot be read: {failed.strerror}", "check its name.") from failed
        if file.suffix == ".proto":
            raise AuditImpossible(
                f"{named} is a source file of Protobuf",
                f"compile it: protoc --include_imports --descriptor_set_out=schema.desc {file.name}",
            )
        return _Avro(content, named) if content.lstrip()[:1] in (b"{", b"[", b'"') else _Protobuf(content, named)

    def values(self, payloads: Sequence[bytes | None], path: JsonPath) -> list[Any]:
        """Return the field of each payload: None if the payload has no such field, `BROKEN` if it cannot be decoded."""
        return [None if payload is None else self._value(payload, path) for payload in payloads]

    def _value(self, payload: bytes, path: JsonPath) -> Any:
        number = schema_id(payload)
        if number is not None:
            self.ids.add(number)
        try:
            found = self._decode(payload if number is None else payload[_HEAD.size :], framed=number is not None)
        except Exception:  # noqa: BLE001  # errors of decoders have no common base class
            return BROKEN
        try:
            return self._field(found, path)
        except (KeyError, IndexError, AttributeError, TypeError):  # a step is null or missing
            return None
        except OverflowError:  # a Protobuf timestamp beyond the years 1 to 9999
            return BROKEN

    @abstractmethod
    def _decode(self, data: bytes, *, framed: bool) -> Any:
        """Decode a record; ``framed``: the data begin with the rest of the frame."""

    @abstractmethod
    def _field(self, found: Any, path: JsonPath) -> Any:
        """Return the field of a record; None if it is not set."""


class _Avro(Schema):
    def __init__(self, content: bytes, named: str) -> None:
        super().__init__()
        try:
            import fastavro
        except ImportError:
            raise ExtraMissing("an audit of Avro", "fastavro", "audit") from None
        try:
            self._schema = fastavro.parse_schema(json.loads(content))
        except Exception as wrong:  # no common base
            raise AuditImpossible(
                f"{named} is no Avro schema: {wrong!s:.200}", "pass the .avsc that wrote the values."
            ) from wrong
        self._read: Callable[..., Any] = fastavro.schemaless_reader

    def _decode(self, data: bytes, *, framed: bool) -> Any:  # noqa: ARG002  # Avro has no rest of the frame
        return self._read(io.BytesIO(data), self._schema)

    def _field(self, found: Any, path: JsonPath) -> Any:
        for step in path:
            found = found[step]
        return found


class _Protobuf(Schema):
    def __init__(self, content: bytes, named: str) -> None:
        super().__init__()
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ImportError:
            raise ExtraMissing("an audit of Protobuf", "protobuf", "audit") from None
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(content).file
            for each in files:
                pool.Add(each)
            self._types: Any = pool.FindFileByName(files[-1].name).message_types_by_name  # the compiled file
        except Exception as wrong:  # no common base
            raise AuditImpossible(
                f"{named} is neither an Avro schema nor a set of Protobuf descriptors",
                "pass an .avsc, or what protoc --include_imports --descriptor_set_out wrote.",
            ) from wrong
        self._class_of = message_factory.GetMessageClass

    def _decode(self, data: bytes, *, framed: bool) -> Any:
        indexes, at = _message_indexes(data) if framed else ([0], 0)
        described = list(self._types.values())[indexes[0]]
        for index in indexes[1:]:
            described = described.nested_types[index]
        return self._class_of(described).FromString(data[at:])

    def _field(self, found: Any, path: JsonPath) -> Any:
        for step in path:
            if isinstance(step, str):
                field = found.DESCRIPTOR.fields_by_name[step]
                if field.has_presence and not found.HasField(step):
                    return None
            found = found[step] if isinstance(step, int) else getattr(found, step)
        if getattr(getattr(found, "DESCRIPTOR", None), "full_name", "") == "google.protobuf.Timestamp":
            return datetime_of(found.seconds * 1_000_000 + found.nanos // 1_000)
        return found


def _message_indexes(data: bytes) -> tuple[list[int], int]:
    r"""Return the indexes of the message type and the start of the data. Zigzag numbers: count, indexes; 0 means [0].

    >>> _message_indexes(b"\x00data"), _message_indexes(b"\x04\x02\x06data")
    (([0], 1), ([1, 3], 3))
    """
    count, at = _zigzag(data, 0)
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return indexes or [0], at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        if shift > 28:
            raise ValueError("a number of more than 32 bits")
