"""A new user's first ten minutes as a script: an empty home, the wheel, an environment without activation, the README.

It runs on the oldest and the newest Spark; the fixture `version` names both. The environments of `make sparks` provide
pyspark, and the tests' own environment provides lowmark's other requirements, so no registry is needed; pip confirms
that nothing is missing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from lowmark.integration.spark.session import SHORT_LIVED_JVM

from tests.commands.version_table import environments
from tests.packages import built_once
from tests.servers.kafka import Broker, Record
from tests.servers.local import ROOT, require_jars, require_java, tail, unavailable, wait_until
from tests.test_wheel import install, make_environment

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.slow]

EXTRAS = {
    "kafka": ("lowmark.sources.kafka", "confluent_kafka"),
    "kinesis": ("lowmark.sources.kinesis", "boto3"),
    "pravega": ("lowmark.sources.pravega", "jpype"),
}
NOW_MS = 1_700_000_040_000  # a full minute
SECONDS = 120
# These settings only save seconds of the test.
SMALL = (
    "--conf spark.sql.shuffle.partitions=1 --conf spark.ui.enabled=false --conf spark.sql.streaming.pollingDelay=50ms "
    f"--driver-java-options '{SHORT_LIVED_JVM}'"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory.getbasetemp())[0]


def packages(python: Path) -> str:
    [found] = python.parents[1].glob("lib/python*/site-packages")
    return str(found)


@pytest.fixture(scope="module", params=[min(environments()), max(environments())])
def version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    if not environments()[version].exists():
        unavailable(f"the environment of Spark {version}", "run make sparks")
    return version


@pytest.fixture(scope="module")
def bin_(version: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the wheel and this Spark."""
    sparks = environments()
    lent = [packages(sparks[version]), packages(ROOT / ".venv" / "bin" / "python")]
    return make_environment(tmp_path_factory.mktemp("project") / ".venv", wheel, lent)


def environment(home: Path) -> dict[str, str]:
    """The environment of a fresh shell, without variables of lowmark or Spark."""
    keep = {key: value for key, value in os.environ.items() if key in {"PATH", "JAVA_HOME", "LD_LIBRARY_PATH"}}
    run = home / "run"
    run.mkdir(parents=True, exist_ok=True)
    return {**keep, "HOME": str(home), "XDG_RUNTIME_DIR": str(run)}


def snippet(bootstrap: str, topic: str) -> str:
    """Return the README's first program, with this broker, a free port and a relative checkpoint."""
    example, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    for here, there in (
        ("localhost:9092", bootstrap),
        ('"subscribe", "orders"', f'"subscribe", "{topic}").option("startingOffsets", "earliest"'),
        ("/tmp/orders", "checkpoint"),
        ("metrics_port=9464", "metrics_port=0"),
    ):
        assert here in example
        example = example.replace(here, there)
    return str(example)


def run(bin_: Path, home: Path, *command: str) -> str:
    ran = subprocess.run(
        [str(bin_ / command[0]), *command[1:]],
        cwd=bin_.parents[1], env=environment(home), capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return ran.stdout


def test_the_readmes_program_runs_from_the_wheel(bin_: Path, version: str, kafka: Broker, tmp_path: Path) -> None:
    require_java()
    home, project = tmp_path / "home", bin_.parents[1]
    install(bin_, f"lowmark[{','.join(EXTRAS)}]")  # pip resolves all requirements, and finds them installed
    assert run(bin_, home, "python", "-c", "import pyspark; print(pyspark.__version__)") == f"{version}\n"

    topic = kafka.create_topic(partitions=2)
    minute = 60_000

    def produce(partition: int, minutes: range) -> None:
        rows = [json.dumps({"at": NOW_MS + n * minute}) for n in minutes]
        kafka.produce(topic, [Record(row, partition) for row in rows])

    produce(0, range(8))  # partition 1 is seven minutes behind
    produce(1, range(1))
    (project / "app.py").write_text(snippet(kafka.bootstrap, topic))
    jars = ",".join(str(jar) for jar in require_jars("spark-kafka", version))  # in place of a user's --packages
    log = tmp_path / "log"
    with log.open("wb") as output:
        app = subprocess.Popen(
            [".venv/bin/python", "app.py"],
            cwd=project, env={**environment(home), "PYSPARK_SUBMIT_ARGS": f"--jars {jars} {SMALL} pyspark-shell"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip

    def printed(rows: int) -> bool:
        """Whether the console shows this many windows of a partition."""
        assert app.poll() is None, f"it ended by itself{tail(log)}"
        return len(re.findall(r"^\|\{2023-11-1[^|]*\| *[01]\| *1\|$", log.read_text(), re.MULTILINE)) >= rows

    try:
        wait_until(lambda: printed(0) and "Batch: 0" in log.read_text(), "the first batch", seconds=SECONDS)
        produce(1, range(1, 8))
        for n in range(8, 11):
            produce(0, range(n, n + 1))
            produce(1, range(n, n + 1))
        try:
            wait_until(lambda: printed(16), "the windows of both partitions", seconds=SECONDS)
        except TimeoutError as late:
            raise TimeoutError(f"{late}{tail(log)}") from late
        said = run(bin_, home, "lowmark", "status")
        assert "orders" in said
        assert f"split {topic}/" in run(bin_, home, "lowmark", "explain", "orders")
    finally:
        os.killpg(app.pid, signal.SIGINT)  # Ctrl-C
        try:
            app.wait(60)
        finally:
            app.kill()
    told = log.read_text()
    assert "query.awaitTermination()" in told, "it ended where it waited"
    assert "No module named" not in told


def test_imports_are_fast_with_each_extra(bin_: Path, version: str, tmp_path: Path) -> None:
    """Processor seconds in addition to pyspark's: of lowmark itself, then of each extra."""
    code = """
import importlib, json, sys, time
import pyspark.sql, pyspark.sql.streaming, pyspark.sql.datasource
try: import pyspark.sql.streaming.datasource
except ImportError: pass
def taken(names):
    begun = time.process_time()
    for name in names: importlib.import_module(name)
    return time.process_time() - begun
begun = time.process_time()
from lowmark import LowWatermarkService, WatermarkStrategy
own = time.process_time() - begun
print(json.dumps({"": own, **{extra: taken(names) for extra, names in json.loads(sys.argv[1]).items()}}))
"""
    needed = json.loads(run(bin_, tmp_path / "home", "python", "-c", code, json.dumps(EXTRAS)))
    assert {extra: seconds for extra, seconds in needed.items() if seconds >= 1} == {}
