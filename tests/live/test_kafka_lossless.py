"""The main claim on a real broker: partitions an hour apart, and no row is lost; Spark alone loses most of them.

Goal: rows counted in windows = rows produced, for each partition; every window equals the batch query's; nothing is
dropped. Method: known rows in a topic, Spark's own JVM connector, `maxOffsetsPerTrigger` so that the fast partitions
run ahead over several batches, one last row for each partition so that all windows close. Native Spark reads the same
topic and must lose rows there, because otherwise the test would prove nothing.
"""

from __future__ import annotations

import datetime as dt
import random
from itertools import pairwise

import msgspec
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.kafka_offsets import kafka_positions
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.watermark import SplitState
from pyspark.sql import SparkSession

from tests.drivers.driven import poll_query
from tests.integration.driver.reported import report_of
from tests.servers.kafka import Broker
from tests.worlds.kafka_scenarios import (
    BOUND_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    T0_US,
    Batches,
    Log,
    Notifications,
    Sink,
    assert_in_force,
    assert_reported,
    batch_windows,
    bounded,
    counted,
    dropped,
    heartbeat_of,
    history,
    kafka_source,
    newest,
    remembered,
    seed,
    shuffled,
    source,
    spread,
)

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]

END_US = T0_US + 4 * HOUR_US
LAST_LOW_US = END_US - BOUND_US - 1_000


def part(rng: random.Random, partition: int, partitions: int, *, phase: int, rows: int) -> list[int]:
    """Ten minutes of a partition's rows, shuffled; the last partition is an hour ahead of the first."""
    ahead_us = HOUR_US * partition // (partitions - 1)
    start_us = T0_US + ahead_us + phase * 10 * MINUTE_US
    return shuffled(rng, spread(rng, rows=rows, start_us=start_us, length_us=10 * MINUTE_US))


