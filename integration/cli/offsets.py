"""`lowmark offsets`: where a query's checkpoint goes on, for Spark's own Kafka source."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from lowmark.integration.console import print_json

from .common import Debug, Json

__all__ = ["offsets"]


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
    debug: Debug = False,  # noqa: ARG001  # read by Commands
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
