"""Actions run one after the other when they are due; calls do not block; hanging actions are visible."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest
from lowmark.sources.coordinator.notifier import ActionQueue, CallAbandoned, ExecutorNotifier, MonotonicClock

from tests.sources.coordinator.coordinating import DEADLINE_SECONDS, ManualClock


def done_on(queue: ActionQueue) -> None:
    passed = threading.Event()
    queue.post("pass", passed.set)
    assert passed.wait(DEADLINE_SECONDS)


def test_actions_run_in_the_order_of_arrival_on_one_thread() -> None:
    queue, ran = ActionQueue("q", clock=MonotonicClock()), list[tuple[int, int]]()
    for number in range(100):
        queue.post("append", partial(lambda at: ran.append((at, threading.get_ident())), number))
    done_on(queue)
    queue.close()

    assert [number for number, _ in ran] == list(range(100))
    assert len({thread for _, thread in ran}) == 1
    assert queue.join(DEADLINE_SECONDS)


def test_a_delayed_action_runs_when_it_is_due_and_not_before() -> None:
    clock, ran = ManualClock(), list[str]()
    queue = ActionQueue("q", clock=clock)
    queue.post("later", lambda: ran.append("later"), due_us=10)
    queue.post("sooner", lambda: ran.append("sooner"), due_us=5)
    queue.post("now", lambda: ran.append("now"))
    clock.await_waiter(5)
    clock.advance(us=4)
    done_on(queue)
    assert ran == ["now"]

    clock.advance(us=1)
    clock.await_waiter(10)
    assert ran == ["now", "sooner"]
    clock.advance(us=5)
    done_on(queue)
    assert ran == ["now", "sooner", "later"]
    queue.close()


def test_a_call_that_hangs_does_not_keep_others_from_running() -> None:
    hold, clock = threading.Event(), MonotonicClock()
    queue, ran = ActionQueue("q", clock=clock, threads=2), threading.Event()
    queue.post("hang", hold.wait)
    queue.post("run", ran.set)

    assert ran.wait(DEADLINE_SECONDS)
    hold.set()
    queue.close()
    assert queue.join(DEADLINE_SECONDS)


def test_a_call_that_hangs_does_not_keep_a_delayed_one_from_running() -> None:
    clock, hold, entered, ran = ManualClock(), threading.Event(), threading.Event(), threading.Event()
    queue = ActionQueue("q", clock=clock, threads=2)

    def hang() -> None:
        entered.set()
        hold.wait(2 * DEADLINE_SECONDS)

    queue.post("later", ran.set, due_us=10)
    clock.await_waiter(10)
    queue.post("hang", hang)  # on the waiting thread
    assert entered.wait(DEADLINE_SECONDS)
    clock.advance(us=10)

    assert ran.wait(DEADLINE_SECONDS)
    hold.set()
    queue.close()
    assert queue.join(DEADLINE_SECONDS)


def test_a_hanging_action_is_shown_with_where_it_stands() -> None:
    entered, hold = threading.Event(), threading.Event()
    queue = ActionQueue("q", clock=MonotonicClock())

    def ask_the_broker() -> None:
        entered.set()
        hold.wait()

    queue.post("start the enumerator", ask_the_broker)
    assert entered.wait(DEADLINE_SECONDS)
    doing = queue.where()
    hold.set()
    done_on(queue)
    queue.close()

    assert doing is not None
    assert doing[0] == "start the enumerator"
    assert "ask_the_broker (test_notifier.py:" in doing[1]


def test_after_close_nothing_begins_and_the_last_action_runs_although_the_threads_had_ended() -> None:
    queue, ran = ActionQueue("q", clock=MonotonicClock()), list[str]()
    queue.close()
    queue.post("late", lambda: ran.append("late"))
    last, entered, hold = threading.Event(), threading.Event(), threading.Event()

    def hold_on() -> None:
        entered.set()
        hold.wait(DEADLINE_SECONDS)

    queue.close(last=("hold", hold_on))
    assert entered.wait(DEADLINE_SECONDS)
    queue.close(last=("say goodbye", last.set))
    queue.close()
    hold.set()

    assert last.wait(DEADLINE_SECONDS)
    assert ran == []
    assert queue.join(DEADLINE_SECONDS)


def test_a_pause_ends_when_its_time_has_come_or_the_queue_is_closed() -> None:
    clock, ended = ManualClock(), list[bool]()
    queue = ActionQueue("q", clock=clock)
    queue.post("pause", lambda: ended.append(queue.pause_until(7)))
    clock.await_waiter(7)
    clock.advance(us=7)
    done_on(queue)
    queue.post("pause again", lambda: ended.append(queue.pause_until(100)))
    clock.await_waiter(100)
    queue.close()
    assert queue.join(DEADLINE_SECONDS)

    assert ended == [True, False]


def test_an_error_without_somebody_to_tell_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    queue = ActionQueue("q", clock=MonotonicClock())
    queue.post("divide", lambda: 1 // 0)
    done_on(queue)
    queue.close()

    assert "q: cannot divide" in caplog.text


# -- calls


class Calls:
    """A notifier with a queue in place of its coordinator's thread."""

    def __init__(self, clock: ManualClock) -> None:
        self.uncaught: list[tuple[str, BaseException]] = []
        self.queue = ActionQueue(
            "main", clock=clock, uncaught=lambda action, error: self.uncaught.append((action, error))
        )
        self.notifier = ExecutorNotifier("workers", self.queue.post, clock=clock)
        self.handled: list[tuple[object, BaseException | None]] = []
        self.arrived = threading.Semaphore(0)

    def handle(self, result: object, error: BaseException | None) -> None:
        assert self.queue.on_thread
        self.handled.append((result, error))
        self.arrived.release()

    def await_handled(self) -> None:
        assert self.arrived.acquire(timeout=DEADLINE_SECONDS)
        done_on(self.queue)

    def close(self) -> None:
        self.queue.post("close", self.notifier.close)
        done_on(self.queue)
        self.queue.close()


