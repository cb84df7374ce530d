"""Event times are compared with the wall clock, also after the clock of the host was set or stood still."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from lowmark.integration.driver.desks import Desks
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.process.clock import monotonic_us
from lowmark.integration.transport.driver_rpc import GuideRequest, HeartbeatRequest, MarkRequest
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import WatermarkStrategy, format_time_us
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered, Tick

from tests.integration.driver.reported import NoQueries, answer_of, desks_of, report_of
from tests.integration.driver.test_half_handled import STRATEGY, Fed

SECOND, HOUR = 1_000_000, 3_600_000_000


def set_by(monkeypatch: pytest.MonkeyPatch, us: int) -> None:
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + us * 1_000)


def begun(strategy: WatermarkStrategy) -> tuple[Desks, StreamRun]:
    """A query that reads one stream, at a service whose clock is right."""
    queries: Any = NoQueries()
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(replace(Fed("read").stream, strategy=strategy))
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    [run] = desks.runs
    return desks, run


@pytest.mark.parametrize("set_us", [-3 * HOUR, 3 * HOUR], ids=["was ahead", "was behind"])
def test_a_low_watermark_that_follows_the_time_follows_the_clock_that_was_set(
    monkeypatch: pytest.MonkeyPatch, set_us: int
) -> None:
    strategy = STRATEGY.with_idleness("1 second").with_all_idle("advance", delay="1 minute")
    desks, run = begun(strategy)
    now_us = desks.runs.clock.now_us() - 10 * SECOND
    run.hear(SplitsDiscovered((1,)), now_us)
    run.hear(BatchReported(0, now_us, {1: 0}), now_us)
    set_by(monkeypatch, set_us)
    wall_us = time.time_ns() // 1_000
    reply = answer_of(desks, HeartbeatRequest("s", "t", polled_until_us=monotonic_us()))

    assert reply.low_watermark_us is not None
    assert abs(reply.low_watermark_us - (wall_us - 60 * SECOND)) < 30 * SECOND
    wake_us = run.watermarks.wake_at_us(desks.runs.clock.now_us(), desks.runs.clock.wall_ahead_us())
    assert wake_us is not None
    assert abs(wake_us - desks.runs.clock.now_us()) < 30 * SECOND, "as soon as it may rise, and not at once for ever"


def test_a_claim_of_now_counts_after_the_host_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    desks, run = begun(STRATEGY)
    desks.plans.guide(GuideRequest("s", "reader"))
    desks.runs.planners._planners["reader"].run_token = "t"
    set_by(monkeypatch, 3 * HOUR)
    wall_us = time.time_ns() // 1_000
    desks.plans.take("s", "reader", Planned(1, {"a": ()}, claims_us={"a": wall_us}))

    assert run.low_watermark_us == STRATEGY.watermark_of_max(wall_us)


def test_the_end_of_a_mark_goes_by_the_clock_of_the_person_also_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desks, run = begun(STRATEGY)
    run.hear(SplitsDiscovered((1,)), desks.runs.clock.now_us())
    set_by(monkeypatch, 3 * HOUR)
    wall_us = time.time_ns() // 1_000
    told = []
    for asked in ({"until_us": wall_us + HOUR}, {"for_us": HOUR}):
        desks.by_hand.take(MarkRequest("orders", [*run.named_splits()], "anna", True, **asked))
        told.append([str(mark) for mark in run.watermarks.by_hand.values()])
    wake_us = run.watermarks.wake_at_us(desks.runs.clock.now_us(), desks.runs.clock.wall_ahead_us())
    assert wake_us is not None
    assert abs(wake_us - desks.runs.clock.now_us() - HOUR) < 30 * SECOND
    state, marked = run.state(), []
    set_by(monkeypatch, -6 * HOUR)  # a query is started again at a service whose clock is three hours ahead now
    answer_of(desks, HeartbeatRequest("s", "u", first=True, state=state))
    [*_, again] = desks.runs
    marked.append([*again.watermarks.by_hand])
    set_by(monkeypatch, 3 * HOUR)
    again = StreamRun.attach(run.stream, token="v", resumes="t", state=state, now_us=wall_us)  # at a new service
    for now_us in (wall_us + HOUR // 2, wall_us + HOUR + 30 * SECOND):
        again.hear(Tick(), now_us)
        marked.append([*again.watermarks.by_hand])

    until = format_time_us(wall_us + HOUR)[: len("2026-01-01 10:0")]
    assert [until in each for [each] in told] == [True, True]
    assert marked == [[1], [1], []]


def test_a_watermark_of_now_is_not_ahead_of_the_clock_after_the_host_slept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desks, run = begun(STRATEGY)
    set_by(monkeypatch, 3 * HOUR)
    answer_of(desks, HeartbeatRequest("s", "t"))
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time_ns() // 10**9))
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "state": ""}
    told = report_of(0, [{"endOffset": heartbeat}], eventTime={"watermark": now})
    with caplog.at_level(logging.WARNING):
        run.report(told, 0, planned_at_us=0, now_us=desks.runs.clock.now_us())

    assert "ahead of the clock" not in caplog.text
