"""The demo end to end, as a user runs it, and the figures behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.demo import LaneResult, SplitResult, demo_script

from tests.live.servers import Broker, require_java

LOWMARK = [sys.executable, "-c", "from lowmark.integration.cli import main; main()"]
DEMO_SECONDS = 280


def run_demo(*arguments: str) -> tuple[dict[str, Any], str]:
    """The demo's JSON object and its stderr; it must have gone well and said nothing else."""
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


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """One run of the embedded demo for all tests of its figures."""
    found, said = run_demo("--seed", "42")
    assert said == ""  # no log of Spark's, no warning of ours
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
        # What stays open: the last row of each split that goes on, and the row of next year.
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
    def test_a_seed_gives_its_figures_again(self, figures: dict[str, Any]) -> None:
        again, _ = run_demo("--seed", "42")
        assert again == figures

    def test_another_seed_gives_others(self, figures: dict[str, Any]) -> None:
        other, _ = run_demo("--seed", "7")
        assert other["lowmark"]["rows_dropped"] == 0 < other["native"]["rows_dropped"]
        assert other["splits"] != figures["splits"]

    @pytest.mark.live
    def test_on_a_real_broker_the_figures_are_the_same(
        self, figures: dict[str, Any], kafka: Broker, kafka_jars: list[Path]
    ) -> None:
        jars = ",".join(map(str, kafka_jars))
        topic = f"kept-{uuid.uuid4().hex[:8]}"
        found, said = run_demo("--source", "kafka", "--bootstrap", kafka.bootstrap, "--jars", jars, "--topic", topic)
        assert found == figures
        assert said == ""
        ends = kafka.end_offsets(topic)
        assert ends == {n: split["rows_in"] for n, split in enumerate(figures["splits"].values())}

        refused = subprocess.run(
            [*LOWMARK, "demo", "--source", "kafka", "--bootstrap", kafka.bootstrap, "--jars", jars, "--topic", topic],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEMO_SECONDS,
        )
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == (
            f"lowmark: topic {topic} exists already. Hint: the demo fills a topic of its own: choose another name.\n"
        )
        assert kafka.end_offsets(topic) == ends


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
