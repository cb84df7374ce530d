from __future__ import annotations

import re
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowmark.watermark import (
    AllIdle,
    BoundedOutOfOrderness,
    InvalidDuration,
    InvalidStrategy,
    NoWatermarks,
    WatermarkStrategy,
)
from lowmark.watermark.state import IdleClock
from lowmark.watermark.strategy import FUTURE_GUARD_US, ProgressiveIdleness

PLAIN = WatermarkStrategy.for_monotonous_timestamps()


def test_the_watermark_is_the_maximum_less_the_bound_less_a_millisecond_rounded_down() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")

    assert [strategy.watermark_of_max(max_us) for max_us in (60_000_000, 60_000_999, 0, -1)] == [
        49_999_000,
        49_999_000,
        -10_001_000,
        -10_002_000,
    ]


def test_a_watermark_stays_within_64_bits() -> None:
    lowest_us = PLAIN.watermark_of_max(-(2**63))

    assert (lowest_us >= -(2**63), 0) == (True, lowest_us % 1_000)


def test_the_delay_for_spark_is_rounded_up() -> None:
    delays = [timedelta(0), timedelta(microseconds=1), timedelta(milliseconds=1), timedelta(microseconds=1_001)]

    assert [WatermarkStrategy.for_bounded_out_of_orderness(bound).delay_ms for bound in delays] == [0, 1, 1, 2]


def test_only_an_assigner_or_a_generator_sends_rows_through_python() -> None:
    strategies = [
        PLAIN,
        PLAIN.with_timestamp_assigner(lambda row, own: 0),
        WatermarkStrategy.for_generator(lambda: BoundedOutOfOrderness(0)),
        WatermarkStrategy.no_watermarks(),
    ]

    assert [strategy.runs_python for strategy in strategies] == [False, True, True, False]
    assert [strategy.emits for strategy in strategies] == [True, True, True, False]


def test_each_split_gets_a_generator_of_its_own() -> None:
    assert isinstance(PLAIN.create_generator(), BoundedOutOfOrderness)
    assert isinstance(WatermarkStrategy.no_watermarks().create_generator(), NoWatermarks)
    strategy = WatermarkStrategy.for_generator(NoWatermarks, out_of_orderness="3 seconds")
    assert strategy.create_generator() is not strategy.create_generator()
    assert strategy.delay_ms == 3_000


def test_the_future_guard_is_on_unless_switched_off() -> None:
    assert [
        strategy.future_guard_us
        for strategy in (
            PLAIN,
            PLAIN.with_future_guard(None),
            PLAIN.with_future_guard("0 seconds"),
            PLAIN.with_future_guard("7 seconds"),
        )
    ] == [FUTURE_GUARD_US, None, 0, 7_000_000]


def test_grace_and_idleness_are_off_unless_asked_for() -> None:
    assert (PLAIN.grace_us, PLAIN.idle_timeout_us) == (None, None)
    assert PLAIN.with_grace("5 seconds").grace_us == 5_000_000
    assert PLAIN.with_grace("5 seconds").with_grace(None) == PLAIN


def test_an_idle_timeout_may_grow_within_an_hour_or_its_own_length_if_nothing_else_is_said() -> None:
    assert PLAIN.with_idleness("5 minutes", at_start="15 seconds").progressive == ProgressiveIdleness(
        15_000_000, 3_600_000_000
    )
    day = PLAIN.with_idleness("1 day", at_start="1 minute")
    assert day.progressive == ProgressiveIdleness(60_000_000, 86_400_000_000)
    assert day.with_idleness("1 day") == PLAIN.with_idleness("1 day")


def test_silence_counts_by_the_flow_unless_the_low_watermark_goes_on_when_all_are_idle() -> None:
    idle = PLAIN.with_idleness("1 minute")
    assert idle.silence_clock is IdleClock.FLOW
    assert idle.with_all_idle("max").silence_clock is IdleClock.TIME
    assert idle.with_all_idle("advance", delay="1 minute").silence_clock is IdleClock.TIME
    for clock in ("time", IdleClock.TIME):
        assert PLAIN.with_idleness("1 minute", clock=clock).silence_clock is IdleClock.TIME
    assert PLAIN.with_idleness("1 minute", clock="time").with_idleness("1 minute") == idle


