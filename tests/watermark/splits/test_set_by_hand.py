"""Delay and idleness that a person sets in a running stream, case by case; tests/laws sets idleness at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lowmark.watermark import SplitState, WatermarkStrategy
from lowmark.watermark.splits.events import (
    BatchReported,
    Effect,
    Polled,
    SplitColumn,
    SplitsPaused,
    SplitsResharded,
    SplitsResumed,
    StrategySet,
)
from lowmark.watermark.splits.stream import SplitWatermarks

S = 1_000_000
ACTIVE, PAUSED, IDLE, PENDING = SplitState.ACTIVE, SplitState.PAUSED, SplitState.IDLE, SplitState.PENDING


class World:
    """A stream with splits, which are told by their largest event times."""

    def __init__(self, delay_s: int = 0, idle_s: int | None = None) -> None:
        idle_us = None if idle_s is None else idle_s * S
        self.strategy = WatermarkStrategy(out_of_orderness_us=delay_s * S, idle_timeout_us=idle_us)
        self.watermarks = SplitWatermarks(self.strategy, job_id="j", source_id="s", task_id="t")
        self.batch = -1

    def report(self, now_s: int, *times_s: int | None) -> list[Effect]:
        """Report a batch with the largest time of split 0, split 1 and so on; None: no rows."""
        self.batch += 1
        at_us = {split: self.strategy.watermark_of_max(s * S) for split, s in enumerate(times_s) if s is not None}
        column = SplitColumn(np.array(list(at_us), np.uint64), np.array(list(at_us.values()), np.int64))
        event = BatchReported(self.batch, now_s * S, column, rows=dict.fromkeys(at_us, 1))
        return self.watermarks.handle(event, now_s * S)

    def set(self, now_s: int, *, delay_s: int | None = None, idle_s: int | None = None) -> None:
        if delay_s is not None:
            self.strategy = replace(self.strategy, out_of_orderness_us=delay_s * S)
        if idle_s is not None:
            self.strategy = replace(self.strategy, idle_timeout_us=idle_s * S or None)
        assert self.watermarks.handle(StrategySet(self.strategy), now_s * S) == []

    def states(self, now_s: int) -> list[SplitState]:
        return [split.state for split in self.watermarks.status(now_s * S).splits.values()]

    @property
    def low_s(self) -> float:
        assert self.watermarks.low_watermark_us is not None
        return (self.watermarks.low_watermark_us + 1_000) / S


def test_a_smaller_delay_counts_from_the_next_rows_on() -> None:
    world = World(delay_s=60)
    world.report(1, 100, 100)
    world.set(2, delay_s=10)
    assert world.low_s == 40, "no row came, so nothing moved"
    world.report(3, 101, 102)
    assert world.low_s == 91


def test_for_a_larger_delay_nothing_goes_back_and_the_low_watermark_stands_until_event_time_has_caught_up() -> None:
    world = World(delay_s=10)
    world.report(1, 100, 100)
    world.set(2, delay_s=60)
    for now_s, time_s in ((3, 101), (4, 140), (5, 149)):
        world.report(now_s, time_s, time_s)
        assert world.low_s == 90
        assert {split.watermark_us for split in world.watermarks.status(now_s * S).splits.values()} == {90 * S - 1_000}
    world.report(6, 151, 152)
    assert world.low_s == 91


def test_counts_go_on_and_native_spark_is_judged_by_the_delay_in_force() -> None:
    world = World(delay_s=10)
    for now_s in (1, 2, 3):
        world.report(now_s, 100 + now_s, 100)
    before = world.watermarks.status(4 * S)
    world.set(4, delay_s=60, idle_s=9)
    after = world.watermarks.status(4 * S)
    assert (before.batches, before.counts, before.native_watermark_us) == (3, after.counts, after.native_watermark_us)
    assert (after.batches, [split.rows for split in after.splits.values()]) == (3, [3, 3])
    assert world.watermarks._reports.tally.bound_us == 60 * S


@pytest.mark.parametrize("together", [1, 3])  # from the third batch on the splits are timed together, as a cohort
def test_a_silence_counts_anew_from_the_moment_at_which_a_person_set_the_idleness(together: int) -> None:
    world = World()
    for now_s in range(together):
        world.report(now_s, 100 + now_s, 100)
    world.report(50, 150, None)
    world.set(60, idle_s=20)
    world.report(79, 179, None)
    assert world.states(79) == [ACTIVE, ACTIVE]
    for now_s in (84, 89, 94, 99, 104):
        world.report(now_s, 100 + now_s, None)
    assert world.states(104) == [ACTIVE, IDLE]
    assert world.low_s == 204

    world.set(105, idle_s=0)
    assert world.states(105) == [ACTIVE, IDLE], "an idle split stays idle until it speaks"
    world.report(106, 206, 110)
    for now_s in range(110, 500, 5):
        world.report(now_s, 100 + now_s, None)
    assert world.states(500) == [ACTIVE, ACTIVE], "no split becomes idle any more"


def test_splits_that_go_on_reporting_together_stay_active() -> None:
    world = World()
    for now_s in range(4):
        world.report(now_s, 100 + now_s, 100)
    world.set(4, idle_s=5)
    for now_s in range(5, 30):
        world.report(now_s, 100 + now_s, 100)
    assert world.states(30) == [ACTIVE, ACTIVE]


def test_a_split_that_alignment_holds_back_is_not_timed_by_a_new_idleness() -> None:
    world = World()
    world.report(1, 100, 100)
    world.watermarks.handle(SplitsPaused((1,)), 2 * S)
    world.set(3, idle_s=5)
    for now_s in range(4, 40):
        world.report(now_s, 100 + now_s, None)
    assert world.states(40) == [ACTIVE, PAUSED]
    world.watermarks.handle(SplitsResumed((1,)), 40 * S)
    for now_s in range(40, 44):
        world.report(now_s, 100 + now_s, None)
    assert world.states(43) == [ACTIVE, ACTIVE]
    for now_s in range(44, 60):
        world.report(now_s, 100 + now_s, None)
    assert world.states(60) == [ACTIVE, IDLE]


def test_a_child_whose_parent_may_still_deliver_is_not_timed_by_a_new_idleness() -> None:
    world = World()
    world.report(1, 100)
    world.watermarks.handle(SplitsResharded({1: (0,)}), 2 * S)
    world.set(3, idle_s=5)
    for now_s in range(4, 40):
        world.report(now_s, 100 + now_s)
    assert world.states(40) == [ACTIVE, PENDING]


def test_the_same_idleness_lets_a_silence_go_on() -> None:
    world = World(idle_s=10)
    world.report(1, 100, 100)
    for now_s in range(2, 12):
        world.report(now_s, 100 + now_s, None)
        world.set(now_s, delay_s=now_s)
    world.watermarks.handle(Polled(12 * S), 12 * S)
    world.report(13, 113, None)
    assert world.states(13) == [ACTIVE, IDLE]


def test_a_restart_counts_by_the_strategy_that_it_is_given_and_the_low_watermark_stays() -> None:
    world = World(delay_s=60)
    world.report(1, 100, 100)
    world.set(2, delay_s=10)
    world.report(3, 110, 110)
    code = WatermarkStrategy(out_of_orderness_us=60 * S)
    data = world.watermarks.snapshot()
    world.watermarks = SplitWatermarks.restore(data, code, now_us=4 * S, job_id="j", source_id="s", task_id="t")
    world.strategy = code
    assert world.low_s == 100
    world.report(5, 150, 150)
    assert world.low_s == 100
    world.report(6, 161, 161)
    assert world.low_s == 101
