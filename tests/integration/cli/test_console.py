"""Names from other applications and from data reach a terminal as text, and tables fit the width of the terminal."""

from __future__ import annotations

import io
import json
import re
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowmark.integration.cli.show_coordinator import explanations, show_coordinator
from lowmark.integration.cli.show_streams import stream_table
from lowmark.integration.console import EscapingConsole, Sheet, print_error, print_json, print_lines
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.messages import StatusAnswer
from lowmark.integration.demo.feed import demo_script
from lowmark.integration.demo.result import DemoResult, LaneResult, SplitResult
from lowmark.integration.demo.view import show
from lowmark.integration.process import sockets
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, StatusRequest, handler
from lowmark.watermark import TaskId, WatermarkStrategy, to_json
from lowmark.watermark.protocol import ReplyLowWatermark, TaskDeregistered, TaskRegistered
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings
from rich.console import Console
from rich.text import Text

from tests.integration.cli import test_cli
from tests.integration.coordinator.serving import beginning, private_folder, report, serving
from tests.integration.metrics.test_metrics import FakeRun
from tests.integration.page.test_page import reply
from tests.servers.local import wait_until

# Clears the screen, forges a line, clears it without ESC, turns the text around, has markup and an emoji.
HOSTILE = "a\x1b[2J\nlowmark: all is well\x9b2J\u202e[red]:smile:"
SHOWN = r"a\x1b[2J\nlowmark: all is well\x9b2J\u202e[red]:smile:"


def harmless(text: str) -> bool:
    """Whether all characters are printable, and no name makes a line of its own."""
    return all(c == "\n" or c.isprintable() for c in text) and not re.search("(?m)^lowmark: all is well", text)


def call(*arguments: str) -> str:
    """Run the command and return its output on stdout and stderr."""
    _, out, err = test_cli.call(*arguments)
    return out + err


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A service without Spark whose names all are hostile: (its address, the folder of the sockets)."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    coordinator = SplitWatermarks(strategy, job_id="j", source_id="s", task_id="0")
    coordinator.handle(SplitsDiscovered((1, 2)), 0)
    coordinator.handle(BatchReported(0, 0, {1: 1_000}), 0)
    status = {**to_json(coordinator.status(0, lambda split: f"{split}{HOSTILE}", limit=50)), "name": HOSTILE}
    status["run"] = {"backlog_rows": None, "coordinator": None, "ended": False}
    monkeypatch.setenv("COLUMNS", "200")
    with private_folder() as folder:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        address = sockets.new_address()
        reply = StatusReply(HOSTILE, 7, [{"query": HOSTILE, **status}], [f"one\n  two \x1b[2J{SHOWN}"])
        server = Server(address, handler(STATUS, lambda _: reply))
        try:
            yield address, folder
        finally:
            server.stop()


@pytest.mark.parametrize("command", ["status", "explain", "check"])
@pytest.mark.parametrize("options", [(), ("--json",), ("nosuch",), ("nosuch", "--json")])
@pytest.mark.usefixtures("hostile")
def test_names_of_a_service_do_nothing_to_a_terminal(command: str, options: tuple[str, ...]) -> None:
    told = call(command, *options)
    assert harmless(told), ascii(told)
    assert "lowmark: all is well" in told  # the text itself is shown


@pytest.mark.usefixtures("hostile")
def test_what_is_escaped_in_json_is_the_same_value() -> None:
    [stream] = json.loads(call("status", "--json"))["services"][0]["streams"]
    assert (stream["name"], stream["query"]) == (HOSTILE, HOSTILE)
    assert set(stream["splits"]) == {f"1{HOSTILE}", f"2{HOSTILE}"}


