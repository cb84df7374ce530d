"""A backfill: 64 partitions, 24 hours of history, one partition six hours behind, minute windows per partition.

Native Spark takes the same share of every partition's backlog, so the slow partition stays six hours behind, and native
Spark loses no row only with a delay of six hours, all kept in state. `service.read` takes every partition up to the
same event time. Both read with the same row budget and Spark's own sink; no row may be dropped. `service.read` also
reads with a budget for an hour, because its state stays small then, too. Flink SQL with watermark alignment reads the
same topic in a process of its own, and writes its windows to a topic; their records are counted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from lowmark.sources.kafka import KafkaSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import functions as F

from tests.servers.kafka import Broker, Record, kafka_broker
from tests.worlds.kafka_reading import values_of

from .flink_sql import job_ms, missing
from .live import Batch, Run, connector, run_available, spent_ms
from .measure import Bound, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 64
START_MS = 1_700_000_000_000
HOURS = 24
BEHIND_HOURS = 6
SLICE_MINUTES = 10
WIDER = 6
HOUR_MS = 3_600_000


SQL = """
CREATE TABLE events (word STRING, part INT METADATA FROM 'partition' VIRTUAL,
                     ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', WATERMARK FOR ts AS ts)
WITH ('connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'raw',
      'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
      'scan.watermark.alignment.group' = 'backfill', 'scan.watermark.alignment.max-drift' = '10min',
      'scan.watermark.alignment.update-interval' = '100ms');
CREATE TABLE windows (line STRING)
WITH ('connector' = 'kafka', 'topic' = '{sink}', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'raw');
INSERT INTO windows SELECT CAST(COUNT(*) AS STRING)
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, part
"""


def stamp_ms(partition: int, offset: int, per_partition: int) -> int:
    """Return the time of the record at an offset: spread evenly over the hours, in partition 0 some hours earlier."""
    behind_ms = BEHIND_HOURS * HOUR_MS if partition == 0 else 0
    return START_MS + offset * HOURS * HOUR_MS // per_partition - behind_ms


def records(per_partition: int) -> Iterator[Record]:
    for offset in range(per_partition):
        for partition in range(PARTITIONS):
            yield Record(f"{offset:08}", partition, timestamp_ms=stamp_ms(partition, offset, per_partition))


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("timestamp", "1 minute"), "partition").agg(F.count(F.lit(1)).alias("n"))


def run(
    spark: SparkSession,
    service: LowWatermarkService,
    folder: Path,
    *,
    count: int,
    pairs: int,
    slice_minutes: int = SLICE_MINUTES,
) -> list[Row]:
    section = f"backfill, {count:,} records, {PARTITIONS} partitions, {HOURS} h, one {BEHIND_HOURS} h behind"
    per_partition = count // PARTITIONS
    budget = count * slice_minutes // (HOURS * 60)
    runs: dict[str, list[Run]] = {"native": [], "read": [], "wider": []}
    with kafka_broker(folder / "backfill", optimized=True) as broker:
        topic = broker.create_topic(partitions=PARTITIONS)
        broker.produce(topic, records(per_partition))
        for turn in range(pairs):
            done = run_available(counted(_native(spark, broker, topic, budget)), folder / "backfill-checkpoints")
            _check(done, per_partition * PARTITIONS)
            runs["native"].append(done)
            # The stop is the topic's present end. A live split's next rows may have the time of its last row, so the
            # slow partition would hold the others six hours before their ends.
            source = KafkaSource(
                bootstrap_servers=broker.bootstrap, topics=[topic], columns=["partition", "timestamp"], stop="latest"
            )
            for side, rows in {"read": budget, "wider": WIDER * budget}.items():
                df = service.read(
                    source,
                    name=f"backfill {side} {turn}",
                    strategy=WatermarkStrategy.for_monotonous_timestamps(),
                    max_rows_per_batch=rows,
                )
                done = run_available(counted(df), folder / "backfill-checkpoints")
                _check(done, per_partition * PARTITIONS)
                runs[side].append(done)
        flink = _flink(section, broker, topic, folder, [run.wall_ms for run in runs["read"]])
    native, read, wider = runs["native"], runs["read"], runs["wider"]
    spans = [_slices_minutes(run, per_partition) for run in read]
    return [
        Row.pairs(section, "peak rows in state", "rows", list(map(_peak, native)), list(map(_peak, read)),
                  bound=Bound(0.1, "ratio")),
        Row.pairs(section, "whole query, start to end", "ms", [r.wall_ms for r in native], [r.wall_ms for r in read],
                  bound=Bound(1.0, "ratio"), note=f"batches: {len(native[0].batches)} | {len(read[0].batches)}"),
        Row.pairs(section, f"peak rows in state, batches of {slice_minutes * WIDER} minutes", "rows",
                  list(map(_peak, native)), list(map(_peak, wider))),
        Row.pairs(section, f"whole query, batches of {slice_minutes * WIDER} minutes", "ms",
                  [r.wall_ms for r in native], [r.wall_ms for r in wider], note=f"batches: {len(wider[0].batches)}"),
        Row.pairs(section, "a data batch", "ms", *([spent_ms(r.data, "triggerExecution") / len(r.data) for r in side]
                  for side in (native, read))),
        Row.pairs(section, "planning a batch (latestOffset)", "ms",
                  *([spent_ms(r.data, "latestOffset") / len(r.data) for r in side] for side in (native, read)),
                  bound=Bound(15, "at most")),
        Row(section, "drift between partitions after a batch, at most", "min", None, max(max(s) for s in spans),
            bound=Bound(SLICE_MINUTES, "at most")),
        flink,
    ]  # fmt: skip


def _native(spark: SparkSession, broker: Broker, topic: str, budget: int) -> DataFrame:
    options: dict[str, str | int] = {"kafka.fetch.max.wait.ms": "10", "maxOffsetsPerTrigger": budget}
    return (
        connector(spark, broker, topic, **options)
        .select("partition", "timestamp")
        .withWatermark("timestamp", f"{BEHIND_HOURS} hours 1 minute")
    )


def _flink(section: str, broker: Broker, topic: str, folder: Path, read_ms: list[float]) -> Row:
    """Run Flink SQL once with watermark alignment; it may not lose a record either."""
    what = "whole query of Flink SQL with watermark alignment (the left figure), once"
    why = missing()
    if why:
        return Row(section, what, "ms", None, None, note=why)
    sink = broker.create_topic()
    flink_ms = job_ms(folder / "backfill-flink", SQL.format(topic=topic, sink=sink, bootstrap=broker.bootstrap))
    lost = sum(broker.end_offsets(topic).values()) - sum(map(int, values_of(broker, sink)))
    return Row.pairs(section, what, "ms", [flink_ms] * len(read_ms), read_ms, note=f"Flink lost {lost} records")


def _check(done: Run, count: int) -> None:
    read = sum(batch["sources"][0]["numInputRows"] for batch in done.batches)
    dropped = sum(op.get("numRowsDroppedByWatermark", 0) for batch in done.batches for op in batch["stateOperators"])
    assert (read, dropped) == (count, 0), f"read {read} of {count} records, dropped {dropped}"


def _peak(run: Run) -> float:
    return float(max(op["numRowsTotal"] for batch in run.batches for op in batch["stateOperators"]))


def _slices_minutes(run: Run, per_partition: int) -> Sequence[float]:
    """Return the distance of the partitions after every batch, among the unfinished ones."""
    return [_apart_minutes(batch, per_partition) for batch in run.data[:-1]]


def _apart_minutes(batch: Batch, per_partition: int) -> float:
    offset = BatchOffset.find(batch["sources"][0]["endOffset"])
    assert offset is not None, "the first source is the one that is read"
    # The time of each partition's last read row; partitions without a read row do not count.
    at_ms = [
        stamp_ms(int(name.rpartition("/")[2]), position - 1, per_partition)
        for name, position in offset.positions.items()
        if 0 < position < per_partition
    ]
    return (max(at_ms) - min(at_ms)) / 60_000 if at_ms else 0.0
