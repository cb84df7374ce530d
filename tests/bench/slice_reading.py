"""What the benchmarks of single connectors share: a reader run without Spark, and what it is asked to keep to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lowmark.sources.api import Source
from lowmark.sources.reading.slices import read_slices

from .measure import Bound

__all__ = ["PLAIN", "SIX_TIMES", "measured", "ours_read"]

PLAIN = Bound(1 / 0.7, "ratio")
SIX_TIMES = Bound(1 / 6, "ratio")


def measured(read: Callable[[], int], rows: int) -> tuple[float, float]:
    """Seconds from start to end, and of processor time, that it takes to read so many rows."""
    wall, processor = time.perf_counter(), time.process_time()
    came = read()
    spent = time.perf_counter() - wall, time.process_time() - processor
    assert came == rows, f"{came} of {rows} rows"
    return spent


def ours_read(source: Source[Any, Any], slices: Sequence[Any]) -> int:
    """Read slices as a task does; return how many rows came."""
    return sum(part.rows.num_rows for part in read_slices(source, slices))
