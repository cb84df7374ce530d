"""Delay and idleness that a person sets in a running query: what counts, and what everything says about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import ByHandRefused
from lowmark.integration.page.picture import Picture
from lowmark.integration.transport.driver_rpc import Client, SetRequest
from lowmark.watermark import InvalidDuration, SplitState, WatermarkStrategy

from tests.integration.cli.test_cli import call
from tests.integration.driver.test_by_hand import scraped
from tests.integration.feed import Feed, Ran, lose_commit, run_at_once, seconds, start, windows
from tests.servers.local import wait_until
from tests.snippets import block

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MINUTE = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_idleness("1 hour")


@pytest.fixture(scope="module")
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    with LowWatermarkService(spark, metrics_port=0) as service:
        yield service


def wrapped(service: LowWatermarkService, feed: Feed, strategy: WatermarkStrategy = MINUTE) -> DataFrame:
    return service.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=strategy)


@pytest.fixture
def ran(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> Iterator[Ran]:
    """The code waits a minute; rows came up to second 30."""
    rows = [(split, 1, at) for at in (0, 30) for split in ("a", "b")]
    ran = run_at_once(windows(wrapped(service, feed), "split"), feed, [rows], str(tmp_path / "cp"), name="counts")
    yield ran
    ran.query.stop()


def low(service: LowWatermarkService) -> float | None:
    """The low watermark on the axis of the feed, without the millisecond that a bound takes off."""
    at_us = service.status("orders").low_watermark_us
    return seconds(None if at_us is None else at_us + 1_000)


def test_a_smaller_delay_closes_windows_with_the_next_rows_and_everything_says_who_set_it(
    service: LowWatermarkService, ran: Ran, feed: Feed
) -> None:
    assert (low(service), ran.rows) == (-30, [])
    service.set_strategy("orders", delay="10 seconds")
    feed.put(("a", 1, 31), ("b", 1, 31))
    ran.settle()
    wait_until(lambda: len(ran.rows) == 2, "the windows of second 0, without another row")
    assert low(service) == 21

    (said,) = service.status("orders").set_by_hand
    assert (said.what, said.us, said.code_us) == ("delay", 10_000_000, 60_000_000)
    why = f"delay 10s, set by {said.by} at {said.since:%Y-%m-%d %H:%M:%S} UTC; the code says 1m"
    assert str(said) == why
    assert f"  set    {why}" in service.explain("orders")
    connect = ("--connect", service.address)
    assert f"; {why}" in call("check", "orders", *connect)[1]
    assert "set by " in call("status", "orders", *connect)[1]
    ((stream,),) = (each["streams"] for each in json.loads(call("status", "orders", "--json", *connect)[1])["services"])
    assert [(each["what"], each["us"], each["code_us"]) for each in stream["set_by_hand"]] == [
        ("delay", 10_000_000, 60_000_000)
    ]
    assert 'lowmark_set_by_hand_info{query="counts",stream="orders",what="delay",why="' in scraped(service)
    picture = Picture(lambda asked, _: {service.address: service._answers.status(asked)}, lambda: 1)
    (run,) = picture.since(None, None)["runs"]
    assert run["set_by_hand"] == [why]


def test_for_a_larger_delay_the_low_watermark_stands_until_event_time_has_caught_up(
    service: LowWatermarkService, ran: Ran, feed: Feed
) -> None:
    service.set_strategy("orders", delay="90 seconds")
    for at in (31, 59):
        feed.put(("a", 1, at), ("b", 1, at))
        ran.settle()
        assert low(service) == -30
    feed.put(("a", 1, 61), ("b", 1, 62))
    ran.settle()
    assert low(service) == -29
    assert service.status("orders").counts.rows == 10, "counts go on"


def test_what_was_set_is_taken_back_value_by_value_or_as_a_whole(
    service: LowWatermarkService, ran: Ran, feed: Feed
) -> None:
    service.set_strategy("orders", delay="10 seconds")
    service.set_strategy("orders", idleness="off")
    assert [str(each).split(",")[0] for each in service.status("orders").set_by_hand] == ["delay 10s", "idleness off"]
    assert "no idleness is set" in service.status("orders").next
    service.set_strategy("orders", delay="1 minute")
    assert [each.what for each in service.status("orders").set_by_hand] == ["idleness"]
    service.reset_strategy("orders")
    assert service.status("orders").set_by_hand == ()
    feed.put(("a", 1, 40), ("b", 1, 40))
    ran.settle()
    assert low(service) == -20


def test_a_split_becomes_idle_by_the_idleness_that_was_set(service: LowWatermarkService, ran: Ran, feed: Feed) -> None:
    service.set_strategy("orders", delay="0 seconds", idleness="1 millisecond")

    def left_out() -> bool:
        feed.put(("a", 1, 35))
        ran.settle()
        return service.status("orders").splits["b"].state is SplitState.IDLE

    wait_until(left_out, "the end of the wait for b")
    feed.put(("a", 1, 40))
    ran.settle()
    assert low(service) == 40


def test_the_code_counts_again_at_the_next_start_and_a_batch_that_runs_again_is_the_same(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    emitted: dict[int, list[Any]] = {}
    df, checkpoint = windows(wrapped(service, feed), "split"), str(tmp_path / "checkpoint")
    ran = start(df, checkpoint, emitted=emitted)
    feed.put(("a", 1, 0))
    ran.settle()
    service.set_strategy("orders", delay="0 seconds")
    feed.put(("a", 1, 30))
    ran.settle()
    wait_until(lambda: len(ran.rows) == 1, "the window of second 0")
    ran.query.stop()
    before = dict(emitted)
    again = lose_commit(checkpoint)

    ran = start(df, checkpoint, emitted=emitted)
    feed.put(("a", 1, 80))
    ran.settle()
    assert emitted[again] == before[again]
    assert service.status("orders").set_by_hand == ()
    assert low(service) == 30, "it does not go back, and second 80 less a minute lies below"
    feed.put(("a", 1, 95))
    ran.settle()
    assert low(service) == 35
    ran.query.stop()


def test_the_command_line_sets_and_takes_back(service: LowWatermarkService, ran: Ran) -> None:
    connect = ("--connect", service.address)
    for line in block("operating.md", "lowmark set orders ").splitlines():
        _, *command = line.partition("    ")[0].split()
        assert call(*command, *connect)[0] == 0, line
    assert service.status("orders").set_by_hand == ()
    code, out, _ = call("set", "orders", "--delay", "30s", "--idleness", "5m", *connect)
    assert (code, "from the next batch on delay 30s, set by " in out, "(query counts)" in out) == (0, True, True)
    code, out, _ = call("set", "orders", "--code", "--json", *connect)
    assert (code, json.loads(out)["queries"]) == (0, [{"query": "counts", "in_force": []}])
    assert "what the code says (query counts)" in call("set", "orders", "--code", *connect)[1]

    for wrong in ((), ("--code", "--delay", "1s"), ("--delay", "soon"), ("--delay", "-1s"), ("--idleness", "0s")):
        assert call("set", "orders", *wrong, *connect)[0] == 2, wrong
    code, _, error = call("set", "order", "--delay", "1s", *connect)
    assert (code, 'did you mean "orders"?' in error) == (1, True)


def test_what_cannot_be_set_is_refused_in_words(service: LowWatermarkService, ran: Ran) -> None:
    with pytest.raises(ByHandRefused, match='did you mean "orders"'):
        service.set_strategy("order", delay="1 second")
    with pytest.raises(ByHandRefused, match="nothing is to be set"):
        service.set_strategy("orders")
    with pytest.raises(ByHandRefused, match="idleness of 0"):
        service.set_strategy("orders", idleness="0 seconds")
    with pytest.raises(InvalidDuration):
        service.set_strategy("orders", delay="-1 second")
    with pytest.raises(ByHandRefused, match="does not fit"):
        Client(service.address).set(SetRequest("orders", "anna", delay_us=-1))
    with pytest.raises(ByHandRefused, match="name of the person"):
        Client(service.address).set(SetRequest("orders", "a\nb", delay_us=1))
    assert service.status("orders").set_by_hand == ()
    ran.query.stop()
    wait_until(lambda: service.statuses() == [], "the end of the query")
    with pytest.raises(ByHandRefused, match="no query runs on it"):
        service.set_strategy("orders", delay="1 second")


@pytest.mark.parametrize(
    ("strategy", "fact"),
    [
        (WatermarkStrategy.for_adaptive_out_of_orderness(), "the delay of each split is measured"),
        (WatermarkStrategy.no_watermarks(), "makes no watermarks"),
    ],
)
def test_a_strategy_without_a_delay_refuses_one(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, strategy: WatermarkStrategy, fact: str
) -> None:
    ran = start(wrapped(service, feed, strategy).select("v"), str(tmp_path / "checkpoint"))
    feed.put(("a", 1, 0))
    ran.settle()
    with pytest.raises(ByHandRefused, match=fact):
        service.set_strategy("orders", delay="1 second")
    ran.query.stop()
