"""When Python collects garbage while a task reads."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager


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


@functools.cache
def spare_imports() -> None:
    """Leave all objects of now out of later collections, once in a process; call it at the end of a task.

    `pyspark.daemon` collects after each task of a Python worker, and a collection searches all modules that the worker
    has imported: 40 ms of processor time with pyarrow and pandas, for which the worker's next task waits.

    >>> spare_imports()
    >>> gc.get_freeze_count() > 10_000
    True
    """
    gc.freeze()
