"""Common parts of the torture tests of all systems: SIGKILL at any moment, restart from the checkpoint, repeatedly.

A driver in its own session (`driven`) is killed at moments drawn from a seed. Some moments follow a file just written,
because the dangerous moments lie between two files: planned but not run, run but not committed, committed but not
reported. Rows are fed all the time. A failure names its seed: `LOWMARK_SEED=...` draws the same moments again.
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
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration import completion
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.integration.transport.heartbeat import HeartbeatOffset

from tests.drivers.driven import Config, Windows
from tests.servers import last_will
from tests.servers.local import ROOT, tail, wait_until
from tests.worlds.kafka_scenarios import seed

if TYPE_CHECKING:
    from typing_extensions import Self

PAUSE = threading.Event()  # never set
MARKS = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a session's processes through /proc"),
]


def processes(session: int) -> list[int]:
    """Return the processes of a session: Python workers leave the process group of their JVM, but not its session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # the process has ended
            continue
        if int(owner) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


class Driver:
    """A driver process, with its JVM and its Python workers in one session.

    Args:
        module: the module with its `main`; see `driven`.
        mode: run or drain.
        configs: for that module, one for each query.
        log: the file that its output is appended to.
    """

    def __init__(self, module: str, mode: str, configs: Sequence[Config], log: Path) -> None:
        paths = [Path(config.folder, "config.json") for config in configs]
        for config, path in zip(configs, paths, strict=True):
            path.parent.mkdir(exist_ok=True)
            config.write(path)
            config.started.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.drivers.{module}", mode, *map(str, paths)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        last_will.end_with_us(self.session)
        self.log = log

    @property
    def session(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """Return True if the driver runs; fail if it has ended by itself."""
        assert self.process.poll() is None, f"the driver ended by itself{tail(self.log)}"
        return True

    def kill(self, *, python_only: bool = False) -> None:
        """SIGKILL the driver and its whole session, and return when all processes have ended.

        Args:
            python_only: kill the Python driver alone; its JVM notices and ends by itself, as in production.
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
    """Feeds rows all the time, on a thread.

    Args:
        every_seconds: the interval of rounds.

    Attributes:
        lock: held during a round and during changes of the feed.
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
        """Stop feeding. May be called more than once."""
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
    """Runs drivers one after the other, and records their ends for a failure's message.

    Args:
        module: the module of the drivers; see `Driver`.
        folder: for the logs of the drivers.

    Attributes:
        rng: draws all moments, from its own seed or from LOWMARK_SEED.
        driver: the running driver.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module, self._log = module, folder / "driver.log"
        self.seed = int(os.environ.get("LOWMARK_SEED", seed()))
        self.rng = random.Random(self.seed)
        self._story = [f"LOWMARK_SEED={self.seed}"]
        self._struck = False
        self._complete: dict[str, list[tuple[int, set[tuple[tuple[Any, int], int]]]]] = {}
        self.driver: Driver | None = None

    def tell(self, what: str) -> None:
        """Record an event for a failure's message."""
        self._story.append(what)

    def start(self, *configs: Config) -> Driver:
        """Start a driver that runs until it is killed."""
        self.driver = driver = Driver(self._module, "run", configs, self._log)
        return driver

    def strike(self, *configs: Config, workers: bool = True) -> None:
        """Kill the driver at a drawn moment of a drawn query, and check the checkpoint of each query.

        The first kill comes after a batch of each query, so the checkpoint of each has a run before the last one.
        """
        assert self.driver is not None, "started before"
        struck = self.rng.choice(configs)
        others = [config for config in configs if config is not struck]
        told = strike(self.driver, struck, self.rng, others, workers=workers, starting=self._struck)
        self._struck = True
        self.tell(f"{Path(struck.folder).name}: {told}")
        for config in configs:
            check_checkpoint(config)
            self.tell(f"complete until {self.remember(config)}")

    def remember(self, config: Config, *, once: bool = False) -> int:
        """Keep what the checkpoint says is complete, and what a reader of the output sees afterwards, for `drain`.

        Args:
            config: of the query.
            once: read the output only if the time is a new one, because who polls has read it at once for this one.

        Returns:
            The time until which the checkpoint is complete, microseconds; 0 before there is one.
        """
        with suppress(CheckpointUnreadable):  # no batch is planned yet, or the query is native
            if (until_us := completion(config.checkpoint).until_us) is not None:
                kept = self._complete.setdefault(config.folder, [])
                if not once or not kept or kept[-1][0] != until_us:
                    kept.append((until_us, set(config.emitted())))
                return until_us
        return 0

    def drain(self, *configs: Config, whole: bool = True) -> list[Windows]:
        """Let a driver read the rest, and return all emitted windows of each query, each once.

        Args:
            configs: of the driver.
            whole: whether every offset in the checkpoints is lowmark's.
        """
        self.driver = driver = Driver(self._module, "drain", configs, self._log)
        wait_until(lambda: driver.process.poll() is not None, "the rest read", seconds=240)
        assert driver.process.returncode == 0, tail(driver.log)
        return [self._drained(config, whole=whole) for config in configs]

    def _drained(self, config: Config, *, whole: bool) -> Windows:
        if whole:
            check_checkpoint(config)
        emitted = config.emitted()
        assert len(emitted) == len(dict(emitted)), "a window was emitted twice"
        for until_us, readable in self._complete.get(config.folder, ()):
            gone = [window for window in emitted if config.end_us(window[0][1]) <= until_us and window not in readable]
            assert not gone, f"complete until {until_us}, and these windows could not be read: {gone}"
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
    """Return as soon as the folder has the next batch's file, polling often to hit this moment."""
    known, deadline = newest(folder), time.monotonic() + 120
    while newest(folder) <= known:
        assert driver.alive()
        assert time.monotonic() < deadline, f"no new batch in {folder} for two minutes{tail(driver.log)}"
        PAUSE.wait(0.002)  # leaves the processor to the driver


def await_batch(driver: Driver, *configs: Config) -> None:
    """Return when one more batch of each query is committed."""
    known = [(commits, newest(commits)) for commits in (config.checkpoint / "commits" for config in configs)]

    def committed() -> bool:
        return driver.alive() and all(newest(commits) > before for commits, before in known)

    wait_until(committed, "a batch of each query after the restart", seconds=180)


def strike(
    driver: Driver,
    config: Config,
    rng: random.Random,
    others: Sequence[Config] = (),
    *,
    workers: bool = True,
    starting: bool = True,
) -> str:
    """Kill the driver at a random moment. Returns a description for the failure message.

    Args:
        driver: the driver to kill.
        config: of the query whose moment is drawn.
        rng: draws the moment.
        others: of the driver's other queries, each of which has a batch before the moment, unless the query starts.
        workers: sometimes kill one of Spark's Python processes first.
        starting: whether the moment may be the start.
    """
    offsets, commits = config.checkpoint / "offsets", config.checkpoint / "commits"
    moment = rng.choice([*["starting"] * starting, "anytime", "planned", "planned", "committed", "committed"])
    if moment == "starting":
        wait_until(lambda: driver.alive() and config.started.exists(), "the query started", seconds=180)
        pause = rng.uniform(0, 0.5)
    else:
        await_batch(driver, config, *others)
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
    """Assert over all runs that the low watermark never fell, and that each batch used the previous heartbeat's."""
    for (batch, _, before), (_, in_force_us, after) in pairwise(planned(config)):
        assert after.stream == config.stream_name
        if before.low_us is not None:
            assert after.low_us is not None, f"batch {batch + 1} lost the low watermark"
            assert after.low_us >= before.low_us, f"the low watermark fell in batch {batch + 1}"
        assert in_force_us == (0 if before.low_us is None else before.low_us), f"in force in batch {batch + 1}"


def runs(config: Config) -> int:
    """Return the number of runs of the query with an offset in the checkpoint."""
    return len({heartbeat.token for _, _, heartbeat in planned(config)} - {None})
