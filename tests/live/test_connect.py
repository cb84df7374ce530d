"""Spark Connect with a real server: the calls that work for a client, and the errors of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.live.servers import LOCALHOST, ROOT, Process, free_ports, require_java
from tests.sparks import since

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.slow]

SECONDS = 180
PIPELINE = """
from lowmark import LowWatermarkService
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

LowWatermarkService(SparkSession.getActiveSession() or spark)

@dp.materialized_view
def orders():
    return spark.range(1)
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a driver that has a service and a wrapped query, and serves clients."""
    require_java()
    folder = tmp_path_factory.mktemp("connect")
    [port] = free_ports(1)
    log = folder / "log"
    server = Process(
        "Connect's server", [sys.executable, "-m", "tests.live.connect_app", "server", str(folder), str(port)], log
    )
    server.start(lambda: "ready" in log.read_text())
    try:
        yield port
    finally:
        server.stop()


def said(*command: str, **environment: str) -> str:
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return ran.stdout


def test_what_a_client_can_do_and_what_is_refused(port: int, tmp_path: Path) -> None:
    came = json.loads(
        said(sys.executable, "-m", "tests.live.connect_app", "client", str(tmp_path), str(port)).splitlines()[-1]
    )
    assert came["read"] == {"a": 41, "b": 14}, "sources can be read, without a low watermark"
    assert {*came["refused"]} == {"LowWatermarkService", "ship", "adopt", "leave"}
    for what, words in came["refused"].items():
        assert words.startswith(f"SessionUnfit: {what} needs the session of a driver, got a Spark Connect session"), (
            words
        )
        assert words.count("Hint: ") == 1
    # The service in the server's driver can be reached like any other on this machine.
    status = said(sys.executable, "-c", "from lowmark.integration.cli.main import main; main()", "status", "--json")
    assert '"orders"' in status


@since("4.1", "declarative pipelines")
def test_a_declarative_pipeline_is_told_why_not(port: int, tmp_path: Path) -> None:
    (tmp_path / "spec.yml").write_text(
        f"name: orders\nstorage: {(tmp_path / 'storage').as_uri()}\nlibraries:\n  - glob:\n      include: made/**\n"
    )
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "orders.py").write_text(PIPELINE)
    cli = Path(pyspark.__file__).parent / "pipelines" / "cli.py"
    ran = subprocess.run(
        [sys.executable, str(cli), "dry-run", "--spec", str(tmp_path / "spec.yml")],
        cwd=tmp_path, env={**os.environ, "SPARK_REMOTE": f"sc://{LOCALHOST}:{port}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "LowWatermarkService needs the session of a driver, got a Spark Connect session" in ran.stderr
