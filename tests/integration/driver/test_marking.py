"""`Marking` without a query: measurements in, marks out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lowmark.integration.driver.marking import DonePartition, Marking
from lowmark.integration.spark.progress import Progress

HOUR_US = 3_600_000_000
BEFORE_YEAR_1 = -62_200_000_000_000_000 // HOUR_US
"""An hour that a broken time of a row may have: Spark has the year, Python has not."""


def batch(batch_id: int, *numbers: int) -> Progress:
    metrics = {"lowmark:done:orders": {"numbers": list(numbers)}}
    return Progress("q", "r", batch_id, len(numbers), [], [], observed_metrics=metrics)


def marking_of(act: Callable[[DonePartition], None], committed: tuple[int | None, int | None]) -> tuple[Marking, Any]:
    """A marking by the hour and its query, whose newest commit is of this batch, complete until this time."""
    marking = Marking("orders", "ts", HOUR_US, 0, "hour=%H", act)
    files = SimpleNamespace(read_done=lambda _: None, write_done=lambda *_: None, newest_commit=lambda _: committed)
    query = SimpleNamespace(query_id="q", name="orders", farewells=files, observed=lambda: {marking.metric})
    return marking, query


def test_a_row_of_before_the_year_1_does_not_end_the_marks_of_all_other_hours() -> None:
    marked, is_marked = list[str](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append(partition.name)
        is_marked.set()

    marking, query = marking_of(act, (None, None))
    marking.begin(query)
    marking.take(batch(0, BEFORE_YEAR_1, 1), query, until_us=2 * HOUR_US, had_rows=True)
    assert is_marked.wait(5), "the marks have ended"
    marking.stop()
    assert marked == ["hour=01"]


def test_a_marking_of_a_query_that_ran_without_a_low_watermark_knows_that_hours_may_have_rows() -> None:
    marked, are_marked = list[tuple[str, bool]](), threading.Event()

    def act(partition: DonePartition) -> None:
        marked.append((partition.name, partition.has_rows))
        if len(marked) == 2:
            are_marked.set()

    marking, query = marking_of(act, (5, None))
    marking.begin(query)
    marking.take(batch(6, 3), query, until_us=5 * HOUR_US, had_rows=True)
    are_marked.wait(2)
    marking.stop()
    assert marked == [("hour=03", True), ("hour=04", False)]
