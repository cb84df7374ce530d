"""A Kinesis stream that is split and merged while its query is killed, again and again: nothing lost, nothing twice.

The driver (`kinesis_driver`) is killed with all its processes between planning, reading and commit: right after the
offset of a batch was written, at any moment, or right after a commit. Event times are in the payload; every window
must be what a count over all that was put gives. A failure names its seed: `LOWMARK_SEED=...` draws it again.
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

import pytest

from tests.live.kinesis_driver import MINUTE_US, SECOND_US, Config
from tests.live.servers import ROOT, Kinesis, tail, wait_until
from tests.live.test_torture import PAUSE, newest, processes, wait_for_next
from tests.live.test_torture import Driver as AnyDriver

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a session's processes through /proc"),
]

START_US = 1_700_000_000 * SECOND_US // MINUTE_US * MINUTE_US
KEYS = 12


class Driver(AnyDriver):
    """A driver process, with its JVM and its Python workers in one session."""

    def __init__(self, config: Config, log: Path) -> None:
        path = Path(config.folder, "config.json")
        config.write(path)
        config.started.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.kinesis_driver", str(path)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.log = log


class Feeder:
    """Puts rows all the while, on a thread: each key has its own pace, up to ten minutes behind the fastest."""

    def __init__(self, server: Kinesis, stream: str, rng: random.Random) -> None:
        self.server, self.stream, self._rng = server, stream, rng
        self.sent: list[tuple[str, int]] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._round = 0
        self.failed: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.failed is None, f"the feeder failed: {self.failed!r}"

    def put(self, rows: list[tuple[str, int]]) -> None:
        values = []
        for key, at_us in rows:
            values.append((key, json.dumps({"key": key, "number": len(self.sent), "at_us": at_us}).encode()))
            self.sent.append((key, at_us))
        self.server.put(self.stream, values)

    def reshard(self) -> str:
        """Split a shard, or merge two."""
        with self._lock:
            found = {each["ShardId"]: each for each in self.server.client.list_shards(StreamName=self.stream)["Shards"]}
            there = sorted(
                self.server.shards(self.stream, only_open=True),
                key=lambda shard: int(found[shard]["HashKeyRange"]["StartingHashKey"]),
            )
            if len(there) < 3 or (len(there) < 5 and self._rng.random() < 0.5):
                shard = self._rng.choice(there)
                self.server.split(self.stream, shard)
                return f"split {shard}"
            at = self._rng.randrange(len(there) - 1)
            self.server.merge(self.stream, there[at], there[at + 1])
            return f"merged {there[at]} and {there[at + 1]}"

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.15):
                with self._lock:
                    now_us = START_US + self._round * 10 * SECOND_US
                    self._round += 1
                    # The keys of one moment are at one time: what a key lags behind lies within the bound.
                    self.put(
                        [(f"k{key}", now_us - self._rng.randrange(25) * SECOND_US)
                         for key in range(KEYS) if self._rng.random() < 0.7]
                    )  # fmt: skip
        except BaseException as failed:  # noqa: BLE001  # `stop` tells it
            self.failed = failed


def await_batch(driver: Driver, config: Config) -> None:
    """Return when one more batch was committed."""
    commits = config.checkpoint / "commits"
    before = newest(commits)
    wait_until(lambda: driver.alive() and newest(commits) > before, "a batch after the restart", seconds=180)


def strike(driver: Driver, config: Config, rng: random.Random) -> str:
    offsets, commits = config.checkpoint / "offsets", config.checkpoint / "commits"
    moment = rng.choice(["anytime", "planned", "planned", "committed"])
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
    driver.kill()
    return f"{moment} + {pause:.3f} s: planned {newest(offsets)}, committed {newest(commits)}"


def torture(server: Kinesis, folder: Path, *, kills: int, reshardings: int) -> None:
    drawn = int(os.environ.get("LOWMARK_SEED", random.randrange(2**32)))
    print(f"LOWMARK_SEED={drawn}")
    rng, story = random.Random(drawn), [f"LOWMARK_SEED={drawn}"]
    config = Config(server.url, server.create_stream(2), str(folder))
    feeder = Feeder(server, config.stream, random.Random(drawn + 1))
    feeder.start()
    driver = None
    try:
        done = 0
        for kill in range(kills):
            driver = Driver(config, folder / "driver.log")
            while done < reshardings * (kill + 1) // kills:
                # Some while it runs, some while it is down or starts.
                if rng.random() < 0.7:
                    await_batch(driver, config)
                story.append(feeder.reshard())
                done += 1
            story.append(strike(driver, config, rng))
        feeder.stop()
        put = Counter((key, at_us // MINUTE_US * MINUTE_US) for key, at_us in feeder.sent)
        # One row far ahead for every open shard, so that all windows before are over.
        last_us = START_US + 10**6 * MINUTE_US
        for shard in server.client.list_shards(StreamName=config.stream)["Shards"]:
            server.client.put_record(
                StreamName=config.stream, PartitionKey="last", ExplicitHashKey=shard["HashKeyRange"]["StartingHashKey"],
                Data=json.dumps({"key": "last", "number": -1, "at_us": last_us}).encode(),
            )  # fmt: skip
        config = Config(server.url, config.stream, str(folder), 100_000)
        config.drain.write_text(str(last_us - MINUTE_US))
        driver = Driver(config, folder / "driver.log")
        ending = driver
        wait_until(lambda: ending.process.poll() is not None, "the rest read", seconds=200)
        assert driver.process.returncode == 0, tail(driver.log)
        emitted = [
            ((key, start_us), rows)
            for file in sorted(config.output.glob("*.json"))
            for key, start_us, rows in json.loads(file.read_text())
        ]
        assert len(emitted) == len(dict(emitted)), "a window was emitted twice"
        assert dict(emitted) == dict(put)
        assert len(server.shards(config.stream)) > reshardings + 2
    except BaseException as failed:
        failed.args = (f"{failed}\n  " + "\n  ".join(story),)
        raise
    finally:
        feeder._stop.set()
        if driver is not None:
            driver.kill()
        assert driver is None or not processes(driver.session), "an orphan stayed"
    print("\n".join(story))


def test_kills_and_reshardings_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    torture(kinesis, tmp_path, kills=3, reshardings=5)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_many_kills_and_reshardings_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    torture(kinesis, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "10")), reshardings=15)
