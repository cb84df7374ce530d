"""A client's bounds on the service's time hold for all clocks and network delays."""

from __future__ import annotations

import random

from lowmark.sources.kinesis.clock import ServiceClock


def bounds_ms(clock: ServiceClock, at_ms: int) -> tuple[int, int]:
    bounds = clock.bounds_ms(at_ms=at_ms)
    assert bounds is not None
    return bounds


def test_the_services_time_is_never_before_or_behind_its_bounds() -> None:
    for _ in range(300):
        rng = random.Random(seed := random.randrange(2**32))
        ahead_ms, now_ms = rng.randrange(10**12, 2 * 10**12), rng.randrange(10**6)
        clock = ServiceClock()
        for _ in range(rng.randrange(1, 60)):
            asked_ms = now_ms
            written_ms = asked_ms + rng.randrange(rng.choice([3, 200, 5_000]))
            answered_ms = written_ms + rng.randrange(rng.choice([3, 200, 5_000]))
            clock.hear((written_ms + ahead_ms) // 1_000 * 1_000, asked_ms=asked_ms, answered_ms=answered_ms)
            now_ms = answered_ms + rng.randrange(rng.choice([1, 300, 90_000]) + 1)
            true_ms = now_ms + ahead_ms
            earliest_ms, latest_ms = bounds_ms(clock, now_ms)
            assert earliest_ms <= true_ms <= latest_ms, f"seed {seed}"


def test_many_answers_make_the_bounds_narrow() -> None:
    rng = random.Random(seed := random.randrange(2**32))
    clock, now_ms = ServiceClock(), 0
    for _ in range(100):
        clock.hear(now_ms // 1_000 * 1_000, asked_ms=now_ms, answered_ms=now_ms + 10)
        now_ms += rng.randrange(200, 400)
    earliest_ms, latest_ms = bounds_ms(clock, now_ms)
    assert latest_ms - earliest_ms < 300, f"seed {seed}"


def test_a_service_whose_clock_was_set_is_believed_again() -> None:
    clock = ServiceClock()
    clock.hear(50_000, asked_ms=0, answered_ms=10)
    for set_to_ms in (20_000, 90_000):
        clock.hear(set_to_ms, asked_ms=1_000, answered_ms=1_010)
        assert bounds_ms(clock, 1_010)[0] == set_to_ms
        assert bounds_ms(clock, 1_000)[1] == set_to_ms + 1_000
