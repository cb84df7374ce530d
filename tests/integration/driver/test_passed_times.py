"""A caller who waits for a time hears of it, also if the system has no thread left for a moment; no Spark here."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from lowmark.integration.driver import passing
from lowmark.integration.driver.passing import Passing, Wait
from lowmark.sources.worker import Worker

from tests.integration.driver.test_runs import begun, stream


def test_a_function_for_which_there_is_no_thread_is_called_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: str, __: Callable[[], object]) -> Worker:
        raise RuntimeError("can't start new thread")

    called, waits, run = threading.Event(), Passing(), begun(stream())
    waits.add(Wait("orders", None, 4, lambda _: called.set()), [run])
    run.complete_until_us = 5
    with monkeypatch.context() as patched:
        patched.setattr(passing, "Worker", exhausted)
        with pytest.raises(RuntimeError):
            waits.look([run], "orders")
    waits.look([run], "orders")
    assert called.wait(5)
    waits.look([run], "orders")
    assert waits._waits == [], "a wait that was told of is not told again"
