"""Many small queries in one driver: their start at once, and a batch of each while all of them run.

Each query takes the files of one folder, so one new file is a batch of 1,000 rows for every query at once.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService

from tests.servers.local import wait_until

from .live import Batch, data_batches, progress, spent_ms
from .measure import Bound, Row
from .scan import SPLITS, STRATEGY, TIME, write
from .start import PATIENCE_SECONDS, first_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 1_000


def run(
    spark: SparkSession, service: LowWatermarkService, folder: Path, *, crowds: tuple[int, ...], batches: int
) -> list[Row]:
    """Start each crowd natively and wrapped, and feed it.

    Args:
        spark: the session.
        service: it wraps.
        folder: for files and checkpoints.
        crowds: how many queries run at once.
        batches: how many batches each query takes after its first.
    """
    file = write(spark, f"{SPLITS}, {TIME}", ROWS, folder / "crowd")
    rows = []
    for crowd in crowds:
        native, wrapped = (_crowd(spark, service, folder, file, side, crowd, batches) for side in ("native", "wrapped"))
        section = f"{crowd} queries in one driver, trigger 1 s"
        rows += [
            Row(section, "queries with a first batch", "queries", native[0], wrapped[0], bound=Bound(crowd, "wrapped")),
            Row.pairs(section, "until all have a first batch", "ms", [native[1]], [wrapped[1]],
                      bound=Bound(35_000, "at most") if crowd == 20 else None),
            Row.pairs(section, "a batch of 1,000 rows of each", "ms", native[2], wrapped[2], bound=Bound(50, "added"),
                      note=f"{batches} rounds, the mean of all queries' batches in a round"),
        ]  # fmt: skip
    return rows


def _crowd(
    spark: SparkSession, service: LowWatermarkService, folder: Path, file: Path, side: str, crowd: int, batches: int
) -> tuple[int, float, list[float]]:
    """Return the queries with a first batch, milliseconds until the last one, and the mean batch of each round."""
    place = folder / f"crowd-{side}-{crowd}"
    place.mkdir()
    os.link(file, place / "0.parquet")
    queries, schema = [], spark.read.parquet(str(file)).schema
    began = time.time()
    for n in range(crowd):
        df = spark.readStream.schema(schema).parquet(str(place))
        if side == "native":
            df = df.withWatermark("ts", "10 seconds")
        else:
            df = service.wrap(df, name=f"{side} {crowd}/{n}", event_time="ts", split="partition", strategy=STRATEGY)
        writer = df.writeStream.format("noop").option("checkpointLocation", str(folder / uuid.uuid4().hex))
        queries.append(writer.trigger(processingTime="1 second").start())
    ends = [end for query in queries if (end := first_end(query)) is not None]
    rounds: list[float] = []
    for number in range(1, batches + 1):
        os.link(file, place / f"{number}.parquet")
        last = [_data_batch(query, number) for query in queries]
        rounds.append(spent_ms(last, "triggerExecution") / crowd)
    for query in queries:
        query.stop()
    return len(ends), (max(ends) - began) * 1_000, rounds


def _data_batch(query: StreamingQuery, number: int) -> Batch:
    """Wait for a query's batch with rows of that number, from 0.

    `processAllAvailable` would wait for the next trigger of each query, one after the other.
    """

    def found() -> list[Batch]:
        return data_batches(progress(query))[number:]

    return wait_until(found, f"batch {number} with rows", seconds=PATIENCE_SECONDS)[0]
