"""SIGKILL at any moment, restart from the checkpoint, again and again: what the torture tests of all systems share.

A driver in a session of its own (`driven`) is killed at moments drawn from a seed, some of them tied to what it just
wrote, because the dangerous moments lie between two files: planned but not run, run but not committed, committed but
not reported. Rows are fed all the while. A failure names its seed: `LOWMARK_SEED=...` draws the same moments again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pytest
from lowmark.integration.transport.heartbeat import HeartbeatOffset

from tests.live import last_will
from tests.live.driven import STREAM, Config, Windows
from tests.live.kafka_scenarios import seed
from tests.live.servers import ROOT, tail, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

PAUSE = threading.Event()  # never set
MARKS = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a session's processes through /proc"),
]


def processes(session: int) -> list[int]:
    """The processes of a session: Python workers leave the group of the JVM that starts them, but not its session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended meanwhile
            continue
        if int(owner) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


class Driver:
    """A driver process, with its JVM and its Python workers in one session.

    Args:
        module: whose `main` it runs; see `driven`.
        mode: run or drain.
        config: of that module.
        log: is appended to.
    """

    def __init__(self, module: str, mode: str, config: Config, log: Path) -> None:
        path = Path(config.folder, "config.json")
        config.write(path)
        config.started.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.live.{module}", mode, str(path)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        last_will.end_with_us(self.session)
        self.log = log

    @property
    def session(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """True while it runs; a driver that ends by itself is an error."""
        assert self.process.poll() is None, f"the driver ended by itself{tail(self.log)}"
        return True

    def kill(self, *, python_only: bool = False) -> None:
        """SIGKILL the driver and all it started, and return when none of it is left.

        Args:
            python_only: kill the Python driver alone; its JVM notices and goes by itself, as it would in production.
        """
        self.process.kill()  # Popen sends nothing to a process that has ended
        self.process.wait(20)
        if python_only:
            wait_until(lambda: not processes(self.session), "the JVM ending after its driver", seconds=60)
        else:
            wait_until(self._kill_rest, "no process of the driver left", seconds=20)
        last_will.ended(self.session)

    def kill_python_worker(self, rng: random.Random) -> str:
        """SIGKILL one Python process that the JVM started: a worker, their daemon, or a stream reader's process."""
        workers = []
        for pid in processes(self.session):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"pyspark" in command and b"java" not in command:
                    workers.append((pid, command.split(b"\0")[2].decode()))
        if not workers:
            return "no Python process"
        pid, name = rng.choice(sorted(workers))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return name

    def _kill_rest(self) -> bool:
        left = processes(self.session)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


class Feeder(ABC):
    """Feeds rows all the while, on a thread.

    Args:
        every_seconds: a round.

    Attributes:
        lock: held during a round; who changes what is fed holds it.
    """

    def __init__(self, every_seconds: float = 0.1) -> None:
        self.lock = threading.Lock()
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    @abstractmethod
    def feed(self) -> None:
        """One round."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No more rows. May be called more than once."""
        self._ended.set()
        self._thread.join(60)
        assert self._failed is None, f"the feeder failed: {self._failed!r}"

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every_seconds):
                with self.lock:
                    self.feed()
        except BaseException as failed:  # noqa: BLE001  # `stop` tells it
            self._failed = failed


