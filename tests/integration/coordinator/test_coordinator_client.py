"""The threads of a client, against a real coordinator in this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest
from lowmark.integration.cli.show_coordinator import show_coordinator
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.access import Caller, Door, read_token
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient, _Link
from lowmark.integration.coordinator.client_state import ClientState
from lowmark.integration.errors import AddressRefused, CoordinatorUnreachable, TokenRefused
from lowmark.sources.worker import Worker, WorkerDied
from lowmark.watermark import InvalidMessage, LowmarkError, TaskId, UnknownTask
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.status import run_mark
from rich.console import Console

from tests.integration.coordinator.coordinator_scene import SECOND
from tests.integration.coordinator.serving import beginning, certificate, report, serving, task, token_file
from tests.servers.local import wait_until


def test_callbacks_come_from_one_thread_and_one_that_raises_stops_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threads, lows = set(), []

    def hear(_task: TaskId, low_us: int) -> None:
        threads.add(threading.current_thread().name)
        lows.append(low_us)
        raise ValueError("the application's own fault")

    with (
        caplog.at_level(logging.ERROR),
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_low=hear) as one,
    ):
        one.register(beginning(task(0)))
        for low_us in (1, 2, 3):
            report(one, task(0), low_us)
            wait_until(lambda low_us=low_us: lows[-1:] == [low_us], "it is heard")  # type: ignore[misc]
    assert threads == {"lowmark-client"}
    assert "a callback of the application raised" in caplog.text


def test_a_coordinator_that_does_not_exist_is_said_at_once_and_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        CoordinatorClient(Caller(f"unix:{folder}/nobody.sock")) as alone,
    ):
        with pytest.raises(CoordinatorUnreachable, match=r"cannot create the service: no coordinator answers at unix:"):
            alone.reach()
        since_us = alone.since_us
        wait_until(lambda: alone._state.retry_at_us > since_us + 200_000, "a second attempt")  # type: ignore[operator]
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"no coordinator answers at unix:{folder}/nobody.sock (UNAVAILABLE")
    assert said.endswith("Hint: start it with `lowmark serve`, or check the address.")


def test_a_coordinator_that_answers_is_reached_and_nothing_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address)) as one,
    ):
        one.reach()
        assert one.connected
    assert [record for record in caplog.records if record.name == "lowmark.integration.coordinator.client"] == []


ODD_NAMES = (
    """it's "quoted" \\ and `so on`""",
    "line\nbreak\r\n\ttab",
    "Zürich 東京 🚰 \u202e",
    "null\0 and [red]markup[/red] [/nothing] :smile: {braces} %s",
    "/slashes/",
    " ",
)


