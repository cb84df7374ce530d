"""The delay of the watermark: from the end of a window to the window's row in the sink, on a real Kafka topic.

A thread writes to every partition all the time, and a record's event time is the time of its writing, so no partition
is behind and native Spark loses nothing. Windows of a second are counted, the watermark is a second behind, and each
engine writes its windows to a topic of its own. The broker's clock stamps the row of a window at its arrival there.
Programs run in turns, because two queries at once would wait for each other's tasks.
"""

from __future__ import annotations

import datetime as dt
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import functions as F

from tests.servers.kafka import Broker, kafka_broker
from tests.servers.local import wait_until

from .flink_sql import flink, missing
from .live import connector, progress
from .measure import Bound, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4
BEHIND = "1 second"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(BEHIND)
RECORDS_A_SECOND = 400
SQL = """
CREATE TABLE events (word STRING, ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
                     WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'raw',
      'scan.startup.mode' = 'latest-offset');
CREATE TABLE windows (line STRING)
WITH ('connector' = 'kafka', 'topic' = '{sink}', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'raw');
INSERT INTO windows
SELECT CONCAT(CAST(UNIX_TIMESTAMP(CAST(window_end AS STRING)) AS STRING), ' ', CAST(COUNT(*) AS STRING))
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' SECOND)) GROUP BY window_start, window_end
"""


@dataclass(frozen=True)
class Delays:
    """The delays of a program's windows, and the records that its windows lack."""

    ms: list[float]
    lost_records: int
    batch_ms: float = 0.0  # from one batch to the next

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)

    def row(self, section: str, what: str, native: Delays | None = None) -> Row:
        """A row of the table; beside native Spark, the bound is one batch more."""
        note = f"{len(self.ms)} windows, {self.lost_records} records lost, at most {max(self.ms):,.0f} ms"
        note += f", a batch each {self.batch_ms:,.0f} ms" if self.batch_ms else ""
        if native is None:
            return Row(section, what, "ms", None, self.median_ms, note=note)
        bound = Bound(round(max(native.batch_ms, self.batch_ms)), "added")
        return Row.pairs(section, what, "ms", [native.median_ms], [self.median_ms], bound=bound, note=note)


