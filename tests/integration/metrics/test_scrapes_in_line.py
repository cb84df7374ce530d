"""Scrapes of two Prometheus at the same time, as of a pair that stands in for each other."""

from __future__ import annotations

import threading
from collections.abc import Container

import pytest
from lowmark.integration.metrics import collector as metrics
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.run_status import RunStatus

from tests.integration.metrics.test_metrics import SECOND_US, FakeService


def test_two_scrapes_wait_for_a_busy_loop_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us, looked = [0], threading.Semaphore(0)
    asked: list[float] = []

    def clock() -> int:
        looked.release()
        return now_us[0]

    class Busy(FakeService):
        def run_statuses(
            self, *, without: Container[str] = (), seconds: float = 0.0, limit: int | None = None
        ) -> list[RunStatus]:
            asked.append(seconds)
            if len(asked) == 1:
                for _ in range(2):  # the looks of the first scrape
                    looked.acquire(timeout=10.0)
                second.start()
                looked.acquire(timeout=10.0)  # the second has come, and stands in line
                now_us[0] += 4 * SECOND_US
            raise TimeoutError("the loop is busy")

    monkeypatch.setattr(metrics, "monotonic_us", clock)
    collector = StreamCollector(Busy())
    second = threading.Thread(target=lambda: [*collector.collect()])
    told = {family.name for family in collector.collect()}
    second.join()
    assert asked == [5.0, 1.0]
    assert "lowmark_collect_errors" in told
