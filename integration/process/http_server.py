"""The HTTP server of the metrics and the page: bounded, and for this machine alone unless it is opened.

Rule 1: at most 16 clients at a time, for at most 15 seconds each. A further client closes the oldest connection of the
        peer with the most connections.
Rule 2: a server that listens on this machine alone answers only to this machine's names. A stranger's page could lead a
        browser of this machine here under a name that was bound anew to 127.0.0.1; the Host header shows that name.
Rule 3: no other page may frame or embed an answer, and only scripts of this server run.
Rule 4: a client's fault writes no line to stderr.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import IO, TYPE_CHECKING, Any, cast
from wsgiref.headers import Headers
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from lowmark.integration.errors import ServiceRefused
from lowmark.sources.worker import Worker

from .clock import monotonic_us

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("lowmark")
# An answer takes milliseconds; Prometheus itself gives up after 10 seconds.
_CLIENT_SECONDS = 15.0
_POLL_SECONDS = 0.1  # how often the server looks whether it is stopped; `stop` waits for the next look
_MOST_CLIENTS = 16
_MOST_LINE_BYTES = 65_536
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_ANOTHER_NAME = (
    b"lowmark: this is served to this machine alone, under the names 127.0.0.1 and localhost. Hint: from elsewhere, "
    b"forward the port: ssh -L PORT:127.0.0.1:PORT this-machine; metrics can be opened with metrics_host.\n"
)


class HttpServer:
    """Answers each request by a WSGI application, on a thread of its own, until it is stopped.

    With `port` 0, it takes any free port.

    Raises:
        OSError: the server cannot listen there; `cause` gives the reason.
    """

    def __init__(self, application: WSGIApplication, *, host: str, port: int, name: str) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError as no_name:  # of Python, before it asks the system
            raise socket.gaierror(socket.EAI_NONAME, str(no_name)) from no_name
        family, *_, address = found[0]
        self._server = _BoundedServer(family, address, _Handler)
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            application = _only_for({*_THIS_MACHINE, host.lower()}, application)
        self._server.set_app(application)
        self.port: int = self._server.server_port
        self._worker = Worker(name, partial(self._server.serve_forever, _POLL_SECONDS))
        self._worker.start()

    def stop(self) -> None:
        """May be called more than once."""
        self._server.shutdown()
        self._server.server_close()
        self._worker.join(threading.TIMEOUT_MAX)


def check_port(option: str, port: int) -> None:
    """Raise ServiceRefused for an option that is no port."""
    if port not in range(65_536):
        raise ServiceRefused(f"{option} is {port!r}, expected a number from 0 to 65535", "0 takes any free port.")


def cause(failed: OSError) -> str:
    """The reason why a server cannot listen, as the end of a sentence."""
    if failed.errno == errno.EADDRINUSE:
        return "another process, or another service of this process, listens there already"
    if isinstance(failed, socket.gaierror):
        return f"the host is not known ({failed.strerror})"
    return str(failed.strerror if failed.strerror else failed)


class _Answer(ServerHandler):
    headers: Headers  # missing in the base class's types
    server_software = ""  # clients do not learn the software

    def cleanup_headers(self) -> None:
        super().cleanup_headers()
        for name, value in _HEADERS.items():
            self.headers[name] = value
        self.headers.setdefault("Cache-Control", "no-cache")

    def log_exception(self, exc_info: Any) -> None:
        # A client that has gone is no fault of the server.
        level = logging.DEBUG if isinstance(exc_info[1], OSError) else logging.ERROR
        log.log(level, "a request could not be answered", exc_info=exc_info)


class _Handler(WSGIRequestHandler):
    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(_MOST_LINE_BYTES + 1)
        if len(self.raw_requestline) > _MOST_LINE_BYTES:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif self.parse_request():
            written = cast("IO[bytes]", self.wfile)  # the type that the base class declares
            answer = _Answer(self.rfile, written, sys.stderr, self.get_environ(), multithread=True)
            answer.request_handler = self  # type: ignore[attr-defined]  # used for logging
            answer.run(self.server.get_app())  # type: ignore[attr-defined]

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        lines = [
            f"HTTP/1.0 {code:d} {HTTPStatus(code).phrase}",
            *(f"{name}: {text}" for name, text in _HEADERS.items()),
        ]
        self.wfile.write("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        pass


class _BoundedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 4 * _MOST_CLIENTS  # the system's queue, while a thread starts

    def __init__(self, family: socket.AddressFamily, *args: Any) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, tuple[str, int]] = {}  # -> (peer, start time), the oldest first
        super().__init__(*args)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without the base class's DNS query for the name of the address
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._clients) >= _MOST_CLIENTS:
                self._make_room()
            self._clients[request] = str(client_address[0]), monotonic_us()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:  # every `_POLL_SECONDS`
        since_us = monotonic_us() - int(_CLIENT_SECONDS * 1e6)
        with self._lock:
            for client in [client for client, (_, at_us) in self._clients.items() if at_us <= since_us]:
                self._hang_up(client)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # of the base class
        log.debug("a client was hung up on: %r", sys.exc_info()[1])

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for client in list(self._clients):
                self._hang_up(client)

    def _make_room(self) -> None:
        """Rule 1. The lock is held."""
        shares = Counter(peer for peer, _ in self._clients.values())
        most = max(shares.values())
        self._hang_up(next(client for client, (peer, _) in self._clients.items() if shares[peer] == most))

    def _hang_up(self, client: socket.socket) -> None:
        """Close a connection, which ends its thread at the next read or write. The lock is held."""
        del self._clients[client]
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _only_for(names: set[str], application: WSGIApplication) -> WSGIApplication:
    """Rule 2. Requests without a Host name, or with several, are refused, too."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if _without_port(environ.get("HTTP_HOST", "").lower()) in names:
            return application(environ, start_response)
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(_ANOTHER_NAME)))]
        start_response("421 Misdirected Request", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [_ANOTHER_NAME]

    return guarded


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host
