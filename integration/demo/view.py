"""The demo's display: two bars during the run, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from lowmark.integration.console import one_below_the_other
from lowmark.watermark.moment import datetime_of
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .comparison import LOWMARK, NATIVE, Lane
from .result import DemoResult, LaneResult, SplitResult, described

TITLES = {NATIVE: "native Spark", LOWMARK: "lowmark"}
_ANY_WIDTH = 1_000  # more than the table takes


class DemoBars(Progress):
    """A bar per query, with the watermark it has reached. Nothing is drawn where stderr is no terminal."""

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._setup = self.add_task("starting Spark", total=None, note="")
        self._queries = {
            name: self.add_task(f"{title:12}", total=None, note="", visible=False) for name, title in TITLES.items()
        }

    def watch(self, lanes: Sequence[Lane]) -> None:
        """Show how far the queries are."""
        self.update(self._setup, visible=False)
        for lane in lanes:
            self.update(
                self._queries[lane.name],
                visible=True,
                total=lane.feed.batches,
                completed=min(lane.batches, lane.feed.batches),
                note=_note(lane),
            )


def _note(lane: Lane) -> str:
    progress = lane.newest()
    if progress is None or not progress.watermark_us:
        return "no watermark yet"
    at = f"watermark {_clock(progress.watermark_us, lane.feed.script.start_us)}"
    if lane.status is None or lane.status.holder is None:
        return at
    return f"{at}, held by {lane.feed.name(lane.status.holder)}"


def show(result: DemoResult, console: Console) -> None:
    """Print the table, and one sentence."""
    native, lowmark = result.native, result.lowmark
    start_us = result.script.start_us
    title = f"The same rows, the same query, minute windows per split (seed {result.seed})"
    table = Table(title=title, title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = ("split", "what it does", "rows in", TITLES[NATIVE], "lost", TITLES[LOWMARK], "lost")
    for name in columns:
        table.add_column(name, justify="left" if name in columns[:2] else "right", no_wrap=True)
    rows: list[tuple[str | Text, ...]] = []
    for split in result.script.splits:
        mine, theirs, what = lowmark.splits[split.name], native.splits[split.name], described(result.script, split)
        style = "dim" if what == "regular" else ""
        rows.append((split.name, Text(what, style), f"{mine.rows_in:,}", *_fate(theirs), *_fate(mine)))
    ends = [_clock(lane.watermark_us, start_us) for lane in (native, lowmark)]
    rows += [
        ("rows", "in windows", f"{lowmark.total.rows_in:,}", *_fate(native.total), *_fate(lowmark.total)),
        ("windows", "emitted", "", f"{native.windows:,}", "", f"{lowmark.windows:,}", ""),
        ("", "wrong or missing", "", *_wrong(native), *_wrong(lowmark)),
        ("watermark", "in the end", "", ends[0], "", ends[1], ""),
        ("", "held there by", "", native.holder or "nobody", "", lowmark.holder or "nobody", ""),
    ]
    for number, row in enumerate(rows, 1):
        table.add_row(*row, end_section=number == len(native.splits), style="bold" if row[0] == "rows" else None)
    if Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum <= console.width:
        console.print(table)
    else:
        names = ("rows in", *(name for title in TITLES.values() for name in (title, f"{title} lost")))
        for first, second, *cells in rows:
            about = f"{first}: {second}" if first else str(second)
            for part in one_below_the_other(about, names, list(map(str, cells)), width=console.width):
                console.print(part)
    console.print(_sentence(result))


def _sentence(result: DemoResult) -> Text:
    native, lowmark = result.native.total, result.lowmark.total
    share = 100 * native.rows_dropped / native.rows_in
    if lowmark.rows_dropped:
        return Text(
            f"lowmark lost {lowmark.rows_dropped:,} rows, which it must not: please report it with the seed.",
            style="bold red",
        )
    return Text.assemble(
        (f"Native Spark dropped {share:.0f} % of the rows without a word. lowmark dropped none.", "bold"),
        "\nWhat was changed: df.withWatermark(...) became service.wrap(df, ...).",
    )


def _fate(split: SplitResult) -> tuple[str, Text]:
    lost = split.rows_dropped
    return f"{split.rows_in_windows:,}", Text(f"{lost:,}", style="red" if lost else "green")


def _wrong(lane: LaneResult) -> tuple[str, Text]:
    wrong = lane.windows_wrong + lane.windows_missing
    return "", Text(f"{wrong:,}", style="red" if wrong else "green")


def _clock(at_us: int, start_us: int) -> str:
    """A time of day, with the date where it is not the stream's day."""
    at, start = (datetime_of(us) for us in (at_us, start_us))
    return f"{at:%H:%M:%S}" if at.date() == start.date() else f"{at:%Y-%m-%d}"
