from __future__ import annotations

import pytest
from lowmark.watermark import PausableClock, VirtualClock


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="time does not go back"):
        VirtualClock().advance(us=-1)


def test_a_clock_that_is_not_paused_cannot_be_unpaused() -> None:
    with pytest.raises(RuntimeError, match="the clock is not paused"):
        PausableClock(VirtualClock()).unpause()


def test_a_paused_clock_stands() -> None:
    base = VirtualClock(now_us=10)
    clock = PausableClock(base)
    clock.pause()
    base.advance(us=5)

    assert clock.now_us() == 10