@pytest.mark.parametrize(
    ("partitions", "rows"),
    [(8, 60), pytest.param(64, 30, marks=pytest.mark.torture)],  # as many splits: test_day_one
)
def test_no_row_of_a_slow_partition_is_lost(spark: SparkSession, kafka: Broker, partitions: int, rows: int) -> None:
    rng = random.Random(drawn := seed())
    log = Log.create(kafka, partitions)
    live, empty = range(partitions - 1), partitions - 1
    log.produce({p: part(rng, p, partitions, phase=0, rows=rows) for p in live})
    options = {"maxOffsetsPerTrigger": partitions * rows // 4}
    heard = Notifications()

    with LowWatermarkService(spark) as service, remembered(spark, 1_000):
        service.add_listener(heard)
        events = service.wrap(
            source(spark, log, **options),
            name="orders",
            event_time="ts",
            split=["topic", "partition"],
            # By default the empty partition holds for a minute; all others have rows in the first batch. The grace is
            # shorter than two batches, because fast machines have read all first rows before a longer grace ends.
            strategy=bounded().with_grace("1 second"),
        )
        sink = Sink(spark)
        query = sink.start(counted(events))
        query.processAllAvailable()

        log.grow(partitions + 1)
        added = partitions
        log.produce(
            {p: part(rng, p, partitions, phase=1, rows=rows) for p in live}
            # These rows are not late: the low watermark is at most at the twentieth minute of the slowest partition.
            | {added: part(rng, partitions // 2, partitions, phase=1, rows=rows)}
        )
        poll_query(
            query, lambda: (log.topic, added) in kafka_positions(kafka_source(newest(query)).end_offset),
            "the added partition in the offsets",
        )  # fmt: skip
        query.processAllAvailable()
        produced = log.rows
        log.produce({p: [END_US] for p in (*live, added)})
        poll_query(query, lambda: newest(query).watermark_us == LAST_LOW_US, "the last low watermark in force")
        query.processAllAvailable()
        progress = history(query)
        status = service.status("orders")
        query.stop()

    emitted, wanted = sink.windows(), log.windows(closed_by_us=LAST_LOW_US)
    assert emitted == wanted, f"seed {drawn}"
    assert batch_windows(spark, log) == log.windows(), "the two oracles disagree"
    per_partition = {p: sum(n for (q, _), n in emitted.items() if q == p) for p in log.times_us}
    assert per_partition == {p: len(times) - (p != empty) for p, times in log.times_us.items()}
    assert sum(emitted.values()) == produced
    assert dropped(progress) == 0
    assert assert_in_force(progress, "orders") > 2
    told_us = [low for low in (heartbeat_of(p, "orders").low_us for p in progress) if low is not None]
    assert heard.heard_us == sorted(set(told_us)), "what listeners hear is what the heartbeats carry"
    assert status.low_watermark_us == LAST_LOW_US
    assert status.splits[f"{log.topic}/{empty}"].state is SplitState.IDLE

    native = Sink(spark)
    rows_of_native = source(spark, log, maxOffsetsPerTrigger=partitions * rows // 2)  # four batches, enough for losses
    query = native.start(counted(rows_of_native.withWatermark("ts", "10 seconds")), availableNow=True)
    query.awaitTermination()
    slow = range(partitions // 2)
    kept = sum(n for (p, _), n in native.windows().items() if p in slow)
    assert kept < produced * len(slow) / len(live) / 2, "Spark alone should lose most rows of the slow ones"


def test_an_idle_partition_stops_nobody_and_is_counted_when_it_returns(spark: SparkSession, kafka: Broker) -> None:
    """Partition 0 stays an hour behind and delivers; partition 3 becomes silent, and is left out until it returns."""
    rng = random.Random(seed())
    log = Log.create(kafka, 4)
    slow, silent = 0, 3
    at_us = {0: T0_US, 1: T0_US + HOUR_US, 2: T0_US + HOUR_US, silent: T0_US - HOUR_US}

    def minute(*partitions: int) -> None:
        log.produce({p: shuffled(rng, spread(rng, rows=6, start_us=at_us[p], length_us=MINUTE_US)) for p in partitions})
        for p in partitions:
            at_us[p] += MINUTE_US

    minute(0, 1, 2, silent)
    with LowWatermarkService(spark) as service, remembered(spark, 1_000):
        events = service.wrap(
            source(spark, log), name="orders", event_time="ts", split=["topic", "partition"],
            # Much longer than a round of the loop below, so that the others are never silent between two rounds.
            strategy=bounded().with_idleness("4 seconds"),
        )  # fmt: skip
        sink = Sink(spark)
        query = sink.start(counted(events))
        name = f"{log.topic}/{silent}"

        def another_minute_until_it_is_idle() -> bool:
            query.processAllAvailable()
            if service.status("orders").splits[name].state is SplitState.IDLE:
                return True
            minute(0, 1, 2)
            return False

        query.processAllAvailable()
        assert service.status("orders").holder == name
        held_us = service.status("orders").low_watermark_us
        assert held_us is not None
        assert held_us < T0_US - HOUR_US + MINUTE_US
        poll_query(query, another_minute_until_it_is_idle, "the silent partition idle")
        minute(0, 1, 2)
        query.processAllAvailable()
        passed = service.status("orders")
        assert passed.holder == f"{log.topic}/{slow}"
        assert passed.low_watermark_us is not None
        assert passed.low_watermark_us > T0_US, "the low watermark passed the silent partition"
        closed = log.windows(closed_by_us=passed.low_watermark_us)
        assert {w for w in closed if w[0] == silent} <= sink.windows().keys()

        at_us[silent] = at_us[slow]  # at or after the low watermark
        minute(0, 1, 2, silent)
        query.processAllAvailable()
        assert service.status("orders").splits[name].state is SplitState.ACTIVE
        minute(0, 1, 2, silent)
        log.produce({p: [END_US] for p in at_us})
        poll_query(query, lambda: history(query)[-1].watermark_us == LAST_LOW_US, "the last low watermark")
        query.processAllAvailable()
        progress = history(query)
        query.stop()

    assert sink.windows() == log.windows(closed_by_us=LAST_LOW_US)
    assert dropped(progress) == 0
    assert assert_in_force(progress, "orders") > 2


def test_the_report_of_each_batch_is_in_the_next_heartbeat_over_more_than_a_hundred_batches(
    spark: SparkSession, kafka: Broker
) -> None:
    """No aggregation: batches are as small and fast as possible, to give every race a chance."""
    rng = random.Random(drawn := seed())
    log = Log.create(kafka, 4)
    log.produce(
        {
            p: shuffled(rng, spread(rng, rows=105, start_us=T0_US + p * 20 * MINUTE_US, length_us=20 * MINUTE_US))
            for p in range(4)
        }
    )
    with LowWatermarkService(spark) as service, remembered(spark, 1_000):
        events = service.wrap(
            source(spark, log, maxOffsetsPerTrigger=3),
            name="orders",
            event_time="ts",
            split=["topic", "partition"],
            strategy=bounded(),
        )
        query = events.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        progress = history(query)

    assert len(progress) > 100
    rose = assert_reported(progress, log, "orders", bounded())
    assert rose > 20, f"seed {drawn}"
    assert assert_in_force(progress, "orders") > 100
    lows = [heartbeat_of(p, "orders").low_us for p in progress]
    assert all(a is None or (b is not None and a <= b) for a, b in pairwise(lows))


def a_run(*lows_us: int | None) -> tuple[Log, list[Progress]]:
    """An invented run: one row of each of two partitions per batch, and these low watermarks in the heartbeats."""
    log = Log(broker=None, topic="t", times_us={0: [], 1: []})  # type: ignore[arg-type]  # nothing is produced
    progress = []
    for batch, low_us in enumerate(lows_us):
        for partition, times in log.times_us.items():
            times.append(T0_US + batch * MINUTE_US + partition * HOUR_US)
        before_us = lows_us[batch - 1] if batch else None
        kafka = {"startOffset": {"t": {"0": batch, "1": batch}}, "endOffset": {"t": {"0": batch + 1, "1": batch + 1}}}
        heartbeat = {"endOffset": HeartbeatOffset("orders", low_us, "token", batch).to_json()}
        in_force_us = 0 if before_us is None else before_us
        watermark = dt.datetime.fromtimestamp(in_force_us / SECOND_US, dt.timezone.utc).isoformat()
        progress.append(report_of(batch, [kafka, heartbeat], eventTime={"watermark": watermark}))
    return log, progress


def test_the_checks_tell_a_late_report_and_a_lost_row_from_none() -> None:
    """The checks must fail on a faulty run."""
    first_us, second_us = T0_US - BOUND_US - 1_000, T0_US + MINUTE_US - BOUND_US - 1_000
    log, progress = a_run(None, first_us, second_us)
    assert assert_reported(progress, log, "orders", bounded()) == 2
    assert assert_in_force(progress, "orders") == 1

    for late in ((None, None, first_us), (None, first_us, first_us), (None, first_us, second_us + HOUR_US)):
        log, progress = a_run(*late)
        with pytest.raises(AssertionError, match="heartbeat of the next one"):
            assert_reported(progress, log, "orders", bounded())

    log, (one, two, three) = a_run(None, first_us, second_us)
    with pytest.raises(AssertionError, match="batch 2"):
        assert_in_force([one, two, msgspec.structs.replace(three, event_time=one.event_time)], "orders")
    with pytest.raises(AssertionError, match="no progress of batch 1"):
        assert_in_force([one, three], "orders")

    assert log.windows(closed_by_us=T0_US + MINUTE_US - 1) == {}
    assert log.windows(closed_by_us=T0_US + MINUTE_US) == {(0, T0_US): 1}
    twice = Batches()
    twice.batches = {0: [((0, T0_US), 1)], 1: [((0, T0_US), 1)]}
    with pytest.raises(AssertionError, match="1 windows were emitted more than once"):
        twice.windows()
