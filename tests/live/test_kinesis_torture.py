"""A Kinesis stream is split and merged while its query is killed: nothing is lost or duplicated.

Method: see `torture`. Event times are in the payload; every window must equal a count over all put rows. A kill costs
the start of a driver, so `make test` has one: `test_kinesis_kills` has three in a row without Spark, and `test_torture`
two of a query of `read`.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.drivers.kinesis import MINUTE_US, SECOND_US, Config
from tests.servers.kinesis import Kinesis
from tests.worlds import torture
from tests.worlds.kinesis_reading import reshard
from tests.worlds.torture import Torture, await_batch

pytestmark = torture.MARKS

START_US = 1_700_000_000 * SECOND_US // MINUTE_US * MINUTE_US
LAST_US = START_US + 10**6 * MINUTE_US
KEYS = 12


class Feeder(torture.Feeder):
    """Puts rows of some keys, and reshards in between."""

    def __init__(self, server: Kinesis, stream: str, rng: random.Random) -> None:
        super().__init__(0.15)
        self.server, self.stream, self._rng = server, stream, rng
        self.sent: list[tuple[str, int]] = []
        self._round = 0

    def reshard(self) -> str:
        with self.lock:
            return reshard(self.server, self.stream, self._rng)

    def finish(self) -> None:
        """Put one row far ahead into every shard, to close all earlier windows."""
        for shard in self.server.described(self.stream):
            self.server.client.put_record(
                StreamName=self.stream, PartitionKey="last", ExplicitHashKey=shard["HashKeyRange"]["StartingHashKey"],
                Data=json.dumps({"key": "last", "number": -1, "at_us": LAST_US}).encode(),
            )  # fmt: skip

    def feed(self) -> None:
        now_us = START_US + self._round * 10 * SECOND_US
        self._round += 1
        # All keys of one moment have nearly one time: a key's lag is within the bound.
        rows = [
            (f"k{key}", now_us - self._rng.randrange(25) * SECOND_US) for key in range(KEYS) if self._rng.random() < 0.7
        ]
        values = []
        for key, at_us in rows:
            values.append((key, json.dumps({"key": key, "number": len(self.sent), "at_us": at_us}).encode()))
            self.sent.append((key, at_us))
        self.server.put(self.stream, values)


def kill(server: Kinesis, folder: Path, *, kills: int, reshardings: int) -> None:
    config = Config(str(folder), server.url, server.create_stream(2))
    killer, done = Torture("kinesis", folder), 0
    with killer, Feeder(server, config.stream, random.Random(killer.seed + 1)) as feeder:
        for number in range(kills):
            driver = killer.start(config)
            while done < (reshardings - 1) * (number + 1) // kills:
                # Some reshardings during a run, some during a start.
                if killer.rng.random() < 0.7:
                    await_batch(driver, config)
                killer.tell(feeder.reshard())
                done += 1
            killer.strike(config)
        killer.tell(f"{feeder.reshard()} without a driver")
        feeder.stop()
        put = Counter((key, at_us // MINUTE_US * MINUTE_US) for key, at_us in feeder.sent)
        feeder.finish()
        [emitted] = killer.drain(config.but(rows_per_batch=100_000, last_low_us=LAST_US - MINUTE_US))
        assert dict(emitted) == dict(put)
        assert len(server.shards(config.stream)) > reshardings + 2


def test_a_kill_and_reshardings_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    kill(kinesis, tmp_path, kills=1, reshardings=3)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_many_kills_and_reshardings_lose_nothing(kinesis: Kinesis, tmp_path: Path) -> None:
    kill(kinesis, tmp_path, kills=int(os.environ.get("LOWMARK_KILLS", "10")), reshardings=15)
