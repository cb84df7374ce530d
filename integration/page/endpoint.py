"""Serves the page on 127.0.0.1, on a thread of its own beside the driver's work."""

from __future__ import annotations

import time

from lowmark.integration.errors import PageUnavailable
from lowmark.integration.process.http_server import HttpServer, cause, check_port

from .app import application
from .look import Look
from .picture import Picture

_HOST = "127.0.0.1"


class PageServer(HttpServer):
    """Serves the page on 127.0.0.1.

    Attributes:
        address: the address to open in a browser.

    Raises:
        PageUnavailable: it cannot listen there, for instance because another process does.
        ServiceRefused: the port is not a number from 0 to 65535.
    """

    def __init__(self, look: Look, *, port: int = 0) -> None:
        check_port("page_port", port)
        page = application(Picture(look, lambda: time.time_ns() // 1_000))
        try:
            super().__init__(page, host=_HOST, port=port, name="lowmark-page")
        except OSError as failed:
            raise PageUnavailable(port, cause(failed)) from failed
        self.address = f"http://{_HOST}:{self.port}/"
