"""Many small queries in one driver: their start at once, and a batch of each while all of them run.

Each query takes the files of one folder, so one new file is a batch of 1,000 rows for every query at once.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService

from tests.servers.local import wait_until

from .live import Batch, data_batches, progress, spent_ms
from .measure import Bound, Row
from .scan import SPLITS, STRATEGY, TIME, write
from .start import PATIENCE_SECONDS, first_end, processor_seconds, runners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 1_000


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, crowds: Mapping[int, int], batches: int
) -> list[Row]:
    """Start each crowd natively and wrapped in turns, and feed it after its last start.

    Args:
        spark: the session.
        service: it wraps.
        folder: for files and checkpoints.
        crowds: how many queries run at once, and how often they are started.
        batches: how many batches each query takes after its first.
    """
    file = write(spark, f"{SPLITS}, {TIME}", ROWS, folder / "crowd")
    rows = []
    for crowd, starts in crowds.items():
        native: list[_Crowd] = []
        wrapped: list[_Crowd] = []
        for turn in range(1, starts + 1):
            for side, done in {"native": native, "wrapped": wrapped}.items():
                place = folder / f"crowd-{side}-{crowd}-{turn}"
                done.append(_crowd(spark, service, place, file, side, crowd, batches if turn == starts else 0))
        section = f"{crowd} queries in one driver, trigger 1 s"
        rows += [
            Row(section, f"queries with a first batch, the fewest of {starts} starts", "queries",
                min(each.started for each in native), min(each.started for each in wrapped),
                bound=Bound(crowd, "wrapped")),
            Row.pairs(section, "until all have a first batch", "ms",
                      *([each.start_ms for each in side] for side in (native, wrapped)),
                      bound=Bound(35_000, "at most") if crowd == 20 else None),
            Row.pairs(section, "a batch of 1,000 rows of each", "ms", native[-1].rounds_ms, wrapped[-1].rounds_ms,
                      bound=Bound(50, "added"), note=f"{batches} rounds, the mean of all queries' batches in a round"),
            Row.pairs(section, "processor time of a batch", "ms", native[-1].spent_ms, wrapped[-1].spent_ms,
                      note="of Spark, the service and the readers, with what they do between batches"),
        ]  # fmt: skip
    return rows


@dataclass(frozen=True, slots=True)
class _Crowd:
    started: int
    start_ms: float
    rounds_ms: list[float]
    """The mean batch of each round."""
    spent_ms: list[float]
    """The processor time of each round, by query."""


def _crowd(
    spark: SparkSession, service: LowWatermarkService, place: Path, file: Path, side: str, crowd: int, batches: int
) -> _Crowd:
    place.mkdir()
    os.link(file, place / "0.parquet")
    queries, schema = [], spark.read.parquet(str(file)).schema
    began = time.time()
    for n in range(crowd):
        df = spark.readStream.schema(schema).parquet(str(place))
        if side == "native":
            df = df.withWatermark("ts", "10 seconds")
        else:
            df = service.wrap(df, name=f"{place.name} {n}", event_time="ts", split="partition", strategy=STRATEGY)
        writer = df.writeStream.format("noop").option("checkpointLocation", str(place.parent / uuid.uuid4().hex))
        queries.append(writer.trigger(processingTime="1 second").start())
    ends = [end for query in queries if (end := first_end(query)) is not None]
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    processes = [os.getpid(), jvm, *runners(jvm)]
    rounds, spent = [], []
    for number in range(1, batches + 1):
        before = sum(map(processor_seconds, processes))
        os.link(file, place / f"{number}.parquet")
        last = [_data_batch(query, number) for query in queries]
        rounds.append(spent_ms(last, "triggerExecution") / crowd)
        spent.append((sum(map(processor_seconds, processes)) - before) * 1_000 / crowd)
    for query in queries:
        query.stop()
    return _Crowd(len(ends), (max(ends) - began) * 1_000, rounds, spent)


def _data_batch(query: StreamingQuery, number: int) -> Batch:
    """Wait for a query's batch with rows of that number, from 0.

    `processAllAvailable` would wait for the next trigger of each query, one after the other.
    """

    def found() -> list[Batch]:
        return data_batches(progress(query))[number:]

    return wait_until(found, f"batch {number} with rows", seconds=PATIENCE_SECONDS)[0]
