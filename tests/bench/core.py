"""The core without Spark: how the coalescer grows with the number of splits. Its peers come with a later issue."""

from __future__ import annotations

import random
import statistics
import time

from lowmark.watermark import Coalescer, SplitId

from .measure import Row

SEED = 7


def run(*, sizes: list[int], rounds: int) -> list[Row]:
    rng = random.Random(SEED)
    table, coalescer, splits = [], Coalescer(), list[SplitId]()
    for n in sizes:
        splits = [rng.getrandbits(63) for _ in range(n)]
        coalescer = Coalescer()
        for split in splits:
            coalescer.assign(split)
        spent = []
        for turn in range(rounds):
            reports = {split: turn * 10**9 + rng.randrange(10**9) for split in splits}
            began = time.perf_counter()
            coalescer.report_all(reports)
            coalescer.advance()
            spent.append((time.perf_counter() - began) * 1e6)
        table.append(_row(f"{n:,} splits: report_all + advance", statistics.median(spent)))
    single, advance = _single(coalescer, splits, rng)
    table.append(_row(f"{len(splits):,} splits: one report", single))
    table.append(_row(f"{len(splits):,} splits: one advance", advance))
    return table


def _single(coalescer: Coalescer, splits: list[SplitId], rng: random.Random) -> tuple[float, float]:
    report, advance = [], []
    for _ in range(20_000):
        split, watermark_us = rng.choice(splits), 10**12 + rng.randrange(10**9)
        began = time.perf_counter()
        coalescer.report(split, watermark_us)
        between = time.perf_counter()
        coalescer.advance()
        report.append((between - began) * 1e6)
        advance.append((time.perf_counter() - between) * 1e6)
    return statistics.median(report), statistics.median(advance)


def _row(what: str, us: float) -> Row:
    return Row("core, no Spark", what, "us", None, us)
