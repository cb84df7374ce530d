"""A service stays small, and ends cleanly."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import urllib.request
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.cli.main import app
from lowmark.integration.coordinator.access import Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.driver import runs
from lowmark.integration.driver import service as driver_service
from lowmark.integration.errors import CoordinatorUnreachable, SessionUnfit, SocketsRefused
from lowmark.integration.process import sockets
from lowmark.integration.spark.classic import RunningQuery
from lowmark.integration.spark.queries import Queries
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest, Server
from lowmark.integration.transport.mapped import MappedMeasure
from lowmark.sources.worker import WorkerDied
from lowmark.watermark import WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQueryManager
from typer.testing import CliRunner

from tests.integration.coordinator.serving import certificate, serving, token_file
from tests.integration.feed import Feed, start, us, windows
from tests.servers.local import free_ports, no_thread_begins, no_thread_stays, wait_until


def test_runs_that_ended_long_ago_are_forgotten(
    spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_ENDED_RUNS_KEPT", 1)
    feed.put(("a", 1, 100))
    with LowWatermarkService(spark) as kept:
        df = kept.wrap(feed.df, name="orders", event_time="ts", split="split").select("v")
        for n in range(4):
            ran = start(df, str(tmp_path / f"{n}"), trigger={"availableNow": True})
            assert ran.query.awaitTermination(60)
        remembered = kept.run_statuses()

    assert len(remembered) <= 1 + 2, "the newest, one that ended, and one whose end may not be heard of yet"


def test_a_coordinator_that_is_required_and_does_not_answer_refuses_the_service(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_client: CoordinatorClient) -> None:
        raise KeyboardInterrupt

    with no_thread_stays():  # gRPC's own threads end a moment after their channel
        with pytest.raises(CoordinatorUnreachable, match="Hint: start one with `lowmark serve`"):
            LowWatermarkService(spark, coordinator=f"unix:{tmp_path}/c.sock", require_coordinator=True)
        with pytest.raises(ValueError, match=r"require_coordinator is set, and no coordinator is named\. Hint: "):
            LowWatermarkService(spark, require_coordinator=True)
        monkeypatch.setattr(CoordinatorClient, "reach", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LowWatermarkService(spark, coordinator=f"unix:{tmp_path}/c.sock", require_coordinator=True)


def test_a_driver_that_changes_its_folder_comes_back_to_its_coordinator(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a link are read at each of its connections."""
    cert, key = certificate(tmp_path)
    token = token_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    with serving(Door("127.0.0.1:0", cert, key, token)) as address:
        service = LowWatermarkService(
            spark, coordinator=address, coordinator_ca=cert.name, coordinator_token_file=token.name
        )
        assert service._client is not None
        link = service._client
        link.reach()
        monkeypatch.chdir("/")
    with service, serving(Door(address, cert, key, token)):
        wait_until(lambda: link.connected, f"connected again, but: {link.why}")


@pytest.mark.parametrize(("kind", "end"), [(Queries, "close"), (Server, "stop")])
def test_ctrl_c_in_the_stop_of_a_service_leaves_no_port_and_no_thread(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: type, end: str
) -> None:
    """A person presses it twice, or stops a cell of a notebook whose service waits for a slow disk."""
    original = getattr(kind, end)

    def interrupted(part: object) -> None:
        original(part)
        raise KeyboardInterrupt

    port = free_ports(1)[0]
    with no_thread_stays("lowmark"):
        service = LowWatermarkService(spark, metrics_port=port)
        with monkeypatch.context() as patched:
            patched.setattr(kind, end, interrupted)
            with pytest.raises(KeyboardInterrupt):
                service.stop()
        with LowWatermarkService(spark, metrics_port=port):
            assert service.address not in sockets.find_addresses()
    assert not Path(service.address.removeprefix("unix:")).exists()


def test_a_process_that_the_driver_forks_ends_and_takes_nothing_along(spark: SparkSession) -> None:
    """Python stops services when a process ends in order, and the child has none of the threads."""
    with LowWatermarkService(spark, metrics_port=0) as service, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12, of each fork beside threads
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends the child if it hangs
            try:
                service.stop()
            except BaseException:  # noqa: BLE001  # the child must not go on with the tests
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert CliRunner().invoke(app, ["status", "--connect", service.address]).exit_code == 0


