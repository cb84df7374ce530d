"""Extent closes the planner and the reader of its source, and tells its group the next row that it may read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lowmark.sources import SourceReaderContext, SourceSplit
from lowmark.sources.planning.extent import Extent
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance
from lowmark.watermark.moment import MILLISECOND_US

from tests.sources.planning.test_batches import SECOND, Induced, InducedReader, Rows

CAP = Guidance(read_before_us=200 * SECOND)


@pytest.mark.parametrize("failing", ["start", "close"])
def test_a_reader_that_decides_and_fails_leaves_no_connection_open(failing: str) -> None:
    closed = list[str]()

    class FailingReader(InducedReader):
        def start(self) -> None:
            if failing == "start":
                raise OSError("no start")

        def close(self) -> None:
            closed.append("reader")
            if failing == "close":
                raise OSError("no close")

    class Failing(Induced):
        def create_reader(self, context: SourceReaderContext) -> InducedReader:
            return FailingReader({})

        def create_planner(self) -> Any:
            planner = super().create_planner()
            planner.close = lambda: closed.append("planner")  # type: ignore[method-assign]
            return planner

    with pytest.raises(OSError, match=f"no {failing}"):
        Extent(Failing(), "rows", PlanOptions(), [], None).close()

    assert closed == ["reader", "planner"]


def next_us(
    extent: Extent[SourceSplit], *splits: SourceSplit, guidance: Guidance = CAP, to_present: bool = False
) -> int | None:
    """Plan below the cap without a row, and return the event time that the group is told."""
    plan = extent.plan(splits, guidance, checkpoint=1, max_rows=None, now_us=10**12, to_present=to_present)
    assert plan.rows == 0
    return plan.next_us


def test_a_group_is_told_no_row_that_waits_for_a_parent_because_the_parent_would_wait_for_ever() -> None:
    extent = Extent(Rows(parent=[100, 500], child=[300]), "rows", PlanOptions(), [], None)
    parent, child = SourceSplit(split_id="parent", start=1), SourceSplit(split_id="child", parents=("parent",))

    assert next_us(extent, parent, child) == pytest.approx(500 * SECOND, abs=MILLISECOND_US)


def test_a_group_is_told_no_row_behind_the_end_of_a_run_because_the_run_would_never_end() -> None:
    source = Rows(a=[100], b=[100, 500])
    extent, a, b = Extent(source, "rows", PlanOptions(), [], None), *(SourceSplit(split_id=n, start=1) for n in "ab")
    assert next_us(extent, a, b, to_present=True) == pytest.approx(500 * SECOND, abs=MILLISECOND_US)
    source.times["a"].append(110)

    assert next_us(extent, a, b, to_present=True) == pytest.approx(500 * SECOND, abs=MILLISECOND_US)


def test_a_group_is_told_how_far_a_split_was_read_if_a_row_of_a_wrong_clock_hides_its_next_one() -> None:
    extent = Extent(Rows(a=[300, 10_000_000, 310]), "rows", PlanOptions(future_guard_us=300 * SECOND), [], None)
    guidance = replace(CAP, observed_us={"a": 300 * SECOND})

    assert next_us(extent, SourceSplit(split_id="a", start=1), guidance=guidance) == 300 * SECOND


def test_a_stream_that_its_group_holds_reads_no_row_of_a_split_with_a_wrong_clock() -> None:
    source = Rows(a=[100], b=[10_000_000, *range(101, 200)])
    extent = Extent(source, "rows", PlanOptions(future_guard_us=300 * SECOND), [], None)
    splits = [SourceSplit(split_id=name) for name in "ab"]
    hold, now_us = Guidance(hold=True), 1_000_000 * SECOND
    plan = extent.plan(splits, hold, checkpoint=1, max_rows=50, now_us=now_us, to_present=False)

    assert plan.rows == 0
    assert plan.next_us == pytest.approx(100 * SECOND, abs=MILLISECOND_US)


def test_a_stream_that_its_group_holds_is_read_until_it_is_heard_of_if_rows_of_wrong_clocks_come_first() -> None:
    source = Rows(a=[100], b=[*[10_000_000] * 5, *range(200, 300)])
    extent = Extent(source, "rows", PlanOptions(future_guard_us=300 * SECOND), [], None)
    read, observed_us = list[int](), {"a": 100 * SECOND}
    while len(read) < 9:
        splits = [SourceSplit(split_id="a", start=1), SourceSplit(split_id="b", start=sum(read))]
        guidance, now_us = Guidance(hold=True, observed_us=observed_us), 1_000_000 * SECOND
        plan = extent.plan(splits, guidance, checkpoint=1, max_rows=3, now_us=now_us, to_present=False)
        read.append(plan.rows)
        if sum(read) > 5:
            observed_us["b"] = 200 * SECOND

    assert read == [3, 3, 0, 0, 0, 0, 0, 0, 0]
