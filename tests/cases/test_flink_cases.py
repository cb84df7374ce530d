"""Flink's own cases for the aggregator, the multiplexer, idleness, generators, strategies and the clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from datetime import timedelta

import pytest
from lowmark.watermark import (
    AllIdle,
    BoundedOutOfOrderness,
    InvalidDuration,
    InvalidStrategy,
    TaskId,
    WatermarkStrategy,
)
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.idleness import Idleness
from lowmark.watermark.state import Signal
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, every, family, us
from tests.watermark.splits.invariants import check

# -- AGG


class Aggregator:
    """Flink's ``WatermarkAggregator``: the minimum of an alignment group, which is the cap of a group without drift."""

    def __init__(self) -> None:
        self.group, self.now_us = AlignmentGroup("g"), 0

    @property
    def minimum_us(self) -> int | None:
        return self.group.cap().us

    def aggregate(self, key: Hashable, watermark_us: int | None) -> int | None:
        """Take a report, None for idle; return the minimum if it has changed."""
        before_us, task = self.minimum_us, TaskId("job", "s", str(key))
        self.now_us += 1
        if task not in self.group._members:
            self.group.join(task, AlignmentParams("g", 0, 1), now_us=self.now_us)
        if watermark_us is None:
            self.group.idle(task, at_us=self.now_us)
        else:
            self.group.report(task, watermark_us, at_us=self.now_us)
        return None if before_us == self.minimum_us else self.minimum_us


def aggregate_in_order(case: Case) -> None:
    aggregator = Aggregator()
    for step in case["steps"]:
        before_us = aggregator.minimum_us
        idle = step["wm"] == "MAX"  # Flink's number for idle; ours is a state
        changed = aggregator.aggregate(step["key"], None if idle else us(step["wm"]))

        assert us(step["agg"]) == aggregator.minimum_us
        assert (None if before_us == aggregator.minimum_us else aggregator.minimum_us) == changed


def aggregate_at_random(case: Case) -> None:
    rng = random.Random(case["id"])
    for special in (0.0, 0.01):
        for rounds, keys in ((4, 60), (2, 120)):  # Flink's sizes take minutes against an O(n) definition
            aggregator, latest = Aggregator(), dict[int, int]()
            for _ in range(rounds):
                for key in rng.sample(range(keys), keys):
                    idle = rng.random() < special
                    value = rng.choice((-1, 0, 1, rng.randrange(-(2**63), 2**63)))
                    latest.pop(key, None)
                    if not idle:
                        latest[key] = value
                    aggregator.aggregate(key, None if idle else value)

                    assert min(latest.values(), default=None) == aggregator.minimum_us


def aggregate_nothing(case: Case) -> None:
    aggregator = Aggregator()

    assert aggregator.minimum_us is None
    assert [aggregator.aggregate(*step) for step in (("a", 0), ("a", 0), ("b", 5), ("b", -1))] == [0, None, None, -1]


AGG: dict[str, Callable[[Case], None]] = {
    "AGG-01": aggregate_in_order,
    "AGG-02": aggregate_at_random,
    "AGG-03": aggregate_nothing,
}


@pytest.mark.parametrize("case", family("AGG"), ids=case_id)
def test_aggregator(case: Case) -> None:
    AGG[case["id"]](case)


# -- MUX


