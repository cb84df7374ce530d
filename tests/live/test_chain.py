"""The tutorial, changed only in addresses, on real servers: audit, wrapped query, an alert, the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration.cli import main
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from tests.integration.page.test_page_browser import holder_of, opened, shows, text
from tests.servers.alertmanager import Notice, alertmanager, receiver
from tests.servers.kafka import Broker
from tests.servers.local import ROOT, wait_until
from tests.servers.prometheus import prometheus_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

TUTORIAL = ROOT / "docs" / "tutorial.md"
ALERT = "LowmarkWatermarkStuck"
# The alert's waits of a quarter of an hour and of five minutes, shortened.
SHORTER = (("moved_timestamp_seconds > 900", "moved_timestamp_seconds > 10"), ("for: 5m", "for: 0m"))
SECONDS, SLOW, SILENT = 3_600, 600, 1_200
PRINTED = re.compile(r"(<!-- printed by: (\w+) -->\n```\n)(.*?)(```)", re.DOTALL)


class Tutorial:
    """The tutorial page: its snippets and commands, with the addresses of this test's servers."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.page = TUTORIAL.read_text(encoding="utf-8")
        self._addresses = addresses
        self.names: dict[str, Any] = {}
        self.printed: dict[str, str] = {}

    def here(self, written: str) -> str:
        for there, here in self._addresses.items():
            written = written.replace(there, here)
        return written

    def snippet(self, language: str, number: int) -> str:
        found: list[str] = re.findall(rf"```{language}\n(.*?)```", self.page, flags=re.DOTALL)
        return found[number]

    def run(self, number: int) -> None:
        """Run one of the page's programs, in the namespace of all."""
        exec(compile(self.here(self.snippet("python", number)), TUTORIAL.name, "exec"), self.names)

    def command(self, begin: str) -> list[str]:
        """Return the words of one of the page's commands."""
        [line] = re.findall(rf"^    ({begin}.*)$", self.page, flags=re.MULTILINE)
        return shlex.split(self.here(line))

    def lowmark(self, begin: str, *more: str) -> str:
        """Run one of its `lowmark` commands and return the output."""
        words = self.command(f"lowmark {begin}")[1:]
        done = CliRunner(env={"COLUMNS": "150"}).invoke(main.app, [*words, *more], prog_name="lowmark")
        assert done.exit_code == 0, done.output
        return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def settled(printed: str) -> str:
    """Remove times and durations from an output."""
    printed = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( UTC)?", "TIME", printed)
    printed = re.sub(r"; no row of it was reported for [\d.hms ]+[hms](?=\.)", "", printed)  # from ten seconds on
    return re.sub(r"(since|for|held|clock by|behind the clock:?) [\d.hms ]+", r"\1 SOME ", printed).strip()


def said(tutorial: Tutorial) -> None:
    """Compare the page with the printed output; LOWMARK_WRITE=1 updates the page instead."""
    if os.environ.get("LOWMARK_WRITE"):
        page = PRINTED.sub(lambda found: f"{found[1]}{tutorial.printed[found[2]].strip()}\n{found[4]}", tutorial.page)
        TUTORIAL.write_text(page, encoding="utf-8")
        return
    shown = {found[2]: settled(found[3]) for found in PRINTED.finditer(tutorial.page)}
    assert shown == {name: settled(printed) for name, printed in tutorial.printed.items()}


