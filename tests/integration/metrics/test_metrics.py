"""Prometheus' view: of a fake service whose streams are real coordinators, and of queries that run."""

from __future__ import annotations

import copy
import dataclasses
import logging
import random
import socket
import subprocess
import threading
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import MetricsUnavailable, ServiceStopped
from lowmark.integration.metrics import collector as metrics
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.metrics.endpoint import MetricsServer
from lowmark.integration.metrics.exported import SPLIT_COUNTERS, SPLIT_GAUGES
from lowmark.integration.process.loop import Loop, LoopTimes
from lowmark.integration.run_status import Alignment, CoordinatorLink, ReportGaps, RunStatus
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.events import BatchCounts, BatchReported, SplitColumn, SplitsDiscovered, SplitsRemoved
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.tasks.cap import Cap
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import ZERO, Feed, start, windows
from tests.servers.local import http_get, no_thread_stays, port_open, wait_until
from tests.sparks import settings

SECOND_US = 1_000_000
ONE_ROW = BatchCounts(rows=1)
Labels = tuple[tuple[str, str], ...]


@dataclass
class FakeRun:
    """A run of one query, fed by hand."""

    token: str
    stream: str = "orders"
    query: str | None = "q"
    strategy: WatermarkStrategy = field(default_factory=WatermarkStrategy.for_monotonous_timestamps)
    failed: bool = False
    refused: bool = False
    ended: bool = False
    holder: str | None = None  # in place of the coordinator's own
    unmeasured: int = 0
    source_metrics: dict[str, float] = field(default_factory=dict)
    gaps: ReportGaps = field(default_factory=ReportGaps)
    alignment: Alignment | None = None
    link: CoordinatorLink | None = None
    batch_id: int = 0
    now_us: int = 1_000 * SECOND_US
    wall_ahead_us: int = 0
    late_rows: dict[str, int] | None = None

    def __post_init__(self) -> None:
        self.watermarks = SplitWatermarks(self.strategy, job_id="j", source_id=self.stream, task_id=self.token)

    def discover(self, *splits: str) -> None:
        self.watermarks.handle(SplitsDiscovered(splits), self.now_us)

    def report(self, watermarks_us: dict[str, int], counts: BatchCounts = ONE_ROW, **more: object) -> None:
        rows = dict.fromkeys(watermarks_us, 1)
        event = BatchReported(
            self.batch_id,
            self.now_us,
            watermarks_us,  # type: ignore[arg-type]  # str is a SplitId
            rows=rows,  # type: ignore[arg-type]
            counts=counts,
            **more,  # type: ignore[arg-type]
        )
        self.watermarks.handle(event, self.now_us)
        self.batch_id += 1
        self.now_us += SECOND_US

    def status(self, limit: int | None = None) -> RunStatus:
        status = self.watermarks.status(self.now_us, limit=limit, late_rows=self.late_rows)  # type: ignore[arg-type]
        return RunStatus(
            token=self.token,
            query=self.query,
            status=status if self.holder is None else dataclasses.replace(status, holder=self.holder),
            emits=self.strategy.emits,
            unmeasured_batches=self.unmeasured,
            refused=self.refused,
            failed=self.failed,
            ended=self.ended,
            asked_at_us=self.now_us,
            reported_at_us=self.now_us if self.batch_id else None,
            seen_at_us=self.now_us,
            source_metrics=self.source_metrics,
            late_reports=self.watermarks.late_reports,
            backlog_rows=self.watermarks.backlog_rows,
            spent_us={state.value: us for state, us in self.watermarks.spent_us(self.now_us).items()},
            gaps=self.gaps,
            alignment=self.alignment,
            coordinator=self.link,
            wall_ahead_us=self.wall_ahead_us,
        )


@dataclass
class FakeService:
    """Answers as the service does, without Spark."""

    runs: list[FakeRun] = field(default_factory=list)
    asked: int = 0
    fault: Exception | None = None
    limits: set[int | None] = field(default_factory=set)

    def run_statuses(
        self, *, without: Container[str] = (), seconds: float = 60.0, limit: int | None = None
    ) -> list[RunStatus]:
        self.asked += 1
        del seconds
        if self.fault is not None:
            raise self.fault
        self.limits.add(limit)
        return [run.status(limit) for run in self.runs if run.token not in without]

    def loop_times(self) -> LoopTimes:
        return LoopTimes(calls=7, busy_us=2_500_000, longest_us=1_500_000, waiting=3)


@dataclass
class Scraper:
    """One registry, scraped again and again."""

    collector: StreamCollector

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def samples(self) -> dict[tuple[str, Labels], float]:
        """(name, sorted labels) -> value, parsed by OpenMetrics' strict parser; no series may come twice."""
        found: dict[tuple[str, Labels], float] = {}
        text = generate_openmetrics(self.registry).decode()  # type: ignore[no-untyped-call]
        for family in parse_openmetrics(text):  # type: ignore[no-untyped-call]
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in found
                found[key] = sample.value
        return found

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """The series of a name that carry these labels."""
        wanted = set(labels.items())
        return {at: value for (n, at), value in self.samples().items() if n == name and wanted <= set(at)}

    def one(self, name: str, **labels: str) -> float | None:
        """The value of the only series, None if there is none."""
        found = self.of(name, **labels)
        assert len(found) <= 1, found
        return next(iter(found.values()), None)


def by_metric(seen: Scraper) -> dict[str, float]:
    """The counts of a source, by their own names."""
    return {dict(at)["metric"]: value for at, value in seen.of("lowmark_source").items()}


