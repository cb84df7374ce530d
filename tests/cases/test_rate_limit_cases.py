"""Flink's own cases for rate limits (FLIP-535), as questions of a planner: one budget for all readers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lowmark.sources import RateLimiterStrategy, SourceSplit
from lowmark.sources.kit.simple import SimplePlanner
from lowmark.sources.planning.rate import InvalidRate, RateBudget
from lowmark.sources.slicing import SliceLimits, plan_slices

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.sources.numbered import Numbered


def batches(budget: RateBudget, rows: int, many: int) -> list[int]:
    """Return the number of rows of each batch, from one split of `rows` rows."""
    planner, split, taken = SimplePlanner(Numbered()), SourceSplit(split_id="a", stop=rows), []
    for _ in range(many):
        limits = SliceLimits(now_us=0, rows=budget.grant(0), by_time=False)
        plan = plan_slices(planner, [split], limits, previous_time_us=None)
        budget.take(plan.rows, more=plan.more)
        taken.append(plan.rows)
        split = SourceSplit(split_id="a", start=plan.slices["a"].stop, stop=rows)
    return taken


def a_gate_holds_what_exceeds_its_capacity(case: Case) -> None:
    assert batches(RateBudget(RateLimiterStrategy.per_checkpoint(5)), 10, 3) == [5, 5, 0]


def a_rate_of_nothing_is_refused(case: Case) -> None:
    for rows in (0, -1):
        with pytest.raises(InvalidRate, match="rows per checkpoint: expected 1 or more"):
            RateLimiterStrategy.per_checkpoint(rows)


def a_reader_emits_so_many_rows_per_checkpoint(case: Case) -> None:
    taken = batches(RateBudget(RateLimiterStrategy.per_checkpoint(2)), 30, 15)
    for cycle in range(1, 16):
        assert 1 + 2 * (cycle - 1) <= sum(taken[:cycle]) <= 1 + 2 * cycle, cycle

    assert sum(taken) == 30


RTL: dict[str, Callable[[Case], None]] = {
    "RTL-01": a_gate_holds_what_exceeds_its_capacity,
    "RTL-05": a_rate_of_nothing_is_refused,
    "RTL-07": a_reader_emits_so_many_rows_per_checkpoint,
}


@pytest.mark.parametrize("case", [case for case in family("RTL") if case["id"] not in DEVIATIONS], ids=case_id)
def test_rate_limits(case: Case) -> None:
    RTL[case["id"]](case)


def test_no_case_is_skipped() -> None:
    assert RTL.keys() == {case["id"] for case in family("RTL")} - DEVIATIONS.keys()
