"""Callers without a token that attack a coordinator's memory: HTTP/2 frames, written byte by byte."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _CONTINUATION, _UNASSIGNED = 1, 4, 9, 0x42
_END_STREAM, _END_HEADERS = 1, 4
_NEWEST_INDEXED = b"\xbe"  # the newest entry of the table of headers
_MOST_FRAME = 16_000  # bytes; every peer takes 16,384

Behaviour = Callable[[ssl.SSLSocket, float], None]


def indexed(connection: ssl.SSLSocket, until: float) -> None:
    """Send header blocks of 3 KB that name one header of 4 KB three thousand times, by its index."""
    named, stream = _literal(b"x", b"v" * 4_000, into_table=True), 1
    while time.monotonic() < until:
        block = _CALL + named + _NEWEST_INDEXED * 3_000
        named = b""
        connection.sendall(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block))
        stream += 2


def endless(connection: ssl.SSLSocket, until: float) -> None:
    """Send a header block that never ends."""
    connection.sendall(_frame(_HEADERS, 0, 1, _CALL))
    part = _frame(_CONTINUATION, 0, 1, _literal(b"a", b"b" * _MOST_FRAME))
    while time.monotonic() < until:
        connection.sendall(part)


def unassigned(connection: ssl.SSLSocket, until: float) -> None:
    """Send frames of an unknown HTTP/2 type at full speed, which shows the cost of the bytes alone."""
    part = _frame(_UNASSIGNED, 0, 0, bytes(_MOST_FRAME))
    while time.monotonic() < until:
        connection.sendall(part)


def silent(connection: ssl.SSLSocket, until: float) -> None:
    """Send nothing after HTTP/2's preface."""
    connection.settimeout(max(0.1, until - time.monotonic()))
    while connection.recv(4_096):
        pass


BEHAVIOURS: dict[str, Behaviour] = {each.__name__: each for each in (indexed, endless, unassigned, silent)}


def knock(port: int, behaviour: Behaviour, *, connections: int, seconds: float) -> Counter[str]:
    """Run a behaviour on many connections for some seconds; each connects again after a disconnect.

    Returns:
        The number of ended connections by kind of end: "stayed" to the end, or the name of the error.
    """
    until, ended = time.monotonic() + seconds, Counter[str]()

    def stranger() -> None:
        while time.monotonic() < until:
            try:
                with _connect(port) as connection:
                    behaviour(connection, until)
                ended["stayed" if time.monotonic() >= until else "cut"] += 1
            except OSError as failed:
                ended["stayed" if isinstance(failed, TimeoutError) else type(failed).__name__] += 1

    threads = [threading.Thread(target=stranger) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def _connect(port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    connection = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10))
    connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
    return connection


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes, *, into_table: bool = False) -> bytes:
    """Encode a header in HPACK (RFC 7541, 6.2), without Huffman codes."""
    return (b"\x40" if into_table else b"\x00") + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    """Encode a string with its length, an integer with a prefix of 7 bits (RFC 7541, 5.1 and 5.2)."""
    left = len(data) - 127
    if left < 0:
        return bytes((len(data),)) + data
    length = bytearray((127,))
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return bytes((*length, left)) + data


# ":method: POST" and ":scheme: https" by their indexes in HPACK's static table.
_CALL = b"\x83\x87" + b"".join(
    _literal(name, value)
    for name, value in (
        (b":path", b"/lowmark.v1.Coordinator/Say"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
