"""The core without Spark, compared with Flink's own code on the JVM: the coordinator's cost of a batch of n splits.

Both sides get the same two arrays, ids and watermarks, and answer with the new minimum. They run alternately, and each
times itself; the reports are made before the clock starts, and the first turns are a warm-up. Flink's side is
tests/bench/flink. Its CombinedWatermarkStatus has no ids; its callers look the split up ("by id", as Flink's
WatermarkOutputMultiplexer does) or hold a reference to each split in the order of the reports ("by reference": without
look-up and check; no caller with ids has such references, and the figure is shown for completeness).
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import statistics
import subprocess
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lowmark.watermark import SplitId, SplitState, WatermarkStrategy
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.events import BatchPlanned, BatchReported, Event, SplitColumn
from lowmark.watermark.splits.stream import SplitWatermarks

from tests.servers.local import jars

from .measure import Bound, Row

SEED = 7
SPREAD_US = 10**9
AHEAD_FROM = 1_024  # splits: from this number on a batch must be cheaper here than in Flink
SOURCES = Path(__file__).parent / "flink"
BATCH = "core: a batch, all splits report and the minimum is taken. Native: Flink on the JVM, wrapped: the coalescer"
SINGLE = "core: one by one. Native: Flink on the JVM, wrapped: the coalescer"
ALONE = "core: ours alone"

Ids = npt.NDArray[np.uint64]
Watermarks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flink:
    """The answer of Flink's side: medians in nanoseconds, of a batch and of single calls."""

    by_id: int
    by_reference: int
    aggregator: int
    combined_report: int
    combined_advance: int
    aggregator_report: int
    aggregator_advance: int


Ask = Callable[[int, int, int], Flink]  # splits, batches, single reports


def run(folder: Path, *, sizes: Sequence[int], pairs: int, singles: int, warm: int = 2) -> list[Row]:
    table: list[Row] = []
    with flink(folder) as (ask, missing):
        for n in sizes:
            table += _batches(n, ask, missing, pairs, warm)
        table += _singles(max(sizes), ask, missing, singles, pairs, warm)
    table += [_other_order(n) for n in sizes]
    table += [_coordinator(n) for n in sizes if n <= 10_000]
    for n in sizes:
        if n == max(sizes) or n >= AHEAD_FROM:
            table += _planned(n)
    return table


# -- Flink's side


