"""The demo from start to end, as a user runs it, and its figures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.audit.audit import Question
from lowmark.integration.audit.event_time import TimeReader
from lowmark.integration.audit.files import FilesAudit
from lowmark.integration.demo import kafka_feed as kafka_feed_module
from lowmark.integration.demo.comparison import Lane
from lowmark.integration.demo.feed import demo_script
from lowmark.integration.demo.kafka_feed import KafkaFeed
from lowmark.integration.demo.result import LaneResult, SplitResult
from lowmark.integration.errors import DemoImpossible

from tests.commands.audit_example import write
from tests.installed import site_packages
from tests.integration.cli.test_cli import call
from tests.packages import built_once
from tests.servers.dashboard import offered, panel_queries
from tests.servers.kafka import Broker
from tests.servers.local import LOWMARK, require_java, wait_until
from tests.servers.prometheus import Prometheus, prometheus_server
from tests.snippets import block
from tests.test_grafana import ALERTS, alerts
from tests.test_wheel import make_environment
from tests.test_wheel import run as run_installed

LANES = ("native", "lowmark")
DEMO_SECONDS = 280
END_SECONDS = 30  # a few on an idle machine
KEPT = "lowmark: running for 600 more seconds, Ctrl-C ends it; try `lowmark status` in another terminal\n"


def run_demo(*arguments: str) -> tuple[dict[str, Any], str]:
    """Return the demo's JSON object and its stderr; a failed demo fails the test."""
    require_java()
    ran = subprocess.run(
        [*LOWMARK, "demo", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_SECONDS,
        env={**os.environ, "TERM": "dumb"},
    )
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout)  # exactly one object, or this fails
    return figures, ran.stderr


@dataclass(frozen=True)
class Demo:
    """A running demo, in its own process group and temporary folder; its output goes to files."""

    process: subprocess.Popen[bytes]
    folder: Path
    environment: dict[str, str]

    def said(self) -> str:
        """Its stderr without the warning about the cost of Spark 4.0 and 4.1, which each demo there prints once."""
        said = (self.folder / "stderr").read_text()
        cost = re.compile(r'^stream "\w+": Spark 4\.[01]\.\S+ has no tuple_sketch_agg_double, .*\n', re.MULTILINE)
        return cost.sub("", said, count=1)

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = json.loads((self.folder / "stdout").read_text())
        return figures

    def await_said(self, pattern: str) -> re.Match[str]:
        """Wait for a match in its stderr, and return it."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.said())
            assert match or self.process.poll() is None, self.said()
            return match

        return wait_until(found, f"the demo says {pattern!r}", seconds=DEMO_SECONDS)

    def end(self, how: signal.Signals, *, group: bool = False) -> int:
        """Send the signal, to the process alone or, as a terminal's Ctrl-C does, to its group; return the exit code."""
        (os.killpg if group else os.kill)(self.process.pid, how)
        return self.process.wait(END_SECONDS)

    def left_behind(self) -> list[str]:
        """lowmark's files in its temporary folder, but for the folder of the sockets."""
        found = [*self.folder.glob("tmp/lowmark-spark-*"), *self.folder.glob("tmp/lowmark-*/*")]
        return [str(path) for path in found]


