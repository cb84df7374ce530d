"""Offsets in a checkpoint: reading, refusals, and the memory that both take."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from lowmark.sources import DataclassSerializer, SourceSplit
from lowmark.sources.kit.discovery import DiscoveredSplits, PackedSerializer
from lowmark.sources.planning.offset import BatchOffset, BatchState, Placed, UnreadableOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner, PlanningFailed
from lowmark.sources.serializer import UnknownFieldType, UnreadableState
from lowmark.watermark import packed

from tests.sources.planning.test_batches import Rows

if TYPE_CHECKING:
    from datetime import datetime

SERIALIZER = DataclassSerializer(SourceSplit)
STATE = BatchState(b"coordinator", (Placed(0, SourceSplit(split_id="a", start=3)),), (), 7)
OFFSET = BatchOffset.encode("orders", 4, "run", STATE, SERIALIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Since(SourceSplit):
    """A split as in a script: the processes that read its checkpoint do not know the type of its field."""

    since: datetime | None = None


def test_a_split_that_could_not_be_read_back_is_refused_before_it_is_written() -> None:
    with pytest.raises(UnknownFieldType, match=r"^Since: .* name 'datetime' is not defined\. Hint: define the class"):
        DataclassSerializer(Since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(SourceSplit):
    number: int


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (np.int64(3), "TypeError: Encoding objects of type numpy.int64 is unsupported"),
        ("x", "these are no data of version 1: Expected `int`, got `str`"),
        (2**70, "OverflowError"),
    ],
)
def test_a_split_with_a_field_of_another_type_is_named_before_it_is_written(number: Any, said: str) -> None:
    class Sharded(Rows):
        split_type = Shard

        def discover(self) -> list[SourceSplit]:
            return [Shard(split_id="a", number=number)]

    expected = pytest.raises(PlanningFailed, match=f"source 's': .* split 'a' cannot be written .*: {said}.*number=")
    with closing(BatchPlanner(Sharded(a=[1]), name="s", options=PlanOptions())) as planner, expected:
        planner.plan(planner.initial(), None)


def test_an_offset_and_its_state_are_read_back() -> None:
    found = BatchOffset.find(json.dumps(OFFSET.to_json()))

    assert found == OFFSET
    assert found.decode(SERIALIZER) == STATE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"checkpoint": None}, "Expected `int`, got `null` - at `$.checkpoint`"),
        ({"checkpoint": -1}, "Expected `int` >= 0 - at `$.checkpoint`"),
        ({"token": 7}, "got `int` - at `$.token`"),
        ({"positions": {"a": "3"}}, "Expected `int`, got `str`"),
        ({"positions": []}, "got `array` - at `$.positions`"),
        ({"state": None}, "got `null` - at `$.state`"),
        ({"state": ...}, "missing required field `state`"),
    ],
)
def test_an_offset_of_ours_with_a_field_that_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    offset = {name: value for name, value in {**OFFSET.to_json(), **change}.items() if value is not ...}

    with pytest.raises(UnreadableOffset) as refused:
        BatchOffset.find(offset)
    assert refused.value.source == "orders"
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "offset",
    [
        {"lowmark_source": {"0": 12}},  # Kafka's, of a topic of that name
        '{"lowmark_source": "orders", "che',
        '{"lowmark_source": ' + "[" * 100_000,
        {"orders": {"0": 12}},
        None,
        17,
    ],
    ids=lambda offset: str(offset)[:24],
)
def test_what_is_none_of_ours_is_none(offset: object) -> None:
    assert BatchOffset.find(offset) is None


class Bare:
    """A connector's own serializer that raises any error."""

    version = 1

    def serialize(self, value: SourceSplit) -> bytes:
        return value.split_id.encode()

    def deserialize(self, version: int, data: bytes) -> SourceSplit:
        raise KeyError(data)


def test_whatever_a_connectors_serializer_raises_names_the_source() -> None:
    with pytest.raises(UnreadableOffset, match="KeyError: b'") as refused:
        OFFSET.decode(Bare())
    assert refused.value.source == "orders"


def nested(deep: int) -> bytes:
    return b"\x91" * deep + b"\xc0"


@pytest.mark.parametrize("data", [b"\xc1", b"\xa1\xff", b"\xdf\xff\xff\xff\xff", nested(100_000)], ids=range(4))
def test_bytes_that_are_no_split_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableState, match="SourceSplit: these are no data of version 1"):
        SERIALIZER.deserialize(1, data)


# -- bounds


def bomb(mib: int) -> bytes:
    """Return bytes that unpack to this many MiB, a thousand times their size."""
    packer = zlib.compressobj(1)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(mib)), packer.flush()])


def refused_in_mib(unpack: Any) -> float:
    """Return the peak of memory during a refusal, in MiB."""
    tracemalloc.start()
    try:
        with pytest.raises((UnreadableOffset, UnreadableState), match="it unpacks to more than 1048576 bytes"):
            unpack()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_state_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 1 << 20)
    data = bomb(64)
    offset = BatchOffset("orders", 1, "run", {}, base64.b64encode(data).decode())

    assert refused_in_mib(lambda: offset.decode(SERIALIZER)) < 8
    assert refused_in_mib(lambda: PackedSerializer(DiscoveredSplits[SourceSplit]).deserialize(1, data)) < 8


def test_a_state_that_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 100)
    many = DiscoveredSplits[SourceSplit](assigned=tuple(map(str, range(100))))

    with pytest.raises(ValueError, match="bytes of state, expected 100 at most"):
        PackedSerializer(DiscoveredSplits[SourceSplit]).serialize(many)


def test_a_state_of_a_later_format_says_so() -> None:
    wire = msgspec.msgpack.encode([2, 1, b"", [], [], None])
    offset = BatchOffset("orders", 1, "run", {}, base64.b64encode(zlib.compress(wire)).decode())

    with pytest.raises(UnreadableOffset, match="it has format 2, and this version of lowmark knows 1"):
        offset.decode(SERIALIZER)
