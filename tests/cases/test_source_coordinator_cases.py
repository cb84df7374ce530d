"""Flink's own cases for a source's coordinator: the context, the notifier, the assignment tracker, the provider."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest
from lowmark.sources import ReaderInfo, SplitsAssignment
from lowmark.sources.coordinator import CoordinatorHangs, CoordinatorNotStarted, InvalidCheckpoint
from lowmark.sources.coordinator.context import UnregisteredReader
from lowmark.sources.coordinator.failover import FailoverPolicy

from tests.cases.deviations import DEVIATIONS
from tests.cases.reader import Case, case_id, family
from tests.sources.coordinator.coordinating import (
    DEADLINE_SECONDS,
    Calls,
    Gateway,
    ListSource,
    ManualClock,
    Ping,
    done_on,
    fail_on,
    settle,
    split,
)
from tests.sources.coordinator.test_coordinator import await_failure, make, running, taken

ONCE = FailoverPolicy(most=0)
FAMILIES = ("CRD", "CTX", "NOT", "TRK", "PRV")

# -- CRD


def nothing_before_start(case: Case) -> None:
    coordinator = make(ListSource(), Gateway())
    for call in (
        lambda: coordinator.notify_checkpoint_complete(1),
        lambda: coordinator.handle_source_event(0, Ping(1)),
        coordinator.request_splits,
        lambda: coordinator.checkpoint(1),
    ):
        with pytest.raises(CoordinatorNotStarted, match="the coordinator has not started yet"):
            call()


def start_and_close(case: Case) -> None:
    source = ListSource()
    with running(source, Gateway()):
        assert source.newest.log == [("start",)]
    assert source.newest.closed.is_set()
    never = ListSource()
    make(never, Gateway()).close()
    assert never.made == []


def checkpoint_and_restore(case: Case) -> None:
    source, other, gateway = ListSource(), ListSource(), Gateway()
    with running(source, gateway, readers=1) as coordinator:
        data = taken(coordinator, 100)
        assert gateway.ids(0) == ["0", "3"]
    restored = make(other, Gateway())
    restored.reset_to_checkpoint(100, data)
    restored.start()
    settle(restored)

    assert len(other.newest.unassigned) == 4
    assert restored.run("look", lambda: len(other.newest.context.registered_readers)) == 0
    restored.close()


def a_start_that_fails_fails_the_query(case: Case) -> None:
    for what in ("create", "start"):
        coordinator = make(ListSource(fault=fail_on(what, error=partial(RuntimeError, what))), Gateway(), failover=ONCE)
        coordinator.start()

        failure = await_failure(coordinator)
        assert isinstance(failure.__cause__, RuntimeError)
        assert f"cannot start the enumerator (it is not restored): RuntimeError: {what}" in str(failure)
        coordinator.close()


def close_although_a_handler_blocks(case: Case) -> None:
    entered, hold, source = threading.Event(), threading.Event(), ListSource()
    coordinator = make(source, Gateway())
    coordinator.start()
    settle(coordinator)

    def block(result: object, error: BaseException | None) -> None:
        entered.set()
        hold.wait(DEADLINE_SECONDS)

    source.newest.context.call_async(lambda: 1, block)
    assert entered.wait(DEADLINE_SECONDS)
    with pytest.raises(
        CoordinatorHangs, match=r"cannot close the enumerator within 0\.001 seconds: it is still to handle"
    ):
        coordinator.close(timeout_seconds=0.001)
    assert source.newest.closed.wait(5)
    hold.set()
    assert coordinator._queue.join(DEADLINE_SECONDS)

    assert [entry for entry in source.newest.log if entry[0] == "close"] == [("close",)]


def formats(case: Case) -> None:
    """Flink's version 0, with its trailing fields, was never written by lowmark."""
    with running(ListSource(), Gateway()) as coordinator:
        data = taken(coordinator, 1)
    restored = make(ListSource(), Gateway())
    for bad, reason in ((data + b"\0\0\0\0", "bytes of state"), (struct.pack(">i", 2) + data[4:], "version 2")):
        with pytest.raises(InvalidCheckpoint, match=reason):
            restored.reset_to_checkpoint(1, bad)


# -- CTX


def readers_register(case: Case) -> None:
    """Readers do not fail alone: a reader that registers again is registered already."""
    source = ListSource()
    with running(source, Gateway()) as coordinator:
        for subtask in (0, 1, 2, 1):
            coordinator.register_reader(subtask)
        settle(coordinator)
        readers = coordinator.run("look", lambda: dict(source.newest.context.registered_readers))

        assert [entry[1] for entry in source.newest.log if entry[0] == "add_reader"] == [0, 1, 2]
        assert readers == {0: ReaderInfo(0), 1: ReaderInfo(1), 2: ReaderInfo(2)}


def nothing_is_sent_to_unregistered_readers(case: Case) -> None:
    source, gateway = ListSource(), Gateway()
    with running(source, gateway) as coordinator:
        assignment = SplitsAssignment({0: [split(0)]})
        with pytest.raises(UnregisteredReader, match=r"it is not registered .* nothing was sent"):
            coordinator.run("assign", lambda: source.newest.context.assign_splits(assignment))

        assert gateway.sent == []


