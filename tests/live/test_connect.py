"""Spark Connect with a real server: the calls that work for a client, and the errors of the others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from lowmark.integration.spark.offset_log import OffsetEntry
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.told import _folder
from lowmark.sources.spark.versions import major_minor

from tests.drivers.connect_kafka import Shop
from tests.integration.cli.test_cli import call
from tests.integration.feed import Feed, us
from tests.servers import last_will
from tests.servers.connect import bare_server, connect_server
from tests.servers.kafka import Broker
from tests.servers.local import LOCALHOST, ROOT, Process, wait_until
from tests.servers.tcp_proxy import tcp_proxied
from tests.sparks import since

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.slow]

SECONDS = 180
END = 5_000.0
PIPELINE = """
from lowmark import LowWatermarkService
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

LowWatermarkService(SparkSession.getActiveSession() or spark)

@dp.materialized_view
def orders():
    return spark.range(1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, int]]:
    with connect_server(tmp_path_factory.mktemp("connect"), kind="driver") as started:
        yield started


@pytest.fixture(scope="module")
def port(server: tuple[Process, int]) -> int:
    return server[1]


def jvm_of(server: Process) -> int:
    """The process id of Spark's JVM, the only child of the server's Python that runs Java."""
    assert server.running is not None
    pid = server.running.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(each) for each in children if "java" in Path(f"/proc/{each}/comm").read_text())


def has_readers(jvm: int) -> bool:
    """Whether Python's readers of streams run beside a JVM."""
    children = Path(f"/proc/{jvm}/task").glob("*/children")  # each thread of a JVM has children
    pids = [each for path in children for each in path.read_text().split()]
    for each in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            if "python_streaming_source_runner" in Path(f"/proc/{each}/cmdline").read_text():
                return True
    return False


def said(*command: str, **environment: str) -> str:
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return ran.stdout


def lowmark(*arguments: str) -> str:
    code, out, err = call(*arguments)
    assert code == 0, err
    return out


def silence_is_told() -> bool:
    return "has not answered for" in lowmark("explain", "orders")


def newest_offset(folder: Path) -> str:
    """The newest offsets in a query's checkpoint, as text."""
    offsets = [path for path in (folder / "checkpoint" / "offsets").glob("*") if path.name.isdigit()]
    return max(offsets, key=lambda path: int(path.name)).read_text() if offsets else ""


def low_us(folder: Path) -> int | None:
    """The low watermark in a query's newest offset of its heartbeat, microseconds."""
    heartbeats = [
        HeartbeatOffset.find(offset) for _, offset in OffsetEntry.parse(newest_offset(folder)).sources if offset
    ]
    [found] = [each.low_us for each in heartbeats if each is not None]
    return found


def commits(folder: Path) -> int:
    """The number of committed batches of a query."""
    return max((int(path.name) + 1 for path in (folder / "checkpoint/commits").glob("[0-9]*")), default=0)


def an_hour_passes() -> None:
    """Let the last sign of each client be old."""
    for answer in _folder().glob("*.told"):
        os.utime(answer, (0, 0))


def test_what_a_client_can_do_and_what_is_refused(port: int, tmp_path: Path) -> None:
    came = json.loads(
        said(sys.executable, "-m", "tests.drivers.connect_app", "client", str(tmp_path), str(port)).splitlines()[-1]
    )
    assert came["read"] == {"a": 41, "b": 14}, "sources can be read"
    before = major_minor(pyspark.__version__) < (4, 2)
    assert (came["low_us"] is None) == before, "and, wrapped, with a low watermark"
    of_service = {"service"} if before else {"read", "audit", "mark_done", "assigner", "late"}
    assert {*came["refused"]} == {"adopt", "leave", "completion", *of_service}
    for what, words in came["refused"].items():
        needs = "a server with Spark 4.2, whose JVM measures splits" if what == "service" else "the session of a driver"
        assert re.match(rf"SessionUnfit: .* needs {needs}, got a Spark Connect session", words), (what, words)
        assert words.count("Hint: ") == 1
    # The service in the server's driver can be reached like any other on this machine.
    assert '"orders"' in lowmark("status", "--json")


# -- a client wraps


