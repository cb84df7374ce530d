"""The Python of Spark's workers: by default the application's own, otherwise checked before it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.errors import WorkersUnfit
from lowmark.integration.spark import workers
from lowmark.sources import Boundedness, DeferredSource, HybridSource
from lowmark.sources.kafka import KafkaSource
from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.pravega import PravegaSource
from lowmark.sources.spark import prefer_own_python

from tests.integration.log import LogSource
from tests.servers.local import require_java


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python of this version without packages, as `python3` in a folder for the PATH."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    python.chmod(0o755)
    return python


def session(python: str, *, master: str = "local[2]", named: str | None = None) -> Any:
    context = SimpleNamespace(
        pythonExec=python, master=master, applicationId=f"app-{python}", _python_includes=[],
        getConf=lambda: SimpleNamespace(get={"spark.pyspark.python": named}.get),
    )  # fmt: skip
    return SimpleNamespace(sparkContext=context)


@pytest.mark.slow
@pytest.mark.spark
def test_an_application_without_an_activated_environment_just_works_and_another_python_is_named(
    bare: Path, tmp_path: Path
) -> None:
    """Spark would take `python3` of the PATH, which has no lowmark."""
    require_java()
    foreign = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    environment["PATH"] = f"{bare.parent}:{environment['PATH']}"
    app = Path(__file__).with_name("plain_app.py")
    command = [sys.executable, str(app), str(tmp_path), str(bare)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=environment)

    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["rows"], found["low_us"]) == (1, 1_699_999_989_999_000)
    assert found["refused"].startswith("Spark's workers on this host run ")
    assert "No module named 'lowmark'" in found["refused"]
    assert "Hint: set PYSPARK_PYTHON (or spark.pyspark.python" in found["refused"]
    assert found["refused"].endswith("; or install there: grpcio msgspec numpy pyarrow.")


def test_what_a_stream_needs() -> None:
    kafka = KafkaSource(bootstrap_servers="broker:9092", topics=["orders"])
    always = dict.fromkeys(("pyarrow", "numpy", "lowmark.integration.transport.heartbeat"), "lowmark")
    read = always | dict.fromkeys(("mmh3", "xxhash", "msgspec"), "lowmark")

    assert workers.needed() == always
    assert workers.needed(LogSource(Path())) == read
    assert workers.needed(kafka) == read | {"confluent_kafka": "KafkaSource"}
    pravega = PravegaSource(controller="tcp://pravega:9090", scope="shop", streams=["orders"])
    assert workers.needed(pravega) == read | {"jpype": "PravegaSource"}
    kinesis = KinesisSource(streams=["orders"], region="eu-central-1")
    assert workers.needed(kinesis) == read | {"boto3": "KinesisSource"}


class Abroad(LogSource):
    """A source of a user, who says what its workers need."""

    requires = ("no_such_client", "mmh3")


class Finite(LogSource):
    bounded = True


def test_a_source_of_sources_needs_what_each_of_them_needs() -> None:
    later = DeferredSource(lambda _: Abroad(Path()), Boundedness.CONTINUOUS_UNBOUNDED, requires=("no_such_client",))
    assert HybridSource(Finite(Path()), Abroad(Path())).requires == ("no_such_client", "mmh3")
    assert HybridSource(Finite(Path()), later).requires == ("no_such_client",)


@pytest.mark.slow
def test_an_error_names_the_source_and_the_packages_that_its_workers_lack(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_python_path", lambda _: [])
    modules = {"grpc": "lowmark", "boto3.session": "Abroad"} | dict.fromkeys(Abroad.requires, "Abroad")
    monkeypatch.setattr(workers, "_TO_ASK", {})
    with pytest.raises(WorkersUnfit) as raised:
        workers.check(session(str(bare)), modules)

    assert str(raised.value).startswith(
        f"Spark's workers on this host run {Path(sys.executable).resolve()}: it cannot import what lowmark needs there "
        "(ModuleNotFoundError: No module named 'grpc'), nor what Abroad needs there (ModuleNotFoundError: No module "
        "named 'boto3'; ModuleNotFoundError: No module named 'no_such_client'; ModuleNotFoundError: No module named "
        "'mmh3'). Hint: "
    )
    assert raised.value.missing == ("grpcio", "boto3", "no_such_client", "mmh3"), "as pip calls the installed ones"


def test_a_python_is_looked_at_once_and_again_only_for_what_is_new(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = subprocess.run

    def note(command: list[str], **options: Any) -> Any:
        asked.append(command[3:])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", note)
    monkeypatch.setattr(workers, "_TO_ASK", {})
    monkeypatch.setattr(workers, "_python_path", lambda _: [])
    there = session(str(bare))
    json_alone = {"json": "lowmark"}
    workers.check(there, json_alone)
    workers.check(there, json_alone)
    workers.check(there, {**json_alone, "zlib": "lowmark"})
    for _ in range(2):  # an unfit Python is checked again
        with pytest.raises(WorkersUnfit, match=r"No module named 'mmh3'\)\. Hint: .*; or install there: mmh3\.$"):
            workers.check(there, {"zlib": "lowmark", "mmh3": "lowmark"})
    workers.check(session(sys.executable), {"no_such_module": "lowmark"})  # a local session's own Python is not checked

    assert asked == [["json"], ["zlib"], ["mmh3"], ["mmh3"]]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 3", r"it does not run \(\)"),
        ("echo no; echo it is broken >&2; exit 1", r"it does not run \(it is broken\)"),
        (
            """echo '["/usr/bin/python2", "2.7", []]'""",
            r"run /usr/bin/python2: it is Python 2.7, and the driver's is 3",
        ),
        ("exit 0", r"it does not answer as Python \(\)"),
        ("echo a wrapper says good-bye", r"it does not answer as Python \(a wrapper says good-bye\)"),
        ("echo 7", r"it does not answer as Python \(7\)"),
        (r"printf '\377'; printf '\377' >&2; exit 2", "it does not run \\(\ufffd\\)"),
    ],
)
def test_a_python_that_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str) -> None:
    monkeypatch.setattr(workers, "_python_path", lambda _: [])
    (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(WorkersUnfit, match=text):
        workers.check(session(str(tmp_path / "python")), {"json": "lowmark"})


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_python_path", lambda _: [])
    with pytest.raises(WorkersUnfit, match=r"workers on this host run /no/python: it does not run \(.*No such file"):
        workers.check(session("/no/python"), {"json": "lowmark"})


@pytest.mark.parametrize(
    ("master", "environment", "named", "python"),
    [
        ("local[*]", {}, None, sys.executable),
        ("local", {}, None, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "said"}, None, "python3"),
        ("local[2]", {}, "said", "said"),
        ("spark://host:7077", {}, None, "python3"),
    ],
)
def test_whose_python_a_session_takes(
    monkeypatch: pytest.MonkeyPatch, master: str, environment: dict[str, str], named: str | None, python: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = session("python3", master=master, named=named)
    prefer_own_python(made)

    assert made.sparkContext.pythonExec == python


@pytest.mark.parametrize(
    ("spark_says", "fact"),
    [
        ("[X] ...\nModuleNotFoundError: No module named 'lowmark'\n SQLSTATE: 1", "lowmark.ship(spark)"),
        ("[X] ...\n  ModuleNotFoundError: No module named 'msgspec._core'\n", "No module named 'msgspec._core'. Hint"),
        ("[TABLE_OR_VIEW_NOT_FOUND] orders", None),
    ],
)  # fmt: skip
def test_a_server_that_cannot_run_lowmark_is_named_in_one_line(spark_says: str, fact: str | None) -> None:
    with pytest.raises(RuntimeError if fact is None else WorkersUnfit) as found, workers.on_the_server():
        raise RuntimeError(spark_says)
    assert fact is None or (fact in str(found.value) and "beside the server of Spark Connect" in str(found.value))
