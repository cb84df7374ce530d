"""An HTTP proxy in front of a server that can be slow, refuse requests, or be down."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers.local import LOCALHOST, free_ports


class Proxy:
    """A small HTTP proxy in front of a server, in threads of this process, that can be slow, refuse, or be down.

    Attributes:
        url: its address.
        latency_seconds: the delay before every answer.
        refuse: (status, code) of its own error answers; None: forward the requests.
        refuse_operation: refuse only requests of this operation, such as "GetRecords"; None: all.
        heard: called with the operation of each request.
    """

    def __init__(self, target: str) -> None:
        self._target = urllib.parse.urlsplit(target)
        [self.port] = free_ports(1)
        self.url = f"http://{LOCALHOST}:{self.port}"
        self.latency_seconds = 0.0
        self.refuse: tuple[int, str] | None = None
        self.refuse_operation: str | None = None
        self.refused = 0
        self.heard: Callable[[str], object] = lambda operation: None
        self._server: http.server.ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Start to listen; may be called again after `stop`."""
        self._server = http.server.ThreadingHTTPServer((LOCALHOST, self.port), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True).start()

    def stop(self) -> None:
        """Stop listening, so that connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, answer = proxy._answer(dict(self.headers), self.path, body)
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                """Log nothing, to keep pytest's output clean."""

        return Handler

    def _answer(self, headers: dict[str, str], path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        operation = headers.get("X-Amz-Target", "").rpartition(".")[2]
        self.heard(operation)
        if self.latency_seconds:
            threading.Event().wait(self.latency_seconds)
        if self.refuse is not None and self.refuse_operation in (None, operation):
            self.refused += 1
            status, code = self.refuse
            answer = json.dumps({"__type": code, "message": "the proxy says so"}).encode()
            return status, [("Content-Type", "application/x-amz-json-1.1")], answer
        connection = http.client.HTTPConnection(self._target.hostname or LOCALHOST, self._target.port, timeout=30)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            kept = [(name, value) for name, value in response.getheaders()
                    if name.lower() in {"content-type", "date", "x-amzn-requestid"}]  # fmt: skip
            return response.status, kept, response.read()
        finally:
            connection.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    """Yield a listening proxy in front of a server."""
    proxy = Proxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
