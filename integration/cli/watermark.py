"""`lowmark watermark`: how far a query's sink is complete, out of its checkpoint alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.watermark import format_time_us
from lowmark.watermark.printable import printable

from .common import Debug, Json

if TYPE_CHECKING:
    from lowmark.integration.spark.completion import Completion


def watermark(
    checkpoint: Annotated[
        str, typer.Argument(help="A query's checkpointLocation: a folder of this machine, or s3a://..., webhdfs://...")
    ],
    *,
    stream: Annotated[str | None, typer.Option(help="Only the stream of this name.")] = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Say how far a query's sink is complete, out of its checkpoint alone: without Spark and without its driver."""
    from lowmark.integration.spark.completion import completion, completions

    found = completions(checkpoint) if stream is None else [completion(checkpoint, stream)]
    if as_json:
        print_json({"streams": [_completion_json(each) for each in found]})
        return
    for each in found:
        print_lines(printable(f"{each.stream}: complete until {format_time_us(each.until_us)}; {each.why}"))


def _completion_json(found: Completion) -> dict[str, Any]:
    """Return a stream's completion for ``--json``."""
    return {
        "stream": found.stream,
        "complete_until_us": found.until_us,
        "low_watermark_us": found.low_watermark_us,
        "with_state": found.with_state,
        "batch": found.batch_id,
        "planned_batch": found.planned_batch_id,
        "age_seconds": round(found.age_seconds, 3),
        "why": found.why,
    }
