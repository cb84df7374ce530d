"""Splits that a person leaves out of the minimum, case by case; tests/laws has them in random histories."""

from __future__ import annotations

import pytest
from lowmark.watermark import NotifyNewLowWatermark, SplitState, WatermarkStrategy, explain
from lowmark.watermark.splits.events import (
    BatchPlanned,
    BatchReported,
    Effect,
    Event,
    SplitReturnedLate,
    SplitsFinished,
    SplitsMarkedActive,
    SplitsMarkedIdle,
    SplitsPaused,
    SplitsResumed,
    SplitStateChanged,
    Tick,
)
from lowmark.watermark.splits.stream import SplitWatermarks

S = 1_000_000
ACTIVE, PAUSED, IDLE, FINISHED = SplitState.ACTIVE, SplitState.PAUSED, SplitState.IDLE, SplitState.FINISHED


class World:
    """A stream whose split b is a minute behind."""

    def __init__(self, strategy: WatermarkStrategy | None = None) -> None:
        self.strategy = WatermarkStrategy() if strategy is None else strategy
        self.coordinator = SplitWatermarks(self.strategy, job_id="j", source_id="s", task_id="t")
        self.batch = -1
        self.report(1, a=60 * S, b=0)

    def report(self, now_s: float, **watermarks_us: int) -> list[Effect]:
        self.batch += 1
        return self.take(
            BatchReported(self.batch, round(now_s * S), dict[int | str, int](watermarks_us.items())), now_s
        )

    def take(self, event: Event, now_s: float) -> list[Effect]:
        return self.coordinator.handle(event, round(now_s * S))

    def restart(self, now_s: float) -> None:
        names = {"job_id": "j", "source_id": "s", "task_id": "t"}
        data = self.coordinator.snapshot()
        self.coordinator = SplitWatermarks.restore(data, self.strategy, now_us=round(now_s * S), **names)

    def state(self, split: str = "b") -> SplitState:
        return self.coordinator.status(0).splits[split].state

    @property
    def low_us(self) -> int | None:
        return self.coordinator.low_watermark_us


def test_the_low_watermark_goes_on_without_the_split_and_the_effects_say_who_said_so() -> None:
    world = World()
    changed, low = world.take(SplitsMarkedIdle(("b",), "anna", 100 * S), 2)
    why = "left out by hand by anna until 1970-01-01 00:01:40.000 UTC"
    assert changed == SplitStateChanged("b", ACTIVE, IDLE, why)
    assert isinstance(low, NotifyNewLowWatermark)
    assert low.new_low_watermark == 60 * S
    status = world.coordinator.status(2)
    assert status.by_hand == status.left_out == (("b", why),)
    assert f"left out: b, {why}" in explain(status)


def test_rows_do_not_end_a_mark_that_has_a_time_and_the_time_does() -> None:
    world = World()
    world.take(SplitsMarkedIdle(("b",), "anna", 100 * S), 2)
    world.report(3, a=70 * S, b=10 * S)
    world.report(4, b=11 * S)
    assert (world.state(), world.low_us) == (IDLE, 70 * S)
    assert world.coordinator.status(4).splits["b"].late_reports == 2
    assert world.coordinator.wake_at_us(5 * S) == 100 * S
    assert world.take(Tick(), 99.9) == []
    changed, late = world.take(Tick(), 100)
    assert isinstance(changed, SplitStateChanged)
    assert late == SplitReturnedLate("b", 59 * S, None)
    assert (world.state(), world.low_us, world.coordinator.holder) == (ACTIVE, 70 * S, "b")


def test_the_first_row_after_the_mark_ends_a_mark_without_a_time() -> None:
    world = World()
    world.take(SplitsMarkedIdle(("b",), "anna"), 2)
    world.report(1.9, b=5 * S)  # planned before the mark
    assert world.state() is IDLE
    world.restart(3)
    assert world.coordinator.status(3).by_hand == (("b", "left out by hand by anna until it speaks"),)
    world.report(4, b=6 * S)
    assert (world.state(), dict(world.coordinator.by_hand), world.low_us) == (ACTIVE, {}, 60 * S)


def test_the_first_row_ends_a_mark_also_on_another_host_whose_clock_is_behind() -> None:
    world = World()
    world.take(SplitsMarkedIdle(("b",), "anna"), 1_000)
    world.restart(400)
    world.report(399, b=5 * S)  # planned before the restart
    assert world.state() is IDLE
    world.report(401, b=6 * S)
    assert (world.state(), dict(world.coordinator.by_hand)) == (ACTIVE, {})


