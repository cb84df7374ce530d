"""Worlds of `backfill.py`, and the law of fair shares; `python -m tests.laws.backfill` plays more worlds by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowmark.sources import SourceSplit
from lowmark.sources.slicing import NoRowsReason, SliceLimits, SlicePlan, plan_slices
from lowmark.sources.slicing.shares import share_out
from lowmark.sources.slicing.table import SliceTable

from tests.laws.backfill import NOW_US, Backfill, Judge, Log, LogSplit, Violation, backfill_of_a_day
from tests.laws.strategies import LAWS, draws

SEEDS, AT_ONCE = 64, 8


@pytest.mark.parametrize("first", range(0, draws(SEEDS), AT_ONCE))
def test_no_world_breaks_a_law(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        world = Backfill(seed)
        world.run()
        met += world.counts

    assert met["batches"] > 0
    assert met["read to the end"] == AT_ONCE


def test_the_worlds_meet_what_they_are_for() -> None:
    worlds = [Backfill(seed) for seed in range(SEEDS)]

    features = (
        "bad_clocks",
        "begun_in_the_middle",
        "late_rows",
        "restarts",
        "by_time",
        "targets",
        "read_before_us",
        "hidden",
        "transactions",
    )
    for feature in features:
        assert len({bool(getattr(world, feature)) for world in worlds}) == 2, feature


def test_one_seed_is_one_world() -> None:
    worlds = [Backfill(7), Backfill(7)]
    for world in worlds:
        world.run()

    assert worlds[0].counts == worlds[1].counts
    assert worlds[0].starts == worlds[1].starts


def test_a_day_of_64_splits_needs_few_lookups_and_no_split_is_a_slice_ahead() -> None:
    """DESIGN section 5, with a tenth of the rows: one split is six hours behind."""
    day = backfill_of_a_day(splits=64, rows=200_000)

    assert day.lookups[0] <= 15
    assert sum(day.lookups) / len(day.lookups) <= 3
    assert max(day.spans_us) <= 15 * 60 * 1_000_000, "ten minutes are the budget of a slice"
    assert sum(day.filled) / len(day.filled) >= 0.8
    assert sorted(day.own_ms)[len(day.own_ms) // 2] <= 20


# --- the judge can fail


def falsified(change: Callable[[SlicePlan], SlicePlan]) -> None:
    world = Backfill(5)
    log = LogSplit()
    log.append([NOW_US - 1_000 + i for i in range(10)])
    world.log, world.starts, world.unruly_us = Log({"a": log}), {"a": 0}, 0
    asked = [SourceSplit(split_id="a")]
    limits = SliceLimits(now_us=NOW_US, rows=4)
    plan = change(plan_slices(world.log, asked, limits, previous_time_us=None))
    Judge(world, asked, limits, plan, {"a": 10}).judge()


def of_a(**fields: object) -> Callable[[SlicePlan], SlicePlan]:
    return lambda plan: replace(plan, slices={"a": replace(plan.slices["a"], **fields)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_a(claim_us=NOW_US), "a false claim"),
        (of_a(stop=9, rows=9, backlog_rows=1), "9 rows for a budget of 4"),
        (of_a(start=1), "start=1"),
        (of_a(stop=11), "stop=11"),
        (of_a(rows=0), "rows in"),
        (of_a(backlog_rows=0), "rows are left"),
        (of_a(finished=True), "finished?"),
        (of_a(stop=0, rows=0, backlog_rows=10), "nobody says why"),
        (lambda plan: replace(plan, slices={}), "not every split"),
        (lambda plan: replace(plan, without_rows={"a": NoRowsReason.CAP}), "is held, and read"),
    ],
)
def test_a_plan_that_breaks_a_law_is_found(change: Callable[[SlicePlan], SlicePlan], said: str) -> None:
    falsified(lambda plan: plan)

    with pytest.raises(Violation, match=r"(?s)seed 5: .*" + said.replace("?", r"\?") + r".*--start 5"):
        falsified(change)


# --- fair shares


@settings(LAWS)
@given(
    needs=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    budget=st.integers(1, 120),
    excluded=st.sets(st.integers(0, 11)),
    observed=st.dictionaries(st.integers(0, 11), st.integers(-1, 3)),
)
def test_shares_are_fair(needs: list[int], budget: int, excluded: set[int], observed: dict[int, int]) -> None:
    logs = {f"{i}": LogSplit(end=need) for i, need in enumerate(needs)}
    log = Log(logs)
    splits = [SourceSplit(split_id=name) for name in logs]
    ends = [log.latest([split])[split.split_id] for split in splits]
    limits = SliceLimits(now_us=0, rows=budget, observed_us={f"{i}": us for i, us in observed.items()})
    table = SliceTable(log, list(zip(splits, ends, needs, strict=True)), limits)
    among = np.array([i not in excluded for i in range(len(needs))])

    given_rows = share_out(table, among, table.budget, table.limit).tolist()

    wanted = sum(need for i, need in enumerate(needs) if i not in excluded)
    assert sum(given_rows) == min(budget, wanted)
    for i, rows in enumerate(given_rows):
        assert rows <= (0 if i in excluded else needs[i])
        if i not in excluded and rows < needs[i]:
            assert max(given_rows) <= rows + 1, (
                "nobody has more than one who would have liked more, but for the last row"
            )


def test_an_observed_time_counts_up_to_the_moment_until_which_times_are_believed() -> None:
    log = Log({name: LogSplit(end=5) for name in "abc"})
    splits = [SourceSplit(split_id=name) for name in "abc"]
    ends = [log.latest([split])[split.split_id] for split in splits]
    observed_us = {"a": 99, "b": 100, "c": 101}
    limits = SliceLimits(now_us=100, observed_us=observed_us, future_guard_us=0)
    table = SliceTable(log, list(zip(splits, ends, [5] * 3, strict=True)), limits)
    assert table.observed_us.tolist() == [99, 100, -np.inf]
