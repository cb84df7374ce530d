"""The coordinator: one thread, named actions, checkpoints, readers, failover."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from lowmark.sources import ReaderInfo, SourceSplit, SplitsAssignment
from lowmark.sources.coordinator import (
    CoordinatorClosed,
    CoordinatorHangs,
    CoordinatorNotStarted,
    InvalidCheckpoint,
    SourceCoordinator,
    SourceFailed,
    SuppressRestarts,
)
from lowmark.sources.coordinator.context import UnregisteredReader, WrongThread
from lowmark.sources.coordinator.failover import Failover, FailoverPolicy
from lowmark.watermark import InvalidDuration, InvalidStrategy

from tests.sources.coordinator.coordinating import (
    DEADLINE_SECONDS,
    Gateway,
    ListSource,
    ManualClock,
    Ping,
    State,
    fail_on,
    settle,
    split,
)

Coordinator = SourceCoordinator[SourceSplit, State]


def make(source: ListSource, gateway: Gateway, **options: Any) -> Coordinator:
    return SourceCoordinator(
        source,
        **{
            "name": "orders",
            "gateway": gateway,
            "num_subtasks": 3,
            "clock": ManualClock(leaps=True),
            "timeout_seconds": DEADLINE_SECONDS,
            **options,
        },
    )


@contextmanager
def running(source: ListSource, gateway: Gateway, *, readers: int = 0, **options: Any) -> Iterator[Coordinator]:
    coordinator = make(source, gateway, **options)
    coordinator.start()
    for subtask in range(readers):
        coordinator.register_reader(subtask)
    settle(coordinator)
    try:
        yield coordinator
    finally:
        coordinator.close()


def taken(coordinator: Coordinator, checkpoint_id: int) -> bytes:
    return coordinator.wait(coordinator.checkpoint(checkpoint_id), "take it")


def ids(splits: list[SourceSplit]) -> list[str]:
    return [each.split_id for each in splits]


def await_failure(coordinator: Coordinator) -> SourceFailed:
    """Wait for the failure, which a source raises on its own thread."""
    with pytest.raises(SourceFailed):
        coordinator.run("settle", lambda: None)
    assert coordinator.failure is not None
    return coordinator.failure


# -- one thread


def test_every_method_of_the_enumerator_runs_on_the_coordinators_one_thread() -> None:
    source, gateway = ListSource(pulled=True), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        coordinator.request_splits()
        coordinator.handle_source_event(1, Ping(7))
        coordinator.handle_splits_finished(0, ["0"])
        taken(coordinator, 1)
        coordinator.notify_checkpoint_complete(1)
        settle(coordinator)
        enumerator = source.newest
        threads = set(enumerator.threads)
    done = list(dict.fromkeys(entry[0] for entry in enumerator.log))

    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert enumerator.threads == threads
    assert done == [
        "start", "add_reader", "handle_split_request", "handle_source_event", "handle_splits_finished",
        "snapshot_state", "notify_checkpoint_complete", "close",
    ]  # fmt: skip


def test_what_runs_on_the_coordinators_thread_may_run_more_at_once() -> None:
    with running(ListSource(), Gateway()) as coordinator:
        assert coordinator.run("outer", lambda: coordinator.run("inner", lambda: 42)) == 42


def test_an_error_in_run_is_the_callers_and_does_not_fail_the_enumerator() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        with pytest.raises(ZeroDivisionError):
            coordinator.run("divide", lambda: 1 // 0)
        settle(coordinator)

        assert coordinator.failure is None
        assert len(source.made) == 1


def test_the_context_is_for_the_coordinators_thread_only() -> None:
    source = ListSource()
    with running(source, Gateway(), readers=1) as coordinator:
        context = source.newest.context
        for use in (
            lambda: context.assign_splits(SplitsAssignment({0: [split(9)]})),
            lambda: context.signal_no_more_splits(0),
            lambda: context.send_event_to_source_reader(0, Ping(1)),
            lambda: context.set_is_processing_backlog(is_processing_backlog=True),
        ):
            with pytest.raises(WrongThread, match="on another thread than the coordinator's"):
                use()
        ran = threading.Event()
        context.run_in_coordinator_thread(lambda: ran.set() if coordinator._context is context else None)

        assert ran.wait(DEADLINE_SECONDS)


def test_a_period_of_nothing_is_refused() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        context = source.newest.context
        for delay, period in ((-1.0, None), (None, 0.0), (None, -1.0)):
            with pytest.raises(ValueError, match="expected more"):
                context.call_async(lambda: 1, lambda result, error: None, delay, period)
        assert coordinator.failure is None


# -- life


def test_close_closes_the_enumerator_once_and_later_calls_say_so() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        coordinator.close()
        coordinator.close()
        enumerator = source.newest
        with pytest.raises(CoordinatorClosed, match="cannot register reader 0: the coordinator is closed"):
            coordinator.register_reader(0)
        with pytest.raises(CoordinatorClosed):
            coordinator.checkpoint(1)
        with pytest.raises(CoordinatorClosed):
            coordinator.start()

    assert [entry for entry in enumerator.log if entry[0] == "close"] == [("close",)]


def test_who_waits_when_it_is_closed_hears_of_it() -> None:
    entered, hold, source = threading.Event(), threading.Event(), ListSource()

    def hold_on() -> bool:
        entered.set()
        return hold.wait(DEADLINE_SECONDS)

    coordinator = make(source, Gateway())
    coordinator.start()
    running_now = coordinator._ask("hold", hold_on)
    assert entered.wait(DEADLINE_SECONDS)
    waiting = coordinator.checkpoint(1)
    closer = threading.Thread(target=coordinator.close)
    closer.start()

    with pytest.raises(CoordinatorClosed, match="cannot snapshot for checkpoint 1"):
        waiting.result(DEADLINE_SECONDS)
    hold.set()
    closer.join(DEADLINE_SECONDS)
    assert running_now.done()
    assert source.newest.closed.is_set()


def test_an_enumerator_that_hangs_in_its_constructor_is_closed_when_it_is_there() -> None:
    entered, hold = threading.Event(), threading.Event()

    def slow(what: str) -> None:
        if what == "create":
            entered.set()
            hold.wait(DEADLINE_SECONDS)

    source = ListSource(fault=slow)
    coordinator = make(source, Gateway())
    coordinator.start()
    assert entered.wait(DEADLINE_SECONDS)
    with pytest.raises(CoordinatorHangs, match="still to start the enumerator"):
        coordinator.close(timeout_seconds=0.01)
    hold.set()
    assert coordinator._queue.join(DEADLINE_SECONDS)

    assert [entry[0] for entry in source.newest.log] == ["close"]


def test_a_start_that_was_forgotten_or_repeated_says_so() -> None:
    coordinator = make(ListSource(), Gateway())
    with pytest.raises(CoordinatorNotStarted, match=r"the coordinator has not started yet\. Hint: reset_to"):
        coordinator.register_reader(0)
    coordinator.start()
    with pytest.raises(CoordinatorNotStarted, match="it was started already"):
        coordinator.start()
    coordinator.close()


# -- hanging


def test_work_that_is_done_at_the_end_of_the_time_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(asked: Future[int], _: str, **__: float) -> int:
        asked.result(DEADLINE_SECONDS)
        raise FutureTimeout

    with running(ListSource(), Gateway()) as coordinator, monkeypatch.context() as patched:
        patched.setattr(coordinator._queue, "wait", late)
        assert coordinator.run("look", lambda: 42) == 42


def test_a_call_times_out_and_names_source_action_and_where_the_enumerator_stands() -> None:
    entered, hold = threading.Event(), threading.Event()

    def hang_here(what: str) -> None:
        if what == "handle_split_request":
            entered.set()
            assert hold.wait(DEADLINE_SECONDS)

    source = ListSource(fault=hang_here)
    with running(source, Gateway(), readers=1, timeout_seconds=0.01) as coordinator:
        coordinator.request_splits()
        assert entered.wait(DEADLINE_SECONDS)
        snapshot = coordinator.checkpoint(17)
        with pytest.raises(CoordinatorHangs) as hangs:
            coordinator.wait(snapshot, "snapshot for checkpoint 17")
        ran = list[int]()
        with pytest.raises(CoordinatorHangs):
            coordinator.run("look", lambda: ran.append(1))
        hold.set()
        coordinator._timeout_seconds = DEADLINE_SECONDS
        settle(coordinator)

        assert ran == []  # its caller has given up
        assert [entry for entry in source.newest.log if entry[0] == "snapshot_state"] == []
        assert coordinator.failure is None
    text = str(hangs.value)
    assert text.startswith(
        "source 'orders': cannot snapshot for checkpoint 17 within 0.01 seconds: it is still to hand out the splits "
        "that readers ask for, at "
    )
    assert "hang_here (test_coordinator.py:" in text
    assert text.endswith(
        "Hint: an enumerator must not block; what may take time belongs in the callable of call_async."
    )


# -- readers


def test_readers_are_added_with_what_is_known_of_them() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        coordinator.register_reader(1, "host-1")
        coordinator.register_reader(1, "host-2")  # already registered
        infos = coordinator.run("look", lambda: dict(source.newest.context.registered_readers))

        assert infos == {1: ReaderInfo(1, "host-1")}
        assert source.newest.log == [("start",), ("add_reader", 1)]
        with pytest.raises(ValueError, match="reader 3 cannot register, expected 0 to 2"):
            coordinator.register_reader(3)


def test_nothing_is_assigned_if_one_reader_of_an_assignment_is_missing() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        before = list(gateway.sent)

        def assign() -> None:
            source.newest.context.assign_splits(SplitsAssignment({0: [split(9)], 2: [split(8)]}))

        with pytest.raises(UnregisteredReader) as missing:
            coordinator.run("assign", assign)
        assert str(missing.value) == (
            "source 'orders': cannot send splits ['8'] to reader 2: it is not registered ([0] are), and nothing was "
            "sent. Hint: keep it until add_reader(2)."
        )
        for use in (
            lambda: source.newest.context.signal_no_more_splits(2),
            lambda: source.newest.context.send_event_to_source_reader(2, Ping(1)),
        ):
            with pytest.raises(UnregisteredReader):
                coordinator.run("send", use)
        assert gateway.sent == before


def test_an_assignment_an_end_and_an_event_arrive() -> None:
    source, gateway = ListSource(0), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        context = source.newest.context
        sent = coordinator.run("send", lambda: context.send_event_to_source_reader(1, Ping(0)))
        coordinator.run("assign", lambda: context.assign_splits(SplitsAssignment({1: [split(1), split(4)], 0: []})))
        coordinator.run("end", lambda: context.signal_no_more_splits(0))

        assert sent.done()
        assert gateway.sent == [("event", 1, Ping(0)), ("splits", 1, "1", "4"), ("splits", 0), ("no more", 0)]


def test_metrics_are_read_while_their_owner_adds_one() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        group = source.newest.context.metric_group

        def read() -> float:
            group.gauge("later", lambda: 2)
            return 1

        group.gauge("sooner", read)
        assert coordinator.metric_values()["sooner"] == 1
        assert coordinator.metric_values()["later"] == 2


def test_an_event_of_an_enumerator_that_was_replaced_reaches_no_reader() -> None:
    source, gateway = ListSource(0, fault=fail_on("handle_source_event")), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        old = source.newest.context
        coordinator.handle_source_event(0, Ping(0))
        settle(coordinator)
        assert source.newest.context is not old
        sent = coordinator.run("send", lambda: old.send_event_to_source_reader(1, Ping(1)))

    assert sent.cancelled()
    assert [each for each in gateway.sent if each[0] == "event"] == []


# -- checkpoints


def test_a_checkpoint_is_restored_in_another_coordinator_without_readers_and_assignments() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        data = taken(coordinator, 0)
        assert gateway.at_checkpoint == {0: {0: [split(0), split(3)]}}
    other, later = ListSource(), Gateway()
    restored = make(other, later)
    restored.reset_to_checkpoint(0, data)
    restored.start()
    settle(restored)

    assert ids(other.newest.unassigned) == ["1", "2", "4", "5"]
    assert restored.run("look", lambda: dict(other.newest.context.registered_readers)) == {}
    assert later.sent == []
    restored.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "0 bytes are no checkpoint"),
        (lambda data: data[:11], "11 bytes are no checkpoint"),
        (lambda data: data + b"x", r"expected \d+ bytes of state, got \d+"),
        (lambda data: data[:-1], r"expected \d+ bytes of state, got \d+"),
        (lambda data: b"\0\0\0\2" + data[4:], "its format is of version 2, and this version of lowmark knows 1"),
        (lambda data: b"\0\0\0\0" + data[4:], "its format is of version 0"),
        (lambda data: data[:4] + b"\0\0\0\4" + data[8:], "its state is of version 4, and the connector knows up to 3"),
        (lambda data: data[:8] + b"\0\0\0\1" + b"\xc1", "State: these are no data of version 3"),
    ],
)
def test_bytes_that_cannot_be_restored_are_refused_at_once(change: Callable[[bytes], bytes], reason: str) -> None:
    with running(ListSource(), Gateway()) as coordinator:
        data = taken(coordinator, 1)
    source = ListSource()
    other = make(source, Gateway())
    with pytest.raises(InvalidCheckpoint, match=f"source 'orders'.*checkpoint 7: {reason}") as refused:
        other.reset_to_checkpoint(7, change(data))
    assert str(refused.value).count("Hint") == 1
    other.start()
    settle(other)
    other.close()

    assert len(source.newest.unassigned) == 6  # unchanged, because it starts again


def test_a_coordinator_that_runs_goes_back_to_nothing() -> None:
    with running(ListSource(), Gateway()) as coordinator:
        data = taken(coordinator, 5)
        with pytest.raises(CoordinatorNotStarted, match="cannot go back to checkpoint 5: it was started already"):
            coordinator.reset_to_checkpoint(5, data)
    with pytest.raises(CoordinatorClosed, match="cannot go back to checkpoint 5"):
        coordinator.reset_to_checkpoint(5, data)


def test_checkpoint_ids_do_not_go_back() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        taken(coordinator, 0)
        taken(coordinator, 0)
        taken(coordinator, 3)
        with pytest.raises(ValueError, match="cannot snapshot for checkpoint 2: checkpoint 3 was taken"):
            taken(coordinator, 2)

        assert coordinator.failure is None


def test_the_enumerator_hears_of_complete_checkpoints() -> None:
    source = ListSource()
    with running(source, Gateway(), readers=1) as coordinator:
        taken(coordinator, 0)
        coordinator.notify_checkpoint_complete(0)
        settle(coordinator)

        assert source.newest.log[-1:] == [("notify_checkpoint_complete", 0)]


# -- failover


def test_a_failed_enumerator_goes_back_to_the_last_snapshot_and_the_readers_are_added_again() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        taken(coordinator, 4)
        coordinator.register_reader(1)  # gets 1 and 4, after the checkpoint
        settle(coordinator)
        assert gateway.ids(1) == ["1", "4"]
        source.fault = fail_on("handle_source_event")
        gateway.sent.clear()
        coordinator.handle_source_event(0, Ping(1))
        settle(coordinator)
        first, second = source.made

        assert first.closed.is_set()
        assert gateway.sent == [("restored", 4), ("splits", 1, "1", "4")]
        assert gateway.owned == {0: [split(0), split(3)], 1: [split(1), split(4)]}
        assert second.log[:3] == [("start",), ("add_reader", 0), ("add_reader", 1)]
        assert ids(second.unassigned) == ["2", "5"]
        assert coordinator.failure is None
        assert coordinator.metric_values()["enumerator_restores"] == 1


def test_without_a_checkpoint_it_begins_anew() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        source.fault = fail_on("notify_checkpoint_complete")
        coordinator.notify_checkpoint_complete(0)
        settle(coordinator)

        assert ("restored", None) in gateway.sent
        assert gateway.owned == {0: [split(0), split(3)], 1: [split(1), split(4)]}
        assert ids(source.newest.unassigned) == ["2", "5"]


def test_what_readers_sent_since_the_snapshot_is_repeated_in_order() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        coordinator.handle_source_event(0, Ping(1))
        taken(coordinator, 1)
        coordinator.handle_source_event(1, Ping(2))
        coordinator.handle_splits_finished(0, ["0"])
        source.fault = fail_on("handle_source_event")
        coordinator.handle_source_event(0, Ping(3))  # fails, is repeated, counts once
        settle(coordinator)

        assert source.newest.events == [1, 2, 3]
        assert ("handle_splits_finished", 0, "0") in source.newest.log
        assert coordinator.failure is None


# -- enumerators that assign on request


def test_readers_ask_until_nobody_gets_a_split_any_more() -> None:
    source, gateway = ListSource(5, pulled=True), Gateway()
    with running(source, gateway, readers=2) as coordinator:
        coordinator.wait(coordinator.request_splits(), "ask")

        assert gateway.owned == {0: [split(0), split(2), split(4)], 1: [split(1), split(3)]}
        assert source.newest.requests == 8, "in the last round nobody got one"


def test_who_asks_an_enumerator_that_fails_hears_of_the_end_and_asks_the_next_one() -> None:
    source, gateway = ListSource(2, pulled=True, fault=fail_on("handle_split_request")), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        coordinator.wait(coordinator.request_splits(), "ask")
        settle(coordinator)
        assert len(source.made) == 2
        assert gateway.owned == {}
        coordinator.wait(coordinator.request_splits(), "ask again")

        assert gateway.ids(0) == ["0", "1"]


def test_a_request_that_fails_does_not_fail_the_next_one() -> None:
    source, gateway = ListSource(2, pulled=True, fault=fail_on("handle_split_request")), Gateway()
    hold = threading.Event()
    with running(source, gateway, readers=1) as coordinator:
        coordinator._ask("hold", lambda: hold.wait(DEADLINE_SECONDS))
        asked = [coordinator.request_splits(), coordinator.request_splits()]
        hold.set()

        for each in asked:
            coordinator.wait(each, "ask")
        assert gateway.ids(0) == ["0", "1"]


def test_who_asks_when_it_is_closed_hears_of_it() -> None:
    entered, hold = threading.Event(), threading.Event()
    coordinator = make(ListSource(), Gateway())
    coordinator.start()

    def hold_on() -> bool:
        entered.set()
        return hold.wait(DEADLINE_SECONDS)

    coordinator._ask("hold", hold_on)
    assert entered.wait(DEADLINE_SECONDS)
    asked = coordinator.request_splits()
    closer = threading.Thread(target=coordinator.close)
    closer.start()

    with pytest.raises(CoordinatorClosed, match="cannot hand out the splits that readers ask for"):
        asked.result(DEADLINE_SECONDS)
    hold.set()
    closer.join(DEADLINE_SECONDS)
    with pytest.raises(CoordinatorClosed):
        coordinator.request_splits()


def test_a_snapshot_that_fails_is_asked_of_the_restored_enumerator() -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        first = taken(coordinator, 1)
        source.fault = fail_on("snapshot_state")

        assert taken(coordinator, 2) == first
        assert len(source.made) == 2
        assert list(gateway.at_checkpoint) == [1, 2]


def test_a_snapshot_that_cannot_be_taken_fails_with_what_failed_last() -> None:
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        taken(coordinator, 1)

        def fault(what: str) -> None:
            fail_on("snapshot_state")(what)
            fail_on("restore", error=partial(OSError, 5))(what)

        source.fault = fault
        snapshot = coordinator.checkpoint(2)
        with pytest.raises(SourceFailed, match=r"from checkpoint 1 .*: OSError: 5") as failed:
            coordinator.wait(snapshot, "take it")

        assert isinstance(failed.value.__cause__, OSError)
        assert failed.value is coordinator.failure


def test_the_pauses_grow_and_then_the_source_fails_and_every_call_says_why(caplog: pytest.LogCaptureFixture) -> None:
    clock, source = ManualClock(), ListSource(fault=fail_on("start", times=100))
    coordinator = make(source, Gateway(), clock=clock)
    coordinator.start()
    snapshot = coordinator.checkpoint(1)
    for due_us, pause_us in ((1_000_000, 1_000_000), (3_000_000, 2_000_000), (7_000_000, 4_000_000)):
        clock.await_waiter(due_us)
        clock.advance(us=pause_us)
    with pytest.raises(SourceFailed):
        snapshot.result(DEADLINE_SECONDS)
    failure = coordinator.failure

    assert failure is not None
    assert isinstance(failure.__cause__, RuntimeError)
    assert str(failure) == (
        "source 'orders': cannot start the restored enumerator (it was restored 3 times within 10 minutes): "
        "RuntimeError: cannot start. Hint: remove the cause and start the query again; it goes on from its checkpoint."
    )
    for call in (
        lambda: coordinator.register_reader(0),
        lambda: coordinator.checkpoint(2),
        lambda: coordinator.run("look", lambda: None),
        lambda: coordinator.notify_checkpoint_complete(1),
    ):
        with pytest.raises(SourceFailed) as again:
            call()
        assert again.value.__cause__ is failure.__cause__
    assert [enumerator.closed.is_set() for enumerator in source.made] == [True] * 4
    assert (
        "source 'orders': cannot start the enumerator: RuntimeError: cannot start; the enumerator is restored in 1s"
        in (caplog.text)
    )
    assert coordinator.metric_values()["source_failed"] == 1
    coordinator.close()


def test_a_source_that_shall_not_be_restored_fails_at_once_with_its_cause() -> None:
    cause = ConnectionError("no broker")
    source = ListSource(fault=fail_on("create", error=lambda: cause))
    coordinator = make(source, Gateway(), failover=FailoverPolicy(most=0))
    coordinator.start()
    failure = await_failure(coordinator)

    assert failure.__cause__ is cause
    assert "cannot start the enumerator (it is not restored): ConnectionError: no broker. Hint: " in str(failure)
    coordinator.close()


class TopicGone(Exception):
    """A connector's error that no restart can cure."""


