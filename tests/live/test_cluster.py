"""An application on a standalone cluster of two workers; one of its executors is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lowmark.integration.spark.session import SHORT_LIVED_JVM

from tests.drivers.cluster import WORKER, worker_program
from tests.servers import class_archive
from tests.servers.local import LOCALHOST, ROOT, Process, free_ports, port_open, require_java

HOME = class_archive.home()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Start a master and two workers of one core each, without lowmark."""
    [port] = free_ports(1)
    url = f"spark://{LOCALHOST}:{port}"
    environment = ["env", "-i", f"SPARK_HOME={HOME}", f"SPARK_LOCAL_IP={LOCALHOST}", f"PATH={os.environ['PATH']}"]
    environment += ["SPARK_SCALA_VERSION=2.13"]  # as bin/spark-class sets it
    environment += [f"JAVA_HOME={os.environ['JAVA_HOME']}"] if "JAVA_HOME" in os.environ else []
    run = [*environment, require_java(), "-Xmx256m", *SHORT_LIVED_JVM.split(), "-cp", f"{HOME}/jars/*"]
    at = ["--webui-port", "0", "--host"]
    deployed = "org.apache.spark.deploy"
    nodes = [
        Process(
            "a master",
            [*run, f"{deployed}.master.Master", *at, LOCALHOST, "--port", str(port)],
            tmp_path / "master.log",
        )
    ]
    for n, host in enumerate((LOCALHOST, "localhost")):  # Spark does not retry a task on the same host
        command = [*run, f"{deployed}.worker.Worker", *at, host, "--cores", "1", "--memory", "1g"]
        command += ["--work-dir", str(tmp_path / f"work-{n}"), url]
        nodes.append(Process("a worker", command, tmp_path / f"worker-{n}.log"))

    def joined(log: Path) -> bool:
        return "Successfully registered with master" in log.read_text()

    try:
        nodes[0].start(lambda: port_open(port))
        for worker in nodes[1:]:
            worker.start(lambda log=worker.log: joined(log))  # type: ignore[misc]
        yield url
    finally:
        for node in reversed(nodes):
            node.stop()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
def test_pitfall_28_a_lost_executor_changes_nothing_and_executors_need_nothing_but_what_is_shipped(
    master: str, tmp_path: Path
) -> None:
    command = [
        str(HOME / "bin" / "spark-submit"),
        "--master",
        master,
        str(ROOT / "tests" / "drivers" / "cluster.py"),
    ]
    # The driver and the workers use one name for Python, and each host finds its own program by it.
    here = worker_program(tmp_path / "here", Path(sys.executable))
    places = {"SPARK_HOME": str(HOME), "PYTHONPATH": str(ROOT), "PATH": f"{here}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, **places, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": WORKER}, cwd=tmp_path,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-3_000:] + ran.stderr[-1_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    lacks = found.pop("lacks")
    assert lacks.startswith("Spark's workers on executor ")
    assert "it cannot import what Abroad needs there (ModuleNotFoundError: No module named 'tests')" in lacks
    before = found.pop("before")
    assert before.startswith("Spark's workers on executor ")
    assert "No module named 'lowmark'" in before, "nothing of it is there before it is shipped"
    speculated = found.pop("speculated")
    assert {"1-0", "1-1"} <= {*speculated["tried"]}, "the second task was tried by two executors at once"
    assert speculated["measured"] == 8, "an attempt that was given up changes nothing"
    assert speculated["low"] == 29.999
    assert speculated["windows"] == [[10 * n, "slow", 1] for n in range(2)]
    assert found == {
        "read": 50,
        "killed": 1,
        "low": 299.999,
        "dropped": 0,
        "windows": [[100 * n, "slow", 1] for n in range(3)],
    }