def scraper(*runs: FakeRun) -> Scraper:
    return Scraper(StreamCollector(FakeService(list(runs))))


def two_splits() -> FakeRun:
    run = FakeRun("t1")
    run.report({"a": 30 * SECOND_US, "b": 10 * SECOND_US}, backlog_rows={"a": 0, "b": 7})
    return run


# --- the exported series ---


def test_a_scrape_is_one_snapshot() -> None:
    service = FakeService([two_splits()])
    Scraper(StreamCollector(service)).text()
    assert service.asked == 1


def test_watermarks_are_unix_seconds_and_zero_is_one() -> None:
    run = FakeRun("t1")
    run.discover("a")
    seen = scraper(run)
    assert seen.one("lowmark_low_watermark_timestamp_seconds") is None
    assert seen.one("lowmark_split_watermark_timestamp_seconds") is None
    run.report({"a": 0})
    assert seen.one("lowmark_low_watermark_timestamp_seconds", stream="orders", query="q") == 0
    assert seen.one("lowmark_split_watermark_timestamp_seconds", split="a") == 0
    run.report({"a": 1_500_000})
    assert seen.one("lowmark_low_watermark_timestamp_seconds") == 1.5


def test_times_of_the_service_are_those_of_the_wall_clock_and_event_times_stay() -> None:
    link = CoordinatorLink("unix:/c.sock", connected=True, since_us=SECOND_US, why="", holds=True)
    alignment = Alignment("g", SECOND_US, Cap.up_to(SECOND_US), throttled=True)
    run = FakeRun("t1", link=link, alignment=alignment)
    run.report({"a": SECOND_US}, BatchCounts(rows=2, future_rows=1), future_rows={"a": 1}, newest_us=SECOND_US)
    run.report({"a": 2 * SECOND_US})
    seen = scraper(run)
    before = seen.samples()
    run.wall_ahead_us = 3_600 * SECOND_US
    after = seen.samples()
    moved = {name: after[name, at] - was for (name, at), was in before.items() if after[name, at] != was}
    times = {name for name, _ in before if name.endswith("_timestamp_seconds")}

    assert moved.pop("lowmark_collect_duration_seconds", 0) < 60
    assert set(moved.values()) == {3_600}
    assert times - moved.keys() == {
        "lowmark_low_watermark_timestamp_seconds",
        "lowmark_native_watermark_timestamp_seconds",
        "lowmark_fastest_watermark_timestamp_seconds",
        "lowmark_split_watermark_timestamp_seconds",
        "lowmark_alignment_cap_timestamp_seconds",
    }
    assert times >= moved.keys()
    assert len(moved) == 8


def test_a_watermark_before_1970_is_a_negative_number() -> None:
    run = FakeRun("t1")
    run.report({"a": -1_500_000})
    assert scraper(run).one("lowmark_low_watermark_timestamp_seconds") == -1.5


def test_every_state_is_there_with_0_as_well() -> None:
    run = two_splits()
    run.discover("c")
    states = {dict(at)["state"]: value for at, value in scraper(run).of("lowmark_splits").items()}
    assert states == {"pending": 1, "active": 2, "paused": 0, "idle": 0, "finished": 0}


def test_the_holder_is_one_series_with_its_state() -> None:
    run = two_splits()
    seen = scraper(run)
    assert seen.of("lowmark_holder_info") == {
        (("query", "q"), ("split", "b"), ("state", "active"), ("stream", "orders")): 1
    }
    run.discover("silent")
    assert [dict(at)["split"] for at in seen.of("lowmark_holder_info")] == ["silent"]


def test_counters_are_what_the_stream_counted() -> None:
    run = FakeRun("t1", unmeasured=9)
    counts = BatchCounts(
        rows=1, dropped_rows=2, future_rows=3, null_time_rows=4, null_split_rows=5, before_epoch_rows=6
    )
    run.report({"a": 100 * SECOND_US, "b": 100 * SECOND_US}, counts)
    run.report({}, BatchCounts())  # native Spark judges the next batch by the batch before the last
    run.report({"a": 50 * SECOND_US}, counts, first_us={"a": 50 * SECOND_US}, in_force_us=60 * SECOND_US)
    seen = {
        name: value for (name, at), value in scraper(run).samples().items() if dict(at).keys() == {"stream", "query"}
    }
    assert {name: seen[name] for name in seen if name.endswith("_total")} == {
        "lowmark_rows_total": 2,
        "lowmark_dropped_rows_total": 4,
        "lowmark_late_reports_total": 1,
        "lowmark_future_rows_total": 6,
        "lowmark_null_time_rows_total": 8,
        "lowmark_null_split_rows_total": 10,
        "lowmark_before_epoch_rows_total": 12,
        "lowmark_batches_total": 3,
        "lowmark_unmeasured_batches_total": 9,
        "lowmark_lost_reports_total": 0,
        "lowmark_missed_batches_total": 0,
        "lowmark_returned_late_total": 0,
        "lowmark_regressions_total": 1,
        "lowmark_native_late_rows_total": 1,
    }


def test_of_many_wrong_clocks_the_ten_with_most_rows_are_shown_as_the_help_says() -> None:
    run = two_splits()
    run.report({"a": 200 * SECOND_US}, future_rows={f"c{n:02}": n for n in range(1, 13)}, newest_us=10**16)
    seen = scraper(run)

    shown = {dict(at)["split"]: value for at, value in seen.of("lowmark_wrong_clock_rows").items()}
    assert shown == {f"c{n:02}": n for n in range(3, 13)}
    assert "the ten splits with most of them" in seen.text()


