"""A notebook's cells, run twice in IPython: the same service, the same name, and the displayed output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.local import ROOT, require_java


@pytest.mark.spark
@pytest.mark.slow
def test_cells_may_be_run_again_and_show_something_short(tmp_path: Path) -> None:
    require_java()
    ran = subprocess.run(
        [sys.executable, "-m", "tests.integration.notebook_app", str(tmp_path)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:] + ran.stdout[-1_000:]
    came = json.loads(ran.stdout.splitlines()[-1])
    first, again = came["twice"]
    assert first[0] == again[0], "the second run of the cell gives the service that runs"
    for _, _, status, explain, service in (first, again):
        assert len(status["text/plain"]) < 1_000
        assert "slow" in explain["text/plain"]
        for shown in (status, explain):
            assert shown["text/html"].startswith("<")
        assert len(service["text/plain"]) < 300
    assert "metrics_port" in came["differs"], "it says what differs"
    assert came["restarted"], "Spark was stopped and started anew: the service that was left behind holds no port"