@contextmanager
def flink(folder: Path) -> Iterator[tuple[Ask | None, str]]:
    """Compile and start Flink's side; yield None and the reason if that is impossible."""
    home = os.environ.get("JAVA_HOME")
    java, javac = (shutil.which(name, path=str(Path(home, "bin")) if home else None) for name in ("java", "javac"))
    libraries = jars("flink")
    if not libraries:
        yield None, "Flink's jars are missing: run make jars"
    elif java is None or javac is None:
        yield None, "javac is missing: install a JDK (Debian: apt install openjdk-17-jdk-headless)"
    else:
        classes = folder / "flink-classes"
        path = os.pathsep.join(map(str, [*libraries, classes]))
        subprocess.run([javac, "-cp", path, "-d", classes, *sorted(SOURCES.glob("*.java"))], check=True)
        process = subprocess.Popen(
            [java, "-Xmx1g", "-cp", path, "Race"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout

        def ask(n: int, batches: int, singles: int) -> Flink:
            asked.write(f"{n} {batches} {singles}\n")
            asked.flush()
            answer = told.readline().split()
            if len(answer) != 8:  # seven figures and a checksum
                raise RuntimeError(f"Flink's side ended or answered {answer!r} to {n} splits; its error is above")
            return Flink(*map(int, answer[:7]))

        try:
            yield ask, ""
        finally:
            asked.close()  # the process ends with its input
            process.wait(timeout=60)
            told.close()


# -- ours


def _batches(n: int, ask: Ask | None, missing: str, pairs: int, warm: int) -> list[Row]:
    rng = np.random.default_rng(SEED)
    splits, coalescer = _splits(n, rng), Coalescer()
    for split in splits.tolist():
        coalescer.assign(split, state=SplitState.ACTIVE, watermark_us=0)
    turns = iter(range(1, 10**9))
    batches = max(5, min(2_000, 2_000_000 // n))
    ours, theirs = list[float](), list[Flink]()
    for turn in range(warm + pairs):
        spent = [_batch(coalescer, splits.copy(), _watermarks(n, next(turns), rng)) for _ in range(batches)]
        answer = None if ask is None else ask(n, batches, 0)
        if turn >= warm:
            ours.append(statistics.median(spent) / n)
            theirs += [] if answer is None else [answer]
    what, unit = f"{n:,} splits", "ns a split"
    if not theirs:
        return [Row(BATCH, what, unit, None, statistics.median(ours), note=missing)]
    bound = Bound(1, "ratio") if n >= AHEAD_FROM else None
    rows = [
        Row.pairs(BATCH, f"{what}, {name}", unit, them, ours, bound=bound)
        for name, them in (
            ("CombinedWatermarkStatus, by id", [t.by_id / n for t in theirs]),
            ("SourceCoordinator's aggregator", [t.aggregator / n for t in theirs]),
        )
    ]
    less = [t.by_reference / n for t in theirs]
    name = f"{what}, CombinedWatermarkStatus, by reference"
    return [*rows, Row.pairs(BATCH, name, unit, less, ours, note="Flink does less: no ids")]


def _batch(coalescer: Coalescer, splits: Ids, watermarks_us: Watermarks) -> int:
    began = time.perf_counter_ns()
    coalescer.report_array(splits, watermarks_us)
    low_us = coalescer.advance()
    spent = time.perf_counter_ns() - began
    assert low_us == watermarks_us.min(), "the race is over the same answer"
    return spent


def _singles(n: int, ask: Ask | None, missing: str, count: int, pairs: int, warm: int) -> list[Row]:
    """Time single reports with their advance: of any split, then of the holder."""
    rng, numbers = random.Random(SEED), np.random.default_rng(SEED)
    splits = _splits(n, numbers)
    coalescer, bytes_a_split = _weighed(splits)
    ids = splits.tolist()
    turns = iter(range(1, 10**9))
    ours: dict[str, list[float]] = {"report": [], "advance": [], "holder report": [], "holder advance": []}
    theirs: list[Flink] = []
    for turn in range(warm + pairs):
        any_split = _one_by_one(coalescer, count, next(turns), rng, lambda: rng.choice(ids))
        holders = _one_by_one(coalescer, count, next(turns), rng, lambda: coalescer.holder)
        if ask is not None:
            answer = ask(n, 1, count)
            theirs += [answer] if turn >= warm else []
        if turn >= warm:
            for name, figure in zip(ours, (*any_split, *holders), strict=True):
                ours[name].append(figure)
    us = {name: statistics.median(figures) for name, figures in ours.items()}
    at, rows = f"{n:,} splits:", list[Row]()
    limits = {"report": Bound(10, "at most"), "advance": Bound(50, "at most")}
    names = {"CombinedWatermarkStatus": "combined", "aggregator": "aggregator"}
    for step, limit in limits.items():
        for rival, field in names.items():
            them = [getattr(answer, f"{field}_{step}") / 1e3 for answer in theirs]
            if them:
                rows.append(Row.pairs(SINGLE, f"{at} one {step}, {rival}", "us", them, ours[step], bound=limit))
        if not theirs:
            rows.append(Row(SINGLE, f"{at} one {step}", "us", None, us[step], bound=limit, note=missing))
        always = us[f"holder {step}"]
        rows.append(Row(ALONE, f"{at} one {step}, always of the holder", "us", None, always, bound=limit))
    limit = Bound(200, "at most")
    rows.append(Row(ALONE, f"{at} memory beside the ids", "bytes a split", None, bytes_a_split, bound=limit))
    return sorted(rows, key=lambda row: row.section != SINGLE)


def _one_by_one(
    coalescer: Coalescer, count: int, turn: int, rng: random.Random, choose: Callable[[], SplitId | None]
) -> tuple[float, float]:
    report, advance = [], []
    for _ in range(count):
        split, watermark_us = choose(), turn * SPREAD_US + rng.randrange(SPREAD_US)
        assert split is not None
        began = time.perf_counter_ns()
        coalescer.report(split, watermark_us)
        between = time.perf_counter_ns()
        coalescer.advance()
        report.append((between - began) / 1e3)
        advance.append((time.perf_counter_ns() - between) / 1e3)
    return statistics.median(report), statistics.median(advance)


def _weighed(splits: Ids) -> tuple[Coalescer, float]:
    """Return a coalescer in use, and its bytes per split without the ids."""
    ids = splits.tolist()
    watermarks_us = _watermarks(len(ids), 0, np.random.default_rng(SEED))
    gc.collect()
    tracemalloc.start()
    try:
        coalescer = Coalescer()
        for split in ids:
            coalescer.assign(split, state=SplitState.ACTIVE, watermark_us=0)
        coalescer.report_array(splits, watermarks_us)
        coalescer.advance()
        bytes_a_split = tracemalloc.get_traced_memory()[0] / len(ids)
    finally:
        tracemalloc.stop()
    return coalescer, bytes_a_split


def _other_order(n: int) -> Row:
    """Time batches in a new order each, so that every split is looked up."""
    rng = np.random.default_rng(SEED)
    splits, coalescer = _splits(n, rng), Coalescer()
    for split in splits.tolist():
        coalescer.assign(split, state=SplitState.ACTIVE, watermark_us=0)
    spent = [_batch(coalescer, rng.permutation(splits), _watermarks(n, turn, rng)) for turn in range(1, 16)]
    a_split = statistics.median(spent) / n
    return Row(ALONE, f"{n:,} splits: a batch in an order that is new each time", "ns a split", None, a_split)


def _coordinator(n: int) -> Row:
    """Time the same batch as an event for the stream's coordinator, with its state of each split."""
    rng = np.random.default_rng(SEED)
    ids = _splits(n, rng)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    of_splits = SplitWatermarks(strategy, job_id="bench", source_id="core", task_id="0")
    spent = []
    for turn in range(1, 16):
        event = BatchReported(turn, turn, SplitColumn(ids, _watermarks(n, turn, rng)))
        began = time.perf_counter_ns()
        of_splits.handle(event, now_us=turn)
        spent.append(time.perf_counter_ns() - began)
    return Row(ALONE, f"{n:,} splits: SplitWatermarks.handle", "ns a split", None, statistics.median(spent) / n)


def _planned(n: int) -> list[Row]:
    """Time a stream that lowmark's own source reads: the claims of a batch, then the batch itself.

    The claims are a mapping, as from the service, with the backlog of each split.
    """
    rng = np.random.default_rng(SEED)
    ids = _splits(n, rng)
    of_splits = SplitWatermarks(WatermarkStrategy(idle_timeout_us=10**9), job_id="b", source_id="core", task_id="0")
    backlog, spent = dict.fromkeys(ids.tolist(), 1), dict[str, list[int]](plan=[], report=[])
    for turn in range(1, 8):
        claims = dict(zip(backlog, _watermarks(n, turn, rng).tolist(), strict=True))
        column = SplitColumn(ids, _watermarks(n, turn, rng))
        at_us = (turn + 1) * SPREAD_US  # after all claims, because the future guard removes claims of later times
        events: dict[str, Event] = {
            "plan": BatchPlanned(at_us + 1, claims, backlog),
            "report": BatchReported(turn, at_us, column),  # Spark's time of a batch is earlier than its plan
        }
        for name, event in events.items():
            began = time.perf_counter_ns()
            of_splits.handle(event, now_us=at_us + 2)
            spent[name].append(time.perf_counter_ns() - began)
    return [
        Row(ALONE, f"{n:,} splits: SplitWatermarks.handle of a {what}", "ns a split", None, statistics.median(ns) / n)
        for what, ns in (("planned batch", spent["plan"]), ("report after a plan", spent["report"]))
    ]


def _splits(n: int, rng: np.random.Generator) -> Ids:
    return rng.integers(0, 2**63, n, dtype=np.uint64)


def _watermarks(n: int, turn: int, rng: np.random.Generator) -> Watermarks:
    return turn * SPREAD_US + rng.integers(0, SPREAD_US, n)
