"""SIGKILL at any moment, restart from the checkpoint, again and again: nothing lost, nothing twice, never backwards.

Goal: after every partition got one more row, the windows are those of an undisturbed run, each once, and the low
watermark in the checkpoint never fell. Method: a driver in a session of its own (`torture_driver`) is killed at moments
drawn from a seed, some of them tied to what it just wrote, because the dangerous moments lie between two files: planned
but not run, run but not committed, committed but not reported. Rows are produced all the while. A failure names its
seed: `LOWMARK_SEED=... pytest tests/live/test_torture.py` draws the same moments again.
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
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from lowmark.integration.transport.heartbeat import HeartbeatOffset

from tests.live.kafka_scenarios import BOUND_US, HOUR_US, MINUTE_US, SECOND_US, T0_US, Log, seed, shuffled, spread
from tests.live.servers import ROOT, Broker, require_jars, tail, wait_until
from tests.live.torture_driver import STREAM, Config, How, read_windows

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a session's processes through /proc"),
]

PARTITIONS = 6
STEP_US = 20 * SECOND_US  # of event time in each round of production
END_US = T0_US + 1_000 * HOUR_US
PAUSE = threading.Event()  # never set


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
    """A driver process, with its JVM and its Python workers in one session."""

    def __init__(self, mode: str, config: Config, log: Path) -> None:
        path = Path(config.folder, "config.json")
        config.write(path)
        config.started.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.torture_driver", mode, str(path)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
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
            return
        wait_until(self._kill_rest, "no process of the driver left", seconds=20)

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


class Feeder:
    """Appends rows all the while, on a thread: partition 0 an hour behind the last one, arrivals shuffled."""

    def __init__(self, log: Log, rng: random.Random) -> None:
        self._log, self._rng = log, rng
        self._at_us = {p: T0_US + HOUR_US * p // (PARTITIONS - 1) for p in range(PARTITIONS)}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self.failed: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.failed is None, f"the feeder failed: {self.failed!r}"

    def add_partition(self) -> None:
        """A new partition, whose rows are as new as the newest there are."""
        with self._lock:
            number = len(self._at_us)
            self._log.grow(number + 1)
            self._at_us[number] = max(self._at_us.values()) + MINUTE_US

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                with self._lock:
                    rows = {}
                    for partition, at_us in self._at_us.items():
                        if self._rng.random() < 0.7:  # not every partition in every batch
                            times = spread(self._rng, rows=self._rng.randrange(1, 4), start_us=at_us, length_us=STEP_US)
                            rows[partition] = shuffled(self._rng, times)
                        self._at_us[partition] = at_us + STEP_US
                    self._log.produce(rows)
        except BaseException as failed:  # noqa: BLE001  # `stop` tells it
            self.failed = failed


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


def strike(driver: Driver, config: Config, rng: random.Random) -> str:
    """Wait for a moment drawn at random, and kill. Returns what was done, for the failure message."""
    offsets, commits = config.checkpoint / "offsets", config.checkpoint / "commits"
    before = newest(commits)
    moment = rng.choice(["starting", "anytime", "planned", "planned", "committed", "committed"])
    if moment == "starting":
        wait_until(lambda: driver.alive() and config.started.exists(), "the query started", seconds=180)
        pause = rng.uniform(0, 0.5)
    else:
        wait_until(lambda: driver.alive() and newest(commits) > before, "a batch after the restart", seconds=180)
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
    if config.how != "wrapped" and rng.random() < 0.4:
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


def torture(kafka: Broker, folder: Path, kills: int, how: How) -> None:
    drawn = int(os.environ.get("LOWMARK_SEED", seed()))
    print(f"LOWMARK_SEED={drawn}")
    rng = random.Random(drawn)
    log = Log.create(kafka, PARTITIONS, stamped=how != "prepared")
    jars = ",".join(str(jar) for jar in require_jars("spark-kafka"))
    config = Config(kafka.bootstrap, log.topic, str(folder), jars, rows_per_batch=120, how=how)
    feeder, story = Feeder(log, random.Random(drawn + 1)), [f"LOWMARK_SEED={drawn}"]
    feeder.start()
    driver = None
    try:
        last_us: int | None = None
        for kill in range(kills):
            driver = Driver("run", config, folder / "driver.log")
            story.append(strike(driver, config, rng))
            check_checkpoint(config)
            batches = planned(config)
            if batches:
                low_us = batches[-1][2].low_us
                assert last_us is None or (low_us is not None and low_us >= last_us), "the low watermark fell"
                last_us = low_us
            if kill == kills // 2:
                feeder.add_partition()
        feeder.stop()
        produced = log.rows
        log.produce({p: [END_US] for p in log.times_us})
        config = Config(**{**config.__dict__, "last_low_us": END_US - BOUND_US - 1_000, "rows_per_batch": 100_000})
        driver = Driver("drain", config, folder / "driver.log")
        wait_until(lambda: driver.process.poll() is not None, "the rest read", seconds=240)
        assert driver.process.returncode == 0, tail(driver.log)

        check_checkpoint(config)
        emitted = [window for file in sorted(config.output.glob("*.json")) for window in read_windows(file)]
        assert len(emitted) == len(dict(emitted)), "a window was emitted twice"
        undisturbed = {w: n for w, n in read_windows(config.undisturbed) if w[1] < END_US - MINUTE_US}
        assert undisturbed == log.windows(closed_by_us=END_US - BOUND_US - 1_000), "the two oracles disagree"
        assert dict(emitted) == undisturbed
        assert sum(dict(emitted).values()) == produced
        assert len({heartbeat.run for _, _, heartbeat in planned(config)} - {None}) > kills // 2, (
            "the runs left no trace"
        )
    except BaseException as failed:
        failed.args = (f"{failed}\n  " + "\n  ".join(story),)
        raise
    finally:
        feeder._stop.set()
        if driver is not None:
            driver.kill()
        assert driver is None or not processes(driver.session), "an orphan stayed"
    print("\n".join(story))


@pytest.mark.parametrize("how", ["wrapped", "read"])
def test_kills_at_random_moments_lose_nothing(kafka: Broker, kafka_jars: list[Path], tmp_path: Path, how: How) -> None:
    # Each kill is a driver that starts, and costs as long as that takes: three here, other ones in every run.
    torture(kafka, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "3")), how=how)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("how", ["wrapped", "read", "prepared"])
def test_many_kills_at_random_moments_lose_nothing(
    kafka: Broker, kafka_jars: list[Path], tmp_path: Path, how: How
) -> None:
    torture(kafka, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "20")), how=how)
