"""Actions run one after the other when they are due; hanging actions are visible."""

from __future__ import annotations

import threading
from functools import partial

from lowmark.sources.coordinator.action_queue import MonotonicClock

from tests.sources.coordinator.coordinating import DEADLINE_SECONDS, ManualClock, done_on, queue_by


def test_actions_run_in_the_order_of_arrival_on_one_thread() -> None:
    queue, ran = queue_by(MonotonicClock()), list[tuple[int, int]]()
    for number in range(100):
        queue.post("append", partial(lambda at: ran.append((at, threading.get_ident())), number))
    done_on(queue)
    queue.close()

    assert [number for number, _ in ran] == list(range(100))
    assert len({thread for _, thread in ran}) == 1
    assert queue.join(DEADLINE_SECONDS)


def test_a_delayed_action_runs_when_it_is_due_and_not_before() -> None:
    clock, ran = ManualClock(), list[str]()
    queue = queue_by(clock)
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
    queue, ran = queue_by(clock, threads=2), threading.Event()
    queue.post("hang", hold.wait)
    queue.post("run", ran.set)

    assert ran.wait(DEADLINE_SECONDS)
    hold.set()
    queue.close()
    assert queue.join(DEADLINE_SECONDS)


def test_a_call_that_hangs_does_not_keep_a_delayed_one_from_running() -> None:
    clock, hold, entered, ran = ManualClock(), threading.Event(), threading.Event(), threading.Event()
    queue = queue_by(clock, threads=2)

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
    queue = queue_by(MonotonicClock())

    def ask_the_broker() -> None:
        entered.set()
        hold.wait()

    queue.post("start the enumerator", ask_the_broker)
    assert entered.wait(DEADLINE_SECONDS)
    doing = queue.where()
    hold.set()
    done_on(queue)
    queue.close()

    assert doing[0] == "start the enumerator"
    assert "ask_the_broker (test_action_queue.py:" in doing[1]


def test_after_close_nothing_begins_and_the_last_action_runs_although_the_threads_had_ended() -> None:
    queue, ran = queue_by(MonotonicClock()), list[str]()
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
    queue = queue_by(clock)
    queue.post("pause", lambda: ended.append(queue.pause_until(7)))
    clock.await_waiter(7)
    clock.advance(us=7)
    done_on(queue)
    queue.post("pause again", lambda: ended.append(queue.pause_until(100)))
    clock.await_waiter(100)
    queue.close()
    assert queue.join(DEADLINE_SECONDS)

    assert ended == [True, False]


def test_an_error_is_told_and_the_thread_goes_on() -> None:
    told = list[tuple[str, BaseException]]()
    queue = queue_by(MonotonicClock(), uncaught=lambda action, error: told.append((action, error)))
    queue.post("divide", lambda: 1 // 0)
    done_on(queue)
    queue.close()

    [(action, error)] = told
    assert action == "divide"
    assert isinstance(error, ZeroDivisionError)
