"""The service's clock never steps, and knows how far the wall clock has stepped away from it."""

from __future__ import annotations

import time

import pytest
from lowmark.integration.process.clock import SteadyClock

HOUR_US = 3_600_000_000


def test_the_wall_clock_is_known_after_a_step_and_a_time_does_not_tremble_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, began_us = SteadyClock(), time.time_ns() // 1_000
    ahead_us = [0]
    monkeypatch.setattr(time, "time_ns", lambda: (clock.now_us() + ahead_us[0]) * 1_000)
    seen = []
    for ahead_us[0] in (0, 900_000, 3 * HOUR_US, 3 * HOUR_US - 900_000, 3 * HOUR_US + 900_000, -HOUR_US):
        seen.append(round(clock.wall_ahead_us() / 10_000) * 10_000)

    assert seen == [0, 0, 3 * HOUR_US, 3 * HOUR_US, 3 * HOUR_US, -HOUR_US]
    assert clock.now_us() - began_us < HOUR_US, "decisions go by the time that passed"