@contextmanager
def ended(names: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    finally:
        if "query" in names:
            names["query"].stop()
        if "service" in names:
            names["service"].stop()


def paid(start: int) -> Iterator[tuple[int, int]]:
    """Return partition and event time (in seconds) of every row of the topic."""
    for second in range(SECONDS):
        for partition in range(4):
            if partition < 3 or second < SILENT:
                yield partition, start + second - 7 * second % 10 - (SLOW if partition == 1 else 0)


@pytest.mark.slow
@pytest.mark.usefixtures("prometheus_binary")
def test_the_chain_of_the_tutorial(
    spark: SparkSession,
    kafka: Broker,
    kafka_jars: list[Path],
    browser: Browser,
    promtool_binary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert kafka_jars
    monkeypatch.setattr(StreamingQuery, "awaitTermination", StreamingQuery.processAllAvailable)
    monkeypatch.chdir(tmp_path)
    addresses = {"localhost:9092": kafka.bootstrap, "=9464": "=0", "=8466": "=0", "/tmp/payments": str(tmp_path)}
    tutorial = Tutorial(addresses)

    # 1, 2: the topic, and native Spark's losses
    tutorial.run(0)
    start = tutorial.names["start"]
    tutorial.printed["audit"] = tutorial.lowmark("audit kafka")
    audit = json.loads(tutorial.lowmark("audit kafka", "--json"))
    ten = next(each for each in audit["native"] if each["delay_us"] == 10_000_000)
    assert set(ten["splits"]) >= {"payments/1", "payments/3"}
    assert ten["rows_dropped"] > 2_000
    assert [each["rows_dropped"] for each in audit["lowmark"] if each["delay_us"] == 10_000_000] == [0]
    if not os.environ.get("LOWMARK_WRITE"):
        assert audit["strategy"] in tutorial.snippet("python", 1)  # verbatim
    elif "STRATEGY" in tutorial.page:
        tutorial.page = tutorial.page.replace("STRATEGY", audit["strategy"])

    # 3: the strategy in a wrapped query
    with ended(tutorial.names):
        tutorial.run(1)
        service = tutorial.names["service"]
        wait_until(lambda: service.status("payments").holder == "payments/3", "the silent partition holds")

        # 4: all views name the same split
        assert "payments/3" in tutorial.lowmark("status payments")
        told = tutorial.lowmark("explain payments")
        begins = told.index("Stream payments: ")
        tutorial.printed["explain"] = "\n".join([*told[begins:].splitlines()[:4], "  ..."])
        assert "split payments/3 has the smallest watermark of 4 live splits" in told
        assert holder_of(service) == "payments/3"
        tutorial.lowmark("check payments")

        # 5: dashboards, rules, Prometheus, Alertmanager
        tutorial.lowmark("grafana --out monitoring")
        rules = tmp_path / "monitoring" / "alerts.yml"
        (tmp_path / "monitoring" / "prometheus.yml").write_text(tutorial.snippet("yaml", 0))
        words = tutorial.command("promtool")
        checked = subprocess.run([promtool_binary, *words[1:]], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        block = rules.read_text().partition(f"- alert: {ALERT}\n")
        mended = block[2]
        for long, short in SHORTER:
            assert long in mended
            mended = mended.replace(long, short, 1)
        rules.write_text("".join((*block[:2], mended)))
        with (
            receiver() as pager,
            alertmanager(tmp_path / "alertmanager", pager) as at,
            prometheus_server(
                tmp_path, [f"127.0.0.1:{service.metrics_port}"], [rules], alertmanagers=[at]
            ) as prometheus,
            opened(browser, str(service.page_address)) as page,
        ):
            shows(page, "#holder", "payments/3")
            told = str(page.locator("#explanation").text_content())
            assert settled(told) == settled(str(service.explain("payments")))

            def holders() -> list[str]:
                return [each["metric"]["split"] for each in prometheus.query("lowmark_holder_info")]

            def heard(status: str) -> list[Notice]:
                return [each for each in pager.of(ALERT, status) if each["labels"]["stream"] == "payments"]

            wait_until(lambda: holders() == ["payments/3"], "Prometheus names the holder")
            # The other partitions continue, for three seconds here, because the alert requires arriving rows.
            others = tutorial.snippet("python", 2)
            assert "3_600" in others
            exec(compile(tutorial.here(others.replace("3_600", "3")), TUTORIAL.name, "exec"), tutorial.names)
            [fired, *_] = wait_until(lambda: heard("firing"), "the alert fires")
            assert "split payments/3 (active)" in re.sub(r"\s+", " ", fired["annotations"]["description"])
            assert "`lowmark explain payments` says why" in fired["annotations"]["action"]

            tutorial.run(3)  # the silent partition delivers
            wait_until(lambda: heard("resolved"), "the alert is taken back")
            wait_until(lambda: holders() == ["payments/1"], "Prometheus names the next holder")
            shows(page, "#holder", "payments/1")
            assert text(page, "#holder") == service.status("payments").holder == holder_of(service) == "payments/1"
            tutorial.names["query"].processAllAvailable()
            status = service.status("payments")
            written = sum(kafka.end_offsets("payments").values())
            assert (status.counts.dropped_rows, status.counts.rows) == (0, written)
            assert written >= audit["rows"] + 3 * 3

        # Every closed window has all its rows; native Spark would have dropped thousands.
        low_us = status.low_watermark_us
        assert low_us is not None
        over = Counter((partition, at // 60 * 60) for partition, at in paid(start))
        over = Counter({key: rows for key, rows in over.items() if key[1] + 60 <= low_us / 1e6})

        def emitted() -> dict[tuple[int, int], int]:
            minutes = spark.read.parquet(str(tmp_path / "minutes"))
            rows = minutes.select("partition", F.unix_timestamp("window.start").alias("at"), "count").collect()
            return {(row["partition"], row["at"]): row["count"] for row in rows}

        wait_until(lambda: len(emitted()) >= len(over), f"{len(over)} windows")
        assert emitted() == over
    said(tutorial)
