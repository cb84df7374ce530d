"""A rate is kept over time for every trigger, and never exceeded by more than a batch."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate
from math import ceil
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lowmark.sources.planning.rate import InvalidRate, RateBudget, RateLimiterStrategy

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Reading:
    """Batches of one budget on a virtual clock, with the grant and the use of each."""

    def __init__(self, rows_per_second: float) -> None:
        self.rate = rows_per_second
        self.budget = RateBudget(RateLimiterStrategy.per_second(rows_per_second))
        self.at_us: list[int] = []
        self.granted: list[int] = []
        self.taken: list[int] = []

    def batch(self, at_us: int, share: float = 1.0, step: int = 1) -> None:
        """Run a batch that takes this share of its grant, in whole steps, at least one step."""
        granted = self.budget.grant(at_us)
        assert granted is not None
        taken = 0 if granted == 0 else max(1, ceil(granted * share) // step) * step
        if granted:
            self.budget.take(taken, more=True)
        self.at_us.append(at_us)
        self.granted.append(granted)
        self.taken.append(taken)

    def most_above_rate(self, window_us: int) -> float:
        """Return the number of rows above the rate in the fullest window of this length."""
        before = [0, *accumulate(self.taken)]
        return max(
            before[bisect_left(self.at_us, at + window_us)] - before[i] - self.rate * window_us / SECOND
            for i, at in enumerate(self.at_us)
        )


@given(
    trigger_us=st.integers(100_000, 3 * SECOND),
    rate=st.one_of(st.integers(1, 10**6), st.floats(0.2, 10**6)),
    jitter=st.floats(0, 0.5),
    least_share=st.floats(0.75, 1),
    seed=st.integers(0, 2**32),
)
@example(trigger_us=499_000, rate=10, jitter=0, least_share=1, seed=0)
@example(trigger_us=999_000, rate=10, jitter=0, least_share=1, seed=0)
@example(trigger_us=333_000, rate=10, jitter=0, least_share=1, seed=0)
@example(trigger_us=2_500_000, rate=1_000, jitter=0, least_share=0.8, seed=0)
@example(trigger_us=190_000, rate=10, jitter=0, least_share=0.8, seed=0)
@settings(deadline=None, max_examples=50)
def test_a_rate_is_kept_over_a_minute_and_exceeded_by_no_more_than_a_batch(
    trigger_us: int, rate: float, jitter: float, least_share: float, seed: int
) -> None:
    dice, reading, at_us = random.Random(seed), Reading(rate), 0
    while at_us < 2 * MINUTE + 10 * SECOND:
        reading.batch(at_us, dice.uniform(least_share, 1))
        at_us += int(trigger_us * dice.uniform(1 - jitter, 1 + jitter))

    assert reading.most_above_rate(10 * SECOND) <= max(reading.granted) + 1, f"seed {seed}"
    # A batch has the rows since the previous batch; it may lack a row or its last share.
    before, last = [0, *accumulate(reading.taken)], len(reading.at_us) - 1
    unsteady = 2 + (1 - least_share) * max(reading.granted[1:])
    for i in range(1, bisect_left(reading.at_us, MINUTE)):
        j = min(bisect_left(reading.at_us, reading.at_us[i] + MINUTE), last)
        should = rate * (reading.at_us[j] - reading.at_us[i]) / SECOND
        wrong = before[j + 1] - before[i + 1] - should
        assert abs(wrong) <= 0.03 * should + unsteady, f"minute from batch {i}, seed {seed}"


@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize("rate", [10, 1_000, 123_456])
@pytest.mark.parametrize("trigger_ms", [10, 190, 333, 499, 999, 1_000, 2_500])
def test_the_first_minute_is_within_three_percent_at_any_trigger(trigger_ms: int, rate: int, share: float) -> None:
    reading = Reading(rate)
    for at_us in range(0, MINUTE, trigger_ms * 1_000):
        reading.batch(at_us, share)

    assert abs(sum(reading.taken) - 60 * rate) <= 0.03 * 60 * rate
    assert reading.most_above_rate(10 * SECOND) <= max(1, rate * trigger_ms / 1_000) + 1, "a trigger's rows"


@given(step=st.integers(1, 5_000), rate=st.floats(1, 2_000), trigger_us=st.integers(100_000, 2 * SECOND))
@example(step=4_434, rate=1_209.0, trigger_us=1_834_161)  # the second batch has a single row, and takes a whole step
@settings(deadline=None, max_examples=50)
def test_a_batch_that_takes_a_whole_step_of_its_source_is_waited_for(step: int, rate: float, trigger_us: int) -> None:
    reading = Reading(rate)
    for at_us in range(0, 3 * MINUTE, trigger_us):
        reading.batch(at_us, step=step)

    slack = max(reading.taken) + rate * max(1, trigger_us / SECOND)
    first_interval = rate * trigger_us / SECOND  # its tokens count as the first batch's own
    assert reading.most_above_rate(10 * SECOND) <= max(*reading.granted, first_interval) + step
    assert abs(sum(reading.taken) - rate * 180) <= slack


def test_what_was_not_there_to_be_read_is_not_saved_up_but_for_the_row_that_comes_next() -> None:
    budget = RateBudget(RateLimiterStrategy.per_second(10))
    for at_us in range(0, MINUTE, 50_000):
        if budget.grant(at_us):
            budget.take(0, more=False)

    assert budget.grant(MINUTE) == 1
    budget.take(1, more=True)
    assert budget.grant(MINUTE + 1_000) == 0
    assert budget.grant(MINUTE + SECOND) == 10


def test_batches_that_take_next_to_nothing_save_up_no_more_than_one_of_them_brings() -> None:
    budget = RateBudget(RateLimiterStrategy.per_second(10))
    granted = []
    for second in range(60):
        granted.append(budget.grant(second * SECOND))
        budget.take(1, more=True)

    assert max(rows or 0 for rows in granted) == 20


def test_a_slow_rate_gets_its_rows() -> None:
    budget = RateBudget(RateLimiterStrategy.per_second(0.3))
    granted = []
    for second in range(61):
        granted.append(budget.grant(second * SECOND) or 0)
        if granted[-1]:
            budget.take(granted[-1], more=True)

    assert granted[0] == 1
    assert sum(granted) in (18, 19)


def test_a_clock_that_goes_back_brings_nothing_and_takes_nothing() -> None:
    budget = RateBudget(RateLimiterStrategy.per_second(10))
    budget.grant(MINUTE)
    budget.take(0, more=True)
    assert [budget.grant(at_us) for at_us in (MINUTE - 10 * SECOND, MINUTE - 9 * SECOND)] == [0, 10]


def test_a_rate_by_the_checkpoint_is_the_same_for_every_batch_and_none_is_none() -> None:
    by_checkpoint = RateBudget(RateLimiterStrategy.per_checkpoint(7))
    unlimited = RateBudget(RateLimiterStrategy.no_op())
    for at_us in (0, 0, SECOND):
        assert (by_checkpoint.grant(at_us), unlimited.grant(at_us)) == (7, None)
        by_checkpoint.take(3, more=True)
        unlimited.take(10**9, more=True)


def _any(value: object) -> Any:
    """Pass a value in spite of the types, as users do."""
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateLimiterStrategy.per_second(0), "rows per second: expected a number more than 0, got 0"),
        (lambda: RateLimiterStrategy.per_second(float("nan")), "rows per second: expected .*, got nan"),
        (lambda: RateLimiterStrategy.per_second(float("inf")), "rows per second: expected .*, got inf"),
        (lambda: RateLimiterStrategy.per_second(_any("5")), "rows per second: expected a number more than 0, got '5'"),
        (lambda: RateLimiterStrategy.per_checkpoint(0), "rows per checkpoint: expected 1 or more, got 0"),
        (lambda: RateLimiterStrategy.per_checkpoint(_any(float("nan"))), "rows per checkpoint: expected .*, got nan"),
        (lambda: RateLimiterStrategy.per_checkpoint(_any(float("inf"))), "rows per checkpoint: expected .*, got inf"),
        (lambda: RateLimiterStrategy.per_checkpoint(_any("5")), "rows per checkpoint: expected 1 or more, got '5'"),
    ],
)
def test_rates_that_let_nothing_through_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRate, match=message):
        make()
