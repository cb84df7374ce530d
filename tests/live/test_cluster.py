"""Executors in processes of their own, and one of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.servers import require_java


@pytest.mark.slow
@pytest.mark.spark
def test_pitfall_28_a_lost_executor_changes_nothing_and_executors_need_nothing_but_what_is_shipped(
    tmp_path: Path,
) -> None:
    require_java()
    command = [sys.executable, "-m", "tests.live.cluster_driver", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)

    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    lacks = found.pop("lacks")
    assert lacks.startswith("Spark's workers on ")
    assert "No module named 'confluent_kafka.no_such_part'" in lacks
    before = found.pop("before")
    assert before.startswith("Spark's workers on executor ")
    assert "No module named 'lowmark'" in before, "nothing of it is there before it is shipped"
    assert found == {
        "read": 50,
        "killed": 1,
        "low": 499.999,
        "dropped": 0,
        "windows": [[100 * n, "slow", 1] for n in range(5)],
    }
