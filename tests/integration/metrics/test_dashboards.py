"""The dashboards and the alerts over queries that run: a real Prometheus, a real Alertmanager, a receiver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.watermark import WatermarkStrategy

from tests.integration.feed import ZERO_US, Feed, start, windows
from tests.servers.alertmanager import Notice, alertmanager, receiver
from tests.servers.dashboard import panel_queries
from tests.servers.local import ROOT, wait_until
from tests.servers.prometheus import prometheus_server
from tests.test_grafana import ALERTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALERT = "LowmarkSplitsPending"
SECOND_US = 1_000_000


@pytest.mark.slow
def test_every_query_of_overview_and_source_has_data_and_an_alert_is_told_and_taken_back(
    spark: SparkSession, feed: Feed, prometheus_binary: Path, tmp_path: Path
) -> None:
    """A wrapped stream with a split that stays silent for a while, and one that we read, in one alignment group."""
    rules = tmp_path / "alerts.yml"
    block = ALERTS[ALERTS.index(f"- alert: {ALERT}") :]
    rules.write_text(ALERTS.replace(block, block.replace("for: 10m", "for: 0m", 1)))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
    strategy = strategy.with_watermark_alignment(group="g", max_drift="1 hour")
    splits = tuple(SplitScript(f"made-{n}", rows_per_tick=5) for n in range(3))
    script = StreamScript(splits, start_us=ZERO_US, ticks=100_000, tick_us=SECOND_US, shuffle_us=SECOND_US)
    since_s = time.time()
    with (
        receiver() as told,
        alertmanager(tmp_path / "alertmanager", told) as at,
        LowWatermarkService(spark, metrics_port=0) as service,
        prometheus_server(tmp_path, [f"127.0.0.1:{service.metrics_port}"], [rules], alertmanagers=[at]) as prometheus,
    ):
        wrapped = service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=strategy, splits=["a", "mute"], detail=True
        )
        found = WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.99, at_least="0 seconds")
        found = found.with_watermark_alignment(group="g", max_drift="1 hour")
        made = service.read(GeneratorSource(script, seed=7, ticks_per_batch=5), name="made", strategy=found)
        feed.put(("a", 1, 100))
        orders = start(windows(wrapped, "split"), str(tmp_path / "orders"), name="orders by window")
        reading = start(made.select("split_id"), str(tmp_path / "made"), name="reading", mode="append")
        orders.settle()

        def heard(status: str) -> list[Notice]:
            return [notice for notice in told.of(ALERT, status) if notice["labels"]["stream"] == "orders"]

        fired = wait_until(lambda: heard("firing"), "the alert at the receiver", seconds=90)[0]
        assert fired["labels"]["severity"] == "warning"
        assert "`lowmark explain orders` names them" in fired["annotations"]["action"]
        page, _, heading = fired["annotations"]["runbook_url"].partition("#")
        assert f"\n### {ALERT}\n" in (ROOT / page).read_text(encoding="utf-8")
        assert heading == ALERT.lower()

        feed.put(("mute", 1, 101), ("a", 2, 102))
        orders.settle()
        feed.put(("mute", 1, 103), ("a", 2, 104))
        orders.settle()
        wait_until(lambda: heard("resolved"), "the alert is taken back", seconds=90)

        queries = panel_queries("overview", "source")
        assert len(queries) > 25

        def without_data() -> list[str]:
            return [query.at for query in queries if not query.values(prometheus, since_s)]

        try:
            wait_until(lambda: not without_data(), "data for every query", seconds=60)
        except TimeoutError as late:
            raise AssertionError(f"no data: {without_data()}") from late
        orders.query.stop()
        reading.query.stop()