class Torture:
    """One driver after the other, and the story of their ends, which a failure tells.

    Args:
        module: of the drivers; see `Driver`.
        folder: for the logs of the drivers.

    Attributes:
        rng: draws all moments, from a seed of its own or from LOWMARK_SEED.
        driver: the one that runs.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module, self._log = module, folder / "driver.log"
        self.seed = int(os.environ.get("LOWMARK_SEED", seed()))
        self.rng = random.Random(self.seed)
        self._story = [f"LOWMARK_SEED={self.seed}"]
        self.driver: Driver | None = None

    def tell(self, what: str) -> None:
        """Something happened."""
        self._story.append(what)

    def start(self, config: Config) -> Driver:
        """Start a driver that goes on until it is killed."""
        self.driver = driver = Driver(self._module, "run", config, self._log)
        return driver

    def strike(self, config: Config, *, workers: bool = True) -> None:
        """Kill it at some moment, and see what it left."""
        assert self.driver is not None, "started before"
        self.tell(strike(self.driver, config, self.rng, workers=workers))
        check_checkpoint(config)

    def drain(self, config: Config, *, whole: bool = True) -> Windows:
        """Let a driver read the rest, and return all windows that were emitted, each once.

        Args:
            config: of the driver.
            whole: every offset in the checkpoint is lowmark's.
        """
        self.driver = driver = Driver(self._module, "drain", config, self._log)
        wait_until(lambda: driver.process.poll() is not None, "the rest read", seconds=240)
        assert driver.process.returncode == 0, tail(driver.log)
        if whole:
            check_checkpoint(config)
        emitted = config.emitted()
        assert len(emitted) == len(dict(emitted)), "a window was emitted twice"
        return emitted

    def __enter__(self) -> Self:
        print(self._story[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failed: BaseException | None, at: TracebackType | None
    ) -> None:
        told = "\n  ".join(self._story)
        if failed is not None:
            failed.args = (f"{failed}\n  {told}",)
        if self.driver is not None:
            self.driver.kill()
        assert failed is not None or self.driver is None or not processes(self.driver.session), "an orphan stayed"
        print(told)


def newest(folder: Path) -> int:
    """The newest batch with a file in a folder of the checkpoint, -1 without one."""
    return max((int(f.name) for f in folder.glob("*") if f.name.isdigit()), default=-1)


def wait_for_next(driver: Driver, folder: Path) -> None:
    """Return as soon as the next batch has its file there: the moment is what is wanted."""
    known, deadline = newest(folder), time.monotonic() + 120
    while newest(folder) <= known:
        assert driver.alive()
        assert time.monotonic() < deadline, f"no new batch in {folder} for two minutes{tail(driver.log)}"
        PAUSE.wait(0.002)  # so as not to take the driver's processor


def await_batch(driver: Driver, config: Config) -> None:
    """Return when one more batch was committed."""
    commits = config.checkpoint / "commits"
    before = newest(commits)
    wait_until(lambda: driver.alive() and newest(commits) > before, "a batch after the restart", seconds=180)


def strike(driver: Driver, config: Config, rng: random.Random, *, workers: bool = True) -> str:
    """Wait for a moment drawn at random, and kill. Returns what was done, for the failure message.

    Args:
        driver: to be killed.
        config: its.
        rng: draws.
        workers: sometimes a Python process that Spark started is killed before.
    """
    offsets, commits = config.checkpoint / "offsets", config.checkpoint / "commits"
    moment = rng.choice(["starting", "anytime", "planned", "planned", "committed", "committed"])
    if moment == "starting":
        wait_until(lambda: driver.alive() and config.started.exists(), "the query started", seconds=180)
        pause = rng.uniform(0, 0.5)
    else:
        await_batch(driver, config)
        if moment == "planned":
            wait_for_next(driver, offsets)
            pause = rng.uniform(0, 0.2)
        elif moment == "committed":
            wait_for_next(driver, commits)
            pause = rng.uniform(0, 0.03)
        else:
            pause = rng.uniform(0, 2)
    PAUSE.wait(pause)
    worker = ""
    if workers and rng.random() < 0.4:
        worker = f", first {driver.kill_python_worker(rng)}"
        PAUSE.wait(rng.uniform(0, 1))
    python_only = rng.random() < 0.2
    driver.kill(python_only=python_only)
    state = f"planned {newest(offsets)}, committed {newest(commits)}"
    return f"{moment} + {pause:.3f} s{worker}{' (python only)' if python_only else ''}: {state}"


def planned(config: Config) -> list[tuple[int, int, HeartbeatOffset]]:
    """(batch, watermark Spark uses in it in microseconds, its heartbeat) of every planned batch in the checkpoint."""
    batches = []
    for file in (config.checkpoint / "offsets").glob("*"):
        if not file.name.isdigit():
            continue
        _, metadata, *lines = file.read_text().splitlines()
        [heartbeat] = [found for line in lines if (found := HeartbeatOffset.find(line)) is not None]
        batches.append((int(file.name), json.loads(metadata)["batchWatermarkMs"] * 1_000, heartbeat))
    return sorted(batches, key=lambda batch: batch[0])


def check_checkpoint(config: Config) -> None:
    """Over all runs: the low watermark never fell, and the one in force is the one of the heartbeat before."""
    for (batch, _, before), (_, in_force_us, after) in pairwise(planned(config)):
        assert after.stream == STREAM
        if before.low_us is not None:
            assert after.low_us is not None, f"batch {batch + 1} lost the low watermark"
            assert after.low_us >= before.low_us, f"the low watermark fell in batch {batch + 1}"
        assert in_force_us == (0 if before.low_us is None else before.low_us), f"in force in batch {batch + 1}"


def runs(config: Config) -> int:
    """How many runs of the query left an offset in the checkpoint."""
    return len({heartbeat.run for _, _, heartbeat in planned(config)} - {None})
