"""A Kinesis stream and a Pravega stream, each in an alignment group with a stream of a real Kafka, as users write it.

Spark reads each stream in its own query, and all rows arrive. No low watermark may be ahead of the other by more than
the drift. The low watermark rises when a batch is planned, so delivered rows may be ahead by one more batch, which is
at most a drift long, and by the pause between two rows, because the newest delivered row may be that much older than
the stream's low watermark says. The test prints its measurements (`pytest -s`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.servers.kafka import Broker, Record
from tests.servers.kinesis import Kinesis
from tests.servers.local import wait_until
from tests.servers.pravega import Pravega
from tests.worlds.kinesis_reading import Writer, source_of

pytestmark = [pytest.mark.live]

START_MS = 1_700_000_000_000
BOUND_MS = 100
CLAIM_MS = 1
"""A stream that has read up to the cap claims that the next row is at least a millisecond beyond the cap."""


@pytest.fixture
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    with LowWatermarkService(spark) as service:
        yield service
        for query in spark.streams.active:
            query.stop()


@dataclass
class Group:
    """Queries on streams of one group, and the progress of each.

    Attributes:
        came_ms: the newest delivered event time of each stream; before its first batch its oldest.
        rows: the number of delivered rows of each stream.
        widest_ms: the largest distance of the two low watermarks.
        delivered_ms: the largest distance of delivered rows.
    """

    service: LowWatermarkService
    folder: Path
    drift_ms: int
    came_ms: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    queries: list[Any] = field(default_factory=list)
    widest_ms: float = 0.0
    delivered_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, name: str, source: Any, event_time: str, first_ms: int, **options: Any) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_MS} milliseconds")
        strategy = strategy.with_watermark_alignment("g", f"{self.drift_ms} milliseconds", "50 milliseconds")
        df = self.service.read(source, name=name, strategy=strategy, **options)
        self.came_ms[name], self.rows[name], self.batches[name] = first_ms, 0, 0
        seen = df.select(F.unix_millis(event_time).alias("ms"))
        writer = seen.writeStream.foreachBatch(lambda batch, _: self.take(name, batch))
        self.queries.append(writer.option("checkpointLocation", str(self.folder / name)).start())

    def take(self, name: str, batch: DataFrame) -> None:
        """Count the rows of a batch and its newest event time."""
        [row] = batch.agg(F.count("*").alias("rows"), F.max("ms").alias("ms")).collect()
        if not row.rows:
            return
        with self.lock:
            self.rows[name] += row.rows
            self.batches[name] += 1
            self.came_ms[name] = max(self.came_ms[name], row.ms)
            others = [ms for other, ms in self.came_ms.items() if other != name]
            if others:
                self.delivered_ms = max(self.delivered_ms, self.came_ms[name] - min(others))

    def join(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Return when all queries are members of the group, because the first one reads on alone until then.

        A query has a low watermark before it is a member: from its first plan on.
        """

        def joined() -> bool:
            self.check_queries()
            meanwhile()
            lows = [member.low_us for group in self.service.groups() for member in group.members]
            return len(lows) == len(self.queries) and None not in lows

        wait_until(joined, "all queries are members of the group", seconds=150, every_seconds=0.1)

    def meet(self) -> None:
        """Return when the streams are within the drift, and start measuring."""
        wait_until(lambda: self.apart_ms() <= self.drift_ms, "they are within the drift", seconds=60)
        at_ms = min(self.known()) // 1_000  # a claim reaches this far without a row
        with self.lock:
            self.came_ms = {name: max(came_ms, at_ms) for name, came_ms in self.came_ms.items()}
            self.delivered_ms = 0

    def apart_ms(self) -> float:
        known = self.known()
        return (max(known) - min(known)) / 1_000

    def known(self) -> list[int]:
        """The present low watermarks, without those that are None."""
        self.check_queries()
        lows = [status.low_watermark_us for _, status in self.service.statuses()]
        return [low for low in lows if low is not None]

    def check_queries(self) -> None:
        failed = [query.exception() for query in self.queries if query.exception()]
        assert not failed, failed

    def run(self, rows: dict[str, int]) -> None:
        """Return when all rows were delivered."""

        def all_came() -> bool:
            apart_ms = self.apart_ms()
            if self.rows != rows:
                self.widest_ms = max(self.widest_ms, apart_ms)
            return self.rows == rows

        wait_until(all_came, f"all rows of both: {rows}", seconds=150)
        print(
            f"drift {self.drift_ms} ms: low watermarks {self.widest_ms:g} ms apart at most, delivered rows "
            f"{self.delivered_ms} ms; batches with rows {self.batches}"
        )


