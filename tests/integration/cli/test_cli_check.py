"""`lowmark check`, `status --watch` and the schema of `status --json`, against services without Spark."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from inspect import cleandoc
from pathlib import Path
from threading import TIMEOUT_MAX
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from lowmark.integration.cli.schema import StatusJson, status_schema
from lowmark.integration.cli.watch import picture
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.errors import ServiceUnreachable, UnknownStream
from lowmark.integration.page.look import all_services
from lowmark.integration.process import sockets
from lowmark.integration.run_status import Alignment, RunStatus
from lowmark.integration.transport import driver_rpc
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, StatusRequest, handler
from lowmark.watermark import TaskId, format_duration_us
from lowmark.watermark.moment import MOST_US
from lowmark.watermark.splits.events import SplitsMarkedIdle
from lowmark.watermark.splits.status import HolderSpell
from lowmark.watermark.tasks.cap import Cap
from rich.console import Console
from rich.text import Text

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import beginning, private_folder, report, serving, token_file
from tests.integration.metrics.test_metrics import SECOND_US, FakeRun
from tests.integration.page.test_page import reply
from tests.servers.local import LOWMARK, ROOT, stand_still, wait_until
from tests.snippets import block


@dataclass
class Shown(FakeRun):
    """A run whose low watermark has not moved for some time, with some unread rows."""

    stands: timedelta = timedelta()
    unread: int | None = None
    rows_ago: timedelta | None = None
    more: dict[str, Any] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def status(self, limit: int | None = None) -> RunStatus:
        status = super().status(limit)
        now_us = int(self.now.timestamp()) * SECOND_US
        return replace(
            status,
            status=replace(status.status, since=self.now - self.stands),
            backlog_rows=self.unread,
            rows_at_us=None if self.rows_ago is None else now_us - int(self.rows_ago.total_seconds()) * SECOND_US,
            now_us=now_us,
            **self.more,
        )


@dataclass
class Driver:
    """A service at its socket; `runs` are its streams, and each sink is complete until `complete_us`."""

    address: str
    runs: list[FakeRun] = field(default_factory=list)
    complete_us: int | None = None
    more: dict[str, Any] = field(default_factory=dict)  # what the answer says otherwise of each stream

    def answer(self, request: StatusRequest) -> StatusReply:
        shown = reply(self.runs, request)
        streams = []
        for stream, run in zip(shown.streams, self.runs, strict=True):
            since = run.status().status.since
            assert since is not None
            streams.append(
                {**stream, "since": since.isoformat(), "run": {**stream["run"], **self._run(run)}, **self.more}
            )
        return msgspec.structs.replace(shown, streams=streams)

    def _run(self, run: FakeRun) -> dict[str, Any]:
        assert isinstance(run, Shown)
        status = run.status()
        at = None if status.rows_at_us is None else datetime.fromtimestamp(status.rows_at_us / 1e6, timezone.utc)
        return {
            "backlog_rows": status.backlog_rows,
            "rows_at": None if at is None else at.isoformat(),
            "now": run.now.isoformat(),
            "complete_until_us": self.complete_us,
        }


@contextmanager
def answering(address: str) -> Iterator[Driver]:
    driver = Driver(address)
    server = Server(address, handler(STATUS, driver.answer))
    try:
        yield driver
    finally:
        server.stop()


@contextmanager
def hanging(address: str) -> Iterator[None]:
    """A process that answers nobody, and whose queue of connections is full."""
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as earlier:
        stopped.bind(address.removeprefix("unix:"))
        stopped.listen(0)
        earlier.connect(address.removeprefix("unix:"))
        yield


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    with private_folder() as folder:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        with answering(sockets.new_address()) as made:
            yield made


def run(token: str = "t1", **how: Any) -> Shown:
    made = Shown(token, **how)
    made.report({"a": 30 * SECOND_US, "b": 10 * SECOND_US})
    return made


MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("how", "word", "code"),
    [
        ({"stands": MINUTE, "unread": 9}, "moving", 0),
        ({"stands": 10 * MINUTE, "unread": 0}, "standing", 0),
        ({"stands": 10 * MINUTE, "unread": 9}, "stuck", 1),
        ({"stands": 10 * MINUTE, "rows_ago": MINUTE}, "stuck", 1),
        ({"failed": True, "ended": True}, "failed", 1),
        ({"refused": True}, "failed", 1),
        ({"ended": True}, "ended", 0),
    ],
)
def test_the_exit_code_says_whether_it_moves(driver: Driver, how: dict[str, Any], word: str, code: int) -> None:
    driver.runs.append(run(**how))
    done, out, err = call("check")
    assert (done, err) == (code, "")
    assert out.startswith(f"orders, query q: {word}")
    assert out.count("\n") == 1
    done, out, err = call("check", "orders", "--json", "--connect", driver.address)
    assert (done, err, [each["verdict"] for each in json.loads(out)["streams"]]) == (code, "", [word])


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_output_that_nobody_reads_changes_no_exit_code_and_one_that_is_lost_is_an_error(
    driver: Driver, options: tuple[str, ...]
) -> None:
    """1 would say that a low watermark is stuck."""
    driver.runs.append(run())

    def checked(stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
        command = [*LOWMARK, "check", *options, "--connect", driver.address]
        done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, check=False, timeout=60)
        os.close(stdout)
        return done.returncode, done.stderr

    reader, writer = os.pipe()
    os.close(reader)
    assert checked(writer) == (0, "")
    code, error = checked(os.open("/dev/full", os.O_WRONLY))
    assert (code, error.splitlines()) == (
        2, ["lowmark: the output cannot be written: No space left on device. Hint: see that its disk has room."]
    )  # fmt: skip
    assert checked(os.open("/dev/full", os.O_WRONLY), subprocess.STDOUT)[0] == 2
    command = shlex.join([*LOWMARK, "check", *options, "--connect", driver.address])
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")  # closed


def test_what_is_stuck_is_told_with_what_holds_it(driver: Driver) -> None:
    driver.runs.append(run(stands=10 * MINUTE, unread=4_711))
    _, out, _ = call("check")
    assert out.startswith("orders, query q: stuck, for 10m")
    assert ", 4,711 rows unread, split b has the smallest watermark of 2 live splits." in out


def test_a_second_fact_stands_behind_a_semicolon_alone_and_one_thing_has_no_plural(driver: Driver) -> None:
    driver.runs.append(run(stands=10 * MINUTE, unread=1))
    driver.more = {"by_hand": [[f"s{n}", "left out by hand"] for n in range(11)]}
    _, out, _ = call("check")
    assert ", 1 row unread, split b has the smallest watermark of 2 live splits; split s0 is left out" in out
    assert out.endswith("; 1 more split is left out by hand\n")


def test_status_tells_of_a_split_that_a_person_left_out_also_where_it_has_no_row(driver: Driver) -> None:
    many = run()
    many.report({f"s{n:02}": 100 * SECOND_US for n in range(60)})
    many.watermarks.handle(SplitsMarkedIdle(("s07",), "anna", None), many.now_us)
    driver.runs.append(many)
    _, out, _ = call("status")
    assert "split s07 is left out by hand by anna" in " ".join(out.split())
    assert "s07  idle" not in out


def test_a_service_of_a_later_version_may_tell_what_this_one_has_no_word_for(driver: Driver) -> None:
    driver.runs.append(run(stands=MINUTE, unread=9))
    driver.more = {"cause": "a cause of 1.1", "splits": {"a": {"state": "a state of 1.1"}}}
    assert call("check") == (0, "orders, query q: moving\n", "")
    del driver.more["splits"]
    code, out, err = call("status")
    assert (code, "orders, query q" in out, err) == (0, True, "")


def test_a_wall_clock_that_is_set_back_hides_nothing_that_is_stuck(driver: Driver) -> None:
    """The service's clock does not follow, and the age of a low watermark goes by the service's clock."""
    driver.runs.append(run(stands=10 * MINUTE, unread=9, now=datetime.now(timezone.utc) + timedelta(hours=1)))
    code, out, _ = call("check")
    assert (code, out.startswith("orders, query q: stuck, for 10m,")) == (1, True)


def test_patience_is_the_user_s(driver: Driver) -> None:
    driver.runs.append(run(stands=10 * MINUTE, unread=9))
    assert call("check", "--patience", "1 hour")[0] == 0
    assert call("check", "--patience", "PT9M")[0] == 1
    code, _, err = call("check", "--patience", "soon")
    assert (code, "--patience" in err) == (2, True)


def test_one_that_is_stuck_among_many_is_enough_and_a_query_that_runs_again_has_not_failed(driver: Driver) -> None:
    driver.runs += [run("t1", failed=True, ended=True), run("t2"), run("t3", stream="clicks", query="c")]
    assert call("check")[0] == 0
    driver.runs.append(run("t4", stream="late", query="l", stands=10 * MINUTE, unread=1))
    assert call("check")[0] == 1
    assert call("check", "clicks")[0] == 0


@pytest.mark.parametrize("stuck_first", [True, False])
def test_two_drivers_that_name_their_queries_alike_are_two(driver: Driver, stuck_first: bool) -> None:
    with answering(driver.address.replace(".sock", "-other.sock")) as other:
        first, second = sorted((driver, other), key=lambda each: sockets.find_addresses().index(each.address))
        stuck, moving = run(stands=10 * MINUTE, unread=9), run("t2")
        first.runs, second.runs = ([stuck], [moving]) if stuck_first else ([moving], [stuck])
        code, out, _ = call("check")
        assert (code, out.count("orders, query q: ")) == (1, 2)


@pytest.mark.parametrize("how", [{"failed": True}, {}])
def test_a_query_that_goes_on_in_another_driver_has_not_failed(driver: Driver, how: dict[str, Any]) -> None:
    """The driver of the failed run is a notebook, which still lives."""
    driver.runs = [run(ended=True, **how), run("t2", stream="clicks", query=None, ended=True, failed=True)]
    with answering(driver.address.replace(".sock", "-other.sock")) as other:
        other.runs = [run("t3"), run("t4", stream="clicks", query=None)]
        assert call("check", "orders") == (0, "orders, query q: moving\n", "")
        assert call("check", "clicks")[0] == 1, "a query without a name is not known to be the same"
        for code, ended_us, past in ((0, 60, "00:01"), (1, 60, "00:02")):
            driver.complete_us, other.complete_us = ended_us * SECOND_US, 60 * SECOND_US
            assert call("wait", "orders", "--past", f"1970-01-01T{past}Z", "--timeout", "0s")[0] == code
        driver.complete_us = 0
        assert call("wait", "orders", "--past", "1970-01-01T00:01Z", "--timeout", "0s")[0] == 0
        other.runs = []
        assert call("check", "orders")[0] == (1 if how else 0)
        assert call("wait", "orders", "--past", "1970-01-01T00:01Z", "--timeout", "0s")[0] == 1


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        ({"hung": True}, {}, 0),
        ({"hung": True}, {"unknown": True}, 2),
        ({"hung": True, "unknown": True}, {}, 0),
        ({"hung": True, "unknown": True}, {"hung": True, "unknown": True}, 2),
        ({"unknown": True}, {}, 2),
        ({"gone": True}, {}, 2),
    ],
)
def test_a_driver_that_hangs_at_the_first_question_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, bool], last: dict[str, bool], code: int
) -> None:
    """The driver that hangs may have the stream. A name that no service knows ends the command at once."""
    questions = [first, last, last, last]
    asked: list[dict[str, bool]] = []
    other = Driver("unix:/1.sock", [run()], complete_us=60 * SECOND_US)

    def ask(name: str, *_: Any, hung: list[ServiceUnreachable], **__: Any) -> Any:
        asked.append(how := questions.pop(0))
        if how.get("gone"):
            raise ServiceUnreachable("unix:/2.sock", "ask for the status", "UNAVAILABLE: none")
        if how.get("hung"):
            hung.append(ServiceUnreachable("unix:/2.sock", "ask for the status", "DEADLINE_EXCEEDED: too late"))
        if how.get("unknown"):
            raise UnknownStream(name, ())
        return [(other.address, other.answer(StatusRequest()))], []

    monkeypatch.setattr("lowmark.integration.cli.wait.ask", ask)
    times = iter(range(100))
    monkeypatch.setattr("lowmark.integration.cli.wait.time", SimpleNamespace(monotonic=times.__next__, sleep=id))
    asking = ["--past", "1970-01-01T00:01Z", "--timeout", "3s", "--every", "1s"]
    done, _, err = call("wait", "orders", *asking)
    assert (done, "Traceback" in err) == (code, False)
    assert len(asked) == (3 if last.get("hung") else 2 if first.get("hung") else 1)


def test_the_longest_wait_is_one_that_a_sleep_takes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.runs.append(run())

    def sleep(seconds: float) -> None:
        assert seconds <= TIMEOUT_MAX, "as time.sleep: OverflowError"
        driver.complete_us = 60 * SECOND_US

    monkeypatch.setattr("lowmark.integration.cli.wait.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    longest = format_duration_us(MOST_US)
    asking = ["--past", "1970-01-01T00:01Z", "--timeout", longest, "--every", longest]
    assert call("wait", "orders", *asking)[::2] == (0, "")


@pytest.mark.parametrize("command", ["check", "status", "explain"])
def test_an_empty_address_is_refused_in_place_of_what_grpc_makes_of_it(command: str) -> None:
    code, out, err = call(command, "--connect", "")
    assert (code, out) == (2, "")
    assert "Invalid value for '--connect': it is empty" in " ".join(err.split())
    assert "dns:" not in err


def test_the_path_of_a_running_service_alone_is_refused_as_no_address(driver: Driver) -> None:
    """gRPC looks the path up as the name of a host, and the command said that no service answers there."""
    driver.runs.append(run())
    for path in (driver.address.removeprefix("unix:"), "localhost:9464"):
        code, out, err = call("check", "--connect", path)
        assert (code, out) == (2, "")
        assert f"Invalid value for '--connect': {path} does not begin with unix:; name an address" in " ".join(
            err.split()
        )
    assert call("check", "--connect", driver.address)[0] == 0


def test_not_reachable_is_2(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, out, err = call("check")
    assert (code, out) == (2, "")
    assert "none of them has a query" in err
    code, out, err = call("check", "--json")
    assert (code, f"lowmark: {json.loads(out)['error']}\n", json.loads(out)["streams"]) == (2, err, [])
    driver.runs.append(run())
    assert call("check", "ordres")[0] == 2
    assert call("check", "--connect", f"unix:{tmp_path}/none.sock")[0] == 2
    monkeypatch.setattr(sockets, "folders", lambda: [tmp_path / "none"])
    code, out, err = call("check", "--json")
    assert (code, f"lowmark: {json.loads(out)['error']}\n", json.loads(out)["streams"]) == (2, err, [])


@pytest.mark.parametrize("command", [["check"], ["wait", "--past", "2026-01-01T00:00Z"]], ids=["check", "wait"])
def test_debug_changes_no_exit_code(tmp_path: Path, command: list[str]) -> None:
    """Exit code 1 would say that a low watermark is stuck, or that a time has not passed."""
    address = f"unix:{tmp_path}/none.sock"
    code, out, err = call(*command, "--connect", address, "--debug")
    assert (code, out, "Traceback" in err, f"no lowmark service answers at {address}" in err) == (2, "", True, True)


@pytest.mark.parametrize("here", [True, False], ids=["service here", "no service"])
def test_a_stream_that_a_coordinator_alone_knows_is_told(monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    """Its driver runs on another machine."""
    task = TaskId("billing", "shared", "0")
    with private_folder() as folder, ExitStack() as stack:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        if here:
            stack.enter_context(answering(sockets.new_address())).runs.append(run())
        address = stack.enter_context(serving(Door(f"unix:{folder}/coordinator.sock")))
        client = stack.enter_context(CoordinatorClient(Caller(address)))
        client.register(beginning(task))
        report(client, task, 1_000)
        wait_until(lambda: client.low_us(task) == 1_000, "the low watermark")
        code, out, err = call("check", "shared")
        assert (code, out, "no service here has such a stream" in err) == (2, "", True), err
        for command in (["idle", "shared", "a", "--for", "1h"], ["set", "shared", "--code"]):
            code, out, err = call(*command)
            told = 'stream "shared": a coordinator knows it, and no service here has it. Hint: call it on the machine'
            assert (code, out, told in err) == (2, "", True), err


@pytest.mark.slow  # starts a shell
def test_the_probe_of_the_page_leaves_a_stuck_driver_alone(driver: Driver, tmp_path: Path) -> None:
    """A new driver would not move what is stuck."""
    [command] = re.findall(r'command: \[sh, -c, "([^"]+)"\]', block("metrics.md", "*/5 * * * *"))
    lowmark = tmp_path / "lowmark"
    lowmark.write_text(f'#!/bin/sh\nexec {shlex.join(LOWMARK)} "$@" --connect "$DRIVER"\n', "utf-8")
    lowmark.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def probe(address: str) -> int:
        environment = {**os.environ, "PATH": path, "DRIVER": address}
        return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=False).returncode

    driver.runs.append(run(stands=10 * MINUTE, unread=9))
    assert call("check")[0] == 1
    assert probe(driver.address) == 0
    assert probe(f"unix:{tmp_path}/none.sock") == 1


HANGS = """
import signal, sys
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, handler
reply = StatusReply("app", 1, [], [])
served = Server(sys.argv[1], handler(STATUS, lambda _: reply))
print("ready", flush=True)
signal.pause()
"""


def test_a_driver_that_hangs_is_told_and_one_that_was_killed_is_gone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_rpc.Client.__init__, "__kwdefaults__", {"deadline_seconds": 0.5})
    driver.runs.append(run())
    address = driver.address.replace(".sock", "-hangs.sock")
    process = subprocess.Popen([sys.executable, "-c", HANGS, address], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert call("check") == (0, "orders, query q: moving\n", "")
        stand_still(process)
        told = f"lowmark: the service at {address} is there and does not answer: its driver hangs, or is stopped\n"
        assert call("check") == (2, "orders, query q: moving\n", told)
        assert f"lowmark: {json.loads(call('check', '--json')[1])['error']}\n" == told
        assert call("check", "orders")[0] == 0
        assert call("status")[::2] == (0, told)
        for command in ("status", "explain"):
            assert f"lowmark: {json.loads(call(command, '--json')[1])['error']}\n" == told
        driver.runs[0] = run("t2", stands=10 * MINUTE, unread=9)
        assert call("check")[0] == 1  # a known stuck stream comes before an unreachable service
        code, out, err = call("check", "--connect", address)
        assert (code, out) == (2, "")
        assert "no lowmark service answers" in err
    finally:
        process.kill()
        process.communicate()
    assert call("check")[::2] == (1, "")


def test_a_coordinator_that_hangs_is_no_driver_that_hangs(driver: Driver) -> None:
    """A probe of a driver would start the driver again, because its exit code is 2."""
    address = sockets.new_address("coordinator.sock")
    with hanging(address):
        driver.runs.append(run())
        told = f"lowmark: the coordinator at {address} is there and does not answer: it hangs, or is stopped\n"
        assert call("check") == (0, "orders, query q: moving\n", told)
        assert call("status")[::2] == (0, told)
        waited, _, err = call("wait", "--past", "1970-01-01T00:00Z", "--timeout", "0 seconds")
        assert (waited, err) == (1, told)
        assert "error" not in json.loads(call("check", "--json")[1])
        for command in ("status", "explain"):
            assert f"lowmark: {json.loads(call(command, '--json')[1])['error']}\n" == told


def test_services_are_asked_side_by_side(driver: Driver) -> None:
    """One after the other, ten hanging drivers would take ten deadlines."""
    all_asked = threading.Barrier(2)

    def wait(_: StatusRequest) -> StatusReply:
        all_asked.wait(timeout=5)
        return StatusReply("app", 1, [], [])

    with ExitStack() as servers:
        for n in range(2):
            servers.callback(Server(driver.address.replace(".sock", f"-{n}.sock"), handler(STATUS, wait)).stop)
        assert call("status")[::2] == (0, "")


def test_a_driver_that_is_stopped_for_so_long_that_its_queue_is_full_is_told_all_the_same(driver: Driver) -> None:
    address = driver.address.replace(".sock", "-full.sock")
    with hanging(address):
        driver.runs.append(run())
        told = f"lowmark: the service at {address} is there and does not answer: its driver hangs, or is stopped\n"
        assert call("check") == (2, "orders, query q: moving\n", told)
        assert call("status")[::2] == (0, told)
        assert all_services(StatusRequest(), None)[address] == told.removeprefix("lowmark: ").strip()
    assert call("check")[0] == 0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (KeyError("t7"), "NOT_FOUND: 't7'"),
        (ValueError("a count of -1"), "INVALID_ARGUMENT: a count of -1"),
        (ZeroDivisionError("in its loop"), "UNKNOWN: Exception calling application: in its loop"),
    ],
)
def test_a_service_that_answers_with_an_error_is_told_and_has_not_ended(
    driver: Driver, error: Exception, cause: str
) -> None:
    def fail(_: StatusRequest) -> StatusReply:
        raise error

    address = driver.address.replace(".sock", "-fails.sock")
    server = Server(address, handler(STATUS, fail))
    try:
        driver.runs.append(run())
        told = f"lowmark: the service at {address} answers with an error: {cause}\n"
        assert call("check") == (2, "orders, query q: moving\n", told)
        assert call("check", "orders") == (0, "orders, query q: moving\n", told)
        assert call("status")[::2] == (0, told)
        waited, _, err = call("wait", "--past", "1970-01-01T00:00Z", "--timeout", "0 seconds")
        assert (waited, f"the lowmark service at {address} answers with an error ({cause})" in err) == (2, True)
        sockets.remove(driver.address)
        code, _, err = call("status")
        assert (code, f"the lowmark service at {address} answers with an error ({cause})" in err) == (2, True)
    finally:
        server.stop()


# --- the schema ---


def test_the_schema_in_the_docs_is_the_one_of_the_types() -> None:
    code, out, _ = call("status", "--json-schema")
    assert (code, json.loads(out)) == (0, status_schema())
    assert json.loads((ROOT / "docs" / "status.schema.json").read_text("utf-8")) == status_schema()


def test_the_schema_is_the_same_with_every_python_and_msgspec() -> None:
    """Python 3.13 and msgspec 0.23 remove the indentation of a docstring, and earlier ones do not."""
    told = {name: each.get("description", "") for name, each in status_schema()["$defs"].items()}
    assert {name: text for name, text in told.items() if text != cleandoc(text)} == {}
    assert "Attributes:" in told["SplitStatus"]


def test_what_status_prints_is_what_the_schema_says(driver: Driver) -> None:
    at = Alignment("g", 30 * SECOND_US, Cap.up_to(7), True, 1, 2, waiting=True, why="it waits")
    driver.runs += [run(more={"alignment": at}), run("t2", query=None)]
    printed = json.loads(call("status", "--json")[1])
    msgspec.convert(printed, StatusJson)
    defined = status_schema()["$defs"]
    for of, each in (
        ("StatusJson", {**printed, "error": ""}),
        ("ServiceJson", printed["services"][0]),
        ("StreamJson", printed["services"][0]["streams"][0]),
        ("RunJson", printed["services"][0]["streams"][0]["run"]),
        ("AlignmentJson", printed["services"][0]["streams"][0]["run"]["alignment"]),
        ("SplitStatus", printed["services"][0]["streams"][0]["splits"]["a"]),
        ("BatchCounts", printed["services"][0]["streams"][0]["counts"]),
    ):
        assert each.keys() == defined[of]["properties"].keys(), of
    assert printed["services"][0]["streams"][0]["held"][0].keys() == set(HolderSpell.__slots__)


def test_an_address_is_neither_broken_nor_cut(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert f"local-1, process 7, {driver.address}\n" in call("status")[1]


def test_status_and_explain_show_a_query_that_failed_until_it_runs_again(driver: Driver) -> None:
    """A query that ended in order needs nobody."""

    def told(*name: str) -> list[list[str]]:
        services = json.loads(call("status", "--json", *name)[1])["services"]
        streams = json.loads(call("explain", "--json", *name)[1])["streams"]
        runs = [run["run"]["mark"] for each in services for run in each["streams"]]
        assert len(runs) == len(streams)
        return runs

    failed, ended = run("t1", failed=True, ended=True), run("t2", stream="clicks", query="c", ended=True)
    driver.runs = [failed, ended]
    mark = told()
    assert (len(mark), told("orders")) == (1, mark)
    assert "is               failed" in call("status")[1]
    assert told("clicks") not in ([], mark), "the last state of a stream that was named, and is not unknown"
    with answering(driver.address.replace(".sock", "-other.sock")) as other:
        other.runs = [run("t3")]
        assert len(told("orders")) == 1
        assert told() != mark
        assert call("explain", "click")[::2] == (
            1, 'lowmark: no stream "click"; there is "clicks", "orders". Hint: did you mean "clicks"?\n'
        )  # fmt: skip
    driver.runs = [failed, run("t4")]
    assert len(told()) == 1
    assert told() != mark


def test_status_and_explain_show_only_the_last_run_of_a_query_that_has_ended(driver: Driver) -> None:
    driver.runs = [run(f"t{number}", ended=True, failed=number == 1) for number in range(1, 4)]
    marks = [stream["run"]["mark"] for stream in driver.answer(StatusRequest()).streams]
    [service] = json.loads(call("status", "--json", "orders")[1])["services"]
    assert [stream["run"]["mark"] for stream in service["streams"]] == marks[-1:]
    assert len(json.loads(call("explain", "--json", "orders")[1])["streams"]) == 1


def test_a_stream_whose_query_has_not_begun_is_not_said_to_need_a_wrap_alone(driver: Driver) -> None:
    """A service tells of a stream from the first batch of a query on."""
    code, _, err = call("status", "orders", "--connect", driver.address)
    assert (code, "Hint: wrap or read a stream under that name, and start its query." in err) == (1, True)


# --- watching ---


def test_watching_needs_a_terminal() -> None:
    code, out, err = call("status", "--watch")
    assert (code, out) == (2, "")
    assert "lowmark check" in " ".join(err.split())
    assert call("status", "--watch", "--json")[0] == 2


def test_watching_needs_a_terminal_that_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal such as an editor's shell, rich would draw no picture, and say nothing."""
    monkeypatch.setattr("lowmark.integration.cli.watch.Live", None)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stdout for a terminal
    monkeypatch.setenv("TERM", "dumb")
    code, _, err = call("status", "--watch")
    assert code == 2
    assert "lowmark check" in " ".join(err.split())


