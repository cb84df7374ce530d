"""A batch in columns equals the batch in mappings: same effects, status, deadlines and snapshot, always."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowmark.watermark import (
    AllIdle,
    InvalidSplitId,
    InvalidWatermark,
    NotifyNewLowWatermark,
    SplitId,
    SplitState,
    WatermarkStrategy,
)
from lowmark.watermark.splits.cohort import Cohort
from lowmark.watermark.splits.events import (
    BatchCounts,
    BatchPlanned,
    BatchReported,
    Event,
    Polled,
    ReportLost,
    SplitColumn,
    SplitsDiscovered,
    SplitsFinished,
    SplitsMarkedActive,
    SplitsMarkedIdle,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    StrategySet,
    Tick,
)
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.state import IdleClock
from lowmark.watermark.strategy import AdaptiveBound, ProgressiveIdleness

from tests.laws.strategies import BOUNDARIES, LAWS, draws

TIMEOUT_US = 10
STRATEGIES = [
    WatermarkStrategy(),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, out_of_orderness_us=5_000),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, all_idle=AllIdle.MAX, percentile=50),
    WatermarkStrategy(grace_us=TIMEOUT_US),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, idle_clock=IdleClock.TIME),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, quorum=0.6),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, all_idle=AllIdle.ADVANCE, all_idle_delay_us=7),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, progressive=ProgressiveIdleness(2, 50)),
    WatermarkStrategy(
        idle_timeout_us=TIMEOUT_US, out_of_orderness_us=1_000, adaptive=AdaptiveBound(0.9, 1_000, 20_000)
    ),
]
FLOW, TIME = STRATEGIES[1], STRATEGIES[4]
SPLITS = (0, 3, 2**63, 2**64 - 1)

split = st.sampled_from(SPLITS)
# Few values, so that equal values are common, because equality decides about late rows.
watermark_us = st.one_of(st.sampled_from((-1_000, 0, 1_000, 7_000)), st.sampled_from(BOUNDARIES))
by_split = st.dictionaries(split, st.integers(0, 3), max_size=4)
# Most batches hold the same splits in the same order, because only these form a cohort.
usual = st.tuples(*(watermark_us for _ in SPLITS[:3])).map(lambda values: dict(zip(SPLITS[:3], values, strict=True)))
odd = st.permutations(SPLITS).flatmap(lambda order: st.builds(lambda n: dict.fromkeys(order[:n], 5), st.integers(0, 4)))
watermarks = st.one_of(usual, usual, usual, usual, usual, odd)
rows_of_all = st.tuples(*(st.integers(0, 9) for _ in SPLITS[:3])).map(
    lambda values: dict(zip(SPLITS[:3], values, strict=True))
)
# Only adaptive bounds read these: rows by bucket of lateness and by event time, and the largest event times.
by_number = st.dictionaries(
    split, st.dictionaries(st.sampled_from((0, 100, 200)), st.sampled_from((1, 300)), min_size=1), max_size=3
)
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "batch_id": st.integers(0, 0),
    "planned_at_us": st.sampled_from((0, 0, 3)),  # age of the plan
    "watermarks_us": watermarks,
    "first_us": st.one_of(st.just({}), usual, st.dictionaries(split, watermark_us, max_size=2)),
    "rows": st.one_of(st.just({}), rows_of_all, by_split),
    "backlog_rows": st.one_of(st.just({}), by_split),
    "in_force_us": st.one_of(st.none(), watermark_us),
    "counts": st.builds(BatchCounts, rows=st.integers(0, 9), future_rows=st.integers(0, 2)),
    "newest_us": st.one_of(st.none(), watermark_us),
    "judged_by_us": st.one_of(st.none(), st.none(), watermark_us),
    "future_rows": st.one_of(st.just({}), by_split),
    "lateness": st.one_of(st.just({}), by_number),
    "times": st.one_of(st.just({}), by_number),
    "latest_us": st.one_of(st.just({}), st.dictionaries(split, watermark_us, max_size=2)),
}
batches = st.builds(BatchReported, **DRAWN)
# A cohort takes each of these batches, but few of `batches`: one history in thirty had such a batch.
taken = st.builds(
    BatchReported,
    **{
        **DRAWN,
        "watermarks_us": usual,
        "first_us": st.one_of(st.just({}), usual),
        "rows": st.one_of(st.just({}), rows_of_all),
        "future_rows": st.just({}),
    },
)
# Promises of the whole cohort, of a part, and of splits outside: idle, new and finished.
promises = st.one_of(usual, usual, st.dictionaries(split, watermark_us, max_size=4), odd)
plans = st.builds(BatchPlanned, st.sampled_from((0, 0, 3)), promises, st.one_of(st.just({}), by_split))
ones = st.lists(split, min_size=1, max_size=2).map(tuple)
others = st.one_of(
    st.builds(SplitsDiscovered, ones, ones.map(frozenset)),
    st.builds(SplitsFinished, ones),
    st.builds(SplitsPaused, ones),
    st.builds(SplitsResumed, ones),
    st.builds(SplitsRemoved, ones),
    st.builds(SplitsMarkedIdle, ones, st.just("anna"), st.sampled_from((None, 3, 3 * TIMEOUT_US))),
    st.builds(SplitsMarkedActive, ones, st.just("bert")),
    st.just(SplitsResharded({2**64 - 1: (3,)})),
    st.sampled_from((None, 2, 3 * TIMEOUT_US)).map(lambda us: StrategySet(WatermarkStrategy(idle_timeout_us=us))),
    st.builds(Polled, st.integers(0, 3)),
    st.builds(ReportLost, st.just(0)),
    st.just(Tick()),
)
steps = st.lists(
    st.tuples(
        st.one_of(taken, taken, taken, batches, plans, plans, others),
        st.sampled_from((1, 1, 2, TIMEOUT_US, TIMEOUT_US + 2)),  # time passes
        st.sampled_from((1, 1, 1, 1, 1, 0, -1)),  # next batch id
    ),
    min_size=3,
    max_size=12,
)
beginning = st.lists(st.builds(BatchReported, st.just(0), st.just(0), usual), min_size=2, max_size=2)


def column(values: Mapping[SplitId, int]) -> SplitColumn:
    return SplitColumn(np.array(list(values), np.uint64), np.array(list(values.values()), np.int64))


def as_columns(event: Event, bits: int) -> Event:
    """Turn the watermarks into a column; by the bits also rows, first times and claims."""
    if isinstance(event, BatchPlanned):
        return replace(event, watermarks_us=column(event.watermarks_us)) if bits & 4 else event
    if not isinstance(event, BatchReported):
        return event
    rows = column(event.rows) if bits & 1 else event.rows
    first_us = column(event.first_us) if bits & 2 else event.first_us
    return replace(event, watermarks_us=column(event.watermarks_us), rows=rows, first_us=first_us)


def watermarks_of(strategy: WatermarkStrategy) -> SplitWatermarks:
    return SplitWatermarks(strategy, job_id="j", source_id="s", task_id="t")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(LAWS, max_examples=draws(100))
@given(beginning, steps, st.integers(0, 7))
def test_columns_and_mappings_tell_the_same(
    strategy: WatermarkStrategy, first: list[BatchReported], then: list[tuple[Event, int, int]], bits: int
) -> None:
    mapped, columnar = watermarks_of(strategy), watermarks_of(strategy)
    now_us, batch_id = 1_000, 0
    for event, wait_us, next_id in [*((event, 1, 1) for event in first), *then]:
        now_us += wait_us
        if isinstance(event, BatchReported):
            batch_id += next_id
            event = replace(event, batch_id=batch_id, planned_at_us=now_us - event.planned_at_us)
        elif isinstance(event, BatchPlanned):
            event = replace(event, planned_at_us=now_us - event.planned_at_us)
        elif isinstance(event, Polled):
            event = Polled(now_us - event.until_us)
        elif isinstance(event, StrategySet):
            event = StrategySet(replace(strategy, idle_timeout_us=event.strategy.idle_timeout_us, progressive=None))

        assert mapped.handle(event, now_us) == columnar.handle(as_columns(event, bits), now_us)
        assert mapped.status(now_us) == columnar.status(now_us)
        assert mapped.status(now_us, limit=2) == columnar.status(now_us, limit=2)
        assert mapped.wake_at_us(now_us) == columnar.wake_at_us(now_us)
        assert mapped.epoch == columnar.epoch
        assert mapped.snapshot() == columnar.snapshot()
        assert mapped._reports.cohort is None


def test_the_worlds_have_every_field_of_a_report() -> None:
    assert {field.name for field in fields(BatchReported)} == DRAWN.keys()


def test_a_cohort_counts_a_report_below_the_split_s_own_watermark() -> None:
    mapped, columnar = watermarks_of(STRATEGIES[1]), watermarks_of(STRATEGIES[1])
    for batch_id, top_us in enumerate((10, 20, 15)):
        for of_splits, event in ((mapped, dict), (columnar, column)):
            watermarks: dict[SplitId, int] = dict.fromkeys(SPLITS, top_us)
            of_splits.handle(BatchReported(batch_id, batch_id, event(watermarks)), batch_id)

    assert columnar._reports.cohort is not None
    assert mapped.status(3).regressions == columnar.status(3).regressions == len(SPLITS)


def test_the_usual_batch_meets_a_cohort_and_anything_else_dissolves_it() -> None:
    of_splits = watermarks_of(STRATEGIES[1])
    met = []
    for batch_id in range(5):
        watermarks: dict[SplitId, int] = dict.fromkeys(SPLITS, batch_id)
        of_splits.handle(BatchReported(batch_id, batch_id, column(watermarks)), batch_id)
        met.append(of_splits._reports.cohort is not None)
    for event in (Tick(), SplitsDiscovered((7,)), SplitsPaused((3,))):
        of_splits.handle(event, 6)
        met.append(of_splits._reports.cohort is not None)

    assert met == [False, True, True, True, True, True, True, False]


def test_a_split_that_is_not_active_is_in_no_cohort() -> None:
    of_splits = watermarks_of(STRATEGIES[1])
    of_splits.handle(SplitsDiscovered(SPLITS), 0)
    of_splits.handle(SplitsPaused((3,)), 0)
    for batch_id in range(3):
        of_splits.handle(BatchReported(batch_id, batch_id, column(dict.fromkeys(SPLITS, batch_id))), batch_id)

        assert of_splits._reports.cohort is None


def gathered(strategy: WatermarkStrategy) -> SplitWatermarks:
    of_splits = watermarks_of(strategy)
    for batch_id in range(2):
        of_splits.handle(BatchReported(batch_id, 5 + batch_id, column(dict.fromkeys(SPLITS, 1))), 9)
    assert of_splits._reports.cohort is not None
    return of_splits


def test_old_news_are_taken_by_a_cohort_and_make_no_split_younger() -> None:
    of_splits = gathered(STRATEGIES[1])
    of_splits.handle(BatchReported(2, 5, column(dict.fromkeys(SPLITS, 2))), 9)

    assert of_splits._reports.cohort is not None
    assert of_splits.low_watermark_us == 2
    assert of_splits.wake_at_us(9) == 6 + TIMEOUT_US + 1


def test_a_cohort_falls_idle_at_the_first_moment_after_the_timeout() -> None:
    of_splits = gathered(TIME)  # heard at 6
    idle = []
    for us in (6 + TIMEOUT_US, 6 + TIMEOUT_US + 1):
        of_splits.handle(Polled(us), us)
        idle.append(of_splits.states[SplitState.IDLE])

    assert idle == [0, len(SPLITS)]


def test_a_promise_below_what_a_split_stands_at_lowers_nothing() -> None:
    of_splits = gathered(STRATEGIES[1])
    of_splits.handle(BatchReported(2, 7, column(dict.fromkeys(SPLITS, 5))), 9)
    epoch = of_splits.epoch
    of_splits.handle(BatchPlanned(8, dict.fromkeys(SPLITS, 1)), 9)
    of_splits.handle(BatchReported(3, 9, column(dict.fromkeys(SPLITS, 3))), 9)

    assert of_splits._reports.cohort is not None
    assert (of_splits.low_watermark_us, of_splits.epoch) == (5, epoch)


def test_time_in_which_a_split_was_paused_is_no_silence_in_a_cohort_either() -> None:
    of_splits = gathered(TIME)  # heard at 6
    of_splits.handle(SplitsPaused(SPLITS), 9)
    of_splits.handle(SplitsResumed(SPLITS), 12)
    of_splits.handle(BatchReported(2, 8, column(dict.fromkeys(SPLITS, 2))), 12)

    assert of_splits.wake_at_us(12) == 8 + 3 + TIMEOUT_US + 1


def test_a_split_with_rows_waiting_lags_once_a_batch_had_none_of_it() -> None:
    of_splits = gathered(STRATEGIES[1])
    for batch_id, splits in enumerate((SPLITS, SPLITS[:3]), 2):
        watermarks = column(dict.fromkeys(splits, batch_id))
        of_splits.handle(BatchReported(batch_id, 6 + batch_id, watermarks, backlog_rows=dict.fromkeys(SPLITS, 5)), 9)
        lagging = [seen.lagging for seen in of_splits.status(9).splits.values()]
        assert lagging == [False, False, False, len(splits) < 4]


@pytest.mark.parametrize("columns", [True, False])
def test_a_cohort_goes_on_over_plans_of_all_of_some_and_of_others(columns: bool) -> None:
    of_splits = gathered(STRATEGIES[1])
    for number, splits in enumerate((SPLITS, SPLITS[:2], (), (*SPLITS, 7)), 2):
        promised: dict[SplitId, int] = dict.fromkeys(splits, number)
        of_splits.handle(BatchPlanned(8, column(promised) if columns else promised, {7: 3}), 9)
        assert of_splits._reports.cohort is not None

    assert of_splits.low_watermark_us == 5
    assert of_splits.status(9).splits["7"].watermark_us == 5
    assert [of_splits._reports.counted(split).rows for split in (*SPLITS, 7)] == [0] * 5
    of_splits.handle(BatchReported(2, 8, column(dict.fromkeys(SPLITS, 6))), 9)
    assert of_splits._reports.cohort is not None


@pytest.mark.parametrize("strategy", [FLOW, TIME])
def test_splits_that_no_plan_promises_anything_of_fall_idle_by_themselves(strategy: WatermarkStrategy) -> None:
    of_splits = gathered(strategy)
    for us in range(7, 6 + TIMEOUT_US + 2):
        of_splits.handle(BatchPlanned(us, dict.fromkeys(SPLITS[:2], us)), 30)
    assert of_splits._reports.cohort is not None
    for us in range(7, 6 + TIMEOUT_US + 2):
        assert of_splits.states[SplitState.IDLE] == 0
        of_splits.handle(BatchReported(us, us, dict.fromkeys(SPLITS[:2], 50)), 30)

    states = [seen.state.value for seen in of_splits.status(30).splits.values()]
    assert states == ["active", "active", "idle", "idle"]
    assert of_splits.low_watermark_us == 50


@pytest.mark.parametrize("strategy", [FLOW, TIME])
def test_nobody_is_left_out_for_rows_that_are_planned_and_not_reported_yet(strategy: WatermarkStrategy) -> None:
    """A plan with the last rows of a split has no claim for it, because no later row is known."""
    of_splits = gathered(strategy)
    for us in range(7, 50):
        of_splits.handle(BatchPlanned(us, dict.fromkeys(SPLITS[:2], us), dict.fromkeys(SPLITS, 0)), us)

    assert of_splits._reports.cohort is not None
    risen = of_splits.handle(BatchReported(2, 49, dict.fromkeys(SPLITS, 50)), 50)[-1]
    assert isinstance(risen, NotifyNewLowWatermark)
    assert risen.new_low_watermark == 50


@pytest.mark.parametrize("columns", [True, False])
def test_a_split_outside_the_cohort_that_sends_only_rows_of_a_wrong_clock_is_not_silent(columns: bool) -> None:
    of_splits = watermarks_of(TIME)
    of_splits.handle(BatchReported(0, 5, {7: 1}), 5)
    for us in range(6, 30):
        watermarks: dict[SplitId, int] = dict.fromkeys(SPLITS, us)
        event = BatchReported(us, us, column(watermarks) if columns else watermarks, future_rows={7: 3, 3: 1})
        of_splits.handle(event, us)

    assert (of_splits.states[SplitState.IDLE], of_splits.low_watermark_us, of_splits.holder) == (0, 1, 7)


def test_a_plan_that_is_refused_changes_nothing() -> None:
    of_splits = gathered(STRATEGIES[1])
    before = of_splits.snapshot()
    for no_watermark in (2**63, 1e300):
        claims: dict[SplitId, Any] = {**dict.fromkeys(SPLITS, 5), 3: no_watermark}
        with pytest.raises(InvalidWatermark):
            of_splits.handle(BatchPlanned(8, claims), 9)
    with pytest.raises(InvalidSplitId):
        of_splits.handle(BatchPlanned(8, {**dict.fromkeys(SPLITS, 5), "a": 5}), 9)

    assert of_splits.snapshot() == before
    assert of_splits.wake_at_us(9) == 6 + TIMEOUT_US + 1


def test_a_row_exactly_at_the_watermark_in_force_is_late() -> None:
    of_splits = watermarks_of(STRATEGIES[0])
    for batch_id in range(3):
        watermarks, first_us = column({3: 5_000, 7: 5_001}), column({3: 5_000, 7: 5_001})
        of_splits.handle(BatchReported(batch_id, batch_id, watermarks, first_us=first_us, in_force_us=5_000), 9)
    assert of_splits._reports.cohort is not None

    assert [seen.late_reports for seen in of_splits.status(9).splits.values()] == [3, 0]


@pytest.mark.parametrize("together", [False, True])
def test_a_report_is_late_only_if_a_row_of_it_is_although_its_watermark_is_behind_by_the_bound(together: bool) -> None:
    """Without the earliest row, the newest one tells: a split within its bound was counted with each batch."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
    of_splits = watermarks_of(strategy)
    for batch_id in range(3):
        newest_us = {3: 60_000_000 - 1_000, 7: 60_000_000 + 1_000}  # below and above the watermark in force
        watermarks: dict[SplitId, int] = {split: strategy.watermark_of_max(us) for split, us in newest_us.items()}
        marks = column(watermarks) if together else watermarks
        of_splits.handle(BatchReported(batch_id, batch_id, marks, in_force_us=60_000_000), 9)
    assert (of_splits._reports.cohort is not None) is together

    assert [seen.late_reports for seen in of_splits.status(9).splits.values()] == [3, 0]