def test_what_a_source_counts_is_shown_by_its_own_names() -> None:
    run = FakeRun("t1", source_metrics={"discoveries": 3, "lost_offsets": 7})
    assert by_metric(scraper(run)) == {"discoveries": 3, "lost_offsets": 7}


def test_time_in_each_state_is_added_up_over_the_splits_and_over_restarts_of_the_query() -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy().with_idleness("10 seconds", clock="time"))
    run.discover("a", "b", "mute")
    run.now_us += 5 * SECOND_US
    run.report({"a": 1, "b": 1})
    run.now_us += 59 * SECOND_US  # a minute since the report
    run.report({"a": 2})
    service = FakeService([run])
    seen = Scraper(StreamCollector(service))

    def spent() -> dict[str, float]:
        found = seen.of("lowmark_state_seconds_total")
        return {dict(at)["state"]: value for at, value in found.items() if value}

    run.now_us -= SECOND_US  # of the last report
    assert spent() == {"pending": 3 * 5 + 60, "active": 2 * 60}
    run.now_us += 10 * SECOND_US
    assert spent() == {"pending": 75, "active": 120 + 10, "idle": 2 * 10}
    run.ended = True
    assert spent() == {"pending": 75, "active": 130, "idle": 20}
    service.runs.append(FakeRun("t2", strategy=run.strategy))
    service.runs[-1].discover("a")
    service.runs[-1].now_us += 7 * SECOND_US
    assert spent() == {"pending": 75 + 7, "active": 130, "idle": 20}


def test_the_gaps_between_reports_are_a_histogram_and_missed_batches_a_count() -> None:
    gaps = ReportGaps()
    for seconds, missed in ((0.5, 0), (1, 0), (30, 2), (7_200, 0)):
        gaps = gaps.longer(round(seconds * SECOND_US), missed_batches=missed)
    run = FakeRun("t1", gaps=gaps)
    seen = scraper(run)
    buckets = {dict(at)["le"]: value for at, value in seen.of("lowmark_report_gap_seconds_bucket").items()}
    assert buckets == {
        "1.0": 2, "5.0": 2, "15.0": 2, "60.0": 3, "300.0": 3, "900.0": 3, "3600.0": 3, "+Inf": 4,
    }  # fmt: skip
    assert seen.one("lowmark_report_gap_seconds_count") == 4
    assert seen.one("lowmark_report_gap_seconds_sum") == 7_231.5
    assert seen.one("lowmark_missed_batches_total") == 2


def test_a_stream_in_an_alignment_group_shows_its_cap_and_its_drift() -> None:
    at = Alignment("g", 30 * SECOND_US, Cap.up_to(130 * SECOND_US), True, 100 * SECOND_US, 20 * SECOND_US, waiting=True)
    seen = scraper(FakeRun("t1", alignment=at), FakeRun("t2", query="other"))
    values = {name: value for (name, _), value in seen.samples().items() if name.startswith("lowmark_alignment_")}
    assert values == {
        "lowmark_alignment_cap_timestamp_seconds": 130,
        "lowmark_alignment_drift_seconds": 20,
        "lowmark_alignment_max_drift_seconds": 30,
        "lowmark_alignment_waiting": 1,
    }
    assert seen.one("lowmark_alignment_waiting", group="g", query="q") == 1
    held = Alignment("g", 30 * SECOND_US, Cap.hold(), False, kept_at="unix:/c.sock")
    seen = scraper(FakeRun("t1", alignment=held))
    assert seen.one("lowmark_alignment_cap_timestamp_seconds") is None
    assert seen.one("lowmark_alignment_drift_seconds") is None


def test_a_split_whose_clock_is_wrong_is_named_with_its_rows_and_since_when() -> None:
    run = two_splits()
    run.report({"a": 200 * SECOND_US}, future_rows={"b": 7}, newest_us=10**16)
    run.report({"a": 201 * SECOND_US}, future_rows={"b": 5}, newest_us=10**16)
    seen = scraper(run)

    assert seen.one("lowmark_wrong_clock_rows", split="b") == 12
    assert seen.one("lowmark_wrong_clock_since_timestamp_seconds", split="b") == 1_001
    assert seen.one("lowmark_wrong_clock_last_timestamp_seconds", split="b") == 1_002
    assert seen.of("lowmark_cause_info") == {
        (("cause", "wrong clock"), ("query", "q"), ("split", "b"), ("stream", "orders")): 1
    }
    assert (seen.one("lowmark_native_watermark_timestamp_seconds") or 0) > 9.9e9, "native Spark has no guard"
    assert seen.one("lowmark_fastest_watermark_timestamp_seconds") == 201


def test_a_coordinator_that_is_away_is_a_0_and_one_that_is_none_is_absent() -> None:
    link = CoordinatorLink("unix:/c.sock", False, 900 * SECOND_US, "gone", holds=True)
    seen = scraper(FakeRun("t1", link=link), FakeRun("t2", query="other"))

    assert [at for at, _ in seen.of("lowmark_coordinator_connected").items()] == [
        (("query", "q"), ("stream", "orders"))
    ]
    assert seen.one("lowmark_coordinator_connected") == 0
    assert seen.one("lowmark_coordinator_changed_timestamp_seconds") == 900


def test_the_loop_says_how_busy_it_is() -> None:
    seen = scraper(two_splits())
    assert seen.one("lowmark_loop_calls_total") == 7
    assert seen.one("lowmark_loop_busy_seconds_total") == 2.5
    assert seen.one("lowmark_loop_longest_call_seconds") == 1.5
    assert seen.one("lowmark_loop_waiting_calls") == 3


