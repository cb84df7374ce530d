"""Producers that pause together and continue: the silence of all makes no row late; a dead partition is left out.

Goal: nothing is dropped and every window is right, in any order of return after a pause. Method: one query over busy
partitions, which are up to 27 minutes apart in event time; all producers pause for longer than the idleness timeout at
moments drawn from a seed, and return one after the other. Then one producer stops for good.
"""

from __future__ import annotations

import itertools
import random
import time
from datetime import datetime

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import SplitState
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers.driven import poll_query
from tests.servers.kafka import Broker
from tests.worlds.kafka_scenarios import (
    BOUND_US,
    HOUR_US,
    SECOND_US,
    T0_US,
    Batches,
    Log,
    bounded,
    counted,
    dropped,
    history,
    remembered,
    source,
)
from tests.worlds.torture import Feeder

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]

PARTITIONS = 11
TIMEOUT_SECONDS = 4.0
PAUSE_SECONDS = 6.0
COME_BACK_SECONDS = 1.5
"""Longer than a batch, so that the first batches have rows of the first producers only; but at most the time that the
rule allows: three quarters of the timeout, less a batch of the others that a split may have missed before the pause."""
SKEW_US = 163 * SECOND_US
ROUND_SECONDS = 0.25
STEP_US = 5 * SECOND_US
END_US = T0_US + 10 * HOUR_US


class Producers(Feeder):
    """One producer per partition, all in one thread; partition p is p * SKEW_US behind in event time."""

    def __init__(self, log: Log, rng: random.Random) -> None:
        super().__init__(ROUND_SECONDS)
        self.log, self.rng = log, rng
        self.dead: set[int] = set()
        self.silent_until = dict.fromkeys(range(PARTITIONS), 0.0)
        self._at_us = T0_US + HOUR_US

    def feed(self) -> None:
        now = time.monotonic()
        speaking = [p for p in range(PARTITIONS) if now >= self.silent_until[p] and p not in self.dead]
        if speaking:
            self._at_us += STEP_US
        times = {p: [self._at_us - p * SKEW_US - self.rng.randrange(BOUND_US // 2) for _ in range(3)] for p in speaking}
        self.log.produce(times)

    def pause(self) -> None:
        """Silence all producers at once, and let them return one after the other, the furthest behind last."""
        back = time.monotonic() + PAUSE_SECONDS
        self.silent_until = {p: back + COME_BACK_SECONDS * self.rng.random() for p in range(PARTITIONS)}
        self.silent_until[0], self.silent_until[PARTITIONS - 1] = back, back + COME_BACK_SECONDS

    @property
    def silent(self) -> bool:
        return time.monotonic() < max(self.silent_until.values())


def pause_and_go_on(spark: SparkSession, kafka: Broker, checkpoint: str, *, seed: int, pauses: int) -> None:
    rng = random.Random(seed)
    log, sink = Log.create(kafka, PARTITIONS), Batches()
    producers = Producers(log, rng)
    with remembered(spark, 10_000), LowWatermarkService(spark) as service:
        strategy = bounded().with_idleness(f"{TIMEOUT_SECONDS:g} seconds")
        events = service.wrap(
            source(spark, log), name="orders", event_time="ts", split=["topic", "partition"], strategy=strategy
        )
        writer = counted(events).writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="300 milliseconds").start()
        with producers:
            poll_query(query, lambda: len(active(service)) == PARTITIONS, "every partition spoke")
            for _ in range(pauses):
                flows_until = time.monotonic() + 1.0 + 2 * rng.random()
                poll_query(query, lambda until=flows_until: time.monotonic() > until, "producers flow")  # type: ignore[misc]
                producers.pause()
                poll_query(query, lambda: not producers.silent, "the pause")
            left_out = seconds_until_left_out(service, query, producers)
            gap = longest_gap_seconds(query, left_out)
        log.produce({p: [END_US] for p in range(PARTITIONS)})
        query.processAllAvailable()
        poll_query(query, lambda: history(query)[-1].watermark_us == END_US - BOUND_US - 1_000, "the last watermark")
        query.processAllAvailable()
        progress = history(query)
        query.stop()

    where = f"seed {seed}, {pauses} pauses, a batch every {gap:.1f} s, the dead one left out after {left_out:.1f} s"
    print("PAUSES", where, flush=True)
    assert dropped(progress) == 0, where
    assert sink.windows() == log.windows(closed_by_us=END_US - BOUND_US), where
    assert left_out <= most_seconds(gap), where


def most_seconds(gap: float) -> float:
    """Return how long a dead split may hold, by the gap between batches: for a third of the timeout, twice the timeout.

    The batch with its last rows is planned up to a gap after its death. The first batch planned more than the timeout
    later leaves the split out, up to a second gap later, and reports that at its end: a third gap. Batches more than
    half the timeout apart are pauses of all splits, and the fifth of them leaves the split out.
    """
    return TIMEOUT_SECONDS + 3 * gap if gap <= TIMEOUT_SECONDS / 2 else 7 * gap


def longest_gap_seconds(query: StreamingQuery, seconds: float) -> float:
    """Return the longest time between the plans of successive batches with rows, within the last seconds."""
    told = [p for p in map(dict, query.recentProgress) if p["numInputRows"] > 1]
    at = [datetime.fromisoformat(p["timestamp"].replace("Z", "+00:00")).timestamp() for p in told]
    gaps = [after - before for before, after in itertools.pairwise(at) if before > at[-1] - seconds]
    return max(gaps, default=seconds)


def active(service: LowWatermarkService) -> list[str]:
    return [name for name, split in service.status("orders").splits.items() if split.state is SplitState.ACTIVE]


def seconds_until_left_out(service: LowWatermarkService, query: StreamingQuery, producers: Producers) -> float:
    """Stop the producer of the partition furthest behind; return the seconds until this partition is left out."""
    furthest = f"{producers.log.topic}/{PARTITIONS - 1}"
    poll_query(query, lambda: len(active(service)) == PARTITIONS and furthest in active(service), "all back")
    producers.dead.add(PARTITIONS - 1)
    died_at = time.monotonic()
    try:
        poll_query(query, lambda: furthest not in active(service), "the dead one left out", seconds=120)
    except TimeoutError as late:
        why = service.status("orders").splits[furthest].why
        raise TimeoutError(
            f"{late}; a batch every {longest_gap_seconds(query, 60):.1f} s, and {furthest} is as it is: {why}"
        ) from None
    return time.monotonic() - died_at


@pytest.mark.slow
def test_a_pause_of_all_producers_makes_no_row_late(spark: SparkSession, kafka: Broker, checkpoint: str) -> None:
    pause_and_go_on(spark, kafka, checkpoint, seed=1, pauses=2)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_pauses_of_all_producers_make_no_row_late(
    spark: SparkSession, kafka: Broker, checkpoint: str, seed: int
) -> None:
    pause_and_go_on(spark, kafka, checkpoint, seed=seed, pauses=2)
