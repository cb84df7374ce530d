"""The dashboards and the alert rules name exported metrics only.

`dashboard_problems` is strict because the tests have no Grafana: it reports, in words, panels that Grafana would show
empty. A planted mistake proves that each rule and each alert can fail.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import subprocess
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.integration.process.loop import LoopTimes
from lowmark.integration.run_status import RunStatus
from lowmark.sources.spark.options import FORMATS

from tests.servers.local import ROOT

GRAFANA = ROOT / "grafana"
ALERTS = (GRAFANA / "alerts.yml").read_text()
CASES = (GRAFANA / "alerts_test.yml").read_text()
DASHBOARDS = {name: json.loads((GRAFANA / f"{name}.json").read_text()) for name in ("overview", "lowmark", "source")}
DASHBOARD = DASHBOARDS["lowmark"]  # of one stream

Json = dict[str, Any]
SUFFIXES = {"counter": ("_total",), "info": ("_info",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
BUILT_IN = {"__rate_interval", "__range", "__all"}
PANELS = {"stat", "table", "timeseries"}
SOURCES = [name.removeprefix("lowmark_") for name in FORMATS]
COLUMNS = 24
SCHEMA_OF_GRAFANA_10 = 38


class NoRuns:
    def run_statuses(
        self, *, without: Container[str] = (), seconds: float = 0, limit: int | None = None
    ) -> list[RunStatus]:
        return []

    def loop_times(self) -> LoopTimes:
        return LoopTimes()


@functools.cache
def exported() -> frozenset[str]:
    """Names of all series of the collector, which exports their families even without a stream."""
    families = StreamCollector(NoRuns()).collect()
    return frozenset(family.name + suffix for family in families for suffix in SUFFIXES[family.type])


def unknown_metrics(text: str) -> set[str]:
    return set(re.findall(r"\blowmark_\w+", text)) - exported()


# --- the dashboard ---


def panels(dashboard: Json) -> Iterator[Json]:
    """Every panel, also in collapsed rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def variables(dashboard: Json) -> Iterator[tuple[str, str]]:
    """(name, query) of the template variables that ask Prometheus."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def dashboard_problems(dashboard: Json) -> list[str]:
    """List the faults of a dashboard, a sentence each."""
    found = [f"schemaVersion {dashboard['schemaVersion']} is older than Grafana 10"] * (
        dashboard["schemaVersion"] < SCHEMA_OF_GRAFANA_10
    )
    if dashboard["id"] is not None:
        found.append("id is of one Grafana's database, expected null")
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    for wanted in ("datasource", "stream", "query"):
        if wanted not in names:
            found.append(f"no template variable {wanted}")
    text = json.dumps(dashboard)
    found += [f"unknown variable ${name}" for name in sorted(set(re.findall(r"\$\{?(\w+)", text)) - names - BUILT_IN)]
    found += [f"an address: {at}" for at in re.findall(r"https?://[^\"\s]*|localhost\S*|\b\d+\.\d+\.\d+\.\d+\b", text)]
    found += [f"variable {n}: no metric {m}" for n, query in variables(dashboard) for m in unknown_metrics(query)]
    ids = [panel["id"] for panel in panels(dashboard)]
    found += [f"two panels have the id {id_}" for id_ in sorted({id_ for id_ in ids if ids.count(id_) > 1})]
    titles = [panel["title"] for panel in panels(dashboard)]
    found += [f'two panels are called "{title}"' for title in sorted({t for t in titles if titles.count(t) > 1})]
    for panel in panels(dashboard):
        found += [f'panel "{panel["title"]}": {problem}' for problem in panel_problems(panel)]
    return found + overlaps(dashboard)


def panel_problems(panel: Json) -> Iterator[str]:
    at = panel["gridPos"]
    if at["x"] < 0 or at["y"] < 0 or at["w"] < 1 or at["h"] < 1 or at["x"] + at["w"] > COLUMNS:
        yield f"does not fit into {COLUMNS} columns: {at}"
    if panel["type"] != "row":
        yield from content_problems(panel)


def content_problems(panel: Json) -> Iterator[str]:
    if panel["type"] not in PANELS:
        yield f"type {panel['type']} is not one of {sorted(PANELS)}"
    if not panel["targets"]:
        yield "no targets"
    if not re.search(r"(^|\. )Good: \S", panel.get("description", "")):
        yield "its description does not say what good looks like"
    if "unit" not in panel["fieldConfig"]["defaults"]:
        yield "no unit"
    refs = [target["refId"] for target in panel["targets"]]
    if len(set(refs)) < len(refs):
        yield f"refIds come twice: {refs}"
    for target in panel["targets"]:
        yield from (f"target {target['refId']} {problem}" for problem in target_problems(target))
    for source in [panel["datasource"], *(target["datasource"] for target in panel["targets"])]:
        if source != {"type": "prometheus", "uid": "${datasource}"}:
            yield f"data source {source} is not the variable"


def target_problems(target: Json) -> Iterator[str]:
    if not target.get("expr", "").strip():
        yield "has no expr"
        return
    if target.get("format") != "table" and not target.get("legendFormat"):
        yield "has neither a legend nor table format"
    if target["instant"] is target["range"]:
        yield "must be either instant or a range"
    yield from (f"names no metric {metric}" for metric in sorted(unknown_metrics(target["expr"])))
    if re.search(
        r"lowmark_(?!service|collect|loop)\w+(?!\w)(?!\{[^}]*stream=~\"\$stream\",query=~\"\$query\")", target["expr"]
    ):
        yield "does not select $stream and $query everywhere"


def overlaps(dashboard: Json) -> list[str]:
    taken: dict[tuple[int, int], str] = {}
    found = []
    for panel in dashboard["panels"]:
        at, title = panel["gridPos"], panel["title"]
        cells = [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        others = {taken[cell] for cell in cells if cell in taken}
        found += [f'panels "{other}" and "{title}" overlap' for other in sorted(others)]
        taken.update(dict.fromkeys(cells, title))
    return found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboards_are_sound(name: str) -> None:
    assert dashboard_problems(DASHBOARDS[name]) == []


def test_there_are_no_other_dashboards_and_their_names_are_their_own() -> None:
    assert {path.stem for path in GRAFANA.glob("*.json")} == DASHBOARDS.keys()
    assert len({board["uid"] for board in DASHBOARDS.values()}) == len(DASHBOARDS)
    titles = [panel["title"] for board in DASHBOARDS.values() for panel in panels(board) if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)  # the test identifies queries by their panels' titles
    assert all("lowmark" in board["tags"] for board in DASHBOARDS.values())  # dashboards link by this tag


# Metrics without a panel, and the reason.
OFF_THE_DASHBOARDS = {
    "lowmark_regressions_total": "a split that goes back in its own order is no fault: most topics do a little",
    "lowmark_late_reports_total": "shown by split",
    "lowmark_loop_calls_total": "the time they take is what counts",
    "lowmark_set_by_hand_info": "values and persons, which `lowmark status`, `explain` and the page show",
    "lowmark_left_out_by_hand_info": "names and persons, which `lowmark status` shows; their number is on a dashboard",
}


def test_every_other_metric_is_on_a_dashboard() -> None:
    shown = set(re.findall(r"\blowmark_\w+", json.dumps(DASHBOARDS)))
    hidden = {name for name in exported() - shown if not name.endswith(("_gap_seconds_sum", "_gap_seconds_count"))}
    assert hidden == OFF_THE_DASHBOARDS.keys()


def test_the_docs_list_every_metric_with_what_it_says_of_itself() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"(?m)^\| `(lowmark_\w+)` \| \w+ \| (.*) \|$", page))
    made = {}
    for family in StreamCollector(NoRuns()).collect():
        suffix = "" if family.type == "histogram" else SUFFIXES[family.type][0]
        made[family.name + suffix] = family.documentation.partition(" By split, for up to")[0]
    assert shown == made


def test_the_names_in_the_docs_are_names() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    said = "".join(page.read_text(encoding="utf-8").replace("lowmark_split_`", "") for page in pages)
    others = {
        f"lowmark_{name}" for name in (*SOURCES, "report_gap_seconds", "heartbeat_orders")
    }  # formats, a source's name
    assert unknown_metrics(said) - others == set()


def test_lines_go_on_over_a_restart_of_the_driver_at_another_port() -> None:
    for board in DASHBOARDS.values():
        for panel in panels(board):
            for target in panel.get("targets", []):
                if panel["type"] == "timeseries" and "{{stream}}" in target["legendFormat"]:
                    wanted = r"(sum|max) by \(stream, query(, \w+)*\)"
                    assert re.search(wanted, target["expr"]), target["expr"]


def test_the_provisioning_names_no_address() -> None:
    files = sorted((GRAFANA / "provisioning").rglob("*.yml"))
    assert [file.name for file in files] == ["lowmark.yml", "prometheus.yml"]
    for file in files:
        text = file.read_text()
        assert "apiVersion: 1" in text
        assert not re.search(r"https?://|localhost|127\.", text)


def test_the_dashboard_shows_what_a_person_asks_at_night() -> None:
    text = json.dumps([target["expr"] for panel in panels(DASHBOARD) for target in panel.get("targets", [])])
    for metric in (
        "lowmark_low_watermark_timestamp_seconds",
        "lowmark_holder_info",
        "lowmark_split_watermark_timestamp_seconds",
        "lowmark_splits{",
        "lowmark_rows_total",
        "lowmark_dropped_rows_total",
        "lowmark_future_rows_total",
        "lowmark_split_backlog_rows",
    ):
        assert metric in text


def _target(dashboard: Json) -> Json:
    found: Json = dashboard["panels"][1]["targets"][0]
    return found


def _rename(dashboard: Json) -> None:
    target = _target(dashboard)
    target["expr"] = target["expr"].replace("lowmark_low_watermark_timestamp", "lowmark_low_watermark_time")


PLANTED: dict[str, tuple[Callable[[Json], object], str]] = {
    "wrong metric": (_rename, "names no metric lowmark_low_watermark_time_seconds"),
    "wrong metric in a variable": (
        lambda d: d["templating"]["list"][1]["query"].update(query="label_values(lowmark_up, stream)"),
        "variable stream: no metric lowmark_up",
    ),
    "counter without _total": (
        lambda d: _target(d).update(expr='lowmark_rows{stream=~"$stream",query=~"$query"}'), "no metric lowmark_rows"
    ),
    "selector left out": (
        lambda d: _target(d).update(expr="lowmark_rows_total"), "does not select $stream and $query everywhere"
    ),
    "id twice": (lambda d: d["panels"][1].update(id=d["panels"][2]["id"]), "two panels have the id 3"),
    "title twice": (lambda d: d["panels"][1].update(title="Rows by split"), 'two panels are called "Rows by split"'),
    "overlap": (lambda d: d["panels"][2]["gridPos"].update(x=6), 'behind by" and "Who holds it" overlap'),
    "too wide": (lambda d: d["panels"][3]["gridPos"].update(w=7), "does not fit into 24 columns"),
    "no expr": (lambda d: _target(d).update(expr=" "), "target A has no expr"),
    "no legend": (lambda d: _target(d).pop("legendFormat"), "neither a legend nor table format"),
    "not what good is": (
        lambda d: d["panels"][1].update(description="How old it is."), "does not say what good looks like"
    ),
    "no unit": (lambda d: d["panels"][1]["fieldConfig"]["defaults"].pop("unit"), "no unit"),
    "no targets": (lambda d: d["panels"][1].update(targets=[]), "no targets"),
    "refId twice": (lambda d: d["panels"][2]["targets"][1].update(refId="A"), "refIds come twice"),
    "neither instant nor range": (lambda d: _target(d).update(instant=False), "either instant or a range"),
    "unknown panel": (lambda d: d["panels"][1].update(type="graph"), "type graph is not one of"),
    "fixed data source": (lambda d: _target(d).update(datasource={"uid": "abc"}), "is not the variable"),
    "unknown variable": (lambda d: _target(d).update(expr='up{job="$job"}'), "unknown variable $job"),
    "variable left out": (lambda d: d["templating"]["list"].pop(2), "no template variable query"),
    "address": (lambda d: d.update(links=[{"url": "http://grafana.example/d/1"}]), "an address: http://grafana.example/d/1"),
    "old schema": (lambda d: d.update(schemaVersion=36), "older than Grafana 10"),
    "id of a database": (lambda d: d.update(id=7), "expected null"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_in_the_dashboard_is_found(mistake: str) -> None:
    plant, expected = PLANTED[mistake]
    dashboard = copy.deepcopy(DASHBOARD)
    plant(dashboard)
    assert any(expected in problem for problem in dashboard_problems(dashboard)), dashboard_problems(dashboard)


# --- the alerts ---


def alerts(text: str) -> dict[str, str]:
    """Map the name of each alert to its part of the file."""
    blocks = re.split(r"(?m)^      - alert: ", text)[1:]
    return {block.split("\n", 1)[0]: block for block in blocks}


def test_alerts_and_their_cases_name_only_metrics_that_exist() -> None:
    assert unknown_metrics(ALERTS + CASES) == set()
    assert unknown_metrics("increase(lowmark_late_row_total[5m])") == {"lowmark_late_row_total"}


@pytest.mark.parametrize("name", alerts(ALERTS))
def test_every_alert_says_what_it_means_and_what_to_do(name: str) -> None:
    block = alerts(ALERTS)[name]
    assert re.search(r"severity: (critical|warning)\n", block)
    for annotation in ("summary", "description", "action"):
        assert re.search(rf"(?m)^          {annotation}: .*\S", block), f"{name} lacks {annotation}"
    assert f'          runbook_url: "docs/alerts.md#{name.lower()}"\n' in block  # Markdown's link to a heading


def test_the_alert_on_dropped_rows_knows_that_an_adopted_checkpoint_brings_native_spark_s_watermark() -> None:
    """Rows behind it are dropped whatever the strategy says, and the alert asked for a larger bound."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    paragraph = page.partition("### LowmarkRowsDropped\n")[2].partition("###")[0]
    assert "native Spark had passed them before `lowmark adopt`" in alerts(ALERTS)["LowmarkRowsDropped"]
    assert "on an adopted checkpoint" in paragraph


