"""Compares two results of the benchmark, and lists the rows that got worse beyond their spread.

    python -m tests.bench.compare OLD.json NEW.json

A row is judged by its ratio to native Spark if it has one, because the ratio is taken pair by pair. It got worse if the
median of each result lies outside of the other's spread, on the worse side. A row without pairs, or with a single pair,
which has no spread, is judged by its bound alone: it got worse if it was met. Exits with 1 if a row got worse.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Kept = Mapping[str, Any]  # a row of a result


def worse(old: Kept, new: Kept) -> str | None:
    """Return why a row got worse, as a clause; None if it did not."""
    if old["met"] and new["met"] is False:
        return f"its bound was met: {_figure(old)}, now {_figure(new)}"
    before, after = old["ratio"], new["ratio"]
    if before is None or after is None or min(before["pairs"], after["pairs"]) < 2:
        return None
    if after["median"] > before["high"] and before["median"] < after["low"]:
        return f"{_figure(old)}, now {_figure(new)}"
    return None


def compare(old: Sequence[Kept], new: Sequence[Kept]) -> tuple[list[str], int]:
    """Return a line for each row that got worse, and the number of rows that both results have."""
    before = {(row["section"], row["what"]): row for row in old}
    both = [(before[key], row) for row in new if (key := (row["section"], row["what"])) in before]
    found = [(each, why) for was, each in both if (why := worse(was, each)) is not None]
    return [f"{row['section']}: {row['what']}: {why}" for row, why in found], len(both)


def _figure(row: Kept) -> str:
    ratio = row["ratio"]
    if ratio is None:
        return f"{row['wrapped']:,.1f} {row['unit']}"
    return f"{ratio['median']:.2f} x ({ratio['low']:.2f}..{ratio['high']:.2f})"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print((__doc__ or "").split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    old, new = (json.loads(Path(name).read_text()) for name in arguments)
    lines, rows = compare(old["rows"], new["rows"])
    for line in lines:
        print(line)
    print(f"{len(lines)} of {rows} rows got worse from {_of(old)} to {_of(new)}")
    return 1 if lines else 0


def _of(result: Mapping[str, Any]) -> str:
    return f"{result.get('commit', 'an unknown commit')} ({result['at']}, load {result['load_after']})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
