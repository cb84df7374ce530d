"""One checkpoint on Kafka, alternately of a native and a wrapped query: nothing lost or duplicated by any kill.

In native phases all partitions advance together, so native Spark drops nothing; in wrapped phases one partition is
half an hour behind the others. So the windows of all phases must equal those of an undisturbed batch query.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.checkpoint import kafka_starting_offsets
from lowmark.watermark import LowmarkError
from pyspark.sql import SparkSession

from tests.drivers.driven import STREAM
from tests.drivers.torture import OTHER, Config, Query
from tests.servers.kafka import Broker
from tests.servers.local import wait_until
from tests.worlds.kafka_scenarios import (
    BOUND_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    T0_US,
    Batches,
    Log,
    Windows,
    bounded,
    counted,
    dropped,
    history,
    source,
)
from tests.worlds.torture import PAUSE, Driver, Torture, newest, wait_for_next

pytestmark = [pytest.mark.live, pytest.mark.slow]

STEP_US = 20 * SECOND_US
END_US = T0_US + 1_000 * HOUR_US
LAST_LOW_US = END_US - BOUND_US - 1_000


def has_begun(driver: Driver, config: Config) -> bool:
    return driver.alive() and config.started.exists()


def test_native_adopted_and_left_on_kafka(
    spark: SparkSession, kafka: Broker, kafka_jars: list[Path], checkpoint: str
) -> None:
    """Kafka's `partition` is not nullable, and nullable when wrapped: Spark must accept the state's schema."""
    log, sink = Log.create(kafka, 2), Batches()
    at_us, lost = T0_US, 0
    for phase in range(3):
        wraps = phase == 1
        if phase:
            assert adopt(checkpoint, "orders", stopped=True).done if wraps else leave(checkpoint, stopped=True).done
        with LowWatermarkService(spark) as service:
            rows = source(spark, log)
            events = (
                service.wrap(rows, name="orders", event_time="ts", split=["topic", "partition"], strategy=bounded())
                if wraps
                else rows.withWatermark("ts", "5 minutes")
            )
            writer = counted(events).writeStream.foreachBatch(sink).outputMode("append")
            query = writer.option("checkpointLocation", checkpoint).start()
            if wraps:
                for partition in (1, 0):  # half an hour apart
                    log.produce({partition: [at_us + n * MINUTE_US for n in range(30)]})
                    query.processAllAvailable()
                at_us += 30 * MINUTE_US
            log.produce({p: [at_us, at_us + STEP_US] for p in range(2)})
            query.processAllAvailable()
            at_us += MINUTE_US
            if phase == 2:
                log.produce({p: [END_US] for p in range(2)})
                query.processAllAvailable()
            lost += dropped(history(query))
            query.stop()
    assert lost == 0
    assert sink.windows() == log.windows(closed_by_us=LAST_LOW_US)


def read_so_far(log: Log, checkpoint: Path) -> bool:
    """Whether all produced rows are in committed batches."""
    try:
        found = kafka_starting_offsets(checkpoint)
    except LowmarkError:
        return False  # missing, or being written
    return found.get(log.topic) == {str(partition): len(times) for partition, times in log.times_us.items()}


def expected(query: Query, log: Log) -> Windows:
    """The query's output for all rows, after the low watermark has passed the last row."""
    if query == "windows":
        return log.windows(closed_by_us=LAST_LOW_US)
    times = {(partition, time_us) for partition, times in log.times_us.items() for time_us in times}
    return {row: 1 for row in times if query != "timers" or row[1] < END_US}


MATRIX: list[tuple[Query, bool]] = [
    ("windows", False), ("windows", True), ("distinct", False), ("distinct", True), ("joined", False), ("joined", True),
    ("timers", True),
]  # fmt: skip


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("query", "rocksdb"), MATRIX, ids=[f"{q}-{'rocksdb' if r else 'hdfs'}" for q, r in MATRIX])
def test_by_turns_and_killed_each_time(
    kafka: Broker, kafka_jars: list[Path], tmp_path: Path, query: Query, rocksdb: bool
) -> None:
    logs = [Log.create(kafka, 3) for _ in range(2 if query == "joined" else 1)]
    streams = [STREAM, OTHER][: len(logs)]
    jars = ",".join(str(jar) for jar in kafka_jars)
    base = Config(
        str(tmp_path), kafka.bootstrap, logs[0].topic, jars, rows_per_batch=100_000, rocksdb=rocksdb, query=query,
        other_topic=logs[1].topic if query == "joined" else "",
    )  # fmt: skip

    def produce(rows: dict[int, list[int]]) -> None:
        for log in logs:
            log.produce(rows)
            if query == "distinct":  # each row is produced twice
                log.produce(rows)

    def all_read(driver: Driver) -> bool:
        return driver.alive() and all(read_so_far(log, base.checkpoint) for log in logs)

    at_us = T0_US
    with Torture("torture", tmp_path) as killer:
        for phase in range(int(os.environ.get("LOWMARK_KILLS", "8"))):
            wraps = phase % 2 == 1
            if newest(base.checkpoint / "offsets") >= 0:  # the first query may be killed before its first plan
                done = adopt(base.checkpoint, streams, stopped=True) if wraps else leave(base.checkpoint, stopped=True)
                assert done.done or done.why_nothing is None, str(done)
            config = base.but(how="wrapped" if wraps else "native")
            driver = killer.start(config)
            wait_until(partial(has_begun, driver, config), "the query started", seconds=180)
            if wraps:
                for partitions in ((1, 2), (0,)):
                    produce({p: [at_us + n * MINUTE_US for n in range(30)] for p in partitions})
                    wait_until(partial(all_read, driver), "all of it read", seconds=120)
                at_us += 30 * MINUTE_US
            for _ in range(killer.rng.randrange(2, 6)):
                # Every time is unique, so that a repeated row is recognized.
                times_ms = [killer.rng.sample(range(1, STEP_US // 1_000), 5) for _ in range(3)]
                produce({p: [at_us + ms * 1_000 for ms in times_ms[p]] for p in range(3)})
                at_us += STEP_US
                PAUSE.wait(killer.rng.uniform(0, 0.5))
            which = killer.rng.choice(["offsets", "commits", "anytime"])
            produce({p: [at_us] for p in range(3)})
            at_us += SECOND_US
            if which != "anytime":
                wait_for_next(driver, base.checkpoint / which)
            PAUSE.wait(killer.rng.uniform(0, 0.3))
            driver.kill()
            killer.tell(f"phase {phase}, {config.how}, killed at {which}")
        produce({p: [END_US] for p in range(3)})
        leave(base.checkpoint, stopped=True)
        adopt(base.checkpoint, streams, stopped=True)
        [emitted] = killer.drain(base.but(how="wrapped", last_low_us=LAST_LOW_US), whole=False)
        assert dict(emitted) == expected(query, logs[0])
