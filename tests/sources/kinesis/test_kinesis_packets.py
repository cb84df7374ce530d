"""Packets of the Kinesis Producer Library: their rows, records that are no packets, and the cost of both."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import tracemalloc
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.sources import SplitsAddition
from lowmark.sources.kinesis import reader as reader_module
from lowmark.sources.kinesis.aggregated import MAGIC, MOST_KEY_BYTES_A_BYTE, MalformedPacket, md5, unpacked
from lowmark.sources.kinesis.client import Page
from lowmark.sources.kinesis.columns import COLUMNS, KinesisColumns, rows_in
from lowmark.sources.kinesis.connections import KinesisSettings
from lowmark.sources.kinesis.reader import KinesisSplitReader
from lowmark.sources.kinesis.split import KinesisSplit, after

ALL = KinesisColumns(list(COLUMNS))


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """Encode a field of protobuf."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sealed(message: bytes) -> bytes:
    return MAGIC + message + md5(message)


def packet(rows: list[tuple[int, int | None, bytes]], keys: list[bytes], hashes: list[bytes]) -> bytes:
    """Encode a packet as the producer library does; rows are (index of the key, index of the hash key, data)."""
    message = b"".join(field(1, key) for key in keys) + b"".join(field(2, each) for each in hashes)
    for key, explicit, data in rows:
        of_hash = b"" if explicit is None else field(2, explicit)
        message += field(3, field(1, key) + of_hash + field(3, data))
    return sealed(message)


def aggregated(rows: list[tuple[str, bytes, str | None]]) -> bytes:
    """Encode a packet by awslabs' own aggregator."""
    path = list(sys.path)
    try:
        from aws_kinesis_agg.aggregator import RecordAggregator
    finally:
        sys.path[:] = path  # its import puts its folder at the head of the path
    packer = RecordAggregator()
    for row in rows:
        assert packer.add_user_record(*row) is None
    data: bytes = packer.clear_and_get().get_contents()[2]
    return data


def record(data: bytes, number: int = 7) -> dict[str, Any]:
    arrived = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return {"PartitionKey": "a", "Data": data, "SequenceNumber": f"{number}", "ApproximateArrivalTimestamp": arrived}


def shard(**changes: Any) -> KinesisSplit:
    return KinesisSplit(**{"split_id": "orders/0", "stream": "orders", "shard": "0", **changes})


def refused(record: dict[str, Any], why: MalformedPacket) -> None:
    raise AssertionError(f"{record['SequenceNumber']}: {why}")


def test_a_packet_of_the_producer_library_gives_what_was_packed() -> None:
    rng = random.Random(seed := random.randrange(2**32))
    rows = [
        (f"k{rng.randrange(9)}é", rng.randbytes(rng.randrange(400)), rng.choice([None, str(rng.randrange(2**128))]))
        for _ in range(500)
    ]
    data = aggregated(rows)
    assert unpacked(data) == [(key, explicit, value) for key, value, explicit in rows], f"seed {seed}"
    batch = ALL.batch(shard(), [record(b"before", 6), record(data), record(b"behind", 8)], refused)
    assert batch["data"].to_pylist() == [b"before", *(value for _, value, _ in rows), b"behind"]
    assert batch["subSequenceNumber"].to_pylist() == [None, *range(500), None]
    assert batch["sequenceNumber"].to_pylist() == ["6", *["7"] * 500, "8"]
    assert batch["explicitHashKey"].to_pylist()[1:-1] == [explicit for _, _, explicit in rows]
    assert rows_in(record(data)) == 500


def test_rows_of_another_shard_are_left_out() -> None:
    data = packet([(0, 0, b"here"), (0, 1, b"there"), (0, None, b"by key")], [b"k"], [b"5", b"50"])
    hashed = int.from_bytes(md5(b"k"), "big")
    low = ALL.batch(shard(hash_from="0", hash_to="9"), [record(data)], refused)
    assert low["data"].to_pylist() == [b"here"]
    by_key = ALL.batch(shard(hash_from=f"{hashed}", hash_to=f"{hashed}"), [record(data)], refused)
    assert (by_key["data"].to_pylist(), by_key["subSequenceNumber"].to_pylist()) == ([b"by key"], [2])


