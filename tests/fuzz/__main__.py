"""`make fuzz`: every decoder in turn, with new inputs each time, until the time is over."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from .decoders import DECODERS
from .run import Finding, fuzz

_INPUTS = 2_000  # inputs of a decoder in one turn


def main() -> int:
    """Fuzz, print the findings, and return 1 if a decoder raised an unexpected error."""
    options = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    options.add_argument("--minutes", type=float, default=5.0, help="for how long (5)")
    options.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="which inputs (others each time)")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (one a core)")
    options.add_argument("only", nargs="*", metavar="DECODER", help=f"which of {', '.join(DECODERS)} (all)")
    given = options.parse_args()
    names = given.only or list(DECODERS)
    if unknown := sorted({*names} - DECODERS.keys()):
        options.error(f"no such decoder: {', '.join(unknown)}; there are {', '.join(DECODERS)}")
    until, done = time.monotonic() + given.minutes * 60, dict.fromkeys(names, 0)
    findings: dict[tuple[str, str], Finding] = {}
    turns = ((name, first) for first in count(0, _INPUTS) for name in names)
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        while time.monotonic() < until:
            some = list(islice(turns, 4 * given.workers))
            asked = [pool.submit(fuzz, name, seed=given.seed, first=first, count=_INPUTS) for name, first in some]
            for (name, _), answer in zip(some, asked, strict=True):
                done[name] += _INPUTS
                for place, found in answer.result().items():
                    known = findings.setdefault((name, place), found)
                    if len(repr(found.value)) < len(repr(known.value)):
                        findings[name, place] = found
    table = Table("decoder", "inputs", "findings", title=f"seed {given.seed}, {given.minutes:g} minutes")
    for name in names:
        table.add_row(name, f"{done[name]:,}", str(sum(decoder == name for decoder, _ in findings)))
    table.add_row("all", f"{sum(done.values()):,}", str(len(findings)))
    Console().print(table)
    for found in findings.values():
        sys.stdout.write(f"{found}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