class Client:
    """A client that wraps the feed of a folder, in a process of its own; see `connect_wrapped.py`."""

    def __init__(self, folder: Path, port: int, *trigger: str) -> None:
        self._out, self._log = folder / f"{uuid.uuid4().hex}.out", folder / "client.log"
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.drivers.connect_wrapped", str(folder), str(port), str(END), *trigger],
                cwd=ROOT, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        last_will.end_with_us(self.process.pid)

    def starts(self) -> None:
        wait_until(lambda: self._alive() and "started" in self._out.read_text(), "the client's query started")

    def _alive(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-3_000:]
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        last_will.ended(self.process.pid)

    def ends(self) -> dict[str, Any]:
        """The last words of the client."""
        try:
            assert self.process.wait(SECONDS) == 0, self._log.read_text()[-3_000:]
        finally:
            last_will.ended(self.process.pid)
        came: dict[str, Any] = json.loads(self._out.read_text().splitlines()[-1])
        return came


class Orders:
    """A feed whose slow split is 100 s behind, and the windows of all its rows by definition."""

    def __init__(self, folder: Path) -> None:
        self.feed, self.files = Feed(None, folder / "feed"), 0  # type: ignore[arg-type]  # only files are put
        self.expected: Counter[tuple[float, str]] = Counter()

    def put(self, files: int = 1) -> None:
        for _ in range(files):
            at = 7.0 * self.files
            self._put(("fast", 1, at + 100), ("slow", 1, at), ("slow", 1, at + 3))

    def put_new(self, at: float) -> None:
        """Put a row of a split that the stream did not have before, or had only from here."""
        self._put(("new", 1, at))

    def end(self, *more: str) -> None:
        self.feed.put(*((split, 1, END + 500) for split in ("fast", "slow", *more)))

    def _put(self, *rows: tuple[str, int, float]) -> None:
        self.feed.put(*rows)
        self.files += 1
        self.expected.update((at // 10 * 10, split) for split, _, at in rows)

    def check(self, came: dict[str, Any]) -> None:
        rows = [((start, split), n) for start, split, n in came["rows"]]
        assert len(rows) == len({*dict(rows)}), "a window came twice"
        assert dict(rows) == dict(self.expected)


@since("4.2", "splits measured in the JVM")
def test_windows_of_a_client_that_is_killed_are_those_of_all_rows(port: int, tmp_path: Path) -> None:
    """The watermark holds without the client, and the client that comes back takes over from the checkpoint.

    Nobody names the splits, so only the checkpoint knows them after the kill.
    """
    orders = Orders(tmp_path)
    client = Client(tmp_path, port, "unknown")
    client.starts()
    orders.put(4)
    wait_until((tmp_path / "checkpoint" / "commits" / "2").exists, "some batches over")
    client.kill()
    an_hour_passes()
    wait_until(lambda: "client_silent_since" in newest_offset(tmp_path), "the query says that its client is silent")
    orders.put(3)
    client = Client(tmp_path, port, "unknown")
    client.starts()
    orders.put(3)
    orders.end()
    came = client.ends()
    orders.check(came)
    assert came["explain"].startswith("Stream orders: low watermark 2023-11-14 23:")
    assert came["passed"]
    assert came["states"][1:3] == ["idle", came["states"][0]], "marked by hand, and the mark taken back"
    assert came["states"][3].startswith("delay 59m, set by ")
    assert len(came["served"]) == 2
    assert "client_silent_since" not in newest_offset(tmp_path)


@since("4.2", "splits measured in the JVM")
def test_a_stopped_server_holds_no_service(server: tuple[Process, int], tmp_path: Path) -> None:
    """Its status answers and names the server; the query goes on with the server."""
    orders, jvm = Orders(tmp_path), jvm_of(server[0])
    client = Client(tmp_path, server[1])
    client.starts()
    orders.put(3)
    wait_until((tmp_path / "checkpoint" / "commits" / "2").exists, "three batches over")
    os.kill(jvm, signal.SIGSTOP)
    try:
        wait_until(silence_is_told, "the status names the server", every_seconds=0.3)
    finally:
        os.kill(jvm, signal.SIGCONT)
    orders.put(3)
    orders.end()
    came = client.ends()
    orders.check(came)
    assert "has not answered" not in came["explain"]


@since("4.2", "splits measured in the JVM")
def test_a_second_client_takes_the_query_over_and_a_third_cannot_move_its_watermark(port: int, tmp_path: Path) -> None:
    """A window would be missing if the third client's answer had reached the reader: it ends all windows."""
    orders = Orders(tmp_path)
    first = Client(tmp_path, port)
    first.starts()
    orders.put(3)
    [answer] = wait_until(lambda: [*_folder().glob("*.told")], "the reader has an answer")
    said(
        sys.executable, "-m", "tests.drivers.connect_app", "foreign", str(tmp_path), str(port), *answer.stem.split("-")
    )
    orders.put(2)
    second = Client(tmp_path, port)
    second.starts()
    orders.put(3)
    orders.end()
    orders.check(second.ends())
    first.kill()


@since("4.2", "splits measured in the JVM")
@pytest.mark.usefixtures("kafka_jars")
def test_kafka_partitions_and_a_join_of_two_streams_come_out_as_their_rows(
    port: int, kafka: Broker, tmp_path: Path
) -> None:
    shop = Shop(kafka)
    shop.check(shop.served(tmp_path, str(port)))


@since("4.2", "splits measured in the JVM")
def test_a_network_that_breaks_holds_the_watermark_until_it_is_back(port: int, tmp_path: Path) -> None:
    """The query goes on meanwhile; its offsets name the silent client, and the client's status the silent server.

    A split that appears meanwhile holds the watermark afterwards: its second row comes late beside the others' rows.
    """
    orders = Orders(tmp_path)
    with tcp_proxied(port, tmp_path) as network:
        client = Client(tmp_path, network.port, "unknown")
        client.starts()
        orders.put(3)
        wait_until((tmp_path / "checkpoint" / "commits" / "2").exists, "three batches over")
        network.kill()
        wait_until(silence_is_told, "the status names the server", every_seconds=0.3)
        held = low_us(tmp_path)
        an_hour_passes()
        wait_until(lambda: "client_silent_since" in newest_offset(tmp_path), "the query says that its client is silent")
        before = commits(tmp_path)
        orders.put_new(at=20)
        orders.put(3)
        wait_until(lambda: commits(tmp_path) >= before + 4, "four batches without the client")
        assert low_us(tmp_path) == held
        network.start()
        orders.put(2)
        wait_until(lambda: low_us(tmp_path) == us(20) - 1_000, "the new split holds the watermark")
        orders.put_new(at=25)
        orders.end("new")
        came = client.ends()
    orders.check(came)
    assert "has not answered" not in came["explain"]
    assert "client_silent_since" not in newest_offset(tmp_path)


@since("4.2", "splits measured in the JVM")
def test_a_server_without_lowmark_is_named_and_gets_it_for_a_query_that_ends_by_itself(tmp_path: Path) -> None:
    """With AvailableNow, the query emits what its rows close."""
    orders = Orders(tmp_path)
    orders.put(3)
    orders.end()
    with bare_server(tmp_path) as port:
        refused = Client(tmp_path, port)
        assert refused.process.wait(SECONDS) != 0
        why = (tmp_path / "client.log").read_text()
        assert "ModuleNotFoundError: No module named 'lowmark'. Hint: " in why
        assert "call lowmark.ship(spark) first" in why
        orders.check(Client(tmp_path, port, "shipped").ends())


@since("4.2", "splits measured in the JVM")
@pytest.mark.torture
def test_a_session_lives_as_long_as_its_client_and_a_time_out_longer_with_its_query(tmp_path: Path) -> None:
    """The client speaks every five seconds, also before the first row."""
    orders, timeout = Orders(tmp_path), 20
    manager = "spark.connect.session.manager"
    settings = (f"{manager}.defaultSessionTimeout={timeout}s", f"{manager}.maintenanceInterval=1s")
    place = tmp_path / "server"
    place.mkdir()
    with connect_server(place, *settings) as (server, port):
        jvm, client = jvm_of(server), Client(tmp_path, port)
        client.starts()
        over = time.monotonic() + 1.5 * timeout
        wait_until(lambda: time.monotonic() > over, "more than the time-out is over, before the query's first row")
        orders.put(3)
        wait_until(lambda: commits(tmp_path) >= 3, "the session of a client that lives stays")
        assert has_readers(jvm)
        client.kill()
        wait_until(lambda: not has_readers(jvm), "the session timed out, and its query was stopped")
        orders.put(1)
        client = Client(tmp_path, port)
        client.starts()
        orders.put(2)
        orders.end()
        orders.check(client.ends())


@since("4.1", "declarative pipelines")
def test_a_declarative_pipeline_is_told_why_not(port: int, tmp_path: Path) -> None:
    (tmp_path / "spec.yml").write_text(
        f"name: orders\nstorage: {(tmp_path / 'storage').as_uri()}\nlibraries:\n  - glob:\n      include: made/**\n"
    )
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "orders.py").write_text(PIPELINE)
    cli = Path(pyspark.__file__).parent / "pipelines" / "cli.py"
    ran = subprocess.run(
        [sys.executable, str(cli), "dry-run", "--spec", str(tmp_path / "spec.yml")],
        cwd=tmp_path, env={**os.environ, "SPARK_REMOTE": f"sc://{LOCALHOST}:{port}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode != 0
    assert (
        "LowWatermarkService needs a session whose queries it may hear of, got the session of a declarative pipeline"
        in ran.stderr
    )
