"""The command line: `lowmark demo | status | explain | serve | offsets`.

Every command has `--json`: exactly one JSON object on stdout and nothing else; if it fails, what went wrong is its
"error". What is meant for eyes only (progress, errors) goes to stderr. An error of lowmark is one line without a
traceback; `--debug` shows all of it. Options that do not fit are told on stderr alone, whatever they say of JSON.

    exit code   0  all is well
                1  nothing to show: no service runs, or none has a stream of that name; the demo lost a row
                2  it could not be done: wrong options, no Java, no broker, no such checkpoint
              130  interrupted: Ctrl-C, SIGINT
              143  the demo or the coordinator was terminated: SIGTERM

While the demo is kept (`--keep`) everything is shown already: there a signal ends the waiting and changes no exit code.

What a command needs is imported when it runs: `lowmark --help` starts no Spark.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from lowmark.integration.console import EscapingConsole, print_error, print_json, print_lines, show_traceback
from lowmark.integration.errors import CoordinatorUnreachable, NoService, ServiceUnreachable, UnknownStream
from lowmark.watermark import LowmarkError
from typer.core import TyperGroup

if TYPE_CHECKING:
    from lowmark.integration.coordinator.messages import StatusAnswer
    from lowmark.integration.demo.comparison import DemoResult
    from lowmark.integration.transport.driver_rpc import StatusReply
from .show_streams import only_stream, stream_json, stream_table

__all__ = ["app", "main"]

_NOTHING, _FAILED, _INTERRUPTED, _TERMINATED = 1, 2, 130, 143
_DEBUG, _JSON = "lowmark.debug", "lowmark.json"
_NONE_RUNS: dict[str | None, dict[str, list[object]]] = {  # by command: what its JSON has where no service runs
    "status": {"services": [], "coordinators": []},
    "explain": {"streams": []},
}
_SHOWN = 50  # splits of a stream, tasks of a source
_NO_SERVICE = ("UNIMPLEMENTED", "UNAUTHENTICATED")  # what a coordinator says to the question for a service
_EXIT_CODES = (
    "Exit codes: 0 all is well, 1 nothing to show (or the demo lost a row), 2 it could not be done, 130 interrupted, "
    "143 terminated."
)


class _Terminated(KeyboardInterrupt):
    """SIGTERM. A KeyboardInterrupt, because after that alone py4j can still be used to stop Spark."""


class _Commands(TyperGroup):
    """Turns lowmark's errors into one line, whoever called the command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LowmarkError as failed:
            if ctx.meta.get(_DEBUG):
                raise
            if ctx.meta.get(_JSON):
                empty = _NONE_RUNS.get(ctx.invoked_subcommand, {}) if isinstance(failed, NoService) else {}
                print_json({**empty, "error": str(failed)})
            print_error(str(failed))
            raise typer.Exit(_NOTHING if isinstance(failed, NoService | UnknownStream) else _FAILED) from failed
        except KeyboardInterrupt as stopped:
            raise typer.Exit(_TERMINATED if isinstance(stopped, _Terminated) else _INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Low watermarks for Spark Structured Streaming: event time per split, so that a slow split loses nothing.",
    epilog=_EXIT_CODES,
)


def _remember_debug(ctx: typer.Context, value: bool) -> bool:  # noqa: FBT001  # typer's signature
    ctx.meta[_DEBUG] = value
    return value


def _remember_json(ctx: typer.Context, value: bool) -> bool:  # noqa: FBT001  # typer's signature
    ctx.meta[_JSON] = value
    return value


def _show_version(value: bool) -> None:  # noqa: FBT001  # typer's signature
    if value:
        print_lines(f"lowmark {importlib.metadata.version('lowmark')}")
        raise typer.Exit


Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead of text.", is_eager=True, callback=_remember_json),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks and Spark's log.", is_eager=True, callback=_remember_debug)
]
Name = Annotated[str | None, typer.Argument(help="A stream's name; without it, all streams.", show_default=False)]
Connect = Annotated[
    str | None,
    typer.Option(help="Address of the service, unix:/...; without it, all services of this user.", show_default=False),
]


AtCoordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator", help="Ask a coordinator instead: its address, unix:/... or HOST:PORT.", show_default=False
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="PEM file with the coordinator's certificate (with HOST:PORT).", show_default=False),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the coordinator's token (with HOST:PORT).", show_default=False)
]


Limit = Annotated[
    int,
    typer.Option(
        help="Show so many splits of a stream, or tasks at a coordinator, those that need attention first; 0: all.",
        min=0,
    ),
]


class SourceKind(str, Enum):
    """Where the demo's rows come from."""

    GENERATOR = "generator"
    KAFKA = "kafka"


@app.callback()
def _lowmark(
    *,
    version: Annotated[  # its callback does it
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Hold the commands together: with one command alone, typer would leave its name out."""


@app.command(epilog=_EXIT_CODES, short_help="Compare native Spark and lowmark on the same rows.")
def demo(
    *,
    seed: Annotated[int, typer.Option(help="Chooses the rows, and who is behind, silent or stray.")] = 42,
    source: Annotated[
        SourceKind, typer.Option(help="Make the rows in Spark itself, or read them from Kafka.")
    ] = SourceKind.GENERATOR,
    bootstrap: Annotated[
        str | None, typer.Option(help="A Kafka broker, HOST:PORT (with --source kafka).", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="A topic to create, fill and keep; without it, a new one that is deleted again.", show_default=False
        ),
    ] = None,
    jars: Annotated[
        str | None,
        typer.Option(
            help="Jars of Spark's Kafka connector, separated by commas; without it, Spark fetches them.",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Serve Prometheus metrics on 127.0.0.1 while it runs; 0 for any free port. The address is on stderr.",
            min=0,
            max=65_535,
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        float,
        typer.Option(
            help="Keep queries and service running for so many seconds afterwards; Ctrl-C or SIGTERM ends that.",
            min=0,
        ),
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the same rows through native Spark and through lowmark, and compare.

    Eight splits: one is ten minutes behind, one falls silent, one has a row dated a year ahead. No server is needed.
    """
    from lowmark.integration.demo.comparison import demo_script, run_demo, yesterday_noon_us
    from lowmark.integration.demo.view import DemoBars, show
    from lowmark.integration.spark.session import local_session

    feed_of, settings = _feed(source, bootstrap=bootstrap, topic=topic, jars=jars)
    script = demo_script(seed, start_us=yesterday_noon_us(dt.datetime.now(dt.timezone.utc)))
    errors = EscapingConsole(stderr=True)
    bars = DemoBars(errors)

    def announce(port: int) -> None:
        # Through the console of the bars: it goes above them.
        errors.print(f"lowmark: metrics at http://127.0.0.1:{port}/metrics", highlight=False, soft_wrap=True)

    def tell(result: DemoResult) -> None:
        bars.stop()
        if as_json:
            print_json(result.to_json())
        else:
            show(result, EscapingConsole())
        sys.stdout.flush()
        if keep:
            _keep(keep)

    with (
        _on([signal.SIGTERM], _unwind),
        bars,
        feed_of(script, seed) as feed,
        local_session("lowmark demo", settings=settings, quiet=not debug) as (spark, folder),
        _on([signal.SIGINT], _unwind),  # Spark's own calls the JVM from within a call to it, which fails
    ):
        result = run_demo(
            spark, folder, feed, watch=bars.watch, metrics_port=metrics_port, serving=announce, linger=tell
        )
    if result.to_json()["lowmark"]["rows_dropped"]:
        raise typer.Exit(_NOTHING)


@contextmanager
def _on(signals: Sequence[signal.Signals], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle these signals so for a while."""
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, handled in before.items():
            signal.signal(each, handled)


def _unwind(number: int, _frame: object) -> NoReturn:
    """End in good order: the topic, the folder and Spark's JVM are not left behind."""
    # A filter of the root logger sees only what is logged there directly: py4j's traceback of an interrupted call.
    logging.getLogger().addFilter(lambda record: "KeyboardInterrupt while sending command" not in record.getMessage())
    raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _keep(seconds: float) -> None:
    """Wait until the time is over, or Ctrl-C or SIGTERM comes."""
    told: list[int] = []
    with _on([signal.SIGINT, signal.SIGTERM], lambda number, _frame: told.append(number)):
        # Only now: who reads this may send the signal at once.
        print_error(f"running for {seconds:g} more seconds, Ctrl-C ends it; try `lowmark status` in another terminal")
        deadline = time.monotonic() + seconds
        while not told and time.monotonic() < deadline:
            time.sleep(0.1)


def _feed(
    source: SourceKind, *, bootstrap: str | None, topic: str | None, jars: str | None
) -> tuple[Any, dict[str, str]]:
    """What makes the feed, a context manager, and the settings its source needs; raises for options that do not fit."""
    if source is SourceKind.KAFKA:
        from functools import partial

        from lowmark.integration.demo.kafka_feed import KafkaFeed, connector

        if bootstrap is None:
            raise typer.BadParameter("--source kafka needs --bootstrap HOST:PORT")
        return partial(KafkaFeed, bootstrap=bootstrap, topic=topic), {"spark.jars": jars} if jars else {
            "spark.jars.packages": connector()
        }
    for option, value in (("--bootstrap", bootstrap), ("--topic", topic), ("--jars", jars)):
        if value is not None:
            raise typer.BadParameter(f"{option} is for --source kafka")
    from contextlib import nullcontext

    from lowmark.integration.demo.comparison import GeneratorFeed

    return lambda script, seed: nullcontext(GeneratorFeed(script, seed)), {}


@app.command(epilog=_EXIT_CODES, short_help="Show where running streams stand.")
def status(
    name: Name = None,
    *,
    connect: Connect = None,
    coordinator: AtCoordinator = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    limit: Limit = _SHOWN,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by _Commands
) -> None:
    """Show where the streams of running services and coordinators stand: low watermark, holder, why, since when."""
    most = None if limit == 0 else limit
    if coordinator is not None:
        from .show_coordinator import show_coordinator, status_json

        answer = _ask_coordinator(coordinator, name, connect, tls_ca, token_file, most)
        if as_json:
            print_json(status_json(coordinator, answer))
        else:
            show_coordinator(coordinator, answer, EscapingConsole(), now_us=time.time_ns() // 1_000)
        return
    replies, coordinators = _ask(name, connect, token_file, most)
    if as_json:
        from .show_coordinator import status_json

        print_json(
            {
                "services": [
                    {
                        "address": a,
                        "application": r.application,
                        "pid": r.pid,
                        "streams": [stream_json(stream, most) for stream in r.streams],
                    }
                    for a, r in replies
                ],
                "coordinators": [status_json(a, answer) for a, answer in coordinators],
            }
        )
        return
    console, now_us = EscapingConsole(), time.time_ns() // 1_000
    for address, reply in replies:
        console.print(
            f"{reply.application}, process {reply.pid}, {address}", style="dim", highlight=False, soft_wrap=True
        )
        if not reply.streams:
            console.print("  no running query with a wrapped stream")
        for stream in reply.streams:
            console.print(stream_table(stream, now_us, most))
    if coordinators:
        from .show_coordinator import show_coordinator

        for address, answer in coordinators:
            show_coordinator(address, answer, console, now_us=now_us)


@app.command(epilog=_EXIT_CODES, short_help="Say in words who holds the low watermark.")
def explain(
    name: Name = None,
    *,
    connect: Connect = None,
    coordinator: AtCoordinator = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by _Commands
) -> None:
    """Say in words who holds the low watermark, why, since when, and what would move it."""
    if coordinator is not None:
        from .show_coordinator import explanations

        said = explanations(_ask_coordinator(coordinator, name, connect, tls_ca, token_file, _SHOWN).coordinator)
        if as_json:
            print_json({"coordinator": coordinator, **said})
        else:
            texts = [each["explanation"] for each in (*said["sources"], *said["groups"])]
            print_lines("\n\n".join(texts) if texts else "no task is registered")
        return
    replies, _ = _ask(name, connect, limit=_SHOWN)
    if as_json:
        told = [
            {
                "address": a,
                "application": r.application,
                "pid": r.pid,
                "query": s["query"],
                "stream": s["name"],
                "explanation": text,
            }
            for a, r in replies
            for s, text in zip(r.streams, r.explanations, strict=True)
        ]
        print_json({"streams": told})
        return
    texts = [text for _, reply in replies for text in reply.explanations]
    print_lines("\n\n".join(texts) if texts else "no running query with a wrapped stream")


@app.command(epilog=_EXIT_CODES, short_help="Run a coordinator that several applications share.")
def serve(
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where to listen: unix:/path, or HOST:PORT with TLS and a token; without it, a socket of this user.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate (with HOST:PORT).", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM file with its private key (with HOST:PORT).", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token every call must carry; only its owner may read it (with HOST:PORT).",
            show_default=False,
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="File that keeps the state over a restart; without it, one in $XDG_STATE_HOME/lowmark.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[str, typer.Option(help="How often tasks are asked, and low watermarks may rise.")] = "1 second",
    lease: Annotated[str, typer.Option(help="How long a task may be silent before it is given up.")] = "30 seconds",
    quorum: Annotated[
        float, typer.Option(help="The share of tasks that must have answered for a round to end.", min=0, max=1)
    ] = 1.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a coordinator that several applications share, until Ctrl-C or SIGTERM.

    Applications come with LowWatermarkService(..., coordinator=ADDRESS). One that restarts goes on from its journal.
    """
    from lowmark.integration.coordinator.access import Door, default_address
    from lowmark.integration.coordinator.serving import run_coordinator

    if not 0 < quorum <= 1:
        raise typer.BadParameter(f"--quorum: expected more than 0 and at most 1, got {quorum:g}")
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, format="lowmark: %(message)s", stream=sys.stderr
    )

    def ready(at: str, kept: Path) -> None:
        if as_json:
            print_json({"address": at, "journal": str(kept), "pid": os.getpid()}, indent=None)
        else:
            print_lines(f"lowmark: a coordinator listens at {at}, its journal is {kept}")
        sys.stdout.flush()

    ended_by = run_coordinator(
        Door(default_address() if address is None else address, tls_cert, tls_key, token_file),
        journal=journal,
        interval_us=_span_us(interval, "--interval"),
        lease_us=_lease_us(lease),
        quorum=quorum,
        ready=ready,
    )
    raise typer.Exit(_TERMINATED if ended_by == signal.SIGTERM else _INTERRUPTED)


def _span_us(text: str, option: str) -> int:
    """A duration of more than 0, microseconds."""
    from lowmark.watermark import duration_us

    us = duration_us(text, what=option)
    if us <= 0:
        raise typer.BadParameter(f"{option}: expected more than 0, got {text}")
    return us


def _lease_us(text: str) -> int:
    """As ``_span_us``, and no longer than a coordinator takes."""
    from lowmark.watermark import MOST_LEASE_US, format_duration_us

    us = _span_us(text, "--lease")
    if us > MOST_LEASE_US:
        raise typer.BadParameter(f"--lease: expected at most {format_duration_us(MOST_LEASE_US)}, got {text}")
    return us


@app.command(epilog=_EXIT_CODES, short_help="Print startingOffsets that continue from a checkpoint.")
def offsets(
    checkpoint: Annotated[
        str, typer.Argument(help="A query's checkpointLocation, on this machine.", show_default=False)
    ],
    *,
    planned: Annotated[
        bool,
        typer.Option("--planned", help="Continue behind the last planned batch instead of the last committed one."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by _Commands
) -> None:
    """Print the Kafka startingOffsets that continue where a checkpoint's query stopped.

    Spark does not let a checkpoint gain a source, and a wrapped stream has one more: its heartbeat. So a query that
    is to be wrapped starts with a new checkpoint, at these offsets.
    """
    from lowmark.integration.spark.checkpoint import kafka_starting_offsets

    found = kafka_starting_offsets(checkpoint, committed=not planned)
    if as_json:
        print_json(found, indent=None)
        return
    which = "planned" if planned else "committed"
    typer.echo(json.dumps(found, indent=2))
    typer.echo(
        f"\nThe records that follow the last {which} batch. Stop the old query, then start the wrapped one with a new\n"
        "checkpointLocation and\n"
        f"    .option(\"startingOffsets\", '{json.dumps(found)}')\n"
        "What the old query kept in state (open windows, seen keys) is not carried over.",
        err=True,
    )


def main() -> None:
    """The entry point `lowmark`."""
    sys.excepthook = show_traceback
    app(prog_name="lowmark")


# -- status -------------------------------------------------------------------------------------------------------


def _ask(
    name: str | None, connect: str | None, token_file: Path | None = None, limit: int | None = None
) -> tuple[list[tuple[str, StatusReply]], list[tuple[str, StatusAnswer]]]:
    """Ask one service, or all services and coordinators of this user; only who has the stream, where one is named.

    Raises:
        NoService: none runs.
        UnknownStream: none has a stream of that name.
        ServiceUnreachable: nobody answers at the address given.
    """
    from lowmark.integration.coordinator.client import ask_status
    from lowmark.integration.process import sockets
    from lowmark.integration.transport.driver_rpc import Client, StatusRequest

    from .show_coordinator import only

    services, coordinators = [], []
    for address in [connect] if connect is not None else sockets.find_addresses():
        client = Client(address)
        try:
            services.append((address, client.status(StatusRequest(limit=limit))))
        except ServiceUnreachable as other:
            if connect is not None:
                raise
            if not other.cause.startswith(_NO_SERVICE):
                continue  # found by ourselves: it has ended since, or is ending
            try:
                coordinators.append((address, ask_status(address, token_file=token_file, limit=limit)))
            except CoordinatorUnreachable as refused:
                print_error(str(refused))
        finally:
            client.close()
    if not services and not coordinators:
        raise NoService(tuple(map(str, sockets.folders())))
    if name is None:
        return services, coordinators
    known = {str(stream["name"]) for _, reply in services for stream in reply.streams}
    shared = {source.source_id for _, answer in coordinators for source in answer.coordinator.sources}
    if name not in known | shared:
        raise UnknownStream(name, tuple(sorted(known | shared)))
    return (
        [(a, only_stream(name, r)) for a, r in services if any(s["name"] == name for s in r.streams)],
        [(a, only(name, r)) for a, r in coordinators if any(s.source_id == name for s in r.coordinator.sources)],
    )


def _ask_coordinator(
    address: str,
    name: str | None,
    connect: str | None,
    tls_ca: Path | None,
    token_file: Path | None,
    limit: int | None,
) -> StatusAnswer:
    """Ask a coordinator; only the sources of that name, where one is named.

    Raises:
        CoordinatorUnreachable: nobody answers, or the caller is not let in.
        UnknownStream: it has no source of that name.
    """
    from lowmark.integration.coordinator.client import ask_status

    from .show_coordinator import only

    if connect is not None:
        raise typer.BadParameter("--connect asks a service and --coordinator a coordinator; pass one of them")
    answer = ask_status(address, tls_ca=tls_ca, token_file=token_file, limit=limit)
    return answer if name is None else only(name, answer)
