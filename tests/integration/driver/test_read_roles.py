"""Features of some sources, under real Spark: odd names, several sources in a row, own checkpoints; and the planner's
process, which every source has.

Queries end by themselves. Their sink keeps rows by batch: a repeated batch replaces itself.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.driver import stream_factory
from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.progress import Progress
from lowmark.sources import HybridSource, check_source
from lowmark.sources.files import FileSource
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.rate import RateLimiterStrategy
from lowmark.watermark import SplitState, WatermarkStrategy
from lowmark.watermark.printable import printable
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import csv, parquet
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.feed import seconds, us
from tests.integration.log import CuttingLog, Log, LogSource, WatchedLog
from tests.servers.local import http_get, wait_until

STEP = 0.001
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("ts", TIME), ("v", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def table(times: Sequence[float]) -> pa.Table:
    return pa.table({"ts": pa.array([us(at) for at in times], TIME), "v": range(len(times))}, SCHEMA)


@dataclass
class Sink:
    """Takes (split, number) of every row, by batch.

    Attributes:
        after_batch: called with a batch's rows after they were taken; its error fails the query.
    """

    batches: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    after_batch: Callable[[list[tuple[str, int]]], None] | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = self.batches[batch_id] = [(row.split_id, row.v) for row in batch.collect()]
        if self.after_batch is not None:
            self.after_batch(rows)

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def start(df: DataFrame, sink: Sink, checkpoint: str) -> StreamingQuery:
    writer = df.select("split_id", "v").writeStream.foreachBatch(sink).trigger(availableNow=True)
    return writer.option("checkpointLocation", checkpoint).start()


def lows(query: StreamingQuery) -> list[float]:
    """The low watermarks in the heartbeats of a query."""
    progress = [Progress.from_json(one.json) for one in query.recentProgress]
    found = [seconds(heartbeat.low_us) for one in progress for _, heartbeat in one.heartbeats()]
    return [low for low in found if low is not None]


def finish(df: DataFrame, sink: Sink, checkpoint: str) -> StreamingQuery:
    query = start(df, sink, checkpoint)
    assert query.awaitTermination(100)
    return query


# -- a source whose system decides where a batch ends


@pytest.mark.parametrize("rate", [RateLimiterStrategy.per_second(10), RateLimiterStrategy.per_checkpoint(10)])
def test_a_rate_is_refused_because_a_batch_ends_where_the_system_says(log: Log, rate: RateLimiterStrategy) -> None:
    """A source without counts of its rows would pay for a batch with pauses that grow without end."""
    nothing: Any = None
    given = stream_factory.UserRows("orders", "at", "split_id", WatermarkStrategy.no_watermarks(), max_splits=1)
    read: Any = partial(
        stream_factory.read, nothing, CuttingLog(log.folder), given, prepare=None, late=nothing, address=""
    )
    with pytest.raises(
        WrapRefused, match=r"rate is .*the system of CuttingLog decides where a batch ends.*Hint: leave"
    ):
        read(options=PlanOptions(rate=rate))
    with pytest.raises(AttributeError, match="sparkContext"):  # it goes on, to the session that is missing here
        read(options=PlanOptions(rate=RateLimiterStrategy.no_op()))


# -- names

ODD = 'it\'s "ä" ☃ 日本 \u202e 100%20 a=b,c;d {e} [f] <g> #h?i&j \\n \t~.part'
PLAIN = "plain.part"


def test_a_split_of_any_name_is_shown_as_it_is(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    parquet.write_table(table(range(0, 50, 10)), folder / ODD)
    parquet.write_table(table(range(0, 100, 10)), folder / PLAIN)
    sink = Sink()
    with LowWatermarkService(spark, metrics_port=0) as service:
        df = service.read(FileSource(str(folder), event_time="ts"), name="odd", tasks=2)
        scrapes = []

        def scrape(_: list[tuple[str, int]]) -> None:  # splits of a query that has ended have no series
            scrapes.append(http_get(f"http://127.0.0.1:{service.metrics_port}/metrics")[1])

        sink.after_batch = scrape
        finish(df, sink, checkpoint)
        status, explained = service.status("odd"), service.explain("odd")

    assert sink.rows == sorted([(ODD, n) for n in range(5)] + [(PLAIN, n) for n in range(10)])
    assert {name: split.rows for name, split in status.splits.items()} == {ODD: 5, PLAIN: 10}
    assert f"    {printable(ODD)}: finished, watermark " in explained
    samples = [sample for family in text_string_to_metric_families(scrapes[-1]) for sample in family.samples]
    shown = {s.labels["split"]: s.value for s in samples if s.name == "lowmark_split_rows_total"}
    assert shown == {ODD: 5, PLAIN: 10}, scrapes[-1]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_file_of_any_name_keeps_the_laws_in_every_format(tmp_path: Path, kind: str) -> None:
    rows, path = table(range(0, 50, 10)), tmp_path / ODD
    if kind == "json":
        path.write_text("".join(f'{{"ts": "{row["ts"].isoformat()}", "v": {row["v"]}}}\n' for row in rows.to_pylist()))
    else:
        csv.write_csv(rows, path) if kind == "csv" else parquet.write_table(rows, path)
    source = FileSource(str(tmp_path), format=kind, event_time="ts", schema=SCHEMA)
    check_source(source)
    assert [split.split_id for split in source.discover()] == [ODD]


# -- the planner's process


@pytest.mark.parametrize("moment", ["while it plans", "while rows are read"])
def test_a_killed_planner_fails_the_query_and_a_restart_loses_and_doubles_nothing(
    service: LowWatermarkService, log: Log, checkpoint: str, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    log.append("a", *range(0, 400, 10))
    log.append("b", *range(0, 200, 10))
    source, sink = WatchedLog(log.folder), Sink()

    def kill(rows: list[tuple[str, int]]) -> None:
        if moment == "while it plans":
            source.order.touch()
        else:
            os.kill(int(source.pid.read_text()), signal.SIGKILL)

    df = service.read(source, name="log", tasks=2, max_rows_per_batch=20)
    sink.after_batch = kill
    query = start(df, sink, checkpoint)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(100)
    wait_until(lambda: "start the query again" in caplog.text, "the service's word on it", seconds=30)
    assert 'on "log": a Python process that Spark reads from is gone' in caplog.text
    assert 0 < len(sink.rows) < 60

    sink.after_batch = None
    again = finish(df, sink, checkpoint)
    assert sink.rows == sorted([("a", n) for n in range(40)] + [("b", n) for n in range(20)])
    assert lows(again)[0] >= max(lows(query), default=0)
    assert lows(again)[-1] == 190 - STEP


# -- several sources in a row


def test_history_and_then_what_is_live_are_read_whole_and_once_over_restarts(
    service: LowWatermarkService, log: Log, tmp_path: Path, checkpoint: str
) -> None:
    history = tmp_path / "history"
    history.mkdir()
    parquet.write_table(table(range(0, 100, 10)), history / "a", row_group_size=2)
    parquet.write_table(table(range(0, 100, 20)), history / "b", row_group_size=2)
    # Live rows are as old as the last rows of history: only the order of the sources keeps them apart.
    log.append("a", *range(80, 180, 10))
    log.append("b", *range(80, 160, 10))
    files = FileSource(str(history), event_time="ts", schema=SCHEMA, bounded=True)
    source, sink = HybridSource(files, LogSource(log.folder)), Sink()
    df = service.read(source, name="log", tasks=2, max_rows_per_batch=6)
    moments: list[Callable[[list[tuple[str, int]]], bool]] = [
        lambda rows: ("0:a", 4) in rows,  # in the middle of history
        lambda rows: ("0:a", 9) in rows,  # the last row of history: the switch is planned, and not committed
        lambda rows: any(split.startswith("1:") for split, _ in rows),  # the first live row
    ]
    risen = []
    for moment in moments:

        def stop(rows: list[tuple[str, int]], moment: Callable[[list[tuple[str, int]]], bool] = moment) -> None:
            if moment(rows):
                raise RuntimeError("the sink is full")

        sink.after_batch = stop
        query = start(df, sink, checkpoint)
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            query.awaitTermination(100)
        risen += lows(query)
    sink.after_batch = None
    risen += lows(finish(df, sink, checkpoint))

    lengths = {"0:a": 10, "0:b": 5, "1:a": 10, "1:b": 8}
    assert sink.rows == sorted((split, n) for split, rows in lengths.items() for n in range(rows))
    assert risen == sorted(risen)
    assert risen[-1] == 150 - STEP
    of_history = [at for at, rows in sink.batches.items() if any(split.startswith("0:") for split, _ in rows)]
    of_now = [at for at, rows in sink.batches.items() if any(split.startswith("1:") for split, _ in rows)]
    assert max(of_history) < min(of_now)
    states = {name: split.state for name, split in service.status("log").splits.items()}
    assert states == {
        "0:a": SplitState.FINISHED,
        "0:b": SplitState.FINISHED,
        "1:a": SplitState.ACTIVE,
        "1:b": SplitState.ACTIVE,
    }


# -- checkpoints that the source decides about


def test_a_source_that_decides_where_batches_end_is_read_whole_and_once_over_a_restart(
    service: LowWatermarkService, log: Log, checkpoint: str
) -> None:
    log.append("a", *range(0, 400, 10))
    log.append("b", *range(0, 200, 10))
    sink = Sink()
    df = service.read(CuttingLog(log.folder), name="log", tasks=2)

    def stop(rows: list[tuple[str, int]]) -> None:
        if ("b", 13) in rows:
            raise RuntimeError("the sink is full")

    sink.after_batch = stop
    query = start(df, sink, checkpoint)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(100)
    risen = lows(query)
    sink.after_batch = None
    risen += lows(finish(df, sink, checkpoint))

    assert sink.rows == sorted([("a", n) for n in range(40)] + [("b", n) for n in range(20)])
    sizes = [Counter(split for split, _ in rows) for rows in sink.batches.values() if rows]
    assert sizes == [{"a": 7, "b": 7}] * 2 + [{"a": 7, "b": 6}] + [{"a": 7}] * 2 + [{"a": 5}]
    assert risen == sorted(risen)
    assert risen[-1] == 190 - STEP
