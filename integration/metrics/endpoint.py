"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lowmark.integration.errors import MetricsUnavailable, ServiceRefused
from lowmark.integration.process.clock import monotonic_us
from lowmark.sources.worker import Worker
from prometheus_client import CollectorRegistry, make_wsgi_app

from .collector import Runs, StreamCollector

__all__ = ["MetricsServer"]

log = logging.getLogger("lowmark")
# A scrape takes milliseconds; Prometheus itself gives up after 10 seconds.
_CLIENT_SECONDS = 15.0
_MOST_CLIENTS = 16


class MetricsServer:
    """The HTTP endpoint: answers every GET with the metrics, in Prometheus' or OpenMetrics' text format.

    Args:
        runs: the service.
        host: name or address to bind to.
        port: to listen on, 0 for any free one.

    Attributes:
        port: where it listens.

    Raises:
        MetricsUnavailable: it cannot listen there, because another process does, for instance.
        ServiceRefused: the port is not a number from 0 to 65535.
    """

    def __init__(self, runs: Runs, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if port not in range(65_536):
            raise ServiceRefused(
                f"metrics_port is {port!r}, expected a number from 0 to 65535", "0 takes any free port."
            )
        registry = CollectorRegistry()
        registry.register(StreamCollector(runs))
        try:
            self._server = _listening(host, port, registry)
        except OSError as failed:
            raise MetricsUnavailable(host, port, _cause(failed)) from failed
        self.port: int = self._server.server_port
        self._worker = Worker("lowmark-metrics", self._server.serve_forever)
        self._worker.start()

    def stop(self) -> None:
        """Stop answering and free the port. May be called more than once."""
        self._server.shutdown()
        self._server.server_close()
        self._worker.join(threading.TIMEOUT_MAX)


class _Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        pass


class _BoundedServer(ThreadingMixIn, WSGIServer):
    """A thread a client, and a bound for both: a slow client is hung up on, or makes room for the next.

    prometheus_client's own server has neither, and keeps a thread for every client that never ends its request.
    """

    daemon_threads = True
    request_queue_size = 4 * _MOST_CLIENTS  # of the system's, while a thread begins

    def __init__(self, *args: Any) -> None:
        self._lock = threading.Lock()
        self._since_us: dict[socket.socket, int] = {}  # clients by when they came, the oldest first
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._since_us) >= _MOST_CLIENTS:
                self._hang_up(next(iter(self._since_us)))
            self._since_us[request] = monotonic_us()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since_us.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:  # twice a second
        since_us = monotonic_us() - int(_CLIENT_SECONDS * 1e6)
        with self._lock:
            for client in [client for client, at_us in self._since_us.items() if at_us <= since_us]:
                self._hang_up(client)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # of the base class
        log.debug("a client of the metrics was hung up on: %r", sys.exc_info()[1])

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for client in list(self._since_us):
                self._hang_up(client)

    def _hang_up(self, client: socket.socket) -> None:
        """Its thread, which reads or writes, finds the connection closed and ends. The lock is held."""
        del self._since_us[client]
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _listening(host: str, port: int, registry: CollectorRegistry) -> _BoundedServer:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]

    class Server(_BoundedServer):
        address_family = family

    return make_server(str(address[0]), port, make_wsgi_app(registry), Server, _Quiet)


def _cause(failed: OSError) -> str:
    if failed.errno == errno.EADDRINUSE:
        return "another process (or another service of this one) listens there already"
    if isinstance(failed, socket.gaierror):
        return f"the host is not known ({failed.strerror})"
    return str(failed.strerror if failed.strerror else failed)