def test_odd_names_come_back_as_they_went_over_the_wire_the_journal_and_the_status(folder: Path) -> None:
    """Odd names of jobs, streams, tasks, runs and groups. Each source has two tasks, so a mixed-up name never rises."""
    tasks = [TaskId(f"job {odd}", f"source {odd}", f"{n} {odd}") for odd in ODD_NAMES for n in range(2)]
    tasks += [TaskId("a/b", "c", "d"), TaskId("a", "b/c", "d"), TaskId("a", "b", "c/d")]  # their texts are alike
    for low_us in (0, 7):  # the second time with the journal's state
        with (
            serving(Door(f"unix:{folder}/c.sock"), journal=folder / "journal") as address,
            CoordinatorClient(Caller(address)) as one,
        ):
            for n, each in enumerate(tasks):
                group = AlignmentParams(f"group {each.job_id} {each.source_id}", 1_000, 20_000)
                one.register(beginning(each, token=f"run {low_us} {each.task_id}", alignment=group))
                report(one, each, low_us + n)
            for n, each in enumerate(tasks):
                least_us = low_us + (n // 2 * 2 if n < 2 * len(ODD_NAMES) else n)
                wait_until(lambda: one.low_us(each) == least_us, f"{each!r} to hear {least_us}")  # noqa: B023
                wait_until(lambda: one.cap(each) == Cap.up_to(least_us + 1_000), f"the cap of {each!r}")  # noqa: B023
            seen = ask_status(Caller(address)).coordinator
            runs = {task.task: task.mark for source in seen.sources for task in source.tasks}
            assert runs == {each: run_mark(f"run {low_us} {each.task_id}") for each in tasks}
            assert {group.group for group in seen.groups} == {f"group {each.job_id} {each.source_id}" for each in tasks}
            printed = StringIO()
            console = Console(file=printed, width=1_000, markup=False, emoji=False)
            show_coordinator(address, ask_status(Caller(address)), console, now_us=0)
            assert all(f"{n} {ODD_NAMES[0]}" in printed.getvalue() for n in range(2))
            assert "0 null" in printed.getvalue()
            assert "[red]markup[/red] [/nothing] :smile:" in printed.getvalue()


def test_two_processes_of_one_task_do_not_fight_over_it(folder: Path) -> None:
    given_up: list[str] = []
    with (
        serving(
            Door(f"unix:{folder}/c.sock"), lease_us=3 * SECOND
        ) as address,  # a client renews after a third of the lease
        CoordinatorClient(Caller(address), on_given_up=lambda token, _error: given_up.append(token)) as old,
        CoordinatorClient(Caller(address)) as new,
    ):
        run = beginning(task(0))
        old.register(run)
        token = run.token
        report(old, task(0), 1)
        wait_until(lambda: old.low_us(task(0)) == 1, "the first")
        new.register(beginning(task(0)))
        report(new, task(0), 5)
        wait_until(lambda: given_up, "the first is told that it was replaced")
        wait_until(lambda: new.low_us(task(0)) == 5, "the second")
        report(old, task(0), 9)
    assert given_up == [token]


def test_what_cannot_be_is_refused_to_the_caller(folder: Path) -> None:
    with CoordinatorClient(Caller(f"unix:{folder}/nobody.sock")) as alone:
        with pytest.raises(UnknownTask, match="task job/orders/0 is not known to this application"):
            report(alone, task(0), 1)
        alone.register(beginning(task(0)))
        with pytest.raises(InvalidMessage, match="current_low_watermark"):
            report(alone, task(0), 2**63)
        with pytest.raises(InvalidMessage, match="task_id"):
            alone.register(beginning(TaskId("job", "orders", "")))
        with pytest.raises(InvalidMessage, match=r"task_id: .*UTF-8"):  # its thread could not send the name
            alone.register(beginning(TaskId("job", "orders", "half of a pair \ud83d")))
        alone.deregister(task(0))
        with pytest.raises(UnknownTask):
            alone.deregister(task(0))
        wait_until(lambda: alone.why.startswith("UNAVAILABLE"), "the reason")
        assert not alone.connected


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("unix:", "the path is relative"),
        ("unix:c.sock", "the path is relative"),
        (f"unix:/{'x' * 107}", "this one 108"),
    ],
)
def test_an_address_at_which_nobody_can_listen_is_refused_at_once(address: str, says: str) -> None:
    """As a coordinator refuses it; gRPC would try it for ever, so that the low watermark of a job would stand."""
    with pytest.raises(AddressRefused, match=says):
        Caller(address)


def test_an_address_or_a_token_that_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AddressRefused, match="tls_ca and token_file are missing"):
        CoordinatorClient(Caller("localhost:1"))
    readable = token_file(tmp_path)
    readable.chmod(0o640)
    with pytest.raises(TokenRefused, match="its permissions are 0640, expected 0600") as refusal:
        CoordinatorClient(Caller("unix:/nobody.sock", token_file=readable))
    assert "0123456789abcdef" not in str(refusal.value)
    with pytest.raises(TokenRefused, match="16 or more plain characters"):
        CoordinatorClient(Caller("unix:/nobody.sock", token_file=token_file(tmp_path, "short", "s")))


