"""Streams of one group, and queries of several applications that share one low watermark through a coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.coordinator.access import Door
from lowmark.integration.errors import ServiceRefused
from lowmark.watermark import DisagreeingGroup, WatermarkStrategy, format_time_us
from pyspark.sql import DataFrame, SparkSession

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import private_folder, serving
from tests.integration.feed import Feed, Ran, seconds, start, us, windows
from tests.servers.local import wait_until
from tests.sparks import settings

BOUND = WatermarkStrategy.for_monotonous_timestamps()
STEP = 0.001  # distance of the low watermark behind the largest event time


def in_group(drift: str = "30 seconds") -> WatermarkStrategy:
    return BOUND.with_watermark_alignment(group="g", max_drift=drift)


def iso(at: float) -> str:
    return format_time_us(us(at)).replace(" UTC", "Z")


def wrapped(service: LowWatermarkService, feed: Feed, name: str, strategy: WatermarkStrategy = BOUND) -> DataFrame:
    return service.wrap(feed.df, name=name, event_time="ts", split="split", strategy=strategy)


def eventually_low(ran: Ran, low: float) -> None:
    wait_until(lambda: ran.has_low(low), f"a heartbeat with {low}", seconds=30)


@pytest.fixture
def feeds(spark: SparkSession, tmp_path: Path) -> tuple[Feed, Feed]:
    return Feed(spark, tmp_path / "one"), Feed(spark, tmp_path / "two")


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


# -- groups in one application


def test_streams_of_one_group_take_part_in_its_minimum_and_the_status_says_that_spark_reads_on(
    service: LowWatermarkService, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    rans = []
    for name, feed, at in (("fast", feeds[0], 500), ("slow", feeds[1], 100)):
        feed.put(("a", 1, at))
        rans.append(start(wrapped(service, feed, name, in_group()), str(tmp_path / f"{name}-checkpoint")))
    for ran in rans:
        ran.settle()
    [group] = service.groups()
    by_name = {member.task.source_id: member for member in group.members}

    assert seconds(group.minimum_us) == 100 - STEP
    assert group.holder is not None
    assert group.holder.source_id == "slow"
    assert by_name["fast"].ahead_us == 400_000_000
    assert [by_name[name].throttled for name in ("fast", "slow")] == [False, False]
    assert 'group  "g"' in service.explain("fast")
    assert "cannot be told to read it more slowly" in service.explain("fast")

    rans[1].query.stop()
    wait_until(lambda: len(service.groups()[0].members) == 1, "the group without the query that ended", seconds=30)
    assert seconds(service.groups()[0].minimum_us) == 500 - STEP


def test_a_stream_that_disagrees_with_its_group_is_refused_and_both_are_named(
    service: LowWatermarkService, feeds: tuple[Feed, Feed]
) -> None:
    wrapped(service, feeds[0], "orders", in_group("30 seconds"))
    with pytest.raises(DisagreeingGroup) as refused:
        wrapped(service, feeds[1], "payments", in_group("1 minute"))

    for part in ('"orders"', '"payments"', "30s", "1m", "'g'"):
        assert part.strip('"') in str(refused.value), str(refused.value)
    wrapped(service, feeds[1], "payments", in_group("30 seconds"))  # the name is still free


def test_a_stream_that_is_refused_for_its_group_leaves_the_earlier_one_of_its_name_as_it_was(
    service: LowWatermarkService, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    wrapped(service, feeds[0], "payments", in_group("30 seconds"))
    df = wrapped(service, feeds[1], "orders", in_group("30 seconds"))
    with pytest.raises(DisagreeingGroup):
        wrapped(service, feeds[1], "orders", in_group("1 minute"))

    assert service.status("orders").holder is None, "it is known"
    feeds[1].put(("a", 1, 100))
    ran = start(df, str(tmp_path / "checkpoint"))
    ran.settle()
    assert ran.low == 100 - STEP
    ran.query.stop()


def test_a_job_without_a_coordinator_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="lowmark serve"):
        LowWatermarkService(spark, job="billing")


@pytest.mark.parametrize("given", [{"job_queries": 2}, {"job_away": "2 hours"}])
def test_what_is_said_of_a_job_without_a_name_is_refused(spark: SparkSession, given: dict[str, Any]) -> None:
    with pytest.raises(ServiceRefused, match=r'has no meaning without job\. Hint: pass job="billing", too'):
        LowWatermarkService(spark, coordinator="unix:/nowhere/c.sock", **given)


def test_a_job_of_two_lines_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"job='billing\\n' holds '\\n'"):
        LowWatermarkService(spark, coordinator="unix:/nowhere/c.sock", job="billing\n")


def test_a_job_without_a_name_is_refused_because_no_report_of_it_could_be_sent(spark: SparkSession) -> None:
    with pytest.raises(ServiceRefused, match=r'job is empty\. Hint: pass a name such as job="billing", or'):
        LowWatermarkService(spark, coordinator="unix:/nowhere/c.sock", job="")


# -- applications that share


@pytest.mark.usefixtures("queries")
def test_two_applications_of_one_job_go_by_the_slower_and_hold_while_their_coordinator_is_away(
    spark: SparkSession, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    with private_folder() as folder, ExitStack() as applications:
        door, journal = Door(f"unix:{folder / 'c.sock'}"), tmp_path / "journal"
        rans = []
        with serving(door, journal=journal) as address:
            services = []
            for feed, at in zip(feeds, (500, 100), strict=True):
                one = LowWatermarkService(spark, coordinator=address, job="billing", job_queries=2, beside=True)
                services.append(service := applications.enter_context(one))
                feed.put(("a", 1, at))
                frame = windows(wrapped(service, feed, "orders"), "split")
                rans.append(start(frame, str(tmp_path / f"{at}-checkpoint")))
            fast, slow = rans
            for ran in rans:
                eventually_low(ran, 100 - STEP)  # the fast one, too
            assert fast.rows == []  # its windows stay open, because the other application may still have rows for them
            assert 'job "billing"' in services[-1].explain("orders")

            feeds[1].put(("a", 1, 300))
            for ran in rans:
                eventually_low(ran, 300 - STEP)
            wait = ["wait", "orders", "--job", "billing", "--coordinator", address, "--every", "100ms"]
            assert call(*wait, "--past", iso(110), "--timeout", "30s")[0] == 0
            assert slow.rows == [(100, "a", 1)], "what is passed is in the sink"
            code, out, _ = call(*wait, "--past", iso(301), "--timeout", "0s")
            assert code == 1, "no sink can be complete beyond the low watermark of the job"
            assert "all sinks are complete until" in out
        feeds[1].put(("a", 1, 900))
        feeds[0].put(("a", 1, 910))
        for ran in rans:
            ran.settle()
        assert [ran.low for ran in rans] == [300 - STEP] * 2  # without a coordinator: held, and the queries live
        with serving(door, journal=journal):
            for ran in rans:
                eventually_low(ran, 900 - STEP)
        assert [ran.dropped for ran in rans] == [0, 0]
        histories = [lows(ran) for ran in rans]  # read once, because the queries still run
        assert histories == [sorted(history) for history in histories]


@pytest.mark.usefixtures("queries")
def test_a_query_without_rows_goes_by_what_the_others_published(
    spark: SparkSession, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    with private_folder() as folder, serving(Door(f"unix:{folder / 'c.sock'}")) as address:
        strategy = BOUND.with_idleness("1 second")
        with (
            LowWatermarkService(spark, coordinator=address, job="billing", beside=True) as one,
            LowWatermarkService(spark, coordinator=address, job="billing", beside=True) as two,
        ):
            feeds[0].put(("a", 1, 100))
            quiet = start(
                windows(wrapped(one, feeds[0], "orders", strategy), "split"), str(tmp_path / "quiet-checkpoint")
            )
            eventually_low(quiet, 100 - STEP)
            feeds[1].put(("b", 1, 500))
            busy = start(
                windows(wrapped(two, feeds[1], "orders", strategy), "split"), str(tmp_path / "busy-checkpoint")
            )
            at = itertools.count(501)

            def passed() -> bool:  # true once the other query had rows for longer than this one's timeout
                feeds[1].put(("b", 1, next(at)))
                busy.settle()
                return quiet.low is not None and quiet.low >= 500 - STEP

            wait_until(passed, "a heartbeat with the aggregated low watermark", seconds=60)
            wait_until(lambda: quiet.rows == [(100, "a", 1)], "its window to close", seconds=30)
            for query in (quiet.query, busy.query):
                query.stop()


@pytest.mark.usefixtures("queries")
def test_the_batch_after_a_quiet_while_is_reported(
    spark: SparkSession, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    """Every ten seconds Spark reports an idle query, under the number of the next batch."""
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder / 'c.sock'}")) as address,
        LowWatermarkService(spark, coordinator=address, job="billing") as service,
    ):
        feed = feeds[0]
        feed.put(("a", 1, 100))
        with settings(spark, {"spark.sql.streaming.noDataProgressEventInterval": "20ms"}):
            ran = start(windows(wrapped(service, feed, "orders"), "split"), str(tmp_path / "checkpoint"))
        for low in (100, 200):
            eventually_low(ran, low - STEP)
            wait_until(lambda: quiet(ran), "a sign of life", seconds=30)
            [run] = service._runs
            quiet_us = run.asked_at_us
            wait_until(lambda: run.asked_at_us > quiet_us + 1_500_000, "its heartbeat asks", seconds=30)  # noqa: B023
            feed.put(("a", 1, low + 100))
        eventually_low(ran, 300 - STEP)


@pytest.mark.usefixtures("queries")
def test_an_available_now_query_gets_the_low_watermark_of_its_job_before_it_ends(
    spark: SparkSession, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    with private_folder() as folder, serving(Door(f"unix:{folder / 'c.sock'}")) as address:
        with LowWatermarkService(spark, coordinator=address, job="billing") as service:
            feed = feeds[0]
            for at in (100, 200, 300):
                feed.put(("a", 1, at))
            frame = windows(wrapped(service, feed, "orders"), "split")
            ran = start(frame, str(tmp_path / "checkpoint"), trigger={"availableNow": True})
            assert ran.query.awaitTermination(60)

        assert ran.low == 300 - STEP
        assert [row[0] for row in ran.rows] == [100, 200]


@pytest.mark.usefixtures("queries")
def test_a_query_whose_group_disagrees_with_another_application_ends_and_says_so(
    spark: SparkSession, feeds: tuple[Feed, Feed], tmp_path: Path
) -> None:
    with (
        private_folder() as folder,
        serving(Door(f"unix:{folder / 'c.sock'}")) as address,
        LowWatermarkService(spark, coordinator=address, beside=True) as one,
        LowWatermarkService(spark, coordinator=address, beside=True) as two,
    ):
        feeds[0].put(("a", 1, 100))
        agreeing = start(wrapped(one, feeds[0], "orders", in_group("30 seconds")), str(tmp_path / "one-checkpoint"))
        agreeing.settle()
        for at in (100, 200):
            feeds[1].put(("a", 1, at))
        other = start(wrapped(two, feeds[1], "orders", in_group("1 minute")), str(tmp_path / "two-checkpoint"))
        wait_until(lambda: other.query.exception() is not None, "the query to end", seconds=30)
        why = str(other.query.exception())

        assert agreeing.query.isActive
        assert all(part in why for part in ('stream "orders"', "DisagreeingGroup", "30s", "1m")), why


def quiet(ran: Ran) -> bool:
    last = ran.query.lastProgress
    return last is not None and "addBatch" not in last.durationMs


def lows(ran: Ran) -> list[int]:
    return [offset.low_us for offset in ran.heartbeats if offset.low_us is not None]
