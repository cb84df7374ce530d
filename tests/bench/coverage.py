"""The share of late rows with an adaptive bound, on streams with different kinds of lateness.

    python -m tests.bench.coverage [--batches 5000]

Numbers are multiples of 1 - coverage, for an old split and for a new split. With observation by rows, as in
`service.read`, they are shares of late rows; by batches, as in `service.wrap`, shares of batches with a late row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.laws.late_streams import STREAMS, LateStream, drive, late_for

COVERAGES = (0.9, 0.99, 0.999)
SELDOM = LateStream("10 s of every 2,000 s are late", late_for(10, 2_000))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=5_000, help="batches that count, at least")
    given = parser.parse_args(arguments)
    print(f"| | seen by | {' | '.join(f'coverage {coverage}' for coverage in COVERAGES)} |\n|---|---|{'---|' * 3}")
    for stream in (*STREAMS, SELDOM):
        for by_rows in (True, False):
            found = [told(stream, coverage, given.batches, by_rows=by_rows) for coverage in COVERAGES]
            print(f"| {stream.name} | {'rows' if by_rows else 'batches'} | {' | '.join(found)} |", flush=True)
    for by_rows in (True, False):
        new = [
            _share(STREAMS[0], coverage, warm=0, batches=round(2 / (1 - coverage)), by_rows=by_rows)
            for coverage in COVERAGES
        ]
        seen = "rows" if by_rows else "batches"
        print(
            f"| the first 2 / (1 - coverage) batches of a new split, {STREAMS[0].name} | {seen} | {' | '.join(new)} |"
        )
    return 0


def told(stream: LateStream, coverage: float, least: int, *, by_rows: bool) -> str:
    """Return a cell for a split observed for about two of the longest spans, over a sufficient number of batches."""
    warm, batches = min(4_000, round(40 / (1 - coverage))), max(least, round(10 / (1 - coverage)))
    return _share(stream, coverage, warm=warm, batches=batches, by_rows=by_rows)


def _share(stream: LateStream, coverage: float, *, warm: int, batches: int, by_rows: bool) -> str:
    found = drive(stream, coverage, by_rows=by_rows, warm=warm, batches=batches)
    return f"{found.rows if by_rows else found.batches:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