@dataclass
class Writer:
    """Writes records with the present time to all partitions, evenly, while a block runs; counts them by second."""

    broker: Broker
    topic: str
    sent: Counter[int] = field(default_factory=Counter)

    @contextmanager
    def writing(self) -> Iterator[None]:
        over = threading.Event()
        writer = threading.Thread(target=self._write, args=(over,), name="delay-writer")
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()

    def _write(self, over: threading.Event) -> None:
        began, count = time.monotonic(), 0
        while not over.wait(0.005):
            while count < (time.monotonic() - began) * RECORDS_A_SECOND:
                now_ms = time.time_ns() // 1_000_000
                self.broker.producer.produce(self.topic, b"x", partition=count % PARTITIONS, timestamp=now_ms)
                self.sent[now_ms // 1_000] += 1
                count += 1
            self.broker.producer.poll(0)
        self.broker.producer.flush(10)


def run(
    spark: SparkSession,
    service: LowWatermarkService,
    folder: Path,
    *,
    triggers: tuple[int, ...],
    windows: int,
    warm: int,
) -> list[Row]:
    """Measure native Spark, `wrap` and `read` with each trigger, and Flink SQL, which has no triggers.

    Args:
        spark: the session.
        service: it wraps and reads.
        folder: for checkpoints and logs.
        triggers: seconds from one batch to the next; 0: a batch follows the one before.
        windows: how many windows count; at least as many as five batches close.
        warm: how many windows are left out before; two batches at least.
    """
    rows: list[Row] = []
    with kafka_broker(folder / "delay", optimized=True) as broker:
        topic = broker.create_topic(partitions=PARTITIONS)
        for trigger in triggers:
            section = f"end of a window to its row in the sink, trigger {trigger} s"
            count, before = max(windows, 5 * trigger), max(warm, 2 * trigger)
            native: Delays | None = None
            for side, build in SIDES.items():
                name = f"delay {side} {trigger}"
                sink = broker.create_topic(message_timestamp_type="LogAppendTime")
                df = counted(build(spark, service, broker, topic, name))
                with _spark(df, broker, sink, trigger, folder / name) as query:
                    delays = _measured(broker, topic, sink, count, before, _runs(query))
                    batch_ms = _batch_ms(query)
                delays = replace(delays, batch_ms=batch_ms)
                rows.append(delays.row(section, side, native))
                native = native or delays
        section, why = "the same windows of Flink SQL", missing()
        if why:
            return [*rows, Row(section, "flink", "ms", None, None, note=why)]
        sink = broker.create_topic(message_timestamp_type="LogAppendTime")
        statements = SQL.format(topic=topic, sink=sink, bootstrap=broker.bootstrap)
        with flink(folder / "delay-flink", statements) as process:
            delays = _measured(broker, topic, sink, windows, warm, lambda: process.poll() is None)
        rows.append(delays.row(section, "flink"))
    return rows


# -- the programs


def _native(spark: SparkSession, service: LowWatermarkService, broker: Broker, topic: str, name: str) -> DataFrame:
    return connector(spark, broker, topic, startingOffsets="latest").withWatermark("timestamp", BEHIND)


def _wrapped(spark: SparkSession, service: LowWatermarkService, broker: Broker, topic: str, name: str) -> DataFrame:
    df = connector(spark, broker, topic, startingOffsets="latest")
    return service.wrap(df, name=name, event_time="timestamp", split=["topic", "partition"], strategy=STRATEGY)


def _read(spark: SparkSession, service: LowWatermarkService, broker: Broker, topic: str, name: str) -> DataFrame:
    columns = ["partition", "timestamp"]
    source = KafkaSource(bootstrap_servers=broker.bootstrap, topics=[topic], columns=columns, start="latest")
    return service.read(source, name=name, strategy=STRATEGY)


SIDES = {"native": _native, "wrapped": _wrapped, "read": _read}


def counted(df: DataFrame) -> DataFrame:
    """Count each window; a line is its end in seconds of the epoch, a space, and its records."""
    windows = df.groupBy(F.window("timestamp", "1 second")).agg(F.count(F.lit(1)).alias("n"))
    return windows.select(F.concat_ws(" ", F.unix_timestamp("window.end"), "n").alias("value"))


@contextmanager
def _spark(df: DataFrame, broker: Broker, sink: str, trigger: int, folder: Path) -> Iterator[StreamingQuery]:
    writer = df.writeStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", sink)
    writer = writer.option("checkpointLocation", str(folder)).trigger(processingTime=f"{trigger} seconds")
    query = writer.outputMode("append").start()
    try:
        yield query
    finally:
        query.stop()


def _runs(query: StreamingQuery) -> Callable[[], bool]:
    return lambda: query.isActive


def _batch_ms(query: StreamingQuery) -> float:
    """From the start of one batch to the start of the next, in the middle of the last 20."""
    starts = [dt.datetime.fromisoformat(each["timestamp"]).timestamp() for each in progress(query)[-20:]]
    return statistics.median(after - before for before, after in pairwise(starts)) * 1_000


# -- the measure


def _measured(broker: Broker, topic: str, sink: str, windows: int, warm: int, running: Callable[[], bool]) -> Delays:
    """Write until the sink has enough windows; return the delays of the windows after the warm ones."""
    seen: dict[int, tuple[float, int]] = {}  # end of a window, seconds of the epoch -> its row's delay and records
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": sink, "broker.address.family": "v4"})
    consumer.assign([TopicPartition(sink, 0, OFFSET_BEGINNING)])
    after = max(5, warm)  # the rows of one batch come in any order, so later batches must have come, too

    def enough() -> bool:
        if not running():
            raise RuntimeError(f"the program that writes to {sink} ended by itself")
        for message in consumer.consume(1_000, 0.05):
            end, count = map(int, (message.value() or b"").split())
            seen[end] = message.timestamp()[1] - end * 1_000, count
        return bool(seen) and max(seen) - min(seen) >= warm + windows + after

    writer = Writer(broker, topic)
    with writer.writing():
        wait_until(enough, f"{windows} windows in {sink}", seconds=120 + 3 * (windows + warm + after))
    consumer.close()
    ends = range(min(seen) + warm, min(seen) + warm + windows)
    lost = sum(writer.sent[end - 1] - seen.get(end, (0.0, 0))[1] for end in ends)
    return Delays([seen[end][0] for end in ends if end in seen], lost)
