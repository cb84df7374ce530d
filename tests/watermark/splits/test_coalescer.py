from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from lowmark.watermark import AllIdle, InvalidWatermark, SplitState
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.state import Signal

from tests.watermark.splits.invariants import check


def coalescer_of(all_idle: AllIdle = AllIdle.HOLD, /, **watermarks_us: int | None) -> Coalescer:
    coalescer = Coalescer(all_idle=all_idle, all_idle_delay_us=1_000 if all_idle is AllIdle.ADVANCE else None)
    for split, watermark_us in watermarks_us.items():
        coalescer.assign(split)
        if watermark_us is not None:
            coalescer.report(split, watermark_us)
    return coalescer


def test_nothing_is_published_before_every_split_spoke() -> None:
    coalescer = coalescer_of(a=30, b=None)

    assert coalescer.advance() is None
    assert ("b", frozenset({"b"}), None) == (coalescer.holder, coalescer.pending, coalescer.low_us)


def test_a_new_split_holds_and_never_takes_back() -> None:
    coalescer = coalescer_of(a=30)
    coalescer.advance()
    coalescer.assign("b")
    coalescer.report("a", 50)

    assert (coalescer.advance(), coalescer.low_us) == (None, 30)
    coalescer.report("b", 40)
    assert (coalescer.advance(), coalescer.holder) == (40, "b")


def test_zero_is_a_watermark() -> None:
    coalescer = coalescer_of(a=0)

    assert (coalescer.advance(), coalescer.holder) == (0, "a")
    assert coalescer.advance() is None
    coalescer.report("a", 1)
    assert (coalescer.advance(), coalescer.holder) == (1, "a")


def test_a_report_below_the_splits_own_watermark_is_ignored_and_counted() -> None:
    coalescer = coalescer_of(a=30)
    coalescer.report("a", 10)
    coalescer.report("a", 30)

    assert (coalescer.watermark_us("a"), coalescer.regressions) == (30, 1)


def test_a_lower_report_still_ends_idleness() -> None:
    coalescer = coalescer_of(a=30, b=40)
    coalescer.signal("a", Signal.IDLE)
    coalescer.advance()
    coalescer.report("a", 10)

    assert SplitState.ACTIVE is coalescer.state("a")
    assert (coalescer.holder, coalescer.watermark_us("a"), coalescer.low_us) == ("a", 30, 40)


def test_a_split_that_returns_below_the_low_watermark_holds_it_and_does_not_pull_it_back() -> None:
    coalescer = coalescer_of(a=30, b=40)
    coalescer.signal("a", Signal.IDLE)
    coalescer.advance()
    coalescer.report("a", 35)

    assert (coalescer.advance(), coalescer.low_us, coalescer.holder) == (None, 40, "a")
    coalescer.report("a", 45)
    coalescer.report("b", 60)
    assert (coalescer.advance(), coalescer.holder) == (45, "a")


def test_a_paused_split_takes_part_and_cannot_become_idle() -> None:
    coalescer = coalescer_of(a=30, b=40)

    assert [
        coalescer.signal("a", Signal.PAUSE),
        coalescer.signal("a", Signal.PAUSE),
        coalescer.signal("a", Signal.IDLE),
    ] == [True, False, False]
    assert (coalescer.advance(), coalescer.holder) == (30, "a")
    coalescer.report("a", 35)
    assert SplitState.PAUSED is coalescer.state("a")
    assert [
        coalescer.signal("a", Signal.RESUME),
        coalescer.signal("a", Signal.RESUME),
        coalescer.signal("a", Signal.IDLE),
    ] == [True, False, True]


def test_a_paused_split_that_never_spoke_holds_as_a_pending_one_does() -> None:
    coalescer = coalescer_of(a=None, b=40)
    coalescer.signal("a", Signal.PAUSE)

    assert (coalescer.advance(), coalescer.holder) == (None, "a")
    coalescer.signal("a", Signal.RESUME)
    assert SplitState.PENDING is coalescer.state("a")
    coalescer.signal("a", Signal.PAUSE)
    coalescer.report("a", 10)
    assert (coalescer.advance(), coalescer.holder) == (10, "a")


def test_an_idle_split_is_not_paused() -> None:
    coalescer = coalescer_of(a=30)
    coalescer.signal("a", Signal.IDLE)

    assert (coalescer.signal("a", Signal.PAUSE), coalescer.state("a")) == (False, SplitState.IDLE)


