"""One Spark session for all tests, because a session takes seconds to start; one environment on every machine."""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from lowmark.integration.spark.session import SHORT_LIVED_JVM, clean_environment

from tests import watchdog
from tests.halves import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401  # pytest finds them by name
from tests.servers import class_archive
from tests.servers.chromium import chromium
from tests.servers.kafka import Broker, kafka_broker
from tests.servers.kinesis import KINESIS_ACCESS, Kinesis, kinesis_server
from tests.servers.local import jars, require_binary, require_jars, require_java, wait_until
from tests.servers.pravega import Pravega, pravega_server
from tests.servers.python_forks import python_forks
from tests.sparks import WITHOUT_CODEGEN, YOUNG_OBJECTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

SERVERS = {
    "browser",
    "kafka",
    "kafka_jars",
    "kinesis",
    "pravega",
    "prometheus_binary",
}  # fixtures that need a server

SECONDS = {"slow": 10, "spark": 8, "live": 4}
"""Approximate seconds of a test, by its first mark in this order; tests without these marks take almost no time."""

# The JVM's warnings and errors go to a file in the session's temporary folder, not between pytest's lines.
LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(watchdog)
    gc.disable()  # until the tests are collected, because what a collection makes stays
    # Spark, its Python workers and this process use the same time zone and the same interpreter.
    os.environ["TZ"] = "UTC"
    time.tzset()
    clean_environment()
    os.environ.update(class_archive.share())
    # boto3 looks at these variables first, here and in Spark's processes, so it never finds a user's account.
    os.environ["AWS_ACCESS_KEY_ID"] = KINESIS_ACCESS["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = KINESIS_ACCESS["aws_secret_access_key"]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads for matrices spin for a while as each process starts
    # Typer makes all commands of the command line anew for each call of a test, 40 ms of it, and they never change.
    typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use the session `spark`, and tests that use a server `live`."""
    for item in items:
        if not SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("live")
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    if hasattr(config, "workerinput"):  # a process runs whole files: begin with the longest
        seconds: Counter[Path] = Counter()
        for item in items:
            seconds[item.path] += next((s for mark, s in SECONDS.items() if item.get_closest_marker(mark)), 0)
        items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish() -> None:
    """Leave what the collection made out of Python's collections of garbage: a full one takes half a second."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give this process its own folder for sockets, apart from the services of other processes and of the user."""
    # The lean home makes Spark's Python processes start faster; the tests start hundreds of them.
    os.environ["SPARK_HOME"] = str(class_archive.home())
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session", autouse=True)
def _no_thread_of_a_test_works_on_and_on() -> Iterator[None]:
    """Fail at the end if a test left a thread that never rests: it takes processor time from all later tests."""
    yield
    looked, used = time.monotonic(), time.process_time()

    def rests() -> bool:
        nonlocal looked, used
        before, used_before = looked, used
        if time.monotonic() < before + 0.3:
            return False
        looked, used = time.monotonic(), time.process_time()
        return used - used_before < (looked - before) / 10

    names = sorted(thread.name for thread in threading.enumerate())
    wait_until(rests, f"no thread that a test left works on and on; it is one of {names}", seconds=20)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, UTC, and Kafka's connector on the class path if its jars are installed."""
    require_java()
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # pytest gives its handler to each logger that keeps its records, and PySpark's loggers would make the handler write
    # JSON, in all later tests, after the first error of an SQL text.
    PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[assignment,method-assign]

    folder = tmp_path_factory.mktemp("spark")
    (folder / "log4j2.properties").write_text(LOG4J.format(log=folder / "spark.log"))
    options = " ".join(
        [
            f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
            f"-Dderby.system.home={folder / 'derby'}",
            "-Duser.timezone=UTC",
            SHORT_LIVED_JVM,
            YOUNG_OBJECTS,
        ]
    )
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",  # takes effect because this process starts the JVM
        "spark.driver.extraJavaOptions": options,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        **WITHOUT_CODEGEN,
        "spark.python.worker.reuse": "true",
        "spark.sql.streaming.stopTimeout": "60s",
        # With more partitions than Spark's default of 64, Spark creates every consumer anew in every batch.
        "spark.kafka.consumer.cache.capacity": "256",
        **class_archive.local_files(checksums=False),
        "spark.jars": ",".join(str(jar) for jar in jars("spark-kafka")),
    }
    with python_forks(folder) as program:
        with pytest.MonkeyPatch.context() as patch:  # other sessions start Python as users do
            patch.setenv("PYSPARK_PYTHON", str(program))
            builder = SparkSession.builder.master("local[2]").appName("lowmark-tests")
            session = builder.config(map=settings).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop queries that a failed test left running, because they would disturb later tests."""
    yield
    if "spark" not in request.fixturenames:
        return
    session: SparkSession = request.getfixturevalue("spark")
    for query in session.streams.active:
        query.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A checkpoint folder for one test."""
    return str(tmp_path / "checkpoint")


# --- servers, shared by the whole run or by a file; a test makes its own topic or stream: `kafka.create_topic()` ---


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The shared broker. A test that stops or kills a broker starts its own: `with kafka_broker(tmp_path)`."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinesis]:
    """The shared server with Kinesis' API; each test has its own streams: `kinesis.create_stream()`."""
    with kinesis_server(tmp_path_factory.mktemp("kinesis")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """The jars of Spark's Kafka connector on `spark`'s class path. Skip or fail the test if they are missing."""
    return require_jars("spark-kafka")


@pytest.fixture(scope="module")
def pravega(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pravega]:
    """The Pravega of a file, because an idle one takes a tenth of a core; each test has its own streams:
    `pravega.create_stream()`.
    """
    with pravega_server(tmp_path_factory.mktemp("pravega")) as server:
        yield server


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    return require_binary("prometheus")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a file; each test has its own page: `browser.new_page()`.

    While the browser runs, playwright keeps an event loop in this thread, so `asyncio.run` raises.
    """
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def promtool_binary() -> Path:
    return require_binary("promtool")
