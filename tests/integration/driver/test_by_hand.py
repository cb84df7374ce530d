"""Splits that a person leaves out: what the service, the command line, the status and the metrics say and do."""

from __future__ import annotations

import datetime as dt
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import ByHandRefused
from lowmark.integration.transport.driver_rpc import Client, MarkRequest
from lowmark.watermark import InvalidDuration, SplitState, WatermarkStrategy
from lowmark.watermark.printable import printable

from tests.integration.cli.test_cli import call
from tests.integration.driver.reported import NoQueries, desks_of
from tests.integration.driver.test_half_handled import Fed
from tests.integration.feed import Feed, Ran, run_at_once, windows
from tests.servers.local import wait_until
from tests.snippets import block

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR = dt.timedelta(hours=1)


@pytest.fixture(scope="module")
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    with LowWatermarkService(spark, metrics_port=0, page_port=0) as service:
        yield service


@pytest.fixture
def ran(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> Iterator[Ran]:
    """Minute 0: a and b spoke; minute 1: only a did."""
    events = service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=WatermarkStrategy.for_monotonous_timestamps()
    )
    rows = [("a", 1, 0), ("b/5", 1, 0), ("a", 1, 60)]
    ran = run_at_once(windows(events, "split"), feed, [rows], str(tmp_path / "checkpoint"))
    yield ran
    ran.query.stop()


def scraped(service: LowWatermarkService) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics") as answer:
        return str(answer.read().decode())


def test_a_window_closes_without_the_split_and_everything_says_who_said_so(
    service: LowWatermarkService, ran: Ran, feed: Feed
) -> None:
    assert ran.rows == []
    until = dt.datetime.now(dt.timezone.utc) + HOUR
    service.mark_idle("orders", "b/5", until=until)
    wait_until(lambda: len(ran.rows) == 2, "the windows of the first minute, without another row")

    status = service.status("orders")
    ((name, why),) = status.by_hand
    assert name == "b/5"
    assert why.startswith("left out by hand by ")
    assert f"until {until:%Y-%m-%d %H:%M}" in why
    assert status.left_out == status.by_hand
    assert f"left out: b/5, {why}" in service.explain("orders")
    assert f"split b/5 is {why}" in call("check", "orders", "--connect", service.address)[1]
    assert "lowmark_left_out_by_hand_splits{query=" in scraped(service)
    assert f'why="{why}"' in scraped(service)

    feed.put(("b/5", 1, 1))
    ran.settle()
    assert service.status("orders").splits["b/5"].state is SplitState.IDLE, "rows do not end a mark that has a time"
    assert service.status("orders").splits["b/5"].late_reports == 1

    service.mark_active("orders", "b/5")
    status = service.status("orders")
    assert (status.splits["b/5"].state, status.by_hand, status.returned_late) == (SplitState.ACTIVE, (), 1)
    assert "taken back by" in status.splits["b/5"].why


def test_the_command_line_marks_and_takes_back(service: LowWatermarkService, ran: Ran) -> None:
    connect = ("--connect", service.address)
    for line in block("operating.md", "lowmark idle orders ").splitlines():
        _, *command = line.partition("    ")[0].replace("orders/5", "b/5").split()
        assert call(*command, *connect)[0] == 0, line
    code, out, _ = call("idle", "orders", "b/5", "--for", "1h", *connect)
    assert (code, "split b/5 is left out by hand by" in out) == (0, True)
    code, out, _ = call("active", "orders", "b/5", "--json", *connect)
    assert (code, '"why": null' in out) == (0, True)
    assert service.status("orders").by_hand == ()
    code, out, _ = call("active", "orders", "b/5", *connect)  # a split that is idle by itself stays so
    assert (code, "split b/5 is not left out by hand" in out) == (0, True)

    code, _, error = call("idle", "orders", "b5", "--until-it-speaks", *connect)
    assert (code, "did you mean b/5?" in error) == (2, True)
    code, _, error = call("idle", "order", "b/5", "--until-it-speaks", *connect)
    assert (code, 'did you mean "orders"?' in error) == (1, True)
    assert call("idle", "orders", "b/5", *connect)[0] == 2
    assert call("idle", "orders", "b/5", "--for", "1h", "--until-it-speaks", *connect)[0] == 2


