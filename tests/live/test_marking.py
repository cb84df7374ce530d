"""Kills at any moment of a query whose partitions are marked: no mark is early, none is missing, the order stays.

Split "slow" is 25 minutes behind split "fast", split "idle" has a single row, and a row has a time in another century.
Each mark keeps what a reader of the output sees at that moment, which has to be what the partition has in the end, and
comes within ten batches after the partition's last windows. The same holds for `lowmark wait`, which looks at the
checkpoint from a process of its own while drivers are killed. At its end the output has the sums of all rows
that were fed.

A second query in the same process writes its windows into a topic (`drivers/kafka_sink`). The test asks the checkpoint
all the time and after each kill, as `lowmark wait --checkpoint` does, and reads the topic for each new answer
(`Torture.remember`): a time that the checkpoint calls complete has its windows in the topic.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.drivers import marking
from tests.drivers.driven import STREAM, Windows
from tests.drivers.kafka_sink import Config
from tests.drivers.marking import PARTITION_US
from tests.servers.kafka import Broker
from tests.servers.local import LOWMARK, ROOT, wait_until
from tests.worlds import torture
from tests.worlds.skewed_files import MINUTE_US, Feeder
from tests.worlds.torture import Driver, Torture

pytestmark = torture.MARKS

HOUR_US = 3_600_000_000


class Waiting:
    """A `lowmark wait` on the checkpoint; keeps what a reader of the output sees at the moment at which it ends.

    Attributes:
        past_us: the time, microseconds.
        code: its exit code; None: it waits.
    """

    def __init__(self, config: marking.Config, past_us: int) -> None:
        self.past_us, self._config = past_us, config
        self.code: int | None = None
        self.seen: Windows = []
        self.batches = 0
        past = dt.datetime.fromtimestamp(past_us / 1_000_000, dt.timezone.utc).isoformat()
        where = [STREAM, "--checkpoint", str(config.checkpoint)]
        command = ["wait", *where, "--past", past, "--every", "0.3 seconds", "--timeout", "10 minutes"]
        self._process = subprocess.Popen([*LOWMARK, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._look, name=f"waiting for {past}", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        code = self._process.wait()
        self.seen, self.batches = self._config.seen(0, self.past_us), self._config.batches_since(self.past_us)
        self.code = code

    def join(self) -> None:
        self._thread.join(60)

    def stop(self) -> None:
        self._process.kill()
        self._thread.join(10)


def _are_past(past_us: dict[Config, int], killer: Torture, driver: Driver) -> bool:
    return driver.alive() and all(killer.remember(config, once=True) > us for config, us in past_us.items())


@pytest.mark.usefixtures("kafka_jars")
def test_kills_at_random_moments_mark_no_partition_early_and_call_no_window_complete_that_is_not_in_the_topic(
    kafka: Broker, tmp_path: Path
) -> None:
    config, waiting = Config(str(tmp_path / "marked")), list[Waiting]()
    sink = Config(str(tmp_path / "sink"), bootstrap=kafka.bootstrap, topic=kafka.create_topic())
    with Torture("kafka_sink", tmp_path) as killer, Feeder(config, sink) as feeder, ExitStack() as stack:
        for _ in range(int(os.environ.get("LOWMARK_KILLS", "2"))):
            driver = killer.start(config, sink)
            # Both, because split "idle" is not left out once the others have stopped, too.
            past_us = {each: killer.remember(each) + 10 * MINUTE_US for each in (config, sink)}
            if not waiting:  # for an hour between the kills, and for an hour after them
                torture.await_batch(driver, config)
                hour_us = (feeder.us // HOUR_US + 1) * HOUR_US
                waiting = [Waiting(config, hour_us), Waiting(config, hour_us + 24 * HOUR_US)]
                for each in waiting:
                    stack.callback(each.stop)
            wait_until(partial(_are_past, past_us, killer, driver), "four batches and more", seconds=180)
            killer.strike(config, sink, workers=False)
        feeder.stop()
        assert waiting[1].code is None, "the kills were to come while it waits"
        end_us = waiting[1].past_us + 6 * PARTITION_US
        feeder.put([("fast", end_us), ("slow", end_us)])
        feeder.put([("fast", end_us + 2 * PARTITION_US), ("slow", end_us + 2 * PARTITION_US)])
        last = dt.datetime.fromtimestamp(end_us / 1_000_000, dt.timezone.utc)
        emitted, in_topic = killer.drain(config.but(last=f"{last:%d-%H%M}"), sink.but(last_us=end_us))
        assert sorted(window for window in in_topic if window[0][1] < end_us) == feeder.sums(0, end_us)
        for each in waiting:
            each.join()
            assert each.code == 0
            assert sorted(each.seen) == feeder.sums(0, each.past_us), f"wait ended early at {each.past_us}"
            assert each.batches < 10, f"wait ended {each.batches} batches after the rows"
        marks = [json.loads(file.read_text()) for file in sorted(config.marks.glob("*.json"))]
        for mark in marks:
            start_us = mark["start_us"]
            there = feeder.sums(start_us, start_us + PARTITION_US)
            assert sorted((tuple(key), n) for key, n in mark["seen"]) == there, f"early: {mark['partition']}"
            assert there or not mark["has_rows"]
            assert mark["batches"] < 10, f"late: {mark}"
        starts = [mark["start_us"] for mark in marks]
        assert {us // PARTITION_US for (_, us), _ in emitted} <= {us // PARTITION_US for us in starts}, (
            "none is missing"
        )
        first = list(dict.fromkeys(starts))
        assert first == sorted(first), "in order, each for the first time"
        assert len(first) >= 5
