"""A stream that a test feeds by hand: one JSON file, one batch.

Times are seconds on a test's own axis, 0 is 2023-11-14 22:13:20 UTC; fractions go down to microseconds.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

ZERO = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.timezone.utc)
ZERO_US = int(ZERO.timestamp()) * 1_000_000
SCHEMA = "split string, v int, ts timestamp"

Row = tuple[Any, ...]  # values in the order of the schema's columns; the event time as seconds or None


def us(seconds: float) -> int:
    """Convert seconds on the test's axis to microseconds since the epoch."""
    return ZERO_US + round(seconds * 1_000_000)


def seconds(at_us: int | None) -> float | None:
    """Convert microseconds since the epoch to seconds on the test's axis."""
    return None if at_us is None else (at_us - ZERO_US) / 1_000_000


@dataclass
class Feed:
    """The stream `df`; each call of `put` adds rows as one batch."""

    spark: SparkSession
    folder: Path
    schema: str = SCHEMA
    event_time: str = "ts"
    files: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    @property
    def df(self) -> DataFrame:
        stream = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return stream.json(str(self.folder))

    def put(self, *rows: Row) -> None:
        columns = [part.split()[0] for part in self.schema.split(",")]
        lines = [json.dumps(dict(zip(columns, map(_plain, columns, row), strict=True))) for row in rows]
        part = self.folder / ".part"
        part.write_text("\n".join(lines) + "\n")
        # The file source takes files in the order of their times, so the times have to differ.
        stamp = ZERO.timestamp() + self.files
        os.utime(part, (stamp, stamp))
        part.rename(self.folder / f"{self.files:04}.json")
        self.files += 1


def _plain(column: str, value: object) -> object:
    if column != "ts" or value is None or isinstance(value, str):
        return value
    assert isinstance(value, int | float)
    return (ZERO + dt.timedelta(microseconds=round(value * 1_000_000))).isoformat()


def windows(df: DataFrame, *keys: str, width: str = "10 seconds") -> DataFrame:
    """Count rows per window and key: (start in seconds on the test's axis, key..., n)."""
    counted = df.groupBy(F.window("ts", width).alias("w"), *keys).agg(F.count(F.lit(1)).alias("n"))
    start = (F.unix_micros("w.start") - F.lit(ZERO_US)) / F.lit(1_000_000)
    return counted.select(start.cast("double").alias("start"), *keys, "n")


def rows_read(progress: Iterable[Progress]) -> int:
    """The number of rows that the sources gave, without the heartbeats' rows."""
    sources = (source for each in progress for source in each.sources)
    return sum(source.num_input_rows for source in sources if HeartbeatOffset.find(source.end_offset) is None)


@dataclass
class Ran:
    """A running query whose output is collected in order."""

    query: StreamingQuery
    rows: list[Row]
    again: Callable[[], StreamingQuery] | None = None  # starts the query from its checkpoint

    def settle(self) -> None:
        """Wait until all input was processed, heartbeats included.

        Starts the query once more, as a supervisor does, if a Python process of the query did not start in the ten
        seconds that Spark waits, because the machine was busy. No setting of Spark's makes the ten seconds longer.
        """
        try:
            self.query.processAllAvailable()
        except StreamingQueryException as failed:
            if self.again is None or "Python worker failed to connect back" not in str(failed):
                raise
            self.query = self.again()
            self.query.processAllAvailable()

    @property
    def progress(self) -> list[Progress]:
        return [Progress.from_json(p.json) for p in self.query.recentProgress]

    @property
    def watermark(self) -> float | None:
        """The watermark of Spark's last report, on the test's axis; None before it rose above 1970."""
        newest = self.newest
        at_us = None if newest is None else newest.watermark_us
        return None if not at_us else seconds(at_us)

    @property
    def newest(self) -> Progress | None:
        """Spark's last report: what a poll should ask for, because up to a hundred reports take a tenth of a second."""
        last = self.query.lastProgress
        return None if last is None else Progress.from_json(last.json)

    @property
    def low(self) -> float | None:
        """The low watermark in the newest heartbeat."""
        newest = self.newest
        heartbeats = [] if newest is None else [offset for _, offset in newest.heartbeats()]
        return seconds((heartbeats or self.heartbeats)[-1].low_us)

    def has_low(self, low: float) -> bool:
        """Whether the newest heartbeat has this low watermark; False before the first report."""
        return self.newest is not None and self.low == low

    @property
    def heartbeats(self) -> list[HeartbeatOffset]:
        return [offset for progress in self.progress for _, offset in progress.heartbeats()]

    @property
    def dropped(self) -> int:
        return sum(progress.dropped_rows for progress in self.progress)

    def by_split(self) -> dict[str, int]:
        """The number of rows in emitted windows, by split, for output (start, split, n)."""
        counted: dict[str, int] = {}
        for _, split, n in self.rows:
            counted[split] = counted.get(split, 0) + n
        return counted


def start(
    df: DataFrame,
    checkpoint: str,
    *,
    mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    emitted: dict[int, list[Row]] | None = None,
) -> Ran:
    """Start a query that collects its output; ``emitted`` keeps it by batch, so a repeated batch replaces itself."""
    # Spark reads this at the start of a query: few partitions, because each task of a state store costs more than the
    # rows.
    df.sparkSession.conf.set("spark.sql.shuffle.partitions", "1")
    rows: list[Row] = []

    def collect(batch: DataFrame, batch_id: int) -> None:
        fresh = [tuple(row) for row in batch.collect()]
        rows.extend(fresh)
        if emitted is not None:
            emitted[batch_id] = fresh

    writer = df.writeStream.foreachBatch(collect).outputMode(mode).option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    if name is not None:
        writer = writer.queryName(name)
    return Ran(writer.start(), rows, writer.start)


def run(df: DataFrame, feed: Feed, batches: Sequence[Sequence[Row]], checkpoint: str, **options: Any) -> Ran:
    """Start a query and feed it batch by batch, each to its end."""
    ran = start(df, checkpoint, **options)
    for batch in batches:
        feed.put(*batch)
        ran.settle()
    return ran


def run_at_once(df: DataFrame, feed: Feed, batches: Sequence[Sequence[Row]], checkpoint: str, **options: Any) -> Ran:
    """Start a query that finds all its batches; the heartbeat of a batch comes with the rows of the next one.

    `run` takes up to three batches for a batch of the list: the rows, the heartbeat alone, the end of windows. Here
    rows are judged by the low watermark of three batches before, so none is late in the first three.
    """
    for batch in batches:
        feed.put(*batch)
    ran = start(df, checkpoint, **options)
    ran.settle()
    return ran


def lose_commit(checkpoint: str | Path) -> int:
    """Delete the newest commit, as if the query had been killed just before it; return its batch."""
    newest = max((file for file in Path(checkpoint, "commits").glob("[0-9]*")), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    return int(newest.name)
