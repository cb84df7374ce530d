"""A fault in the driver, in a planner or in the coordinator loses no row, and each standstill has a reported reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration.driver import farewells
from lowmark.integration.driver.heartbeats import Heartbeats
from lowmark.integration.driver.reports import Reports
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.integration.transport.planner_peer import ServicePeer
from lowmark.sources.coordinator import SourceCoordinator
from lowmark.sources.kafka.planner import KafkaPlanner
from lowmark.sources.kit.discovery import DiscoveringEnumerator
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.watermark.splits.coalescer import Coalescer
from lowmark.watermark.splits.low_watermark import LowWatermark
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.rounds import SourceRounds

from tests.failpoints import queried
from tests.failpoints.inject import name_of
from tests.failpoints.queried import ELSEWHERE, KINDS, World, rows_of
from tests.failpoints.run import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.kafka import Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STEPS = 5  # until a split that was new has spoken again; make failpoints plays more
FIRST_SEED = 2_026  # for other seeds, and for a fault in any function, run make failpoints

CERTAIN: dict[str, list[Callable[..., object]]] = {
    "driver": [
        *(Heartbeats.answer, Reports.catch_up, Reports.take, Progress.heartbeats, HeartbeatOffset.find),
        *(StreamRun.report, StreamRun.sources_in, StreamRun.handle, StreamRun.answer, StreamRun._took),
        *(SplitWatermarks.handle, SplitWatermarks._report, SplitWatermarks.wake_at_us, LowWatermark.follow),
    ],
    "planner": [
        *(BatchPlanner.plan, BatchPlanner.tasks, ServicePeer.ask, ServicePeer.tell),
        *(SourceCoordinator.checkpoint, DiscoveringEnumerator.handle_split_request, KafkaPlanner.latest),
    ],
    "serve": [
        *(SourceRounds.__init__, SourceRounds.begin, Coalescer.__init__, Coalescer.assign),
        *(LowWatermarkCoordinator.handle, LowWatermarkCoordinator.take_changes),
    ],
}
"""Functions that such a process surely calls; to count the calls of all its functions takes as long as the test."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.torture if kind == "serve" else ()) for kind in KINDS]
)
def test_a_fault_costs_no_row(spark: SparkSession, kafka: Broker, kind: str) -> None:
    number = int(os.environ.get("LOWMARK_SEED", FIRST_SEED + KINDS.index(kind)))  # another fault for each kind
    where, times = (kind, 2) if kind in ELSEWHERE else ("driver", STEPS)  # the driver calls them in every batch
    calls = Counter({name_of(each): times for each in CERTAIN[where]})
    fault, raised, outcome = play(kind, spark, kafka, calls, number, STEPS)
    assert raised, f"LOWMARK_SEED={number}: {fault} was not reached: {outcome}"
    assert outcome.kind != "wrong", f"LOWMARK_SEED={number}: {fault}: {outcome}"


@pytest.mark.torture
def test_a_row_that_is_lost_is_seen(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that forgets the new split of one batch must lose a row in this world."""
    report, lost = StreamRun.report, list[int]()

    def deaf(self: StreamRun, progress: Progress, *rest: Any, **more: Any) -> Any:
        if not lost and progress.sources[0].num_input_rows == len(rows_of(0)):
            lost.append(progress.batch_id)
            self.last_batch_id = progress.batch_id
            return []
        return report(self, progress, *rest, **more)

    monkeypatch.setattr(StreamRun, "report", deaf)
    outcome = World("sketch", spark, tmp_path, steps=STEPS).play()
    assert outcome.kind == "wrong", outcome
    assert outcome.missing == {"n0": 1}, outcome


def test_a_low_watermark_that_stands_for_a_reason_that_nobody_names_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queried, "HOLDS_AFTER_ROUNDS", 2)
    monkeypatch.setattr(StreamRun, "report", lambda *_, **__: [])
    outcome = World("sketch", spark, tmp_path, causes=["MemoryError"], steps=1).play()
    assert outcome.kind == "wrong", outcome
    assert [wrong.partition(" names none of")[0] for wrong in outcome.wrong[:2]] == ["status", "check"], outcome
    assert "no metric tells" in outcome.wrong[2], outcome


@pytest.mark.torture
def test_a_low_watermark_that_holds_after_a_lost_report_is_named_by_status_check_and_metrics(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queried, "HOLDS_AFTER_ROUNDS", 2)
    monkeypatch.setattr(farewells, "lost_report", lambda _queries, _id, request, _left: request.resumes and 7)
    outcome = World("sketch", spark, tmp_path, cut_after=queried.STEPS - 1, grace_seconds=20).play()
    assert outcome.kind == "exact", outcome
    [said] = outcome.said
    assert "The report of batch 7 was lost" in said["status"], said
    assert "The report of batch 7 was lost" in said["check"], said
    assert said["metrics"] == "lowmark_lost_reports_total", said
