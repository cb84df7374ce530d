"""All output of the command line.

Names come from other applications and from data, and may hold any characters. This module prevents names from acting as
terminal commands, line breaks, markup or emoji.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from lowmark.integration.errors import OutputLost
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.printable import printable
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_READABLE_WIDTH = 12  # of a column whose cells may be broken into lines
_NAME_WIDTH = 40  # of the first column: a name up to so long is not broken


@contextmanager
def _written(file: IO[str]) -> Iterator[None]:
    """Let a command keep its exit code if the reader of its output has gone, as behind ``head``.

    Raises `OutputLost` if stdout cannot be written; nobody could be told of stderr.
    """
    try:
        yield
    except OSError as failed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # for what Python writes at its end
        if file is sys.stdout and not isinstance(failed, BrokenPipeError):
            raise OutputLost(failed.strerror or str(failed)) from failed


class EscapingConsole(Console):
    """Escapes its whole output, strings with their line breaks; `print_lines` prints a text of several lines."""

    def __init__(self, *, stderr: bool = False) -> None:
        unsized = os.environ.get("COLUMNS") == "0"  # as a terminal without a size says; rich would print nothing
        super().__init__(stderr=stderr, markup=False, emoji=False, width=80 if unsized else None)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does, also if the reader has gone."""
        with _written(self.file):
            super().print(*objects, **how)

    def on_broken_pipe(self) -> None:
        """Raise the error again; rich would end the command with exit code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **how: Any) -> Text:
        """Render as rich does, but escape every string, in a table too, before its width is measured."""
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, but escape a ``Text`` from elsewhere, between its line breaks."""
        for segment in super().render(renderable, options):
            text = "\n".join(map(printable, segment.text.split("\n")))
            yield segment if segment.control or text == segment.text else Segment(text, segment.style)


@dataclass(frozen=True)
class Sheet:
    """A table, or if its cells do not fit the width, its rows one below the other: no cell is cut."""

    columns: Sequence[str]  # the headings; the first column names the subject of a row
    rows: Sequence[Sequence[str]]
    whole: Collection[str]  # columns whose cells are not broken into lines
    right: Collection[str] = ()
    title: str | None = None
    left_out: int = 0  # number of rows that are there and not shown

    @property
    def _more(self) -> str | None:
        return f"and {self.left_out:,} more" if self.left_out else None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._width() <= options.max_width:
            yield self._table()
            return
        if self.title is not None:
            yield Text(printable(self.title), style="bold")
        for about, *cells in self.rows:
            yield from one_below_the_other(about, self.columns[1:], cells, width=options.max_width)
        if self._more is not None:
            yield Text(self._more, style="italic")

    def _width(self) -> int:
        """The width of the table if breakable cells keep a readable width."""
        needed = 2 * len(self.columns)
        for at, name in enumerate(self.columns):
            longest = max(cell_len(printable(text)) for text in (name, *(row[at] for row in self.rows)))
            needed += longest if name in self.whole else min(longest, _READABLE_WIDTH if at else _NAME_WIDTH)
        return needed

    def _table(self) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            caption=self._more,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for at, name in enumerate(self.columns):
            whole = name in self.whole
            longest = max((cell_len(printable(row[at])) for row in self.rows), default=0)
            table.add_column(
                name,
                justify="right" if name in self.right else "left",
                overflow="fold",
                no_wrap=whole,
                min_width=None if at else min(longest, _NAME_WIDTH),
            )
        for row in self.rows:
            table.add_row(*row)
        return table


def one_below_the_other(
    about: str, columns: Sequence[str], cells: Sequence[str], *, width: int
) -> Iterator[RenderableType]:
    """A row of a table that is too wide: its subject, and below it the cells, as many in a line as fit."""
    lines: list[str] = []
    for fact in (printable(f"{name}: {cell}") for name, cell in zip(columns, cells, strict=True) if cell):
        if lines and cell_len(lines[-1]) + 2 + cell_len(fact) < width - 2:
            lines[-1] += f", {fact}"
        else:
            lines.append(fact)
    yield Text("\n".join(_lines(printable(about), width)), overflow="fold")
    broken = [each for line in lines for each in _lines(line, width - 2)]
    yield Padding(Text("\n".join(broken), overflow="fold"), (0, 0, 0, 2))


def _lines(text: str, width: int) -> list[str]:
    """Break a text between words, and a word that no line holds behind its slashes: the names between them stay whole.

    >>> _lines("held by billing/payments/nightly", 20)
    ['held by billing/', 'payments/nightly']
    """
    lines = [""]
    for word in re.findall(r"\s*\S+\s*", text):
        parts = re.findall(r"[^/]*/|[^/]+", word) if cell_len(word.strip()) > width else [word]
        for part in parts:
            if lines[-1] and cell_len(lines[-1]) + cell_len(part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def ago(at_us: int | None, now_us: int) -> str:
    """A time ago for people, in whole seconds, because more digits would only flicker."""
    return "" if at_us is None else rough_duration_us((now_us - at_us) // 1_000_000 * 1_000_000)


def print_lines(text: str, console: Console | None = None) -> None:
    """Print a text of several lines, by default to stdout, without wrapping, padding or colour."""
    console = EscapingConsole() if console is None else console
    for line in text.split("\n"):
        console.print(line, highlight=False, soft_wrap=True)


def print_error(text: str) -> None:
    """Print one line for people to stderr, apart from results."""
    print_lines(printable(f"lowmark: {text}"), EscapingConsole(stderr=True))


def print_json(value: object, *, indent: int | None = 1) -> None:
    """Print one JSON object; characters that a terminal would act upon become JSON escapes of the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=not (sys.stdout.encoding or "utf-8").lower().startswith("utf"))
    escaped = (c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
    with _written(sys.stdout):
        sys.stdout.write((text if text.isprintable() else "".join(escaped)) + "\n")
        sys.stdout.flush()


def show_traceback(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Print an uncaught error, as ``sys.excepthook`` does."""
    print_lines("".join(traceback.format_exception(kind, error, at)).rstrip("\n"), EscapingConsole(stderr=True))
