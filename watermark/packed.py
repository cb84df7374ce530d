"""Deflates bytes, and unpacks them up to a limit: three megabytes of a damaged checkpoint may unpack to gigabytes."""

from __future__ import annotations

import zlib

MOST_BYTES = 1 << 28
"""The largest size that is packed and unpacked, bytes: 256 MiB, some millions of splits."""


def pack(data: bytes, level: int) -> bytes:
    """Deflate up to ``MOST_BYTES``, at a level of zlib, 1 (fast) to 9 (small).

    Raises:
        ValueError: there are more bytes, which could not be unpacked again.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes of state, expected {MOST_BYTES} at most")
    return zlib.compress(data, level)


def unpack(data: bytes, most_bytes: int | None = None) -> bytes:
    """Unpack bytes that ``pack`` deflated, to ``most_bytes`` (None: ``MOST_BYTES``) at most.

    Raises:
        ValueError: the bytes are damaged, cut off, followed by others, or unpack to more; the text says which.

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