def test_an_idle_split_that_wakes_holds_with_what_it_has() -> None:
    coalescer = coalescer_of(a=30, b=40, c=None)
    coalescer.signal("a", Signal.IDLE)
    coalescer.signal("c", Signal.IDLE)

    assert (coalescer.signal("a", Signal.WAKE), coalescer.state("a")) == (True, SplitState.ACTIVE)
    assert (coalescer.signal("c", Signal.WAKE), coalescer.state("c")) == (True, SplitState.PENDING)
    assert coalescer.advance() is None


def test_a_finished_split_leaves_for_good() -> None:
    coalescer = coalescer_of(a=30, b=40)

    assert [coalescer.signal("a", Signal.FINISH), coalescer.signal("a", Signal.FINISH)] == [True, False]
    assert (coalescer.advance(), coalescer.holder) == (40, "b")
    with pytest.raises(ValueError, match="split 'a' reported after it finished"):
        coalescer.report("a", 99)
    assert coalescer.watermark_us("a") == 30


def test_a_split_is_assigned_once() -> None:
    with pytest.raises(ValueError, match="split 'a' is assigned already"):
        coalescer_of(a=30).assign("a")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(KeyError):
        coalescer_of(a=30).report("x", 1)


@pytest.mark.parametrize("policy", AllIdle)
def test_when_all_are_idle_the_policy_decides(policy: AllIdle) -> None:
    coalescer = coalescer_of(policy, a=2_000, b=5_000, c=9_000)
    coalescer.advance()
    coalescer.signal("c", Signal.FINISH)
    coalescer.signal("b", Signal.IDLE)
    coalescer.signal("a", Signal.IDLE)

    expected = {AllIdle.HOLD: None, AllIdle.MAX: 5_000, AllIdle.ADVANCE: 7_000}[policy]
    assert coalescer.all_idle
    assert coalescer.advance(now_us=8_999) == expected
    assert coalescer.holder is None


def test_without_the_time_processing_time_holds() -> None:
    coalescer = coalescer_of(AllIdle.ADVANCE, a=0)
    coalescer.signal("a", Signal.IDLE)

    assert coalescer.advance() is None


def test_the_largest_idle_watermark_outlives_no_split() -> None:
    coalescer = coalescer_of(AllIdle.MAX, a=1, b=2, c=3)
    coalescer.signal("c", Signal.IDLE)
    coalescer.remove("c")
    coalescer.signal("a", Signal.IDLE)
    coalescer.signal("b", Signal.IDLE)

    assert (coalescer.advance(), coalescer.holder) == (2, None)


@pytest.mark.parametrize("state", [SplitState.PENDING, SplitState.ACTIVE, SplitState.PAUSED, SplitState.FINISHED])
def test_one_split_that_is_not_idle_is_enough_not_to_be_all_idle(state: SplitState) -> None:
    coalescer = Coalescer()
    coalescer.assign("a", state=SplitState.IDLE)
    coalescer.assign("b", state=state)

    assert (state is SplitState.FINISHED) == coalescer.all_idle


@pytest.mark.parametrize("policy", AllIdle)
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_when_all_are_finished_at_the_end_the_largest_watermark_stands_in_any_order(
    order: str, policy: AllIdle
) -> None:
    coalescer = coalescer_of(policy, a=2_000, b=5_000, c=9_000)
    assert coalescer.advance() == 2_000
    for split in order:
        coalescer.signal(split, Signal.FINISH)
    assert coalescer.advance() is None, "the next split may be older"
    coalescer.end()

    assert (coalescer.all_idle, coalescer.advance(now_us=99_000), coalescer.holder) == (False, 9_000, None)


@pytest.mark.parametrize("signal", [Signal.IDLE, Signal.PAUSE, None])
def test_one_split_that_is_not_finished_keeps_the_low_watermark(signal: Signal | None) -> None:
    coalescer = coalescer_of(AllIdle.HOLD, a=2_000, b=5_000, c=9_000)
    coalescer.end()
    assert coalescer.advance() == 2_000
    if signal is not None:
        coalescer.signal("a", signal)
    for split in "bc":
        coalescer.signal(split, Signal.FINISH)

    assert coalescer.advance() is None


def test_finished_splits_without_a_watermark_and_no_splits_leave_none() -> None:
    coalescer = Coalescer(all_idle=AllIdle.MAX)
    coalescer.end()
    assert (coalescer.all_idle, coalescer.advance()) == (False, None)
    coalescer.assign("a", state=SplitState.FINISHED)

    assert (coalescer.all_idle, coalescer.advance(), coalescer.holder) == (False, None, None)


