"""A report as one self-contained page: tables, and pictures in SVG.

Names are text: `html.escape` escapes every one, no script runs, and the page's policy forbids scripts. Colours never
carry information alone, and follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
from lowmark.watermark import format_time_us
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.printable import printable
from lowmark.watermark.replay.report import AuditReport, SplitReport
from rich.cells import cell_len, set_cell_size

from .text import by_loss, delay_rows, how_late, lost_line, when_late

_SPLITS_SHOWN = 200
_LINES_SHOWN = 24
_LONGEST_NAME = 120
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 360, 150, 30

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #767676; --line: #ddd;
  --native: #b3261e; --low: #0b57d0; --split: #8a8f98; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --faint: #9aa0a6; --line: #333;
  --native: #f2b8b5; --low: #a8c7fa; --split: #6f7680; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 84rem; padding: 0 1rem; }
p, pre { max-width: 62rem; box-sizing: border-box; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
td.names { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
td.n, th.n { text-align: right; }
h1, p { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; border: 1px solid var(--line); }
figure, .wide { margin: 1rem 0; overflow-x: auto; }
figcaption, .faint { color: var(--faint); }
svg text { fill: var(--faint); font: 12px system-ui, sans-serif; }
.loss { font-size: 1.2rem; font-weight: 600; }
"""


def page(report: AuditReport) -> str:
    """The whole page."""
    shown = by_loss(report)[:_SPLITS_SHOWN]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>lowmark audit: {_text(report.what)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>lowmark audit</h1><p>{_text(report.what)}: {_text(report.order)}.<br>",
            f"Event time: {_text(report.event_time)}; {when_late(report)}.</p>",
            *(f"<p>Note: {_text(note)}</p>" for note in report.notes),
            f'<p class="loss">{_text(lost_line(report))}</p>',
            "<h2>What is lost</h2>",
            _table(
                ("delay", "native Spark drops", "of rows", "of splits", "keeps rows", "lowmark drops", "keeps rows"),
                {1, 2, 4, 5, 6},
                {3},
                delay_rows(report, most_splits=8),
            ),
            "<h2>The strategy for it</h2>",
            f"<pre>{escape(chr(10).join(map(printable, report.advice.code().split(chr(10)))))}</pre>",
            "<h2>How far the splits were, while they were read</h2>",
            _progress(report),
            "<h2>How far rows lie behind the largest before them in their split</h2>",
            _disorder(shown),
            "<h2>Splits</h2>",
            _table(
                ("split", "rows", "first", "last", "99 % lie behind", "99.99 %", "all", "behind at most", "silence",
                 "null", "unreadable", "before 1970", "future"),
                {1, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                {0},
                [_row(split) for split in shown],
            ),
            f'<p class="faint">{len(shown):,} of {len(report.splits):,} splits</p>',
            "</body></html>",
        ]
    )  # fmt: skip


def _text(text: str, most: int = 2_000) -> str:
    shown = printable(text)
    return escape(shown if len(shown) <= most else f"{shown[:most]}...")


def _name(name: str) -> str:
    return _text(name, _LONGEST_NAME)