def test_a_loop_that_hangs_is_seen_from_outside() -> None:
    loop, free = Loop("test"), threading.Event()
    loop.call(lambda: None, "do nothing", seconds=10)
    loop.post(free.wait)
    loop.post(lambda: None)
    wait_until(lambda: loop.times.waiting == 1, "the first call has begun")
    assert loop.times.calls == 1
    free.set()
    loop.stop()
    assert (loop.times.calls, loop.times.waiting) == (3, 0)
    assert loop.times.longest_us <= loop.times.busy_us


def test_a_late_return_is_counted() -> None:
    run = FakeRun("t1")
    run.report({"a": 100 * SECOND_US})
    run.report({"new": 50 * SECOND_US})
    assert scraper(run).one("lowmark_returned_late_total") == 1


def test_what_is_known_of_each_split() -> None:
    seen = scraper(two_splits())
    values = {(n, dict(at)["split"]): v for (n, at), v in seen.samples().items() if n.startswith("lowmark_split_")}
    assert values == {
        ("lowmark_split_watermark_timestamp_seconds", "a"): 30,
        ("lowmark_split_watermark_timestamp_seconds", "b"): 10,
        ("lowmark_split_live", "a"): 1,
        ("lowmark_split_live", "b"): 1,
        ("lowmark_split_lagging", "a"): 0,
        ("lowmark_split_lagging", "b"): 0,
        ("lowmark_split_backlog_rows", "a"): 0,
        ("lowmark_split_backlog_rows", "b"): 7,
        ("lowmark_split_last_report_timestamp_seconds", "a"): 1_000,
        ("lowmark_split_last_report_timestamp_seconds", "b"): 1_000,
        ("lowmark_split_rows_total", "a"): 1,
        ("lowmark_split_rows_total", "b"): 1,
        ("lowmark_split_late_reports_total", "a"): 0,
        ("lowmark_split_late_reports_total", "b"): 0,
        ("lowmark_split_native_late_rows_total", "a"): 0,
        ("lowmark_split_native_late_rows_total", "b"): 0,
        ("lowmark_split_beyond_bound_total", "a"): 0,
        ("lowmark_split_beyond_bound_total", "b"): 0,
    }
    assert seen.one("lowmark_backlog_rows") == 7


def test_each_metric_of_a_split_is_shown_where_its_number_is_known() -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy.for_adaptive_out_of_orderness(), late_rows={"b": 3})
    run.report({"a": 30 * SECOND_US, "b": 10 * SECOND_US}, backlog_rows={"a": 0, "b": 7})
    seen = scraper(run)
    shown = {name.removesuffix("_total") for name, at in seen.samples() if dict(at).get("split") == "b"}
    assert shown >= {metric.name for metric in (*SPLIT_GAUGES, *SPLIT_COUNTERS)}
    assert [seen.one("lowmark_split_late_rows", split=split) for split in "ab"] == [0, 3]
    bound_us = run.status().status.splits["b"].bound_us
    assert bound_us is not None
    assert seen.one("lowmark_split_bound_seconds", split="b") == bound_us / SECOND_US


def test_rows_that_nobody_counts_by_split_are_absent_not_0() -> None:
    run = FakeRun("t1")
    run.watermarks.handle(BatchReported(0, run.now_us, {"a": 1}, counts=BatchCounts(rows=7)), run.now_us)
    seen = scraper(run)
    assert not [name for name, _ in seen.samples() if name == "lowmark_split_rows_total"]
    assert (seen.one("lowmark_rows_total"), seen.one("lowmark_split_late_reports_total", split="a")) == (7, 0)


def test_an_unknown_backlog_is_absent_not_0() -> None:
    run = FakeRun("t1")
    run.report({"a": 1})
    assert scraper(run).one("lowmark_backlog_rows") is None
    assert scraper(run).one("lowmark_split_backlog_rows") is None


def test_a_split_that_lags_and_one_that_is_idle_can_be_told_from_the_others() -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy().with_idleness("10 seconds", clock="time"))
    run.report({"a": SECOND_US, "lags": SECOND_US, "idle": SECOND_US}, backlog_rows={"lags": 5})
    run.now_us += 60 * SECOND_US
    run.report({"a": 2 * SECOND_US}, backlog_rows={"lags": 5})
    seen = scraper(run)
    assert seen.one("lowmark_split_lagging", split="lags") == 1
    assert seen.one("lowmark_split_live", split="lags") == 1
    assert seen.one("lowmark_split_live", split="idle") == 0
    assert seen.one("lowmark_split_lagging", split="idle") == 0


def test_a_stream_without_watermarks_cannot_be_stuck() -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy.no_watermarks())
    run.discover("a")
    assert scraper(run).one("lowmark_low_watermark_moved_timestamp_seconds") is None
    assert scraper(two_splits()).one("lowmark_low_watermark_moved_timestamp_seconds") == 1_000


def test_names_follow_the_conventions(tmp_path: Path) -> None:
    run = two_splits()
    families = list(scraper(run).registry.collect())
    assert all(family.name.startswith("lowmark_") for family in families)
    assert all(family.documentation.endswith((".", ").")) for family in families)
    for family in families:
        assert not any(word in family.name for word in ("_age", "_ms", "_us_", "_millis", "_micros")), family.name
        if "timestamp" in family.name:
            assert family.name.endswith("_timestamp_seconds")