def test_the_alert_on_unusable_rows_knows_that_null_may_name_a_split() -> None:
    """The alert said that rows without a split move no watermark, while status named split null as the holder."""
    assert "else null names\n            a split, which holds" in alerts(ALERTS)["LowmarkRowsUnusable"]


def test_every_alert_has_its_paragraph_in_the_docs_and_no_other_has() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    paragraphs = re.findall(r"(?m)^### (\w+)\n\n\*(critical|warning)\*, .*\S", page)
    severities = re.findall(r"alert: (\w+)\n(?s:.*?)severity: (\w+)\n", ALERTS)
    assert paragraphs == severities  # the page has the order and the severities of the rules


def promtool(program: Path, folder: Path, rules: str, *command: str, file: str) -> subprocess.CompletedProcess[str]:
    (folder / "alerts.yml").write_text(rules)
    (folder / "alerts_test.yml").write_text(CASES)
    return subprocess.run(
        [program, *command, file], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_rules_are_valid_and_their_cases_pass(promtool_binary: Path, tmp_path: Path) -> None:
    checked = promtool(promtool_binary, tmp_path, ALERTS, "check", "rules", file="alerts.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool(promtool_binary, tmp_path, ALERTS, "test", "rules", file="alerts_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.slow
def test_rows_that_were_dropped_before_the_first_scrape_are_in_the_overview(
    promtool_binary: Path, tmp_path: Path
) -> None:
    """For Prometheus, a counter that begins at 500 has not increased."""
    [shown] = [panel for panel in panels(DASHBOARDS["overview"]) if panel["title"] == "Rows dropped in the time shown"]
    [target] = shown["targets"]
    values = {
        "dropped long ago": "7x120",
        "dropped before its first scrape": "_x90 500x30",
        "dropped later": "0x90 4x30",
        "dropped in a driver that is gone": "2x80 5x10",
        "dropped by a run between two others": "_x70 40x3",
    }
    name = "lowmark_dropped_rows_total"
    expression = target["expr"].replace("$__range", "1h").replace("$stream", ".*").replace("$query", ".*")
    case = {
        "interval": "1m",
        "input_series": [{"series": f'{name}{{stream="{each}"}}', "values": of} for each, of in values.items()],
        "promql_expr_test": [
            {"expr": f"round({expression})", "eval_time": "2h", "exp_samples": [{"labels": "{}", "value": 547}]}
        ],
    }
    file = tmp_path / "overview_test.yml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [case]}))
    tested = subprocess.run([promtool_binary, "test", "rules", file], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


# alert -> changes that make it fire wrongly; a case without an alert must notice each change.
TOO_EAGER = {
    "LowmarkDown": [("== 0", ">= 0"), ("for: 2m", "for: 0m"), ('job="lowmark"', 'job=~".*"')],
    "LowmarkAbsent": [('up{job="lowmark"}', 'up{job="lowmark"} == 1')],
    "LowmarkServiceDead": [("> 0", ">= 0")],
    "LowmarkCollectFailing": [("[5m]", "[30m]")],
    "LowmarkQueryFailed": [("> 0", ">= 0")],
    "LowmarkQuerySilent": [("> 900", "> 0")],
    "LowmarkHeartbeatSilent": [("> 120", ">= 0"), ("for: 5m", "for: 0m")],
    "LowmarkCoordinatorAway": [("== 0", ">= 0"), ("for: 2m", "for: 0m")],
    "LowmarkWatermarkStuck": [
        ("> 900", "> -1"),
        ("increase(lowmark_rows_total[10m]) > 0", "increase(lowmark_rows_total[10m]) >= 0"),
    ],
    "LowmarkSplitsPending": [
        ("> 0", ">= 0"),
        ("for: 10m", "for: 1m"),
        ("and on (job, instance, stream, query) lowmark_low_watermark_moved_timestamp_seconds", ""),
        ('and on (job, instance, stream, query) lowmark_holder_info{state="pending"}', ""),
    ],
    "LowmarkSplitHolding": [
        ("> 3600", ">= 3600"),
        ("for: 30m", "for: 1m"),
        ("and on (job, instance, stream, query) lowmark_low_watermark_moved_timestamp_seconds", ""),
    ],
    "LowmarkSplitLagging": [("for: 10m", "for: 1m")],
    "LowmarkRowsDropped": [
        ("]) > 0", "]) >= 0"),
        ("last_over_time(lowmark_dropped_rows_total[6h] offset 10m)", "vector(1)"),
    ],
    "LowmarkRowsSkipped": [("]) > 0", "]) >= 0"), ('metric="data_losses"', 'metric=~".*"')],
    "LowmarkFutureTimestamps": [("]) > 0", "]) >= 0")],
    "LowmarkRowsUnusable": [("]) > 0", "]) >= 0")],
    "LowmarkBatchesUnmeasured": [("]) > 0", "]) >= 0")],
}


def test_every_alert_has_a_planted_mistake() -> None:
    assert TOO_EAGER.keys() == alerts(ALERTS).keys()


@pytest.mark.parametrize("name", TOO_EAGER)
def test_the_cases_notice_an_alert_that_never_fires_and_one_that_is_too_eager(
    promtool_binary: Path, tmp_path: Path, name: str
) -> None:
    block = alerts(ALERTS)[name]
    never = re.sub(r"expr: .*?(?=\n        (?:for|labels):)", "expr: vector(0) > 1", block, flags=re.DOTALL)
    eager = [block.replace(*change) for change in TOO_EAGER[name]]
    assert block not in (never, *eager)
    head, *cases = CASES.split("\n  - name: ")
    its_own = "\n  - name: ".join([head, *(case for case in cases if f'"{name}"' in case)])
    rules = ALERTS[: ALERTS.index("      - alert: ")] + "      - alert: "
    files = list[str]()
    for number, text in enumerate((block, never, *eager)):  # one process for all, because its start takes longest
        (tmp_path / f"rules_{number}.yml").write_text(rules + text)
        files.append(f"cases_{number}.yml")
        (tmp_path / files[-1]).write_text(its_own.replace("- alerts.yml", f"- rules_{number}.yml"))
    said = subprocess.run(
        [promtool_binary, "test", "rules", *files],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    ).stdout  # fmt: skip
    first, right, *wrong = said.split("Unit Testing:  ")
    assert (first, right.split()) == ("", ["cases_0.yml", "SUCCESS"]), said
    for changed, told in zip((never, *eager), wrong, strict=True):
        assert "  FAILED:\n" in told, f"nobody noticed that {name} is\n{changed[:400]}"
        assert f'alertname="{name}"' in told, told
