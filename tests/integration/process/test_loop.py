"""A loop ends with an error that no caller received, and then each caller gets the error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from lowmark.integration.process import loop as loop_module
from lowmark.integration.process.loop import Loop
from lowmark.sources.worker import WorkerDied

LONG_SECONDS = 30.0  # a test that waits for so long has failed


class Planted(Exception):  # no error of the product
    """The error that a test makes a function raise."""


def fail() -> None:
    raise Planted("in the middle")


@pytest.mark.parametrize("error", [Planted, MemoryError, SystemExit, KeyboardInterrupt])
def test_posted_work_that_raises_ends_the_loop_and_all_who_wait_get_the_error_at_once(
    error: type[BaseException],
) -> None:
    loop, hold, ran = Loop("example"), threading.Event(), list[str]()

    def hold_then_fail() -> None:
        hold.wait(LONG_SECONDS)
        raise error("in the middle")

    loop.post(hold_then_fail)
    loop.post(lambda: ran.append("after the error"))
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(loop.call, lambda: ran.append("called"), "give the status", seconds=LONG_SECONDS)
        hold.set()
        died = waits.exception(LONG_SECONDS)
    with pytest.raises(WorkerDied) as later:
        loop.call(lambda: None, "give it again", seconds=LONG_SECONDS)
    loop.stop()

    assert time.monotonic() - began < LONG_SECONDS / 3
    assert isinstance(died, WorkerDied)
    assert isinstance(died.__cause__, error)
    assert str(died).startswith("cannot give the status: the thread example was ended by an error: ")
    assert f"{error.__name__}: in the middle" in str(died)
    assert "cannot give it again" in str(later.value)
    assert loop.failed is died.__cause__
    assert ran == []  # state that may be half changed is not used


def test_an_error_of_the_loop_itself_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop("example")
    monkeypatch.setattr(loop_module, "monotonic_us", fail)

    with pytest.raises(WorkerDied, match="Planted: in the middle"):
        loop.call(lambda: None, "do nothing", seconds=LONG_SECONDS)


def test_what_called_work_raises_is_the_callers_and_the_loop_goes_on() -> None:
    loop = Loop("example")
    with pytest.raises(Planted):
        loop.call(fail, "fail", seconds=LONG_SECONDS)

    assert loop.call(lambda: 42, "count", seconds=LONG_SECONDS) == 42
    assert loop.failed is None
    loop.stop()


def test_a_tick_comes_again_and_again_also_beside_calls_without_end() -> None:
    ticked, seen = list[int](), threading.Event()

    def tick() -> None:
        ticked.append(1)
        if len(ticked) == 3:
            seen.set()

    def again() -> None:
        if not seen.is_set():
            loop.post(again)

    loop = Loop("example", tick, tick_us=1_000)
    assert seen.wait(LONG_SECONDS), "the idle loop does not tick"
    ticked.clear()
    seen.clear()
    loop.post(again)
    assert seen.wait(LONG_SECONDS), "the busy loop does not tick"
    loop.stop()


def test_a_tick_that_takes_longer_than_until_the_next_leaves_room_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ticked = [0], threading.Event()
    monkeypatch.setattr("lowmark.integration.process.loop.monotonic_us", lambda: clock[0])

    def tick() -> None:
        clock[0] += 5_000
        ticked.set()

    loop = Loop("example", tick, tick_us=1_000)
    assert ticked.wait(LONG_SECONDS)
    assert loop.call(lambda: 42, "count", seconds=LONG_SECONDS) == 42
    loop.stop()


def test_work_that_is_done_at_the_end_of_the_time_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop("example")

    def late(done: Future[int], _: str, **__: float) -> int:
        done.result(LONG_SECONDS)
        raise FutureTimeout

    monkeypatch.setattr(loop._worker, "wait", late)

    assert loop.call(lambda: 42, "count", seconds=LONG_SECONDS) == 42
    loop.stop()


def test_a_loop_that_was_stopped_says_so_at_once() -> None:
    loop = Loop("example")
    loop.stop()

    with pytest.raises(WorkerDied, match="cannot count: the thread example was stopped"):
        loop.call(lambda: 42, "count", seconds=LONG_SECONDS)
    assert loop.failed is None


def test_a_dead_loop_keeps_nothing_that_it_is_given() -> None:
    loop = Loop("example")
    loop.post(fail)
    with pytest.raises(WorkerDied):
        loop.call(lambda: None, "hear of it", seconds=LONG_SECONDS)
    for _ in range(100):
        loop.post(fail)

    assert loop.times.waiting == 0
