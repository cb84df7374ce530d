"""The common shapes of queries on Kafka: two from one stream, joins, AvailableNow, Once; none loses a row.

Goal: the claim for one plain aggregation (test_kafka_lossless.py) also holds for several heartbeats, queries or runs.
Method: known rows, with the slow partition or stream far behind; complete sets are compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.feed import rows_read
from tests.servers.kafka import Broker
from tests.worlds.kafka_scenarios import (
    BOUND_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    T0_US,
    Batches,
    Log,
    assert_in_force,
    assert_reported,
    bounded,
    counted,
    dropped,
    heartbeat_of,
    history,
    source,
)

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]

END_US = T0_US + 4 * HOUR_US
LAST_LOW_US = END_US - BOUND_US - 1_000


def apart(rows: int = 30) -> dict[int, list[int]]:
    """Return times with partition 0 an hour behind partition 1, and half a minute between rows."""
    return {p: [T0_US + p * HOUR_US + i * MINUTE_US // 2 for i in range(rows)] for p in range(2)}


def wrapped(service: LowWatermarkService, frame: DataFrame, name: str = "orders") -> DataFrame:
    return service.wrap(frame, name=name, event_time="ts", split=["topic", "partition"], strategy=bounded())


def test_two_queries_from_one_wrapped_stream_do_not_disturb_each_other(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """One query runs on, the other stops halfway and continues later: each has its own low watermark."""
    log = Log.create(kafka, 2)
    log.produce(apart())
    sinks = {"first": Batches(), "second": Batches()}
    with LowWatermarkService(spark) as service:
        frame = counted(wrapped(service, source(spark, log, maxOffsetsPerTrigger=20)))

        def start(name: str) -> StreamingQuery:
            writer = frame.writeStream.queryName(name).foreachBatch(sinks[name])
            return writer.option("checkpointLocation", str(tmp_path / name)).start()

        first, second = start("first"), start("second")
        second.processAllAvailable()
        second.stop()
        first.processAllAvailable()
        behind_us = service.status("orders", query="second").low_watermark_us
        log.produce({0: [T0_US + HOUR_US // 2]})
        first.processAllAvailable()
        ahead_us = service.status("orders", query="first").low_watermark_us
        assert behind_us is not None
        assert ahead_us == T0_US + HOUR_US // 2 - BOUND_US - 1_000 > behind_us
        second = start("second")
        second.processAllAvailable()
        log.produce({p: [END_US] for p in range(2)})
        for query in (first, second):
            query.processAllAvailable()
            assert assert_in_force(history(query), "orders") > 1
            assert dropped(history(query)) == 0
            assert history(query)[-1].watermark_us == LAST_LOW_US
            query.stop()
    wanted = log.windows(closed_by_us=LAST_LOW_US)
    assert {name: sink.windows() == wanted for name, sink in sinks.items()} == {"first": True, "second": True}


def test_a_join_of_two_wrapped_streams_with_one_side_far_behind_loses_no_pair_over_a_restart(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    fast, slow = Log.create(kafka, 2), Log.create(kafka, 2)
    times = [T0_US + i * MINUTE_US for i in range(20)]
    pairs: dict[int, set[tuple[int, int]]] = {}

    def sink(frame: DataFrame, batch_id: int) -> None:
        pairs[batch_id] = {(r.a, r.b) for r in frame.collect()}

    def micros(column: str) -> Column:
        return F.unix_micros(column)

    def start(service: LowWatermarkService) -> StreamingQuery:
        left = wrapped(service, source(spark, fast), "fast").select(F.col("ts").alias("fast_ts"), "partition")
        right = wrapped(service, source(spark, slow), "slow").select(
            F.col("ts").alias("slow_ts"), F.col("partition").alias("q")
        )
        near = F.expr("partition = q and slow_ts >= fast_ts and slow_ts <= fast_ts + interval 30 seconds")
        both = left.join(right, near).select(micros("fast_ts").alias("a"), micros("slow_ts").alias("b"))
        return both.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()

    fast.produce({0: times, 1: times})
    slow.produce({0: [times[0] + SECOND_US], 1: [times[0] + SECOND_US]})
    progress = []
    with LowWatermarkService(spark) as service:
        query = start(service)
        query.processAllAvailable()
        fast.produce({0: [END_US], 1: [END_US]})  # four hours ahead of the other side
        query.processAllAvailable()
        slow.produce({p: [t + SECOND_US for t in times[1:10]] for p in range(2)})
        query.processAllAvailable()
        progress += history(query)
        query.stop()
    with LowWatermarkService(spark) as service:
        query = start(service)
        query.processAllAvailable()
        slow.produce({p: [t + SECOND_US for t in times[10:]] for p in range(2)})
        query.processAllAvailable()
        rejoined = history(query)
        progress += rejoined
        query.stop()
    assert dropped(progress) == 0
    assert set().union(*pairs.values()) == {(t, t + SECOND_US) for t in times}
    # Both sides must have advanced, because Spark takes the smaller of the two watermarks.
    last = rejoined[-1]
    lows = [heartbeat_of(last, name).low_us for name in ("fast", "slow")]
    assert last.watermark_us == min(low for low in lows if low is not None) == times[-1] + SECOND_US - BOUND_US - 1_000
    rows = [s.num_rows_total for s in last.state_operators]
    assert rows[0] < 2 * 2 * len(times), "the join forgets what the low watermark has passed"


def test_available_now_reads_in_several_batches_and_brings_the_last_windows_out(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    log = Log.create(kafka, 2)
    log.produce({p: [*times, END_US] for p, times in apart().items()})
    sink = Batches()
    with LowWatermarkService(spark) as service:
        frame = counted(wrapped(service, source(spark, log, maxOffsetsPerTrigger=10)))
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = history(query)
    with_rows = [p for p in progress if rows_read([p])]
    assert len(with_rows) >= 6
    assert dropped(progress) == 0
    assert progress[-1].watermark_us == LAST_LOW_US
    assert sink.windows() == log.windows(closed_by_us=LAST_LOW_US)
    assert_reported(progress, log, "orders", bounded())
    assert_in_force(progress, "orders")


def test_once_again_and_again_moves_the_watermark_with_each_run(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    """A run of one batch has no heartbeat after its report, so checkpoint/lowmark passes the report to the next run."""
    log = Log.create(kafka, 2)
    sink, progress, farewells = Batches(), [], []
    rows = apart()
    # The slow partition's last row after each run; each of the first three reports reaches the next run.
    known = [rows[0][run * 7 + 6] - BOUND_US - 1_000 for run in range(3)]
    for run in range(4):
        log.produce({p: times[run * 7 : run * 7 + 7] for p, times in rows.items()})
        if run == 3:
            log.produce({p: [END_US] for p in range(2)})
        with LowWatermarkService(spark) as service:
            frame = counted(wrapped(service, source(spark, log)))
            writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
            query = writer.trigger(once=True).start()
            query.awaitTermination()
            progress += history(query)
        farewells.append([f.name for f in Path(checkpoint, "lowmark").glob("[0-9a-f]*")])
    lows = [heartbeat_of(p, "orders").low_us for p in progress if heartbeat_of(p, "orders").token is not None]
    assert [len(names) for names in farewells] == [1, 1, 1, 1], "the newest run's, and no other"
    assert len({name for names in farewells for name in names}) == 4
    assert lows == [None, *known], "each run knows what the one before read, be the service stopped ever so soon"
    with LowWatermarkService(spark) as service:
        frame = counted(wrapped(service, source(spark, log)))
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress += history(query)
    assert dropped(progress) == 0
    assert sink.windows() == log.windows(closed_by_us=LAST_LOW_US)


def test_rows_of_each_partition_are_counted_in_the_first_batch_and_a_topic_not_subscribed_any_more_is_let_go(
    spark: SparkSession, kafka: Broker, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Log.create(kafka, 2), Log.create(kafka, 1)
    one.produce(apart())
    two.produce({0: [T0_US]})
    starting = json.dumps({one.topic: {"0": 10, "1": -2}, two.topic: {"0": -2}})
    rows, lows = [], []
    for topics, more in ((f"{one.topic},{two.topic}", 0), (one.topic, 1)):
        one.produce({p: [END_US] * more for p in range(2)})
        options = {"subscribe": topics, "startingOffsets": starting, "failOnDataLoss": "false"}
        with LowWatermarkService(spark) as service:
            frame = wrapped(service, source(spark, one, **options)).select("ts")
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            assert writer.trigger(availableNow=True).start().awaitTermination(60)
            [run] = service.run_statuses()
        rows.append({name: split.rows for name, split in run.status.splits.items()})
        lows.append(run.status.low_watermark_us)

    assert rows == [
        {f"{one.topic}/0": 20, f"{one.topic}/1": 30, f"{two.topic}/0": 1},
        {f"{one.topic}/0": 1, f"{one.topic}/1": 1},
    ]
    assert lows[-1] == LAST_LOW_US
    assert f"not read any more, so not waited for any more: {two.topic}/0" in caplog.text