def test_removal_publishes_nothing_before_the_next_advance() -> None:
    coalescer = coalescer_of(a=10, b=20)
    coalescer.advance()

    assert [coalescer.remove("a"), coalescer.remove("a")] == [True, False]
    assert "a" not in coalescer
    assert coalescer.low_us == 10
    assert (coalescer.advance(), coalescer.holder) == (20, "b")


def test_a_removed_split_may_come_back_under_its_name_as_a_new_one() -> None:
    coalescer = coalescer_of(a=10, b=20)
    coalescer.remove("a")
    coalescer.assign("a")
    coalescer.report("a", 10)
    check(coalescer)

    assert (coalescer.advance(), coalescer.holder) == (10, "a")


def test_removed_splits_leave_nothing_behind() -> None:
    coalescer = coalescer_of(a=0)
    for n in range(10_000):
        coalescer.assign(f"file-{n}")
        coalescer.report(f"file-{n}", n + 1)
        coalescer.remove(f"file-{n}")

    assert len(coalescer._ids) == len(coalescer._aside_us) == 1
    assert len(coalescer._watermarks_us) < 100


def test_a_restored_low_watermark_is_never_gone_below() -> None:
    coalescer = Coalescer(low_us=100)
    coalescer.assign("a")
    coalescer.report("a", 50)

    assert (coalescer.advance(), coalescer.low_us) == (None, 100)


def test_of_equal_watermarks_the_smallest_id_holds_whatever_the_order() -> None:
    for seed in range(20):
        coalescer = Coalescer()
        for split in random.Random(seed).sample("abcdef", 6):
            coalescer.assign(split)
            coalescer.report(split, 7)
        assert coalescer.holder == "a"


# -- reports as arrays


TAKING_PART = (SplitState.ACTIVE, SplitState.PAUSED)


def numbered(count: int, *watermarks_us: int, **options: float) -> Coalescer:
    """A coalescer of splits 0 to ``count - 1``, the first of which have reported these watermarks."""
    coalescer = Coalescer(**options)  # type: ignore[arg-type]
    for split in range(count):
        coalescer.assign(split)
    for split, watermark_us in enumerate(watermarks_us):
        coalescer.report(split, watermark_us)
    return coalescer