def test_all_idle_takes_a_name_or_the_enum() -> None:
    assert AllIdle.MAX is PLAIN.with_all_idle("max").all_idle
    assert AllIdle.MAX is PLAIN.with_all_idle(AllIdle.MAX).all_idle
    assert PLAIN.with_all_idle("advance", delay="1 minute").all_idle_delay_us == 60_000_000
    assert PLAIN.with_all_idle("advance", delay="1 minute").with_all_idle("hold") == PLAIN


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PLAIN.with_all_idle("jump"), 'expected one of "hold", "advance", "max", got \'jump\''),
        (lambda: PLAIN.with_all_idle("advance"), "got 'advance' without a delay"),
        (lambda: PLAIN.with_all_idle("hold", "1 second"), "got 'hold' with a delay"),
        (lambda: PLAIN.with_idleness("0 seconds"), "with_idleness: expected more than 0, got 0s"),
        (lambda: PLAIN.with_idleness("1 second", clock="wall"), 'expected "flow" or "time", got \'wall\''),
        (lambda: PLAIN.with_idleness("1 second", "flow").with_all_idle("max"), "\"flow\" beside with_all_idle('max')"),
        (lambda: PLAIN.with_idleness("5 seconds", at_start="0 seconds"), "(at_start=): expected more than 0, at most"),
        (lambda: PLAIN.with_idleness("5 seconds", at_start="6 seconds"), "at most the timeout, got 6s"),
        (
            lambda: PLAIN.with_idleness("5 seconds", at_start="1 second", over="4 seconds"),
            "the timeout or more, got 4s",
        ),
        (lambda: PLAIN.with_idleness("5 seconds", over="4 seconds"), "(over=): expected at_start beside it"),
        (lambda: WatermarkStrategy(progressive=ProgressiveIdleness(1, 1)), "(at_start=): expected"),
        (lambda: PLAIN.with_grace("0 seconds"), "with_grace: expected more than 0, got 0s"),
        (lambda: WatermarkStrategy(out_of_orderness_us=-1), "out-of-orderness: expected 0 or more, got -0.000001s"),
        (lambda: WatermarkStrategy.for_generator("g"), "for_generator: expected a function, got 'g'"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(InvalidStrategy, match=re.escape(message)):
        build()


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidDuration, match=r"out-of-orderness: .* it is negative"):
        WatermarkStrategy.for_bounded_out_of_orderness("-1 second")


def test_a_generator_bound_is_not_negative() -> None:
    with pytest.raises(ValueError, match="expected 0 us or more"):
        BoundedOutOfOrderness(-1)


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan"), float("inf"), True, "half"])
def test_a_quorum_is_a_share(share: float) -> None:
    with pytest.raises(InvalidStrategy, match="with_quorum: expected more than 0, at most 1, got"):
        WatermarkStrategy.for_monotonous_timestamps().with_quorum(share)


@pytest.mark.parametrize("percentile", [0, -1, 0.99, 1, 100.5, float("nan"), True, "99"])
def test_a_percentile_is_per_cent(percentile: float) -> None:
    with pytest.raises(InvalidStrategy, match=r"expected more than 1, at most 100, got .* Hint: 99\.0"):
        WatermarkStrategy.for_monotonous_timestamps().with_percentile(percentile)


@pytest.mark.parametrize("policy", ["max", "advance"])
def test_a_quorum_and_going_on_without_any_split_contradict_each_other(policy: str) -> None:
    delay = "1 minute" if policy == "advance" else None
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_all_idle(policy, delay=delay)

    with pytest.raises(InvalidStrategy, match="only one of the two"):
        strategy.with_quorum(0.5)


def test_the_whole_range_of_quorum_and_percentile_is_accepted() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_quorum(1).with_percentile(100)

    assert (strategy.quorum, strategy.percentile) == (1, 100)


@pytest.mark.parametrize("group", ["a\nb", "a\x1b[2J", "\x9b", "a\u2028", "\ud800"])
def test_a_group_whose_name_is_no_line_is_refused(group: str) -> None:
    with pytest.raises(InvalidStrategy, match="a name without ") as refused:
        WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(group=group, max_drift="1 second")
    assert str(refused.value).isprintable()


@given(
    max_us=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**63), -(2**63) + 20_000_000), min_size=1),
    bound_us=st.integers(0, 10_000_000),
)
def test_many_watermarks_at_once_are_those_of_one_after_the_other(max_us: list[int], bound_us: int) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=bound_us))
    assert strategy.watermarks_of_max(np.array(max_us)).tolist() == [strategy.watermark_of_max(us) for us in max_us]
