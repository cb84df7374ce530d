from __future__ import annotations

import random

import pytest
from lowmark.watermark import (
    Advance,
    AllIdle,
    Coalescer,
    DuplicateSplit,
    FinishedSplit,
    SplitId,
    SplitState,
    UnknownSplit,
)


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
    assert Advance(30, 40, "b") == coalescer.advance()


def test_zero_is_a_watermark() -> None:
    coalescer = coalescer_of(a=0)

    assert Advance(None, 0, "a") == coalescer.advance()
    assert coalescer.advance() is None
    coalescer.report("a", 1)
    assert Advance(0, 1, "a") == coalescer.advance()


def test_a_report_below_the_splits_own_watermark_is_ignored_and_counted() -> None:
    coalescer = coalescer_of(a=30)
    coalescer.report("a", 10)
    coalescer.report("a", 30)

    assert (coalescer.watermark_us("a"), coalescer.regressions) == (30, 1)


def test_a_lower_report_still_ends_idleness() -> None:
    coalescer = coalescer_of(a=30, b=40)
    coalescer.idle("a")
    coalescer.advance()
    coalescer.report("a", 10)

    assert SplitState.ACTIVE is coalescer.state("a")
    assert (coalescer.holder, coalescer.watermark_us("a"), coalescer.low_us) == ("a", 30, 40)


def test_a_split_that_returns_below_the_low_watermark_holds_it_and_does_not_pull_it_back() -> None:
    coalescer = coalescer_of(a=30, b=40)
    coalescer.idle("a")
    coalescer.advance()
    coalescer.report("a", 35)

    assert (coalescer.advance(), coalescer.low_us, coalescer.holder) == (None, 40, "a")
    coalescer.report("a", 45)
    coalescer.report("b", 60)
    assert Advance(40, 45, "a") == coalescer.advance()


def test_a_paused_split_takes_part_and_cannot_become_idle() -> None:
    coalescer = coalescer_of(a=30, b=40)

    assert [coalescer.pause("a"), coalescer.pause("a"), coalescer.idle("a")] == [True, False, False]
    assert Advance(None, 30, "a") == coalescer.advance()
    coalescer.report("a", 35)
    assert SplitState.PAUSED is coalescer.state("a")
    assert [coalescer.resume("a"), coalescer.resume("a"), coalescer.idle("a")] == [True, False, True]


def test_a_paused_split_that_never_spoke_holds_as_a_pending_one_does() -> None:
    coalescer = coalescer_of(a=None, b=40)
    coalescer.pause("a")

    assert (coalescer.advance(), coalescer.holder) == (None, "a")
    coalescer.resume("a")
    assert SplitState.PENDING is coalescer.state("a")
    coalescer.pause("a")
    coalescer.report("a", 10)
    assert Advance(None, 10, "a") == coalescer.advance()


def test_an_idle_split_is_not_paused() -> None:
    coalescer = coalescer_of(a=30)
    coalescer.idle("a")

    assert (coalescer.pause("a"), coalescer.state("a")) == (False, SplitState.IDLE)


def test_an_idle_split_that_wakes_holds_with_what_it_has() -> None:
    coalescer = coalescer_of(a=30, b=40, c=None)
    coalescer.idle("a")
    coalescer.idle("c")

    assert (coalescer.wake("a"), coalescer.state("a")) == (True, SplitState.ACTIVE)
    assert (coalescer.wake("c"), coalescer.state("c")) == (True, SplitState.PENDING)
    assert coalescer.advance() is None


def test_a_finished_split_leaves_for_good() -> None:
    coalescer = coalescer_of(a=30, b=40)

    assert [coalescer.finish("a"), coalescer.finish("a")] == [True, False]
    assert Advance(None, 40, "b") == coalescer.advance()
    with pytest.raises(FinishedSplit, match="split 'a' reported after it finished"):
        coalescer.report("a", 99)
    assert coalescer.watermark_us("a") == 30


def test_a_split_is_assigned_once() -> None:
    with pytest.raises(DuplicateSplit):
        coalescer_of(a=30).assign("a")


def test_an_unknown_split_is_refused_and_nothing_else_is_applied() -> None:
    coalescer = coalescer_of(a=30)

    with pytest.raises(UnknownSplit, match="never assigned"):
        coalescer.report_all({"a": 50, "x": 1})
    assert coalescer.watermark_us("a") == 30


