"""Runs the benchmarks, prints the table and keeps it as JSON in tests/bench/results/."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from . import (
    backfill,
    core,
    crowd,
    delay,
    grpc,
    kafka,
    kinesis,
    late,
    many,
    pravega,
    scan,
    scrape,
    small,
    start,
    throughput,
    transports,
)
from .live import session
from .measure import Row, Spread

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parent / "results"
Part = Callable[["SparkSession", "LowWatermarkService", Path], list[Row]]
PARTS: dict[str, tuple[Part, Part]] = {  # name -> (full, smoke)
    "scan": (
        lambda *given: scan.run(*given, rows=5_000_000, rounds=6),
        lambda *given: scan.run(*given, rows=20_000, rounds=1, warm=0),
    ),
    "small": (
        lambda *given: small.run(*given, batches=100, warm_chunks=3),
        lambda *given: small.run(*given, batches=10, warm_chunks=0),
    ),
    "late": (
        lambda *given: late.run(*given, sizes=(1_000, 200_000), chunks=3, warm=2),
        lambda *given: late.run(*given, sizes=(1_000,), chunks=1, warm=0),
    ),
    "start": (
        lambda *given: start.run(*given, pairs=9),
        lambda *given: start.run(*given, pairs=1),
    ),
    "crowd": (
        lambda *given: crowd.run(*given, crowds={1: 1, 20: 10, 50: 1}, batches=10),
        lambda *given: crowd.run(*given, crowds={2: 2}, batches=2),
    ),
    "many": (
        lambda *given: many.run(*given, batches=20, tasks=1_000, rounds=3),
        lambda *given: many.run(*given, batches=5, tasks=20, rounds=1),
    ),
    "kafka": (
        lambda *given: kafka.run(*given, count=2_000_000, pairs=3),
        lambda *given: kafka.run(*given, count=20_000, pairs=1, warm=0),
    ),
    "backfill": (
        lambda *given: backfill.run(*given, count=10_000_000, pairs=2),
        lambda *given: backfill.run(*given, count=20_480, pairs=1, slice_minutes=360),
    ),
    "delay": (
        lambda *given: delay.run(*given, triggers=(0, 1, 10), windows=30, warm=15),
        lambda *given: delay.run(*given, triggers=(0,), windows=2, warm=2),
    ),
    "throughput": (
        lambda *given: throughput.run(*given, small=2_000_000, large=500_000, pairs=3),
        lambda *given: throughput.run(*given, small=20_000, large=2_000, pairs=1, warm=0),
    ),
    "transports": (
        lambda *given: transports.run(*given, rows=5_000_000, rounds=4),
        lambda *given: transports.run(*given, rows=20_000, rounds=1, warm=0),
    ),
    "kinesis": (
        lambda *given: kinesis.run(given[0], given[-1], rows=160_000, few=2_000, pairs=3),
        lambda *given: kinesis.run(given[0], given[-1], rows=2_000, few=200, pairs=1),
    ),
    "pravega": (
        lambda *given: pravega.run(given[0], given[-1], rows=1_200_000, few=10_000, pairs=3),
        lambda *given: pravega.run(given[0], given[-1], rows=8_000, few=2_000, pairs=1),
    ),
    "segments": (
        lambda *given: pravega.run_segments(given[0], given[-1], segments=200, batches=10),
        lambda *given: pravega.run_segments(given[0], given[-1], segments=8, batches=2),
    ),
    "core": (
        lambda *given: core.run(given[-1], sizes=[10, 100, 1_024, 4_096, 10_000, 100_000], pairs=7, singles=2_000),
        lambda *given: core.run(given[-1], sizes=[10, 1_024], pairs=2, singles=100, warm=1),
    ),
    "scrape": (
        lambda *_: scrape.run(sizes=(5_000, 50_000)),
        lambda *_: scrape.run(sizes=(500, 1_000), turns=1),
    ),
    "grpc": (
        lambda *given: grpc.run(given[-1], streams=1_000, applications=5, seconds=20),
        lambda *given: grpc.run(given[-1], streams=20, applications=2, seconds=4),
    ),
}
QUICK: dict[str, Part] = {  # the rows that a change is most likely to spoil, in five minutes
    "core": lambda *given: core.run(given[-1], sizes=[10, 1_024], pairs=3, singles=500),
    "start": lambda *given: start.run(*given, pairs=5),
    "small": lambda *given: small.run(*given, batches=50, warm_chunks=2),
    "scan": lambda *given: scan.run(*given, rows=1_000_000, rounds=4),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help=f"five minutes: {', '.join(QUICK)}")
    how.add_argument("--smoke", action="store_true", help="tiny inputs, figures without meaning")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated")
    given = parser.parse_args(arguments)
    if given.quick and (more := {*(given.only or ())} - QUICK.keys()):
        parser.error(f"--quick has no part {', '.join(sorted(more))}")
    parts = QUICK if given.quick else {name: part[given.smoke] for name, part in PARTS.items()}
    from lowmark.integration import LowWatermarkService

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM must end the broker, too
    kinesis.give_access()
    began, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    lost = False
    with (
        tempfile.TemporaryDirectory(prefix="lowmark-bench-") as folder,
        session(Path(folder)) as spark,
        LowWatermarkService(spark) as service,
    ):
        for name in given.only or parts:
            print(f"{time.monotonic() - began:5.0f} s  {name}", file=sys.stderr, flush=True)
            try:
                rows += parts[name](spark, service, Path(folder))
            except Exception as failed:  # noqa: BLE001  # the row stays in the table, the other parts still run
                traceback.print_exc()
                rows.append(Row(name, f"failed: {type(failed).__name__}: {failed}"[:200], "", None, None))
                lost = True
    header = {
        "at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "quick": given.quick,
        "smoke": given.smoke,
        "seconds": round(time.monotonic() - began),
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": _commit(),
        "packages": {name: version(name) for name in ("pyspark", "pyarrow", "numpy", "grpcio", "confluent-kafka")},
        "machine": platform.machine(),
        "records": scan.RECORDS,
    }
    keep(header, rows)
    show(header, rows)
    return 1 if lost else 0


def _commit() -> str:
    """The commit that was measured, with a sign of changes on top; "" outside of a repository."""
    told = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip()


def keep(header: dict[str, object], rows: list[Row]) -> None:
    RESULTS.mkdir(exist_ok=True)
    stamp = str(header["at"]).replace(":", "").replace("+0000", "")
    kept = {**header, "rows": [{**asdict(row), "met": row.met} for row in rows]}
    how = next((f"-{each}" for each in ("quick", "smoke") if header[each]), "")
    (RESULTS / f"{stamp}{how}.json").write_text(json.dumps(kept, indent=1) + "\n")


def show(header: dict[str, object], rows: list[Row]) -> None:
    table = Table(title="lowmark: native against wrapped, medians of pairs run in turns", show_lines=False)
    for column in ("what", "unit", "native", "wrapped", "ratio (min..max)", "added (min..max)", "asked", "met", "note"):
        numeric = column in ("native", "wrapped")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(f"[bold]{section}")
        met = "" if row.met is None else "smoke" if header["smoke"] else "yes" if row.met else "NO"
        bound = "" if row.bound is None else str(row.bound)
        table.add_row(
            f"  {row.what}", row.unit, _number(row.native), _number(row.wrapped), _spread(row.ratio, 2),
            _spread(row.added, 2 if row.unit == "us" else 0), bound, met, row.note,
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(
        f"{header['seconds']} s on {header['cores']} cores; load before {header['load_before']}, after "
        f"{header['load_after']} (2 and more on 2 cores by others: figures are disturbed)"
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f}..{spread.high:,.{digits}f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
