"""Defines the quick half of the tests, which `make check` runs, and fails a quick test that starts a JVM or a server.

A test is quick unless it is marked `spark`, `live`, `slow` or `torture`; tests/conftest.py marks tests that use the
session or a server. A quick test fails if it, or a process that it starts, starts a JVM, or if it starts a program that
is not in `QUIET`. So a forgotten mark fails in `make check` and in `make test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MARKS = ("spark", "live", "slow", "torture")
QUICK = " and ".join(f"not {mark}" for mark in MARKS)  # the `-m` expression of `make check`

# Programs that start no other program and serve no client. A server in a thread of the test is allowed.
QUIET = {Path(sys.executable).name, "python3", "git", "make", "openssl", "promtool", "ruff", "true"}

_TOLD = "LOWMARK_TESTS_STARTED"  # variable with the path of a file: one line for each forbidden start
_ADVICE = "it is in the quick half, which starts neither a JVM nor a server: mark it spark or live (tests/halves.py)"
# Stands in for `java` on PATH: it fails as a broken Java would, and records its start if the caller hides the error.
_NO_JAVA = f'#!/bin/sh\necho java "$@" >>"${_TOLD}"\necho "{_ADVICE}" >&2\nexit 1\n'


class _Watch:
    """The changes to the environment while a quick test runs."""

    def __init__(self, folder: Path) -> None:
        self.told = folder / "started"
        self.told.unlink(missing_ok=True)  # what a process of an earlier test started late
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv(_TOLD, str(self.told))
        self._patch.setenv("JAVA_HOME", str(folder))
        self._patch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ.get('PATH', '')}")
        self._patch.setattr(subprocess.Popen, "__init__", self._watched(subprocess.Popen.__init__))
        if "pyspark.sql" in sys.modules:  # another test's session exists: using it would start no program
            from pyspark.sql import SparkSession

            self._patch.setattr(SparkSession.Builder, "getOrCreate", self._no_session)

    def started(self, what: str) -> None:
        with self.told.open("a") as told:
            told.write(f"{what}\n")

    def _watched(self, init: Any) -> Any:
        def start(process: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
            program = Path(os.fsdecode(args if isinstance(args, str | bytes | os.PathLike) else args[0])).name
            if program not in QUIET and program != "java":  # the stand-in for `java` records its own starts
                self.started(program)
            init(process, args, *rest, **options)

        return start

    def _no_session(self, *_args: object) -> None:
        self.started("a Spark session")
        raise RuntimeError(_ADVICE)

    def end(self) -> list[str]:
        """Undo the changes, and return the forbidden starts."""
        self._patch.undo()
        return self.told.read_text().splitlines() if self.told.exists() else []


_WATCH = pytest.StashKey[_Watch]()
_FOLDER = pytest.StashKey[Path]()


def _folder(config: pytest.Config) -> Path:
    """The folder of all watches of this process, a home with the stand-in for `java`: each test would make three
    files and two folders otherwise, and remove them.
    """
    if _FOLDER not in config.stash:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        config.stash[_FOLDER] = folder = factory.mktemp("quick")
        java = folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text(_NO_JAVA)
        java.chmod(0o755)
    return config.stash[_FOLDER]


def is_quick(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(mark) for mark in MARKS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Begin to watch before the first fixture."""
    if is_quick(item):
        item.stash[_WATCH] = _Watch(_folder(item.config))
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End the watch after the last fixture."""
    try:
        return (yield)
    finally:
        watch = item.stash.get(_WATCH, None)
        if watch is not None:
            del item.stash[_WATCH]
            started = watch.end()
            if started:
                pytest.fail(f"{item.nodeid} started {', '.join(sorted(set(started)))}; {_ADVICE}", pytrace=False)