class Misspelt(TopicGone, SuppressRestarts):
    pass


@pytest.mark.parametrize("behind", [False, True])
def test_what_no_restart_mends_fails_the_source_at_once(behind: bool) -> None:
    def raised() -> Exception:
        misspelt = Misspelt("no topic 'oders'. Hint: check the spelling.")
        if not behind:
            return misspelt
        outer = RuntimeError(f"cannot discover: {misspelt}")
        outer.__cause__ = misspelt
        return outer

    source = ListSource(fault=fail_on("start", error=raised))
    coordinator = make(source, Gateway())
    coordinator.start()
    failure = await_failure(coordinator)

    assert len(source.made) == 1
    assert str(failure).startswith("source 'orders': cannot start the enumerator (it is not restored): ")
    assert str(failure).endswith("no topic 'oders'. Hint: check the spelling.")
    coordinator.close()


def test_even_what_would_end_a_thread_fails_the_enumerator_only() -> None:
    source = ListSource(fault=fail_on("add_reader", error=lambda: SystemExit(1)))
    with running(source, Gateway(), readers=1) as coordinator:
        assert coordinator.failure is None
        assert len(source.made) == 2


def test_a_handler_that_raises_fails_the_enumerator_and_the_old_one_is_heard_no_more() -> None:
    source, gateway, late = ListSource(), Gateway(), list[object]()
    with running(source, gateway, readers=1) as coordinator:
        old = source.newest.context
        hold, entered, restored = threading.Event(), threading.Event(), threading.Event()

        def poll() -> str:
            entered.set()
            assert hold.wait(DEADLINE_SECONDS)
            return "late"

        def broken(result: int | None, error: BaseException | None) -> None:
            source.fault = lambda what: restored.set() if what == "start" else None
            raise ValueError("cannot handle this")

        old.call_async(poll, lambda result, error: late.append(result))
        assert entered.wait(DEADLINE_SECONDS)
        old.call_async(lambda: 1, broken)
        assert restored.wait(DEADLINE_SECONDS)
        hold.set()
        before = list(gateway.sent)
        coordinator.run("assign late", lambda: old.assign_splits(SplitsAssignment({0: [split(9)]})))
        old.run_in_coordinator_thread(lambda: late.append("posted"))
        settle(coordinator)

        assert late == [None]  # abandoned
        assert gateway.sent == before
        assert coordinator.failure is None


