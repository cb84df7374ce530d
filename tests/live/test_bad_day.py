"""A bad day on a real Kafka and a real `lowmark serve`: every view for people names the planted cause.

Goal: `status`, `explain`, page, metric and alert all name the planted cause. Method: a partition stops getting rows, a
producer's clock goes a year ahead, a coordinator is killed. The test compares the five views with the planted cause.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.integration.cli.test_cli import call
from tests.integration.coordinator.serving import private_folder
from tests.servers.coordinator import served
from tests.servers.kafka import Broker, Record
from tests.servers.local import http_get, wait_until
from tests.servers.prometheus import Prometheus, prometheus_server
from tests.test_grafana import ALERTS

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.usefixtures("kafka_jars")]

YEAR_US = 365 * 86_400 * 1_000_000
SECONDS = 60  # the limit for waits of a few seconds, on a busy machine


@dataclass
class Producers:
    """One producer per partition: a row every 200 ms, with the present time by default."""

    broker: Broker
    topic: str
    dead: set[int] = field(default_factory=set)
    ahead: set[int] = field(default_factory=set)
    sent_ahead: int = 0

    def produce(self) -> None:
        now_us = time.time_ns() // 1_000
        live = [partition for partition in range(3) if partition not in self.dead]
        self.sent_ahead += sum(partition in self.ahead for partition in live)
        self.broker.produce(self.topic, [Record(str(now_us + YEAR_US * (each in self.ahead)), each) for each in live])

    @contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.2):
                self.produce()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(SECONDS)


@dataclass(frozen=True)
class Told:
    """The answers of all five views at one moment."""

    status: dict[str, Any]
    explain: str
    page: dict[str, Any]
    metrics: dict[str, list[tuple[dict[str, str], float]]]
    alerts: dict[str, str]  # firing alerts: name -> description

    @property
    def causes(self) -> list[str | None]:
        """The causes in status, page and metric."""
        metric = [labels["cause"] for labels, _ in self.metrics.get("lowmark_cause_info", [])]
        return [self.status["cause"], self.page["cause"], metric[0] if metric else None]

    @property
    def sentences(self) -> list[str]:
        """The reasons in status, explain and page, without durations."""
        explained = re.search(r"(?m)^  why    (.*)$", self.explain)
        said = [self.status["why"], explained[1] if explained else "", self.page["why"]]
        return [re.sub(r"\b[\d,.:hms-]+( rows)?( \d+s)?\b", "N", each) for each in said]


@dataclass(frozen=True)
class Eyes:
    """The five views."""

    service: LowWatermarkService
    prometheus: Prometheus

    def look(self) -> Told:
        connect = ("--connect", self.service.address)
        status = json.loads(call("status", *connect, "--json")[1])["services"][0]["streams"][0]
        page = json.loads(http_get(f"{self.service.page_address}state")[1])["runs"][0]
        _, text = http_get(f"http://127.0.0.1:{self.service.metrics_port}/metrics")
        metrics: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                metrics.setdefault(sample.name, []).append((sample.labels, sample.value))
        return Told(status, call("explain", *connect)[1], page, metrics, self.alerts())

    def alerts(self) -> dict[str, str]:
        """Return the descriptions of firing alerts by name."""
        firing = [alert for alert in self.prometheus.get("alerts")["alerts"] if alert["state"] == "firing"]
        return {alert["labels"]["alertname"]: str(alert["annotations"]["description"]) for alert in firing}

    def until(self, cause: str, alert: str, described: str = "") -> Told:
        """Look until all views agree on a cause, and an alert for it fires with this text in its description."""
        last: list[object] = []

        def fires(alerts: dict[str, str]) -> bool:
            last[:] = [alerts]
            return alert in alerts and described in alerts[alert]

        def agreed() -> Told | None:
            if not fires(self.alerts()):  # first, because the alert comes last, and all views take two commands
                return None
            told = self.look()
            # The page refreshes once a second, and gRPC changes its error text for an absent coordinator once.
            same = set(told.causes) == {cause} and len(set(told.sentences)) == 1
            agrees = same and fires(told.alerts)
            last[:] = [told]
            return told if agrees else None

        try:
            return wait_until(agreed, f"five that name {cause}", seconds=SECONDS)
        except TimeoutError as late:
            raise AssertionError(f"expected {cause} and {alert}, last seen: {last}") from late


def quickly(folder: Path) -> Path:
    """The alert rules, with waits of seconds instead of minutes."""
    rules = folder / "alerts.yml"
    rules.write_text(re.sub(r"for: \d+m", "for: 0s", ALERTS).replace("> 900", "> 5"))
    return rules


def test_a_bad_day_has_one_cause_wherever_a_person_looks(
    spark: SparkSession, kafka: Broker, prometheus_binary: Path, tmp_path: Path
) -> None:
    del prometheus_binary  # only required
    topic = kafka.create_topic(partitions=3)
    producers = Producers(kafka, topic)
    with (
        private_folder() as folder,
        served(folder) as coordinator,
        LowWatermarkService(
            spark, metrics_port=0, page_port=0, coordinator=coordinator.address, job="billing", beside=True
        ) as service,
        prometheus_server(tmp_path, [f"127.0.0.1:{service.metrics_port}"], [quickly(tmp_path)]) as prometheus,
        producers.running(),
    ):
        rows = (
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", topic).option("startingOffsets", "earliest").load()
            .select("topic", "partition", F.expr("timestamp_micros(cast(cast(value as string) as bigint))").alias("ts"))
        )  # fmt: skip
        wrapped = service.wrap(rows, name="orders", event_time="ts", split=["topic", "partition"])
        writer = wrapped.writeStream.format("noop").queryName("billing by minute").trigger(processingTime="1 second")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        eyes = Eyes(service, prometheus)
        wait_until(lambda: service.status("orders").low_watermark_us is not None, "a low watermark", seconds=SECONDS)
        assert {run.query for run in service.run_statuses()} == {"billing by minute"}, "its name, from the start"

        producers.dead = {0}
        dead_at = time.monotonic()
        told = eyes.until("silent split", "LowmarkWatermarkStuck", f"Cause: silent split. Held by split {topic}/0")
        assert told.status["holder"] == told.page["holder"] == f"{topic}/0"
        [(_, spoke_at)] = [
            each
            for each in told.metrics["lowmark_split_last_report_timestamp_seconds"]
            if each[0]["split"] == f"{topic}/0"
        ]
        assert abs(time.time() - spoke_at - (time.monotonic() - dead_at)) < 6, "as long as it is dead"

        producers.dead, producers.ahead = set(), {0}
        told = eyes.until("wrong clock", "LowmarkFutureTimestamps", f"(split {topic}/0: ")
        [clock] = told.status["wrong_clocks"]
        assert (clock["split"], told.status["holder"]) == (f"{topic}/0", f"{topic}/0")
        assert 0 < clock["rows"] <= producers.sent_ahead
        assert told.status["native_watermark_us"] > time.time_ns() // 1_000 + YEAR_US // 2, "as native Spark would be"

        coordinator.kill()
        told = eyes.until("coordinator away", "LowmarkCoordinatorAway")
        assert (told.status["holder"], told.page["holder"]) == (None, None)
        assert coordinator.address in told.status["why"]
        code, said, _ = call("check", "--connect", service.address, "--patience", "1 second")
        assert (code, "stuck" in said, "has not answered" in said) == (1, True, True), said
        query.stop()
