"""`lowmark status --watch`: the status on a terminal, in its place, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import typer
from lowmark.integration.console import EscapingConsole
from lowmark.watermark import LowmarkError
from lowmark.watermark.printable import printable
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

__all__ = ["watch"]

EVERY_SECONDS = 1.0
_HEAD_LINES = 13  # of a stream, beside its splits
_LEAST_SPLITS = 3


def watch(shown: Callable[[int], Iterator[RenderableType]], *, limit: int | None) -> None:
    """Show it anew every second, on a screen of its own, so that nothing moves but what has changed.

    Args:
        shown: asks, and returns what to show with so many splits of each stream; an error of ours is shown.
        limit: how many splits at most; None: as many as fit.
    """
    console = EscapingConsole()
    if not console.is_terminal:
        raise typer.BadParameter(
            "--watch needs a terminal; for a script, ask `lowmark check` or `lowmark status --json`"
        )
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            fitting = max(_LEAST_SPLITS, console.size.height - _HEAD_LINES)
            at = Text(f"{datetime.now(timezone.utc):%H:%M:%S} UTC, Ctrl-C ends", style="dim")
            try:
                what = list(shown(fitting if limit is None else min(limit, fitting)))
            except LowmarkError as failed:  # it may come again
                what = [Text(printable(str(failed)), style="bold red")]
            live.update(Group(at, *what), refresh=True)
            time.sleep(EVERY_SECONDS)
