"""The tests that `make check` runs, and what keeps the others out of it.

A test is in the quick half unless it is marked `spark`, `live`, `slow` or `torture`; tests/conftest.py marks what takes
the session or a broker. Here a test of the quick half fails if it starts a JVM, in this process or in one it starts, or
any program that is not on a short list: so whoever forgets a mark hears of it, in `make check` and in `make test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MARKS = ("spark", "live", "slow", "torture")
QUICK = " and ".join(f"not {mark}" for mark in MARKS)  # what `make check` says to pytest

# Programs that start nothing and serve nobody. A server of one's own in a thread is no program.
QUIET = {Path(sys.executable).name, "python3", "git", "make", "openssl", "promtool", "ruff", "true"}

_TOLD = "LOWMARK_TESTS_STARTED"  # a file with a line for everything that was started and must not be
_ADVICE = "it is in the quick half, which starts neither a JVM nor a server: mark it spark or live (tests/halves.py)"
# Stands where `java` is looked for. It fails as a broken Java would, and its start is remembered whoever hides that.
_NO_JAVA = f'#!/bin/sh\necho java "$@" >>"${_TOLD}"\necho "{_ADVICE}" >&2\nexit 1\n'


class _Watch:
    """What is changed while a test of the quick half runs."""

    def __init__(self, folder: Path) -> None:
        self.told = folder / "started"
        self.told.touch()
        java = folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text(_NO_JAVA)
        java.chmod(0o755)
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv(_TOLD, str(self.told))
        self._patch.setenv("JAVA_HOME", str(folder))
        self._patch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ.get('PATH', '')}")
        self._patch.setattr(subprocess.Popen, "__init__", self._watched(subprocess.Popen.__init__))
        if "pyspark.sql" in sys.modules:  # another test's session is there already: it would be taken without a start
            from pyspark.sql import SparkSession

            self._patch.setattr(SparkSession.Builder, "getOrCreate", self._no_session)

    def started(self, what: str) -> None:
        with self.told.open("a") as told:
            told.write(f"{what}\n")

    def _watched(self, init: Any) -> Any:
        def start(process: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
            program = Path(os.fsdecode(args if isinstance(args, str | bytes | os.PathLike) else args[0])).name
            if program not in QUIET and program != "java":  # that tells itself, wherever it is started from
                self.started(program)
            init(process, args, *rest, **options)

        return start

    def _no_session(self, *_args: object) -> None:
        self.started("a Spark session")
        raise RuntimeError(_ADVICE)

    def end(self) -> list[str]:
        """What was started."""
        self._patch.undo()
        return self.told.read_text().splitlines()


_WATCH = pytest.StashKey[_Watch]()


def is_quick(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(mark) for mark in MARKS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch from before the first fixture."""
    if is_quick(item):
        factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
        item.stash[_WATCH] = _Watch(factory.mktemp("quick"))
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Until after the last fixture."""
    try:
        return (yield)
    finally:
        watch = item.stash.get(_WATCH, None)
        if watch is not None:
            del item.stash[_WATCH]
            started = watch.end()
            shutil.rmtree(watch.told.parent)
            if started:
                pytest.fail(f"{item.nodeid} started {', '.join(sorted(set(started)))}; {_ADVICE}", pytrace=False)