def test_a_token_may_be_read_by_the_group_of_another_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Secret of Kubernetes belongs to root, and an fsGroup adds the right of the group to its mode 0400."""
    secret, reader = token_file(tmp_path), os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: reader)
    secret.chmod(0o440)
    assert read_token(secret) == secret.read_text().strip()
    secret.chmod(0o444)
    with pytest.raises(TokenRefused, match=r"are 0444, expected 0640.*defaultMode: 0400"):
        read_token(secret)


@pytest.mark.parametrize("text", ["", "no PEM"])
@pytest.mark.parametrize("wrong", ["ca", "cert", "key"])
def test_a_pem_file_that_cannot_work_is_refused_at_once(tmp_path: Path, wrong: str, text: str) -> None:
    cert, key = certificate(tmp_path)
    files = {"ca": cert, "cert": cert, "key": key, wrong: tmp_path / "wrong.pem"}
    files[wrong].write_text(text)
    with pytest.raises(AddressRefused, match=r"wrong\.pem.* cannot be (read \(it is empty\)|used \()"):
        CoordinatorClient(Caller("localhost:1", files["ca"], token_file(tmp_path), files["cert"], files["key"]))


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "no answer within 0.2 seconds"), (messages.SayAnswer([]), "got 0 answers to 1 statements")],
    ids=["not in time", "not what was asked"],
)
def test_who_is_not_answered_hangs_up_and_tries_again(
    answer: messages.SayAnswer | None, why: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    over, watches = threading.Event(), list[bytes]()

    def watch(data: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        watches.append(data)
        yield messages.encode(messages.WatchNews([], 3_000 * SECOND))  # the client has no other reason to wake up
        over.wait(20)

    def say(said: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in said:
            if answer is not None:
                yield messages.encode(answer)
            over.wait(20)

    server = grpc.server(ThreadPoolExecutor(16))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
        "Say": grpc.stream_stream_rpc_method_handler(say),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(messages.SERVICE, handlers)])
    server.add_insecure_port(f"unix:{folder}/c.sock")
    server.start()
    try:
        with (
            caplog.at_level(logging.WARNING),
            CoordinatorClient(Caller(f"unix:{folder}/c.sock"), deadline_seconds=0.2) as one,
        ):
            wait_until(lambda: one.connected, "connected")
            one.register(beginning(task(0)))
            wait_until(lambda: len(watches) >= 2, "it has hung up, and watches anew", seconds=10)
        assert why in caplog.text
    finally:
        over.set()
        server.stop(None).wait(20)


def test_who_has_nothing_to_say_is_not_waited_for(folder: Path) -> None:
    door = Door(f"unix:{folder}/c.sock")
    with (
        serving(door, interval_us=60 * SECOND) as address,
        CoordinatorClient(Caller(address), deadline_seconds=0.7) as one,
    ):
        wait_until(lambda: one.connected, "connected")
        one.register(beginning(task(0)))
        wait_until(lambda: one._state.quiet and ask_status(Caller(address)).coordinator.sources != (), "registered")
        since_us = one.since_us
        threading.Event().wait(1)
        assert (one.connected, one.since_us) == (True, since_us)


def test_what_is_said_right_before_closing_arrives(folder: Path) -> None:
    with serving(Door(f"unix:{folder}/c.sock")) as address, CoordinatorClient(Caller(address)) as one:
        one.register(beginning(task(0)))
        report(one, task(0), 1)
        wait_until(lambda: one.low_us(task(0)) == 1, "connected")
        with CoordinatorClient(Caller(address)) as other:
            wait_until(lambda: other.connected, "connected")
            other.register(beginning(task(1), low_watermark_us=3))
            report(other, task(1), 10)
            other.deregister(task(1))
        report(one, task(0), 20)
        wait_until(lambda: one.low_us(task(0)) == 20, "the other one holds nothing")


def test_what_is_said_while_the_thread_is_busy_arrives_before_the_close(folder: Path) -> None:
    busy, closing = threading.Event(), list[threading.Event]()

    class Told(threading.Event):
        """Lets `close` act on the news before the thread does anything more."""

        def set(self) -> None:
            super().set()
            closing[0].wait(5)

    def hear(_task: TaskId, low_us: int) -> None:
        if low_us == 2:  # the thread has taken all work that was there
            one._quiet = Told()
            busy.set()
            wait_until(lambda: one._work.qsize() >= 2, "the end of the run and of the link")

    with serving(Door(f"unix:{folder}/c.sock"), interval_us=SECOND // 50) as address:
        one = CoordinatorClient(Caller(address), on_low=hear)
        closing.append(one._closing)
        one.register(beginning(task(0)))
        report(one, task(0), 2)
        assert busy.wait(20)
        one.deregister(task(0))
        one.close(seconds=20)
        [source] = ask_status(Caller(address)).coordinator.sources
        assert [each.task for each in source.tasks if each.away_since_us is None] == []


# -- an error in its threads


def once(error: Exception, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work, with an error at the first call."""
    errors = [error]

    def raises(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*arguments, **named)

    return raises


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (ClientState, "register"),
        (ClientState, "report"),
        (ClientState, "take"),
        (ClientState, "told"),
        (ClientState, "answered"),
        (ClientState, "_statements"),
        (ClientState, "_taken"),
        (CoordinatorClient, "_wait_seconds"),
        (CoordinatorClient, "_step"),
        (CoordinatorClient, "_take"),
    ],
)
@pytest.mark.parametrize("error", [KeyError("x"), MemoryError()], ids=lambda error: type(error).__name__)
def test_a_link_begins_again_with_what_the_application_said(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: type,
    name: str,
    error: Exception,
) -> None:
    lows: list[int] = []
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_low=lambda _task, low_us: lows.append(low_us)) as one,
    ):
        one.register(beginning(task(0)))
        report(one, task(0), 1)
        wait_until(lambda: lows == [1], "it is heard")
        monkeypatch.setattr(place, name, once(error, getattr(place, name)))
        one.register(beginning(task(1)))
        report(one, task(1), 9)
        report(one, task(0), 7)
        wait_until(lambda: lows[-1] == 7, "the link is back", seconds=10)
        one.deregister(task(1))
        report(one, task(0), 8)
        wait_until(lambda: lows[-1] == 8, "and goes on", seconds=10)
        assert one.connected
        assert one.why == ""
    assert lows == sorted(lows)
    assert any(type(error).__name__ in record.getMessage() for record in caplog.records)


