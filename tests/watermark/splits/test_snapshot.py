from __future__ import annotations

import json
import random
import struct
import zlib

import pytest
from lowmark.watermark import CorruptSnapshot, SplitState
from lowmark.watermark.splits.by_hand import IdleMark
from lowmark.watermark.splits.snapshot import StreamSnapshot, decode, encode

STATES = list(SplitState)
NUMBERS = StreamSnapshot(
    0,
    {0: (SplitState.PENDING, None), 2**63: (SplitState.ACTIVE, 0), 2**64 - 1: (SplitState.IDLE, -(2**63))},
    {0: "orders-0", 2**63: "Aufträge/7"},
)
NAMES = StreamSnapshot(-1_000, {"b": (SplitState.FINISHED, 2**63 - 1), "ä\n": (SplitState.PAUSED, 5)})
EMPTY = StreamSnapshot()
RESHARDED = StreamSnapshot(
    5,
    {7: (SplitState.FINISHED, 5), 2**64 - 1: (SplitState.PENDING, None)},
    ancestry={2**64 - 1: ((7, 8), -(2**63)), 7: ((0,), None)},
)
BOUNDED = StreamSnapshot(5, {"a": (SplitState.ACTIVE, 5), "b": (SplitState.IDLE, 4)}, bounds_us={"b": 0, "a": 2**62})
WEIGHED = StreamSnapshot(5, {7: (SplitState.ACTIVE, 5)}, bounds_us={7: 9_000, 8: 1}, bound_rows={8: 2**63 - 1})
YOUNG = StreamSnapshot(5, {7: (SplitState.ACTIVE, 5)}, young_since_us=-1)
LOST = StreamSnapshot(5, {7: (SplitState.ACTIVE, 5)}, lost=(3, 2**62))
MARKED = StreamSnapshot(
    5,
    {7: (SplitState.IDLE, 5), 8: (SplitState.IDLE, None)},
    by_hand={8: IdleMark("anna", -(2**63), None), 7: IdleMark("Jürgen\n", 3, 2**63 - 1)},
)
HELD_BACK = StreamSnapshot(5, {"a": (SplitState.IDLE, 5), "b": (SplitState.IDLE, 4)}, held_back=frozenset({"b"}))
EVERY = {
    "numbers": NUMBERS, "names": NAMES, "empty": EMPTY, "resharded": RESHARDED, "bounded": BOUNDED, "young": YOUNG,
    "lost": LOST, "weighed": WEIGHED, "marked": MARKED, "held back": HELD_BACK,
}  # fmt: skip


@pytest.mark.parametrize("snapshot", EVERY.values(), ids=EVERY)
def test_a_snapshot_survives_the_round_trip(snapshot: StreamSnapshot) -> None:
    assert snapshot == decode(encode(snapshot))


def test_equal_states_give_equal_bytes_whatever_the_order_of_their_splits() -> None:
    turned = StreamSnapshot(
        0, dict(reversed(list(NUMBERS.splits.items()))), dict(reversed(list(NUMBERS.names.items())))
    )

    assert encode(NUMBERS) == encode(turned)


def test_four_thousand_splits_fit_into_60_kb() -> None:
    rng = random.Random(5)
    day_us = 86_400_000
    splits: dict[int | str, tuple[SplitState, int | None]] = {
        rng.getrandbits(63): (rng.choice(STATES), 1_700_000_000_000_000 + rng.randrange(day_us) * 1_000)
        for _ in range(4_096)
    }

    assert len(encode(StreamSnapshot(1_700_000_000_000_000, splits))) < 60_000


def test_names_are_written_without_their_ids_and_read_as_earlier_versions_wrote_them() -> None:
    active: dict[int | str, tuple[SplitState, int | None]] = {
        n * 2**40: (SplitState.ACTIVE, n) for n in range(1, 1_001)
    }
    names: dict[int | str, str] = {split: f"device-{n}" for n, split in enumerate(active)}
    named = StreamSnapshot(0, active, {**names, 5: "gone"})
    ids, pairs = struct.pack("<2Q", 1, 2), [[1, "one"], [9, "nine"]]
    planes = bytes(ids[place + 8 * n] for place in range(8) for n in range(2))
    earlier, today = (sealed([[], rows], ids=planes, kind=0, count=2) for rows in (pairs, ["one", None, [9, "nine"]]))

    assert decode(encode(named)) == named
    assert len(encode(named)) - len(encode(StreamSnapshot(0, active))) < 4 * len(active)  # with the ids it was 9
    assert decode(earlier).names == decode(today).names == {1: "one", 9: "nine"}