def of_kafka(kafka: Broker, topic: str) -> KafkaSource:
    return KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic], discover_every="1 hour")


def test_pravega_and_kafka_stay_within_the_drift(
    service: LowWatermarkService, kafka: Broker, pravega: Pravega, tmp_path: Path
) -> None:
    count, pause_ms, drift_ms = 1_000, 300, 60_000
    times_ms = [START_MS + n * pause_ms for n in range(count)]  # five minutes
    events = [(f"k{n % 50}", json.dumps({"at": ms}).encode()) for n, ms in enumerate(times_ms)]
    stream, topic = pravega.create_stream(1), kafka.create_topic(partitions=1)
    kafka.produce(topic, [Record("first", timestamp_ms=START_MS)])
    pravega.write(stream, events[:1])
    group = Group(service, tmp_path, drift_ms)
    group.read("kafka", of_kafka(kafka, topic), "timestamp", START_MS)
    group.read("pravega", pravega.source(stream, event_time="$.at"), "event_time", START_MS)
    group.join()
    group.meet()
    pravega.write(stream, events[1:])
    kafka.produce(topic, [Record(f"{ms}", timestamp_ms=ms) for ms in times_ms[1:]])
    group.run({"kafka": count, "pravega": count})
    assert 0 < group.widest_ms <= drift_ms + CLAIM_MS
    assert group.delivered_ms <= 2 * drift_ms + CLAIM_MS + pause_ms
    assert min(group.batches.values()) >= 300_000 // drift_ms // 2, "in turns"


def test_kinesis_and_kafka_stay_within_the_drift(
    service: LowWatermarkService, kafka: Broker, kinesis: Kinesis, tmp_path: Path
) -> None:
    drift_ms, rows = 1_000, 5
    stream, topic = kinesis.create_stream(1), kafka.create_topic(partitions=1)
    writer, put_ms = Writer(kinesis, stream), list[int]()

    def put() -> None:
        """Put rows of the present: arrival times come from the clock."""
        put_ms.append(time.time_ns() // 1_000_000)
        writer.put(rows)

    group = Group(service, tmp_path, drift_ms)
    now_ms = time.time_ns() // 1_000_000
    group.read("kafka", of_kafka(kafka, topic), "timestamp", now_ms)
    source = source_of(kinesis, stream, disorder="0 seconds")
    group.read("kinesis", source, "approximateArrivalTimestamp", now_ms)
    put()
    kafka.produce(topic, [Record("first", timestamp_ms=put_ms[0])])
    # Kinesis gets rows until both are members and for five seconds more, because a group does not wait for a gap.
    group.join(meanwhile=put)
    end_ms = time.time_ns() // 1_000_000 + 5_000
    while put_ms[-1] < end_ms:
        put()
    kafka.produce(topic, [Record(f"{ms}", timestamp_ms=ms) for ms in put_ms for _ in range(rows)])
    group.meet()
    count = len(put_ms) * rows
    group.run({"kafka": count + 1, "kinesis": count})
    gap_ms = max(later - earlier for earlier, later in zip(put_ms, put_ms[2:], strict=False))  # longest: two puts
    assert 0 < group.widest_ms <= max(drift_ms, gap_ms) + CLAIM_MS
    assert min(group.batches.values()) >= 5_000 // drift_ms // 2, "in turns"