class Multiplexer:
    """Flink's ``WatermarkOutputMultiplexer`` on a coalescer: deferred outputs wait for the periodic emit.

    An immediate report combines all outputs at once, also deferred values, but only if it changed its own output.
    """

    def __init__(self) -> None:
        self.coalescer = Coalescer(all_idle=AllIdle.MAX)  # FLINK-38454
        self.emitted: list[int] = []
        self.idle = False

    def act(self, verb: str, output: str, wm: int | None = None) -> None:
        match verb:
            case "reg":
                self.coalescer.assign(output)
            case "def" if wm is not None:
                self.coalescer.report(output, us(wm))
            case "def_idle":
                self.coalescer.signal(output, Signal.IDLE)
            case "imm" if wm is not None:
                before = self.coalescer.state(output), self.coalescer.watermark_us(output)
                self.coalescer.report(output, us(wm))
                changed = before != (self.coalescer.state(output), self.coalescer.watermark_us(output))
                if changed:
                    self.combine()
            case "imm_idle":
                if self.coalescer.signal(output, Signal.IDLE):
                    self.combine()
            case _:
                raise AssertionError(f"no such step: {verb}")

    def combine(self) -> None:
        if (low_us := self.coalescer.advance()) is not None:
            self.emitted.append(low_us // 1_000)
        self.idle = self.coalescer.all_idle


def run_steps(mux: Multiplexer, case: Case) -> None:
    for verb, *rest in case["steps"]:
        if verb == "expect":
            seen = {"last": mux.emitted[-1] if mux.emitted else None, "idle": mux.idle}

            assert rest[0] == {key: seen[key] for key in rest[0]}
        elif verb == "periodic":
            mux.combine()
        elif verb == "unreg":
            assert rest[1] == mux.coalescer.remove(rest[0])
        else:
            mux.act(verb, *rest)
        check(mux.coalescer)


@pytest.mark.parametrize("case", family("MUX"), ids=case_id)
def test_multiplexer(case: Case) -> None:
    mux = Multiplexer()
    if case["id"] == "MUX-23":
        mux.act("reg", "x")
        with pytest.raises(ValueError, match="is assigned already"):
            mux.act("reg", "x")
    else:
        run_steps(mux, case)


# -- IDL


def check_steps(case: Case) -> None:
    timeout_us = us(int(case["given"].split()[1]))
    idleness, now_us, idle, started = Idleness(timeout_us), 0, False, False
    for verb, value in case["steps"]:
        if verb == "adv":
            now_us += us(value)
            continue
        if not started:  # in Flink the first probe starts the timer
            idleness.heard("a", now_us)
            started = True
        idle = idle or idleness.quiet(now_us, {}) == ["a"]

        assert value == idle


def refuse_timeouts(case: Case) -> None:
    with pytest.raises(InvalidStrategy, match="expected more than 0"):
        WatermarkStrategy.for_monotonous_timestamps().with_idleness("0 seconds")
    with pytest.raises(InvalidDuration, match="negative"):
        WatermarkStrategy.for_monotonous_timestamps().with_idleness(timedelta(milliseconds=-1))


@pytest.mark.parametrize("case", family("IDL"), ids=case_id)
def test_idleness(case: Case) -> None:
    (check_steps if "steps" in case else refuse_timeouts)(case)


# -- BOO


class Output:
    def __init__(self) -> None:
        self.emitted: list[int] = []

    def emit_watermark(self, watermark_us: int) -> None:
        self.emitted.append(watermark_us)


@pytest.mark.parametrize("case", family("BOO"), ids=case_id)
def test_bounded_out_of_orderness(case: Case) -> None:
    steps, output = case["steps"], Output()
    generator = BoundedOutOfOrderness(us(steps["bound"]))
    for ms in steps["events"]:
        generator.on_event(None, us(ms), output)
    generator.on_periodic_emit(output)
    generator.on_periodic_emit(output)  # a repeated probe emits the same value

    assert ([] if steps["wm"] == "MIN" else [us(steps["wm"])] * 2) == output.emitted


# -- STR

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def keep_alignment_in_any_order() -> None:
    first = MONOTONOUS.with_watermark_alignment("group-1", timedelta(milliseconds=200)).with_idleness(
        timedelta(milliseconds=200)
    )
    second = MONOTONOUS.with_idleness(timedelta(milliseconds=200)).with_watermark_alignment(
        group="group-1", max_drift=timedelta(milliseconds=200)
    )

    assert first == second
    assert first.alignment is not None
    assert ("group-1", us(200), us(1_000)) == (
        first.alignment.group,
        first.alignment.max_drift_us,
        first.alignment.update_interval_us,
    )


def assign_timestamps() -> None:
    strategy = MONOTONOUS.with_timestamp_assigner(lambda row, row_time_us: 42)

    assert strategy.timestamp_assigner is not None
    assert strategy.timestamp_assigner("row", 13) == 42
    assert MONOTONOUS.timestamp_assigner is None


def refuse_bad_alignment() -> None:
    with pytest.raises(InvalidDuration, match="negative"):
        MONOTONOUS.with_watermark_alignment("g", timedelta(seconds=-1))
    with pytest.raises(InvalidStrategy, match="update_interval"):
        MONOTONOUS.with_watermark_alignment("g", "1 second", "0 seconds")
    with pytest.raises(InvalidDuration, match="update interval"):
        MONOTONOUS.with_watermark_alignment("g", "1 second", timedelta(seconds=-1))
    with pytest.raises(InvalidStrategy, match="both group and max_drift"):
        MONOTONOUS.with_watermark_alignment(None, "1 second")
    with pytest.raises(InvalidStrategy, match="a name"):
        MONOTONOUS.with_watermark_alignment("", "1 second")
    strictest = MONOTONOUS.with_watermark_alignment("g", "0 seconds")
    assert strictest.alignment is not None
    assert strictest.alignment.max_drift_us == 0


def switch_alignment_off() -> None:
    aligned = MONOTONOUS.with_watermark_alignment("g", "1 second")

    assert aligned.without_watermark_alignment() == MONOTONOUS
    assert MONOTONOUS.alignment is None


def name_both_options() -> None:
    for given in ({"group": "g"}, {"max_drift": "1 second"}, {"update_interval": "2 seconds"}):
        with pytest.raises(InvalidStrategy, match=r"both group and max_drift"):
            MONOTONOUS.with_watermark_alignment(**given)


STR: dict[str, Callable[[], None]] = {
    "STR-01": keep_alignment_in_any_order,
    "STR-02": assign_timestamps,
    "STR-03": refuse_bad_alignment,
    "STR-04": switch_alignment_off,
    "STR-05": name_both_options,
}


@pytest.mark.parametrize("case", family("STR"), ids=case_id)
def test_strategy(case: Case) -> None:
    STR[case["id"]]()


# -- CLK


def count_only_time_that_may_be_read(case: Case) -> None:
    idleness = Idleness(us(14))
    idleness.heard("a", us(1_000))

    assert idleness.quiet(us(1_014), {}) == []  # 14 ms of silence, no more
    idleness.pause("a", us(1_014))
    idleness.resume("a", us(1_028))
    assert idleness.quiet(us(1_028), {}) == []
    assert idleness.quiet(us(1_028) + 1, {}) == ["a"]


CLK: dict[str, Callable[[Case], None]] = {"CLK-01": count_only_time_that_may_be_read}


@pytest.mark.parametrize("case", [case for case in family("CLK") if case["id"] in CLK], ids=case_id)
def test_silence_is_counted_without_pauses(case: Case) -> None:
    CLK[case["id"]](case)


# -- BUG


def test_bug_03_a_finished_split_does_not_poison_the_largest_watermark_of_idle_ones() -> None:
    coalescer = Coalescer(all_idle=AllIdle.MAX)
    for split, wm in (("a", 99), ("b", 10), ("c", 7)):
        coalescer.assign(split)
        coalescer.report(split, us(wm))
    coalescer.signal("a", Signal.FINISH)
    coalescer.signal("b", Signal.IDLE)
    coalescer.signal("c", Signal.IDLE)
    coalescer.advance()

    assert us(10) == coalescer.low_us


def test_bug_04_a_stream_whose_splits_were_all_taken_away_caps_nobody() -> None:
    group, coalescer = Aggregator(), Coalescer()
    coalescer.assign("a")
    coalescer.report("a", us(1_000))
    coalescer.advance()
    group.aggregate("this", coalescer.low_us)
    group.aggregate("other", us(5_000))
    coalescer.remove("a")

    assert (coalescer.holder, coalescer.all_idle) == (None, False)
    assert us(5_000) == group.aggregate("this", None)


def test_bug_07_pausing_a_split_that_just_finished_is_no_error() -> None:
    coalescer = Coalescer()
    coalescer.assign("a")
    coalescer.signal("a", Signal.FINISH)

    assert [coalescer.signal("a", Signal.PAUSE), coalescer.signal("a", Signal.RESUME)] == [False, False]


def test_no_case_of_these_families_is_skipped() -> None:
    hand_written = AGG.keys() | STR.keys()

    assert hand_written == {case["id"] for case in every() if case["family"] in ("AGG", "STR")}
    assert {case["id"] for case in family("CLK")} == CLK.keys() | {"CLK-02"}
    assert DEVIATIONS.keys() >= {"CLK-02"}
    assert {name: len(family(name)) for name in ("AGG", "MUX", "IDL", "BOO", "STR", "CLK")} == {
        "AGG": 3,
        "MUX": 15,
        "IDL": 5,
        "BOO": 7,
        "STR": 5,
        "CLK": 2,
    }
