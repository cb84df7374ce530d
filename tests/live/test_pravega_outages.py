"""A Pravega is killed, and returns or not, during planning and during reading; without Spark.

The tests kill a proxy in front of its segment store and a proxy in front of its controller, because this Pravega keeps
its streams in memory. A reader cannot tell the proxies from the server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from lowmark.sources.pravega import PravegaUnavailable
from lowmark.sources.reading.slices import read_slices

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
        with pytest.raises(PravegaUnavailable, match=r"look up where 1 segments end, tried for \d+ s"):
            wait_until(lambda: query.batch() and False, "an error", seconds=30)
    finally:
        store.start()
    assert controller.process.running is not None
    assert len(query.events()) == 5_000, "nothing was lost"