class BreaksOnce(ManualClock):
    """A clock that raises once on the coordinator's thread, in the queue's own call."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error, self.breaks = error, threading.Event()

    def now_us(self) -> int:
        if self.breaks.is_set() and threading.current_thread().name == "lowmark orders coordinator":
            self.breaks.clear()
            raise self._error("in the middle")
        return super().now_us()


@pytest.mark.parametrize("error", [OSError, MemoryError, SystemExit])
def test_an_error_that_ends_the_thread_fails_the_source_and_all_who_wait_at_once(error: type[BaseException]) -> None:
    source, clock = ListSource(), BreaksOnce(error)
    coordinator = make(source, Gateway(), clock=clock, timeout_seconds=10 * DEADLINE_SECONDS)
    coordinator.start()
    settle(coordinator)
    began = time.monotonic()
    coordinator._queue.post("do it later", lambda: None, due_us=10)  # makes the queue read the clock
    clock.await_waiter(10)
    clock.breaks.set()
    with pytest.raises(SourceFailed, match=f"thread has ended .*{error.__name__}: in the middle") as failed:
        coordinator.run("count", lambda: 1)
    with pytest.raises(SourceFailed):
        coordinator.run("count again", lambda: 1)
    coordinator.close()

    assert isinstance(failed.value.__cause__, error)
    assert time.monotonic() - began < DEADLINE_SECONDS
    assert source.newest.closed.wait(DEADLINE_SECONDS)


def test_closing_ends_a_pause() -> None:
    clock, source = ManualClock(), ListSource(fault=fail_on("start", times=100))
    coordinator = make(source, Gateway(), clock=clock, timeout_seconds=0.01)
    coordinator.start()
    clock.await_waiter(1_000_000)
    with pytest.raises(
        CoordinatorHangs, match="still to wait 1s before the enumerator is restored, which could not start"
    ):
        settle(coordinator)
    coordinator.close()

    assert coordinator.failure is None


# -- the policy


def test_failures_of_long_ago_do_not_count_and_calm_resets_the_pause() -> None:
    failover = Failover(FailoverPolicy(most=3, window="10 minutes", reset_after="2 minutes"))
    minute_us = 60_000_000

    assert [failover.failed(at_us) for at_us in (0, 1, 2 * minute_us + 1)] == [1_000_000, 2_000_000, 1_000_000]
    assert failover.failed(10 * minute_us) == 1_000_000  # the first failure is out of the window
    assert failover.failed(10 * minute_us) is None


def test_the_longest_pause_is_kept() -> None:
    failover = Failover(FailoverPolicy(most=100))

    assert [(failover.failed(0) or 0) // 1_000_000 for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    "settings", [{"most": -1}, {"backoff": "1 minute"}, {"reset_after": "30 seconds"}, {"max_backoff": "5 minutes"}]
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidStrategy, match="FailoverPolicy"):
        FailoverPolicy(**settings)


def test_a_policy_wants_durations() -> None:
    with pytest.raises(InvalidDuration, match="failover window"):
        FailoverPolicy(window="soon")


# -- the rest


def test_metrics_are_the_enumerators_and_the_coordinators_and_survive_a_failover() -> None:
    source = ListSource()
    with running(source, Gateway(), readers=1) as coordinator:
        source.newest.context.metric_group.counter("discoveries_total").inc(2)
        coordinator.run("say so", lambda: source.newest.context.set_is_processing_backlog(is_processing_backlog=True))

        assert coordinator.metric_values() == {
            "discoveries_total": 2, "enumerator_restores": 0, "processing_backlog": 1, "queued_actions": 0,
            "registered_readers": 1, "source_failed": 0, "unassigned_splits": 4,
        }  # fmt: skip
        source.fault = fail_on("notify_checkpoint_complete")
        coordinator.notify_checkpoint_complete(1)
        settle(coordinator)
        values = coordinator.metric_values()
        assert (values["discoveries_total"], values["enumerator_restores"]) == (2, 1)
        source.newest.context.metric_group.gauge("broken", lambda: 1 // 0)
        assert coordinator.metric_values() == values, "a broken gauge hides no other metric"


def test_actions_are_logged_with_the_sources_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lowmark"), running(ListSource(), Gateway()) as coordinator:
        settle(coordinator)

    assert "source 'orders': the enumerator has started" in caplog.text
