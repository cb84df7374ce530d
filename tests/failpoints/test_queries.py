"""A fault in any function of the driver loses no row of a query, and every standstill has a reported reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration.driver import farewells
from lowmark.integration.driver.stream_run import StreamRun

from tests.failpoints import queried
from tests.failpoints.queried import KINDS, World, rows_of
from tests.failpoints.run import calls_of, play

if TYPE_CHECKING:
    from lowmark.integration.spark.progress import Progress
    from pyspark.sql import SparkSession

    from tests.live.servers import Broker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIRST_SEED = 2_026
FAULTS = 1  # of each kind; for more, and for other seeds, run make failpoints


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_the_driver_costs_no_row(spark: SparkSession, kafka: Broker, kind: str) -> None:
    calls, first = calls_of(kind, spark, kafka), int(os.environ.get("LOWMARK_SEED", FIRST_SEED))
    for number in range(first, first + FAULTS):
        fault, raised, outcome = play(kind, spark, kafka, calls, number)
        assert outcome.kind != "wrong", f"LOWMARK_SEED={number}: {fault}: {outcome}"
        assert raised or outcome.kind == "exact", f"LOWMARK_SEED={number}: {fault} was not reached: {outcome}"


@pytest.mark.torture
def test_a_row_that_is_lost_is_seen(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that forgets the new split of one batch must lose a row in this world."""
    report, lost = StreamRun.report, list[int]()

    def deaf(self: StreamRun, progress: Progress, *rest: Any, **more: Any) -> Any:
        if not lost and progress.sources[0].num_input_rows == len(rows_of(4)):
            lost.append(progress.batch_id)
            self.last_batch_id = progress.batch_id
            return []
        return report(self, progress, *rest, **more)

    monkeypatch.setattr(StreamRun, "report", deaf)
    outcome = World("sketch", spark, tmp_path).play()
    assert outcome.kind == "wrong", outcome
    assert outcome.missing == {"n4": 1}, outcome


@pytest.mark.torture
def test_a_low_watermark_that_stands_for_a_reason_that_nobody_names_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamRun, "report", lambda *_, **__: [])
    outcome = World("sketch", spark, tmp_path, causes=["MemoryError"]).play()
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