def test_a_finished_split_in_bulk_is_refused_and_nothing_else_is_applied() -> None:
    coalescer = coalescer_of(a=30, b=40)
    coalescer.finish("b")

    with pytest.raises(FinishedSplit):
        coalescer.report_all({"a": 50, "b": 50})
    assert coalescer.watermark_us("a") == 30


@pytest.mark.parametrize("policy", AllIdle)
def test_when_all_are_idle_the_policy_decides(policy: AllIdle) -> None:
    coalescer = coalescer_of(policy, a=2_000, b=5_000, c=9_000)
    coalescer.advance()
    coalescer.finish("c")
    coalescer.idle("b")
    coalescer.idle("a")
    advance = coalescer.advance(now_us=8_999)

    expected = {AllIdle.HOLD: None, AllIdle.MAX: 5_000, AllIdle.ADVANCE: 7_000}[policy]
    assert coalescer.all_idle
    assert expected == (None if advance is None else advance.after_us)
    assert coalescer.holder is None


def test_without_the_time_processing_time_holds() -> None:
    coalescer = coalescer_of(AllIdle.ADVANCE, a=0)
    coalescer.idle("a")

    assert coalescer.advance() is None


def test_following_processing_time_needs_a_distance() -> None:
    with pytest.raises(ValueError, match="all_idle_delay_us is needed"):
        Coalescer(all_idle=AllIdle.ADVANCE)


def test_the_largest_idle_watermark_outlives_no_split() -> None:
    coalescer = coalescer_of(AllIdle.MAX, a=1, b=2, c=3)
    coalescer.idle("c")
    coalescer.remove("c")
    coalescer.idle("a")
    coalescer.idle("b")

    assert Advance(None, 2, None) == coalescer.advance()


@pytest.mark.parametrize("state", [SplitState.PENDING, SplitState.ACTIVE, SplitState.PAUSED, SplitState.FINISHED])
def test_one_split_that_is_not_idle_is_enough_not_to_be_all_idle(state: SplitState) -> None:
    coalescer = Coalescer()
    coalescer.assign("a", state=SplitState.IDLE)
    coalescer.assign("b", state=state)

    assert (state is SplitState.FINISHED) == coalescer.all_idle


def test_no_splits_and_only_finished_splits_are_not_all_idle() -> None:
    coalescer = Coalescer(all_idle=AllIdle.MAX)
    assert not coalescer.all_idle
    coalescer.assign("a", state=SplitState.FINISHED, watermark_us=5)

    assert (coalescer.all_idle, coalescer.advance(), coalescer.holder) == (False, None, None)


def test_removal_publishes_nothing_before_the_next_advance() -> None:
    coalescer = coalescer_of(a=10, b=20)
    coalescer.advance()

    assert [coalescer.remove("a"), coalescer.remove("a")] == [True, False]
    assert "a" not in coalescer
    assert coalescer.low_us == 10
    assert Advance(10, 20, "b") == coalescer.advance()


def test_a_removed_split_may_come_back_under_its_name_as_a_new_one() -> None:
    coalescer = coalescer_of(a=10, b=20)
    coalescer.remove("a")
    coalescer.assign("a")
    coalescer.report("a", 10)
    coalescer._check()

    assert Advance(None, 10, "a") == coalescer.advance()


def test_removed_splits_leave_nothing_behind() -> None:
    coalescer = coalescer_of(a=0)
    for n in range(10_000):
        coalescer.assign(f"file-{n}")
        coalescer.report(f"file-{n}", n + 1)
        coalescer.remove(f"file-{n}")

    assert len(coalescer._heap) < 100


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


def test_bulk_and_single_reports_agree() -> None:
    rng = random.Random(7)
    bulk, single = Coalescer(), Coalescer()
    for split in range(200):
        bulk.assign(split)
        single.assign(split)
    for _ in range(30):
        reports: dict[SplitId, int] = {
            split: rng.randrange(-50, 50) for split in rng.sample(range(200), rng.choice((3, 200)))
        }
        bulk.report_all(reports)
        for reporter, watermark_us in reports.items():
            single.report(reporter, watermark_us)
        bulk._check()

        assert (single.advance(), single.regressions) == (bulk.advance(), bulk.regressions)
