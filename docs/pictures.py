"""Draws `docs/pictures/problem.svg`: the demo's stream under native Spark's watermark and the low watermark.

    make pictures

It also draws `how-far-it-goes.svg` from the figures that `python -m tests.scale` left beside it (`scale_picture.py`).

Nothing in it is drawn by hand: the rows are those of `lowmark demo --seed 42`, arriving as fast as they happened, in
batches of 150 seconds; native Spark's watermark is the largest event time less ten seconds, the low watermark comes
from the `SplitWatermarks` that decides it in a query. A row is red where its minute is over
when it comes: Spark drops it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lowmark.integration.demo.feed import TICKS_PER_BATCH, demo_script
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered
from lowmark.watermark.splits.stream import SplitWatermarks
from scale_picture import draw as draw_scale

SEED = 42
MINUTE_US = 60_000_000
START_US = 7 * 24 * 60 * MINUTE_US  # any moment: the picture counts from it
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("5 minutes")
GUARD_US = 5 * MINUTE_US
SCRIPT = demo_script(SEED, start_us=START_US)

WIDTH, HEIGHT, MARGIN, TOP = 340, 270, 44, 34
STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #444 } .title { font-size: 13px; font-weight: 600; fill: #111 }
  .axis { stroke: #bbb; fill: none } .row { stroke: #9db4cc; stroke-width: 2 }
  .dropped { stroke: #d6342c; stroke-width: 2.4 }
  .mark { stroke: #111; stroke-width: 2; fill: none } .paper { fill: #fff }
  @media (prefers-color-scheme: dark) { text { fill: #bbb } .title { fill: #eee } .paper { fill: #16181d }
    .axis { stroke: #555 } .row { stroke: #48617c } .dropped { stroke: #ff6b5e } .mark { stroke: #f5f5f5 } }
"""