def ids(*splits: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(splits, np.uint64)


def us(*watermarks_us: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(watermarks_us, np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_and_single_reports_agree_whatever_comes_between_them(seed: int) -> None:
    """The arrays repeat as in a stream: mostly the same set and order, then another order, subset, or set.

    A split that takes no part reports by itself.
    """
    rng = random.Random(seed)
    bulk, single = numbered(40), numbered(40)
    order, added = list(range(40)), 40
    for step in range(60):
        match rng.randrange(8):
            case 0:
                rng.shuffle(order)
            case 1:
                order = rng.sample(bulk.splits, rng.randrange(1, len(bulk.splits)))  # type: ignore[arg-type]
            case 2:
                gone = rng.choice(bulk.splits)
                assert bulk.remove(gone) == single.remove(gone)
                order = [split for split in order if split != gone] or [bulk.splits[0]]  # type: ignore[list-item]
            case 3:
                for coalescer in (bulk, single):
                    coalescer.assign(added)
                order, added = [*order, added], added + 1
            case 4:
                quiet, signal = rng.choice(bulk.splits), rng.choice(("idle", "pause", "resume", "wake"))
                assert bulk.signal(quiet, Signal(signal)) == single.signal(quiet, Signal(signal))
        watermarks_us = [step + rng.randrange(-3, 4) for _ in order]
        together, alone = list[tuple[int, int]](), list[tuple[int, int]]()
        for split, watermark_us in zip(order, watermarks_us, strict=True):
            takes_part = bulk.state(split) in TAKING_PART and bulk.watermark_us(split) is not None
            (together if takes_part else alone).append((split, watermark_us))
        for split, watermark_us in alone:
            bulk.report(split, watermark_us)
        if together:
            bulk.report_array(ids(*(split for split, _ in together)), us(*(at_us for _, at_us in together)))
        for split, watermark_us in zip(order, watermarks_us, strict=True):
            single.report(split, watermark_us)
        check(bulk)

        where = f"seed {seed}, step {step}"
        assert (single.advance(), single.regressions) == (bulk.advance(), bulk.regressions), where
        assert (single.holder, single.states) == (bulk.holder, bulk.states), where
        assert single.splits == bulk.splits, where
        assert [single.watermark_us(s) for s in single.splits] == [bulk.watermark_us(s) for s in bulk.splits], where


def test_the_same_splits_in_the_same_order_are_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    coalescer = numbered(4, 1, 1, 1, 1)
    coalescer.report_array(ids(0, 1, 2, 3), us(1, 2, 3, 4))
    monkeypatch.setattr(coalescer, "_row_of", {})  # a look-up would raise

    coalescer.report_array(ids(0, 1, 2, 3), us(5, 6, 7, 8))
    assert (coalescer.advance(), coalescer.holder) == (5, 0)
    with pytest.raises(KeyError):
        coalescer.report_array(ids(1, 0, 2, 3), us(5, 6, 7, 8))


def test_the_arrays_are_the_callers() -> None:
    coalescer = numbered(2, 1, 1)
    splits, watermarks_us = ids(0, 1), us(5, 6)
    coalescer.report_array(splits, watermarks_us)
    splits[:], watermarks_us[:] = (1, 0), (90, 80)

    assert (coalescer.watermark_us(0), coalescer.watermark_us(1)) == (5, 6)
    coalescer.report_array(splits, watermarks_us)
    assert (coalescer.watermark_us(0), coalescer.watermark_us(1)) == (80, 90)
    assert watermarks_us.tolist() == [90, 80]


def test_a_report_of_neighbours_touches_no_other_split() -> None:
    coalescer = numbered(5, 1, 1, 1, 1)
    coalescer.report_array(ids(2, 3), us(30, 20))
    check(coalescer)

    assert [coalescer.watermark_us(split) for split in range(5)] == [1, 1, 30, 20, None]


def test_columns_of_a_decoded_report_are_taken_as_they_are() -> None:
    """Every second value, as in a structured array: not contiguous, and read-only."""
    coalescer = numbered(3, 1, 1, 1)
    report = np.frombuffer(np.array([0, 30, 1, 10, 2, 20], np.int64).tobytes(), [("split", "<u8"), ("value", "<i8")])
    coalescer.report_array(report["split"], report["value"])

    assert (coalescer.advance(), coalescer.holder) == (10, 1)


def test_a_removed_split_is_unknown_to_the_next_array_and_its_row_is_another_splits() -> None:
    coalescer = numbered(3, 1, 2, 3)
    coalescer.report_array(ids(0, 1, 2), us(1, 2, 3))
    coalescer.remove(0)
    coalescer.assign(7)

    with pytest.raises(KeyError):
        coalescer.report_array(ids(0, 1, 2), us(50, 60, 70))
    assert [coalescer.watermark_us(split) for split in (1, 2, 7)] == [2, 3, None]


@pytest.mark.parametrize("watermark_us", [2**63, -(2**63) - 1])
def test_a_watermark_beyond_64_bits_is_refused_and_nothing_is_applied(watermark_us: int) -> None:
    coalescer = coalescer_of(a=30, b=40)

    with pytest.raises(InvalidWatermark, match="watermark of split 'c'"):
        coalescer.assign("c", watermark_us=watermark_us)
    assert (coalescer.watermark_us("a"), coalescer.splits) == (30, ("a", "b"))


def test_the_largest_number_is_a_watermark_too() -> None:
    """Internally, rows that take no part hold the largest number."""
    coalescer = coalescer_of(a=1, b=2**63 - 1, c=2**63 - 1)
    coalescer.signal("a", Signal.IDLE)

    assert (coalescer.advance(), coalescer.holder) == (2**63 - 1, "b")
    assert coalescer.watermark_us("a") == 1


def test_among_very_many_equal_watermarks_the_smallest_id_holds() -> None:
    names = [f"n{n}" for n in random.Random(3).sample(range(100, 1000), 500)]
    coalescer = Coalescer()
    for name in names:
        coalescer.assign(name, state=SplitState.ACTIVE, watermark_us=0)

    assert (coalescer.advance(), coalescer.holder) == (0, min(names))
    for name in sorted(names)[:100]:
        assert coalescer.holder == name
        coalescer.report(name, 1)
    for name in sorted(names)[100:200]:
        assert coalescer.holder == name
        coalescer.remove(name)
    assert coalescer.holder == sorted(names)[200]
    coalescer.assign("a first one", watermark_us=0, state=SplitState.ACTIVE)
    assert coalescer.holder == "a first one"


def test_a_split_costs_at_most_200_bytes_beside_its_id() -> None:
    names = [f"topic-{n}" for n in range(10_000)]
    tracemalloc.start()
    try:
        coalescer = Coalescer()
        for name in names:
            coalescer.assign(name)
        for number, name in enumerate(names):
            coalescer.report(name, 10**15 + number)
        coalescer.advance()
        bytes_active = tracemalloc.get_traced_memory()[0]
        for name in names:
            coalescer.signal(name, Signal.IDLE)
        bytes_idle = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert bytes_active / len(names) <= 200
    assert bytes_idle / len(names) <= 200


# -- percentile: splits that may be passed


def percentile_of(percentile: float, watermarks_us: list[int]) -> Coalescer:
    return numbered(len(watermarks_us), *watermarks_us, percentile=percentile)


def test_m4_the_slowest_one_percent_is_passed() -> None:
    coalescer = percentile_of(99.0, [5, 3, *range(1_000, 1_198)])

    assert (coalescer.advance(), coalescer.holder) == (1_000, 2)
    assert (frozenset({0, 1}), 2) == (coalescer.stripped, coalescer.holder)
    assert coalescer.watermark_us(1) == 3


@pytest.mark.parametrize(
    ("percentile", "count", "passed"),
    [(99.0, 99, 0), (99.0, 100, 1), (99.0, 199, 1), (99.9, 1_000, 1), (66.6, 1_000, 334), (100, 10, 0), (0.1, 10, 9)],
)
def test_at_least_all_but_the_share_count(percentile: float, count: int, passed: int) -> None:
    coalescer = percentile_of(percentile, list(range(count)))
    coalescer.advance()

    assert (coalescer.low_us, len(coalescer.stripped)) == (passed, passed)


def test_splits_at_the_percentile_are_not_passed() -> None:
    coalescer = percentile_of(50.0, [1, 7, 7, 9])

    assert (coalescer.advance(), coalescer.holder) == (7, 1)
    assert {0} == coalescer.stripped


def test_a_silent_split_is_the_slowest() -> None:
    coalescer = percentile_of(75.0, [4, 5, 6, 7])
    coalescer.assign(8)

    assert (coalescer.advance(), coalescer.holder) == (4, 0)
    assert (frozenset({8}), frozenset({8})) == (coalescer.stripped, coalescer.pending)
    coalescer.assign(9)
    assert (coalescer.holder, coalescer.stripped, coalescer.advance()) == (8, frozenset(), None)


def test_the_percentile_is_latched() -> None:
    coalescer = percentile_of(75.0, [1, 20, 30, 40])
    coalescer.advance()
    coalescer.signal(3, Signal.IDLE)  # with three, no split may be passed

    assert (coalescer.holder, coalescer.stripped, coalescer.advance(), coalescer.low_us) == (0, frozenset(), None, 20)
    for split, watermark_us in enumerate((10, 35, 36, 50)):
        coalescer.report(split, watermark_us)
    assert (coalescer.advance(), coalescer.holder) == (35, 1)


# -- quorum


def test_below_the_quorum_an_idle_split_counts_with_what_it_has() -> None:
    coalescer = numbered(4, 1, 2, 3, 4, quorum=0.75)
    coalescer.signal(0, Signal.IDLE)
    assert (coalescer.advance(), coalescer.holder) == (2, 1)

    coalescer.signal(1, Signal.IDLE)
    assert (coalescer.advance(), coalescer.holder) == (None, 0)
    coalescer.report(0, 9)
    assert (coalescer.advance(), coalescer.holder) == (3, 2)


def test_below_the_quorum_an_idle_split_that_never_spoke_holds() -> None:
    coalescer = numbered(2, quorum=1)
    coalescer.report(0, 5)
    coalescer.signal(1, Signal.IDLE)

    assert (coalescer.advance(), coalescer.holder, coalescer.pending) == (None, 1, frozenset())
    coalescer.signal(1, Signal.FINISH)
    assert (coalescer.advance(), coalescer.holder) == (5, 0)


def test_the_percentile_is_of_all_that_count() -> None:
    coalescer = numbered(4, 1, 2, 3, 4, quorum=1, percentile=75.0)
    coalescer.signal(3, Signal.IDLE)

    assert (coalescer.advance(), coalescer.holder, coalescer.stripped) == (2, 1, frozenset({0}))


def test_finished_splits_are_no_part_of_the_quorum() -> None:
    coalescer = numbered(4, 1, 2, 3, 4, quorum=0.5)
    coalescer.signal(0, Signal.IDLE)
    coalescer.signal(2, Signal.FINISH)
    coalescer.signal(3, Signal.FINISH)

    assert (coalescer.advance(), coalescer.holder) == (2, 1)