def test_a_stopped_service_is_given_back_to_the_collectors(spark: SparkSession) -> None:
    """A notebook that stops one and makes another had kept the state of each until the JVM ended."""
    services = [LowWatermarkService(spark)]
    stopped = weakref.ref(services[0])
    services.pop().stop()

    def collected() -> bool:
        gc.collect()
        assert spark._jvm is not None
        spark._jvm.System.gc()
        return stopped() is None

    wait_until(collected, "Python and the JVM let the service go", seconds=60)


def test_a_session_that_cannot_be_listened_to_leaves_no_thread(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark Connect server without lowmark has such a session."""

    def refused(*_: object) -> None:
        raise SessionUnfit("LowWatermarkService", "a session of a test", "use another.")

    monkeypatch.setattr(Queries, "listen_to", refused)
    with no_thread_stays(), pytest.raises(SessionUnfit, match="a session of a test"):
        LowWatermarkService(spark, metrics_port=0)


def test_a_socket_that_cannot_be_made_leaves_no_thread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk of the sockets' folder is full."""
    monkeypatch.setattr(sockets, "new_address", lambda: f"unix:{tmp_path}/no folder/1.sock")
    with no_thread_stays(), pytest.raises(SocketsRefused, match="no folder: no socket can be made in it"):
        LowWatermarkService(spark, coordinator=f"unix:{tmp_path}/c.sock")


def _as_it_is(row: object, time_us: int | None) -> int:
    assert time_us is not None
    return time_us


def test_what_python_measured_does_not_pile_up(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The measurements of ended queries are dropped, and of queries that outlive the service, too."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_as_it_is)
    feed.put(("a", 1, 100))
    with LowWatermarkService(spark) as service:
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=strategy).select("v")
        [stream] = service._runs.streams.values()
        assert isinstance(stream.measure, MappedMeasure)
        tracks = stream.measure.tracks.value
        for n in range(2):
            assert start(df, str(tmp_path / f"{n}"), trigger={"once": True}).query.awaitTermination(60)
        wait_until(lambda: not tracks, "the tracks of ended queries are dropped")
        living = start(df, str(tmp_path / "living"))
        living.settle()
    for n in range(3):
        feed.put(("a", 1, 200 + n))
        living.settle()

    assert len(living.rows) == 4, "the query lives"
    assert stream.measure.tracks.value == {}


class Planted(Exception):  # no error of the product
    """The error that ends a service's loop."""


def test_a_service_that_an_error_ended_says_so_to_all_and_makes_room_for_the_next(
    spark: SparkSession, feed: Feed, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def fail() -> None:
        raise Planted("in the middle")

    def answer(request: HeartbeatRequest) -> HeartbeatReply:
        asked.set()
        assert may_answer.wait(60)
        return at_once(request)

    [port] = free_ports(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_grace("1 second")  # for events missed by the dead
    dead = LowWatermarkService(spark, metrics_port=port)
    df = dead.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=strategy)
    ran = start(windows(df, "split"), checkpoint)
    feed.put(("a", 1, 100), ("b", 1, 100))
    ran.settle()
    feed.put(("a", 1, 130), ("b", 1, 130), ("new", 1, 110))
    ran.settle()
    # An idle query asks every second, and the dead service closes its socket once the query has heard of the error.
    at_once = dead._answers._heartbeat
    monkeypatch.setattr(dead._answers, "_heartbeat", answer)
    assert asked.wait(20)
    dead._loop.post(fail)
    wait_until(lambda: dead.failed is not None, "the loop has ended")

    said = "the thread lowmark-loop was ended by an error: Planted: in the middle"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as scraped:
        assert "lowmark_loop_failed 1.0" in scraped.read().decode()
    for command in ("status", "explain", "check"):
        shown = CliRunner().invoke(app, [command, "--connect", dead.address])
        assert shown.exit_code == 2
        assert said in " ".join(shown.output.split())
    assert ran.query.isActive, ran.query.exception()
    dead.stop()  # at once, although a query runs: it is told
    with LowWatermarkService(spark):
        shown = CliRunner().invoke(app, ["status"])
    assert (shown.exit_code, shown.stderr.count("\n")) == (0, 1)
    assert shown.stderr.startswith(f"lowmark: the service at {dead.address} has failed: cannot give the status: {said}")
    feed.put(("a", 1, 500), ("b", 1, 500))
    may_answer.set()
    with pytest.raises(StreamingQueryException, match="Planted: in the middle"):
        ran.query.awaitTermination(60)
    wait_until(lambda: not Path(dead.address.removeprefix("unix:")).exists(), "no query needs its answer")

    with LowWatermarkService(spark, metrics_port=port) as service:
        assert service is not dead
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=strategy)
        again = start(windows(df, "split"), checkpoint)
        again.settle()
        feed.put(("new", 1, 115))
        again.settle()
        feed.put(*((split, 1, 900) for split in ("a", "b", "new")))
        wait_until(lambda: service.status("orders").low_watermark_us == us(899.999), "all had time to speak")
        again.settle()
    assert again.dropped == 0
    assert {(at, split, n) for at, split, n in [*ran.rows, *again.rows] if split == "new"} == {(110.0, "new", 2)}


def test_a_failed_service_closes_its_socket_if_spark_ends_before_the_queries_heard_of_the_error(
    spark: SparkSession, feed: Feed, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> bool:
        raise ConnectionRefusedError("no JVM listens")

    dead = LowWatermarkService(spark)
    ran = start(windows(dead.wrap(feed.df, name="orders", event_time="ts", split="split"), "split"), checkpoint)
    feed.put(("a", 1, 100))
    ran.settle()
    with monkeypatch.context() as jvm:
        jvm.setattr(dead._answers, "_heartbeat", lambda _: None)  # the query does not hear of the error
        dead._loop.post(lambda: 1 / 0)
        wait_until(lambda: dead.failed is not None, "the loop has ended")
        dead.stop()
        jvm.setattr(RunningQuery, "active", property(gone))
        jvm.setattr(StreamingQueryManager, "active", property(gone))
        wait_until(lambda: not Path(dead.address.removeprefix("unix:")).exists(), "nobody asks it any more")
    ran.query.stop()


def test_a_failed_service_closes_all_at_the_end_of_a_process_that_begins_no_thread_any_more(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python since 3.12, which stops the service of a program that ends without `stop`."""

    dead = LowWatermarkService(spark, metrics_port=0)
    dead._loop.post(lambda: 1 / 0)
    wait_until(lambda: dead.failed is not None, "the loop has ended")
    monkeypatch.setattr(dead, "_queries_run", lambda: True)
    with no_thread_stays("lowmark"), no_thread_begins():
        dead.stop()
    assert not Path(dead.address.removeprefix("unix:")).exists()


def test_a_failed_service_closes_its_socket_while_queries_of_the_next_service_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only its own query needs its answer; `lowmark check` takes a failed service that is there for a fault."""

    def wait_in_vain(_: float) -> None:
        pytest.fail("it waits for a query that does not ask it")

    running: list[Any] = [SimpleNamespace(run_id="r", active=True)]
    session: Any = SimpleNamespace(
        spark=None,
        listen=lambda *_: None,
        running=lambda: running,
        stop_listening=lambda: None,
    )
    closed: list[str] = []
    nobody: Any = None  # hears of the queries
    failed: Any = object.__new__(LowWatermarkService)
    failed._queries = Queries(nobody, nobody, nobody)
    failed._queries.listen_to(session)
    failed._queries.find()
    failed._queries.close()
    failed._close_door = lambda: closed.append("socket")
    running[0].active = False  # it has ended with the service's error, and begun again with the next service
    monkeypatch.setattr(driver_service, "sleep", wait_in_vain)
    failed._close_door_after_queries()

    assert closed == ["socket"]


def test_a_dead_service_is_found_by_nobody(spark: SparkSession) -> None:
    dead = LowWatermarkService(spark)
    threads = threading.active_count()
    dead._loop.post(lambda: 1 / 0)
    wait_until(lambda: dead.failed is not None, "the loop has ended")
    began = time.monotonic()
    with LowWatermarkService(spark) as service:
        assert service is not dead
        assert not Path(dead.address.removeprefix("unix:")).exists()
        with pytest.raises(WorkerDied, match="ZeroDivisionError"):
            dead.status("orders")
    assert time.monotonic() - began < 30
    assert threading.active_count() <= threads


def test_a_last_report_is_on_the_disk_and_one_that_is_not_is_done_without(
    spark: SparkSession,
    feed: Feed,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash of the host may leave the file empty; the query must continue without it."""
    synced: list[str] = []
    sync = os.fsync

    def note(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        sync(number)

    monkeypatch.setattr(os, "fsync", note)
    for n in range(2):
        feed.put(("a", 1, 100 + n))
        with LowWatermarkService(spark) as service:
            df = service.wrap(feed.df, name="orders", event_time="ts", split="split").select("v")
            assert start(df, checkpoint, trigger={"once": True}).query.awaitTermination(60)
        [left] = Path(checkpoint, "lowmark").glob("[0-9a-f]*")
        assert f".{left.name}.lowmark" in synced
        if n == 0:
            left.write_bytes(b"")

    warned = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(warned) == 1
