"""A program for `PYSPARK_PYTHON` that forks Spark's Python processes, because importing is most of their cost.

Spark starts a process for each source of each query, and each process imports the same modules, half a second of
processor time. A process of the tests imports the modules once and forks for each `python -m pyspark...`, like Spark's
daemon for the workers of tasks. All other calls of the program start Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import python_forks_service
from tests.servers.local import Process

_PROGRAM = """\
#!/bin/sh
case "$1 $2" in "-m pyspark."*) exec '{python}' -I -S '{service}' '{socket}' "$@" ;; esac
exec '{python}' "$@"
"""


@contextmanager
def python_forks(folder: Path) -> Iterator[Path]:
    """Start the process that forks, and stop it at the end. Yields the program."""
    path, service = folder / "forks", python_forks_service.__file__
    program = folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, service=service, socket=path))
    program.chmod(0o700)
    forks = Process("python_forks_service", [sys.executable, service, str(path)], folder / "forks.log")
    forks.start(path.exists)
    try:
        yield program
    finally:
        forks.stop()