def test_waiting_rows_do_not_end_a_mark_and_a_claim_about_the_next_row_does() -> None:
    world = World()
    world.take(SplitsMarkedIdle(("b",), "anna"), 2)
    world.take(BatchReported(7, 3 * S, {"a": 61 * S}, backlog_rows={"b": 9}), 3)
    assert world.state() is IDLE
    world.take(BatchPlanned(4 * S, {"b": 0}), 4)
    assert world.state() is IDLE, "the claim says what was known before"
    world.take(BatchPlanned(5 * S, {"b": 8 * S}), 5)
    assert world.state() is ACTIVE


def test_a_mark_is_taken_back_and_the_silence_counts_anew() -> None:
    world = World(WatermarkStrategy(idle_timeout_us=10 * S))
    world.take(SplitsMarkedIdle(("b",), "anna", 1_000 * S), 2)
    for now_s in range(3, 30, 3):
        world.report(now_s, a=60 * S)
    changed, _ = world.take(SplitsMarkedActive(("b",), "bert"), 30)
    assert changed == SplitStateChanged("b", IDLE, ACTIVE, "taken back by bert")
    world.report(33, a=60 * S)
    assert world.state() is ACTIVE
    for now_s in range(36, 60, 3):
        world.report(now_s, a=60 * S)
    assert world.state() is IDLE
    assert world.take(SplitsMarkedActive(("b",), "bert"), 60) == []


def test_a_mark_leaves_out_what_alignment_pauses_and_what_was_idle_before() -> None:
    world = World()
    world.take(SplitsPaused(("b",)), 2)
    world.take(SplitsMarkedIdle(("b",), "anna", 100 * S), 3)
    assert world.state() is IDLE
    world.take(SplitsMarkedIdle(("b",), "bert"), 4)
    assert world.coordinator.status(4).by_hand == (("b", "left out by hand by bert until it speaks"),)


@pytest.mark.parametrize("restarts", [False, True])
def test_alignment_holds_a_split_back_also_after_its_mark(restarts: bool) -> None:
    for ends in (Tick(), SplitsMarkedActive(("b",), "bert")):
        world = World(WatermarkStrategy(idle_timeout_us=10 * S))
        world.take(SplitsPaused(("b",)), 2)
        world.take(SplitsMarkedIdle(("b",), "anna", 20 * S), 3)
        if restarts:
            world.restart(4)
        changed, _ = world.take(ends, 20)
        assert changed == SplitStateChanged("b", IDLE, PAUSED, "it is not read at present")
        for now_s in range(21, 60, 3):
            world.report(now_s, a=90 * S)  # the rows of b wait unread
        assert (world.state(), world.low_us, world.coordinator.holder) == (PAUSED, 60 * S, "b")
        world.take(SplitsResumed(("b",)), 60)
        assert world.state() is ACTIVE


def test_a_row_ends_the_mark_of_a_split_that_alignment_holds_back_since_and_no_silence_leaves_it_out() -> None:
    world = World(WatermarkStrategy(idle_timeout_us=10 * S))
    world.take(SplitsMarkedIdle(("b",), "anna"), 2)
    world.take(SplitsPaused(("b",)), 4)
    world.report(3, b=5 * S)  # of the batch before the pause
    for now_s in range(5, 60, 3):
        world.report(now_s, a=90 * S)
    assert (world.state(), world.low_us, world.coordinator.holder) == (PAUSED, 60 * S, "b")
    world.take(SplitsResumed(("b",)), 60)
    assert world.state() is ACTIVE


def test_a_split_that_alignment_released_during_its_mark_is_active_after_it() -> None:
    world = World()
    world.take(SplitsPaused(("b",)), 2)
    world.take(SplitsMarkedIdle(("b",), "anna", 20 * S), 3)
    world.take(SplitsResumed(("b",)), 4)
    world.take(Tick(), 20)
    assert world.state() is ACTIVE


def test_a_mark_of_an_unknown_a_finished_or_a_late_kind_changes_nothing() -> None:
    world = World()
    world.take(SplitsFinished(("a",)), 2)
    epoch = world.coordinator.epoch
    for event in (SplitsMarkedIdle(("a", "zzz"), "anna"), SplitsMarkedIdle(("b",), "anna", 3 * S)):
        assert world.take(event, 3) == []
    assert (world.coordinator.epoch, world.state("a"), world.state("b")) == (epoch, FINISHED, ACTIVE)
    world.take(SplitsMarkedIdle(("b",), "anna"), 3)
    world.take(SplitsFinished(("b",)), 4)
    assert not world.coordinator.by_hand
