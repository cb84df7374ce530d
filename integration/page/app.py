"""The page's HTTP: three kinds of answers, all of them to read.

Everyone who can open 127.0.0.1 on this machine may look, as with the metrics. What a page of somebody else in the same
browser could try is answered here: a name that was bound anew to 127.0.0.1 is not the Host we serve, no answer may be
framed or embedded elsewhere, no script but ours runs, and nothing can be changed because there is nothing to change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .picture import Picture

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["application"]

_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_METHODS = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_RUN_MOST = 400  # characters of a query parameter


def application(picture: Picture) -> ASGIApp:
    """The page as an ASGI application: `/` and its files, and `/state`, which the page asks every second."""

    def state(request: Request) -> Response:  # not a coroutine: it waits for services, on a thread of its own
        version, run = request.query_params.get("since"), request.query_params.get("run")
        if max(len(version or ""), len(run or "")) > _RUN_MOST:
            return PlainTextResponse("lowmark: since and run are what /state itself gave\n", 400)
        body = json.dumps(picture.since(version, run), separators=(",", ":"))  # in ASCII: a name may be no Unicode
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    files = StaticFiles(directory=Path(__file__).parent / "static", html=True)
    return _Guard(Starlette(routes=[Route("/state", state, methods=["GET"]), Mount("/", files)]))


class _Guard:
    """Refuses what is not for us, and puts the headers on every answer, errors too."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name not in _OWN]
                message = {**message, "headers": [*headers, *_OWN.items()]}
                if not any(name == b"cache-control" for name, _ in headers):
                    message["headers"].append((b"cache-control", b"no-cache"))
            await send(message)

        refusal = _refusal(scope)
        await (self._inner if refusal is None else refusal)(scope, receive, with_headers)


_OWN = {name.encode(): value.encode() for name, value in _HEADERS.items()}


def _refusal(scope: Scope) -> Response | None:
    hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or _without_port(hosts[0]) not in _HOSTS:
        return PlainTextResponse(
            "lowmark: this page is served to this machine alone, under the names 127.0.0.1 and localhost. "
            "Hint: from elsewhere, forward the port: ssh -L PORT:127.0.0.1:PORT this-machine\n",
            421,
        )
    if scope["method"] not in _METHODS:
        return PlainTextResponse("lowmark: this page is to read\n", 405, headers={"allow": ", ".join(_METHODS)})
    return None


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host
