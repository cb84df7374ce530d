"""Mistakes of connectors that plan: the error names the source, the split and what the connector gave."""

from __future__ import annotations

from contextlib import closing

import pytest
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner, PlanningFailed

from tests.sources.numbered import Numbered


def plan_first(source: Numbered) -> None:
    planner = BatchPlanner(source, name="rows", options=PlanOptions(timeout_seconds=20))
    with closing(planner):
        planner.plan(planner.initial(), 10)


@pytest.mark.parametrize("method", ["latest", "find_time"])
def test_an_answer_without_a_row_that_next_asks_for_is_told_with_source_and_batch(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Numbered()
    monkeypatch.setattr(source, method, lambda *_: next(iter([])))
    with pytest.raises(PlanningFailed, match=r"'rows': cannot plan batch 1: StopIteration\. Hint: remove the cause"):
        plan_first(source)
