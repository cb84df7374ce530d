"""Deflated bytes, unpacked within a bound: three megabytes of a damaged checkpoint may stand for gigabytes."""

from __future__ import annotations

import zlib

MOST_BYTES = 1 << 28
"""The most that is packed, and unpacked again, bytes: 256 MiB, some millions of splits."""


def pack(data: bytes, level: int) -> bytes:
    """The bytes, deflated.

    Args:
        data: up to ``MOST_BYTES``.
        level: of zlib, 1 (fast) to 9 (small).

    Raises:
        ValueError: there are more, which could not be unpacked again.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes of state, expected {MOST_BYTES} at most")
    return zlib.compress(data, level)


def unpack(data: bytes, most_bytes: int | None = None) -> bytes:
    """What ``pack`` was given, in no more memory than it may need.

    Args:
        data: the deflated bytes, all of them.
        most_bytes: what they may unpack to; None: ``MOST_BYTES``.

    Raises:
        ValueError: they are damaged, cut off, followed by others, or unpack to more; says which.

    >>> unpack(pack(b"state", 1))
    b'state'
    """
    most = MOST_BYTES if most_bytes is None else most_bytes
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    if len(plain) > most:
        raise ValueError(f"damaged: it unpacks to more than {most} bytes")
    if unpacker.unused_data:
        raise ValueError(f"{len(unpacker.unused_data)} trailing bytes")
    if not unpacker.eof:
        raise ValueError("truncated: the data ends too early")
    return plain
