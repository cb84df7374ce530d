"""Servers of tests: each its own process on free ports of 127.0.0.1.

Rules: a server is ready when it answers, never after a sleep; a test ends it by its own process id; its log
stays in the test's folder, and the error of a failed start contains the end of the log. Only :func:`unavailable`
decides whether a missing server skips or fails a test.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

from lowmark.integration.spark.session import java_problem

from tests.servers import last_will

Answer = TypeVar("Answer")

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
LOCALHOST = "127.0.0.1"
LOWMARK = [sys.executable, "-c", "from lowmark.integration.cli.main import main; main()"]  # the command line
START_SECONDS = 60.0  # a broker starts in 3 seconds; the rest is for a busy machine
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 30


class ServerError(RuntimeError):
    """A server did not start, or ended by itself. The message ends with the last lines of its log."""


# --- required programs, and the effect of missing ones ---


def unavailable(what: str, hint: str) -> NoReturn:
    """Skip the running test because `what` is missing; fail the test if CI=true, because CI must have everything.

    Args:
        what: the missing thing, in words for people.
        hint: what to install or run.
    """
    import pytest  # imported here because `make demo-kafka` has no packages of the tests

    reason = f"missing: {what}; {hint}"
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_java() -> str:
    """Return the `java` for servers; skip or fail the test if no suitable Java exists."""
    problem = java_problem()
    if problem:
        unavailable("Java", f"{problem}; install Java 17 or newer (Debian: apt install openjdk-17-jre-headless)")
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def jars(name: str, spark: str | None = None) -> list[Path]:
    """The jars that `make jars` resolved for tests/servers/jars/NAME.xml, sorted; empty without them.

    The jars of Spark's Kafka connector are those for the given Spark version, by default the installed one. A version
    without a file spark-kafka-MAJOR.MINOR.xml gets those of spark-kafka.xml, which are for 4.2; so does Spark 4.3.
    """
    line = ".".join((spark or importlib.metadata.version("pyspark")).split(".")[:2])
    if name == "spark-kafka" and (ROOT / "tests" / "servers" / "jars" / f"spark-kafka-{line}.xml").exists():
        name = f"spark-kafka-{line}"
    return sorted((CACHE / "jars" / name).glob("*.jar"))


def require_jars(name: str, spark: str | None = None) -> list[Path]:
    """Return the jars as :func:`jars` does; skip or fail the test if they are missing."""
    found = jars(name, spark)
    if not found:
        unavailable(f"the jars of {name}", "run make jars (it needs Maven; Debian: apt install maven)")
    return found


def binary(name: str) -> Path | None:
    """Return an installed program, else the program that `make servers` unpacked, else None."""
    installed = shutil.which(name)
    unpacked = CACHE / "prometheus" / name
    return Path(installed) if installed else unpacked if unpacked.exists() else None


def require_binary(name: str) -> Path:
    """Return a program as :func:`binary` does; skip or fail the test if it is missing."""
    found = binary(name)
    if found is None:
        unavailable(
            name,
            "run make servers, or install it (Debian: apt install prometheus prometheus-alertmanager chromium "
            "redis-server)",
        )
    return found


# --- waiting and processes ---


def stand_still(process: subprocess.Popen[Any]) -> None:
    """Stop a child process with SIGSTOP, and wait until it stands: until then, its other threads may still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def wait_until(
    check: Callable[[], Answer | None], what: str, *, seconds: float = START_SECONDS, every_seconds: float = 0.05
) -> Answer:
    """Poll until the result is true, and return it: the only place in the tests that sleeps.

    Args:
        check: returns a falsy value until the condition holds; an exception ends the wait.
        what: the condition in words, for the error.
        seconds: the limit; generous, because it costs nothing in a passing test.
        every_seconds: the pause between two checks; longer for one that takes milliseconds of processor time.

    Raises:
        TimeoutError: the condition did not hold in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds:g} seconds")
        time.sleep(every_seconds)


@contextmanager
def no_thread_begins() -> Iterator[None]:
    """Refuse each new thread, as Python does since 3.12 while a process ends."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with patch.object(threading.Thread, "start", refused):
        yield


@contextmanager
def no_thread_stays(prefix: str = "") -> Iterator[None]:
    """Fail if a thread that began in the block, with a name that starts with a prefix, has not ended after it."""

    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)}

    before = names()
    yield
    wait_until(lambda: names() <= before, "its threads ended", seconds=20)


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1. Callers must retry, because another program may take a port first."""
    with_sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in with_sockets:
            each.bind((LOCALHOST, 0))
        return [each.getsockname()[1] for each in with_sockets]
    finally:
        for each in with_sockets:
            each.close()


def port_open(port: int) -> bool:
    """Whether something listens on the port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOCALHOST, port)) == 0


def tail(log: Path) -> str:
    """The last lines of a log, for an error."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"\n--- the end of {log} ---\n" + "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


@dataclass
class Process:
    """One server process: started, watched, ended by its own id."""

    name: str
    command: Sequence[str]
    log: Path
    running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self, ready: Callable[[], bool]) -> None:
        """Start the process and return when `ready()` is true.

        Raises:
            ServerError: the process ended by itself, or was not ready in time and was stopped.
        """
        with self.log.open("ab") as output:
            # The server has its own session, so Ctrl-C ends the test only, and the test ends the server.
            self.running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        last_will.end_with_us(self.running.pid)
        try:
            wait_until(lambda: self._alive() and ready(), f"{self.name} ready")
        except TimeoutError as late:
            self.kill()
            raise ServerError(f"{late}{tail(self.log)}") from None
        except BaseException:
            self.kill()
            raise

    def _alive(self) -> bool:
        assert self.running is not None
        code = self.running.poll()
        if code is not None:
            raise ServerError(f"{self.name} ended by itself with exit code {code}{tail(self.log)}")
        return True

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        if self.running is None:
            return
        how(self.running)  # Popen sends nothing to a process that has ended
        try:
            self.running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait(STOP_SECONDS)
        last_will.ended(self.running.pid)
        self.running = None

    def stop(self) -> None:
        """Send SIGTERM and wait for the end; a second call does nothing."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        self._end(subprocess.Popen.kill)


ServerT = TypeVar("ServerT")


def started(start: Callable[[int], ServerT]) -> ServerT:
    """Return a server that `start` has started on free ports; retry if another program takes a port first.

    Args:
        start: called with the number of earlier tries, to use a new folder in each try.

    Raises:
        ServerError: the server did not start.
    """
    for attempt in range(3):
        try:
            return start(attempt)
        except ServerError as failed:
            if attempt == 2 or "already in use" not in str(failed):
                raise
    raise AssertionError("the last attempt raises")


# --- asking ---

# Ignore proxies in the environment, because loopback is never behind a proxy.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http_get(url: str) -> tuple[int, str]:
    """Return status and body; 0 and the reason without an answer."""
    try:
        with opener.open(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode(errors="replace")
    except OSError as silent:  # URLError is one
        return 0, str(silent)
