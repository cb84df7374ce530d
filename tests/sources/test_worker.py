"""All waiters learn of the end of a thread, with its error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from lowmark.sources.worker import Worker, WorkerDied

from tests.sources.coordinator.coordinating import DEADLINE_SECONDS


@pytest.mark.parametrize("error", [OSError, MemoryError, SystemExit, KeyboardInterrupt])
def test_who_waits_gets_the_error_at_once_and_so_does_who_comes_later(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    hold, told = threading.Event(), list[BaseException]()

    def fail() -> None:
        hold.wait(DEADLINE_SECONDS)
        raise error("no more")

    worker, began = Worker("example", fail, died=told.append), time.monotonic()
    worker.start()
    assert (worker.ended, worker.failed) == (False, None)
    worker.check("work")
    hold.set()
    for _ in range(2):
        with pytest.raises(WorkerDied) as died:
            worker.wait(Future[None](), "work", seconds=10 * DEADLINE_SECONDS)
        assert isinstance(died.value.__cause__, error)
        assert str(died.value).startswith(
            f"cannot work: the thread example was ended by an error: {error.__name__}: no more. Hint: "
        )

    assert time.monotonic() - began < DEADLINE_SECONDS
    assert worker.join(DEADLINE_SECONDS)
    assert told == [worker.failed]
    assert "the thread example was ended by an error" in caplog.text
    assert "in fail" in caplog.text  # its stack trace


def test_an_end_in_good_order_is_no_failure_and_no_reason_to_wait() -> None:
    worker = Worker("example", lambda: None)
    worker.start()
    assert worker.join(DEADLINE_SECONDS)

    assert worker.failed is None
    with pytest.raises(WorkerDied, match="cannot work: the thread example was stopped"):
        worker.wait(Future[None](), "work", seconds=DEADLINE_SECONDS)


def test_a_result_counts_although_the_thread_has_ended() -> None:
    done: Future[int] = Future()
    worker = Worker("example", lambda: done.set_result(42))
    worker.start()
    assert worker.join(DEADLINE_SECONDS)

    assert worker.wait(done, "work", seconds=0) == 42


class Late(Future[int]):
    """A future whose result comes right after its first caller has given up."""

    def result(self, timeout: float | None = None) -> int:
        if not self.done():
            self.set_result(42)
            raise FutureTimeout
        return super().result(timeout)


def test_a_result_counts_that_comes_at_the_end_of_the_time() -> None:
    hold = threading.Event()
    worker = Worker("example", hold.wait)
    worker.start()

    assert worker.wait(Late(), "work", seconds=0.01) == 42
    hold.set()


def test_what_timed_out_itself_is_told_as_it_was_raised() -> None:
    hold, done = threading.Event(), Future[int]()
    worker = Worker("example", hold.wait)
    worker.start()
    done.set_exception(FutureTimeout("the broker gave no answer"))

    with pytest.raises(FutureTimeout, match="the broker gave no answer"):
        worker.wait(done, "work", seconds=DEADLINE_SECONDS)
    hold.set()


def test_a_thread_that_is_busy_is_waited_for_until_the_time_is_over() -> None:
    hold = threading.Event()
    worker = Worker("example", hold.wait)
    worker.start()
    with pytest.raises(FutureTimeout):
        worker.wait(Future[None](), "work", seconds=0.01)
    hold.set()


def test_an_error_in_the_guard_itself_is_a_death_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("before the guard")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    worker = Worker("example", lambda: None)
    worker._thread = threading.Thread(target=fail)
    worker.start()

    with pytest.raises(WorkerDied, match="ended without a word"):
        worker.wait(Future[None](), "work", seconds=DEADLINE_SECONDS)


def test_what_is_told_of_the_death_may_fail_and_everybody_else_still_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(*_: object) -> None:
        raise OSError("no more")

    worker = Worker("example", fail, died=fail)
    worker.start()
    assert worker.join(DEADLINE_SECONDS)

    assert isinstance(worker.failed, OSError)
