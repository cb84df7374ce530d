"""Serves the page on 127.0.0.1, on a thread of its own beside the driver's work."""

from __future__ import annotations

import time

from lowmark.integration.errors import PageUnavailable, ServiceRefused
from lowmark.integration.process.http_server import HttpServer, cause

from .app import application
from .look import Look
from .picture import Picture

_HOST = "127.0.0.1"


class PageServer:
    """Serves the page on 127.0.0.1 until it is stopped.

    Args:
        port: port to listen on, 0 for any free port.

    Attributes:
        port: the real port.

    Raises:
        PageUnavailable: it cannot listen there, for instance because another process does.
        ServiceRefused: the port is not a number from 0 to 65535.
    """

    def __init__(self, look: Look, *, port: int = 0) -> None:
        if port not in range(65_536):
            raise ServiceRefused(f"page_port is {port!r}, expected a number from 0 to 65535", "0 takes any free port.")
        page = application(Picture(look, lambda: time.time_ns() // 1_000))
        try:
            self._server = HttpServer(page, host=_HOST, port=port, name="lowmark-page")
        except OSError as failed:
            raise PageUnavailable(port, cause(failed)) from failed
        self.port = self._server.port

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{_HOST}:{self.port}/"

    def stop(self) -> None:
        """Stop answering and free the port. May be called more than once."""
        self._server.stop()
