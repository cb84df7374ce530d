"""SIGKILL at any moment while segments are split and merged: nothing lost, nothing twice, never backwards.

Method: that of test_torture, from which its driver, its moments and its look into the checkpoint come; but the rows are
events of two Pravega streams, one ten minutes behind the other, which are scaled five times meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from tests.live.kafka_scenarios import seed
from tests.live.pravega_driver import Config
from tests.live.pravega_server import JARS, Pravega
from tests.live.servers import ROOT, tail, wait_until
from tests.live.test_torture import Driver, check_checkpoint, planned, processes, strike

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a session's processes through /proc"),
]

START_MS = 1_700_000_000_000
STEP_MS = 5_000  # of event time in each round of writing
SHUFFLE_MS = 9_000
BEHIND_MS = 600_000
SCALINGS = 5


class PravegaDriver(Driver):
    """A driver process that reads Pravega."""

    def __init__(self, mode: str, config: Config, log: Path) -> None:
        path = Path(config.folder, "config.json")
        config.write(path)
        config.started.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.pravega_driver", mode, str(path)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.log = log


class Feeder:
    """Writes rows all the while, on a thread, and scales streams between."""

    def __init__(self, pravega: Pravega, streams: list[str], rng: random.Random) -> None:
        self._pravega, self._streams, self._rng = pravega, streams, rng
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self.round, self.scalings = 0, 0
        self._writers = [pravega.writer(stream) for stream in streams]
        self.windows: Counter[tuple[str, int]] = Counter()
        self.failed: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.failed is None, f"the feeder failed: {self.failed!r}"

    def scale(self) -> None:
        with self._lock:
            stream = self._rng.choice(self._streams)
            several = len(self._pravega.ranges(stream)) > 2
            (self._pravega.merge_two if several else self._pravega.split_one)(stream)
            self.scalings += 1

    def finish(self) -> None:
        """Rows that close every window, in every segment."""
        ends_ms = START_MS + self.round * STEP_MS + 600_000
        for writer in self._writers:
            writer.write((f"last{n}", b'{"at": %d}' % ends_ms) for n in range(300))

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                with self._lock:
                    for number, stream in enumerate(self._streams):
                        at_ms = START_MS + self.round * STEP_MS - number * BEHIND_MS
                        times = [at_ms - self._rng.randrange(SHUFFLE_MS) for _ in range(self._rng.randrange(25))]
                        self._writers[number].write((f"k{self._rng.randrange(30)}", b'{"at": %d}' % at) for at in times)
                        self.windows.update((stream, at // 60_000 * 60_000) for at in times)
                    self.round += 1
        except BaseException as failed:  # noqa: BLE001  # `stop` tells it
            self.failed = failed


def torture(pravega: Pravega, folder: Path, kills: int) -> None:
    drawn = int(os.environ.get("LOWMARK_SEED", seed()))
    print(f"LOWMARK_SEED={drawn}")
    rng = random.Random(drawn)
    streams = [pravega.create_stream(2), pravega.create_stream(1)]
    config = Config(pravega.controller, pravega.scope, streams, JARS, str(folder), rows_per_batch=150)
    feeder, story = Feeder(pravega, streams, random.Random(drawn + 1)), [f"LOWMARK_SEED={drawn}"]
    feeder.start()
    driver = None
    due = sorted(rng.randrange(kills) for _ in range(SCALINGS))
    try:
        for kill in range(kills):
            driver = PravegaDriver("run", config, folder / "driver.log")
            for _ in range(due.count(kill)):
                feeder.scale()
            story.append(strike(driver, cast("Any", config), rng))
            check_checkpoint(cast("Any", config))
        feeder.stop()
        feeder.finish()
        produced = sum(feeder.windows.values())
        config = Config(**{**config.__dict__, "rows_per_batch": 100_000, "rows": produced})
        driver = PravegaDriver("drain", config, folder / "driver.log")
        wait_until(lambda: driver.process.poll() is not None, "the rest read", seconds=240)
        assert driver.process.returncode == 0, tail(driver.log)

        check_checkpoint(cast("Any", config))
        windows = [
            ((stream, start_ms), count)
            for file in sorted(config.output.glob("*.json"))
            for stream, start_ms, count in json.loads(file.read_text())
        ]
        assert len(windows) == len(dict(windows)), "a window was emitted twice"
        assert Counter(dict(windows)) == feeder.windows
        assert feeder.scalings == SCALINGS
        runs = {heartbeat.run for _, _, heartbeat in planned(cast("Any", config))} - {None}
        assert len(runs) > kills // 2, "the runs left no trace"
    except BaseException as failed:
        failed.args = (f"{failed}\n  " + "\n  ".join(story),)
        raise
    finally:
        feeder._stop.set()
        if driver is not None:
            driver.kill()
        assert driver is None or not processes(driver.session), "an orphan stayed"
    print("\n".join(story))


def test_three_kills_at_random_moments_lose_nothing(pravega: Pravega, tmp_path: Path) -> None:
    torture(pravega, tmp_path, kills=3)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_ten_kills_at_random_moments_lose_nothing(pravega: Pravega, tmp_path: Path) -> None:
    torture(pravega, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "10")))
