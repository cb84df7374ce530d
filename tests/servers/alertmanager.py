"""A real Alertmanager, and a receiver of its notifications."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.local import LOCALHOST, Process, free_ports, http_get, require_binary

Notice = dict[str, Any]


@dataclass
class Receiver:
    """A stand-in for a pager: keeps alerts by name and status, in order of arrival."""

    port: int
    notices: list[Notice] = field(default_factory=list)

    def of(self, name: str, status: str) -> list[Notice]:
        """The alerts of one name, "firing" or "resolved"."""
        return [each for each in self.notices if (each["labels"]["alertname"], each["status"]) == (name, status)]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A webhook on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.notices.extend(body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
    received = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def alertmanager(folder: Path, tells: Receiver) -> Iterator[str]:
    """Yield the address (HOST:PORT) of a running Alertmanager that notifies the receiver at once."""
    program = require_binary("prometheus-alertmanager")
    folder.mkdir(parents=True, exist_ok=True)
    config = {  # YAML is a superset of JSON
        "route": {"receiver": "test", "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": f"http://{LOCALHOST}:{tells.port}/"}]}],
    }
    file = folder / "alertmanager.yml"
    file.write_text(json.dumps(config))
    [port] = free_ports(1)
    command = [
        str(program), f"--config.file={file}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address={LOCALHOST}:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    process = Process("Alertmanager", command, folder / "alertmanager.log")
    process.start(lambda: http_get(f"http://{LOCALHOST}:{port}/-/ready")[0] == 200)
    try:
        yield f"{LOCALHOST}:{port}"
    finally:
        process.stop()
