"""The command line: its output, the stream of the output, its exit code; status against a live service."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from lowmark.integration.cli import main
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.integration.process import sockets
from lowmark.integration.spark import session
from lowmark.integration.transport.driver_rpc import STATUS, Server, StatusReply, StatusRequest, handler
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.watermark import TaskId, WatermarkStrategy, to_json
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap
from typer.testing import CliRunner

from tests.integration.coordinator.serving import beginning, private_folder, report, serving, token_file
from tests.integration.feed import us
from tests.servers.local import LOWMARK, ROOT, wait_until

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService
    from pyspark.sql import SparkSession

    from tests.integration.feed import Feed


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [*LOWMARK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def call(*arguments: str) -> tuple[int, str, str]:
    """Run the command within this process: exit code, stdout, stderr. An uncaught error fails the test."""
    result = CliRunner().invoke(main.app, list(arguments), prog_name="lowmark")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """No service can be found."""
    monkeypatch.setattr(sockets, "folders", lambda: [tmp_path / "none"])
    return str(tmp_path / "none")


@pytest.fixture
def old_checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a query on Kafka: batches 0 and 1 planned, 0 committed."""
    root = tmp_path / "checkpoint"
    for batch in (0, 1):
        (root / "offsets").mkdir(parents=True, exist_ok=True)
        positions = json.dumps({"orders": {"1": 20 + batch, "0": 10 + batch}})
        (root / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{positions}")
    (root / "commits").mkdir()
    (root / "commits" / "0").write_text("v1\n{}")
    return root


# -- as a user runs it


def test_help_names_every_command_and_starts_no_spark() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert all(f"  {command}" in shown.stdout for command in ("demo", "status", "explain", "serve", "offsets"))
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import lowmark.integration.cli.main, sys; print('pyspark' in sys.modules, 'grpc' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "False False\n"


def test_grafana_writes_into_a_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call("grafana", "--out", "")  # as of a variable that a shell does not know
    assert (code, "it is empty; name a folder" in err, list(tmp_path.iterdir())) == (2, True, [])
    assert call("grafana", "--out", ".")[0] == 0
    assert "alerts.yml" in {file.name for file in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_offsets_that_cannot_be_written_are_one_line(old_checkpoint: Path, options: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*LOWMARK, "offsets", str(old_checkpoint), *options]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, "lowmark: the output cannot be written: No space left on device. Hint: see that its disk has room."
    )  # fmt: skip
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_error_is_one_line_on_stderr_and_debug_shows_all_of_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    failed = run("offsets", missing)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == (
        f'lowmark: checkpoint "{missing}": there is no such folder. '
        "Hint: pass the folder given as checkpointLocation.\n"
    )
    debugged = run("offsets", missing, "--debug")
    assert debugged.returncode != 0
    assert "Traceback" in debugged.stderr
    assert "CheckpointUnreadable" in debugged.stderr


@pytest.mark.parametrize(
    ("java", "says"),
    [
        (None, "does not run"),
        ("echo 'openjdk version \"11.0.1\"' >&2", "is version 11"),
        ("echo 'openjdk version \"1.8.0_402\"' >&2", "is version 8"),
    ],
)
def test_no_java_or_an_old_one_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    java: str | None,
    says: str,
) -> None:
    home = tmp_path / "java"
    if java is not None:
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(f"#!/bin/sh\n{java}\n")
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    code, out, err = call("demo", "--json")
    told = (
        f"Spark needs Java 17 or newer, and {home}/bin/java {says}. "
        "Hint: install Java 17 or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME."
    )
    assert (code, json.loads(out), err) == (2, {"error": told}, f"lowmark: {told}\n")
    assert capfd.readouterr() == ("", ""), "nor does the other program print"


def test_a_spark_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    fails = "echo 'Error: no room for the heap' >&2; exit 1"
    program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.9"\' >&2 || {{ {fails}; }}\n')
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    failed = run("demo")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == (
        "lowmark: Spark did not start: Error: no room for the heap. "
        "Hint: run it again with --debug, which shows all that Spark says.\n"
    )


def test_a_user_without_a_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any user; Spark asks the system for the name, and would fail with a stack."""
    monkeypatch.setattr("lowmark.integration.spark.session.java_problem", lambda: None)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    told = (
        f"Spark needs the name of its user, and the user {os.getuid()} has none. "
        "Hint: add the user to /etc/passwd, as Spark's images for containers do."
    )
    assert call("demo") == (2, "", f"lowmark: {told}\n")


def test_a_broker_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lowmark.integration.demo.kafka_feed._ANSWER_SECONDS", 1.0)
    code, out, err = call("demo", "--source", "kafka", "--bootstrap", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err == (
        "lowmark: no Kafka broker answers at 127.0.0.1:1 within 1 seconds. "
        "Hint: check host, port and the broker's advertised.listeners.\n"
    )
    assert capfd.readouterr() == ("", ""), "nor does Kafka's client in C print"


# -- options


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--source", "kafka"), "--source kafka needs --bootstrap HOST:PORT"),
        (("--bootstrap", "localhost:9092"), "--bootstrap is for --source kafka"),
        (("--topic", "t"), "--topic is for --source kafka"),
        (("--jars", "a.jar"), "--jars is for --source kafka"),
        (("--source", "kinesis"), "'kinesis' is not one of 'generator', 'kafka'"),
        (("--endpoint", "http://localhost:1"), "No such option: --endpoint"),
    ],
)
def test_options_of_the_demo_that_do_not_fit_are_refused(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = call("demo", *arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_ctrl_c_while_spark_starts_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            logging.getLogger().exception("KeyboardInterrupt while sending command.")  # as py4j does
            raise
        yield

    monkeypatch.setattr("lowmark.integration.spark.session.local_session", starting)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    assert call("demo") == (130, "", "")
    assert caplog.text == ""


def test_a_signal_waits_for_spark_s_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM whose launch is interrupted runs on for ever, and Spark's handler of Ctrl-C calls the JVM during a call."""
    began: list[str] = []

    def launch(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        began.append("JVM")

    def context(**_: object) -> None:
        signal.signal(signal.SIGINT, lambda _number, _frame: None)  # as Spark's
        began.append("Spark")

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    monkeypatch.setattr("pyspark.SparkContext", context)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session._start("x", tmp_path, {}, quiet=True)
    assert began == ["JVM", "Spark"]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_the_demo_on_kinesis_is_an_example_with_the_options_and_exit_codes_of_the_demo() -> None:
    example = [sys.executable, str(ROOT / "examples" / "demo_kinesis.py"), "--region", "eu-west-1", "--json"]
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1"}
    failed = subprocess.run(
        [*example, "--endpoint", "http://127.0.0.1:1"],
        env={**os.environ, **keys}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert failed.returncode == 2
    said = json.loads(failed.stdout)["error"]
    assert said.startswith("Kinesis refused stream lowmark-demo-")
    assert failed.stderr == f"lowmark: {said}\n"


@pytest.mark.slow
def test_the_demo_on_pravega_is_an_example_that_needs_a_controller() -> None:
    example = [sys.executable, str(ROOT / "examples" / "demo_pravega.py")]
    failed = subprocess.run(example, capture_output=True, text=True, check=False, timeout=60)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "Missing option '--controller'" in failed.stderr


def test_confluent_kafka_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    code, out, err = call("demo", "--source", "kafka", "--bootstrap", "localhost:9092")
    assert (code, out) == (2, "")
    assert err == (
        "lowmark: the demo on Kafka needs the package confluent-kafka, which is not installed. "
        'Hint: pip install "lowmark[kafka]".\n'
    )


# -- offsets


def test_offsets_are_json_to_paste_and_the_advice_is_beside_it(old_checkpoint: Path) -> None:
    code, out, err = call("offsets", str(old_checkpoint))
    assert (code, out) == (0, '{"orders": {"0": 10, "1": 20}}\n')
    assert """.option("startingOffsets", '{"orders": {"0": 10, "1": 20}}')""" in err
    assert "last committed batch" in err


def test_offsets_behind_the_last_planned_batch(old_checkpoint: Path) -> None:
    code, out, _ = call("offsets", str(old_checkpoint), "--planned", "--json")
    assert (code, out) == (0, '{"orders": {"0": 11, "1": 21}}\n')


def test_offsets_in_json_are_alone(old_checkpoint: Path) -> None:
    assert call("offsets", str(old_checkpoint), "--json") == (0, '{"orders": {"0": 10, "1": 20}}\n', "")


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    """Minute windows, 10 seconds of delay, 100 records a batch: after batch n event time has reached minute n."""
    root = tmp_path / "windowed"
    for batch in range(3, 10):
        (root / "offsets").mkdir(parents=True, exist_ok=True)
        watermark_ms = 1_700_000_000_000 + (batch - 1) * 60_000 - 10_000
        positions = json.dumps({"orders": {"0": 100 * (batch + 1)}})
        text = f'v1\n{{"batchWatermarkMs":{watermark_ms}}}\n{positions}'
        (root / "offsets" / str(batch)).write_text(text)
    (root / "commits").mkdir()
    (root / "commits" / "9").write_text("v1\n{}")
    return root


def test_offsets_that_reach_back_to_the_oldest_open_window(windowed: Path) -> None:
    code, out, err = call("offsets", str(windowed), "--window", "1 minute", "--delay", "10 seconds")
    # Batch 9 ran under minute 8 less the delay, so its oldest open window began before minute 7: not after batch 6.
    assert (code, json.loads(out)) == (0, {"orders": {"0": 700}})
    assert "300 of the old query's records are read again" in err
    assert '.filter("window.end > timestamp_millis(1700000470000)")' in err
    assert "ends at 2023-11-14 22:21:10.000 UTC or before" in err
    code, out, _ = call("offsets", str(windowed), "--window", "1 minute", "--delay", "10 seconds", "--json")
    assert json.loads(out)["read_again"] == 300


def test_offsets_that_would_reach_back_further_than_the_checkpoint(windowed: Path) -> None:
    code, _, err = call("offsets", str(windowed), "--window", "1 hour", "--delay", "10 seconds")
    assert (code, "its oldest batch is 3" in err, '"startingTimestamp", "1699996870000"' in err) == (2, True, True)
    assert "--delay is missing" in call("offsets", str(windowed), "--window", "1 hour")[2]


@pytest.mark.parametrize("seen_in", ["offsets/3", "lowmark/7a573882f3d8416ab9b56207c449e827"])
def test_offsets_do_not_reach_back_where_a_query_with_lowmark_ran(windowed: Path, seen_in: str) -> None:
    """Its watermark is that of a slow split, and the fast splits have rows in windows that are still open."""
    file = windowed / seen_in
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:  # after `leave`, only entries that no restart reads have the heartbeat
        lines.write("\n" + json.dumps(HeartbeatOffset("orders", 1, "token").to_json()))
    code, out, err = call("offsets", str(windowed), "--window", "1 minute", "--delay", "10 seconds")
    assert (code, out, "a query with lowmark runs or ran on it" in err) == (2, "", True)


def test_offsets_of_a_copy_without_the_folder_sources_do_not_begin_at_0(windowed: Path) -> None:
    """Where the old query began at the latest records, the new one would count records that the old one never read."""
    for batch in range(3):
        shutil.copy(windowed / "offsets/3", windowed / "offsets" / str(batch))
    command = ["offsets", str(windowed), "--window", "1 hour", "--delay", "10 seconds"]
    code, out, err = call(*command)
    assert (code, out, "sources/0/0 does not say where its rows begin" in err) == (2, "", True)
    (windowed / "sources/0").mkdir(parents=True)
    (windowed / "sources/0/0").write_text('\0v1\n{"orders":{"0":90}}')
    code, out, _ = call(*command)
    assert (code, json.loads(out)) == (0, {"orders": {"0": 90}})


def test_debug_raises_what_happened(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.app, ["offsets", str(tmp_path), "--debug"])
    assert isinstance(result.exception, CheckpointUnreadable)


# -- status and explain


@pytest.mark.parametrize("command", ["status", "explain"])
def test_no_service_is_one_line_and_exit_code_1(nowhere: str, command: str) -> None:
    code, out, err = call(command)
    assert (code, out) == (1, "")
    assert err == (
        f"lowmark: no lowmark service of this user runs here (looked in {nowhere}). Hint: a service lives in the "
        "driver of its Spark application, from LowWatermarkService(spark) to stop(); ask on that machine, or pass "
        "--connect with its service.address.\n"
    )


@pytest.mark.parametrize(
    ("command", "empty"), [("status", {"services": [], "coordinators": []}), ("explain", {"streams": []})]
)
@pytest.mark.usefixtures("nowhere")
def test_no_service_in_json_is_an_object_that_has_none(command: str, empty: dict[str, object]) -> None:
    code, out, err = call(command, "--json")
    found = json.loads(out)
    assert (code, f"lowmark: {found.pop('error')}\n", found) == (1, err, empty)


@pytest.mark.parametrize(
    "command",
    ["offsets", "watermark", "adopt --stream orders", "leave", "wait --past 2026-11-23T10:00Z --checkpoint"],
)
def test_an_empty_path_is_no_checkpoint_even_in_the_folder_of_one(
    old_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(old_checkpoint)
    code, _, err = call(*command.split(), "")  # as of a variable that a shell does not know
    hint = "pass the folder given as checkpointLocation, or . for the current one."
    assert (code, err) == (2, f'lowmark: checkpoint "": its path is empty. Hint: {hint}\n')


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status", "--connect", "unix:/nowhere/none.sock"), 2),
        (("explain", "--connect", "unix:/nowhere/none.sock"), 2),
        (("status", "--coordinator", "unix:/nowhere/none.sock"), 2),
        (("explain", "--coordinator", "unix:/nowhere/none.sock"), 2),
        (("serve", "--address", "nonsense"), 2),
        (("offsets", "/nowhere/none"), 2),
    ],
)
def test_every_command_that_fails_says_so_in_json_too(arguments: tuple[str, ...], code: int) -> None:
    done, out, err = call(*arguments, "--json")
    assert (done, f"lowmark: {json.loads(out)['error']}\n") == (code, err)


def test_the_version() -> None:
    assert call("--version") == (0, f"lowmark {importlib.metadata.version('lowmark')}\n", "")


def test_an_address_where_nobody_answers_is_an_error(tmp_path: Path) -> None:
    code, out, err = call("status", "--connect", f"unix:{tmp_path}/none.sock")
    assert (code, out) == (2, "")
    assert err.startswith(
        f"lowmark: cannot ask for the status: no lowmark service answers at unix:{tmp_path}/none.sock"
    )
    assert err.count("\n") == 1
    assert "without --connect all of yours are looked for" in err


@pytest.mark.parametrize("command", [["status"], ["check"], ["idle", "orders", "a", "--for", "1h"]])
def test_the_address_of_a_coordinator_is_not_taken_for_a_service_with_an_error(command: list[str]) -> None:
    with private_folder() as folder, serving(Door(f"unix:{folder}/coordinator.sock")) as address:
        code, out, err = call(*command, "--connect", address)
    assert (code, out) == (2, "")
    assert f"no lowmark service answers at {address} (a coordinator is there; " in err
    assert "with --coordinator" in err
    assert "answers with an error" not in err


def test_status_and_explain_of_a_running_query(
    spark: SparkSession, service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
    feed.put(("a", 1, 100), ("b", 1, 40))
    events = service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=strategy, splits=["a", "b", "mute"]
    )
    query = events.writeStream.format("noop").queryName("q").option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        wait_until(lambda: service.status("orders").splits["a"].watermark_us is not None, "the first report")
        code, out, err = call("status", "orders", "--json")
        assert (code, err) == (0, "")
        [found] = [s for s in json.loads(out)["services"] if s["address"] == service.address]
        [stream] = found["streams"]
        assert (found["pid"], stream["name"], stream["query"]) == (os.getpid(), "orders", "q")
        assert stream["holder"] == "mute"
        assert stream["splits"]["b"]["watermark_us"] == us(30) - 1_000
        assert stream["states"]["pending"] == 1

        code, out, err = call("status", "--connect", service.address)
        assert (code, err) == (0, "")
        lines = {line.strip().split("  ")[0]: line for line in out.splitlines()}
        assert "mute" in lines["held by"]
        assert "2 active" in lines["splits"]
        assert "1 pending" in lines["splits"]
        assert out.index("mute ", out.index("state")) < out.index("b ", out.index("state"))  # the neediest first

        code, out, _ = call("explain", "--connect", service.address)
        assert code == 0
        assert out == service.explain("orders") + "\n"
        told = json.loads(call("explain", "--connect", service.address, "--json")[1])["streams"]
        assert [each["stream"] for each in told] == ["orders"]

        code, out, err = call("status", "ordres", "--connect", service.address)
        assert (code, out) == (1, "")
        assert 'did you mean "orders"?' in err
    finally:
        query.stop()


def stream_of(count: int, limit: int | None) -> dict[str, object]:
    """A status with many splits: split 7 is silent, and the last split is furthest behind."""
    splits = [Arrived(n, None if n == 7 else 1_000 * (1_000 - n)) for n in range(count)]
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    coordinator = SplitWatermarks(strategy, job_id="job", source_id="[orders] :smile:", task_id="0")
    coordinator.handle(SplitsDiscovered(tuple(split.number for split in splits)), 0)
    coordinator.handle(BatchReported(0, 0, {s.number: s.us for s in splits if s.us is not None}), 0)
    return {
        "query": "q [/x]",
        "run": {"ended": False},
        **to_json(coordinator.status(0, lambda split: f"s[/{split}]", limit=limit)),
    }


class Arrived(NamedTuple):
    number: int
    us: int | None


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service, without Spark, whose stream has 120 splits."""
    with private_folder() as folder:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        address = sockets.new_address()

        def status(request: StatusRequest) -> StatusReply:
            return StatusReply("app", 7, [stream_of(120, request.limit)], ["in words"])

        server = Server(address, handler(STATUS, status))
        try:
            yield address
        finally:
            server.stop()


@pytest.mark.parametrize(("options", "shown"), [((), 50), (("--limit", "3"), 3), (("--limit", "0"), 120)])
@pytest.mark.usefixtures("many")
def test_the_neediest_splits_are_shown_and_how_many_are_not(
    options: tuple[str, ...], shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no line is broken
    code, out, err = call("status", "--json", *options)
    [stream] = json.loads(out)["services"][0]["streams"]
    assert (code, err) == (0, "")
    assert (len(stream["splits"]), stream["splits_not_shown"]) == (shown, 120 - shown)
    if shown < 120:
        assert list(stream["splits"])[:3] == ["s[/7]", "s[/119]", "s[/118]"]

    code, out, err = call("status", *options)
    assert (code, err) == (0, "")
    assert out.count("s[/") == shown + 3  # the holder, why, and what is next
    assert ("more" in out) == (shown < 120)
    assert shown == 120 or f"and {120 - shown} more" in out
    assert "[orders] :smile:, query q [/x]" in out  # names are no markup


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("limit", ["-1", "9" * 30])
def test_a_limit_that_is_none_is_refused(limit: str) -> None:
    code, out, err = call("status", "--limit", limit)
    assert (code, out) == (2, "")
    assert "Invalid value for '--limit'" in err


def test_status_lists_coordinators_as_it_lists_services(many: str) -> None:
    default = many.rpartition("/")[0] + "/coordinator.sock"
    with serving(Door(default)) as address, CoordinatorClient(Caller(address)) as client:
        for n in range(60):
            client.register(beginning(TaskId("billing", "shared", f"{n:02}")))
            report(client, TaskId("billing", "shared", f"{n:02}"), 1_000 - n)
        wait_until(lambda: client.low_us(TaskId("billing", "shared", "00")) == 941, "the low watermark")

        code, out, err = call("status", "--json")
        found = json.loads(out)
        [coordinator] = found["coordinators"]
        [source] = coordinator["coordinator"]["sources"]
        assert (code, err, [each["address"] for each in found["services"]]) == (0, "", [many])
        assert (coordinator["address"], coordinator["pid"]) == (address, os.getpid())
        assert (len(source["tasks"]), source["tasks_not_shown"], source["states"]["active"]) == (50, 10, 60)
        assert [task["task"]["task_id"] for task in source["tasks"][:2]] == ["59", "58"]

        code, out, err = call("status")
        assert (code, err) == (0, "")
        assert f"coordinator, process {os.getpid()}, {address}" in out
        assert "and 10 more" in out

        code, out, _ = call("status", "shared", "--json", "--limit", "0")
        found = json.loads(out)
        assert (code, found["services"], len(found["coordinators"][0]["coordinator"]["sources"][0]["tasks"])) == (
            0,
            [],
            60,
        )
        assert json.loads(call("status", "[orders] :smile:", "--json")[1])["coordinators"] == []
        code, out, err = call("explain", "shared")
        assert (code, err) == (0, "")
        assert f"no running query with a wrapped stream; `lowmark explain --coordinator {address}` tells of" in out
        code, _, err = call("status", "shard")
        assert (code, 'did you mean "shared"?' in err) == (1, True)


def test_explain_keeps_a_name_with_a_colon_whole(many: str) -> None:
    stream, task = "eu: orders: new", "query: 1"
    with (
        serving(Door(many.rpartition("/")[0] + "/coordinator.sock")) as address,
        CoordinatorClient(Caller(address)) as client,
    ):
        client.register(beginning(TaskId("billing: eu", stream, task)))
        report(client, TaskId("billing: eu", stream, task), 1_000)
        wait_until(lambda: client.low_us(TaskId("billing: eu", stream, task)) == 1_000, "the low watermark")
        code, out, err = call("explain", stream, "--coordinator", address)
    assert (code, err) == (0, "")
    assert f"{stream} of billing: eu: the low watermark is 1970-01-01 00:00:00.001 UTC" in out
    assert f"task {task} holds it" in out
    assert f"Sinks: the sink of task {task} is not known to be complete until any time." in out


def test_a_coordinator_alone_is_found_and_one_that_wants_a_token_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_folder() as folder:
        monkeypatch.setattr(sockets, "folders", lambda: [folder])
        with serving(Door(f"unix:{folder}/coordinator.sock", token_file=token_file(tmp_path))) as address:
            code, out, err = call("status")
            assert (code, out) == (1, "")
            assert f"no coordinator answers at {address} (UNAUTHENTICATED" in err
            code, out, err = call("status", "--json", "--token-file", str(tmp_path / "token"))
            assert (code, err, [c["address"] for c in json.loads(out)["coordinators"]]) == (0, "", [address])
            assert call("explain", "--token-file", str(tmp_path / "token"))[::2] == (0, "")


def test_a_stopped_service_leaves_no_socket(spark: SparkSession) -> None:
    from lowmark.integration import LowWatermarkService

    with LowWatermarkService(spark) as service:
        path = Path(service.address.removeprefix("unix:"))
        assert service.address in sockets.find_addresses()
    assert not path.exists()
    assert service.address not in sockets.find_addresses()


def test_explain_tells_of_all_that_wait_in_a_group_of_many() -> None:
    ahead = [TaskId("job", "clicks", str(n)) for n in range(15)]  # not among the 50 that need attention first
    members = dict.fromkeys((TaskId("job", "orders", str(n)) for n in range(60)), 0) | dict.fromkeys(ahead, 10_000)
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder}/coordinator.sock")) as address,
        CoordinatorClient(Caller(address)) as client,
    ):
        for who, low_us in members.items():
            client.register(beginning(who, alignment=AlignmentParams("g", 100, 50_000), throttled=low_us > 0))
            report(client, who, low_us)
        wait_until(lambda: client.low_us(ahead[-1]) == 10_000 and client.cap(ahead[-1]) == Cap.up_to(100), "the cap")
        code, out, err = call("explain", "--coordinator", address)
    assert (code, err) == (0, "")
    assert out.count("Waiting: job/clicks/") == 10
    assert "Waiting: 5 more" in out
    assert re.search("Not throttled, they only take part in the minimum: (job/orders/[0-9]+,? ){10}and 50 more[.]", out)
