"""A Pravega is killed, and returns or not, during planning and during reading; without Spark but for the last test.

The tests kill a proxy in front of its segment store and a proxy in front of its controller, because this Pravega keeps
its streams in memory. A reader cannot tell the proxies from the server.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.pravega import PravegaUnavailable
from lowmark.sources.reading.slices import read_slices
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession

from tests.servers.local import wait_until
from tests.servers.pravega import Pravega, pravega_server
from tests.servers.tcp_proxy import TcpProxy, tcp_proxied
from tests.worlds.pravega_reading import Reading, events_of

pytestmark = [pytest.mark.live]

Outage = tuple[Pravega, TcpProxy, TcpProxy]


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """Yield a Pravega, the proxy of its controller, and the proxy of its store."""
    folder: Path = tmp_path_factory.mktemp("outage")
    with pravega_server(folder / "server", delay_ms=5) as server:
        assert server.proxy is not None
        with tcp_proxied(int(server.controller.rpartition(":")[2]), folder) as controller:
            yield server, controller, server.proxy


def numbered(count: int, size: int) -> list[tuple[str, bytes]]:
    return [(f"k{n % 7}", b"%0*d" % (size, n)) for n in range(count)]


def timed(begin: int, end: int) -> list[tuple[str, bytes]]:
    """Return events by number, half a second apart."""
    return [(f"k{n % 7}", b'{"at": %d}' % (1_700_000_000_000 + n * 500)) for n in range(begin, end)]


def test_a_planner_waits_says_so_and_goes_on(outage: Outage) -> None:
    server, controller, store = outage
    stream = server.create_stream(2)
    server.write(stream, numbered(20, 10))
    query = Reading(server.source(stream, controller=f"tcp://127.0.0.1:{controller.port}", give_up_after="1 minute"))
    assert len(query.events()) == 20
    for proxy in (controller, store):
        proxy.kill()
    try:
        assert query.events() == [], "nothing is known, so nothing is planned"
        trouble = query.planner.trouble()
        assert trouble is not None
        assert "gives no answer for 2 of 2 segments since 20" in trouble
        assert query.planner.metric_values()["unanswered_segments"] >= 2
    finally:
        for proxy in (controller, store):
            proxy.start()
    server.write(stream, numbered(30, 10))
    found = list[bytes]()

    def all_came() -> bool:
        found.extend(query.events())
        return len(found) == 30

    wait_until(all_came, "what was written since")
    assert query.planner.trouble() is None


def test_a_reader_goes_on_in_the_middle_of_a_slice(outage: Outage) -> None:
    server, controller, store = outage
    stream = server.create_stream(2)
    sent = numbered(12_000, 1_000)
    server.write(stream, sent)
    source = server.source(
        stream, controller=f"tcp://127.0.0.1:{controller.port}", give_up_after="1 minute", fetchers=2
    )
    query = Reading(source)
    slices = [replace(query.splits[name], stop=cut.stop) for name, cut in query.plan().slices.items()]
    parts = read_slices(source, slices)
    came = [part.rows for part in (next(parts),)]
    for proxy in (controller, store):
        proxy.kill()
    back = [threading.Timer(3.0, proxy.start) for proxy in (controller, store)]
    for timer in back:
        timer.start()
    came += [part.rows for part in parts]
    for timer in back:
        timer.join()
    events = events_of(pa.Table.from_batches(came))
    assert sorted(events) == sorted(event for _, event in sent), "each event once"


def test_a_task_waits_for_what_writers_have_noted(outage: Outage) -> None:
    """Java wraps a controller's silence like its answer that there is no stream; rows came without a noted time."""
    server, controller, _ = outage
    stream, time_ms = server.create_stream(1), 1_000
    with server.writer(stream) as writer:
        for marks in (1, 2):
            writer.write(numbered(10, 10))

            def is_marked(wanted: int = marks) -> bool:
                nonlocal time_ms
                time_ms += 1
                writer.note_time(time_ms)
                found = server.client.marks(stream)
                return found is not None and len({mark.positions[0] for mark in found.marks}) == wanted

            wait_until(is_marked, f"mark {marks}", seconds=60)
    query = Reading(server.source(stream, noted_time=True))
    slices = [replace(query.splits[name], stop=cut.stop) for name, cut in query.plan().slices.items()]
    away = f"tcp://127.0.0.1:{controller.port}"
    task = server.source(stream, noted_time=True, controller=away, give_up_after="50 seconds")  # a client of its own
    controller.kill()
    back = threading.Timer(3.0, controller.start)
    back.start()
    noted = [time for part in read_slices(task, slices) for time in part.rows["noted_time"].to_pylist()]
    back.join()
    assert [time is None for time in noted] == [True] * 10 + [False] * 10


