"""A real Kafka broker and Spark's own connector: the main job, window aggregation over a topic of 64 partitions.

All partitions advance together, so native Spark drops no rows and both sides have equal state; with skew, the lost rows
would make native Spark faster. It runs twice: by Kafka's record timestamp without parsing, and by a time in the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from pyspark.sql import functions as F

from tests.servers.kafka import Broker, Record, kafka_broker

from .live import Run, connector, run_available, spent_ms
from .measure import Bound, Row
from .scan import STRATEGY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 64
START_MS = 1_700_000_000_000
DATA_BATCHES = 4


def records(count: int) -> Iterator[Record]:
    """Yield a record per millisecond, partition after partition."""
    for n in range(count):
        at_ms = START_MS + n
        value = (
            f'{{"at_ms": {at_ms}, "order": "{n:012}", "user": {n * 31 % 1_000_003}, "amount": {n * 31 % 10_000 / 100},'
            f' "status": "accepted", "article": "article-{n * 7919 % 100_000:06}"}}'
        )
        yield Record(value, n % PARTITIONS, timestamp_ms=at_ms)


def lean(raw: DataFrame) -> DataFrame:
    return raw.select("topic", "partition", F.col("timestamp").alias("ts"))


def parsed(raw: DataFrame) -> DataFrame:
    body = F.from_json(F.col("value").cast("string"), "at_ms bigint, user bigint, amount double, status string")
    columns = raw.select("topic", "partition", body.alias("body")).select("topic", "partition", "body.*")
    return columns.withColumn("ts", F.timestamp_millis("at_ms"))


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 minute"), "partition").agg(F.count(F.lit(1)).alias("n"))


def summed(df: DataFrame) -> DataFrame:
    return df.groupBy(F.window("ts", "1 minute"), "status").agg(F.sum("amount").alias("amount"))


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, count: int, pairs: int, warm: int = 1
) -> list[Row]:
    table = []
    with kafka_broker(folder / "kafka", optimized=True) as broker:
        topic = broker.create_topic(partitions=PARTITIONS)
        broker.produce(topic, records(count))
        for what, columns, query in (("record timestamp", lean, counted), ("time in the JSON", parsed, summed)):
            runs: dict[str, list[Run]] = {"native": [], "wrapped": []}
            for turn in range(pairs + warm):
                for side, kept in runs.items():
                    df = columns(_read(spark, broker, topic, count))
                    if side == "native":
                        df = df.withWatermark("ts", "10 seconds")
                    else:
                        name = f"{what}, turn {turn}"
                        split = ["topic", "partition"]
                        df = service.wrap(df, name=name, event_time="ts", split=split, strategy=STRATEGY)
                    done = run_available(query(df), folder / "kafka-checkpoints")
                    _check(done, count)
                    if turn >= warm:
                        kept.append(done)
            table += _rows(f"Kafka, {count:,} records, {PARTITIONS} partitions, {what}", runs)
    return table


def _read(spark: SparkSession, broker: Broker, topic: str, count: int) -> DataFrame:
    # At the end of a finished topic every fetch waits for more rows: half a second for each partition. This wait
    # takes as long as all the work, on both sides, and would hide the difference.
    options: dict[str, str | int] = {"kafka.fetch.max.wait.ms": "10"}
    # A whole number per partition, because Spark rounds down for each, and the rest would be one more batch.
    per_partition = -(-count // (DATA_BATCHES * PARTITIONS))
    options["maxOffsetsPerTrigger"] = per_partition * PARTITIONS
    return connector(spark, broker, topic, **options)


def _check(done: Run, count: int) -> None:
    """Check that both sides did the same work."""
    read = sum(batch["sources"][0]["numInputRows"] for batch in done.batches)
    dropped = sum(op.get("numRowsDroppedByWatermark", 0) for batch in done.batches for op in batch["stateOperators"])
    assert (read, dropped) == (count, 0), f"read {read} of {count} records, dropped {dropped}"


def _rows(section: str, runs: dict[str, list[Run]]) -> list[Row]:
    native, wrapped = runs["native"], runs["wrapped"]
    shape = [f"{len(r.data)} data + {len(r.batches) - len(r.data)} other" for r in (native[0], wrapped[0])]

    def add(run: Run) -> float:
        return spent_ms(run.data, "addBatch")

    return [
        Row.pairs(section, "whole query, start to end", "ms", [r.wall_ms for r in native], [r.wall_ms for r in wrapped],
                  bound=Bound(1.05, "ratio"), note=f"batches: {shape[0]} | {shape[1]}"),
        Row.pairs(section, "less batches without data", "ms", [r.wall_ms - r.other_ms for r in native],
                  [r.wall_ms - r.other_ms for r in wrapped]),
        Row.pairs(section, "addBatch of the data batches", "ms", list(map(add, native)), list(map(add, wrapped))),
    ]  # fmt: skip