def _table(head: Sequence[str], numbers: set[int], names: set[int], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways within itself. A column without a text in any row is left out.

    Args:
        numbers: the columns of numbers, from 0.
        names: the columns of split names, which may be long and are wrapped.
    """
    kinds = {at: "n" if at in numbers else "names" if at in names else "" for at in range(len(head))}
    used = [at for at in kinds if at == 0 or any(row[at] for row in rows)]

    def cells(tag: str, row: Sequence[str]) -> str:
        texts = {at: _text(row[at]) if at else _name(row[at]) for at in used}
        return "".join(f"<{tag}{f' class={kinds[at]}' if kinds[at] else ''}>{texts[at]}</{tag}>" for at in used)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table></div>"


def _row(split: SplitReport) -> tuple[str, ...]:
    profile = split.profile
    silence_us = split.longest_without_row_us
    return (
        split.name,
        f"{profile.rows:,}",
        format_time_us(profile.first_us)[:19],
        format_time_us(profile.last_us)[:19],
        *how_late(split),
        rough_duration_us(silence_us) if silence_us else "",
        *(
            f"{rows:,}" if rows else ""
            for rows in (
                profile.null_rows, profile.unreadable_rows, profile.before_epoch_rows, profile.future_rows,
            )
        ),
    )  # fmt: skip


def _progress(report: AuditReport) -> str:
    """Event time over rows read: a line for each split, native Spark's watermark, lowmark's."""
    moments = [moment for moment in report.moments if moment.front_us is not None]
    if len(moments) < 2:
        return '<p class="faint">Too few batches for a picture.</p>'
    spoken = moments[-1].spoken
    numbers = {split.name: number for number, split in enumerate(report.splits)}
    by_need = (numbers[split.name] for split in by_loss(report))
    shown = [number for number in by_need if number < len(spoken) and spoken[number]][:_LINES_SHOWN]
    # A moment knows the splits that were found by then.
    points_of = {
        number: [
            (moment.rows, int(moment.tops_us[number]))
            for moment in moments
            if number < len(moment.spoken) and moment.spoken[number]
        ]
        for number in shown
    }
    low_us = min(top_us for points in points_of.values() for _, top_us in points)
    high_us = max(moment.front_us for moment in moments if moment.front_us is not None)
    scale = _Scale(low_us, high_us, moments[-1].rows)
    lines = []
    for number, points in points_of.items():
        title = f"<title>{_name(report.splits[number].name)}</title>"
        lines.append(f'<path d="{scale.path(points)}" fill="none" stroke="var(--split)">{title}</path>')
    native = [(moment.rows, moment.native_us) for moment in moments if moment.native_us is not None]
    low = [(moment.rows, moment.low_us) for moment in moments if moment.low_us is not None]
    lines.append(
        f'<path d="{scale.path(native)}" fill="none" stroke="var(--native)" stroke-width="2" stroke-dasharray="6 3">'
        "<title>native Spark's watermark, delay 0</title></path>"
    )
    lines.append(
        f'<path d="{scale.path(low)}" fill="none" stroke="var(--low)" stroke-width="3">'
        "<title>lowmark's low watermark, bound 0</title></path>"
    )
    more = "" if spoken.sum() <= _LINES_SHOWN else f" (the {_LINES_SHOWN} that lose most)"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Event time over rows read">'
        f"{scale.axes()}{''.join(lines)}</svg><figcaption>Event time over rows read. Thin lines: splits{more}. Dashed: "
        "native Spark's watermark, the largest time of all; rows below it are late. Thick: lowmark's, the smallest."
        "</figcaption></figure>"
    )


class _Scale:
    """Maps event times and rows to coordinates of the picture."""

    def __init__(self, low_us: int, high_us: int, rows: int) -> None:
        self._low_us, self._span_us, self._rows = low_us, max(1, high_us - low_us), max(1, rows)

    def path(self, points: Sequence[tuple[int, int]]) -> str:
        return "".join(f"{'L' if at else 'M'}{self._x(x):.1f} {self._y(y):.1f}" for at, (x, y) in enumerate(points))

    def axes(self) -> str:
        made = []
        for step in range(5):
            at_us = self._low_us + self._span_us * step // 4
            y = self._y(at_us)
            made.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>')
            made.append(f'<text x="0" y="{y + 4:.1f}">{escape(format_time_us(at_us)[:19])}</text>')
        made.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}">0 rows</text>')
        made.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{self._rows:,} rows</text>')
        return "".join(made)

    def _x(self, rows: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 4) * rows / self._rows

    def _y(self, at_us: int) -> float:
        share = min(1.05, max(-0.05, (at_us - self._low_us) / self._span_us))
        return (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 12) * share


def _disorder(splits: Sequence[SplitReport]) -> str:
    splits = [split for split in splits if split.profile.rows][:_LINES_SHOWN]
    most_us = max((split.profile.disorder.largest_us for split in splits), default=0)
    if most_us == 0:
        return "<p>Every split is in order.</p>"
    height = 22 * len(splits) + 8
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Out-of-orderness by split">'
        f"{''.join(_bars(splits, most_us))}</svg><figcaption>Solid: 99 % of the rows lie behind by no more. Outlined: "
        "all of them. The scale is logarithmic.</figcaption></figure>"
    )


def _bars(splits: Sequence[SplitReport], most_us: int) -> Iterator[str]:
    def width(us: int) -> float:
        return float((_WIDTH - _LEFT - 200) * np.log1p(us / 1_000) / np.log1p(most_us / 1_000))

    for at, split in enumerate(splits):
        disorder = split.profile.disorder
        usual_us, y = disorder.quantile_us(0.99), 22 * at + 4
        told = f"99 %: {rough_duration_us(usual_us)}, all: {rough_duration_us(disorder.largest_us)}"
        name = printable(split.name)
        shown = name if cell_len(name) <= 20 else set_cell_size(name, 19).rstrip() + "…"
        yield f'<text x="0" y="{y + 13}">{escape(shown)}</text>'
        yield (
            f'<rect x="{_LEFT}" y="{y}" width="{width(disorder.largest_us):.1f}" height="16" fill="none" '
            f'stroke="var(--low)"><title>{_name(split.name)}: {told}</title></rect>'
        )
        yield f'<rect x="{_LEFT}" y="{y}" width="{width(usual_us):.1f}" height="16" fill="var(--low)"/>'
        yield f'<text x="{_LEFT + width(disorder.largest_us) + 6:.1f}" y="{y + 13}">{escape(told)}</text>'
