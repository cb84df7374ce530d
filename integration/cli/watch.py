"""`lowmark status --watch`: the status in place on a terminal, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import typer
from lowmark.integration.console import EscapingConsole
from lowmark.watermark import LowmarkError
from lowmark.watermark.printable import counted, printable
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from .common import until_ended

_EVERY_SECONDS = 1.0
_HEAD_LINES = 13  # of a stream, without its splits
_LEAST_SPLITS = 3


def watch(shown: Callable[[int], Iterator[RenderableType]], *, limit: int | None) -> None:
    """Show the status every second on a separate screen, where only changed text moves.

    Args:
        shown: asks, and returns the status with at most so many splits of each stream; errors of lowmark are shown.
        limit: largest number of splits; None: as many as fit.
    """
    console = EscapingConsole()
    if not console.is_terminal or console.is_dumb_terminal:
        raise typer.BadParameter(
            "--watch needs a terminal; for a script, ask `lowmark check` or `lowmark status --json`"
        )
    with (
        until_ended() as ended,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            fitting = max(_LEAST_SPLITS, console.size.height - _HEAD_LINES)
            try:
                what = list(shown(fitting if limit is None else min(limit, fitting)))
            except LowmarkError as failed:  # the next attempt may succeed
                what = [Text(printable(str(failed)), style="bold red")]
            live.update(picture(what, console, datetime.now(timezone.utc)), refresh=True)
            if ended(_EVERY_SECONDS):
                break


def picture(what: list[RenderableType], console: Console, now: datetime) -> Group:
    """Put a line above the status that says how much of the status is below the terminal's last line."""
    above = Text(f"{now:%H:%M:%S} UTC, Ctrl-C ends", style="dim", no_wrap=True, overflow="ellipsis")
    whole = Group(above, *what)
    if (below := len(console.render_lines(whole)) - console.size.height) > 0:
        above.append(f", {counted(below, 'more line', ('does', 'do'))} not fit")
    return whole
