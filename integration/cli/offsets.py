"""`lowmark offsets`: the offsets at which a query's checkpoint continues, as Spark's own Kafka source takes them."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.watermark import duration_us

from .common import Debug, Json


def offsets(
    checkpoint: Annotated[str, typer.Argument(help="A query's checkpointLocation, on this machine.")],
    *,
    planned: Annotated[
        bool,
        typer.Option("--planned", help="Continue behind the last planned batch instead of the last committed one."),
    ] = False,
    window: Annotated[
        str | None,
        typer.Option(
            help='The width of the query\'s windows, as "10 minutes": reach back to the oldest that is still open.'
        ),
    ] = None,
    delay: Annotated[str | None, typer.Option(help="The delay of its withWatermark, needed with --window.")] = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Print the Kafka startingOffsets that continue where a checkpoint's query stopped.

    For a new query beside an old one; `lowmark adopt` takes a whole checkpoint over instead. The new query starts
    without the old query's state: with --window and --delay it reads the rows of open windows again, and the printed
    filter leaves out the windows that the old query has emitted.
    """
    if window is not None or delay is not None:
        if planned:
            raise typer.BadParameter("--planned does not go with --window: committed batches emit windows.")
        _beside(checkpoint, window, delay, as_json=as_json)
        return
    from lowmark.integration.spark.checkpoint import kafka_starting_offsets

    found = kafka_starting_offsets(checkpoint, committed=not planned)
    if as_json:
        print_json(found, indent=None)
        return
    which = "planned" if planned else "committed"
    print_lines(json.dumps(found))
    typer.echo(
        f"\nThe records that follow the last {which} batch. Stop the old query, then start the new one with a new\n"
        "checkpointLocation and\n"
        f"    .option(\"startingOffsets\", '{json.dumps(found)}')\n"
        "What the old query kept in state (open windows, seen keys) is not carried over. Where Spark's own source\n"
        "read, --window and --delay reach back to the oldest window that is open, and `lowmark adopt` takes the\n"
        "checkpoint over with all its state.",
        err=True,
    )


def _beside(checkpoint: str, window: str | None, delay: str | None, *, as_json: bool) -> None:
    from lowmark.integration.spark.beside import reach_back

    if window is None or delay is None:
        missing = "--window" if window is None else "--delay"
        raise CheckpointUnreadable(
            checkpoint,
            f"{missing} is missing",
            'pass both, as the query has them: --window "10 minutes" --delay "10 seconds".',
        )
    window_us, delay_us = duration_us(window, what="--window"), duration_us(delay, what="--delay")
    if window_us == 0:
        raise typer.BadParameter("--window is the width of the query's windows, and it is more than 0.")
    found = reach_back(checkpoint, window_us=window_us, delay_us=delay_us)
    if as_json:
        print_json(
            {
                "startingOffsets": found.starting,
                "filter": found.filter,
                "watermark": found.watermark,
                "read_again": found.read_again,
            },
            indent=None,
        )
        return
    print_lines(json.dumps(found.starting))
    told = (
        "The old query has not emitted a window yet."
        if found.watermark is None
        else f"The old query has already emitted every window that ends at {found.watermark} or before. Leave those "
        "out:\n"
        f'    .filter("{found.filter}")      on the windows, after the aggregation'
    )
    typer.echo(
        f"\nFrom these offsets on, {found.read_again:,} of the old query's records are read again: those of windows\n"
        "that are open, and what lies between. Stop the old query, then start the wrapped one with a new\n"
        "checkpointLocation and\n"
        f"    .option(\"startingOffsets\", '{json.dumps(found.starting)}')\n{told}",
        err=True,
    )
