"""`lowmark audit` reads event times in Avro and Protobuf, as a schema registry's serializers write them."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from lowmark.integration.audit.event_time import TimeReader, Unit, json_path
from lowmark.integration.audit.schema import BROKEN, Schema, unframed
from lowmark.integration.errors import AuditImpossible

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
AT = dt.datetime.fromtimestamp(START_US / SECOND_US, dt.timezone.utc)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "items", "type": {"type": "array", "items": "long"}},
    ],
}


def framed(data: bytes, number: int = 7, indexes: bytes = b"") -> bytes:
    return struct.pack(">bI", 0, number) + indexes + data


def avro(at: dt.datetime | None, *items: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": "a", "at": at, "items": items})
    return out.getvalue()


@pytest.fixture
def avsc(tmp_path: Path) -> Schema:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    return Schema.read(tmp_path / "order.avsc")


def test_event_times_in_avro_are_read(avsc: Schema) -> None:
    payloads = [framed(avro(AT)), framed(avro(None)), None, framed(b"\xff"), avro(AT), framed(avro(AT), number=8)]
    times = TimeReader().values(avsc.values(payloads, json_path("$.at")))
    assert times.timed.tolist() == [True, False, False, False, True, True]
    assert times.times_us[0] == START_US
    assert (times.null_rows, times.unreadable_rows) == (2, 1)
    assert avsc.ids == {7, 8}


def test_a_path_leads_through_an_array_of_avro(avsc: Schema) -> None:
    values = avsc.values([framed(avro(None, 1, 1_700_000_000)), framed(avro(None, 1))], json_path("$.items[1]"))
    assert TimeReader(Unit.SECONDS).values(values).times_us.tolist() == [START_US, 0]
    assert avsc.values([framed(avro(AT))], json_path("$.no.such")) == [None]


def described() -> descriptor_pb2.FileDescriptorSet:
    """Two messages: the empty Before, and Order, whose field paid is an Order.Paid of ms (int64) and at."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Before")
    order = file.message_type.add(name="Order")
    paid = order.nested_type.add(name="Paid")
    paid.field.add(name="ms", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    paid.field.add(
        name="at",
        number=2,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=kinds.LABEL_OPTIONAL,
    )
    order.field.add(
        name="paid", number=1, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.Paid", label=kinds.LABEL_OPTIONAL
    )
    known = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    return descriptor_pb2.FileDescriptorSet(file=[known, file])


def test_event_times_in_protobuf_are_read(tmp_path: Path) -> None:
    files = described()
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    order_class: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    order = order_class()
    order.paid.ms = START_US // 1_000
    order.paid.at.FromDatetime(AT)
    empty, far = order_class(), order_class()
    far.paid.at.seconds = 10**15
    (tmp_path / "order.desc").write_bytes(files.SerializeToString())
    schema = Schema.read(tmp_path / "order.desc")
    # The index of the message type: one index, 1. A zero byte alone means message type 0, which is another message.
    data = [framed(each.SerializeToString(), indexes=b"\x02\x02") for each in (order, empty)]
    broken = framed(b"\xff\xff", indexes=b"\x02\x02")
    for path in ("$.paid.ms", "$.paid.at"):
        times = TimeReader().values(schema.values([*data, broken], json_path(path)))
        assert times.times_us.tolist() == [START_US, 0, 0]
        assert (times.null_rows, times.unreadable_rows) == (1, 1)
    beyond = framed(far.SerializeToString(), indexes=b"\x02\x02")
    assert schema.values([beyond], json_path("$.paid.at")) == [BROKEN], "a time after the year 9999"
    nested = framed(order.paid.SerializeToString(), indexes=b"\x04\x02\x00")
    assert schema.values([nested], json_path("$.ms")) == [START_US // 1_000]
    assert schema.values([framed(order.SerializeToString(), indexes=b"\x00")], json_path("$.paid.ms")) == [None]
    assert schema.values([framed(b"x" * 20, indexes=b"\xff" * 6)], json_path("$.paid.ms")) == [BROKEN]


def test_json_behind_a_schema_id_needs_no_schema() -> None:
    assert unframed(framed(b'{"at": 1}')) == b'{"at": 1}'
    assert unframed(framed(b"\x02ab")) == framed(b"\x02ab")
    assert unframed(b'{"at": 1}') == b'{"at": 1}'
    assert unframed(b"\x00") == b"\x00"
    assert unframed(None) is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.avsc", b'{"type": "nothing"}', "is no Avro schema"),
        ("a.avsc", b"{", "is no Avro schema"),
        ("a.desc", b"\x00\x01", "neither an Avro schema nor a set of Protobuf descriptors"),
        ("a.desc", b"", "neither an Avro schema nor a set of Protobuf descriptors"),
        ("a.proto", b"message A {}", "protoc --include_imports --descriptor_set_out=schema.desc a.proto"),
    ],
)
def test_what_is_no_schema_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AuditImpossible, match=words):
        Schema.read(tmp_path / name)
    with pytest.raises(AuditImpossible, match="cannot be read: No such file"):
        Schema.read(tmp_path / "away.avsc")
