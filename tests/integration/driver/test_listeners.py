"""A listener hears of every low watermark, even if another listener, or the thread that calls it, has failed."""

from __future__ import annotations

import pytest
from lowmark.integration.driver.listeners import Listeners
from lowmark.watermark import LowWatermarkListener, NotifyNewLowWatermark

from tests.servers.local import wait_until


class Fails(LowWatermarkListener):
    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def on_new_low_watermark(self, notice: NotifyNewLowWatermark) -> None:
        raise self._error(f"in a callback, at {notice.new_low_watermark}")


class Hears(LowWatermarkListener):
    def __init__(self) -> None:
        self.lows: list[int] = []

    def on_new_low_watermark(self, notice: NotifyNewLowWatermark) -> None:
        self.lows.append(notice.new_low_watermark)


def risen(low_us: int) -> NotifyNewLowWatermark:
    return NotifyNewLowWatermark("job", "orders", "0", 0, low_us)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_listener_raises_keeps_no_other_listener_from_hearing(error: type[BaseException]) -> None:
    listeners, hears = Listeners(), Hears()
    for each in (Fails(error), hears):
        listeners.add(each)
    for low_us in (1, 2):
        listeners.notify(risen(low_us))
    listeners.stop()
    assert hears.lows == [1, 2]


def test_an_error_of_the_thread_that_calls_listeners_does_not_end_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners, hears = Listeners(), Hears()
    listeners.add(hears)
    with monkeypatch.context() as planted:
        planted.setattr(listeners, "_tell", lambda _: 1 // 0)
        listeners.notify(risen(1))
        wait_until(lambda: listeners._loop.failed is not None, "the thread has ended")
    listeners.notify(risen(2))
    listeners.stop()
    assert hears.lows == [2]
