"""The state of `SplitWatermarks` as bytes: both ends of the format.

    "LWMK"  version  size  crc32  zlib(body)        size and crc32 are of the body; integers are little-endian
    body:   kind of ids, low watermark, count, columns (ids, watermarks, states),
            JSON (ids if names; names in the order of the ids, null for an unknown name, then split and name of others;
            ancestry: child, parents, smallest watermark of removed parents;
            split and bound; when the young stream began; the batch whose report was lost, and when the loss was
            known; for each bound in turn the number of rows from which it was found; only if a person left splits
            out: split, person, since when, and until when)

Columns are numpy arrays, byte by byte transposed (all first bytes, then all second bytes, ...): neighbouring
splits share their high bytes, so zlib finds runs. Splits are sorted and nothing depends on time or memory, so
equal states give equal bytes: Spark compares offsets as text.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
from lowmark.watermark.errors import CorruptSnapshot
from lowmark.watermark.moment import is_int64
from lowmark.watermark.packed import MOST_BYTES, pack, unpack
from lowmark.watermark.state import SplitId, SplitState, split_order

from .by_hand import IdleMark
from .lineage import Ancestry

VERSION = 1
_PARTS = (7, 8)  # of the JSON
_MAGIC = b"LWMK"
_HEAD = struct.Struct("<4sBII")
_BODY = struct.Struct("<B?qI")  # kind, low known, low, count

_KIND_NUMBERS, _KIND_NAMES = 0, 1
_STATES = dict(enumerate(SplitState))  # by code; codes are in checkpoints, so a new state comes last
_CODES = {state: code for code, state in _STATES.items()}
_LEVEL = 1
"""Of zlib. It is paid for in each batch: level 9 takes nine times as long and saves a twentieth of the bytes."""
_SPOKEN = 0x80  # flag on the state: the watermark column counts
_HELD_BACK = 0x40  # flag on IDLE: the split was paused, and not resumed since


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The state of a stream for a restart."""

    low_us: int | None = None
    splits: Mapping[SplitId, tuple[SplitState, int | None]] = field(default_factory=dict)
    names: Mapping[SplitId, str] = field(default_factory=dict)  # of splits whose ids are numbers; not interpreted
    ancestry: Ancestry = field(default_factory=dict)
    bounds_us: Mapping[SplitId, int] = field(default_factory=dict)  # that were found for splits
    young_since_us: int | None = None  # when the stream began, while its idle timeout grows
    lost: tuple[int, int] | None = None  # the batch whose report was lost, and when the loss was known
    bound_rows: Mapping[SplitId, int] = field(default_factory=dict)  # about how many rows each bound was found from
    by_hand: Mapping[SplitId, IdleMark] = field(default_factory=dict)  # these splits are IDLE
    held_back: frozenset[SplitId] = frozenset()  # paused and not resumed since; kept of IDLE splits

    def until(self, now_us: int) -> StreamSnapshot:
        """The snapshot without a past that is still to come, because the clock that wrote it may have been ahead."""
        young_us, lost = self.young_since_us, self.lost
        return replace(
            self,
            young_since_us=None if young_us is None else min(young_us, now_us),
            lost=None if lost is None else (lost[0], min(lost[1], now_us)),
            by_hand={split: replace(mark, since_us=min(mark.since_us, now_us)) for split, mark in self.by_hand.items()},
        )


def encode(snapshot: StreamSnapshot) -> bytes:
    """Equal snapshots give equal bytes."""
    named = any(isinstance(split, str) for split in snapshot.splits)
    ids = sorted(snapshot.splits, key=split_order) if named else sorted(snapshot.splits)
    states, watermarks = [], []
    for split in ids:
        state, watermark_us = snapshot.splits[split]
        held_back = state is SplitState.IDLE and split in snapshot.held_back
        states.append(_CODES[state] | (0 if watermark_us is None else _SPOKEN) | (_HELD_BACK if held_back else 0))
        watermarks.append(0 if watermark_us is None else watermark_us)
    names = _aligned(ids, snapshot.names)
    ancestry = [[child, *snapshot.ancestry[child]] for child in sorted(snapshot.ancestry, key=split_order)]
    bounds = [[split, snapshot.bounds_us[split]] for split in sorted(snapshot.bounds_us, key=split_order)]
    rows = [snapshot.bound_rows.get(split, 0) for split, _ in bounds]
    tail = [ids if named else [], names, ancestry, bounds, snapshot.young_since_us, snapshot.lost, rows]
    if snapshot.by_hand:
        marks = [(split, snapshot.by_hand[split]) for split in sorted(snapshot.by_hand, key=split_order)]
        tail.append([[split, mark.by, mark.since_us, mark.until_us] for split, mark in marks])
    text = json.dumps(tail, separators=(",", ":")).encode()
    low_us = snapshot.low_us
    kind = _KIND_NAMES if named else _KIND_NUMBERS
    head = _BODY.pack(kind, low_us is not None, 0 if low_us is None else low_us, len(ids))
    numbers = b"" if named else _planes(np.array(ids, dtype="<u8"))
    body = b"".join((head, numbers, _planes(np.array(watermarks, dtype="<i8")), bytes(states), text))
    return _HEAD.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + pack(body, _LEVEL)


