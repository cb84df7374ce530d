"""Common parts of the commands: exit codes, the handling of errors and signals, and options."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import typer
from lowmark.integration.console import print_error, print_json
from lowmark.integration.errors import NoService, UnknownStream
from lowmark.integration.process.signals import on_signals
from lowmark.watermark import LowmarkError
from typer.core import TyperGroup

NOTHING, FAILED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
EXIT_CODES = (
    "Exit codes: 0 all is well, 1 nothing to show (or the demo lost a row), 2 it could not be done, 130 interrupted, "
    "143 terminated."
)

_TURN_SECONDS = 0.5
SHOWN = 50  # splits of a stream, or tasks of a source
_NONE_RUNS: dict[str | None, dict[str, list[object]]] = {  # by command: its JSON when no service runs
    "status": {"services": [], "coordinators": []},
    "explain": {"streams": []},
}


class Terminated(KeyboardInterrupt):
    """SIGTERM. A KeyboardInterrupt, because only after that py4j can still stop Spark."""


@contextmanager
def until_ended() -> Iterator[Callable[[float | None], bool]]:
    """Let Ctrl-C or SIGTERM end a wait in the block, and end the command behind the block with its exit code.

    The block gets a function that waits so many seconds, None: without limit, and returns whether a signal came.
    A handler that raised would do so anywhere, and an exception inside gRPC or a destructor can get lost. A
    threading.Event would wait for its own lock for ever if its handler ran inside its wait; a SimpleQueue may be put
    to at any time. The wait goes in turns, because a signal that comes just before a turn does not interrupt it, and
    its handler runs only behind the turn.
    """
    told: SimpleQueue[int] = SimpleQueue()
    came: list[int] = []

    def ended(seconds: float | None) -> bool:
        ends = math.inf if seconds is None else time.monotonic() + seconds
        while not came:
            left = ends - time.monotonic()
            with suppress(Empty):
                came.append(told.get(timeout=max(0.0, min(left, _TURN_SECONDS))))
            if left <= _TURN_SECONDS:
                break
        return bool(came)

    with on_signals([signal.SIGINT, signal.SIGTERM], lambda number, _frame: told.put(number)):
        yield ended
    raise Terminated if came[:1] == [signal.SIGTERM] else KeyboardInterrupt


class Commands(TyperGroup):
    """Turns lowmark's errors into one line for every command; lists groups before commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: not isinstance(self.commands[name], TyperGroup))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LowmarkError as failed:
            if ctx.meta.get("lowmark.debug"):
                raise
            if ctx.meta.get("lowmark.as_json"):
                empty = _NONE_RUNS.get(ctx.invoked_subcommand, {}) if isinstance(failed, NoService) else {}
                print_json({**empty, "error": str(failed)})
            print_error(str(failed))
            raise typer.Exit(NOTHING if isinstance(failed, NoService | UnknownStream) else FAILED) from failed
        except KeyboardInterrupt as stopped:
            raise typer.Exit(TERMINATED if isinstance(stopped, Terminated) else INTERRUPTED) from None


def _remember(ctx: typer.Context, option: typer.CallbackParam, value: bool) -> bool:  # noqa: FBT001  # typer's signature
    ctx.meta[f"lowmark.{option.name}"] = value
    return value


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text.", is_eager=True, callback=_remember)
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks and Spark's log.", is_eager=True, callback=_remember)
]


def _of_a_service(address: str | None) -> str | None:
    if address is not None and not address.startswith("unix:"):  # gRPC would look for a host; "": an unset variable
        fact = f"{address} does not begin with unix:" if address else "it is empty"
        raise typer.BadParameter(f"{fact}; name an address unix:/..., or leave it out for all services of yours")
    return address


Name = Annotated[str | None, typer.Argument(help="A stream's name; without it, all streams.")]
Connect = Annotated[
    str | None,
    typer.Option(
        help="Address of the service, unix:/...; without it, all services of this user.", callback=_of_a_service
    ),
]
AtCoordinator = Annotated[
    str | None, typer.Option("--coordinator", help="Ask a coordinator instead: its address, unix:/... or HOST:PORT.")
]
TlsCa = Annotated[Path | None, typer.Option(help="PEM file with the coordinator's certificate (with HOST:PORT).")]
TlsCert = Annotated[
    Path | None, typer.Option(help="PEM file with your own certificate (for a coordinator with --tls-client-ca).")
]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file with its private key.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with the coordinator's token (with HOST:PORT).")]
Limit = Annotated[
    int,
    typer.Option(
        help="Show so many splits of a stream, or tasks at a coordinator, those that need attention first; 0: all.",
        min=0,
        max=sys.maxsize,
    ),
]
