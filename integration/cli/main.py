"""The command line: `lowmark COMMAND`.

Every command has `--json`: exactly one JSON object on stdout and nothing else; a failed command puts its error into
"error". Output for people only (progress, errors) goes to stderr. An error of lowmark is one line without a
traceback; `--debug` shows the traceback. Wrong options are reported on stderr alone, with `--json`, too.

`EXIT_CODES` has the exit codes; `lowmark check` and `lowmark wait` have their own, for probes and schedulers. While the
demo is kept (`--keep`), its result is shown already, so a signal ends the waiting and changes no exit code.

A command imports Spark, Kafka and gRPC when it runs: `lowmark --help` loads none of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer
from lowmark.integration.console import print_lines, show_traceback

from .adopt import adopt, leave
from .audit import audit
from .by_hand import active, idle, set_
from .check import CHECK_EXIT_CODES, check
from .common import EXIT_CODES, Commands
from .demo import demo
from .forget import forget
from .grafana import grafana
from .offsets import offsets
from .page import page
from .serve import serve
from .status import explain, status
from .wait import WAIT_EXIT_CODES, wait
from .watermark import watermark

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Low watermarks for Spark Structured Streaming: event time per split, so that a slow split loses nothing.",
    epilog=EXIT_CODES,
)


def _show_version(value: bool) -> None:  # noqa: FBT001  # typer's signature
    if value:
        print_lines(f"lowmark {importlib.metadata.version('lowmark')}")
        raise typer.Exit


@app.callback()
def _lowmark(
    *,
    version: Annotated[  # the callback handles it
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Hold the commands together, because typer would leave the name of a single command out."""


# In the order of need: do I have this problem, what would help, over and back, does it work, several applications.
for command, what, exit_codes in (
    (demo, "Compare native Spark and lowmark on the same rows.", EXIT_CODES),
    (adopt, "Take a native query's checkpoint over, with all its state.", EXIT_CODES),
    (leave, "Give a wrapped query's checkpoint back to native Spark.", EXIT_CODES),
    (offsets, "Print startingOffsets that continue from a checkpoint.", EXIT_CODES),
    (status, "Show where running streams stand.", EXIT_CODES),
    (explain, "Say in words who holds the low watermark.", EXIT_CODES),
    (page, "Show streams live in a browser.", EXIT_CODES),
    (check, "Tell by the exit code whether low watermarks move.", CHECK_EXIT_CODES),
    (wait, "End when the sink is complete up to a time, for schedulers.", WAIT_EXIT_CODES),
    (watermark, "Say how far a sink is complete, out of its checkpoint alone.", EXIT_CODES),
    (idle, "Leave splits out of the low watermark by hand.", EXIT_CODES),
    (active, "Take `lowmark idle` back.", EXIT_CODES),
    (set_, "Set delay and idleness of a running stream.", EXIT_CODES),
    (grafana, "Write the Grafana dashboards and the alert rules into a folder.", EXIT_CODES),
    (serve, "Run a coordinator that several applications share.", EXIT_CODES),
    (forget, "Let a job go on without a query that is gone for good.", EXIT_CODES),
):
    app.command(command.__name__.rstrip("_"), epilog=exit_codes, short_help=what)(command)
app.add_typer(
    audit, name="audit", short_help="Say what native Spark would lose of a topic or of files, and what would help."
)


def main() -> None:
    """The entry point `lowmark`."""
    sys.excepthook = show_traceback
    if sys.stdout is None:  # closed, as by `>&-`: nobody reads it, and no file of the command may take its number
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # until the command ends
    if isinstance(sys.stdout, TextIOWrapper):  # else a name that its encoding lacks would end the command
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="lowmark")
