"""Saves processor time that PySpark's workers spend beside reading: collecting garbage, and listing archives."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from zipimport import zipimporter

_ARCHIVES = ("pyspark.zip", "py4j-", "spark-core")
"""Beginnings of the names of what Spark puts on the path of its Python processes."""


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Turn the cycle collector off, because records have no cycles and collecting takes a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def spare_next_task() -> None:
    """Take work from the worker's next task, which waits for it; call this at the end of a task.

    After each task `pyspark.daemon` collects garbage, and the collection searches all modules that the worker has
    imported: 40 ms of processor time with pyarrow and pandas. Before each task `pyspark.worker` calls
    `importlib.invalidate_caches`, and each finder of a package in pyspark.zip then reads the archive's list of files.
    """
    _leave_out_imports()
    for path, finder in list(sys.path_importer_cache.items()):  # an import makes a finder anew
        if isinstance(finder, zipimporter) and PurePath(finder.archive).name.startswith(_ARCHIVES):
            sys.path_importer_cache.pop(path, None)


@functools.cache
def _leave_out_imports() -> None:
    gc.freeze()
