"""The page's server: uvicorn on a thread of its own, beside whatever the driver does."""

from __future__ import annotations

import errno
import socket
import time

import uvicorn
from lowmark.integration.errors import PageUnavailable, ServiceRefused
from lowmark.sources.worker import Worker

from .app import application
from .look import Look
from .picture import Picture

__all__ = ["PageServer"]

_HOST = "127.0.0.1"
_MOST_CLIENTS = 64
_END_SECONDS = 2


class PageServer:
    """Serves the page on 127.0.0.1 until it is stopped.

    Args:
        look: asks the services that it shows.
        port: to listen on, 0 for any free one.

    Attributes:
        port: where it listens.

    Raises:
        PageUnavailable: it cannot listen there, because another process does, for instance.
        ServiceRefused: the port is not a number from 0 to 65535.
    """

    def __init__(self, look: Look, *, port: int = 0) -> None:
        if port not in range(65_536):
            raise ServiceRefused(f"page_port is {port!r}, expected a number from 0 to 65535", "0 takes any free port.")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((_HOST, port))
            self._socket.listen(_MOST_CLIENTS)
        except OSError as failed:
            self._socket.close()
            raise PageUnavailable(port, _cause(failed)) from failed
        self.port: int = self._socket.getsockname()[1]
        settings = uvicorn.Config(
            application(Picture(look, lambda: time.time_ns() // 1_000)),
            loop="asyncio", http="h11", ws="none", lifespan="off", interface="asgi3",  # nothing that is found by chance
            log_config=None, access_log=False, server_header=False, proxy_headers=False,
            limit_concurrency=_MOST_CLIENTS, timeout_keep_alive=15, timeout_graceful_shutdown=_END_SECONDS,
        )  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._worker = Worker("lowmark-page", self._run)
        self._worker.start()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{_HOST}:{self.port}/"

    def stop(self) -> None:
        """Stop answering and free the port. May be called more than once."""
        self._server.should_exit = True
        self._worker.join(10 * _END_SECONDS)

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()


def _cause(failed: OSError) -> str:
    if failed.errno == errno.EADDRINUSE:
        return "another process (or another service of this one) listens there already"
    return str(failed.strerror if failed.strerror else failed)
