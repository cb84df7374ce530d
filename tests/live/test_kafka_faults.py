"""Faults around a wrapped Kafka query: failed batches, killed readers, stopped services, long batches.

Goal: no fault loses a row or silently freezes the query. Method: each fault is caused at a known moment; the output is
compared with the produced rows.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.kafka_offsets import kafka_positions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers.driven import poll_query
from tests.servers.kafka import Broker
from tests.servers.local import wait_until
from tests.sparks import start_again
from tests.worlds.kafka_scenarios import (
    BOUND_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    T0_US,
    Batches,
    Log,
    Sink,
    bounded,
    counted,
    dropped,
    heartbeat_of,
    history,
    kafka_source,
    source,
)

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]

FAST_US = T0_US + HOUR_US
END_US = T0_US + 4 * HOUR_US
LAST_LOW_US = END_US - BOUND_US - 1_000


def wrapped(service: LowWatermarkService, spark: SparkSession, log: Log, **options: object) -> DataFrame:
    return service.wrap(
        source(spark, log, **options),
        name="orders",
        event_time="ts",
        split=["topic", "partition"],
        strategy=bounded(),
    )


def finish(query: StreamingQuery, log: Log, sink: Sink | Batches) -> None:
    """Close all windows, end the query, and check that no row was dropped and that every window is right."""
    log.produce({p: [END_US] for p in range(2)})
    query.processAllAvailable()
    poll_query(query, lambda: history(query)[-1].watermark_us == LAST_LOW_US, "the last low watermark")
    query.processAllAvailable()
    progress = history(query)
    query.stop()
    assert dropped(progress) == 0
    assert sink.windows() == log.windows(closed_by_us=LAST_LOW_US)


def test_a_partition_that_was_empty_in_a_batch_that_failed_is_waited_for_after_the_restart(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    """A repeated batch has no `latestOffset`, but its partitions must be known."""
    log = Log.create(kafka, 2)
    log.produce({0: [FAST_US + i * MINUTE_US for i in range(5)]})
    sink = Batches()

    def fails(frame: DataFrame, batch_id: int) -> None:
        frame.collect()
        raise ZeroDivisionError("on purpose")

    with LowWatermarkService(spark) as service:
        frame = counted(wrapped(service, spark, log))
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        with pytest.raises(StreamingQueryException, match="on purpose"):
            writer.foreachBatch(fails).start().awaitTermination()
    with LowWatermarkService(spark) as service:
        writer = (
            counted(wrapped(service, spark, log))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", checkpoint)
        )
        query = start_again(writer)
        # Half an hour behind, and within the minute in which an empty partition holds the low watermark.
        for minute in range(3):
            log.produce({1: [T0_US + minute * MINUTE_US]})
            query.processAllAvailable()
        finish(query, log, sink)


def test_a_batch_longer_than_the_grace_does_not_use_it_up(
    spark: SparkSession, kafka: Broker, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty partition that gets its first row during a long batch was never observed as silent."""
    from lowmark.watermark.splits import timers

    # Shorter than the default of a minute, to save time; the long batch below takes longer than this.
    monkeypatch.setattr(timers, "KNOWN_EMPTY_GRACE_US", 3 * SECOND_US)
    log = Log.create(kafka, 2)
    log.produce({0: [FAST_US]})
    sink = Batches()
    began: list[float] = []

    def slow(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        if batch_id == 0:
            log.produce({0: [FAST_US + MINUTE_US]})  # causes batch 1 independently of the heartbeat
        elif not began:
            began.append(time.monotonic())
            log.produce({1: [T0_US]})
            wait_until(lambda: time.monotonic() > began[0] + 6, "twice the grace")

    with LowWatermarkService(spark) as service:
        writer = counted(wrapped(service, spark, log)).writeStream.foreachBatch(slow)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        for minute in (1, 2, 3):
            log.produce({1: [T0_US + minute * MINUTE_US]})
            query.processAllAvailable()
        finish(query, log, sink)


def heartbeat_processes(spark: SparkSession) -> list[int]:
    """The process ids of this session's heartbeat readers, which its JVM started."""
    jvm = spark._jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]
    children = jvm.children().iterator()
    found = []
    while children.hasNext():
        child = children.next()
        command = Path(f"/proc/{child.pid()}/cmdline").read_text(errors="replace")
        if "python_streaming_source_runner" in command:
            found.append(child.pid())
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the process through /proc")
def test_a_killed_heartbeat_reader_fails_the_query_and_a_restart_resumes_its_low_watermark(
    spark: SparkSession, kafka: Broker, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log.create(kafka, 2)
    log.produce({0: [T0_US, T0_US + 5 * MINUTE_US], 1: [FAST_US, FAST_US + MINUTE_US]})
    sink = Batches()
    with LowWatermarkService(spark) as service:
        frame = counted(wrapped(service, spark, log))
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        before = set(heartbeat_processes(spark))
        query = writer.start()
        query.processAllAvailable()
        held_us = service.status("orders").low_watermark_us
        assert held_us == T0_US + 5 * MINUTE_US - BOUND_US - 1_000
        [reader] = set(heartbeat_processes(spark)) - before
        os.kill(reader, signal.SIGKILL)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(60)
        # Spark reports "Connection reset", or nothing for an end of file; so the service explains the failure.
        wait_until(lambda: "gone: the heartbeat" in caplog.text, "the service's word on it", seconds=30)
        assert 'on "orders": a Python process' in caplog.text
        assert "start the query again" in caplog.text

        log.produce({1: [FAST_US + 2 * MINUTE_US]})  # only the fast partition: the slow one must be remembered
        query = writer.start()
        query.processAllAvailable()
        assert heartbeat_of(history(query)[0], "orders").low_us == held_us
        assert service.status("orders").low_watermark_us == held_us
        assert service.status("orders").holder == f"{log.topic}/0"
        log.produce({0: [T0_US + 6 * MINUTE_US]})
        query.processAllAvailable()
        finish(query, log, sink)


def test_a_query_outlives_its_service_and_a_new_service_resumes_it(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    log = Log.create(kafka, 2)
    log.produce({0: [T0_US, T0_US + 5 * MINUTE_US], 1: [FAST_US]})
    sink = Batches()
    service = LowWatermarkService(spark)
    frame = counted(wrapped(service, spark, log))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query = writer.start()
    query.processAllAvailable()
    held_us = service.status("orders").low_watermark_us
    service.stop()

    log.produce({0: [T0_US + 20 * MINUTE_US], 1: [FAST_US + 20 * MINUTE_US]})
    query.processAllAvailable()
    log.produce({0: [T0_US + 6 * MINUTE_US], 1: [FAST_US + 21 * MINUTE_US]})  # late only if the watermark had moved
    query.processAllAvailable()
    progress = history(query)
    assert query.isActive
    assert progress[-1].watermark_us == held_us, "the watermark holds"
    assert dropped(progress) == 0
    query.stop()

    with pytest.raises(
        StreamingQueryException, match=r"no lowmark service answers at .*Hint: start the query while its"
    ):
        writer.start().awaitTermination(60)

    with LowWatermarkService(spark) as second:
        frame = counted(wrapped(second, spark, log))
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = writer.start()
        query.processAllAvailable()
        finish(query, log, sink)


def test_a_query_that_failed_before_its_first_batch_was_over_does_not_hide_the_one_that_runs(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    log = Log.create(kafka, 1)
    log.produce({0: [T0_US]})

    def fails(frame: DataFrame, batch_id: int) -> None:
        raise ZeroDivisionError("on purpose")

    with LowWatermarkService(spark) as service:
        events = wrapped(service, spark, log)
        with pytest.raises(StreamingQueryException, match="on purpose"):
            events.writeStream.foreachBatch(fails).start().awaitTermination()
        query = Sink(spark).start(counted(events), str(tmp_path / "second"))
        query.processAllAvailable()
        assert service.status("orders").low_watermark_us == T0_US - BOUND_US - 1_000
        query.stop()


def test_one_partition_column_over_two_topics_is_not_taken_for_one_split(spark: SparkSession, kafka: Broker) -> None:
    """`split="partition"` over two topics: the fast topic's partition must not count for the slow topic's."""
    fast, slow = Log.create(kafka, 1), Log.create(kafka, 1)
    fast.produce({0: [FAST_US + i * MINUTE_US for i in range(3)]})
    slow.produce({0: [T0_US]})
    sink = Sink(spark)
    with LowWatermarkService(spark) as service:
        both = source(spark, fast, subscribe=f"{fast.topic},{slow.topic}")
        events = service.wrap(both, name="orders", event_time="ts", split="partition", strategy=bounded())
        query = sink.start(counted(events))
        slow.produce({0: [T0_US + MINUTE_US]})  # at least one batch after the first report
        with pytest.raises(StreamingQueryException, match=r'Hint: .*split=\["topic", "partition"\]'):
            query.awaitTermination(60)


def test_two_streams_over_one_source_each_know_its_partitions(spark: SparkSession, kafka: Broker) -> None:
    """Spark reads a source once even if a plan has it twice; both streams must find its partitions in the progress."""
    log = Log.create(kafka, 2)
    log.produce({0: [FAST_US + i * MINUTE_US for i in range(3)]})
    with LowWatermarkService(spark) as service:
        frame = source(spark, log)
        split = ["topic", "partition"]
        one = service.wrap(frame, name="one", event_time="ts", split=split, strategy=bounded())
        two = service.wrap(frame, name="two", event_time="ts", split=split, strategy=bounded())
        query = Sink(spark).start(counted(one.unionByName(two)))
        query.processAllAvailable()
        query.processAllAvailable()
        assert [kafka_positions(kafka_source(p).end_offset).keys() for p in history(query)[:1]] == [
            {(log.topic, 0), (log.topic, 1)}
        ]
        states = {name: service.status(name).splits.keys() for name in ("one", "two")}
        held = {name: service.status(name).low_watermark_us for name in ("one", "two")}
        query.stop()
    both = {f"{log.topic}/0", f"{log.topic}/1"}
    assert states == {"one": both, "two": both}
    assert held == {"one": None, "two": None}, "partition 1 has not spoken"


def test_a_source_that_a_stream_before_has_beside_another_is_not_taken_for_the_other(
    spark: SparkSession, kafka: Broker
) -> None:
    """The source listed before the second heartbeat belongs to the first stream only."""
    shared, other = Log.create(kafka, 1), Log.create(kafka, 2)
    shared.produce({0: [FAST_US]})
    with LowWatermarkService(spark) as service:
        split = ["topic", "partition"]
        frame = source(spark, shared)
        both = frame.unionByName(source(spark, other))
        one = service.wrap(both, name="one", event_time="ts", split=split, strategy=bounded())
        two = service.wrap(frame, name="two", event_time="ts", split=split, strategy=bounded())
        query = Sink(spark).start(counted(one.unionByName(two)))
        query.processAllAvailable()
        query.processAllAvailable()
        states = {name: service.status(name).splits.keys() for name in ("one", "two")}
        held = {name: service.status(name).low_watermark_us for name in ("one", "two")}
        query.stop()
    assert states == {
        "one": {f"{shared.topic}/0", f"{other.topic}/0", f"{other.topic}/1"},
        "two": {f"{shared.topic}/0"},
    }
    assert held == {"one": None, "two": FAST_US - BOUND_US - 1_000}, "partitions of the other have not spoken"


def test_an_idle_partition_is_not_left_out_while_minOffsetsPerTrigger_keeps_its_rows_waiting(
    spark: SparkSession, kafka: Broker
) -> None:
    """A partition with rows that the source withholds is not silent."""
    log = Log.create(kafka, 2)
    log.produce({0: [T0_US] * 10})
    sink = Sink(spark)
    with LowWatermarkService(spark) as service:
        events = service.wrap(
            source(spark, log, minOffsetsPerTrigger=10, maxTriggerDelay="30s"),
            name="orders", event_time="ts", split=["topic", "partition"],
            strategy=bounded().with_idleness("3 seconds"),
        )  # fmt: skip
        query = sink.start(counted(events))
        poll_query(query, lambda: service.status("orders").last_batch_id is not None, "the first batch")
        log.produce({1: [FAST_US] * 10})
        # The last batch for now, because a later batch would show the row below as backlog.
        in_force_us = T0_US - BOUND_US - 1_000
        poll_query(query, lambda: history(query)[-1].watermark_us == in_force_us, "the low watermark in force")
        log.produce({0: [T0_US + MINUTE_US]})  # waits for nine more
        began = time.monotonic()
        poll_query(query, lambda: time.monotonic() > began + 8, "twice the idleness")
        state = service.status("orders").splits[f"{log.topic}/0"].state
        low_us = service.status("orders").low_watermark_us
        query.stop()
    assert low_us is not None
    assert low_us < T0_US + MINUTE_US, f"the partition is {state.value}, and its row is late before it was read"
