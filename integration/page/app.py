"""HTTP of the page, read-only: its files, and the state that it asks for every second.

As with the metrics, everyone who can open 127.0.0.1 on this machine may look. The server protects the page from other
pages in the same browser, see `http_server.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from lowmark.integration.errors import PageUnavailable
from lowmark.integration.process.http_server import HttpServer, cause, check_port

from .look import Look
from .picture import Picture

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_HOST = "127.0.0.1"
_METHODS = ("GET", "HEAD")
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MOST_PARAMETER = 400  # characters


class PageServer(HttpServer):
    """Serves the page on 127.0.0.1; `address` is for a browser. Raises PageUnavailable, ServiceRefused."""

    def __init__(self, look: Look, *, port: int = 0) -> None:
        check_port("page_port", port)
        page = application(Picture(look, lambda: time.time_ns() // 1_000))
        try:
            super().__init__(page, host=_HOST, port=port, name="lowmark-page")
        except OSError as failed:
            raise PageUnavailable(port, cause(failed)) from failed
        self.address = f"http://{_HOST}:{self.port}/"


@dataclass(frozen=True)
class _Response:
    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def application(picture: Picture) -> WSGIApplication:
    """The page as a WSGI application: `/` and its files, and `/state`, which the page asks every second."""
    static = resources.files("lowmark.integration.page") / "static"  # a driver may have lowmark from a zip file
    files = {f"/{file.name}": _file(Path(file.name).suffix, file.read_bytes()) for file in static.iterdir()}
    files["/"] = files["/index.html"]

    def respond(environ: WSGIEnvironment) -> _Response:
        if environ["REQUEST_METHOD"] not in _METHODS:
            allowed = ("Allow", ", ".join(_METHODS))
            return _Response(HTTPStatus.METHOD_NOT_ALLOWED, b"lowmark: this page is to read\n", headers=(allowed,))
        path = environ["PATH_INFO"]
        if path == "/state":
            packed = "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "")
            return _state(picture, environ.get("QUERY_STRING", ""), packed=packed)
        if path not in files:
            return _Response(HTTPStatus.NOT_FOUND, b"lowmark: there is no such file\n")
        found = files[path]
        # The browser may have the current version already.
        same = ("ETag", environ.get("HTTP_IF_NONE_MATCH", "")) in found.headers
        return _Response(HTTPStatus.NOT_MODIFIED, found.body, found.kind, found.headers) if same else found

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        response = respond(environ)
        length = str(len(response.body))
        headers = [("Content-Type", response.kind), ("Content-Length", length), *response.headers]
        start_response(f"{response.status:d} {response.status.phrase}", headers)
        bare = environ["REQUEST_METHOD"] == "HEAD" or response.status is HTTPStatus.NOT_MODIFIED
        return [] if bare else [response.body]

    return page


def _state(picture: Picture, query: str, *, packed: bool) -> _Response:
    refused = _Response(HTTPStatus.BAD_REQUEST, b"lowmark: since and run are what /state itself gave\n")
    try:
        asked = dict(parse_qsl(query, max_num_fields=2))
    except ValueError:  # too many fields
        return refused
    version, run = asked.get("since"), asked.get("run")
    if max(len(version or ""), len(run or "")) > _MOST_PARAMETER:
        return refused
    text = json.dumps(picture.since(version, run), separators=(",", ":"))  # ASCII: a name may be invalid Unicode
    body = text.encode()
    headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)
    if packed:  # many times smaller, because the summaries of all queries are alike
        body, headers = gzip.compress(body, compresslevel=1), (*headers, ("Content-Encoding", "gzip"))
    return _Response(HTTPStatus.OK, body, "application/json", headers)


def _file(suffix: str, body: bytes) -> _Response:
    return _Response(HTTPStatus.OK, body, _KINDS[suffix], (("ETag", f'"{hashlib.sha256(body).hexdigest()[:16]}"'),))
