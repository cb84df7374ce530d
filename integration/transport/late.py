"""The watermark by which Spark judges the rows of a batch, as a value in the plan of the same batch.

Spark drops a row of batch N if its time is at or below the watermark that the checkpoint's offset log has for batch
N - 1 (`IncrementalExecution.prevOffsetSeqMetadata`), for batch 0 at or below 1970. No expression of Spark has this
watermark. So `wrap(late=..., watermark=...)` adds a scalar subquery over the source below. Spark runs
the subquery in every batch, in one task of one row; it leaves the subquery out if nobody uses the columns.

The task knows its batch by a local property of Spark's, and the watermarks of two batches by a setting of the query's
own session, which the driver changes before each batch (`integration/spark/late.py`) and Spark hands to every task.
The setting names its batches. If a task's batch is not among them, the first row ends the query, in words, so a wrong
answer is impossible.

Executors import this module.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from lowmark.sources.worker_costs import spare_next_task
from pyspark import TaskContext
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

_UNKNOWN = (
    'stream "{stream}": the watermark by which Spark drops rows in this batch is not known, so late rows cannot be '
    "told apart; nothing of the batch was written. Hint: start the query again while its LowWatermarkService runs; in "
    "a thread that a foreachBatch function starts, run pyspark.inheritable_thread_target(spark)(function)."
)

FORMAT = "lowmark_late"
PROPERTY = "spark.lowmark.lateWatermarks"
"""Setting of a query's own session, and local property of its tasks; Spark hands on names that begin with "spark".

JSON: id of a batch -> the watermark by which Spark drops rows in the batch, microseconds.
"""
_WATERMARK = "watermark"
_ARROW = pa.schema([pa.field(_WATERMARK, pa.timestamp("us", tz="UTC"))])


def this_batch() -> tuple[str, int] | None:
    """Return the ids of the query and of the batch to which this task belongs; None in a batch query."""
    context = TaskContext.get()
    assert context is not None, "only a task belongs to a batch"
    query_id, batch_id = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
    return None if query_id is None or batch_id is None else (query_id, int(batch_id))


def of_this_batch() -> int | None:
    """Return the watermark by which Spark drops rows in the batch of this task, microseconds.

    None if it is not told: only the tasks of a query with a column of late rows are told.
    """
    context = TaskContext.get()
    if context is None:
        return None
    told: dict[str | None, int] = json.loads(context.getLocalProperty(PROPERTY) or "{}")
    return told.get(context.getLocalProperty("streaming.sql.batchId"))


def watermark(spark: SparkSession, stream: str) -> Column:
    """Return an expression of the watermark by which Spark drops rows in the batch of a row.

    The session must know `LateSource`. The expression fails if the watermark is not known.
    """
    # In an array, because Spark writes a single time into the code of the batch, and compiles that anew if it moves.
    told = F.get(spark.read.format(FORMAT).load().select(F.array(_WATERMARK)).scalar(), F.lit(0))
    # The task that reads the watermark could raise, too, but Spark would hide the text behind an "awaitResult".
    return F.coalesce(told, F.raise_error(_UNKNOWN.format(stream=stream)).cast("timestamp_ltz"))


class LateSource(DataSource):
    """One row with the watermark of the batch in which it is read; null if it is not known."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"{_WATERMARK} timestamp_ltz"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # always the same
        return _LateReader()


class _LateReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002  # there is only one
        watermark_us = of_this_batch()
        known = pa.py_buffer(b"\0" if watermark_us is None else b"\1")
        value = pa.py_buffer(struct.pack("=q", watermark_us or 0))
        # Of buffers, as in `heartbeat.py`.
        column = pa.Array.from_buffers(_ARROW.field(0).type, 1, [known, value])
        yield pa.RecordBatch.from_arrays([column], schema=_ARROW)
        spare_next_task()