def a_call_given_up_at_close_fails_nothing(case: Case) -> None:
    """Python cannot interrupt a thread: the handler hears at once that the call was given up."""
    entered, hold, heard, source = threading.Event(), threading.Event(), Future[str](), ListSource()
    coordinator = make(source, Gateway())
    coordinator.start()
    settle(coordinator)

    def poll() -> int:
        entered.set()
        hold.wait(DEADLINE_SECONDS)
        raise OSError("the connection was closed")

    def handler(result: int | None, error: BaseException | None) -> None:
        heard.set_result(type(error).__name__)
        raise RuntimeError("nobody hears this")

    source.newest.context.call_async(poll, handler)
    assert entered.wait(DEADLINE_SECONDS)
    coordinator.close()
    hold.set()

    assert heard.result(DEADLINE_SECONDS) == "CallAbandoned"
    assert coordinator.failure is None


def the_backlog_flag_reaches_everybody(case: Case) -> None:
    source, gateway = ListSource(0), Gateway()
    with running(source, gateway) as coordinator:
        say = source.newest.context.set_is_processing_backlog
        coordinator.register_reader(0)
        coordinator.run("say", lambda: say(is_processing_backlog=True))
        coordinator.register_reader(1)
        coordinator.run("say", lambda: say(is_processing_backlog=False))
        coordinator.register_reader(2)
        settle(coordinator)

        assert gateway.sent == [
            ("backlog", 0, True), ("backlog", 1, True),
            ("backlog", 0, False), ("backlog", 1, False), ("backlog", 2, False),
        ]  # fmt: skip


# -- NOT


def a_result_is_handled_on_the_main_thread(case: Case) -> None:
    calls = Calls(ManualClock())
    calls.context.call_async(lambda: 1234, calls.handle)
    calls.await_handled()
    calls.close()

    assert calls.handled == [(1234, None)]


def an_error_is_handled_on_the_main_thread(case: Case) -> None:
    calls, error = Calls(ManualClock()), OSError("expected")
    calls.context.call_async(_raising(error), calls.handle)
    calls.await_handled()
    calls.close()

    assert calls.handled == [(None, error)]


def an_error_of_the_handler_is_uncaught(case: Case) -> None:
    call = _raising(OSError("first")) if case["id"] == "NOT-03" else lambda: 1234
    calls, error, handled = Calls(ManualClock()), ValueError("second"), threading.Event()

    def handler(result: object, failed: BaseException | None) -> None:
        handled.set()
        raise error

    calls.context.call_async(call, handler)
    assert handled.wait(DEADLINE_SECONDS)
    done_on(calls.queue)
    calls.close()

    assert [uncaught for _, uncaught in calls.uncaught] == [error]


def _raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


# -- PRV


def a_reset_makes_a_new_enumerator_without_readers(case: Case) -> None:
    """The coordinator is a new one, too, because a running coordinator accepts no reset."""
    source = ListSource()
    with running(source, Gateway(), readers=1) as coordinator:
        data = taken(coordinator, 0)
        coordinator.register_reader(1)
        settle(coordinator)
        before = source.newest
    restored = make(source, Gateway())
    restored.reset_to_checkpoint(0, data)
    restored.start()
    settle(restored)

    assert source.newest is not before
    assert restored.run("look", lambda: len(source.newest.context.registered_readers)) == 0
    restored.close()


def a_handler_that_raises_fails_the_query(case: Case) -> None:
    source, error = ListSource(), RuntimeError("cannot handle it")
    coordinator = make(source, Gateway(), failover=ONCE)
    coordinator.start()
    settle(coordinator)
    handled = threading.Event()

    def handler(result: object, failed: BaseException | None) -> None:
        handled.set()
        raise error

    source.newest.context.call_async(lambda: 1, handler)
    assert handled.wait(DEADLINE_SECONDS)

    assert await_failure(coordinator).__cause__ is error
    assert "handle the result of a_handler_that_raises_fails_the_query." in str(coordinator.failure)
    coordinator.close()


CASES: dict[str, Callable[[Case], None]] = {
    "CRD-01": nothing_before_start,
    "CRD-03": start_and_close,
    "CRD-05": checkpoint_and_restore,
    "CRD-09": a_start_that_fails_fails_the_query,
    "CRD-11": close_although_a_handler_blocks,
    "CRD-13": formats,
    "CTX-01": readers_register,
    "CTX-05": nothing_is_sent_to_unregistered_readers,
    "CTX-07": a_call_given_up_at_close_fails_nothing,
    "CTX-09": the_backlog_flag_reaches_everybody,
    "NOT-01": a_result_is_handled_on_the_main_thread,
    "NOT-02": an_error_is_handled_on_the_main_thread,
    "NOT-03": an_error_of_the_handler_is_uncaught,
    "NOT-04": an_error_of_the_handler_is_uncaught,
    "PRV-01": a_reset_makes_a_new_enumerator_without_readers,
    "PRV-02": a_handler_that_raises_fails_the_query,
}


@pytest.mark.parametrize(
    "case", [case for name in FAMILIES for case in family(name) if case["id"] in CASES], ids=case_id
)
def test_source_coordinator(case: Case) -> None:
    CASES[case["id"]](case)


def test_no_case_is_skipped() -> None:
    every = {case["id"] for name in FAMILIES for case in family(name)}

    assert CASES.keys() == every - DEVIATIONS.keys()