def test_what_goes_wrong_stands_in_the_picture_of_a_watch(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line beside the screen would overwrite the screen, every second."""
    driver.runs.append(run())
    pictures: list[list[Any]] = []
    monkeypatch.setattr("lowmark.integration.cli.watch.watch", lambda shown, limit: pictures.append(list(shown(limit))))
    beside = f"{driver.address.rpartition('/')[0]}/coordinator.sock"
    with serving(Door(beside, token_file=token_file(tmp_path))):
        assert call("status", "--watch")[::2] == (0, "")
    [[said, *shown]] = pictures
    assert "UNAUTHENTICATED" in str(said)
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("lines", "width", "said"),
    [(9, 60, "Ctrl-C ends"), (12, 60, "Ctrl-C ends, 3 more lines do not fit"), (12, 30, "Ctrl-C ends, 3 …")],
)
def test_a_watch_says_how_much_does_not_fit_on_the_terminal(lines: int, width: int, said: str) -> None:
    console, at = Console(width=width, height=10), datetime(2026, 11, 28, 22, 5, tzinfo=timezone.utc)
    shown = picture([Text(f"line {number}") for number in range(lines)], console, at)
    first, *others = console.render_lines(shown)
    assert len(others) == lines
    assert "".join(part.text for part in first).strip() == f"22:05:00 UTC, {said}"


_SIGNALS_IN_A_WAIT = """
import signal, sys
from lowmark.integration.cli.common import until_ended

def at_each_line(frame, event, arg):
    signal.raise_signal(signal.SIGTERM)
    return at_each_line

with until_ended() as ended:
    sys.settrace(at_each_line)
    came = ended(None)
    sys.settrace(None)
    print(came)
"""


@pytest.mark.slow  # starts a process
def test_a_signal_at_any_line_of_a_wait_ends_the_wait() -> None:
    """A handler runs between two lines of the wait, also while the wait holds a lock of its own."""
    waits = [sys.executable, "-c", _SIGNALS_IN_A_WAIT]
    ended = subprocess.run(waits, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "True\n"
    assert ended.stderr.splitlines()[-1].endswith("Terminated")


_A_SIGNAL_ELSEWHERE = """
import os, signal, threading
from lowmark.integration.cli.common import until_ended

def take_it():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # only the other thread takes it
with until_ended() as ended:
    threading.Timer(0.1, take_it).start()
    print(ended(None))
"""


@pytest.mark.parametrize(
    "command",
    [["status"], ["explain"], ["wait", "orders", "--past", "2026-01-01T00:00Z"], ["forget", "j", "orders", "q"]],
)
def test_the_address_of_a_service_is_not_taken_for_a_coordinator_that_has_to_be_started(
    driver: Driver, command: list[str]
) -> None:
    code, out, err = call(*command, "--coordinator", driver.address)
    assert (code, out) == (2, "")
    assert f"no coordinator answers at {driver.address} (a server is there that is no coordinator, such as" in err


@pytest.mark.slow  # starts a process
def test_a_signal_that_does_not_interrupt_a_wait_ends_it() -> None:
    """As of a signal that comes at the moment in which the wait begins."""
    waits = [sys.executable, "-c", _A_SIGNAL_ELSEWHERE]
    assert subprocess.run(waits, capture_output=True, text=True, check=False, timeout=60).stdout == "True\n"


@pytest.mark.slow  # starts a process
@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_watch_stands_still_in_colours_and_gives_the_terminal_back(
    driver: Driver, by: signal.Signals, code: int
) -> None:
    driver.runs.append(run(stands=10 * MINUTE, unread=9))
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*LOWMARK, "status", "--watch", "--connect", driver.address],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    seen = b""

    def read(until: bytes, times: int) -> bool:
        nonlocal seen
        if select.select([master], [], [], 0.05)[0]:
            with suppress(OSError):  # a terminal without a reader raises an error
                seen += os.read(master, 1 << 16)
        return seen.count(until) >= times

    try:
        wait_until(lambda: read(b"Ctrl-C ends", 3), "three pictures", seconds=60)
        process.send_signal(by)
        wait_until(lambda: process.poll() is not None or (read(b"", 0) and False), "its end", seconds=60)
        for _ in range(10):
            read(b"", 0)  # what it wrote last
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert process.returncode == code
    assert seen.count(b"\x1b[?1049h") == 1  # one screen of its own: nothing scrolls
    assert seen.count(b"\x1b[?1049l") == seen.count(b"\x1b[?25h") == 1  # the screen and the cursor from before
    assert b"\x1b[1;31mstuck" in seen
    plain = subprocess.run(
        [*LOWMARK, "status", "--connect", driver.address], capture_output=True, check=True, env=environment
    )
    assert b"stuck" in plain.stdout
    assert b"\x1b" not in plain.stdout  # colours on a terminal only