def test_the_result_and_the_error_of_a_call_reach_the_handler_on_the_coordinators_thread() -> None:
    calls, broken = Calls(ManualClock()), OSError("no broker")

    def fail() -> int:
        raise broken

    calls.notifier.notify_ready_async(lambda: 0, calls.handle)
    calls.await_handled()
    calls.notifier.notify_ready_async(fail, calls.handle)
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

    calls.notifier.notify_ready_async(discover, handler)
    assert passed.wait(DEADLINE_SECONDS)
    calls.close()

    [(action, error)] = calls.uncaught
    assert error is broken
    assert action.startswith("handle the result of ")
    assert action.endswith(".discover")


def test_a_periodic_call_begins_after_its_delay_and_then_each_period_and_never_twice_at_once() -> None:
    clock = ManualClock()
    calls, begun = Calls(clock), list[int]()
    calls.notifier.notify_ready_async(
        lambda: begun.append(clock.now_us()), calls.handle, initial_delay_us=3, period_us=10
    )
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

    calls.notifier.notify_ready_async(lambda: begun.append(clock.now_us()), slow, period_us=10)
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

    calls.notifier.notify_ready_async(poll, handler)
    assert entered.wait(DEADLINE_SECONDS)
    calls.queue.post("close", calls.notifier.close)
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
    calls.notifier.notify_ready_async(lambda: 42, lambda result, error: done.set_result(result or 0))

    assert done.result(DEADLINE_SECONDS) == 42
    calls.close()


@pytest.mark.parametrize("where", ["a call", "the threads"])
def test_a_call_that_is_lost_fails_on_the_coordinators_thread(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise a periodic call, such as a discovery, would silently never start again.
    clock, heard, uncaught = ManualClock(), threading.Event(), list[BaseException]()

    def take(_action: str, error: BaseException) -> None:
        uncaught.append(error)
        heard.set()

    queue = ActionQueue("main", clock=clock, uncaught=take)
    broken = OSError("no thread")

    def post(action: str, work: Callable[[], None]) -> None:
        if action.startswith("handle the result") and where == "a call":
            raise broken
        queue.post(action, work)

    def fail() -> None:
        raise broken

    notifier = ExecutorNotifier("workers", post, clock=clock)
    if where == "the threads":
        monkeypatch.setattr(notifier._workers, "_next", fail)
    notifier.notify_ready_async(lambda: 42, lambda *_: None, period_us=10)

    assert heard.wait(DEADLINE_SECONDS)
    assert uncaught == [broken]
    notifier.close()
    queue.close()
