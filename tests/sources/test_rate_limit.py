"""Rows are let through at the pace that was asked for, in order, and never is anybody kept waiting for ever."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from lowmark.sources.rate_limit import GatedRateLimiter, InvalidRate, PacedRateLimiter, RateLimiterStrategy

from tests.sources.coordinating import DEADLINE_SECONDS, ManualClock


def done(requests: list[Future[None]]) -> list[bool]:
    return [request.done() for request in requests]


def test_a_gate_grants_in_order_and_a_small_request_does_not_overtake_a_large_one() -> None:
    limiter = GatedRateLimiter(3)
    requests = [limiter.acquire(rows) for rows in (2, 2, 1)]
    assert done(requests) == [True, False, False]
    limiter.notify_checkpoint_complete(0)
    assert done(requests) == [True, True, True]


def test_a_request_larger_than_a_cycle_takes_a_whole_one() -> None:
    limiter = GatedRateLimiter(2)
    requests = [limiter.acquire(rows) for rows in (1, 5, 5, 1)]
    assert done(requests) == [True, False, False, False]
    limiter.notify_checkpoint_complete(1)
    assert done(requests) == [True, True, False, False]
    limiter.notify_checkpoint_complete(1)
    assert done(requests) == [True, True, True, False]
    limiter.notify_checkpoint_complete(2)
    assert done(requests) == [True, True, True, True]


def test_a_large_request_waits_for_a_new_cycle_even_if_nothing_of_this_one_was_used() -> None:
    limiter = GatedRateLimiter(2)
    request = limiter.acquire(3)
    assert not request.done()
    limiter.notify_checkpoint_complete(0)
    assert request.done()


def test_cycles_do_not_add_up() -> None:
    limiter = GatedRateLimiter(2)
    for checkpoint_id in range(5):
        limiter.notify_checkpoint_complete(checkpoint_id)

    assert done([limiter.acquire(1) for _ in range(3)]) == [True, True, False]


def test_a_closed_gate_holds_nobody() -> None:
    limiter = GatedRateLimiter(1)
    requests = [limiter.acquire(1) for _ in range(3)]
    limiter.close()

    assert done([*requests, limiter.acquire(7)]) == [True] * 4


def test_a_request_that_was_given_up_does_no_harm() -> None:
    limiter = GatedRateLimiter(1)
    limiter.acquire(1)
    given_up, next_one = limiter.acquire(1), limiter.acquire(1)
    given_up.cancel()
    limiter.notify_checkpoint_complete(0)
    limiter.notify_checkpoint_complete(1)

    assert next_one.done()


def test_a_pace_makes_each_request_wait_for_what_the_ones_before_it_used() -> None:
    clock = ManualClock()
    limiter = PacedRateLimiter(10, clock=clock)
    requests = [limiter.acquire(rows) for rows in (5, 1, 1)]
    assert done(requests) == [True, False, False]
    clock.await_waiter(500_000)
    clock.advance(us=499_999)
    assert done(requests) == [True, False, False]
    clock.advance(us=1)
    requests[1].result(DEADLINE_SECONDS)
    clock.await_waiter(600_000)
    assert not requests[2].done()
    clock.advance(us=100_000)
    requests[2].result(DEADLINE_SECONDS)
    limiter.close()


def test_time_in_which_nothing_was_asked_for_is_not_saved_up() -> None:
    clock = ManualClock()
    limiter = PacedRateLimiter(10, clock=clock)
    clock.advance(us=60_000_000)

    assert done([limiter.acquire(1), limiter.acquire(1)]) == [True, False]
    limiter.close()


def test_a_closed_pace_holds_nobody() -> None:
    limiter = PacedRateLimiter(0.001, clock=ManualClock())
    requests = [limiter.acquire(1) for _ in range(3)]
    limiter.close()

    assert done([*requests, limiter.acquire(1)]) == [True] * 4


def test_a_slow_rate_gets_its_rows_when_the_caller_counts_from_the_last_grant() -> None:
    rate = RateLimiterStrategy.per_second(0.3)

    assert [rate.rows_per_checkpoint(seconds) for seconds in (0.0, 1.0, 3.0, 3.4, 7.0)] == [1, 0, 0, 1, 2]


def test_a_rate_is_never_exceeded_however_the_batches_fall() -> None:
    rate, granted, last = RateLimiterStrategy.per_second(7), 0, 0.0
    for tenth in range(1, 601):
        rows = rate.rows_per_checkpoint(tenth / 10 - last)
        assert rows is not None
        if rows:
            granted, last = granted + rows, tenth / 10

    assert 60 * 7 * 0.5 <= granted <= 60 * 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateLimiterStrategy.per_second(0), "rows per second: expected a number more than 0, got 0"),
        (lambda: RateLimiterStrategy.per_second(float("nan")), "rows per second: expected .*, got nan"),
        (lambda: RateLimiterStrategy.per_second(float("inf")), "rows per second: expected .*, got inf"),
        (lambda: RateLimiterStrategy.per_checkpoint(0), "rows per checkpoint: expected 1 or more, got 0"),
        (lambda: GatedRateLimiter(0), "rows per checkpoint: expected 1 or more, got 0"),
        (lambda: PacedRateLimiter(-1.0), "rows per second: expected more than 0, got -1"),
        (
            lambda: RateLimiterStrategy.no_op().create_rate_limiter(2).acquire(0),
            "rows to acquire: expected 1 or more, got 0",
        ),
    ],
)
def test_rates_that_let_nothing_through_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRate, match=message):
        make()
