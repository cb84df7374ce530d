"""Common parts of the connectors' benchmarks: a reader without Spark, and the required limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lowmark.sources.api import Source
from lowmark.sources.reading.slices import read_slices

from .measure import Bound

PLAIN = Bound(1 / 0.7, "ratio")
SIX_TIMES = Bound(1 / 6, "ratio")


def measured(read: Callable[[], int], rows: int) -> tuple[float, float]:
    """Read this many rows; return the wall seconds and the processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    came = read()
    spent = time.perf_counter() - wall, time.process_time() - processor
    assert came == rows, f"{came} of {rows} rows"
    return spent


def ours_read(source: Source[Any, Any], slices: Sequence[Any]) -> int:
    """Read slices as a task does; return the number of rows."""
    return sum(part.rows.num_rows for part in read_slices(source, slices))