@pytest.mark.parametrize(("behind_us", "late"), [(999, 0), (1_000, 7)])
def test_a_cohort_counts_all_rows_late_for_native_spark_from_the_same_microsecond_on(behind_us: int, late: int) -> None:
    of_splits, counted = watermarks_of(STRATEGIES[0]), [0]
    for batch_id in range(4):
        watermarks: dict[SplitId, int] = {3: 100_000, 7: 100_000 - behind_us}
        of_splits.handle(BatchReported(batch_id, batch_id, column(watermarks), rows={3: 7, 7: 7}), 9)
        counted.append(of_splits.status(9).splits["7"].native_late_rows)
    assert of_splits._reports.cohort is not None

    assert [after - before for before, after in pairwise(counted)] == [0, 0, late, late]


def test_a_column_is_a_mapping() -> None:
    seen = column({5: 1, 2**64 - 1: -2})

    assert (dict(seen), seen == {5: 1, 2**64 - 1: -2}, 5 in seen, 6 in seen) == (
        {5: 1, 2**64 - 1: -2},
        True,
        True,
        False,
    )
    assert not column({})


def test_a_split_was_heard_when_the_newest_of_its_batches_was_planned() -> None:
    cohort = Cohort(column({3: 10, 0: 20}), np.array([5, 9]))
    cohort.report(BatchReported(1, 7, column({3: 11, 0: 21})), 8)
    assert [cohort.heard_us(split) for split in (3, 0)] == [7, 9]

    rows, values_us, _ = cohort.sort_out({0: 30, 3: 30})
    cohort.claim(rows, values_us, 8)
    assert [cohort.heard_us(split) for split in (3, 0)] == [8, 9]
