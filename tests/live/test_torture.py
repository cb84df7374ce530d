"""Kills at any moment of a query on Kafka: nothing is lost or duplicated, the low watermark never falls.

Goal: after one more row in every partition, the windows equal those of an undisturbed run, each once, and the low
watermark in the checkpoint never fell. Method: see `torture`; `drivers/torture` is the killed process.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.drivers.driven import read_windows
from tests.drivers.torture import Config, How
from tests.servers.kafka import Broker
from tests.servers.local import require_jars
from tests.worlds import torture
from tests.worlds.kafka_scenarios import BOUND_US, HOUR_US, MINUTE_US, SECOND_US, T0_US, Log, shuffled, spread
from tests.worlds.torture import Torture, planned

pytestmark = torture.MARKS

PARTITIONS = 3
STEP_US = 20 * SECOND_US  # the event time per round of production
END_US = T0_US + 1_000 * HOUR_US


class Feeder(torture.Feeder):
    """Partition 0 an hour behind the last one, arrivals shuffled."""

    def __init__(self, log: Log, rng: random.Random) -> None:
        super().__init__()
        self._log, self._rng = log, rng
        self._at_us = {p: T0_US + HOUR_US * p // (PARTITIONS - 1) for p in range(PARTITIONS)}

    def add_partition(self) -> None:
        """Add a partition with rows as new as the newest."""
        with self.lock:
            number = len(self._at_us)
            self._log.grow(number + 1)
            self._at_us[number] = max(self._at_us.values()) + MINUTE_US

    def feed(self) -> None:
        rows = {}
        for partition, at_us in self._at_us.items():
            if self._rng.random() < 0.7:  # not every partition in every batch
                times = spread(self._rng, rows=self._rng.randrange(1, 4), start_us=at_us, length_us=STEP_US)
                rows[partition] = shuffled(self._rng, times)
            self._at_us[partition] = at_us + STEP_US
        self._log.produce(rows)


def kill(kafka: Broker, folder: Path, kills: int, *hows: How) -> None:
    log = Log.create(kafka, PARTITIONS, stamped="prepared" not in hows)
    jars = ",".join(str(jar) for jar in require_jars("spark-kafka"))
    configs = [Config(str(folder / how), kafka.bootstrap, log.topic, jars, rows_per_batch=120, how=how) for how in hows]
    last_us: dict[How, int] = {}
    with Torture("torture", folder) as killer, Feeder(log, random.Random(killer.seed + 1)) as feeder:
        for number in range(kills):
            killer.start(*configs)
            killer.strike(*configs, workers=hows != ("wrapped",))
            for config in configs:
                batches = planned(config)
                low_us = batches[-1][2].low_us if batches else None
                if config.how in last_us:
                    assert low_us is not None
                    assert low_us >= last_us[config.how], "the low watermark fell"
                if low_us is not None:
                    last_us[config.how] = low_us
            if number == (kills - 1) // 2:
                feeder.add_partition()
        feeder.stop()
        produced, last_low_us = log.rows, END_US - BOUND_US - 1_000
        log.produce({p: [END_US] for p in log.times_us})
        drained = killer.drain(*(each.but(last_low_us=last_low_us, rows_per_batch=100_000) for each in configs))

        for config, emitted in zip(configs, map(dict, drained), strict=True):
            undisturbed = {w: n for w, n in read_windows(config.undisturbed) if w[1] < END_US - MINUTE_US}
            assert undisturbed == log.windows(closed_by_us=last_low_us), "the two oracles disagree"
            assert emitted == undisturbed
            assert sum(emitted.values()) == produced
            assert torture.runs(config) > kills // 2, "the runs left no trace"


def test_kills_at_random_moments_lose_nothing(kafka: Broker, kafka_jars: list[Path], tmp_path: Path) -> None:
    # Each kill costs the start of a driver, so two hit both queries, at new moments in every run.
    kill(kafka, tmp_path, int(os.environ.get("LOWMARK_KILLS", "2")), "wrapped", "read")


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("how", ["wrapped", "read", "prepared"])
def test_many_kills_at_random_moments_lose_nothing(
    kafka: Broker, kafka_jars: list[Path], tmp_path: Path, how: How
) -> None:
    kill(kafka, tmp_path, int(os.environ.get("LOWMARK_KILLS", "20")), how)
