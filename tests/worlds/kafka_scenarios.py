"""Common parts of the live Kafka tests: topics with known rows, the query of every test, and its checks.

A record's value is its event time in microseconds, as text; offset and partition are its identity.
The `Log` remembers the produced records, so each check compares lowmark with the topic.

    shares of the truth    Log.windows       windows of a batch query over the topic, by plain Python
                           batch_windows     the same by Spark itself, in batch mode
                           expected_lows     the low watermark after each batch, from its Kafka offsets alone
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lowmark.integration.spark.kafka_offsets import kafka_positions
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.kafka import Broker, Record
from tests.sparks import settings

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
T0_US = 1_700_000_040 * SECOND_US  # a full minute
BOUND_US = 10 * SECOND_US
WINDOW_US = MINUTE_US

VALUE_TIME = "timestamp_micros(cast(cast(value as string) as bigint))"
"""The event time in a record's value, as a SQL expression."""

Window = tuple[int, int]  # partition, start in microseconds
Windows = dict[Window, int]  # -> rows


def bounded() -> WatermarkStrategy:
    """The strategy of all scenarios: rows come at most ten seconds late."""
    return WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")


def shuffled(rng: random.Random, times_us: Iterable[int], *, bound_us: int = BOUND_US) -> list[int]:
    """Put event times in an order of arrival in which no row is later than the bound, but many are late."""
    arrivals = [(time_us + rng.randrange(bound_us), time_us) for time_us in times_us]
    return [time_us for _, time_us in sorted(arrivals)]


def spread(rng: random.Random, *, rows: int, start_us: int, length_us: int) -> list[int]:
    """`rows` event times from `start_us` on, in microseconds that are no round numbers."""
    return [start_us + rng.randrange(length_us) for _ in range(rows)]


