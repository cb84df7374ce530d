"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

from lowmark.integration.errors import MetricsUnavailable
from lowmark.integration.process.http_server import HttpServer, cause, check_port
from prometheus_client import CollectorRegistry, make_wsgi_app

from .collector import Service, StreamCollector


class MetricsServer(HttpServer):
    """Answers every GET with the metrics, in Prometheus' or OpenMetrics' text format.

    Raises MetricsUnavailable, ServiceRefused.
    """

    def __init__(self, service: Service, *, host: str = "127.0.0.1", port: int = 0) -> None:
        check_port("metrics_port", port)
        registry = CollectorRegistry()
        registry.register(StreamCollector(service))
        try:
            super().__init__(make_wsgi_app(registry), host=host, port=port, name="lowmark-metrics")
        except OSError as failed:
            raise MetricsUnavailable(host, port, cause(failed)) from failed
