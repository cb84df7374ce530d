"""A real Prometheus, its targets and its rules."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.local import (
    LOCALHOST,
    START_SECONDS,
    Process,
    ServerError,
    free_ports,
    http_get,
    require_binary,
    started,
    wait_until,
)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus; `str` of it is its address."""

    url: str
    process: Process

    def __str__(self) -> str:
        return self.url

    def ready(self) -> bool:
        """Whether its readiness check succeeds."""
        return http_get(f"{self.url}/-/ready")[0] == 200

    def get(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an answer of its HTTP API.

        Raises:
            ServerError: Prometheus refused; the message has its reason.
        """
        status, body = http_get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        if status != 200:
            raise ServerError(f"Prometheus answered {status} to {path} {parameters}: {body}")
        return json.loads(body)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of an expression now: a list of {"metric": {...}, "value": [seconds, text]}."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def await_targets(self, *, seconds: float = START_SECONDS) -> None:
        """Return when every target was scraped; raise TimeoutError with the targets' errors if one stays down."""

        def up() -> bool:
            targets = self.get("targets")["activeTargets"]
            return bool(targets) and all(target["health"] == "up" for target in targets)

        try:
            wait_until(up, "every target up", seconds=seconds)
        except TimeoutError as late:
            targets = self.get("targets")["activeTargets"]
            said = [(target["scrapeUrl"], target["lastError"]) for target in targets]
            raise TimeoutError(f"{late}: {said}") from None


@contextmanager
def prometheus_server(
    folder: Path,
    scrape_targets: Sequence[str] = (),
    rules: Sequence[Path] = (),
    *,
    interval: str = "1s",
    alertmanagers: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `scrape_targets` ("HOST:PORT" each), evaluates `rules` and tells `alertmanagers`.

    Skips or fails the test if the program is missing.
    """
    program = require_binary("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    config = {  # YAML is a superset of JSON
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(rule.resolve()) for rule in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": [{"job_name": "lowmark", "static_configs": [{"targets": list(scrape_targets)}]}],
    }

    def start(attempt: int) -> Prometheus:
        here = folder / f"prometheus-{attempt}"
        here.mkdir()
        (here / "prometheus.yml").write_text(json.dumps(config, indent=1))
        [port] = free_ports(1)
        command = [
            str(program), f"--config.file={here / 'prometheus.yml'}", f"--storage.tsdb.path={here / 'data'}",
            f"--web.listen-address={LOCALHOST}:{port}", "--log.level=warn",
        ]  # fmt: skip
        server = Prometheus(f"http://{LOCALHOST}:{port}", Process("Prometheus", command, here / "prometheus.log"))
        server.process.start(server.ready)
        return server

    server = started(start)
    try:
        yield server
    finally:
        server.process.stop()
