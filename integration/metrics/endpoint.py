"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

from lowmark.integration.errors import MetricsUnavailable, ServiceRefused
from lowmark.integration.process.http_server import HttpServer, cause
from prometheus_client import CollectorRegistry, make_wsgi_app

from .collector import Runs, StreamCollector


class MetricsServer:
    """Answers every GET with the metrics, in Prometheus' or OpenMetrics' text format, until it is stopped.

    Args:
        host: name or address to bind to.
        port: port to listen on, 0 for any free port.

    Attributes:
        port: the real port.

    Raises:
        MetricsUnavailable: it cannot listen there, for instance because another process does.
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
            self._server = HttpServer(make_wsgi_app(registry), host=host, port=port, name="lowmark-metrics")
        except OSError as failed:
            raise MetricsUnavailable(host, port, cause(failed)) from failed
        self.port = self._server.port

    def stop(self) -> None:
        """Stop answering and free the port. May be called more than once."""
        self._server.stop()
