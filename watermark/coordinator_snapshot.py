"""The coordinator's state as bytes: both ends of the envelope. What is in it each part knows for itself.

    "LWMC"  version  crc32  JSON        integers are little-endian; the checksum is of the JSON

Keys are sorted and nothing depends on time or memory, so equal states give equal bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from .errors import CorruptSnapshot

VERSION = 1
_MAGIC = b"LWMC"
_HEAD = struct.Struct("<4sBI")


def encode(state: Mapping[str, Any]) -> bytes:
    """The state as bytes; equal states give equal bytes.

    >>> decode(encode({"lost": 0}))
    {'lost': 0}
    """
    body = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> dict[str, Any]:
    """The state that ``encode`` was given.

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
        state: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise CorruptSnapshot("its contents are not JSON", len(data)) from error
    return state