def test_all_snapshots_are_of_version_1() -> None:
    assert {encode(snapshot)[4] for snapshot in EVERY.values()} == {1}


GOOD = encode(NUMBERS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated: a header has 13 bytes"),
        (GOOD[:12], "truncated: a header has 13 bytes"),
        (GOOD[:-1], "truncated: the data ends too early"),
        (GOOD[:14], "truncated: the data ends too early"),
        (GOOD + b"x", "1 trailing bytes"),
        (b"JUNK" + GOOD[4:], "it begins with b'JUNK'"),
        (GOOD[:4] + b"\x02" + GOOD[5:], "unknown version 2, this one reads 1"),
        (GOOD[:4] + b"\x63" + GOOD[5:], "unknown version 99, this one reads 1"),
        (GOOD[:5] + struct.pack("<I", 2**31) + GOOD[9:], "it claims to unpack to 2147483648 bytes"),
        (GOOD[:5] + struct.pack("<I", 9) + GOOD[9:], "damaged: it unpacks to more than 9 bytes"),
        (GOOD[:9] + b"\0\0\0\0" + GOOD[13:], "damaged: the checksum does not match"),
        (GOOD[:13] + b"\0\0" + GOOD[15:], "damaged: "),
    ],
)
def test_a_corrupt_snapshot_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptSnapshot) as refused:
        decode(data)

    assert reason in refused.value.reason


def test_no_damaged_byte_goes_unnoticed() -> None:
    for at in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptSnapshot):
            decode(bytes(damaged))


REST: list[object] = [[], [], [], None, None, []]


def sealed(tail: object, *, ids: bytes = b"", kind: int = 1, count: int = 0, state: int = 0) -> bytes:
    """Return a snapshot with any content and a valid checksum. A list is padded to the required number of parts."""
    tail = [*tail, *REST[len(tail) - 1 :]] if isinstance(tail, list) else tail
    columns = ids + bytes(8 * count) + bytes([state] * count)
    body = struct.pack("<B?qI", kind, False, 0, count) + columns + json.dumps(tail).encode()
    return struct.pack("<4sBII", b"LWMK", 1, len(body), zlib.crc32(body)) + zlib.compress(body)


@pytest.mark.parametrize(
    "data",
    [
        sealed([["a", "a"], []], count=2),
        sealed([[7], []], count=1),
        sealed([[None], []], count=1),
        sealed([["a"], [[["a"], "name"]]], count=1),
        sealed([["a"], [["a", 7]]], count=1),
        sealed([["a"], ["one", "two"]], count=1),
        sealed([["a"], [["a", "one"], "two"]], count=1),
        sealed([["a"], 7], count=1),
        sealed([["a"], [], [["a", ["a"], None]]], count=1),
        sealed([["a"], [], [["a", [1.5], None]]], count=1),
        sealed([["a"], [], [["a", ["b"], 2**63]]], count=1),
        sealed([["a"], [], [], [["a", 5]], None, [-1]], count=1),
        sealed([["a"], [], [], [["a", 5]], None, []], count=1),
        sealed([["a"], [], [["a", "b"]]], count=1),
        sealed([["a"], [], [["b", ["a"], 3]]], count=1),
        sealed([[], []], kind=0, ids=bytes(16), count=2),
        sealed([["a"], [], [], [], "1970"], count=1),
        sealed([["a"], [], [], [], None, [1]], count=1),
        sealed([["a"], []], count=1, state=5),
        sealed([["a"], []], count=1, state=0x41),
        sealed(None),
    ],
)
def test_contents_that_make_no_sense_are_refused_whatever_their_checksum(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot, match="its contents do not make sense"):
        decode(data)


@pytest.mark.parametrize("parts", [0, 2, 6, 9])
def test_contents_of_another_number_of_parts_are_refused_with_both_numbers(parts: int) -> None:
    body = struct.pack("<B?qI", 1, False, 0, 0) + json.dumps([[]] * parts).encode()
    data = struct.pack("<4sBII", b"LWMK", 1, len(body), zlib.crc32(body)) + zlib.compress(body)
    with pytest.raises(CorruptSnapshot, match=f"it has {parts} parts, this version reads 8"):
        decode(data)
