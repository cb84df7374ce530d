"""`lowmark serve`: a coordinator that several applications share."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.watermark import duration_us, format_duration_us

from .common import INTERRUPTED, TERMINATED, Debug, Json


def serve(
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where to listen: unix:/path, or HOST:PORT with TLS and a token; without it, a socket of this user."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file with the certificate (with HOST:PORT).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with its private key (with HOST:PORT).")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token every call must carry; only its owner may read it (with HOST:PORT)."),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of an authority; only callers with a certificate of it get in (mutual TLS)."),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="File that keeps the state over a restart; without it, one in $XDG_STATE_HOME/lowmark."),
    ] = None,
    interval: Annotated[str, typer.Option(help="How often tasks are asked, and low watermarks may rise.")] = "1 second",
    lease: Annotated[str, typer.Option(help="How long a task may be silent before it is given up.")] = "30 seconds",
    quorum: Annotated[
        float,
        typer.Option(help="The share of tasks, more than 0, that must have answered for a round to end.", min=0, max=1),
    ] = 1.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a coordinator that several applications share, until Ctrl-C or SIGTERM.

    Applications join with LowWatermarkService(..., coordinator=ADDRESS). A restarted coordinator continues from its
    journal.
    """
    # gRPC logs each refused connection, so strangers could fill the log. It reads this variable on import.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from lowmark.integration.coordinator.access import Door, default_address
    from lowmark.integration.coordinator.serving import run_coordinator
    from lowmark.watermark.tasks.coordinator import MOST_LEASE_US, Settings

    lease_us = _span_us(lease, "--lease")
    if lease_us > MOST_LEASE_US:
        raise typer.BadParameter(f"--lease: expected at most {format_duration_us(MOST_LEASE_US)}, got {lease}")
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
        Door(default_address() if address is None else address, tls_cert, tls_key, token_file, tls_client_ca),
        Settings(_span_us(interval, "--interval"), lease_us, quorum),
        journal=journal,
        ready=ready,
    )
    raise typer.Exit(TERMINATED if ended_by == signal.SIGTERM else INTERRUPTED)


def _span_us(text: str, option: str) -> int:
    us = duration_us(text, what=option)
    if us <= 0:
        raise typer.BadParameter(f"{option}: expected more than 0, got {text}")
    return us
