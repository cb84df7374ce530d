"""A proxy in front of a server, for any protocol: it delays bytes in both directions, and tests can kill it.

    python -m tests.servers.tcp_proxy PORT TARGET_PORT MILLISECONDS

The proxy is a separate process, so that its load and its death do not touch the measuring process. Bytes are delayed
in parallel, so a connection keeps its throughput. An answer is delayed by twice the milliseconds: once for the
request, once for the answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.local import LOCALHOST, Process, free_ports, port_open, started

MOST_CHUNKS = 256
CHUNK_BYTES = 64 << 10


class TcpProxy:
    """The proxy's process; it keeps its port over `kill` and `start`.

    Args:
        target_port: of the server, on 127.0.0.1.
        folder: for its log.
        port: its own port; None: a free port.
        delay_ms: the delay of bytes, one way.
    """

    def __init__(self, target_port: int, folder: Path, *, port: int | None = None, delay_ms: float = 0.0) -> None:
        self.port = free_ports(1)[0] if port is None else port
        self.url = f"http://{LOCALHOST}:{self.port}"
        command = [sys.executable, "-m", "tests.servers.tcp_proxy", f"{self.port}", f"{target_port}", f"{delay_ms}"]
        self.process = Process("the proxy", command, folder / f"proxy-{self.port}.log")

    def start(self) -> None:
        """Start to listen; may be called again after `kill`."""
        self.process.start(lambda: port_open(self.port))

    def kill(self) -> None:
        """End the proxy and all connections at once."""
        self.process.kill()


@contextmanager
def tcp_proxied(
    target_port: int, folder: Path, *, port: int | None = None, delay_ms: float = 0.0
) -> Iterator[TcpProxy]:
    """Yield a listening proxy, and end it afterwards."""

    def start(_attempt: int) -> TcpProxy:
        proxy = TcpProxy(target_port, folder, port=port, delay_ms=delay_ms)
        proxy.start()
        return proxy

    proxy = started(start)
    try:
        yield proxy
    finally:
        proxy.kill()


async def _serve(port: int, target_port: int, delay_seconds: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(LOCALHOST, target_port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_carry(reader, far_writer, delay_seconds), _carry(far_reader, writer, delay_seconds))

    server = await asyncio.start_server(connected, LOCALHOST, port)
    async with server:
        await server.serve_forever()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float) -> None:
    """Carry bytes one way, each after its delay; b"" is the end."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
    loop = asyncio.get_running_loop()

    async def take() -> None:
        data = b"?"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            await under_way.put((loop.time() + delay_seconds, data))

    taking = asyncio.ensure_future(take())
    with suppress(OSError):
        while True:
            due, data = await under_way.get()
            if due > loop.time():
                waited = loop.create_future()
                loop.call_at(due, waited.set_result, None)
                await waited
            if not data:
                break
            writer.write(data)
            await writer.drain()
    taking.cancel()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1_000))
