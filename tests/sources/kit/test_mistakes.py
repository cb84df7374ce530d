"""Mistakes of connectors that plan: the error names the source, the split and what the connector gave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.kit.listed_splits import fault_of
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


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (lambda split: split, r"Numbered\.latest returned an end for SourceSplit\(split_id='a'.*expected the id of a"),
        (lambda split: 7, r"Numbered\.latest returned an end for 7, expected the id of a split, a text"),
    ],
)
def test_ends_under_keys_that_are_no_ids_are_refused_because_no_row_would_ever_be_read(
    key: Callable[[SourceSplit], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Numbered()
    monkeypatch.setattr(source, "latest", lambda splits: {key(split): SplitEnd(position=5) for split in splits})
    with pytest.raises(PlanningFailed, match=said):
        plan_first(source)


def test_a_split_that_starts_after_its_stop_is_told_by_discover_and_not_by_latest() -> None:
    assert fault_of([SourceSplit(split_id="a", start=5, stop=5)]) is None
    assert fault_of([SourceSplit(split_id="a", start=5, stop=3)]) == "split 'a' starts at 5, after its stop, 3"


def test_a_position_of_another_type_is_shown_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Numbered()
    monkeypatch.setattr(source, "latest", lambda splits: {"a": SplitEnd(position="5")})  # type: ignore[arg-type]
    with pytest.raises(PlanningFailed, match=r"latest\(\) answered position '5', expected its start, 0, or more"):
        plan_first(source)


def test_a_found_position_without_its_split_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Numbered()
    monkeypatch.setattr(source, "find_time", lambda splits, time_us: 7)
    with pytest.raises(
        PlanningFailed, match=r"Numbered\.find_time returned 7, expected a mapping from the ids of splits"
    ):
        plan_first(source)
