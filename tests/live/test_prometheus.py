"""A real Prometheus scrapes a query on a real broker; the dashboard's every query has data, and the rules work.

The topic has a partition that is behind, one a year ahead and one without a row, so that every panel has something to
show. The query runs through the whole module: a scrape costs a second, a session and a broker cost much more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.live.servers import ROOT, Broker, Prometheus, Record, prometheus_server, wait_until
from tests.test_grafana import DASHBOARD, alerts, panels, variables

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]

ALERT_FILE = ROOT / "grafana" / "alerts.yml"
STREAM, QUERY = "orders", "windows"
YEAR_MS = 365 * 86_400_000
MINUTE_MS = 60_000


@dataclass
class Watched:
    """A running query, its service, and the Prometheus that scrapes it."""

    service: LowWatermarkService
    prometheus: Prometheus
    started_ms: int

    def value(self, expression: str) -> float | None:
        """The only sample of an expression, None if it has none."""
        samples = self.prometheus.query(expression)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else None


@pytest.fixture(scope="module")
def watched(
    spark: SparkSession, kafka: Broker, prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    topic, now_ms = kafka.create_topic(partitions=4), int(time.time() * 1_000)
    kafka.produce(topic, [Record("fast", 0, timestamp_ms=now_ms - n) for n in range(50)])
    kafka.produce(topic, [Record("slow", 1, timestamp_ms=now_ms - 10 * MINUTE_MS - n) for n in range(5)])
    kafka.produce(topic, [Record("ahead", 2, timestamp_ms=now_ms - 1), Record("far", 2, timestamp_ms=now_ms + YEAR_MS)])
    source = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    )
    # Partition 3 stays empty and would hold for a minute.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_grace("1 second")
    with LowWatermarkService(spark, metrics_port=0) as service:
        events = service.wrap(
            source.load(), name=STREAM, event_time="timestamp", split=["topic", "partition"], strategy=strategy
        )
        query = (
            events.groupBy(F.window("timestamp", "1 minute")).count()
            .writeStream.format("noop").queryName(QUERY)
            .option("checkpointLocation", str(folder / "checkpoint")).start()
        )  # fmt: skip
        try:
            query.processAllAvailable()
            target = f"127.0.0.1:{service.metrics_port}"
            with prometheus_server(folder, [target], [ALERT_FILE]) as prometheus:
                prometheus.await_targets()
                kafka.produce(topic, [Record("slow", 1, timestamp_ms=now_ms - 5 * MINUTE_MS)])
                query.processAllAvailable()
                yield Watched(service, prometheus, now_ms)
        finally:
            query.stop()


def substituted(expression: str) -> str:
    values = {"stream": ".*", "query": ".*", "__rate_interval": "10s", "__range": "1m"}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


def test_every_query_of_the_dashboard_has_data(watched: Watched) -> None:
    expressions = {
        (panel["title"], target["refId"]): substituted(target["expr"])
        for panel in panels(DASHBOARD)
        for target in panel.get("targets", [])
    }
    assert len(expressions) > 25
    empty = dict(expressions)

    def all_have_data() -> bool:
        for at, expression in list(empty.items()):
            if watched.prometheus.query(expression):
                del empty[at]
        return not empty

    try:
        wait_until(all_have_data, "data in every panel", seconds=60)
    except TimeoutError as late:
        raise AssertionError(f"no data in {empty}") from late


def test_the_template_variables_offer_stream_and_query(watched: Watched) -> None:
    offered = {}
    for name, query in variables(DASHBOARD):
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None, query
        offered[name] = watched.prometheus.get(f"label/{found[2]}/values", **{"match[]": substituted(found[1])})
    assert offered == {"stream": [STREAM], "query": [QUERY]}


def test_prometheus_stores_what_the_service_says(watched: Watched) -> None:
    status = watched.service.status(STREAM)
    low_us = status.low_watermark_us
    assert low_us is not None
    assert low_us / 1e3 == watched.started_ms - 5 * MINUTE_MS - 10_000 - 1  # the slow partition's, less bound and 1 ms
    wait_until(
        lambda: watched.value("lowmark_low_watermark_timestamp_seconds") == low_us / 1e6, "the low watermark scraped"
    )
    assert watched.value("lowmark_rows_total") == 58
    assert watched.value("lowmark_future_rows_total") == 1
    assert watched.value("lowmark_late_rows_total") == 0
    assert watched.value("lowmark_unmeasured_batches_total") == 0
    assert watched.value("lowmark_query_running") == 1
    assert watched.value("sum(lowmark_splits)") == 4
    assert watched.value("lowmark_backlog_rows") == 0
    [holder] = watched.prometheus.query("lowmark_holder_info")
    assert (holder["metric"]["split"], holder["metric"]["state"]) == (status.holder, "active")


def test_every_rule_is_loaded_and_evaluates(watched: Watched) -> None:
    def rules() -> dict[str, tuple[str, str]]:
        groups = watched.prometheus.get("rules")["groups"]
        return {
            rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]
        }

    wait_until(lambda: all(health != "unknown" for health, _ in rules().values()), "every rule evaluated")
    assert rules() == dict.fromkeys(alerts(ALERT_FILE.read_text()), ("ok", ""))


def test_only_the_row_a_year_ahead_raises_an_alert(watched: Watched) -> None:
    """It was there at the first scrape: an alert that only asks `increase()` would be silent."""

    def raised() -> set[str]:
        return {alert["labels"]["alertname"] for alert in watched.prometheus.get("alerts")["alerts"]}

    wait_until(lambda: raised() == {"LowmarkFutureTimestamps"}, "the alert on the future row, and no other")


def test_a_service_that_is_gone_raises_an_alert(spark: SparkSession, prometheus_binary: Path, tmp_path: Path) -> None:
    rules = tmp_path / "alerts.yml"
    rules.write_text(ALERT_FILE.read_text().replace("for: 2m", "for: 0m"))  # nobody waits two minutes here
    with LowWatermarkService(spark, metrics_port=0) as service:
        target = f"127.0.0.1:{service.metrics_port}"
        with prometheus_server(tmp_path, [target], [rules]) as prometheus:
            prometheus.await_targets()
            # Until the first scrape there is no target; that alert ends with the next evaluation.
            wait_until(lambda: prometheus.get("alerts")["alerts"] == [], "no alert while it runs")
            service.stop()
            [alert] = wait_until(lambda: prometheus.get("alerts")["alerts"], "an alert")
    labels = {"alertname": "LowmarkDown", "instance": target, "job": "lowmark", "severity": "critical"}
    assert (alert["labels"], alert["state"]) == (labels, "firing")
    assert json.dumps(alert["annotations"]).count("{{") == 0
