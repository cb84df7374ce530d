"""The coordinator's state as bytes: writes and reads the envelope. Each part of the coordinator knows its contents.

    "LWMC"  version  crc32  JSON        integers are little-endian; the checksum is of the JSON

Nothing depends on time or memory, so equal states give equal bytes.

A coordinator makes snapshots all the time, and most of its tasks have said nothing since the last snapshot. So every
part keeps its text, and ``EncodedParts`` keeps the texts of its elements; a caller marks changed elements, and only
these are encoded again.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, TypeVar

from lowmark.watermark.errors import CorruptSnapshot

VERSION = 1
_MAGIC = b"LWMC"
_HEAD = struct.Struct("<4sBI")


to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Encode a value as JSON, without spaces and with keys in their order."""

Key = TypeVar("Key")


def json_object(fields: dict[str, Any], **encoded: str) -> str:
    """Make a JSON object; fields that are JSON already come last.

    >>> json_object({"epoch": 7}, members="[1,2]")
    '{"epoch":7,"members":[1,2]}'
    """
    last = ",".join(f'"{name}":{text}' for name, text in encoded.items())
    return f"{to_json(fields)[:-1]}{',' if fields else ''}{last}}}"


class EncodedParts(Generic[Key]):
    """A JSON array with one element per key, sorted; encodes only elements that changed since.

    Args:
        part: gives the element of a key as JSON; None if the key has gone.
        order: the sort key of keys; None: the keys themselves.

    >>> lows_us = {"b": 20}
    >>> parts = EncodedParts(lambda name: to_json([name, lows_us[name]]) if name in lows_us else None)
    >>> parts.changed("b"), parts.text()
    (None, '[["b",20]]')
    >>> lows_us |= {"a": 10, "b": 30}
    >>> parts.changed("a"), parts.text()        # nobody said that b has changed
    (None, '[["a",10],["b",20]]')
    """

    def __init__(self, part: Callable[[Key], str | None], order: Callable[[Key], Any] | None = None) -> None:
        self._part, self._order = part, order
        self._texts: dict[Key, str] = {}  # sorted by ``text``
        self._changed: dict[Key, None] = {}
        self._grown = False  # whether keys were added since the last sort
        self._text: str | None = "[]"

    def changed(self, key: Key) -> None:
        """Mark the element of a key as new, changed or gone. O(1)."""
        self._changed[key] = None

    def waiting(self, most: int) -> list[Key]:
        """Up to ``most`` changed keys, in the order in which ``encode`` takes them."""
        return list(islice(self._changed, most))

    def encode(self, most: int) -> bool:
        """Encode up to ``most`` changed keys now, so that less is left for ``text``. Returns whether any are left."""
        for key in self.waiting(most):
            del self._changed[key]
            self._text, text = None, self._part(key)
            if text is None:
                self._texts.pop(key, None)
            else:
                self._grown |= key not in self._texts
                self._texts[key] = text
        return bool(self._changed)

    def text(self) -> str:
        """The array. Changed elements are encoded, the others are copied."""
        self.encode(len(self._changed))
        if self._grown:
            keys: list[Any] = sorted(self._texts, key=self._order)
            self._texts, self._grown = {key: self._texts[key] for key in keys}, False
        if self._text is None:
            self._text = f"[{','.join(self._texts.values())}]"
        return self._text


def encode(text: str) -> bytes:
    """Put the state, as JSON, into its envelope.

    >>> decode(encode('{"lost":0}'))
    {'lost': 0}
    """
    body = text.encode()
    return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> dict[str, Any]:
    """Read back a state that ``encode`` wrote.

    Raises:
        CorruptSnapshot: the bytes are cut off, damaged, of another version, or not a snapshot.
    """
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"truncated: a header has {_HEAD.size} bytes", len(data))
    magic, version, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptSnapshot(f"it begins with {magic!r}, not with {_MAGIC!r}", len(data))
    if version != VERSION:
        raise CorruptSnapshot(f"unknown version {version}, this one reads {VERSION}", len(data))
    body = data[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptSnapshot("damaged or cut off: the checksum does not match", len(data))
    try:
        state: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptSnapshot("its contents are not JSON", len(data)) from error
    if not isinstance(state, dict):
        raise CorruptSnapshot(f"its contents are a {type(state).__name__}, not an object", len(data))
    for name, check in _PARTS.items():
        if name in state and not check(state[name]):
            raise CorruptSnapshot(f"its contents do not make sense (in {name})", len(data))
    return state


# -- types of the parts
# Types are checked here, because a value of another type would fail later in the middle of other work. The parts
# themselves check missing and unknown fields.

_Check = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return type(value) is int


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _all(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _row(*checks: _Check) -> _Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _fields(**checks: _Check) -> _Check:
    return lambda value: (
        isinstance(value, dict) and all(check(value[name]) for name, check in checks.items() if name in value)
    )


_TASK = _fields(job_id=_text, source_id=_text, task_id=_text)
_ANSWER = _fields(
    task_id=_text,
    low_us=_maybe(_number),
    order=_maybe(_all(lambda value: isinstance(value, int))),
    left_out=_maybe(_text),
    next_wanted_us=_maybe(_number),
    counted=_flag,
    passed=_flag,
    expected=_number,
    patience_us=_maybe(_number),
    away_since_us=_maybe(_number),
    away_limit_us=_maybe(_number),
    waited_us=_number,
    excused=_flag,
    complete_until_us=_maybe(_number),
)
_MEMBER = _fields(
    task=_TASK,
    throttled=_flag,
    floor_us=_maybe(_number),
    report=_maybe(_fields(at_us=_number, active=_flag, next_wanted_us=_maybe(_number))),
    low_us=_maybe(_number),
    low_at_us=_maybe(_number),
)
_PARTS: dict[str, _Check] = {
    "lost": _number,
    "runs": _all(_row(_text, _text, _text, _text)),
    "retired": _all(_row(_text, _text, _text, _text)),
    "sources": _all(
        _fields(
            job_id=_text,
            source_id=_text,
            low_us=_maybe(_number),
            rose_at_us=_maybe(_number),
            last_asked_us=_maybe(_number),
            returned_late=_number,
            tasks=_all(_ANSWER),
        )
    ),
    "groups": _all(
        _fields(
            name=_text,
            params=_maybe(_fields(group=_text, max_drift_us=_number, update_interval_us=_number)),
            next_us=_maybe(_number),
            announced_us=_maybe(_number),
            version=_number,
            members=_all(_MEMBER),
        )
    ),
    "group_of": _all(_row(_text, _text, _text, _text)),
    "spoke_us": _all(_row(_text, _text, _text, _number)),
}