def test_a_task_that_reads_what_writers_have_noted_gives_up_in_time(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's reader of marks waits for a store by itself: for three minutes, and no line of the log said so."""
    server, _, store = outage
    stream = server.create_stream(1)
    server.write(stream, numbered(10, 10))
    task = server.source(stream, noted_time=True, give_up_after="15 seconds")
    [split] = task.discover()
    store.kill()
    try:
        began = time.monotonic()
        with pytest.raises(PravegaUnavailable, match="read the marks of time of stream"):
            list(read_slices(task, [replace(split, stop=180)]))
        assert time.monotonic() - began < 60
    finally:
        store.start()
    assert "cannot read the marks of time of stream" in caplog.text


def test_who_stays_away_is_an_error_that_says_for_how_long(outage: Outage) -> None:
    server, controller, store = outage
    stream = server.create_stream(1)
    server.write(stream, numbered(5_000, 1_000))
    source = server.source(stream, give_up_after="3 seconds")
    query = Reading(source)
    slices = [replace(query.splits[name], stop=cut.stop) for name, cut in query.plan().slices.items()]
    store.kill()
    try:
        with pytest.raises(
            PravegaUnavailable, match=r"read segment .*, tried for \d+ s: .*the query goes on from its che"
        ):
            list(read_slices(source, slices))
        with pytest.raises(PravegaUnavailable, match=r"look up where 1 segment ends, tried for \d+ s"):
            wait_until(lambda: query.batch() and False, "an error", seconds=30)
    finally:
        store.start()
    assert controller.process.running is not None
    assert len(query.events()) == 5_000, "nothing was lost"


def test_a_server_that_hangs_or_comes_back_is_waited_for_and_one_that_stays_away_is_an_error(
    spark: SparkSession, outage: Outage, tmp_path: Path
) -> None:
    """A query of Spark. The last test: it kills the server."""
    server, _, store = outage
    with LowWatermarkService(spark) as service:
        stream = server.create_stream(1)
        server.write(stream, timed(0, 50))
        source = server.source(stream, event_time="$.at", give_up_after="20 seconds")
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
        df = service.read(source, name="orders", strategy=strategy)
        query = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
        query.processAllAvailable()
        running = server.process.running
        assert running is not None
        os.kill(running.pid, signal.SIGSTOP)
        try:
            threading.Event().wait(5)  # the length of the outage
            assert query.isActive
        finally:
            os.kill(running.pid, signal.SIGCONT)
        server.write(stream, timed(50, 90))
        # Spark's numInputRows would include the heartbeat's row.
        wait_until(
            lambda: not query.isActive or service.status("orders").counts.rows == 90,
            "the rows after the pause",
            seconds=60,
        )
        assert (query.exception(), service.status("orders").counts.rows) == (None, 90)

        store.kill()  # readers see a killed segment store
        waits = f"Waiting for the source: Pravega at {server.controller} gives no answer for 1 of 1 segments since 20"
        wait_until(lambda: query.exception() or waits in service.status("orders").why, "the status says that it waits")
        assert (query.exception(), waits in service.explain("orders")) == (None, True)
        store.start()
        server.write(stream, timed(90, 120))
        wait_until(
            lambda: query.exception() or service.status("orders").counts.rows == 120, "the rows after it was back"
        )
        wait_until(lambda: query.exception() or "Waiting" not in service.status("orders").why, "nothing is amiss")
        assert query.exception() is None
        server.process.kill()
        began = time.monotonic()
        failed = wait_until(query.exception, "the query ended", seconds=90)
        assert time.monotonic() - began > 10, "it was waited for"
        assert "Pravega at tcp://127.0.0.1" in str(failed)
        assert "tried for" in str(failed)