@dataclass
class Panel:
    """One half of the picture: rows that were kept and dropped, and the watermark in force, all in minutes."""

    title: str
    kept: list[tuple[float, float, float]] = field(default_factory=list)  # when, from, to
    dropped: list[tuple[float, float, float]] = field(default_factory=list)
    in_force: list[tuple[float, float]] = field(default_factory=list)
    rows_dropped: int = 0

    def take(self, tick: int, times_us: np.ndarray, mark_us: int | None) -> None:
        """Rows of one split that arrive in one tick, while this watermark is in force."""
        over_us = (times_us // MINUTE_US + 1) * MINUTE_US  # when the window of each row is over
        late = over_us <= mark_us if mark_us is not None else np.zeros(len(times_us), bool)
        self.rows_dropped += int(late.sum())
        shown = times_us < START_US + SCRIPT.ticks * SCRIPT.tick_us + GUARD_US
        for rows, where in ((times_us[~late & shown], self.kept), (times_us[late & shown], self.dropped)):
            if len(rows):
                where.append((tick * SCRIPT.tick_us / MINUTE_US, minutes(rows.min()), minutes(rows.max())))


def minutes(time_us: int) -> float:
    """Minutes since the stream began."""
    return float(time_us - START_US) / MINUTE_US


def play() -> list[Panel]:
    """Send the stream through both rules, a batch after the other."""
    native, lowmark = Panel("native Spark"), Panel("lowmark")
    names = tuple(split.name for split in SCRIPT.splits)
    watermarks = SplitWatermarks(STRATEGY, job_id="demo", source_id="demo", task_id="0")
    watermarks.handle(SplitsDiscovered(names), now_us=START_US)
    marks: dict[str, list[int | None]] = {
        "native": [None, None],
        "lowmark": [None, None, None],
    }  # what rows of a batch are late by
    newest_us: int | None = None
    for batch in range(-(-SCRIPT.end // TICKS_PER_BATCH)):
        first, end = batch * TICKS_PER_BATCH, min((batch + 1) * TICKS_PER_BATCH, SCRIPT.end)
        at_us = START_US + end * SCRIPT.tick_us
        reported: dict[str | int, int] = {}
        for panel, mark_us in ((native, marks["native"][batch]), (lowmark, marks["lowmark"][batch])):
            if mark_us is not None:
                panel.in_force += [(tick * SCRIPT.tick_us / MINUTE_US, minutes(mark_us)) for tick in (first, end)]
        for name, tick, times_us in arriving(first, end):
            native.take(tick, times_us, marks["native"][batch])
            lowmark.take(tick, times_us, marks["lowmark"][batch])
            newest_us = max(int(times_us.max()), newest_us or 0)
            if len(sane := times_us[times_us <= at_us + GUARD_US]):
                reported[name] = max(STRATEGY.watermark_of_max(int(sane.max())), reported.get(name, 0))
        watermarks.handle(BatchReported(batch, at_us, reported), now_us=at_us)
        marks["native"].append(None if newest_us is None else newest_us - STRATEGY.out_of_orderness_us)
        marks["lowmark"].append(watermarks.status(now_us=at_us).low_watermark_us)
    return [native, lowmark]


def arriving(first: int, end: int) -> Iterator[tuple[str, int, np.ndarray]]:
    """Which rows of which split come in each tick; those that are behind come as late as they are."""
    for split in SCRIPT.splits:
        for tick in range(first, end):
            times_us = SCRIPT.times_us(split.name, tick, tick + 1, seed=SEED)
            if len(times_us):
                yield split.name, tick, times_us


def draw(panels: list[Panel]) -> str:
    """The picture as SVG."""
    width = len(panels) * (WIDTH + MARGIN) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + TOP + 40}" role="img">',
        "<title>Event time of eight splits, and the watermark over them</title>",
        f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>',
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate({MARGIN + index * (WIDTH + MARGIN)} {TOP})">{_panel(panel)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> str:
    dropped = f"{panel.rows_dropped:,} rows dropped" if panel.rows_dropped else "no row dropped"
    parts = [f'<text class="title" y="-14">{panel.title}: {dropped}</text>']
    for rows, kind in ((panel.kept, "row"), (panel.dropped, "dropped")):
        path = "".join(f"M{_x(at)} {_y(low)}V{_y(high + 0.1)}" for at, low, high in rows)
        parts.append(f'<path class="{kind}" d="{path}"/>')
    line = "L".join(f"{_x(at)} {_y(min(mark, 66))}" for at, mark in panel.in_force if at <= 61)
    parts.append(f'<path class="mark" d="M{line}"/>')
    stray = next(split for split in SCRIPT.splits if split.stray_tick is not None)
    at = stray.stray_tick * SCRIPT.tick_us / MINUTE_US
    parts.append(f'<text x="{_x(at) - 8}" y="8" text-anchor="end">a clock that is a year ahead \u25b2</text>')
    parts.append(f'<text x="{_x(42)}" y="{_y(12)}">10 minutes behind</text>')
    parts.append(f'<text x="{_x(28)}" y="{_y(36)}" text-anchor="end">seven in time</text>')
    parts.append(f'<path class="axis" d="M0 0V{HEIGHT}H{WIDTH}"/>')
    for minute in (0, 20, 40, 60):
        clock = f"{12 + minute // 60}:{minute % 60:02}"
        parts.append(f'<text x="{_x(minute)}" y="{HEIGHT + 15}" text-anchor="middle">{clock}</text>')
        parts.append(f'<text x="-5" y="{_y(minute)}" text-anchor="end">{clock}</text>')
    axes = "when a row comes (up: its event time; black: the watermark)"
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 30}" text-anchor="end">{axes}</text>')
    return "\n".join(parts)


def _x(minute: float) -> float:
    return round(minute * WIDTH / 62, 1)


def _y(minute: float) -> float:
    return round(HEIGHT - (minute + 12) * HEIGHT / 78, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures", help="the folder it goes to")
    out, figures = parser.parse_args().out, Path(__file__).parent / "pictures" / "how-far-it-goes.json"
    (out / "problem.svg").write_text(draw(play()), encoding="utf-8")
    drawn = draw_scale(json.loads(figures.read_text(encoding="utf-8")))
    (out / "how-far-it-goes.svg").write_text(drawn, encoding="utf-8")
