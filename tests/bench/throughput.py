"""The speed of reading a topic: Spark's own JVM connector against ours, same topic, same run, a sink without storage.

It measures the wall time on two cores, and the processor time of the query's processes: the JVM and the Python workers.
A second topic of a quarter of the size separates the cost of the start (Python processes, consumers) from the cost of a
record. Our connector runs twice: with all columns, like Spark's, and with the two columns that most queries use;
Spark's connector has no such choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.sources.kafka import KafkaSource
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.spark import Binding, load

from tests.servers.kafka import Broker, Record, kafka_broker

from .live import Run, connector, run_available, spent_ms
from .measure import Bound, Row

if TYPE_CHECKING:
    from lowmark.integration import LowWatermarkService
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
BATCHES = 4
START_MS = 1_700_000_000_000
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
SIDES = {"native": None, "ours": ALL, "ours, value and timestamp only": ("value", "timestamp")}
SERVERS = (
    b"kafka.Kafka", b"tests.servers.kinesis_service", b"io.pravega.local", b"tests.servers.pravega_service",
    b"tests.servers.tcp_proxy",
)  # fmt: skip
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Timed:
    run: Run
    cpu_ms: float


def records(count: int, size_bytes: int) -> Iterator[Record]:
    filling = "x" * (size_bytes - 12)
    for n in range(count):
        yield Record(f"{n:012}{filling}", n % PARTITIONS, key=f"{n % 1_000:04}", timestamp_ms=START_MS + n)


def run(
    spark: SparkSession,
    service: LowWatermarkService,
    folder: Path,
    *,
    small: int,
    large: int,
    pairs: int,
    warm: int = 1,
) -> list[Row]:
    del service  # neither side has a low watermark
    table = []
    with kafka_broker(folder / "throughput", optimized=True) as broker:
        for what, count, size_bytes, limit in (("100 bytes", small, 100, 1 / 1.5), ("1 KB", large, 1_000, 1.0)):
            topics = {}
            for size in (count, count // 4):
                topics[size] = broker.create_topic(partitions=PARTITIONS)
                broker.produce(topics[size], records(size, size_bytes))
            runs: dict[tuple[str, int], list[Timed]] = {(s, n): [] for n in topics for s in SIDES}
            for turn in range(pairs + warm):
                for (side, size), kept in runs.items():
                    columns = SIDES[side]
                    if columns is None:
                        df = _native(spark, broker, topics[size], size)
                    else:
                        df = _ours(spark, broker, topics[size], size, columns)
                    timed = _timed(df, folder / "throughput-checkpoints")
                    read = sum(batch["sources"][0]["numInputRows"] for batch in timed.run.batches)
                    assert read == size, f"{side} read {read} of {size} records"
                    if turn >= warm:
                        kept.append(timed)
            for side in list(SIDES)[1:]:
                section = f"reading {count:,} records of {what}{side.removeprefix('ours')}"
                table += _rows(section, side, runs, count, limit)
    return table


def _per_million_ms(large: list[Timed], small: list[Timed], count: int) -> list[float]:
    """Return the processor time of a million additional records, turn by turn."""
    more = count - count // 4
    return [(all_.cpu_ms - few.cpu_ms) * 1_000_000 / more for all_, few in zip(large, small, strict=True)]


def _rows(section: str, side: str, runs: dict[tuple[str, int], list[Timed]], count: int, limit: float) -> list[Row]:
    native, ours = runs["native", count], runs[side, count]
    return [
        Row.pairs(section, "processor time of a million records more", "ms",
                  _per_million_ms(native, runs["native", count // 4], count),
                  _per_million_ms(ours, runs[side, count // 4], count), bound=Bound(round(limit, 2), "ratio")),
        Row.pairs(section, "processor time, with all that starts", "ms", [t.cpu_ms for t in native],
                  [t.cpu_ms for t in ours], bound=Bound(round(limit, 2), "ratio")),
        Row.pairs(section, "whole query, start to end", "ms", [t.run.wall_ms for t in native],
                  [t.run.wall_ms for t in ours]),
        Row.pairs(section, "addBatch", "ms", [spent_ms(t.run.data, "addBatch") for t in native],
                  [spent_ms(t.run.data, "addBatch") for t in ours], bound=Bound(round(limit, 2), "ratio")),
    ]  # fmt: skip


def _native(spark: SparkSession, broker: Broker, topic: str, count: int) -> DataFrame:
    options: dict[str, str | int] = {"kafka.fetch.max.wait.ms": "10", "maxOffsetsPerTrigger": count // BATCHES}
    return connector(spark, broker, topic, **options)


def _ours(spark: SparkSession, broker: Broker, topic: str, count: int, columns: Sequence[str]) -> DataFrame:
    source = KafkaSource(bootstrap_servers=broker.bootstrap, topics=[topic], columns=columns)
    return load(spark, Binding(source, "throughput", PlanOptions(slots=2, max_rows=count // BATCHES, by_time=False)))


def _timed(df: DataFrame, folder: Path) -> Timed:
    before = cpu_ms()
    run = run_available(df, folder)
    return Timed(run, cpu_ms() - before)


def cpu_ms() -> float:
    """Return the processor time of this process and its descendants except servers, with ended children."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
        parents[pid] = int(rest[1])
        spent[pid] = (
            0 if any(each in command.replace(b"\0", b" ") for each in SERVERS) else sum(map(int, rest[11:15]))
        )  # its own and its ended children's, user and system

    def ours(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return sum(ticks for pid, ticks in spent.items() if ours(pid)) * 1000 / _TICKS
