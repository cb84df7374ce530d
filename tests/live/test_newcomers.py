"""Kills right after a batch with a split's first row: the split's next row must count.

Goal: all windows of the script are emitted, each once, for every end of the driver: SIGKILL and SIGTERM, to its process
or its whole group, at moments drawn between the commit of such a batch and the plan of the next, and while one of the
two batches runs. Method: see `drivers/newcomers`, which is the killed process. Without the report written right after
the batch, the restart forgets a newcomer of that batch, and drops its second row.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests.drivers.newcomers import STEPS, Config, From, expected, rows, write_files
from tests.servers.kafka import Broker, Record
from tests.servers.local import require_jars, wait_until
from tests.worlds import torture
from tests.worlds.torture import PAUSE, Driver, Torture, newest, processes, wait_for_next

pytestmark = torture.MARKS

Whom = Literal["driver", "group"]
SPARE_HOURS = 2  # each kill takes an hour at most, and the last hour closes the windows of the others
MOMENTS = {"at once": (0, 0.02), "heard of": (0.05, 0.4), "between": (0.5, 3), "in a batch": (0, 0.6)}  # seconds


def end(driver: Driver, how: signal.Signals, whom: Whom) -> None:
    """Send a signal to the driver's Python or to its whole group, and return when all its processes have ended."""
    if whom == "driver":
        os.kill(driver.process.pid, how)
    else:
        os.killpg(driver.session, how)
    driver.process.wait(60)
    wait_until(lambda: not processes(driver.session), "everything ending after its driver", seconds=60)
    driver.kill()


def strike(driver: Driver, config: Config, rng: random.Random, how: signal.Signals, whom: Whom) -> str:
    """End the driver between the commit of a batch with a newcomer and the next plan, or while one of the two runs."""
    offsets, commits = config.checkpoint / "offsets", config.checkpoint / "commits"
    moment = rng.choice(list(MOMENTS))
    folder, step = (offsets, rng.choice([1, 2])) if moment == "in a batch" else (commits, 1)
    while True:
        wait_for_next(driver, folder)
        if newest(folder) % STEPS == step:
            break
    pause = rng.uniform(*MOMENTS[moment])
    PAUSE.wait(pause)
    end(driver, how, whom)
    planned, committed = newest(offsets), newest(commits)
    return f"{how.name} to the {whom} {moment} + {pause:.3f} s: planned {planned}, committed {committed}"


def kill(config: Config, ends: Sequence[tuple[signal.Signals, Whom]]) -> None:
    """End the driver this many times, each time by one of ``ends``, which the torture's seed draws."""
    with Torture("newcomers", Path(config.folder)) as killer:
        for _ in range(config.hours - SPARE_HOURS):
            how, whom = killer.rng.choice(ends)
            driver = killer.start(config)
            killer.tell(strike(driver, config, killer.rng, how, whom))
        [emitted] = killer.drain(config)

        assert {window: n for window, n in emitted if window[1] < config.closed_us} == expected(config)


def prepared(tmp_path: Path, source: From, kills: int, kafka: Broker | None = None) -> Config:
    seconds = int(os.environ.get("LOWMARK_TRIGGER", "6"))
    config = Config(str(tmp_path), source, kills + SPARE_HOURS, trigger_seconds=seconds)
    if source == "files":
        write_files(config)
    if kafka is not None:
        topic = kafka.create_topic(partitions=1)
        script = [row for step in range(config.hours * STEPS) for row in rows(step)]
        kafka.produce(topic, [Record(json.dumps({"split": split, "us": us})) for split, us in script])
        jars = ",".join(str(jar) for jar in require_jars("spark-kafka"))
        config = config.but(bootstrap=kafka.bootstrap, topic=topic, jars=jars)
    return config


def test_a_split_that_spoke_first_in_the_last_batch_before_the_end_is_waited_for(tmp_path: Path) -> None:
    kill(prepared(tmp_path, "files", 1), [(signal.SIGTERM, "group")])


KILLS = int(os.environ.get("LOWMARK_KILLS", "17"))
ENDS: list[tuple[signal.Signals, Whom]] = [
    (signal.SIGKILL, "driver"),
    (signal.SIGKILL, "group"),
    (signal.SIGTERM, "driver"),
    (signal.SIGTERM, "group"),
]


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("source", ["files", "rate"])
def test_however_often_a_driver_ends_a_split_that_is_new_is_waited_for(tmp_path: Path, source: From) -> None:
    kill(prepared(tmp_path, source, KILLS), ENDS)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_however_often_a_driver_ends_a_device_on_kafka_that_is_new_is_waited_for(
    kafka: Broker, kafka_jars: list[Path], tmp_path: Path
) -> None:
    kill(prepared(tmp_path, "kafka", KILLS, kafka), ENDS)
