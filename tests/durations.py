"""How long each file of tests took in the last whole run: the longest begin first, so no process waits for another.

`make test PYTEST_ARGS=--junitxml=build/tests.xml` measures, `python -m tests.durations build/tests.xml` keeps that in
durations.json, and prints what took longest.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

KEPT = Path(__file__).with_name("durations.json")
_PRINTED = 40


def kept_seconds() -> dict[str, float]:
    """Return the seconds of each test file, by its path from the project's root. A new file is not there."""
    seconds: dict[str, float] = json.loads(KEPT.read_text("utf-8"))
    return seconds


def _measured(report: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds by test file and by test function, over all its cases."""
    files, functions = defaultdict[str, float](float), defaultdict[str, float](float)
    for case in ET.parse(report).iter("testcase"):
        module, _, _ = case.attrib.get("classname", "").partition(".Test")
        if not module:
            continue  # what pytest says of itself
        file = module.replace(".", "/") + ".py"
        seconds = float(case.attrib["time"])
        files[file] += seconds
        functions[f"{file}::{case.attrib['name'].partition('[')[0]}"] += seconds
    return _longest_first(files), _longest_first(functions)


def _longest_first(seconds: dict[str, float]) -> dict[str, float]:
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))


def main(report: str) -> None:
    """Keep what a report of pytest says."""
    files, functions = _measured(Path(report))
    kept = {file: round(seconds, 1) for file, seconds in files.items()}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    for title, counted in (("files", files), ("tests", functions)):
        print(f"{title}: {sum(counted.values()):,.0f} s")
        for name, seconds in list(counted.items())[:_PRINTED]:
            print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
