"""The tables of docs/how-far-it-goes.md, made of the figures that `python -m tests.scale --json` wrote.

python -m tests.scale.page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .parts import PARTS

FIGURES = Path(__file__).parents[2] / "docs/pictures/how-far-it-goes.json"
SHOWN = (1_000, 10_000, 50_000, 100_000, 1_000_000)
ORDER = (
    "decode", "report", "report_half", "answer", "offset", "restore", "status", "scrape", "page", "page_bytes",
    "page_next", "merge", "plan", "plan_offset", "round", "group", "groups", "coordinator_status",
)  # fmt: skip


def tables(result: Mapping[str, Any]) -> dict[str, str]:
    """The tables by name, as Markdown."""
    return {
        "limits": "\n".join(_limits(result)),
        "played": "\n".join(_played(result)),
        "parts": "\n".join(_parts(result)),
        "coordinators": "\n".join(_coordinators(result)),
        "agreement": "\n".join(_agreement(result)),
    }


def _limits(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| size | of | breaks first | set |"
    yield "|---|---|---|---|"
    for limit in result["limits"]:
        beyond = "" if limit["measured"] else " (modelled, beyond the measured sizes)"
        yield f"| {rough(limit['size'])}{beyond} | {limit['of']} | {limit['what']} | {limit['setting']} |"


def _played(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| shape | loop busy | p99 of a heartbeat's answer | written with each batch |"
    yield "|---|---|---|---|"
    for each in result["played"]:
        wait, size = milliseconds(each["heartbeat_p99_seconds"] * 1_000), megabytes(each["offset_bytes"])
        yield f"| {each['what']} | {each['loop_share_played']:.1%} | {wait} | {size} a query |"


def _parts(result: Mapping[str, Any]) -> Iterator[str]:
    values = {(each["part"], each["size"]): each["value"] for each in result["figures"]}
    yield f"| part | {' | '.join(f'{size:,}' for size in SHOWN)} | exponent |"
    yield "|---" * (len(SHOWN) + 2) + "|"
    for name in ORDER:
        part = PARTS[name]
        cells = [values.get((name, size)) for size in SHOWN]
        of = "" if part.of == "splits" else f" ({part.of})"
        texts = ["" if value is None else (milliseconds if part.unit == "ms" else megabytes)(value) for value in cells]
        yield f"| {part.what}{of} | {' | '.join(texts)} | {result['exponents'][name]:.2f} |"


def _coordinators(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| streams | loop busy | p99 of a report |"
    yield "|---|---|---|"
    for each in result["coordinators"]:
        yield f"| {each['tasks']:,}, {each['group']} | {each['busy']:.0%} | {milliseconds(each['p99_ms'])} |"


def _agreement(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| part and size | measured | modelled | off |"
    yield "|---|---|---|---|"
    for each in result["checks"]:
        if not each["agrees"]:
            figure = milliseconds if each["unit"] == "ms" else megabytes
            off = each["modelled"] / each["measured"] - 1
            yield f"| {each['what']} | {figure(each['measured'])} | {figure(each['modelled'])} | {off:+.0%} |"


def rough(size: int) -> str:
    """A size with two digits that count.

    >>> rough(26_570), rough(200_000), rough(7)
    ('27,000', '200,000', '7')
    """
    return f"{int(float(f'{size:.2g}')):,}"


def milliseconds(ms: float) -> str:
    """A duration.

    >>> milliseconds(0.123), milliseconds(23.4), milliseconds(2_340)
    ('0.12 ms', '23 ms', '2.3 s')
    """
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.0f} ms" if ms < 1_000 else f"{ms / 1_000:,.1f} s"


def megabytes(size: float) -> str:
    """A number of bytes.

    >>> megabytes(35_402), megabytes(3_054_778)
    ('35 kB', '3.1 MB')
    """
    return f"{size / 1_000:.0f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


if __name__ == "__main__":
    for name, text in tables(json.loads(FIGURES.read_text(encoding="utf-8"))).items():
        print(f"<!-- {name} -->\n{text}\n")
