"""`lowmark status` and `lowmark explain`: the state of streams, and the holders of their low watermarks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lowmark.integration.console import EscapingConsole, print_error, print_json, print_lines
from lowmark.watermark.printable import printable
from rich.text import Text

from .asking import ask, ask_coordinator
from .common import SHOWN, AtCoordinator, Connect, Debug, Json, Limit, Name, TlsCa, TlsCert, TlsKey, TokenFile
from .show_streams import stream_json, stream_table

if TYPE_CHECKING:
    from lowmark.integration.transport.driver_rpc import StatusReply
    from rich.console import RenderableType


def status(
    name: Name = None,
    *,
    connect: Connect = None,
    coordinator: AtCoordinator = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    limit: Limit = SHOWN,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")] = False,
    as_json: Json = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print the JSON Schema of --json, and exit.")
    ] = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Show where the streams of running services and coordinators stand: low watermark, holder, why, since when."""
    most = None if limit == 0 else limit
    if json_schema:
        from .schema import status_schema

        print_json(status_schema())
        return
    if watch:
        if as_json or coordinator is not None:
            raise typer.BadParameter("--watch shows services on a terminal; leave out --json and --coordinator")

        def shown(fitting: int) -> Iterator[RenderableType]:
            said: list[str] = []
            found, _ = ask(name, connect, token_file, fitting, tell=said.append)
            yield from (Text(printable(each), style="bold red") for each in said)
            yield from _parts(found)

        from .watch import watch as watch_it

        watch_it(shown, limit=most)
        return
    from lowmark.integration.coordinator.access import Caller

    from .show_coordinator import show_coordinator, status_json

    console = EscapingConsole()
    if coordinator is not None:
        caller = Caller(coordinator, tls_ca, token_file, tls_cert, tls_key)
        answer = ask_coordinator(caller, name, connect, most)
        if as_json:
            print_json(status_json(coordinator, answer))
        else:
            show_coordinator(coordinator, answer, console, now_us=time.time_ns() // 1_000)
        return
    silent: list[str] = []
    replies, coordinators = ask(name, connect, token_file, most, tell=partial(_tell, silent))
    if as_json:
        services = [
            {**_about(address, reply), "streams": [stream_json(stream) for stream in reply.streams]}
            for address, reply in replies
        ]
        known = {"services": services, "coordinators": [status_json(*each) for each in coordinators]}
        print_json({**known, **_error(silent)})
        return
    for part in _parts(replies):
        console.print(part, soft_wrap=isinstance(part, Text))  # an address is neither wrapped nor cut
    for address, answer in coordinators:
        show_coordinator(address, answer, console, now_us=time.time_ns() // 1_000)


def _about(address: str, reply: StatusReply) -> dict[str, Any]:
    return {"address": address, "application": reply.application, "pid": reply.pid}


def _tell(silent: list[str], line: str) -> None:
    """Say on stderr that a service or coordinator does not answer, and note it for the JSON."""
    print_error(line)
    silent.append(line)


def _error(silent: list[str]) -> dict[str, str]:
    """Say in JSON that a service or coordinator is missing in it."""
    return {"error": silent[0]} if silent else {}


def _parts(replies: list[tuple[str, StatusReply]]) -> Iterator[RenderableType]:
    """The services, each with its streams below."""
    now_us = time.time_ns() // 1_000
    for address, reply in replies:
        about = printable(f"{reply.application}, process {reply.pid}, {address}")
        yield Text(about, style="dim")
        if not reply.streams:
            yield "  no running query with a wrapped stream"
        for stream in reply.streams:
            yield stream_table(stream, now_us)


def explain(
    name: Name = None,
    *,
    connect: Connect = None,
    coordinator: AtCoordinator = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Say in words who holds the low watermark, why and since when, and how it would move."""
    if coordinator is not None:
        from lowmark.integration.coordinator.access import Caller

        from .show_coordinator import explanations

        caller = Caller(coordinator, tls_ca, token_file, tls_cert, tls_key)
        # Without a limit, because those that wait in a group are the last that need attention.
        said = explanations(ask_coordinator(caller, name, connect, None).coordinator, caller)
        if as_json:
            print_json({"coordinator": coordinator, **said})
        else:
            texts = [each["explanation"] for each in (*said["sources"], *said["groups"])]
            print_lines("\n\n".join(texts) if texts else "no task is registered")
        return
    silent: list[str] = []
    replies, coordinators = ask(name, connect, token_file, SHOWN, tell=partial(_tell, silent))
    if as_json:
        told = [
            {**_about(address, reply), "query": stream["query"], "stream": stream["name"], "explanation": text}
            for address, reply in replies
            for stream, text in zip(reply.streams, reply.explanations, strict=True)
        ]
        print_json({"streams": told, **_error(silent)})
        return
    texts = [text for _, reply in replies for text in reply.explanations]
    more = [f"; `lowmark explain --coordinator {shlex.quote(at)}` tells of the queries there" for at, _ in coordinators]
    print_lines("\n\n".join(texts or [f"no running query with a wrapped stream{''.join(more)}"]))