def decode(data: bytes) -> StreamSnapshot:
    """Read back a snapshot that ``encode`` wrote.

    Raises:
        CorruptSnapshot: the bytes are cut off, damaged, of another version, or not a snapshot.
    """
    body = _open(data)
    kind, low_known, low_us, count = _BODY.unpack_from(body)
    at = _BODY.size
    width = 8 * count
    columns = (0 if kind == _KIND_NAMES else width) + width + count
    if kind not in (_KIND_NUMBERS, _KIND_NAMES) or at + columns > len(body):
        raise CorruptSnapshot("its columns do not fit its size", len(data))
    ids: list[SplitId] = []
    if kind == _KIND_NUMBERS:
        ids.extend(_whole(body[at : at + width], "<u8"))
        at += width
    watermarks = _whole(body[at : at + width], "<i8")
    states = body[at + width : at + width + count]
    try:
        tail = json.loads(body[at + width + count :])
        if len(tail) not in _PARTS:
            raise CorruptSnapshot(f"it has {len(tail)} parts, this version reads {_PARTS[-1]}", len(data))
        named, names, ancestry_rows, bounds, young_since_us, lost, rows, *marks = tail
        ids.extend(named)
        kind_of_ids = str if kind == _KIND_NAMES else int
        _check(len(set(ids)) == len(ids) and all(type(split) is kind_of_ids for split in ids))
        splits = {
            split: (_STATES[code & ~(_SPOKEN | _HELD_BACK)], watermark_us if code & _SPOKEN else None)
            for split, watermark_us, code in zip(ids, watermarks, states, strict=True)
        }
        flagged = [split for split, code in zip(ids, states, strict=True) if code & _HELD_BACK]
        _check(all(splits[split][0] is SplitState.IDLE for split in flagged))
        ancestry = {child: (tuple(parents), left_us) for child, parents, left_us in ancestry_rows}
        bounds_us, lost = dict(bounds), None if lost is None else tuple(lost)
        bound_rows = {split: count for split, count in zip(bounds_us, rows, strict=True) if count}
        _check(all(is_int64(count) and count > 0 for count in bound_rows.values()))
        _check(young_since_us is None or is_int64(young_since_us))
        _check(lost is None or (len(lost) == 2 and all(map(is_int64, lost))))
        _check(all(type(split) in (str, int) and is_int64(us) for split, us in bounds_us.items()))
        names = _named(ids, names)
        _check(all(type(split) in (str, int) and isinstance(name, str) for split, name in names))
        for child, (parents, left_us) in ancestry.items():
            _check(all(type(split) in (str, int) for split in (child, *parents)))
            _check(child in splits and (parents or left_us is not None))  # removed parents left something
            _check(left_us is None or is_int64(left_us))
        by_hand = {split: IdleMark(*mark) for split, *mark in (marks[0] if marks else ())}
        for split, mark in by_hand.items():
            _check(splits[split][0] is SplitState.IDLE and isinstance(mark.by, str))
            _check(is_int64(mark.since_us) and (mark.until_us is None or is_int64(mark.until_us)))
        TopologicalSorter({child: parents for child, (parents, _) in ancestry.items()}).prepare()
        low_us = low_us if low_known else None
        kept = (splits, dict(names), ancestry, bounds_us, young_since_us, lost, bound_rows, by_hand, frozenset(flagged))
        return StreamSnapshot(low_us, *kept)
    except CorruptSnapshot:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptSnapshot(f"its contents do not make sense ({type(error).__name__})", len(data)) from error


def _aligned(ids: Sequence[SplitId], names: Mapping[SplitId, str]) -> list[str | list[SplitId | str] | None]:
    """Write names down without repeating the ids, which are half of the bytes.

    >>> _aligned([1, 2, 5], {1: "a", 9: "d"})
    ['a', None, None, [9, 'd']]
    """
    others: list[str | list[SplitId | str] | None] = [
        [split, names[split]] for split in sorted(names.keys() - set(ids), key=split_order)
    ]
    return others if len(others) == len(names) else [*(names.get(split) for split in ids), *others]


def _named(ids: Sequence[SplitId], names: Sequence[Any]) -> list[Any]:
    """Return what `_aligned` wrote as pairs of split and name; pairs stay as they are.

    >>> _named([1, 2, 5], ["a", None, None, [9, "d"]]), _named([1], [[1, "a"]])
    ([[1, 'a'], [9, 'd']], [[1, 'a']])
    """
    pairs = [name for name in names if isinstance(name, list)]
    aligned = names[: len(names) - len(pairs)]
    _check(not aligned or len(aligned) == len(ids))
    return [[split, name] for split, name in zip(ids, aligned, strict=False) if name is not None] + pairs


def _open(data: bytes) -> bytes:
    """Check the envelope, from the outside in, and unpack the body."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"truncated: a header has {_HEAD.size} bytes", len(data))
    magic, version, size, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptSnapshot(f"it begins with {magic!r}, not with {_MAGIC!r}", len(data))
    if version != VERSION:
        raise CorruptSnapshot(f"unknown version {version}, this one reads {VERSION}", len(data))
    if size > MOST_BYTES:
        raise CorruptSnapshot(f"damaged: it claims to unpack to {size} bytes", len(data))
    try:
        body = unpack(data[_HEAD.size :], size)
    except ValueError as error:
        raise CorruptSnapshot(str(error), len(data)) from error
    if len(body) != size or len(body) < _BODY.size or zlib.crc32(body) != checksum:
        raise CorruptSnapshot("damaged: the checksum does not match", len(data))
    return body


def _check(fact: object) -> None:
    if not fact:
        raise ValueError


def _planes(column: npt.NDArray[np.uint64] | npt.NDArray[np.int64]) -> bytes:
    return column.view(np.uint8).reshape(-1, 8).T.tobytes()


def _whole(planes: bytes, dtype: str) -> list[int]:
    transposed = np.frombuffer(planes, dtype=np.uint8).reshape(8, -1).T
    return np.ascontiguousarray(transposed).view(dtype).ravel().tolist()
