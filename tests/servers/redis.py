"""A real redis-server on a free port, which can be killed and comes back with its entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.servers.local import LOCALHOST, Process, free_ports, require_binary, started


@dataclass(frozen=True)
class RedisServer:
    """A running server; each command of a writer is on disk before its answer."""

    url: str
    client: Any
    process: Process

    def add(self, stream: str, *milliseconds: int) -> None:
        """Append an entry at each time; entries of one time count on."""
        with self.client.pipeline(transaction=False) as pipe:
            for at_ms in milliseconds:
                pipe.xadd(stream, {"item": "pen"}, id=f"{at_ms}-*")
            pipe.execute()

    def start(self) -> None:
        """Start it, again after `process.kill()`."""
        self.process.start(self.ready)

    def ready(self) -> bool:
        """Whether it answers and has read its file."""
        try:
            return bool(self.client.ping())
        except redis.exceptions.ConnectionError:  # also while it reads its file
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Start a server with its data in a folder. Skips or fails the test if the program is missing."""
    program = require_binary("redis-server")

    def start(attempt: int) -> RedisServer:
        here = folder / f"redis-{attempt}"
        here.mkdir(parents=True)
        [port] = free_ports(1)
        command = [str(program), "--port", str(port), "--bind", LOCALHOST, "--dir", str(here), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        url = f"redis://{LOCALHOST}:{port}"
        client = redis.Redis.from_url(url, decode_responses=True)
        server = RedisServer(url, client, Process("Redis", command, here / "redis.log"))
        server.start()
        return server

    server = started(start)
    try:
        yield server
    finally:
        server.client.close()
        server.process.stop()
