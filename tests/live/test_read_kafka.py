"""`LowWatermarkService.read` on a real Kafka broker, without Spark's connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.servers.kafka import Broker, Record

pytestmark = [pytest.mark.live]

PARTITIONS = 16
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PER_PARTITION = 600
STEP_MS = 20_000


def skewed(partition: int) -> int:
    """Return a partition's lag: three hours for partition 0, up to an hour for the others."""
    return -3 * HOUR_MS if partition == 0 else -(partition % 4) * HOUR_MS // 4


def windows(df: DataFrame) -> DataFrame:
    start = F.unix_millis("w.start").alias("start_ms")
    return (
        df.groupBy(F.window("timestamp", "1 minute").alias("w"), "partition")
        .count()
        .select(start, "partition", "count")
    )


@pytest.mark.parametrize("rows", [500, 100_000])
def test_a_skewed_topic_is_read_whole_and_every_window_is_what_a_batch_query_gives(
    spark: SparkSession, kafka: Broker, tmp_path: Path, rows: int
) -> None:
    topic = kafka.create_topic(partitions=PARTITIONS)
    sent = [
        Record(f"{n}", p, timestamp_ms=START_MS + skewed(p) + n * STEP_MS)
        for n in range(PER_PARTITION)
        for p in range(PARTITIONS - 1)  # the last one stays empty
    ]
    # One last row per partition, to close all earlier windows.
    last_ms = START_MS + 2 * PER_PARTITION * STEP_MS
    kafka.produce(topic, sent + [Record("end", p, timestamp_ms=last_ms) for p in range(PARTITIONS)])
    on_broker = [PER_PARTITION + 1] * (PARTITIONS - 1) + [1]
    assert kafka.end_offsets(topic) == dict(enumerate(on_broker))
    expected: dict[tuple[int, int], int] = {}
    for record in sent:
        assert record.timestamp_ms is not None
        assert record.partition is not None
        key = record.timestamp_ms // 60_000 * 60_000, record.partition
        expected[key] = expected.get(key, 0) + 1

    emitted: list[tuple[tuple[int, int], int]] = []
    with LowWatermarkService(spark) as service:
        source = KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic], columns=["partition", "timestamp"])
        df = service.read(
            source,
            name="orders",
            strategy=WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"),
            max_rows_per_batch=rows,
        )
        writer = windows(df).writeStream.outputMode("append").trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, _: emitted.extend(((r[0], r[1]), r[2]) for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
        assert query.awaitTermination(240)
        status = service.status("orders")

    progress = [dict(p) for p in query.recentProgress]
    assert status.counts.rows == sum(on_broker), "each was read, and once"
    dropped = sum(op["numRowsDroppedByWatermark"] for p in progress for op in p["stateOperators"])
    assert (dropped, status.returned_late) == (0, 0)
    assert len(emitted) == len(dict(emitted)), "no window twice"
    assert dict(emitted) == expected
    assert set(status.splits) == {f"{topic}/{p}" for p in range(PARTITIONS)}
    if rows == 500:
        # 16 partitions, slices of 500 rows: the state holds a few slices, not the hours between the partitions.
        assert max(op["numRowsTotal"] for p in progress for op in p["stateOperators"]) < 3 * 500


def test_a_topic_that_is_subscribed_no_more_holds_nobody(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    kept, dropped = kafka.create_topic(), kafka.create_topic()
    kafka.produce(kept, [Record("1", timestamp_ms=START_MS)])
    kafka.produce(dropped, [Record("1", timestamp_ms=START_MS - HOUR_MS)])

    def run(*topics: str) -> tuple[list[int], int | None]:
        rows: list[int] = []
        with LowWatermarkService(spark) as service:
            source = KafkaSource(bootstrap_servers=kafka.bootstrap, topics=topics, columns=["value", "timestamp"])
            writer = service.read(source, name="orders").writeStream.trigger(availableNow=True)
            writer = writer.foreachBatch(lambda batch, _: rows.extend(int(row.value) for row in batch.collect()))
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.awaitTermination(100)
            return sorted(rows), service.status("orders").low_watermark_us

    both = run(kept, dropped)
    kafka.produce(kept, [Record("2", timestamp_ms=START_MS + HOUR_MS)])
    kafka.produce(dropped, [Record("2", timestamp_ms=START_MS)])
    one = run(kept)
    kafka.produce(kept, [Record("3", timestamp_ms=START_MS + 2 * HOUR_MS)])
    kafka.produce(dropped, [Record("3", timestamp_ms=START_MS + 3 * HOUR_MS)])
    again = run(kept, dropped)

    assert both == ([1, 1], (START_MS - HOUR_MS - 1) * 1_000)
    assert one == ([2], (START_MS + HOUR_MS - 1) * 1_000)
    assert again[0] == [1, 2, 3, 3], "as a new topic: from its first record"
