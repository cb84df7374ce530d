"""A public name changes together with the list, docs/public.txt, so that no change stays unseen."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from lowmark.integration.cli.main import app
from lowmark.integration.metrics.collector import StreamCollector
from lowmark.sources import files, kafka
from prometheus_client.metrics_core import GaugeMetricFamily

from tests import public

WHAT_TO_DO = "what is public has changed: run `python -m tests.public`; and say it in CHANGELOG.md"


def difference(file: str, now: str) -> str:
    """Lines of a file of docs/ that are not what the code says now, and the other way round; "" for none."""
    kept = (public.ROOT / "docs" / file).read_text(encoding="utf-8")
    lines = difflib.unified_diff(kept.splitlines(), now.splitlines(), f"docs/{file}", "the code", lineterm="", n=0)
    return "\n".join(lines)


def test_what_is_public_is_what_is_listed() -> None:
    changed = difference("public.txt", public.listed())
    assert not changed, f"{WHAT_TO_DO}\n{changed}"


def test_the_schema_of_the_status_is_what_is_listed() -> None:
    changed = difference("status.schema.json", public.schema())
    assert not changed, f"{WHAT_TO_DO}\n{changed}"


def test_the_list_says_of_every_kind_what_a_user_would_miss() -> None:
    chapters = {title: list(lines()) for title, lines in public.CHAPTERS.items()}
    assert all(len(lines) > 4 for lines in chapters.values())
    assert all(len(set(lines)) == len(lines) for lines in chapters.values())
    assert "lowmark.watermark.WatermarkStrategy" in chapters["Names"]
    assert any(line.startswith("lowmark.adopt(checkpoint, streams") for line in chapters["Arguments"])
    assert "lowmark check NAME --connect --patience --json --debug; exit codes 0 1 2" in chapters["Commands"]
    assert any("startingOffsets" in line for line in chapters["Keys of --json"])
    assert "lowmark_dropped_rows_total{stream, query} counter" in chapters["Metrics"]
    assert any("low_us" in line for line in chapters["Checkpoint"])


def test_a_dictionary_that_is_only_looked_up_has_no_keys_of_json(tmp_path: Path) -> None:
    written = tmp_path / "command.py"
    written.write_text(
        'def f(x):\n    y = {"s3": 1}.get(x)\n    z = {"a": 1}[x]\n    show({"files": [{"name": y}]}, z)\n'
    )
    assert public._written_keys(written) == {"files", "name"}


def test_a_name_that_comes_or_goes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "__all__", [*files.__all__, "FileThing"])
    gone, *left = kafka.__all__
    monkeypatch.setattr(kafka, "__all__", left)
    changed = difference("public.txt", public.listed()).splitlines()
    assert f"-    lowmark.sources.kafka.{gone}" in changed
    assert "+    lowmark.sources.files.FileThing" in changed


def test_a_command_and_a_metric_that_come_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands[1:]])
    collected = GaugeMetricFamily("lowmark_new_things", "New.")
    monkeypatch.setattr(StreamCollector, "collect", lambda self: iter([collected]))
    changed = difference("public.txt", public.listed())
    assert "-    lowmark demo --seed" in changed
    assert "+    lowmark_new_things{} gauge" in changed
    assert "-    lowmark_dropped_rows_total{stream, query} counter" in changed
