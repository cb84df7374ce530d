"""Calls do not block the coordinator's thread; their results come back on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from lowmark.sources.coordinator.action_queue import ActionQueue
from lowmark.sources.coordinator.context import CallAbandoned

from tests.sources.coordinator.coordinating import DEADLINE_SECONDS, Calls, ManualClock, context_on, done_on, queue_by


def test_the_result_and_the_error_of_a_call_reach_the_handler_on_the_coordinators_thread() -> None:
    calls, broken = Calls(ManualClock()), OSError("no broker")

    def fail() -> int:
        raise broken

    calls.context.call_async(lambda: 0, calls.handle)
    calls.await_handled()
    calls.context.call_async(fail, calls.handle)
    calls.await_handled()
    calls.close()

    assert calls.handled == [(0, None), (None, broken)]
    assert calls.uncaught == []


def test_what_a_handler_raises_is_uncaught_under_the_name_of_the_call() -> None:
    calls, broken, passed = Calls(ManualClock()), ValueError("second"), threading.Event()

    def discover() -> int:
        raise OSError("first")

    def handler(result: int | None, error: BaseException | None) -> None:
        calls.queue.post("pass", passed.set)
        raise broken

    calls.context.call_async(discover, handler)
    assert passed.wait(DEADLINE_SECONDS)
    calls.close()

    [(action, error)] = calls.uncaught
    assert error is broken
    assert action.startswith("handle the result of ")
    assert action.endswith(".discover")


def test_a_periodic_call_begins_after_its_delay_and_then_each_period_and_never_twice_at_once() -> None:
    clock = ManualClock()
    calls, begun = Calls(clock), list[int]()
    calls.context.call_async(lambda: begun.append(clock.now_us()), calls.handle, initial_delay=3e-6, period=10e-6)
    clock.await_waiter(3)
    clock.advance(us=2)
    assert begun == []
    clock.advance(us=1)
    calls.await_handled()
    clock.await_waiter(13)
    clock.advance(us=10)
    calls.await_handled()
    clock.await_waiter(23)
    clock.advance(us=35)  # overslept: once, not three times
    calls.await_handled()
    clock.await_waiter(58)
    calls.close()

    assert begun == [3, 13, 48]


def test_a_periodic_call_waits_for_its_handler() -> None:
    clock, hold, begun = ManualClock(), threading.Event(), list[int]()
    calls = Calls(clock)
    entered = threading.Event()

    def slow(result: object, error: BaseException | None) -> None:
        entered.set()
        assert hold.wait(DEADLINE_SECONDS)
        calls.handle(result, error)

    calls.context.call_async(lambda: begun.append(clock.now_us()), slow, period=10e-6)
    assert entered.wait(DEADLINE_SECONDS)
    clock.advance(us=100)
    assert begun == [0]
    hold.set()
    calls.await_handled()
    calls.await_handled()
    calls.close()

    assert begun == [0, 100]


def test_a_call_that_runs_when_its_enumerator_is_closed_is_given_up_and_fails_nobody() -> None:
    calls, entered, hold = Calls(ManualClock()), threading.Event(), threading.Event()

    def poll() -> str:
        entered.set()
        assert hold.wait(DEADLINE_SECONDS)
        return "too late"

    def handler(result: str | None, error: BaseException | None) -> None:
        calls.handle(result, error)
        raise ValueError("nobody hears this")

    calls.context.call_async(poll, handler)
    assert entered.wait(DEADLINE_SECONDS)
    calls.queue.post("close", calls.context.close)
    calls.await_handled()
    hold.set()
    done_on(calls.queue)
    calls.queue.close()

    [(result, error)] = calls.handled
    assert result is None
    assert isinstance(error, CallAbandoned)
    assert "poll was still running when its enumerator was closed" in str(error)
    assert calls.uncaught == []


def test_a_future_can_be_awaited_across_the_threads() -> None:
    calls, done = Calls(ManualClock()), Future[int]()
    calls.context.call_async(lambda: 42, lambda result, error: done.set_result(result or 0))

    assert done.result(DEADLINE_SECONDS) == 42
    calls.close()


@pytest.mark.parametrize("where", ["a call", "the threads"])
def test_a_call_that_is_lost_fails_on_the_coordinators_thread(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise a periodic call, such as a discovery, would silently never start again.
    clock, heard, uncaught = ManualClock(), threading.Event(), list[BaseException]()

    def take(_action: str, error: BaseException) -> None:
        uncaught.append(error)
        heard.set()

    queue = queue_by(clock, uncaught=take)
    broken = OSError("no thread")

    def post(action: str, work: Callable[[], object], *, due_us: int | None = None) -> None:
        if action.startswith("handle the result") and where == "a call":
            raise broken
        ActionQueue.post(queue, action, work, due_us=due_us)

    def fail() -> None:
        raise broken

    monkeypatch.setattr(queue, "post", post)
    context = context_on(queue, clock)
    if where == "the threads":
        monkeypatch.setattr(context._workers, "_next", fail)
    context.call_async(lambda: 42, lambda *_: None, period=10e-6)

    assert heard.wait(DEADLINE_SECONDS)
    assert uncaught == [broken]
    context.close()
    queue.close()