def test_a_connection_whose_second_call_lacks_a_thread_of_grpc_closes_its_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_threads(*_args: Any, **_options: Any) -> Any:
        raise RuntimeError("can't start new thread")

    caller = Caller(f"unix:{folder}/nobody.sock")
    channel: Any = caller.channel()
    monkeypatch.setattr(channel, "stream_stream", lambda *_args, **_options: short_of_threads)
    monkeypatch.setattr(Caller, "channel", lambda _: channel)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _Link(caller, "app", lambda *_: None)
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary(messages.STATUS.path)(b"")


def test_a_connection_that_lacks_a_thread_leaves_none_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, start = ["lowmark-client-say"], Worker.start

    def short_of_threads(worker: Worker) -> None:
        if worker.name in refusals:
            refusals.remove(worker.name)
            raise RuntimeError("can't start new thread")
        start(worker)

    with serving(Door(f"unix:{folder}/c.sock")) as address:
        with CoordinatorClient(Caller(address)) as one:
            one.reach()  # starts gRPC's own threads, which stay
        before = set(threading.enumerate())
        monkeypatch.setattr(Worker, "start", short_of_threads)
        with CoordinatorClient(Caller(address)) as one:
            wait_until(lambda: one.connected, "the link is back", seconds=10)
        assert refusals == []
        wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left", seconds=10)


def test_a_link_that_fails_again_and_again_ends_and_whoever_needs_it_hears_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: dict[str, LowmarkError] = {}
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_given_up=given_up.__setitem__) as one,
    ):
        run = beginning(task(0))
        one.register(run)
        token = run.token
        one.reach()

        def wrong(*_arguments: Any) -> Any:
            raise KeyError("a bug")

        monkeypatch.setattr(ClientState, "take", wrong)
        report(one, task(0), 1)
        wait_until(lambda: token in given_up, "its tasks are given up", seconds=10)
        assert isinstance(given_up[token], WorkerDied)
        assert "KeyError: 'a bug'" in str(given_up[token])
        assert not one.connected
        assert one.why == "the thread of this link was ended by an error: KeyError: 'a bug'"
        assert one.since_us is not None
        assert isinstance(one.failed, KeyError)
        with pytest.raises(WorkerDied, match="a bug"):
            one.reach()
        run = beginning(task(1))
        one.register(run)
        later = run.token
        assert set(given_up) == {token, later}


def test_connected_means_that_what_was_said_last_was_answered(folder: Path) -> None:
    now_us = [0]
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), now_us=lambda: now_us[0], deadline_seconds=5) as one,
    ):
        one.reach()
        one._answer_by_us = 5 * SECOND  # it waits for an answer, and its thread does no other work
        assert (one.connected, one.why) == (True, "")
        now_us[0] = 5 * SECOND
        assert (one.connected, one.why) == (False, "no answer within 5 seconds")