@contextmanager
def running_demo(folder: Path, *arguments: str, bin_: Path | None = None) -> Iterator[Demo]:
    """A demo started with `--json` and these arguments, killed at the end if it still runs.

    Args:
        folder: for its output and its temporary files.
        arguments: of the command.
        bin_: the programs of an environment, which is not activated; the demo runs from there, in an empty home. None:
            from the checkout.
    """
    require_java()
    (folder / "tmp").mkdir()
    environment, program, home = dict(os.environ), LOWMARK, None
    if bin_ is not None:
        home = folder / "home"
        home.mkdir()
        program = [str(bin_ / "python"), str(bin_ / "lowmark")]
        keep = {"PATH", "JAVA_HOME", "LD_LIBRARY_PATH", "SPARK_SUBMIT_OPTS"}
        environment = {name: value for name, value in os.environ.items() if name in keep} | {"HOME": str(home)}
    environment |= {"TERM": "dumb", "TMPDIR": str(folder / "tmp")}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as said:
        process = subprocess.Popen(
            [*program, "demo", "--json", *arguments],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            env=environment,
            start_new_session=True,
        )
    try:
        yield Demo(process, folder, environment)
    finally:
        process.kill()  # no signal if it has ended; its JVM ends with it
        process.wait(END_SECONDS)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of the embedded demo for all tests of its figures, kept for a moment and ended by Ctrl-C.

    It runs from the wheel in an environment of its own; the demo on Kafka runs from the checkout.
    """
    folder = tmp_path_factory.mktemp("embedded")
    wheel, _ = built_once(tmp_path_factory.getbasetemp())
    bin_ = make_environment(folder / "environment", wheel, site_packages())
    where = run_installed(bin_, "python", "-c", "import lowmark.integration.demo as demo; print(demo.__file__)")
    assert Path(where.strip()).is_relative_to(bin_.parent)
    with running_demo(folder, "--seed", "42", "--keep", "600", bin_=bin_) as demo:
        demo.await_said("more seconds")
        found = demo.figures()  # printed before the demo is kept
        assert demo.said() == KEPT  # no log of Spark's, no warning of ours
        assert demo.end(signal.SIGINT, group=True) == 0
        assert demo.left_behind() == []
    return found


def split_of(figures: dict[str, Any], script: str) -> dict[str, Any]:
    [found] = [split for split in figures["splits"].values() if script in split["script"]]
    return dict(found)


# -- the real run


@pytest.mark.spark
@pytest.mark.slow
class TestTheRun:
    def test_lowmark_loses_nothing_and_every_window_is_right(self, figures: dict[str, Any]) -> None:
        lowmark = figures["lowmark"]
        assert lowmark["rows_dropped"] == 0
        assert lowmark["rows_in_windows"] == lowmark["rows_in"]
        assert (lowmark["windows_wrong"], lowmark["windows_missing"]) == (0, 0)
        assert all(split["lowmark"]["rows_dropped"] == 0 for split in figures["splits"].values())

    def test_native_drops_most_of_the_slow_split_and_all_after_the_stray_row(self, figures: dict[str, Any]) -> None:
        slow = split_of(figures, "behind")
        assert slow["native"]["rows_dropped"] > 0.9 * slow["rows_in"]
        regular = [split for split in figures["splits"].values() if split["script"] == "regular"]
        assert len(regular) == 5
        for split in regular:
            assert 0.1 < split["native"]["rows_dropped"] / split["rows_in"] < 0.25
        assert split_of(figures, "silent")["native"]["rows_dropped"] == 0  # it had ended before
        assert figures["native"]["windows_wrong"] + figures["native"]["windows_missing"] > 0

    def test_the_readme_shows_these_figures(self, figures: dict[str, Any]) -> None:
        shown = block("README.md", "The same rows, the same query")
        for name, split in figures["splits"].items():
            [line] = [line for line in shown.splitlines() if line.strip().startswith(name)]
            counts = [split["rows_in"]]
            counts += [split[lane][what] for lane in LANES for what in ("rows_in_windows", "rows_dropped")]
            assert line.split() == [name, *split["script"].split(), *(f"{count:,}" for count in counts)]
        [total] = re.findall(r"in windows +(.+)", shown)
        counts = [figures[lane][what] for lane in LANES for what in ("rows_in_windows", "rows_dropped")]
        assert total.split() == [f"{count:,}" for count in (figures["native"]["rows_in"], *counts)]

    def test_the_audit_of_its_rows_says_what_each_query_drops(self, figures: dict[str, Any], tmp_path: Path) -> None:
        question = Question(delays_us=(10_000_000,), window_us=60_000_000)
        now_us = time.time_ns() // 1_000
        audit = FilesAudit(write(tmp_path / "rows"), question, None, (), TimeReader(), now_us).run()
        [native], [lowmark] = audit.native, audit.lowmark
        dropped = {name: split["native"]["rows_dropped"] for name, split in figures["splits"].items()}
        # The demo's split is one column, "orders-3"; a table has topic and partition, "orders/3".
        assert native.splits == {name.replace("-", "/"): rows for name, rows in dropped.items() if rows}
        assert lowmark.rows_dropped == figures["lowmark"]["rows_dropped"]

    def test_the_figures_add_up(self, figures: dict[str, Any]) -> None:
        splits = figures["splits"].values()
        assert len(splits) == 8
        for lane in ("native", "lowmark"):
            total = figures[lane]
            assert total["rows_in"] == total["rows_in_windows"] + total["rows_dropped"]
            assert total["rows_in"] == sum(split["rows_in"] for split in splits)
            assert total["rows_dropped"] == sum(split[lane]["rows_dropped"] for split in splits)
            assert total["rows_in_windows"] == sum(split[lane]["rows_in_windows"] for split in splits)

    def test_rows_in_are_the_rows_made(self, figures: dict[str, Any]) -> None:
        script = demo_script(42, start_us=0)
        assert {name: split["rows_in"] for name, split in figures["splits"].items()} == {
            split.name: script.count_rows(split.name, 0, script.end) for split in script.splits
        }

    def test_every_window_that_is_over_was_emitted(self, figures: dict[str, Any]) -> None:
        # Open windows keep the last row of each live split, and the row of next year.
        assert figures["lowmark"]["rows_in_open_windows"] == 7 + 1
        assert figures["native"]["rows_in_open_windows"] == 1

    def test_the_watermark_and_who_held_it(self, figures: dict[str, Any]) -> None:
        slow = next(name for name, split in figures["splits"].items() if "behind" in split["script"])
        stray = next(name for name, split in figures["splits"].items() if "year" in split["script"])
        # The slow split's last row is 2 minutes after the hour; the bound and a millisecond are taken off.
        assert figures["lowmark"]["final_watermark_seconds"] == 3_600 + 120 - 10 - 0.001
        assert figures["lowmark"]["held_by"] == slow
        assert figures["native"]["final_watermark_seconds"] > 364 * 86_400
        assert figures["native"]["held_by"] == stray

    def test_the_silent_split_is_idle_and_the_others_are_not(self, figures: dict[str, Any]) -> None:
        states = {split["script"].split()[0]: split["state"] for split in figures["splits"].values()}
        assert states.pop("silent") == "idle"
        assert set(states.values()) == {"active"}

    @pytest.mark.torture  # the run on Kafka shows the same in `make test`: another source, the same figures
    def test_a_seed_gives_its_figures_again_and_ends_by_itself(self, figures: dict[str, Any]) -> None:
        again, said = run_demo("--seed", "42")
        assert again == figures
        assert said == ""

    @pytest.mark.torture  # a test below shows without a run that a seed chooses the script
    def test_another_seed_gives_others(self, figures: dict[str, Any]) -> None:
        other, _ = run_demo("--seed", "7")
        assert other["lowmark"]["rows_dropped"] == 0 < other["native"]["rows_dropped"]
        assert other["splits"] != figures["splits"]


# -- kept on a real broker, watched by a real Prometheus


# Queries that stay at zero, and the reason; every other query of the dashboard has been above zero at some time.
ZERO_IN_THE_DEMO = {
    "Rows dropped since the driver started, A": "lowmark drops none: that is what the demo is for",
    "Late rows, A": "the same",
    "Late reports and returns, A": "every split is within its bound, and the slowest live one holds the low watermark",
    "Late reports and returns, B": "the silent split is silent for good, and all are known from the first batch",
    "Queries failed, A": "no query fails",
    "Splits by state, B": "nobody leaves a split out by hand",
    "Collection of these metrics, C": "the service's thread lives",
    "Batches not measured, A": "its foreachBatch runs an action in every batch",
    "Batches, B": "the same",
    "Rows that cannot be used, A": "every row has an event time",
    "Rows that cannot be used, B": "every row of Kafka has a partition",
    "Rows that cannot be used, C": "every row is of yesterday or of next year",
    "Backlog by split, A": "every batch takes all there is: the next rows are produced when it is planned",
    "Backlog by split, B": "the same",
    "Splits that lag, A": "where nothing is unread, nothing lags",
    "Splits not shown one by one, A": "8 splits are fewer than 100",
}
# Queries that may be above zero, depending on the moments of scrapes and on the machine.
EITHER_IN_THE_DEMO = {
    "Splits that never spoke, A": "pending until the first batch is over, which a scrape may see",
    "Collection of these metrics, B": "a service that does not answer a scrape within 5 seconds, on a busy machine",
}
# Queries for which the demo has no series, or only at times.
NONE_IN_THE_DEMO = {
    "Why it stands, A": "its low watermark stands for moments only",
    "Late reports and returns, C": "it asks for no column of late rows",
    "Coordinators that do not answer, A": "it has no coordinator",
    "Coordinators that do not answer, B": "the same",
}


@dataclass(frozen=True)
class Kept:
    """A demo that has printed its figures and is kept, and a Prometheus that has scraped it from its first batch on.

    The scraped stream has every state of a stream that goes well: splits that are active, idle, behind and ahead, a
    guarded row, rows that native Spark would have dropped.
    """

    demo: Demo
    prometheus: Prometheus
    target: str
    since_s: float
    topic: str
    options: tuple[str, ...]  # options of its source

    def value(self, expression: str) -> float | None:
        """The only sample of an expression, None if it has none."""
        samples = self.prometheus.query(expression)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else None

    def alerts(self) -> dict[str, dict[str, Any]]:
        return {alert["labels"]["alertname"]: alert for alert in self.prometheus.get("alerts")["alerts"]}


@pytest.fixture(scope="module")
def kept(
    kafka: Broker, kafka_jars: list[Path], prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept")
    rules = folder / "alerts.yml"
    rules.write_text(ALERTS.replace("for: 2m", "for: 0m"))  # LowmarkDown fires without its two minutes
    topic = f"kept-{uuid.uuid4().hex[:8]}"
    jars = ",".join(map(str, kafka_jars))
    on_kafka = ("--source", "kafka", "--bootstrap", kafka.bootstrap, "--topic", topic, "--jars", jars)
    with running_demo(folder, *on_kafka, "--metrics-port", "0", "--keep", "600") as demo:
        target = demo.await_said(r"metrics at http://(\S+)/metrics\n")[1]
        with prometheus_server(folder, [target], [rules]) as prometheus:
            since_s = time.time()
            prometheus.await_targets()
            demo.await_said("more seconds")
            yield Kept(demo, prometheus, target, since_s, topic, on_kafka)


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.slow
class TestKept:
    """In this order: the last test ends the demo."""

    def test_on_a_real_broker_the_figures_are_the_same(
        self, figures: dict[str, Any], kafka: Broker, kept: Kept
    ) -> None:
        assert kept.demo.figures() == figures
        ends = kafka.end_offsets(kept.topic)
        assert ends == {n: split["rows_in"] for n, split in enumerate(figures["splits"].values())}

        refused = subprocess.run(
            [*LOWMARK, "demo", *kept.options], capture_output=True, text=True, check=False, timeout=DEMO_SECONDS
        )
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == (
            f"lowmark: topic {kept.topic} exists already. "
            "Hint: the demo fills a topic of its own: choose another name.\n"
        )
        assert kafka.end_offsets(kept.topic) == ends

    def test_every_query_of_the_dashboard_has_data(self, kept: Kept) -> None:
        queries = {query.at: query for query in panel_queries("lowmark")}
        assert len(queries) > 25
        values = {at: query.values(kept.prometheus, kept.since_s) for at, query in queries.items()}
        assert {at for at, found in values.items() if not found} <= NONE_IN_THE_DEMO.keys() <= values.keys()
        # Zeros prove the labels of a query, but no measurement.
        zero = {at for at, found in values.items() if not any(found)} - NONE_IN_THE_DEMO.keys()
        assert zero - EITHER_IN_THE_DEMO.keys() == ZERO_IN_THE_DEMO.keys()
        assert EITHER_IN_THE_DEMO.keys() <= values.keys()

    def test_the_template_variables_offer_stream_and_query(self, kept: Kept) -> None:
        assert offered(kept.prometheus) == {"stream": ["demo"], "query": ["lowmark demo, lowmark"]}

    def test_status_and_prometheus_say_the_same(self, kept: Kept) -> None:
        # No more rows come, so two answers are equal. One of the eight splits is idle: the split that was silent while
        # the other splits delivered.
        wait_until(lambda: kept.value('lowmark_splits{state="idle"}') == 1, "the silent split idle")
        asked = subprocess.run(
            [*LOWMARK, "status", "demo", "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEMO_SECONDS,
            env=kept.demo.environment,
        )
        assert (asked.returncode, asked.stderr) == (0, "")
        # The command finds all demos of this user; another demo may run beside.
        [service] = [each for each in json.loads(asked.stdout)["services"] if each["pid"] == kept.demo.process.pid]
        [stream] = service["streams"]
        figures = kept.demo.figures()
        assert stream["query"] == "lowmark demo, lowmark"
        assert stream["low_watermark_us"] is not None
        assert kept.value("lowmark_low_watermark_timestamp_seconds") == stream["low_watermark_us"] / 1e6
        assert stream["counts"]["rows"] == figures["lowmark"]["rows_in"] == kept.value("lowmark_rows_total")
        assert stream["counts"]["future_rows"] == 1 == kept.value("lowmark_future_rows_total")
        assert stream["counts"]["dropped_rows"] == 0 == kept.value("lowmark_dropped_rows_total")
        assert kept.value("lowmark_unmeasured_batches_total") == 0
        assert kept.value("lowmark_query_running") == 1
        assert kept.value("lowmark_backlog_rows") == 0
        states = {each["metric"]["state"]: int(each["value"][1]) for each in kept.prometheus.query("lowmark_splits")}
        assert states == stream["states"]
        assert stream["silent_since"] is not None
        assert [each["metric"]["split"] for each in kept.prometheus.query("lowmark_holder_info")] == [stream["holder"]]
        held = kept.prometheus.query("last_over_time(lowmark_holder_info[1h])")
        holders = {list(figures["splits"])[int(each["metric"]["split"])] for each in held}
        assert figures["lowmark"]["held_by"] in holders

    def test_every_rule_evaluates_and_only_the_row_a_year_ahead_raises_an_alert(self, kept: Kept) -> None:
        def rules() -> dict[str, tuple[str, str]]:
            groups = kept.prometheus.get("rules")["groups"]
            return {
                rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]
            }

        wait_until(lambda: all(health != "unknown" for health, _ in rules().values()), "every rule evaluated")
        assert rules() == dict.fromkeys(alerts(ALERTS), ("ok", ""))
        wait_until(
            lambda: kept.alerts().keys() == {"LowmarkFutureTimestamps"}, "the alert on the future row, and no other"
        )

    def test_sigterm_ends_it_at_once_and_raises_the_alert_that_it_is_gone(self, kept: Kept) -> None:
        assert kept.demo.end(signal.SIGTERM) == 0
        assert kept.demo.said() == f"lowmark: metrics at http://{kept.target}/metrics\n{KEPT}"
        assert kept.demo.left_behind() == []
        alert = wait_until(lambda: kept.alerts().get("LowmarkDown"), "an alert")
        labels = {"alertname": "LowmarkDown", "instance": kept.target, "job": "lowmark", "severity": "critical"}
        assert (alert["labels"], alert["state"]) == (labels, "firing")
        assert "{{" not in json.dumps(alert["annotations"])


# -- a broker that goes away: nothing of the demo stays on it, and the code is that of no broker


class FakeAdmin:
    """Does as a broker's `AdminClient`; with `hangs`, the broker never answers that call."""

    def __init__(self, hangs: str = "") -> None:
        self.hangs, self.refuses, self.deleted = hangs, False, list[str]()

    def list_topics(self, timeout: float) -> None:
        del timeout

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        return {topics[0].topic: self._answer("create")}

    def delete_topics(self, topics: list[str], request_timeout: float) -> dict[str, Future[None]]:
        del request_timeout
        self.deleted += topics
        return {topics[0]: self._answer("delete")}

    def _answer(self, call: str) -> Future[None]:
        answer: Future[None] = Future()
        if self.refuses:
            answer.set_exception(PermissionError("not allowed"))
        elif call != self.hangs:
            answer.set_result(None)
        return answer