def test_promtool_finds_nothing_to_complain_of(promtool_binary: Path) -> None:
    done = subprocess.run(
        [promtool_binary, "check", "metrics"],
        input=scraper(two_splits()).text(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- bounds ---


def many_splits(count: int) -> FakeRun:
    run = FakeRun("t1")
    run.report({f"s{n:04}": (1_000 + n) * SECOND_US for n in range(count)})
    return run


def test_a_hundred_splits_are_all_shown() -> None:
    seen = scraper(many_splits(100))
    assert len(seen.of("lowmark_split_watermark_timestamp_seconds")) == 100
    assert seen.one("lowmark_splits_not_shown") == 0


def test_of_more_splits_only_those_furthest_behind_are_shown() -> None:
    seen = scraper(many_splits(101))
    shown = sorted(dict(at)["split"] for at in seen.of("lowmark_split_watermark_timestamp_seconds"))
    assert shown == [f"s{n:04}" for n in range(10)]
    assert seen.one("lowmark_splits_not_shown") == 91
    assert seen.one("lowmark_splits", state="active") == 101


def test_the_silent_come_before_the_slow() -> None:
    run = many_splits(101)
    run.report({"before 1970": -1})
    silent = [f"z{n}" for n in range(10)]
    run.discover(*silent)
    seen = scraper(run)
    assert {dict(at)["split"] for at in seen.of("lowmark_split_live")} == {*silent}
    assert seen.one("lowmark_splits_not_shown") == 102


def test_the_holder_is_shown_even_among_many_that_are_no_better() -> None:
    run = many_splits(101)
    run.holder = "s0050"
    seen = scraper(run)
    first = {f"s{n:04}" for n in range(10)}
    assert {dict(at)["split"] for at in seen.of("lowmark_split_live")} == {*first, "s0050"}
    assert seen.one("lowmark_splits_not_shown") == 90


def test_an_idle_split_far_behind_is_no_laggard() -> None:
    run = FakeRun("t1", strategy=WatermarkStrategy().with_idleness("10 seconds", clock="time"))
    others = {f"s{n:03}": n * SECOND_US for n in range(1, 101)}
    run.report({"idle": 0, **others})
    run.now_us += 60 * SECOND_US
    run.report(others)
    shown = scraper(run).of("lowmark_split_live")
    assert {dict(at)["split"] for at in shown} == {*[*others][:10]}


def test_half_a_surrogate_pair_in_a_name_does_not_fail_the_scrape() -> None:
    run = FakeRun("t1", query="q\udc80")
    run.report({'a\ud800"\n': 1})
    assert 'split="a\\\\ud800\\"\\n"' in scraper(run).text()


HOSTILE = (
    "<img src=x onerror=alert(1)>", "\"} 1\nlowmark_up 0\n# HELP", "back\\slash\\n", "tab\tline\nesc\x1b[2J",
    "cart 🛒", "long " * 2_000, "\u202eright to left", "{{ template }}", "",
)  # fmt: skip


def test_hostile_names_are_labels_and_nothing_else(promtool_binary: Path) -> None:
    run = FakeRun("t1", stream=HOSTILE[1], query=HOSTILE[5])
    run.report({name: (100 + n) * SECOND_US for n, name in enumerate(HOSTILE)})
    made = scraper(run)
    told = made.of("lowmark_split_watermark_timestamp_seconds")
    assert {dict(labels)["split"] for labels in told} == set(HOSTILE)
    assert {(dict(labels)["stream"], dict(labels)["query"]) for labels in told} == {(HOSTILE[1], HOSTILE[5])}
    assert made.of("lowmark_up") == {}
    done = subprocess.run(
        [promtool_binary, "check", "metrics"], input=made.text(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- the life of a query ---


def test_an_ended_query_keeps_its_counters_and_loses_what_is_now() -> None:
    run = two_splits()
    seen = scraper(run)
    before = {name for name, at in seen.samples() if ("stream", "orders") in at}
    run.report({"a": 40 * SECOND_US}, BatchCounts(rows=3, dropped_rows=2))  # no scrape before it ends
    run.ended = True
    for _ in range(2):  # added up once
        after = seen.samples()
        assert {name for name, at in after if ("stream", "orders") in at} == {
            name
            for name in before
            if name.startswith("lowmark_report_gap_")
            or (name.endswith("_total") and not name.startswith("lowmark_split_"))
        } | {"lowmark_query_running", "lowmark_query_failed", "lowmark_query_refused"}
        assert seen.one("lowmark_dropped_rows_total") == 2
        assert seen.one("lowmark_query_running") == 0


def test_a_query_that_is_started_again_goes_on_counting() -> None:
    first = two_splits()
    service = FakeService([first])
    seen = Scraper(StreamCollector(service))
    first.ended = True
    second = FakeRun("t2")
    second.report({"a": 50 * SECOND_US}, BatchCounts(rows=5))
    service.runs.append(second)
    assert seen.one("lowmark_rows_total") == 1 + 5
    assert seen.one("lowmark_split_rows_total", split="a") == 2
    assert seen.one("lowmark_query_running") == 1


def test_a_run_that_a_service_remembers_for_long_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_TOKENS_KEPT", 1)
    (service := FakeService([two_splits()])).runs[0].ended = True
    seen = Scraper(StreamCollector(service))
    for n in range(3):
        service.runs[1:] = [FakeRun(f"o{n}", query="often", ended=True)]
        assert seen.one("lowmark_rows_total", query="q") == 1


def test_losses_of_a_run_that_ended_before_a_scrape_are_seen_and_go_on_with_the_next_run() -> None:
    """A run with AvailableNow may be shorter than the time between two scrapes, and the loss is critical."""
    first = FakeRun("t1", source_metrics={"data_losses": 2, "discoveries": 3}, ended=True)
    service = FakeService([first])
    seen = Scraper(StreamCollector(service))
    assert by_metric(seen) == {"data_losses": 2}
    service.runs.append(FakeRun("t2", source_metrics={"discoveries": 1}))
    assert by_metric(seen) == {"data_losses": 2, "discoveries": 1}
    service.runs[-1] = FakeRun("t2", source_metrics={"data_losses": 1, "discoveries": 2})
    assert by_metric(seen) == {"data_losses": 3, "discoveries": 2}
    service.runs[-1] = FakeRun("t2", source_metrics={"data_losses": 1, "discoveries": 2}, ended=True)
    assert by_metric(seen) == {"data_losses": 3}


@pytest.mark.slow
def test_no_counter_goes_down_whatever_happens_to_queries() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        service = FakeService()
        seen, last = Scraper(StreamCollector(service)), dict[tuple[str, Labels], float]()
        for step in range(60):
            match chance.choice(["start", "end", "report", "report", "scrape"]):
                case "start":
                    service.runs.append(FakeRun(f"t{step}", query=chance.choice(["q1", "q2"])))
                case "end" if service.runs:
                    chance.choice(service.runs).ended = True
                case "report":
                    live = [run for run in service.runs if not run.ended]
                    for run in live[:1]:
                        run.report({"a": chance.choice([-1, 0, 1, step])}, BatchCounts(rows=chance.randrange(3)))
                case _:
                    now = {at: v for at, v in seen.samples().items() if at[0].endswith("_total")}
                    gone = {at for at in last.keys() - now.keys() if not at[0].startswith("lowmark_split_")}
                    fell = {at for at in last.keys() & now.keys() if now[at] < last[at]}
                    assert not gone | fell, f"seed {seed}, step {step}: gone {gone}, fell {fell}"
                    last |= now
        assert last, f"seed {seed} scraped nothing"


@pytest.mark.parametrize("together", [False, True])
def test_no_counter_goes_down_when_splits_are_forgotten(together: bool) -> None:
    """A source of files forgets finished splits; their late rows still count."""
    run = FakeRun("t1")
    seen = Scraper(StreamCollector(FakeService([run])))
    splits = np.array([1, 2], np.uint64)
    for at_seconds in (3, 2, 1, 4):
        column = SplitColumn(splits, np.array([at_seconds, at_seconds], np.int64) * SECOND_US)
        marks: Any = column if together else dict(column)
        run.report(marks)
    assert seen.one("lowmark_late_reports_total") == 4
    before = {at: value for at, value in seen.samples().items() if at[0].endswith("_total") and "split_" not in at[0]}
    run.watermarks.handle(SplitsRemoved((1,)), run.now_us)
    now = seen.samples()
    assert {at: now[at] for at in before} == before


def test_of_splits_that_are_gone_nothing_is_kept() -> None:
    """A source of files has other splits in every run."""
    service = FakeService()
    collector = StreamCollector(service)
    for number in range(5):
        run = FakeRun(f"run-{number}")
        names = ["kept", *(f"{number}/{each}" for each in range(300))]
        run.report(dict.fromkeys(names, number))
        service.runs = [run]
        list(collector.collect())
        run.ended = True
        list(collector.collect())
    (past,) = collector._past.values()

    assert len(past.splits) == 301
    assert past.splits["kept"]["lowmark_split_rows"] == 5, "rows of the five runs"


def test_of_very_many_splits_the_loop_is_asked_for_some_and_all_are_counted() -> None:
    run = FakeRun("run", strategy=WatermarkStrategy.for_monotonous_timestamps().with_percentile(10))
    splits = metrics._SPLITS_ASKED + 500
    run.report({f"{each:04}": each * SECOND_US for each in range(splits)}, backlog_rows={"0000": 5, "1499": 2})
    service = FakeService([run])
    seen = Scraper(StreamCollector(service))

    assert len(service.run_statuses(limit=metrics._SPLITS_ASKED)[0].status.splits) == metrics._SPLITS_ASKED
    assert seen.one("lowmark_splits_not_shown") == splits - 11, "the holder is not one of the ten furthest behind"
    assert seen.of("lowmark_holder_info", split="1350") != {}
    assert seen.one("lowmark_backlog_rows") == 7
    assert service.limits == {metrics._SPLITS_ASKED}


def test_of_very_many_splits_some_are_kept() -> None:
    run = FakeRun("run", ended=True)
    run.report({str(each): 1 for each in range(metrics._SPLITS_ASKED + 100)})
    collector = StreamCollector(FakeService([run]))
    list(collector.collect())

    assert len(collector._past["orders", "q"].splits) == metrics._SPLITS_ASKED


def test_a_failed_query_stays_visible_until_it_runs_again() -> None:
    run = two_splits()
    service = FakeService([run])
    seen = Scraper(StreamCollector(service))
    assert seen.one("lowmark_query_failed") == 0
    run.ended = run.failed = True
    assert [seen.one("lowmark_query_failed") for _ in range(3)] == [1, 1, 1]
    service.runs.append(FakeRun("t2"))
    assert seen.one("lowmark_query_failed") == 0


def test_a_refusal_is_visible_before_and_after_the_end() -> None:
    run = two_splits()
    seen = scraper(run)
    run.refused = True
    assert seen.one("lowmark_query_refused") == 1
    run.ended = run.failed = True
    assert seen.one("lowmark_query_refused") == 1


def test_two_sessions_with_a_query_of_the_same_name_give_one_series() -> None:
    ahead, behind = two_splits(), FakeRun("t2")
    behind.report({"a": 5 * SECOND_US}, BatchCounts(rows=4))
    for runs in ([ahead, behind], [behind, ahead]):
        seen = scraper(*runs)
        assert seen.one("lowmark_rows_total") == 5
        assert seen.one("lowmark_low_watermark_timestamp_seconds") == 5


def test_a_stream_in_two_queries_has_two_series() -> None:
    seen = scraper(two_splits(), FakeRun("t2", query="other"))
    assert len(seen.of("lowmark_rows_total")) == 2


def test_of_queries_that_ended_the_last_hundred_stay() -> None:
    runs = [FakeRun(f"t{n}", query=f"q{n:03}", ended=True) for n in range(103)] + [FakeRun("live", query="live")]
    queries = [dict(at)["query"] for at in scraper(*runs).of("lowmark_query_running")]
    assert queries == ["live"] + [f"q{n:03}" for n in range(3, 103)]


@pytest.mark.slow
def test_a_query_that_runs_again_keeps_its_past_however_many_others_end() -> None:
    first, second = two_splits(), FakeRun("t2")
    first.ended = True
    service = FakeService([first, second])
    seen = Scraper(StreamCollector(service))
    assert seen.one("lowmark_rows_total", query="q") == 1
    service.runs += [FakeRun(f"e{n}", query=f"q{n:03}", ended=True) for n in range(103)]
    assert [seen.one("lowmark_rows_total", query="q") for _ in range(2)] == [1, 1]


# --- failed collections ---


@pytest.mark.parametrize(("fault", "told"), [(TimeoutError("the loop is busy"), 1), (ServiceStopped("status"), 0)])
def test_a_failed_collection_gives_no_old_values_and_is_counted(
    caplog: pytest.LogCaptureFixture, fault: Exception, told: int
) -> None:
    service = FakeService([two_splits()])
    seen = Scraper(StreamCollector(service))
    assert seen.one("lowmark_collect_errors_total") == 0
    service.fault = fault
    with caplog.at_level(logging.ERROR, "lowmark"):
        assert seen.one("lowmark_collect_errors_total") == 1
        names = {name for name, _ in seen.samples()}
    assert {name for name in names if not name.startswith("lowmark_loop_")} == {
        "lowmark_service_info",
        "lowmark_collect_duration_seconds",
        "lowmark_collect_errors_total",
    }
    assert len(names) == 3 + 5  # a loop that does not answer still has its busy time
    assert len(caplog.records) == told, "a fault is told once for both, and a service that was stopped has none"
    service.fault = None
    assert seen.one("lowmark_collect_errors_total") == 2
    assert seen.one("lowmark_rows_total") == 1


# --- HTTP ---


def test_http_serves_both_text_formats_on_a_free_port() -> None:
    server = MetricsServer(FakeService([two_splits()]), port=0)
    try:
        status, text = http_get(f"http://127.0.0.1:{server.port}/metrics")
        assert status == 200
        assert 'lowmark_low_watermark_timestamp_seconds{query="q",stream="orders"} 10.0' in text
    finally:
        server.stop()


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MetricsUnavailable) as caught:
            MetricsServer(FakeService(), port=port)
    assert str(caught.value) == (
        f"cannot serve metrics on port {port} of 127.0.0.1: another process, or another service of this process, "
        "listens there already. Hint: pass metrics_port=0 for any free port (service.metrics_port tells which), "
        "another metrics_port or metrics_host, or metrics_port=None for no endpoint."
    )
    assert isinstance(caught.value, OSError)
    assert str(copy.copy(caught.value)) == str(caught.value)


def test_an_address_of_another_host_is_a_clear_error() -> None:
    with pytest.raises(MetricsUnavailable, match=r"on port 0 of 192\.0\.2\.1: Cannot assign requested address\. Hint"):
        MetricsServer(FakeService(), host="192.0.2.1", port=0)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_can_be_no_name_is_a_clear_error(host: str) -> None:
    with pytest.raises(MetricsUnavailable, match=rf"on port 0 of {host}: the host is not known \("):
        MetricsServer(FakeService(), host=host)


@pytest.mark.parametrize("port", [-1, 65_536, "9464", 1.5])
def test_a_port_that_is_none_is_a_clear_error(port: object) -> None:
    with pytest.raises(ValueError, match="expected a number from 0 to 65535"):
        MetricsServer(FakeService(), port=port)  # type: ignore[arg-type]


def test_scrapes_at_the_same_time_each_see_a_whole() -> None:
    runs = [many_splits(50)]
    server = MetricsServer(FakeService(runs), port=0)
    threads = threading.active_count()
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(http_get, [f"http://127.0.0.1:{server.port}/metrics"] * 40))
    finally:
        server.stop()
    assert {status for status, _ in answers} == {200}
    assert {text.count("lowmark_split_live{") for _, text in answers} == {50}
    assert threading.active_count() < threads


# --- with Spark ---

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")


def _wrapped(service: LowWatermarkService, feed: Feed) -> DataFrame:
    return service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"], detail=True
    )


def test_a_running_query_is_what_its_progress_says_and_its_end_is_seen(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    seen, df = Scraper(StreamCollector(service)), _wrapped(service, feed)
    feed.put(("fast", 1, 500), ("slow", 1, 20), ("slow", 1, None))
    ran = start(windows(df, "split"), checkpoint)
    ran.settle()
    feed.put(("fast", 1, 510), ("slow", 1, 30))
    ran.settle()

    assert seen.one("lowmark_low_watermark_timestamp_seconds") == ZERO.timestamp() + 30 - 10 - 0.001
    assert seen.one("lowmark_rows_total") == 5
    assert seen.one("lowmark_null_time_rows_total") == 1
    assert seen.one("lowmark_dropped_rows_total") == ran.dropped
    assert seen.one("lowmark_split_rows_total", split="fast") == 2
    assert [dict(at)["split"] for at in seen.of("lowmark_holder_info")] == ["slow"]
    assert seen.one("lowmark_query_running", query=ran.query.id) == 1

    feed.put(("fast", 1, 520))
    ran.settle()  # no scrape before the end
    ran.query.stop()
    wait_until(lambda: seen.one("lowmark_query_running") == 0, "the end of the query", seconds=20)
    assert seen.one("lowmark_query_failed") == 0
    assert seen.one("lowmark_rows_total") == 6
    assert seen.one("lowmark_low_watermark_timestamp_seconds") is None

    feed.put(("slow", 1, 40))
    again = start(windows(df, "split"), checkpoint)
    again.settle()
    assert seen.one("lowmark_query_running") == 1
    assert seen.one("lowmark_rows_total") == 7


def test_a_query_that_fails_is_seen(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    seen = Scraper(StreamCollector(service))
    feed.put(("fast", 1, 500), ("slow", 1, 20))
    ran = start(
        _wrapped(service, feed).select(F.expr("v + int(assert_true(v < 5) is null)")), checkpoint, name="fragile"
    )
    ran.settle()
    feed.put(("fast", 9, 500))
    with pytest.raises(StreamingQueryException):
        ran.settle()
    wait_until(lambda: seen.one("lowmark_query_running") == 0, "the end of the query", seconds=20)
    assert seen.one("lowmark_query_failed", query="fragile") == 1


def test_a_query_that_fails_in_its_first_batch_is_seen(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """Spark never reported a batch of the query, so only the report of its end identifies the run."""
    seen = Scraper(StreamCollector(service))
    feed.put(("fast", 9, 500))
    ran = start(_wrapped(service, feed).select(F.expr("v + int(assert_true(v < 5) is null)")), checkpoint, name="never")
    with pytest.raises(StreamingQueryException):
        ran.settle()
    wait_until(lambda: seen.one("lowmark_query_failed", query="never") == 1, "the failure", seconds=20)
    assert seen.one("lowmark_query_running", query="never") == 0
    assert set(seen.of("lowmark_query_running").values()) == {0}, "also that of the time before its name was known"


def test_a_query_without_data_gives_signs_of_life(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    seen = Scraper(StreamCollector(service))
    with settings(spark, {"spark.sql.streaming.noDataProgressEventInterval": "50ms"}):
        feed.put(("fast", 1, 500), ("slow", 1, 20))
        ran = start(windows(_wrapped(service, feed)), checkpoint)
        ran.settle()
        reported = seen.one("lowmark_last_report_timestamp_seconds")
        assert reported is not None
        wait_until(
            lambda: (seen.one("lowmark_last_seen_timestamp_seconds") or 0) > reported + 0.2, "signs of life", seconds=20
        )
        assert seen.one("lowmark_last_report_timestamp_seconds") == reported


def test_a_loop_that_is_busy_does_not_make_the_scrape_wait(service: LowWatermarkService) -> None:
    free = threading.Event()
    service._loop.post(free.wait)
    try:
        with pytest.raises(
            TimeoutError, match=r"cannot give the status of all runs: the service's loop is busy, tried for 0\.05 s"
        ):
            service.run_statuses(seconds=0.05)
    finally:
        free.set()
    assert service.run_statuses(seconds=10) == []


def test_a_service_whose_metrics_port_is_taken_leaves_nothing_behind(spark: SparkSession) -> None:
    with no_thread_stays("lowmark"), socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(MetricsUnavailable):
            LowWatermarkService(spark, metrics_port=other.getsockname()[1])


def test_the_service_tells_its_port_and_frees_it(spark: SparkSession) -> None:
    with LowWatermarkService(spark, metrics_port=0) as service:
        assert service.metrics_port is not None
        status, text = http_get(f"http://127.0.0.1:{service.metrics_port}/metrics")
        assert (status, "lowmark_service_info" in text) == (200, True)
    assert not port_open(service.metrics_port)


def test_a_query_that_fails_before_it_asks_anything_is_seen_by_its_name(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """Its checkpoint cannot be read, so Spark ends the query before it asks a heartbeat or a source for an offset."""
    seen = Scraper(StreamCollector(service))
    for folder in ("offsets", "commits"):
        (Path(checkpoint) / folder).mkdir(parents=True)
    (Path(checkpoint) / "metadata").write_text('{"id":"6f1ed5a1-6a5c-4e5b-9f83-5c06f4ff7b3e"}')
    (Path(checkpoint) / "offsets" / "0").write_text("v1")
    feed.put(("fast", 1, 500))
    wrapped, free = _wrapped(service, feed), threading.Event()
    service._loop.post(free.wait)  # the loop takes the event of the start only after the query has ended
    try:
        ran = start(wrapped, checkpoint, name="broken")
        with pytest.raises(StreamingQueryException):
            ran.settle()
    finally:
        free.set()
    wait_until(lambda: seen.one("lowmark_query_failed", query="broken") == 1, "the failure", seconds=20)
    [shown] = [run for run in service.run_statuses() if run.query == "broken"]
    assert shown.status.why.startswith("the query failed: ")
