"""Flink's own cases for rate limits (FLIP-535)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lowmark.sources.rate_limit import (
    GatedRateLimiter,
    InvalidRate,
    NoRateLimiter,
    PacedRateLimiter,
    RateLimiterStrategy,
)

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.sources.coordinating import ManualClock


def a_gate_holds_what_exceeds_its_capacity(case: Case) -> None:
    limiter = GatedRateLimiter(5)
    first = [limiter.acquire(1) for _ in range(6)]
    assert [request.done() for request in first] == [True] * 5 + [False]
    limiter.notify_checkpoint_complete(0)
    assert first[5].done()
    then = [limiter.acquire(1) for _ in range(5)]

    assert [request.done() for request in then] == [True] * 4 + [False]


def a_large_request_is_released_by_the_next_cycle(case: Case) -> None:
    limiter = GatedRateLimiter(2)
    large = limiter.acquire(3)
    assert not large.done()
    limiter.notify_checkpoint_complete(0)
    assert large.done()
    small = limiter.acquire(1)
    assert not small.done()
    limiter.notify_checkpoint_complete(1)

    assert small.done()
    assert limiter.acquire(1).done()


def nothing_cannot_be_acquired(case: Case) -> None:
    clock = ManualClock()
    for limiter in (GatedRateLimiter(1), PacedRateLimiter(1, clock=clock), NoRateLimiter()):
        for rows in (0, -1):
            with pytest.raises(InvalidRate, match="rows to acquire: expected 1 or more"):
                limiter.acquire(rows)


def a_reader_emits_so_many_rows_per_checkpoint(case: Case) -> None:
    """30 rows, 2 per checkpoint: a row is emitted when its request is granted."""
    limiter, emitted, left = GatedRateLimiter(2), 0, 30
    waiting = None
    for cycle in range(1, 20):
        while left and (waiting is None or waiting.done()):
            if waiting is not None:
                emitted, left = emitted + 1, left - 1
            waiting = limiter.acquire(1) if left else None
        assert min(30, 1 + 2 * (cycle - 1)) <= emitted <= min(30, 1 + 2 * cycle), cycle
        limiter.notify_checkpoint_complete(cycle)

    assert emitted == 30


def a_rate_is_shared_evenly(case: Case) -> None:
    clock = ManualClock()
    per_second = RateLimiterStrategy.per_second(10).create_rate_limiter(4, clock=clock)
    per_second.acquire(5)
    late = per_second.acquire(1)
    clock.await_waiter(2_000_000)  # 2.5 rows a second
    assert not late.done()
    per_second.close()
    per_checkpoint = RateLimiterStrategy.per_checkpoint(11).create_rate_limiter(4)
    assert [per_checkpoint.acquire(1).done() for _ in range(3)] == [True, True, False]
    unlimited = RateLimiterStrategy.no_op().create_rate_limiter(4)
    assert unlimited.acquire(10**9).done()

    assert RateLimiterStrategy.per_checkpoint(4).create_rate_limiter(4).acquire(1).done()
    with pytest.raises(
        InvalidRate, match="rows per checkpoint: expected 4 or more, as many as there are readers, got 3"
    ):
        RateLimiterStrategy.per_checkpoint(3).create_rate_limiter(4)


RTL: dict[str, Callable[[Case], None]] = {
    "RTL-01": a_gate_holds_what_exceeds_its_capacity,
    "RTL-03": a_large_request_is_released_by_the_next_cycle,
    "RTL-05": nothing_cannot_be_acquired,
    "RTL-07": a_reader_emits_so_many_rows_per_checkpoint,
    "RTL-09": a_rate_is_shared_evenly,
}


@pytest.mark.parametrize("case", family("RTL"), ids=case_id)
def test_rate_limits(case: Case) -> None:
    RTL[case["id"]](case)


def test_no_case_is_skipped() -> None:
    assert RTL.keys() == {case["id"] for case in family("RTL")} - DEVIATIONS.keys()