def kafka_feed(admin: FakeAdmin, topic: str | None = None) -> KafkaFeed:
    feed = KafkaFeed(demo_script(42, start_us=0), 42, bootstrap="127.0.0.1:9", topic=topic)
    feed._admin = admin  # type: ignore[assignment]
    return feed


@pytest.mark.parametrize("topic", [None, "kept"])
def test_a_first_batch_that_cannot_be_produced_leaves_no_topic_but_one_that_is_kept(
    topic: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_feed_module, "_FLUSH_SECONDS", 0.0)
    admin = FakeAdmin()
    feed = kafka_feed(admin, topic)
    with pytest.raises(DemoImpossible, match="rows did not reach topic"), feed:
        pass
    assert admin.deleted == ([feed._topic] if topic is None else [])


def test_a_broker_that_goes_away_between_two_batches_is_what_both_queries_fail_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_feed_module, "_FLUSH_SECONDS", 0.0)
    feed, stopped = kafka_feed(FakeAdmin()), OSError("An exception was raised by the Python Proxy. Return Message: ...")
    frame: Any = SimpleNamespace(selectExpr=lambda *_: SimpleNamespace(collect=list))
    query: Any = SimpleNamespace(exception=lambda: stopped)
    lanes = [Lane(name, feed, tmp_path, query=query) for name in LANES]
    with ThreadPoolExecutor() as pool:
        ended = [pool.submit(lane._take, frame, 0) for lane in lanes]
        assert [type(each.exception()) for each in ended] == [DemoImpossible] * 2
    for lane in lanes:
        with pytest.raises(DemoImpossible, match="rows did not reach topic"):
            lane.newest()


