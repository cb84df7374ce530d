"""The watermark's delay and the cost of telling it, for a client of Spark Connect beside a driver.

python -m tests.bench.connect [FILES]

Each file is a batch of two splits. Busy: all files are there before the query starts. Paced: each file comes when the
low watermark of the file before is in force. The delay is that from the end of a batch with rows to the plan of the
batch whose heartbeat carries their low watermark. Telling is the call that takes one answer to the server's host: with
each answer of those queries, and afterwards, on a server with nothing else to do, by the analysis of a data source, as
lowmark does it, beside a job on a data source that does the same.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.connect import ConnectSession
from lowmark.integration.spark.connect_query import progress_of
from lowmark.integration.spark.progress import Progress
from lowmark.integration.spark.session import local_session
from lowmark.integration.transport.driver_rpc import HeartbeatReply
from lowmark.integration.transport.told import FORMAT, TellSource, Told, _take
from lowmark.sources.spark.source import register_class
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BooleanType, StructType

from tests.drivers.connect_wrapped import SPLITS, wrapped
from tests.integration.feed import Feed, us, windows
from tests.servers.connect import connect_server
from tests.servers.local import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP_SECONDS = 20
_BY_JOB = "lowmark_tell_by_job"


@contextmanager
def client(folder: Path) -> Iterator[SparkSession]:
    """Yield the session of a client, on a server of its own."""
    from pyspark.sql import SparkSession

    folder.mkdir()
    with connect_server(folder) as (_, port):
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def measure(spark: SparkSession, folder: Path, files: int, *, paced: bool) -> tuple[list[int], list[float]]:
    """Return the delay of each file's low watermark, in batches and in milliseconds."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        counted = windows(wrapped(spark, service, folder, splits=SPLITS), "split")
        writer = counted.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
        if not paced:
            _put(feed, range(files))
        query = writer.outputMode("append").start(str(folder / "out"))
        progress: dict[int, Progress] = {}

        def low_us() -> int:
            for each in query.recentProgress:
                if "addBatch" in each.durationMs:
                    progress.setdefault(each.batchId, progress_of(each))
            return max((offset.low_us or 0 for each in progress.values() for _, offset in each.heartbeats()), default=0)

        def reached(goal_us: int) -> bool:
            return low_us() >= goal_us

        for file in range(files):
            if paced:
                _put(feed, [file])
            goal_us = us(file * _STEP_SECONDS) - 1_000
            wait_until(partial(reached, goal_us), f"the low watermark of file {file}", seconds=120)
        query.stop()
    batches, spent_ms = [], []
    with_rows = [batch for batch in sorted(progress) if progress[batch].sources[0].num_input_rows]
    for file, batch in enumerate(with_rows[:files]):
        goal_us = us(file * _STEP_SECONDS) - 1_000
        told = next(n for n in sorted(progress) if any((o.low_us or 0) >= goal_us for _, o in progress[n].heartbeats()))
        batches.append(told - batch)
        ended = _began(progress[batch]) + progress[batch].duration_ms["triggerExecution"]
        spent_ms.append(max(0.0, _began(progress[told]) - ended))
    return batches, spent_ms


def _put(feed: Feed, files: Any) -> None:
    for file in files:
        feed.put(("fast", 1, file * _STEP_SECONDS + 100), ("slow", 1, file * _STEP_SECONDS))


def _began(progress: Progress) -> float:
    return dt.datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp() * 1_000


class TellByJob(TellSource):
    """Takes an answer to the server's host when a job reads it, instead of when it is analyzed."""

    @classmethod
    def name(cls) -> str:
        return _BY_JOB

    def schema(self) -> StructType:
        return StructType().add("told", BooleanType())

    def reader(self, schema: StructType) -> DataSourceReader:  # Spark's interface
        return _JobReader(dict(self.options))


class _JobReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        _take(self._options)
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bool]]:  # Spark's interface
        return iter(())


def tell_both_ways(spark: SparkSession, times: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of telling by analysis alone and by a job, measured in pairs, after one of each."""
    register_class(spark, TellByJob)
    secret, token = secrets.token_hex(32), secrets.token_hex(16)
    spent_ms: tuple[list[float], list[float]] = ([], [])
    for number in range(times + 1):
        reply = HeartbeatReply(low_watermark_us=us(number), epoch=number, state="{}")
        options = {"secret": secret, "token": token, "reply": Told(reply, number).to_json()}
        for kept, source in zip(spent_ms, (FORMAT, _BY_JOB), strict=True):
            reader = spark.read.format(source).options(**options)
            began = time.perf_counter()
            df = reader.load()
            _ = df.schema if source == FORMAT else df.collect()
            if number:
                kept.append((time.perf_counter() - began) * 1_000)
    spark.read.format(FORMAT).options(secret=secret, token=token).load().schema  # noqa: B018  # removes the answer
    return spent_ms


def show(what: str, values: list[float] | list[int], unit: str) -> None:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    print(f"{what:52} median {statistics.median(ordered):8.1f} {unit}, p99 {p99:8.1f} {unit}, n = {len(ordered)}")


def main(files: int) -> None:
    told_ms: list[float] = []
    tell = ConnectSession._tell

    def timed(session: ConnectSession, *given: Any) -> None:
        began = time.perf_counter()
        tell(session, *given)
        told_ms.append((time.perf_counter() - began) * 1_000)

    ConnectSession._tell = timed  # type: ignore[assignment,method-assign]
    with tempfile.TemporaryDirectory(prefix="lowmark-bench-") as place:
        folder = Path(place)
        with client(folder / "client") as spark:
            for paced in (False, True):
                batches, spent_ms = measure(spark, folder / f"connect-{paced}", files, paced=paced)
                how = "paced" if paced else "busy"
                show(f"client, {how}: delay", batches, "batches")
                show(f"client, {how}: delay", spent_ms, "ms")
            show("client: telling, in the queries", told_ms, "ms")
            by_analysis_ms, by_job_ms = tell_both_ways(spark, files)
            show("client: telling by analysis, idle server", by_analysis_ms, "ms")
            show("client: telling by a job, idle server", by_job_ms, "ms")
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        with local_session("bench") as (spark, _):
            for paced in (False, True):
                batches, spent_ms = measure(spark, folder / f"classic-{paced}", files, paced=paced)
                how = "paced" if paced else "busy"
                show(f"driver, {how}: delay", batches, "batches")
                show(f"driver, {how}: delay", spent_ms, "ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
