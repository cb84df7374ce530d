"""Java in a Python process: it starts once in a worker, and refuses in a single line. No Pravega is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.local import ROOT, require_jars, require_java
from tests.servers.pravega import JARS

# As in Spark's daemon: imports first, then a fork for each worker, whose tasks read in short-lived threads.
WORKER = """
import gc, os, sys, threading
from lowmark.sources.pravega import PravegaSource, PravegaUnavailable
from lowmark.sources.pravega.client import client_of
from lowmark.sources.pravega.jvm import leave_java

source = PravegaSource(
    controller="tcp://127.0.0.1:1", scope="s", streams=["o"], jars=sys.argv[2], give_up_after="1 millisecond"
)

def task(n):
    try:
        client_of(source.settings).open_segments("o")
    except PravegaUnavailable:
        os.write(1, b"asked\\n")  # whole, whoever else writes
    leave_java()

if sys.argv[1] == "before":
    client_of(source.settings)
child = os.fork()
if child == 0:
    print("collecting calls", *(each.__module__ for each in gc.callbacks), flush=True)
    try:
        for batch in range(2):
            threads = [threading.Thread(target=task, args=(n,)) for n in range(2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        if sys.argv[1] == "before":
            client_of(source.settings)
    except Exception as failed:
        print(f"{type(failed).__name__}: {failed}", flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


def run(when: str, jars: str, *, seconds: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER, when, jars], cwd=ROOT, env={**os.environ, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _java() -> None:
    require_java()
    require_jars("pravega-client")


def test_a_worker_starts_it_once_whatever_thread_is_first() -> None:
    done = run("in the worker", JARS)
    assert done.stdout.splitlines() == ["collecting calls", *["asked"] * 4], done.stderr


def said_by_a_fork() -> list[str]:
    """Return a fork's output. A fork has the locks of Java's threads without the threads, so it may hang or crash."""
    for _ in range(3):
        with suppress(subprocess.TimeoutExpired):
            said = run("before", JARS, seconds=15).stdout.splitlines()
            if len(said) > 1:
                return said
    raise AssertionError("no fork of three has run")


def test_a_fork_of_a_process_that_has_started_it_is_refused_in_one_line() -> None:
    first, *_, last = said_by_a_fork()
    assert first == "collecting calls", "garbage is collected without a call into Java: nobody would answer"
    assert last.startswith("PravegaClientMissing: Pravega is read through its Java client, and Java was started in pro")
    assert last.endswith("Hint: start processes that read Pravega by spawn.")


def test_jars_without_the_client_are_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.jar").write_bytes(b"")
    script = (
        "from lowmark.sources.pravega.jvm import start_java; import sys\n"
        "try: start_java([sys.argv[1]], None)\n"
        "except Exception as failed: print(f'{type(failed).__name__}: {failed}')"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "PravegaClientMissing" in done.stdout, done.stderr
    assert "the jars have no class io.pravega.client.ClientConfig" in done.stdout
