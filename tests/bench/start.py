"""The start of a query: from `start()` to the end of its first batch, and the Python process that a stream starts.

On 1,000 rows in a file, where Spark itself is quickest, and on as many records of a Kafka topic with four partitions.

Wall time of a start depends on other load of the machine. Processor time and memory of the process do not, so the table
has them, too.
"""

from __future__ import annotations

import datetime as dt
import os
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration import LowWatermarkService
from lowmark.sources.files import FileSource
from lowmark.sources.kafka import KafkaSource

from tests.servers.kafka import Broker, Record, kafka_broker
from tests.servers.local import wait_until

from .live import Batch, connector, data_batches, progress, spent_ms
from .measure import Bound, Row
from .scan import SPLITS, STRATEGY, TIME, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 1_000
PARTITIONS = 4
START_MS = 1_700_000_000_000
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
PATIENCE_SECONDS = 240.0

Define = Callable[[str], "DataFrame"]


def run(spark: SparkSession, service: LowWatermarkService, folder: Path, *, pairs: int) -> list[Row]:
    file = write(spark, f"{SPLITS}, {TIME}", ROWS, folder / "start")
    schema = spark.read.parquet(str(file)).schema

    def files() -> DataFrame:
        return spark.readStream.schema(schema).parquet(str(file.parent))

    on_files: dict[str, Define] = {
        "native": lambda _: files().withWatermark("ts", "10 seconds"),
        "wrapped": lambda name: service.wrap(files(), name=name, event_time="ts", split="partition", strategy=STRATEGY),
        "read": lambda name: service.read(FileSource(str(file), event_time="ts"), name=name, strategy=STRATEGY),
    }
    rows = _starts(spark, on_files, folder, f"start of a query on {ROWS:,} rows in a file", pairs=pairs)
    with kafka_broker(folder / "start-broker") as broker:
        topic = broker.create_topic(partitions=PARTITIONS)
        broker.produce(topic, [Record("x", n % PARTITIONS, timestamp_ms=START_MS + n) for n in range(ROWS)])
        on_kafka = _on_kafka(spark, service, broker, topic)
        rows += _starts(spark, on_kafka, folder, f"start of a query on {ROWS:,} records of a Kafka topic", pairs=pairs)
    return rows


def _on_kafka(spark: SparkSession, service: LowWatermarkService, broker: Broker, topic: str) -> dict[str, Define]:
    source = KafkaSource(bootstrap_servers=broker.bootstrap, topics=[topic])
    return {
        "native": lambda _: connector(spark, broker, topic).withWatermark("timestamp", "10 seconds"),
        "wrapped": lambda name: service.wrap(
            connector(spark, broker, topic), name=name, event_time="timestamp", split="partition", strategy=STRATEGY
        ),
        "read": lambda name: service.read(source, name=name, strategy=STRATEGY),
    }


def _starts(spark: SparkSession, defines: Mapping[str, Define], folder: Path, section: str, *, pairs: int) -> list[Row]:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    took: dict[str, list[float]] = {side: [] for side in defines}
    processes: dict[str, list[tuple[float, float]]] = {side: [] for side in defines}
    for turn in range(pairs + 1):  # the first turn warms up, and starts what a session starts once
        for side, define in defines.items():
            df, before = define(f"start {side}"), runners(jvm)
            began = time.time()
            query = _start(df, folder)
            first = first_end(query)
            assert first is not None, query.exception()
            if turn:
                took[side].append((first - began) * 1000)
                processes[side] += [_cost(pid) for pid in runners(jvm) - before]
            query.stop()
    rows = [
        Row.pairs(section, f"{side}: start() to the end of the first batch", "ms", took["native"], took[side],
                  bound=Bound(bound, "added"))
        for side, bound in {"wrapped": 500, "read": 1_000}.items()
    ]  # fmt: skip
    for side in ("wrapped", "read"):
        seconds, private = zip(*processes[side], strict=True)
        what = f"{side}: a Python process of the stream"
        rows += [
            Row(section, f"{what}, processor time", "ms", None, statistics.median(seconds) * 1000),
            Row(section, f"{what}, private memory", "MB", None, statistics.median(private), bound=Bound(50, "at most")),
        ]
    return rows


def _start(df: DataFrame, folder: Path) -> StreamingQuery:
    writer: Any = df.writeStream.format("noop").option("checkpointLocation", str(folder / uuid.uuid4().hex))
    started: StreamingQuery = writer.start()
    return started


def first_end(query: StreamingQuery) -> float | None:
    """Wait for the first batch with rows, and return when it ended, in seconds of the epoch; None: the query ended."""

    def found() -> list[Batch]:
        return data_batches(progress(query))

    wait_until(lambda: found() or not query.isActive, "a first batch", seconds=PATIENCE_SECONDS)
    if not found():
        return None
    first = found()[0]
    began = dt.datetime.fromisoformat(first["timestamp"].replace("Z", "+00:00"))
    return began.timestamp() + spent_ms([first], "triggerExecution") / 1000


def runners(jvm: int) -> set[int]:
    """The readers' processes that a JVM started."""
    found = set[int]()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == jvm and RUNNER in (place / "cmdline").read_text():
                found.add(int(place.name))
        except OSError:
            continue  # ended in the meantime
    return found


def _cost(pid: int) -> tuple[float, float]:
    """Processor time in seconds and private memory in MB."""
    lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    private = [int(line.split()[1]) for line in lines if line.startswith("Private")]
    return processor_seconds(pid), sum(private) / 1024


def processor_seconds(pid: int) -> float:
    spent = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")