@dataclass
class Log:
    """One topic, and every event time in it by partition and offset."""

    broker: Broker
    topic: str
    times_us: dict[int, list[int]] = field(default_factory=dict)
    stamped: bool = True  # records have their event time as timestamp, else the time of their arrival

    @classmethod
    def create(cls, broker: Broker, partitions: int, *, stamped: bool = True) -> Log:
        topic = broker.create_topic(partitions=partitions)
        return cls(broker, topic, {partition: [] for partition in range(partitions)}, stamped)

    def grow(self, total: int) -> None:
        """Add partitions, up to `total`."""
        self.broker.add_partitions(self.topic, total)
        for partition in range(len(self.times_us), total):
            self.times_us[partition] = []

    def produce(self, rows: Mapping[int, Sequence[int]]) -> None:
        """Append event times to partitions, interleaved, and return when the broker has them.

        The times are the records' values, and if the log is `stamped` also their timestamps, in milliseconds.
        """
        queues = {partition: list(times) for partition, times in rows.items() if times}
        most = max(map(len, queues.values()), default=0)
        records = [
            Record(str(times[i]), partition, timestamp_ms=times[i] // 1_000 if self.stamped else None)
            for i in range(most)
            for partition, times in queues.items()
            if i < len(times)
        ]
        self.broker.produce(self.topic, records)
        for partition, times in queues.items():
            self.times_us[partition] += times

    @property
    def rows(self) -> int:
        return sum(map(len, self.times_us.values()))

    def windows(self, *, closed_by_us: int | None = None) -> Windows:
        """The tumbling windows of one minute per partition; only those that end at or before `closed_by_us`."""
        counted: Windows = defaultdict(int)
        for partition, times in self.times_us.items():
            for time_us in times:
                counted[partition, time_us // WINDOW_US * WINDOW_US] += 1
        return {w: n for w, n in counted.items() if closed_by_us is None or w[1] + WINDOW_US <= closed_by_us}


# --- queries ---


def source(spark: SparkSession, log: Log, **options: object) -> DataFrame:
    """The topic as a stream: topic, partition, offset, ts."""
    settings = {
        "kafka.bootstrap.servers": log.broker.bootstrap,
        "subscribe": log.topic,
        "startingOffsets": "earliest",
        # The default is five minutes, and a test waits for an added partition.
        "kafka.metadata.max.age.ms": 500,
        # Each task asks for the end of its partition over the connection on which its fetch waits for new rows: by
        # default half a second, in every partition and batch.
        "kafka.fetch.max.wait.ms": 20,
        **options,
    }
    return parsed(spark.readStream.format("kafka").options(**_text(settings)).load())


def parsed(frame: DataFrame) -> DataFrame:
    """Take the event time out of Kafka's value."""
    return frame.select(
        "topic",
        "partition",
        "offset",
        F.expr(VALUE_TIME).alias("ts"),
    )


def by_window() -> list[Column]:
    """The grouping columns of the scenarios."""
    return [F.window("ts", "1 minute").alias("w"), F.col("partition")]


def counted(events: DataFrame) -> DataFrame:
    """Windows per partition, as plain columns: partition, start_us, rows."""
    return (
        events.groupBy(*by_window())
        .agg(F.count(F.lit(1)).alias("rows"))
        .select("partition", F.unix_micros("w.start").alias("start_us"), "rows")
    )


def batch_windows(spark: SparkSession, log: Log) -> Windows:
    """The windows that a Spark batch query over the topic gives."""
    settings = {
        "kafka.bootstrap.servers": log.broker.bootstrap,
        "subscribe": log.topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    frame = parsed(spark.read.format("kafka").options(**settings).load())
    return {(r.partition, r.start_us): r.rows for r in counted(frame).collect()}


@dataclass
class Sink:
    """A query's emitted rows, in the session's memory: every row, so that a window emitted twice is found."""

    spark: SparkSession
    name: str = field(default_factory=lambda: f"sink_{uuid.uuid4().hex[:12]}")

    def start(self, frame: DataFrame, checkpoint: str | None = None, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("memory").queryName(self.name).outputMode("append")
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start()

    def windows(self) -> Windows:
        """What was emitted; fails if a window came twice."""
        return each_once([((r.partition, r.start_us), r.rows) for r in self.spark.table(self.name).collect()])


class Batches:
    """A foreachBatch sink for windows that outlives restarts: a repeated batch replaces its earlier rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Window, int]]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [((r.partition, r.start_us), r.rows) for r in frame.collect()]

    def windows(self) -> Windows:
        """What was emitted; fails if a window came twice."""
        return each_once([row for batch in self.batches.values() for row in batch])


def each_once(emitted: Sequence[tuple[Window, int]]) -> Windows:
    """The emitted windows; fails if one came twice."""
    windows = dict(emitted)
    twice = len(emitted) - len(windows)
    assert not twice, f"{twice} windows were emitted more than once"
    return windows


@contextmanager
def remembered(spark: SparkSession, batches: int) -> Iterator[None]:
    """Let Spark keep the progress of this many batches (100 by default)."""
    with settings(spark, {"spark.sql.streaming.numRecentProgressUpdates": str(batches)}):
        yield


def history(query: StreamingQuery) -> list[Progress]:
    """The progress of every batch that Spark remembers, oldest first, each batch once."""
    seen = {p.batch_id: p for p in map(Progress.from_java, query._jsq.recentProgress())}
    return [seen[batch_id] for batch_id in sorted(seen)]


def newest(query: StreamingQuery) -> Progress:
    """The progress of the newest batch, for polls: the history of a hundred batches takes tens of milliseconds."""
    return Progress.from_java(query._jsq.lastProgress())


# --- checks ---


def dropped(progress: Iterable[Progress]) -> int:
    """Rows that stateful operators dropped as late, over all batches."""
    return sum(p.dropped_rows for p in progress)


def heartbeat_of(progress: Progress, stream: str) -> HeartbeatOffset:
    """The stream's heartbeat in one batch: its end offset."""
    [found] = [offset for _, offset in progress.heartbeats() if offset.stream == stream]
    return found


def assert_in_force(progress: Sequence[Progress], stream: str) -> int:
    """The watermark that Spark used in batch N + 1 is the low watermark in the heartbeat of batch N, in every batch.

    Returns:
        The number of batches with a low watermark in force.
    """
    in_force = 0
    for before, after in pairwise(progress):
        assert after.batch_id == before.batch_id + 1, f"no progress of batch {before.batch_id + 1}"
        low_us = heartbeat_of(before, stream).low_us
        # Spark's own watermark is the epoch until the first low watermark.
        assert after.watermark_us == (0 if low_us is None else low_us), f"batch {after.batch_id}"
        in_force += low_us is not None
    return in_force


def kafka_source(progress: Progress) -> SourceProgress:
    """The one Kafka source of a batch."""
    [found] = [s for s in progress.sources if kafka_positions(s.end_offset)]
    return found


def expected_lows(progress: Iterable[Progress], log: Log, strategy: WatermarkStrategy) -> list[tuple[int, int | None]]:
    """(batch, low watermark after that batch's report), from Kafka's offsets and the produced rows.

    Computed independently of the coalescer: the minimum over all partitions of the largest event time read so far,
    less the bound and a millisecond; None until every partition has a row. Idleness is left out.
    """
    top_us: dict[int, int] = {}
    low_us: int | None = None
    lows: list[tuple[int, int | None]] = []
    for batch in progress:
        kafka = kafka_source(batch)
        start, end = kafka_positions(kafka.start_offset), kafka_positions(kafka.end_offset)
        for (topic, partition), position in end.items():
            read = log.times_us[partition][start.get((topic, partition), 0) : position]
            if read:
                top_us[partition] = max([*read, top_us.get(partition, read[0])])
        if len(top_us) == len(end):
            floor_us = min((t - strategy.out_of_orderness_us) // 1_000 * 1_000 - 1_000 for t in top_us.values())
            low_us = floor_us if low_us is None else max(low_us, floor_us)
        lows.append((batch.batch_id, low_us))
    return lows


def assert_reported(progress: Sequence[Progress], log: Log, stream: str, strategy: WatermarkStrategy) -> int:
    """Assert that the report of every batch N is in the heartbeat of batch N + 1.

    Returns:
        The number of rises of the low watermark.
    """
    told = {p.batch_id: heartbeat_of(p, stream).low_us for p in progress}
    lows = expected_lows(progress, log, strategy)
    wrong = {n: (told[n + 1], low_us) for n, low_us in lows if n + 1 in told and told[n + 1] != low_us}
    assert not wrong, f"batch: (heartbeat of the next one, expected) = {dict(list(wrong.items())[:3])}"
    return sum(a != b for (_, a), (_, b) in pairwise(lows))


class Notifications:
    """A LowWatermarkListener that keeps its notifications."""

    def __init__(self) -> None:
        self.heard_us: list[int] = []

    def on_new_low_watermark(self, message: Any) -> None:
        self.heard_us.append(message.new_low_watermark)


def seed() -> int:
    """Return a new random seed, for the test to print and to name in failures."""
    return time.time_ns() % 1_000_000


def _text(options: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items()}