def test_a_split_is_marked_by_its_name_or_as_the_terminal_shows_it(
    service: LowWatermarkService, ran: Ran, feed: Feed
) -> None:
    names = ["b'\"5", "b\n5", "b \x1b[2J", "ü/5"]
    for name in names:  # a batch shows the name of one split
        feed.put((name, 1, 60))
    ran.settle()
    for split, given in [(name, given) for name in names for given in {name, printable(name)}]:
        assert call("idle", "orders", given, "--for", "1h", "--connect", service.address)[0] == 0
        assert [named for named, _ in service.status("orders").by_hand] == [split]
        assert call("active", "orders", given, "--connect", service.address)[0] == 0
        assert service.status("orders").by_hand == ()


def test_what_cannot_be_marked_is_refused_in_words(service: LowWatermarkService, ran: Ran) -> None:
    with pytest.raises(ByHandRefused, match="did you mean b/5"):
        service.mark_idle("orders", "b/55")
    with pytest.raises(ByHandRefused, match="among 2 known splits"):
        service.mark_active("orders", "zzz")
    with pytest.raises(ByHandRefused, match="no split is named '5', among 2 known splits"):
        service.mark_idle("orders", 5)  # type: ignore[arg-type]  # a partition's number is no name
    with pytest.raises(ByHandRefused, match='did you mean "orders"'):
        service.mark_idle("order", "b/5")
    with pytest.raises(ByHandRefused, match="without a zone"):
        service.mark_idle("orders", "b/5", until=dt.datetime(2099, 1, 1))  # noqa: DTZ001
    with pytest.raises(ByHandRefused, match="is over already, by "):
        service.mark_idle("orders", "b/5", until=dt.datetime.now(dt.timezone.utc) - HOUR)
    with pytest.raises(InvalidDuration):
        service.mark_idle("orders", "b/5", until="soon")
    with pytest.raises(ByHandRefused, match="name of the person"):
        Client(service.address).mark(MarkRequest("orders", ["b/5"], "a\nb", idle=True))
    assert service.status("orders").by_hand == ()
    ran.query.stop()
    wait_until(lambda: service.statuses() == [], "the end of the query")
    with pytest.raises(ByHandRefused, match="no query runs on it"):
        service.mark_idle("orders", "b/5")
    code, _, error = call("idle", "orders", "b/5", "--until-it-speaks", "--connect", service.address)
    assert (code, "no query runs on it. Hint: start the query first" in error) == (2, True)


@pytest.mark.parametrize("path", ["mark", "lowmark.v1.Driver/Mark", "api/mark", "set", "lowmark.v1.Driver/Set"])
def test_neither_the_page_nor_the_metrics_port_takes_a_mark(service: LowWatermarkService, path: str) -> None:
    for door in (service.page_address, f"http://127.0.0.1:{service.metrics_port}/"):
        asked = urllib.request.Request(f"{door}{path}", data=b'{"stream": "orders"}', method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code in (403, 404, 405, 501)


def test_the_command_that_lists_the_splits_can_be_pasted_whatever_the_name_of_the_stream() -> None:
    fed, queries = Fed("wrapped"), cast("Any", NoQueries())
    desks = desks_of(queries, notify=lambda _: None)
    fed.run.stream = replace(fed.stream, name="my orders")
    desks.runs.streams.add(fed.run.stream)
    desks.runs._runs["t"] = fed.run
    with pytest.raises(ByHandRefused, match="`lowmark status 'my orders'` lists its splits"):
        desks.by_hand.take(MarkRequest("my orders", ["zzz"], "me", idle=True))
