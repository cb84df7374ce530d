"""Kills at any moment of splits and merges of segments: no row is lost or duplicated, the low watermark never falls.

Method: see `torture`. The rows are events of two Pravega streams, one ten minutes behind the other; both are scaled
five times during the test.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.drivers.pravega import Config
from tests.drivers.pravega_group import Application, newest_offset, set_to, standing
from tests.servers.local import wait_until
from tests.servers.pravega import JARS, Pravega
from tests.worlds import torture
from tests.worlds.torture import Driver, Torture, await_batch

pytestmark = torture.MARKS

START_MS = 1_700_000_000_000
STEP_MS = 5_000  # the event time per round of writing
SHUFFLE_MS = 9_000
BEHIND_MS = 600_000
SCALINGS = 5


class Feeder(torture.Feeder):
    """Writes to both streams, and scales them in between."""

    def __init__(self, pravega: Pravega, streams: list[str], rng: random.Random) -> None:
        super().__init__()
        self._pravega, self._streams, self._rng = pravega, streams, rng
        self.round, self.scalings = 0, 0
        self._writers = [pravega.writer(stream) for stream in streams]
        self.windows: Counter[tuple[str, int]] = Counter()

    def scale(self) -> None:
        with self.lock:
            stream = self._rng.choice(self._streams)
            several = len(self._pravega.ranges(stream)) > 2
            (self._pravega.merge_two if several else self._pravega.split_one)(stream)
            self.scalings += 1

    def finish(self) -> None:
        """Write rows that close every window, to every segment."""
        ends_ms = START_MS + self.round * STEP_MS + 600_000
        for writer in self._writers:
            writer.write((f"last{n}", b'{"at": %d}' % ends_ms) for n in range(300))

    def feed(self) -> None:
        for number, stream in enumerate(self._streams):
            at_ms = START_MS + self.round * STEP_MS - number * BEHIND_MS
            times = [at_ms - self._rng.randrange(SHUFFLE_MS) for _ in range(self._rng.randrange(25))]
            self._writers[number].write((f"k{self._rng.randrange(30)}", b'{"at": %d}' % at) for at in times)
            self.windows.update((stream, at // 60_000 * 60_000) for at in times)
        self.round += 1


def kill(pravega: Pravega, folder: Path, kills: int) -> None:
    streams = [pravega.create_stream(2), pravega.create_stream(1)]
    config = Config(str(folder), pravega.controller, pravega.scope, streams, JARS, rows_per_batch=150)
    killer = Torture("pravega", folder)
    with killer, Feeder(pravega, streams, random.Random(killer.seed + 1)) as feeder:
        due = [killer.rng.randrange(kills + 1) for _ in range(SCALINGS)]
        for number in range(kills):
            driver = killer.start(config)
            for _ in range(due.count(number)):  # some while the query reads, some while it starts
                if killer.rng.random() < 0.7:
                    await_batch(driver, config)
                feeder.scale()
            killer.strike(config)
        for _ in range(due.count(kills)):  # while nobody reads
            feeder.scale()
        feeder.stop()
        feeder.finish()
        [windows] = killer.drain(config.but(rows_per_batch=100_000, rows=feeder.windows.total()))

        assert Counter(dict(windows)) == feeder.windows
        assert feeder.scalings == SCALINGS
        assert torture.runs(config) > kills // 2, "the runs left no trace"


def was_set(pravega: Pravega, group: str, before: int, driver: Driver) -> bool:
    return driver.alive() and set_to(pravega, group)[0] > before


def kill_beside_an_application(pravega: Pravega, folder: Path, kills: int) -> None:
    """Kill as `kill` does, with one stream, a reader group, and an application that reads in the group all the time.

    After every restart the group's position equals Spark's newest offset.
    """
    stream, group = pravega.create_stream(2), f"g{uuid.uuid4().hex[:8]}"
    config = Config(
        str(folder), pravega.controller, pravega.scope, [stream], JARS, rows_per_batch=150, reader_group=group
    )
    killer = Torture("pravega", folder)
    with (
        killer,
        Feeder(pravega, [stream], random.Random(killer.seed + 1)) as feeder,
        Application(pravega, group) as app,
    ):
        due = sorted(killer.rng.randrange(kills) for _ in range(SCALINGS))
        for number in range(kills):
            before, _ = set_to(pravega, group)
            offset = newest_offset(config.checkpoint)
            driver = killer.start(config)
            for _ in range(due.count(number)):
                feeder.scale()
            wait_until(partial(was_set, pravega, group, before, driver), "the group set", seconds=180)
            if offset is not None:
                assert set_to(pravega, group)[1] == standing(pravega, offset), f"restart {number}"
            killer.strike(config)
        feeder.stop()
        feeder.finish()
        [windows] = killer.drain(config.but(rows=feeder.windows.total()))

        assert Counter(dict(windows)) == feeder.windows
        assert feeder.scalings == SCALINGS
        assert app.resets >= kills, "each restart has set the group back under the application"
        assert app.events, "it shared the reading"
        assert torture.runs(config) > kills // 2, "the runs left no trace"


@pytest.mark.timeout(600)  # a minute on a quiet machine; Pravega takes its time beside other tests
def test_a_kill_at_a_random_moment_loses_nothing(pravega: Pravega, tmp_path: Path) -> None:
    """After a batch; `test_torture` also kills a query that starts again, and the ten kills below do so on Pravega."""
    kill(pravega, tmp_path, kills=1)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_ten_kills_at_random_moments_lose_nothing(pravega: Pravega, tmp_path: Path) -> None:
    kill(pravega, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "10")))


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_ten_kills_beside_an_application_that_shares_the_group_lose_nothing(pravega: Pravega, tmp_path: Path) -> None:
    kill_beside_an_application(pravega, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "10")))
