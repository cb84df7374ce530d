"""The start of Spark's Python processes for our sources: they import the installed pyspark, not an archive of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyspark
import pytest
from lowmark.sources.spark import startup
from lowmark.sources.spark.source import register_class
from pyspark.sql.datasource import DataSource

INSTALLED = Path(pyspark.__file__).parent
LIB = INSTALLED / "python" / "lib"
OURS = startup.__path__[0]


def started(*path: str | Path) -> tuple[str, list[str]]:
    """Start Python with a path: where pyspark comes from, and the whole path."""
    told = "import sys, pyspark; print(pyspark.__file__, *sys.path, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    file, *found = done.stdout.splitlines()
    return file, found


@pytest.mark.slow
def test_pyspark_is_imported_from_where_it_is_installed() -> None:
    archives = [LIB / "pyspark.zip", *LIB.glob("py4j-*.zip")]
    assert str(LIB) in started(*archives)[0], "Spark's own order of the path takes the archive"
    file, path = started(*archives, OURS)

    assert Path(file).parent == INSTALLED
    assert path[-len(archives) :] == [*map(str, archives)], "the archives stay, behind all else"
    assert OURS not in path


@pytest.mark.slow
def test_an_archive_of_another_pyspark_stays_in_front(tmp_path: Path) -> None:
    lib = tmp_path / "pyspark" / "python" / "lib"
    lib.mkdir(parents=True)
    archive = shutil.copy(LIB / "pyspark.zip", lib)
    assert started(archive, OURS)[0].startswith(str(archive)), "no package around the archive"
    (tmp_path / "pyspark" / "__init__.py").touch()
    assert started(archive, OURS)[0].startswith(str(archive)), "a package that is not the installed one"


def test_an_environments_own_start_follows(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.path.append('customized')")
    file, path = started(LIB / "pyspark.zip", OURS, tmp_path)

    assert (Path(file).parent, path[-1]) == (INSTALLED, "customized")


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": "/theirs", "OTHER": "1"}])
def test_only_our_sources_start_so(before: dict[str, str]) -> None:
    environment, seen = {**before}, dict[str, str]()

    def register(source: type[DataSource]) -> None:
        seen.update(environment)

    session: Any = MagicMock(
        sparkContext=SimpleNamespace(environment=environment), dataSource=SimpleNamespace(register=register)
    )
    register_class(session, DataSource)

    assert seen == {**before, "PYTHONPATH": os.pathsep.join([OURS, *filter(None, [before.get("PYTHONPATH")])])}
    assert environment == before


def test_sources_that_two_threads_register_leave_the_environment_as_it_was() -> None:
    environment, seen = {"PYTHONPATH": "/theirs"}, list[str]()
    first, both = threading.Event(), threading.Event()

    def register(source: type[DataSource]) -> None:
        seen.append(environment["PYTHONPATH"])
        if len(seen) == 1:
            first.set()
            both.wait(0.2)  # a second registration that did not wait would be here now
        else:
            both.set()

    session: Any = MagicMock(
        sparkContext=SimpleNamespace(environment=environment), dataSource=SimpleNamespace(register=register)
    )
    other = threading.Thread(target=register_class, args=(session, DataSource))
    other.start()
    assert first.wait(10)
    register_class(session, DataSource)
    other.join(10)

    assert seen == [os.pathsep.join([OURS, "/theirs"])] * 2
    assert environment == {"PYTHONPATH": "/theirs"}
