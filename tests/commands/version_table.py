"""Prints the features that work on each Spark, found by trying: `version_app.py` in the environment of each version.

Usage: python -m tests.commands.version_table [VERSION ...]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PINNED = "4.2.0"  # the `pyspark` of constraints.txt


def environments() -> dict[str, Path]:
    """Version -> its Python."""
    others = re.findall(r"^SPARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    found = {version: ROOT / f".venv-{version}" / "bin" / "python" for version in others}
    return dict(sorted({**found, PINNED: ROOT / ".venv" / "bin" / "python"}.items()))


def tried(python: Path, folder: Path, *stay: str, seconds: float) -> dict[str, Any]:
    """Return the results of `version_app` under a Python; `stay` is for its queries with timers.

    Raises:
        AssertionError: it failed, with the end of its stderr.
    """
    command = [str(python), "-m", "tests.integration.spark.version_app", str(folder), *stay]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    came: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return came


def main(versions: list[str]) -> None:
    rows: dict[str, list[str]] = {}
    asked = {version: python for version, python in environments().items() if not versions or version in versions}
    for version, python in asked.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lowmark-versions-") as folder:
            came = tried(python, Path(folder), seconds=600)
        print(f"{version}: {json.dumps(came)}", file=sys.stderr, flush=True)
        in_python = any("Python once" in line for line in came["told"])
        again, now, turns, read = (came[what] for what in ("restarted", "available_now", "adopted", "read"))
        cells = {
            "wrap, stopped and restarted: rows in windows, dropped": f"{len(again['rows'])}, {again['dropped']}",
            "AvailableNow: batches, rows in windows": f"{now['batches']}, {len(now['rows'])}",
            "native, adopted, left: rows in windows, dropped, read again": (
                f"{len(turns['rows'])}, {turns['dropped']}, {turns['read_again']}"
            ),
            "read in two runs: rows in windows, dropped, largest batch": (
                f"{sum(read['emitted'].values())}, {read['dropped']}, {read['largest']}"
            ),
            "audit of a running query: late rows of the slow split": (
                "refused" if came["watched"]["refused"] else str(came["watched"]["late"]["slow"])
            ),
            "rows of wrap are measured in": "Python" if in_python else "the JVM",
            "seconds": f"{time.monotonic() - began:.0f}",
        }
        for what, cell in cells.items():
            rows.setdefault(what, []).append(cell)
    print(f"| | {' | '.join(asked)} |")
    print("|---" * (len(asked) + 1) + "|")
    for what, found in rows.items():
        print(f"| {what} | {' | '.join(found)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
