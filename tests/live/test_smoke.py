"""Each server has the basic functions that the other live tests rely on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.servers import class_archive
from tests.servers.kafka import Broker, Record, kafka_broker
from tests.servers.local import http_get, wait_until
from tests.servers.prometheus import prometheus_server
from tests.servers.python_forks import python_forks

pytestmark = pytest.mark.live


def test_spark_reads_what_was_produced_to_a_real_broker(
    spark: SparkSession, kafka: Broker, kafka_jars: list[Path]
) -> None:
    topic = kafka.create_topic(partitions=4)
    records = [Record(json.dumps({"n": n}), partition=n % 4, timestamp_ms=1_000 * n + 1) for n in range(100)]
    assert kafka.produce(topic, records) == 100

    frame = (
        spark.read.format("kafka").options(**{"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}).load()
    )
    rows = frame.selectExpr("cast(value as string) v", "partition", "unix_millis(timestamp) ms").collect()

    assert sorted((json.loads(row.v)["n"], row.partition, row.ms) for row in rows) == [
        (n, n % 4, 1_000 * n + 1) for n in range(100)
    ]
    assert kafka.end_offsets(topic) == dict.fromkeys(range(4), 25)


def test_a_broker_keeps_its_records_over_a_stop(tmp_path: Path) -> None:
    """Over a kill: test_kafka_source_faults."""
    with kafka_broker(tmp_path) as broker:
        topic = broker.create_topic(partitions=1)
        broker.produce_json(topic, [{"n": 0}])
        broker.stop()
        assert not broker.ready()
        broker.restart()
        broker.produce_json(topic, [{"n": 1}])
        broker.add_partitions(topic, 2)
        broker.produce_json(topic, [{"n": 2}], partition=1)
        assert broker.end_offsets(topic) == {0: 2, 1: 1}


def test_a_record_far_ahead_and_one_long_ago_are_both_kept(kafka: Broker) -> None:
    topic = kafka.create_topic()
    year_9999_ms = 253_402_300_799_000
    assert kafka.produce(topic, [Record("old", timestamp_ms=1), Record("new", timestamp_ms=year_9999_ms)]) == 2
    assert kafka.end_offsets(topic) == {0: 2}


def test_prometheus_answers_and_scrapes_itself(tmp_path: Path, prometheus_binary: Path) -> None:
    with prometheus_server(tmp_path) as idle:
        assert http_get(f"{idle}/-/ready")[0] == 200
        target = idle.url.removeprefix("http://")
        with prometheus_server(tmp_path / "second", [target]) as server:
            server.await_targets()
            # A target counts as up shortly before its sample can be queried.
            wait_until(lambda: [sample["value"][1] for sample in server.query("up")] == ["1"], "its sample")
    assert http_get(f"{idle}/-/ready")[0] == 0


def test_an_archive_older_than_sparks_jars_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "spark-home" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(class_archive, "home", lambda: jar.parents[1])
    assert not class_archive.is_current(), "no archive exists"
    class_archive.archive().touch()
    for jar_ns, current in ((1, True), (time.time_ns() + 10**12, False)):
        os.utime(jar, ns=(jar_ns, jar_ns))
        assert class_archive.is_current() == current


@pytest.mark.skipif(not class_archive.archive().exists(), reason="`make classes` could not archive Spark's classes")
def test_the_jvms_of_the_tests_take_sparks_classes_from_the_archive(tmp_path: Path) -> None:
    """A JVM with another class path would take none, silently, and start in twice the time."""
    log = tmp_path / "classes"
    options = class_archive.share()["SPARK_SUBMIT_OPTS"].replace("-Xlog:disable", f"-Xlog:class+load:file={log}")
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "SPARK_HOME": str(class_archive.home()), "SPARK_SUBMIT_OPTS": options}
    subprocess.run([program, "--version"], env=environment, capture_output=True, check=True, timeout=60)
    assert log.read_text().count("shared objects file (top)") > 500


@pytest.mark.parametrize("module", ["find_spark_home", "no_such_module"])
def test_a_forked_python_has_environment_output_and_exit_code_of_a_started_one(tmp_path: Path, module: str) -> None:
    with python_forks(tmp_path) as program:
        started, forked = (
            subprocess.run(
                [python, "-m", f"pyspark.{module}"], env={**os.environ, "SPARK_HOME": "at home"},
                capture_output=True, check=False, text=True, timeout=60,
            )
            for python in (sys.executable, program)
        )  # fmt: skip

    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stdout.strip() == ("at home" if module == "find_spark_home" else "")
    assert f"No module named pyspark.{module}" in forked.stderr or forked.returncode == 0


def test_a_fork_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    with python_forks(tmp_path) as program:
        with socket.socket(socket.AF_UNIX) as died:  # before it could say what it wants
            died.connect(str(tmp_path / "forks"))
        command = [str(program), "-m", "pyspark.daemon", "pyspark.worker"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asked:
            assert asked.stdout is not None
            assert len(asked.stdout.read(4)) == 4, "Spark's daemon says its port"
            asked.kill()
            assert asked.stdout.read() == b"", "the fork holds the pipe until it ends"
