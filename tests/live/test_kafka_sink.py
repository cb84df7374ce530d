"""Kills at any moment of a query into a topic: a time that the checkpoint calls complete has its windows in the topic.

The test asks the checkpoint all the time and after each kill, as `lowmark wait --checkpoint` does, and reads the topic
each time (`Torture.remember`). `drivers/kafka_sink` is the killed process.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.drivers.kafka_sink import Config
from tests.servers.kafka import Broker
from tests.servers.local import wait_until
from tests.worlds import torture
from tests.worlds.skewed_files import MINUTE_US, Feeder
from tests.worlds.torture import Driver, Torture

pytestmark = torture.MARKS


def _is_past(past_us: int, killer: Torture, driver: Driver, config: Config) -> bool:
    return driver.alive() and killer.remember(config) > past_us


@pytest.mark.usefixtures("kafka_jars")
def test_kills_at_random_moments_call_no_time_complete_whose_windows_are_not_in_the_topic(
    kafka: Broker, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), bootstrap=kafka.bootstrap, topic=kafka.create_topic())
    config.feed.mkdir()
    with Torture("kafka_sink", tmp_path) as killer, Feeder(config) as feeder:
        for _ in range(int(os.environ.get("LOWMARK_KILLS", "2"))):
            driver, past_us = killer.start(config), killer.remember(config) + 10 * MINUTE_US
            wait_until(partial(_is_past, past_us, killer, driver, config), "four batches and more", seconds=180)
            killer.strike(config, workers=False)
        feeder.stop()
        end_us = feeder.us + 60 * MINUTE_US
        for us in (end_us, end_us + 10 * MINUTE_US):
            feeder.put([("fast", us), ("slow", us)])
        emitted = killer.drain(config.but(last_us=end_us))
    assert sorted(window for window in emitted if window[0][1] < end_us) == feeder.sums(0, end_us)