@pytest.mark.parametrize("hangs", ["create", "delete"])
def test_a_broker_that_goes_away_ends_the_demo_as_no_broker_does(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_ANSWER_SECONDS", "_FLUSH_SECONDS"):
        monkeypatch.setattr(kafka_feed_module, limit, 0.0)
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: FakeAdmin(hangs))
    code, out, err = call("demo", "--source", "kafka", "--bootstrap", "127.0.0.1:9", "--jars", "none.jar")
    assert (code, out, "Traceback" in err) == (2, "", False)
    told = " ".join(err.split())
    if hangs == "create":
        assert "the Kafka broker at 127.0.0.1:9 did not say within 0 seconds whether topic lowmark-demo-" in told
    else:
        assert "the Kafka broker at 127.0.0.1:9 has not confirmed the deletion of topic lowmark-demo-" in told
        assert "rows did not reach topic lowmark-demo-" in told


def test_a_deletion_that_the_broker_refuses_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    admin = FakeAdmin()
    feed = kafka_feed(admin)
    feed.__exit__(None, None, None)
    assert capsys.readouterr().err == ""
    admin.refuses = True
    feed.__exit__(None, None, None)
    assert f"has not confirmed the deletion of topic {feed._topic}" in capsys.readouterr().err


# -- the figures


def test_the_seed_chooses_the_script() -> None:
    scripts = [demo_script(seed, start_us=0) for seed in range(20)]
    assert len({str(script) for script in scripts}) == 20
    for script in scripts:
        roles = [(s.behind_us > 0, s.silent_from_tick is not None, s.stray_tick is not None) for s in script.splits]
        assert sorted(roles) == sorted(
            [(True, False, False), (False, True, False), (False, False, True)] + [(False,) * 3] * 5
        )


def test_dropped_rows_are_those_in_no_window() -> None:
    split = SplitResult(rows_in=10, rows_emitted=6, rows_open=1)
    assert (split.rows_in_windows, split.rows_dropped) == (7, 3)
    lane = LaneResult({"a": split, "b": SplitResult(5, 5, 0)}, 4, 1, 2, watermark_us=61_000_000, holder="a")
    assert lane.to_json(start_us=1_000_000) == {
        "rows_in": 15,
        "rows_dropped": 3,
        "rows_in_windows": 12,
        "rows_in_open_windows": 1,
        "windows": 4,
        "windows_wrong": 1,
        "windows_missing": 2,
        "final_watermark_seconds": 60.0,
        "held_by": "a",
    }