def test_unknown_fields_and_tags_are_passed_over() -> None:
    tag = field(4, field(1, b"t") + field(2, b"v"))
    others = varint(9 << 3 | 1) + b"12345678" + varint(10 << 3 | 5) + b"1234" + field(11, 2**64 - 1)
    message = field(1, b"k") + others + field(3, field(1, 0) + tag + field(3, b"x") + others)
    assert unpacked(sealed(message)) == [("k", None, b"x")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (MAGIC, "checksum"),
        (MAGIC + b"x" * 15, "checksum"),
        (packet([(0, None, b"x")], [b"k"], [])[:-1] + b"?", "checksum"),
        (packet([(0, None, b"x")], [b"\xff\xfe"], []), "no UTF-8"),
        (packet([(0, 0, b"x")], [b"k"], [b"abc"]), "no number of 128 bits"),
        (packet([(0, 0, b"x")], [b"k"], [b""]), "no number of 128 bits"),
        (packet([(0, 0, b"x")], [b"k"], [b"-1"]), "no number of 128 bits"),
        (packet([(0, 0, b"x")], [b"k"], ["٣".encode()]), "no number of 128 bits"),
        (packet([(0, 0, b"x")], [b"k"], [b"%d" % 2**128]), "no number of 128 bits"),
        (packet([(0, 0, b"x")], [b"k"], [b"9" * 5_000]), "no number of 128 bits"),
        (packet([(1, None, b"x")], [b"k"], []), "a key that it does not have"),
        (packet([(0, 3, b"x")], [b"k"], [b"1"]), "a key that it does not have"),
        (sealed(field(1, b"k") + field(3, field(1, 0))), "no partition key or no data"),
        (sealed(field(1, b"k") + field(3, field(3, b"x"))), "no partition key or no data"),
        (sealed(field(1, 5)), "bytes are expected"),
        (sealed(field(1, b"k") + field(3, field(1, b"0") + field(3, b"x"))), "a key that it does not have"),
        (sealed(varint(1 << 3 | 2) + varint(2**62) + b"k"), "ends behind its message"),
        (sealed(b"\xff" * 30), "has no end"),
        (sealed(varint(1 << 3 | 3)), "of kind 3"),
        (packet([(0, None, b"")] * 2_000, [b"k" * 100_000], []), "times its size"),
    ],
)
def test_what_is_no_packet_is_a_row_as_it_is(data: bytes, words: str) -> None:
    with pytest.raises(MalformedPacket, match=words):
        unpacked(data)
    heard: list[str] = []
    batch = ALL.batch(shard(), [record(data)], lambda record, why: heard.append(str(why)))
    assert (batch["data"].to_pylist(), batch["partitionKey"].to_pylist()) == ([data], ["a"])
    assert (len(heard), rows_in(record(data))) == (1, 1)


def test_a_packet_that_is_changed_anywhere_is_a_packet_or_a_malformed_one() -> None:
    rng = random.Random(seed := random.randrange(2**32))
    message = packet([(0, 0, b"x"), (1, None, b"yy")], [b"k", b"l"], [b"17"])[4:-16]
    rows = 0
    for _ in range(5_000):
        changed = bytearray(message)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            rows += len(unpacked(sealed(bytes(changed[: rng.randrange(1, len(changed) + 1)]))))
        except MalformedPacket:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {bytes(changed).hex()}") from error
    assert rows > 0


@pytest.mark.slow
def test_a_hundred_packets_take_memory_in_proportion() -> None:
    """Once each row carried all columns of its packet, and a hundred ordinary packets did not fit into memory."""
    rows: list[tuple[str, bytes, str | None]] = [(f"k{n % 50}", b"x" * 60, None) for n in range(500)]
    records = [record(aggregated(rows), number) for number in range(100)]
    tracemalloc.start()
    try:
        batch = ALL.batch(shard(), records, refused)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.num_rows == 50_000
    size = sum(len(each["Data"]) for each in records)
    assert batch.nbytes < 6 * size
    assert peak < 12 * size
    assert MOST_KEY_BYTES_A_BYTE == 64


def test_a_process_that_has_imported_nothing_else_unpacks() -> None:
    """Every executor is such a process."""
    data = aggregated([("k", b"one", None), ("l", b"two", "5")])
    code = (
        "import sys; sys.modules['aws_kinesis_agg'] = sys.modules['google'] = None\n"
        "from lowmark.sources.kinesis.columns import user_records\n"
        "from lowmark.sources.kinesis.split import KinesisSplit\n"
        f"held = user_records({{'Data': {data!r}, 'PartitionKey': 'a'}}, "
        "KinesisSplit(split_id='o/0', stream='o', shard='0'), on_malformed=None)\n"
        "print([row[1].decode() for row in held])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("['one', 'two']", 0), done.stderr


def test_malformed_packets_are_counted_and_the_first_of_a_stream_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_named", set())
    bad = packet([(0, 0, b"x")], [b"k"], [b"abc"])
    records = [record(bad, 11), record(bad, 12), record(b"plain", 13)]
    client: Any = SimpleNamespace(
        iterator=lambda *asked, **options: "0", records=lambda *asked, **options: Page(records, "1", 0),
        pace=SimpleNamespace(wait_seconds=lambda *asked: 0.0),
    )  # fmt: skip
    reader = KinesisSplitReader(KinesisSettings(), KinesisColumns(["data"]), go_on=False, client=client)
    reader.handle_splits_changes(SplitsAddition((shard(start=0, stop=9, until=after(13), records=3),)))
    with caplog.at_level(logging.WARNING, logger="lowmark"):
        [rows] = reader.fetch().batches
    assert rows.rows["data"].to_pylist() == [bad, bad, b"plain"]
    assert reader.metrics.values()["malformed_packets"] == 2
    [said] = [each for each in caplog.messages if "cannot be unpacked" in each]
    assert "record 11" in said
    assert "no number of 128 bits" in said
