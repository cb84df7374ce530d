"""`lowmark adopt` and `lowmark leave`: take a stopped query's checkpoint over in place, and give it back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.integration.errors import AdoptionRefused

from .common import Debug, Json

if TYPE_CHECKING:
    from lowmark.integration.spark.adoption import Adoption

Checkpoint = Annotated[str, typer.Argument(help="The stopped query's checkpointLocation, on this machine.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take the last one back, finished or not.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Stopped = Annotated[
    bool, typer.Option("--stopped", help="The query has ended; do not look for signs that it still runs.")
]

_NUMBERED = re.compile(r"(.+)=([0-9]+(?:,[0-9]+)*)")


def adopt(
    checkpoint: Checkpoint,
    *,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            help="The name that the stream will have in wrap(). Where the query has several sources: once for each "
            "stream, in their order, or NAME=0,1 with the numbers of its sources."
        ),
    ] = None,
    undo: Undo = False,
    dry_run: DryRun = False,
    stopped: Stopped = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Let a query with lowmark continue from the checkpoint of a native query.

    All state stays, such as open windows and seen keys, and no row is read again. Stop the query, adopt its checkpoint,
    replace withWatermark() by wrap(), and start the query. `lowmark leave` is the way back.
    """
    from lowmark.integration.spark import adoption

    streams: dict[str, list[int] | None] = {}
    for each in stream or ():
        numbered = _NUMBERED.fullmatch(each)
        name, numbers = (each, None) if numbered is None else (numbered[1], [int(n) for n in numbered[2].split(",")])
        if name in streams:
            raise AdoptionRefused(checkpoint, f'stream "{name}" is named twice', "give each its own name.")
        streams[name] = numbers
    _show(adoption.adopt(checkpoint, streams, dry_run=dry_run, stopped=stopped, undo=undo), as_json=as_json)


def leave(
    checkpoint: Checkpoint,
    *,
    undo: Undo = False,
    dry_run: DryRun = False,
    stopped: Stopped = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Let a native query continue from the checkpoint of a wrapped query.

    All state stays, and no row is read again. Stop the query, leave, put withWatermark() back, and start the query.
    """
    from lowmark.integration.spark import adoption

    _show(adoption.leave(checkpoint, dry_run=dry_run, stopped=stopped, undo=undo), as_json=as_json)


def _show(done: Adoption, *, as_json: bool) -> None:
    if not as_json:
        print_lines(str(done))
        return
    print_json(
        {
            "checkpoint": done.checkpoint,
            "done": done.done,
            "nothing_to_do": done.why_nothing,
            "not_yet": done.why_not_yet,
            "mind": done.warning,
            "streams": list(done.change.streams),
            "entries": [{"batch": int(e.name), "before": e.before, "after": e.after} for e in done.change.entries],
            "moves": [{"from": f"sources/{one}", "to": f"sources/{to}"} for one, to in done.change.moves],
            "backup": None if done.number is None else f"lowmark/changes/{done.number}.json",
        }
    )