@pytest.mark.parametrize("command", ["status", "explain"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_names_at_a_coordinator_do_nothing_to_a_terminal(
    hostile: tuple[str, Path], command: str, options: tuple[str, ...]
) -> None:
    task = TaskId(HOSTILE, HOSTILE, HOSTILE)
    with serving(Door(f"unix:{hostile[1]}/coordinator.sock")) as address, CoordinatorClient(Caller(address)) as client:
        client.register(beginning(task))
        report(client, task, 1_000)
        wait_until(lambda: client.low_us(task) == 1_000, "the low watermark")
        told = call(command, "--coordinator", address, *options)
        assert harmless(told), ascii(told)
        assert "lowmark: all is well" in told


@pytest.mark.parametrize("indent", [None, 1])
def test_json_is_one_line_for_a_machine_and_ascii_where_needed(
    indent: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"naïve": ["\ud800", "\U000e0001", "\x7f", "日本"]}
    print_json(value, indent=indent)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert harmless(printed)
    assert "日本" in printed
    assert printed.count("\n") == (1 if indent is None else 8)


@given(st.text())
def test_a_console_prints_no_string_that_acts(text: str) -> None:
    console = EscapingConsole()
    console.file = io.StringIO()
    console.print(text, soft_wrap=True)
    console.print(Text(text), soft_wrap=True)
    console.print(Sheet(("name",), [(text,)], title=text, whole=()))
    print_lines(text, console)
    assert harmless(console.file.getvalue())


# -- widths

ROWS = [
    ("orders-by-region-and-country/17", "active", "2026-01-01 00:00:00.000", "325d 7h", "1,234,567", "delivered rows"),
    ("日本語のスプリット", "active, lagging", "none", "", "?", "it has rows waiting and delivered none of them"),
]
COLUMNS = ("split", "state", "watermark (UTC)", "behind", "unread", "why")


def printed(what: object, width: int) -> str:
    console = EscapingConsole()
    console.file, console.width = io.StringIO(), width
    console.print(what)
    return console.file.getvalue()


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


def cells(line: str) -> int:
    """The width of a line in a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize("width", [*range(30, 115), 200])
def test_nothing_is_cut_in_any_width_and_no_time_is_broken_where_it_fits(width: int) -> None:
    sheet = Sheet(COLUMNS, ROWS, whole=COLUMNS[2:5], right=COLUMNS[3:5], title="a stream", left_out=3)
    out = printed(sheet, width)
    assert "…" not in out
    assert max(cells(line) for line in out.splitlines()) <= width
    assert "and 3 more" in out
    for cell in ("325d 7h", "1,234,567"):
        assert cell in out
    assert "2026-01-01 00:00:00.000" in out or width < 45
    if "───" not in out:
        assert all(bare(cell) in bare(out) for row in ROWS for cell in row)
    assert ("───" in out) == (width >= 106)
    assert all(row[0] in out for row in ROWS) or width < 32, "names are whole"


@pytest.mark.parametrize("width", [20, 30, 80, 200])
def test_a_stream_shows_the_names_of_its_query_and_its_holder_whole(width: int) -> None:
    run = FakeRun("t1", stream="payments\x1b[2J", query="warehouse/european-settlement/" * 4 + "nightly")
    run.report({"payments-of-all-european-markets/17": 1})
    [stream] = reply([run], StatusRequest(limit=None)).streams
    out = printed(stream_table(stream, now_us=2_000_000), width)
    assert "…" not in out
    assert max(cells(line) for line in out.splitlines()) <= width
    assert bare(f"payments\\x1b[2J, query {run.query}") in bare(out)


def test_a_stream_before_its_first_batch_shows_no_empty_row_and_no_table() -> None:
    [stream] = reply([FakeRun("t1")], StatusRequest(limit=None)).streams
    lines = printed(stream_table(stream, now_us=2_000_000), 200).splitlines()
    assert any(re.fullmatch(r" *splits +none yet *", line) for line in lines)
    facts = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in lines[1:]]
    assert all(len(fact) == 2 and all(fact) for fact in facts), lines


def test_the_name_of_a_stream_is_bold_in_a_terminal() -> None:
    run = FakeRun("t1")
    run.report({"a": 1})
    [stream] = reply([run], StatusRequest(limit=None)).streams
    told = io.StringIO()
    terminal = Console(file=told, force_terminal=True, color_system="standard", width=80)
    terminal.print(stream_table(stream, now_us=2_000_000))
    assert f"\x1b[1m{stream['name']}, query {stream['query']}" in told.getvalue()


def shared(*tasks: TaskId, group: str | None = None, of: int = 1) -> StatusAnswer:
    """A coordinator's answer with these tasks; the first has not reported, the second is away."""
    coordinator = LowWatermarkCoordinator(Settings(interval_us=1_000_000, lease_us=10_000_000))
    alignment = None if group is None else AlignmentParams(group, max_drift_us=60_000_000, update_interval_us=1_000_000)
    now_us = 1_760_000_000_000_000
    for n, task in enumerate(tasks):
        coordinator.handle(TaskRegistered(task, f"{n}", None, alignment=alignment, expected_tasks=of), now_us)
        if n:
            low_us = now_us - n * 700_000_000
            reply = ReplyLowWatermark(task.job_id, task.source_id, task.task_id, now_us, low_us, f"{n}", None)
            coordinator.handle(reply, now_us)
    coordinator.handle(TaskDeregistered(tasks[1], "1"), now_us)
    return StatusAnswer("0.2.0", 7, 12, "/journal", coordinator.status(now_us))


def forgets(caller: Caller, job: str, stream: str) -> list[str]:
    """The command that the explanation of a job with an absent query names, as a shell would run it."""
    tasks = [TaskId(job, stream, str(n)) for n in range(3)]
    [source] = explanations(shared(*tasks, of=3).coordinator, caller)["sources"]
    [command] = re.findall("`(lowmark forget .*)`", source["explanation"])
    return shlex.split(command)


def test_the_command_that_forgets_a_task_can_be_pasted_whatever_the_names() -> None:
    address, job, stream = "unix:/run/o'neil/coordinator.sock", "nightly billing", 'orders; "$HOME"'
    assert forgets(Caller(address), job, stream) == [
        "lowmark", "forget", "--coordinator", address, job, stream, "QUERY",
    ]  # fmt: skip
    for names in (("-billing", "orders"), ("billing", "--orders")):
        given = forgets(Caller(address), *names)
        assert given == ["lowmark", "forget", "--coordinator", address, "--", *names, "QUERY"]


def test_the_command_that_forgets_a_task_reaches_the_coordinator_as_the_asker_did() -> None:
    files = [Path("/my tls/ca.pem"), Path("token"), Path("cert.pem"), Path("key.pem")]
    assert forgets(Caller("c.example:7461", *files), "job", "orders") == [
        "lowmark", "forget", "--coordinator", "c.example:7461", "--tls-ca", "/my tls/ca.pem", "--token-file", "token",
        "--tls-cert", "cert.pem", "--tls-key", "key.pem", "job", "orders", "QUERY",
    ]  # fmt: skip


def test_a_terminal_of_no_width_gets_all_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    print_lines("orders: moving")
    print_error("no lowmark service runs here")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("orders: moving\n", "lowmark: no lowmark service runs here\n")


@pytest.mark.parametrize("group", [None, "european-settlement-streams-of-two"])
def test_a_coordinator_shows_long_names_whole_at_80_columns(group: str | None) -> None:
    job, source = "billing-of-all-european-markets", "payments-eu-central-1-settled1"
    tasks = [TaskId(job, source, f"settlement-by-merchant-of-sh-{n:02}") for n in range(12)]
    console = EscapingConsole()
    console.file, console.width = io.StringIO(), 80
    address, answer = "unix:/run/user/1000/lowmark/coordinator.sock", shared(*tasks, group=group)
    show_coordinator(address, answer, console, now_us=1_760_000_000_000_000)
    out = console.file.getvalue()

    assert "…" not in out
    assert max(len(line) for line in out.splitlines()[1:]) <= 80
    for task in tasks:
        in_group = group is not None and task is not tasks[1]  # the second task is away
        assert out.count(task.task_id) >= 1 + in_group, f"{task.task_id} is broken in\n{out}"
    assert out.count(source) >= (1 if group is None else 12), f"{source} is broken in\n{out}"
    assert "2025-10-09 06:45:00.000" in out
    assert ("group" in out) == (group is not None), "a column without a text takes no room"


@pytest.mark.parametrize("width", [40, 60, 78, 79, 200])
def test_the_demo_shows_its_watermarks_in_any_width(width: int) -> None:
    script = demo_script(42, start_us=1_700_000_000_000_000)
    splits, lost = (
        {split.name: SplitResult(15_000, emitted, 1_000) for split in script.splits} for emitted in (14_000, 12_000)
    )
    native = LaneResult(lost, 344, 127, 0, 1_800_000_000_000_000, "orders-5")
    ours = LaneResult(splits, 457, 0, 0, 1_700_000_900_000_000, None)
    console = EscapingConsole()
    console.file, console.width = io.StringIO(), width
    show(DemoResult(script, 42, native, ours, {}), console)
    out = console.file.getvalue()
    assert "…" not in out
    for figure in ("2027-01-15", "22:28:20", "orders-5", "nobody", "120,000", "104,000", "16,000", "344", "457", "127"):
        assert figure in out
    assert ("───" in out) == (width >= 79)
