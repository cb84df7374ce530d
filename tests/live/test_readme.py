"""The README's example, changed only in addresses, on a real broker."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.progress import Progress
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.kafka import Broker, Record
from tests.snippets import block

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.live
def test_the_example_runs(spark: SparkSession, kafka: Broker, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)  # the first
    topic = kafka.create_topic(partitions=2)
    for here, there in (
        ("localhost:9092", kafka.bootstrap),
        ('"subscribe", "orders"', f'"subscribe", "{topic}").option("startingOffsets", "earliest"'),
        ("/tmp/orders", checkpoint),
        ("metrics_port=9464", "metrics_port=0"),
    ):
        assert here in example
        example = example.replace(here, there)
    for at_ms in (1_700_000_000_000, 1_700_000_500_000):
        kafka.produce(
            topic, [Record(partition=p, value=json.dumps({"at": at_ms - 60_000 * p}).encode()) for p in (0, 1)]
        )
    monkeypatch.setattr(StreamingQuery, "awaitTermination", StreamingQuery.processAllAvailable)
    names: dict[str, Any] = {}
    exec(example, names)  # the project's own README
    newest = Progress.from_json(names["query"].lastProgress.json)
    names["query"].stop()

    assert newest.watermark_us == (1_700_000_500_000 - 60_000 - 10_000 - 1) * 1_000
    assert spark.version.startswith("4.")


@pytest.mark.live
def test_reading_through_our_source_runs(spark: SparkSession, kafka: Broker, checkpoint: str) -> None:
    snippet = block("README.md", "from lowmark.sources.kafka import")
    assert snippet == block("read.md", "from lowmark.sources.kafka import")
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(partition=n % 2, value="x", timestamp_ms=1_700_000_000_000 + n) for n in range(10)])
    code = snippet.replace("broker:9092", kafka.bootstrap).replace('topics=["orders"]', f'topics=["{topic}"]')
    with LowWatermarkService(spark) as service:
        names: dict[str, Any] = {"service": service, "strategy": WatermarkStrategy()}
        exec(code, names)
        events = names["events"].writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = events.trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(progress["numInputRows"] for progress in query.recentProgress) >= 10


@pytest.mark.live
def test_files_and_then_kafka_are_read_as_one_stream(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    midnight = datetime(2026, 11, 24, tzinfo=timezone.utc)
    archive, topic = tmp_path / "orders", kafka.create_topic(partitions=2)
    archive.mkdir()
    times = pa.array([midnight - timedelta(seconds=2 - n) for n in range(2)], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"value": pa.array([b"old-0", b"old-1"]), "timestamp": times}), archive / "a.parquet")
    at_ms = round(midnight.timestamp()) * 1_000
    kafka.produce(
        topic, [Record(partition=n % 2, value=f"new-{n}", timestamp_ms=at_ms + 1_000 * n) for n in range(-2, 4)]
    )
    code = block("read.md", "from lowmark.sources.files import").replace("broker:9092", kafka.bootstrap)
    code = code.replace('topics=["orders"]', f'topics=["{topic}"]').replace("/data/orders", str(archive))
    with LowWatermarkService(spark) as service:
        names: dict[str, Any] = {"service": service, "strategy": WatermarkStrategy()}
        exec(code, names)
        writer = names["events"].selectExpr("string(value)", "split_id").writeStream.format("parquet")
        writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
        for _ in range(2):
            writer.trigger(availableNow=True).start().awaitTermination()
    read = {(row.value, row.split_id) for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert read == {
        *((f"old-{n}", "0:a.parquet") for n in range(2)),
        *((f"new-{n}", f"1:{topic}/{n % 2}") for n in range(4)),
    }
