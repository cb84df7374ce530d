"""Draws `docs/pictures/how-far-it-goes.svg` from the figures of `python -m tests.scale`, which are beside it as JSON.

Both axes are logarithmic. A cost in proportion to its size is a line with a slope of one. A filled dot is a size
that the model learned from, a ring is a measured size that tests the model, and a line joins the dots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, MARGIN, TOP = 360, 280, 64, 36
PARTS = (
    ("page", "the page's first frame", "#c2571a"),
    ("restore", "restart: the state is read", "#7a5cc0"),
    ("answer", "each batch: the heartbeat's answer", "#1f6fb2"),
    ("report_half", "each batch: its report", "#3c8d4c"),
    ("scrape", "a scrape", "#a8326e"),
)
COORDINATOR = (
    ("groups", "reports of n groups of two", "#c2571a"),
    ("group", "n reports of one group", "#1f6fb2"),
    ("round", "a round of n tasks", "#3c8d4c"),
)
KNOTS = (1_000, 10_000, 100_000, 1_000_000)
STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #444 } .title { font-size: 13px; font-weight: 600; fill: #111 }
  .axis { stroke: #bbb; fill: none } .grid { stroke: #e4e4e4 } .second { stroke: #888; stroke-dasharray: 4 3 }
  .paper { fill: #fff } .line { fill: none; stroke-width: 1.6 } .ring { fill: #fff; stroke-width: 1.6 }
  @media (prefers-color-scheme: dark) { text { fill: #bbb } .title { fill: #eee } .paper, .ring { fill: #16181d }
    .axis { stroke: #555 } .grid { stroke: #2b2f36 } .second { stroke: #999 } }
"""


def draw(result: Mapping[str, Any]) -> str:
    """The picture as SVG, with a line in words under each panel."""
    values = {(each["part"], each["size"]): each["value"] for each in result["figures"]}
    width, height = 2 * (WIDTH + MARGIN) + 20, HEIGHT + TOP + 44 + 16 * len(PARTS)
    panels = (
        ("A driver with one query of n splits", "splits of the query", PARTS),
        ("A coordinator, without gRPC", "tasks, or groups", COORDINATOR),
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Processor time of the parts of lowmark, from 1,000 to 1,000,000 splits</title>",
        f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>',
    ]
    for number, (title, below, parts) in enumerate(panels):
        lines.append(f'<g transform="translate({MARGIN + number * (WIDTH + MARGIN)} {TOP})">')
        lines += [*_frame(title, below), *_curves(values, parts), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _frame(title: str, below: str) -> Iterator[str]:
    yield f'<text class="title" y="-16">{title}</text>'
    for power in range(6):
        at, text = _y(10.0**power), f"{10**power:,} ms" if power < 3 else f"{10 ** (power - 3):,} s"
        yield f'<path class="{"second" if power == 3 else "grid"}" d="M0 {at}H{WIDTH}"/>'
        yield f'<text x="-6" y="{at + 4}" text-anchor="end">{text}</text>'
    for size in KNOTS:
        yield f'<path class="grid" d="M{_x(size)} 0V{HEIGHT}"/>'
        yield f'<text x="{_x(size)}" y="{HEIGHT + 15}" text-anchor="middle">{size:,}</text>'
    yield f'<path class="axis" d="M0 0V{HEIGHT}H{WIDTH}"/>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT + 31}" text-anchor="middle">{below}</text>'


def _curves(values: Mapping[tuple[str, int], float], parts: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for number, (part, name, color) in enumerate(parts):
        sizes = sorted(size for known, size in values if known == part)
        points = {size: (_x(size), _y(values[part, size])) for size in sizes}
        path = "L".join(f"{x} {y}" for size, (x, y) in points.items() if size in KNOTS)
        yield f'<path class="line" stroke="{color}" d="M{path}"/>'
        for size, (x, y) in points.items():
            kind = f'fill="{color}"' if size in KNOTS else f'class="ring" stroke="{color}"'
            yield f'<circle cx="{x}" cy="{y}" r="3.2" {kind}/>'
        at = HEIGHT + 50 + 16 * number
        yield f'<path class="line" stroke="{color}" d="M0 {at - 4}H18"/><text x="24" y="{at}">{name}</text>'


def _x(size: float) -> float:
    return round(8 + (WIDTH - 16) * math.log10(size / KNOTS[0]) / math.log10(KNOTS[-1] / KNOTS[0]), 1)


def _y(ms: float) -> float:
    return round(HEIGHT - HEIGHT * (math.log10(max(ms, 0.5)) + 0.31) / 5.4, 1)
