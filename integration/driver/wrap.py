"""Builds the wrapped DataFrame, or refuses to.

    heartbeat = (lowmark_heartbeat source: one row with time = low watermark + D)
                .withWatermark(event_time, D).observe(heartbeat metric)
    data      = df.observe(stream metric) with event_time's metadata naming D as its delay
    result    = data ∪ heartbeat, without the heartbeat's rows

Only the heartbeat carries a watermark node, so Spark's watermark is the splits' low watermark. The `observe` above the
node is a barrier: without it Spark would push a later filter of the user's below the node, where the filter removes
the heartbeat's row and freezes the watermark. The data come first in the union, because a union keeps the metadata and
column ids of its first child.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark import versions
from lowmark.integration.spark.logical_plan import InputPlan
from lowmark.integration.spark.sessions import session_of
from lowmark.integration.transport.heartbeat import COLUMNS, FORMAT
from lowmark.integration.transport.mapped import DELAY_KEY, without_delay
from lowmark.integration.transport.split_key import quoted
from lowmark.sources.spark import named_reader
from lowmark.sources.spark.settings import is_true
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from .stream import Stream

log = logging.getLogger("lowmark")

_ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"
_TIME, _MARKER, _ROW = COLUMNS


def check_arguments(
    df: object, *, name: str, event_time: object, split: object, splits: Iterable[object] | None
) -> None:
    """Raises `WrapRefused` for arguments of another type than `LowWatermarkService.wrap` takes, before Python does."""
    if not isinstance(df, DataFrame):
        raise WrapRefused(name, f"expected a DataFrame to wrap, got {df!r:.100}", "wrap what spark.readStream gives.")
    check_text(name, "event_time", event_time, "ts")
    columns = split if isinstance(split, list | tuple) else [split]
    for column in columns:
        check_text(name, "split", column, "partition")
    if isinstance(splits, str | bytes) or (splits is not None and not isinstance(splits, Iterable)):
        raise WrapRefused(
            name,
            f"splits is {splits!r:.100}, expected several ids",
            'pass a list, as splits=["a", "b"], or leave splits out if the ids are not known.',
        )


def check_text(name: str, argument: str, given: object, example: str) -> None:
    """Raises `WrapRefused` for an argument that is no text, or an empty one; it should be the name of a column."""
    if isinstance(given, str) and given:
        return
    hint = f'pass {argument}="{example}"'
    if isinstance(given, Column):
        hint += "; what is computed must be a column first: .withColumn(...)"
    raise WrapRefused(name, f"{argument} is {given!r:.100}, expected the name of a column", f"{hint}.")


def check_input(df: DataFrame, *, name: str, event_time: str, strategy: WatermarkStrategy) -> InputPlan:
    """Raises `WrapRefused` for a DataFrame that cannot be wrapped; returns the facts in the plan of another one."""
    if not df.isStreaming:
        hint = "wrap what spark.readStream gives; a batch query has no watermark."
        raise WrapRefused(name, "the DataFrame is not a stream", hint)
    columns = df.columns
    twice = sorted({c for c in columns if columns.count(c) > 1})
    if twice:
        hint = "rename or drop one of each before wrapping."
        raise WrapRefused(name, f"these columns exist twice: {', '.join(twice)}", hint)
    taken = sorted(set(columns) & set(COLUMNS))
    if taken:
        fact = f"the column {taken[0]} has a name that lowmark uses itself"
        raise WrapRefused(name, fact, "rename it before wrapping.")
    _check_event_time(df.schema, name=name, event_time=event_time, strategy=strategy)
    plan = session_of(df.sparkSession).input_plan(df)
    if plan.has_heartbeat:
        hint = "wrap a stream once, at its source; one wrapped DataFrame may feed several queries."
        raise WrapRefused(name, "this DataFrame is wrapped already, or comes from one that is", hint)
    if plan.has_watermark:
        raise WrapRefused(
            name,
            "withWatermark already stands on this DataFrame; Spark would go by the largest event time seen anywhere",
            "remove it: the strategy's bound takes its place.",
        )
    return plan


def check_audited(df: DataFrame, *, name: str, event_time: str, strategy: WatermarkStrategy) -> InputPlan:
    """Raises `WrapRefused` for a DataFrame that cannot be audited; returns the facts in the plan of another one."""
    if not df.isStreaming:
        raise WrapRefused(
            name, "the DataFrame is not a stream", "audit_table of lowmark.integration audits a table that is there."
        )
    _check_event_time(df.schema, name=name, event_time=event_time, strategy=strategy)
    plan = session_of(df.sparkSession).input_plan(df)
    if plan.has_heartbeat:
        hint = "its status tells what an audit would; audit what is not wrapped."
        raise WrapRefused(name, "this DataFrame is wrapped already", hint)
    return plan


def check_session(spark: SparkSession, *, name: str) -> None:
    """Set the options that observed metrics need, and warn of a setting that delays results, or refuse one."""
    versions.prepare_session(spark)
    if int(spark.conf.get(_ROWS_AT_ONCE) or 1) < 1:
        fact = f"{_ROWS_AT_ONCE} is below 1, and Spark ends each query that has a source in Python then"
        raise WrapRefused(name, fact, "set a number of rows; Spark's default is 10000.")
    if not is_true(spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled")):
        log.warning(
            'stream "%s": spark.sql.streaming.noDataMicroBatches.enabled is false, so a window that the low watermark '
            "closes is emitted only with the next batch that has data. Hint: leave it at true.",
            name,
        )


def _check_event_time(schema: StructType, *, name: str, event_time: str, strategy: WatermarkStrategy) -> None:
    types = {f.name: f.dataType for f in schema.fields}
    kind = types.get(event_time)
    if kind is None:
        if strategy.timestamp_assigner is not None:
            return  # the assigner adds it
        hint = (
            "nested fields must be a column of their own: .withColumn(...) first."
            if "." in event_time
            else "check the spelling."
        )
        fact = f'event time column "{event_time}" does not exist; there are: {", ".join(sorted(types))}'
        raise WrapRefused(name, fact, hint)
    if isinstance(kind, TimestampNTZType):
        raise WrapRefused(
            name,
            f'event time column "{event_time}" is TIMESTAMP_NTZ, which has no place on the time line',
            f'say which zone its times are in, as F.to_utc_timestamp("{event_time}", "Europe/Berlin") does, '
            'or cast it to "timestamp_ltz" for the session\'s zone.',
        )
    if not isinstance(kind, TimestampType):
        raise WrapRefused(
            name,
            f'event time column "{event_time}" is {kind.simpleString()}, expected timestamp',
            "convert it first: F.timestamp_millis(...), F.timestamp_seconds(...) or F.to_timestamp(...).",
        )


def build(df: DataFrame, stream: Stream, *, event_time: str, address: str) -> DataFrame:
    """Return the wrapped DataFrame: the same rows and columns, nullable, under the low watermark of its splits.

    Args:
        df: checked by `check_input`; event time already assigned.
    """
    delay_ms = stream.strategy.delay_ms
    # Spark refuses two event times.
    columns = {
        field.name: F.col(quoted(field.name)).alias(field.name, metadata=without_delay(field.metadata))
        for field in df.schema.fields
        if DELAY_KEY in field.metadata
    }
    metadata = {**df.schema[event_time].metadata, DELAY_KEY: delay_ms}
    # The rename stands below the observation, where it costs no projection of its own. A `withColumn` of Spark Connect
    # would drop the metadata.
    columns[event_time] = F.col(quoted(event_time)).alias(event_time, metadata=metadata)
    data = df.select(*(columns.get(name, quoted(name)) for name in df.columns))
    data = stream.late.add(stream.measure.observe(data), stream.name, event_time)
    heartbeat = _heartbeat(df, stream, event_time=event_time, address=address, delay_ms=delay_ms)
    both = data.withColumn(_MARKER, F.lit(False)).unionByName(heartbeat)
    if stream.dropped is not None:  # the last, because a progress event lists a source where it stands first
        both = both.unionByName(stream.dropped.withColumn(_MARKER, F.lit(False)))
    result = both.filter(~F.col(_MARKER)).select(*map(quoted, [*df.columns, *stream.late.names]))
    # Spark refuses a second watermark only while the query runs. DataFrames built on `result` lose this
    # override, so the service looks at the plan of their running queries (`RunningQuery.fault`).
    result.withWatermark = partial(_refuse_watermark, stream.name)  # type: ignore[method-assign]
    return result


def _refuse_watermark(name: str, *_: object) -> NoReturn:
    raise WrapRefused(
        name,
        "withWatermark on a wrapped stream would replace the low watermark by the largest event time again",
        "remove it: the strategy's bound takes its place.",
    )


def _heartbeat(df: DataFrame, stream: Stream, *, event_time: str, address: str, delay_ms: int) -> DataFrame:
    source = (
        named_reader(df.sparkSession, "heartbeat", stream.name)
        .format(FORMAT)
        .options(
            address=address,
            stream_id=stream.stream_id,
            stream=stream.name,
            delay_ms=str(delay_ms),
            split=stream.key.text,
        )
        .load()
    )
    columns = [F.col(_TIME).alias(event_time) if c == event_time else _null_like(df, c) for c in df.columns]
    columns += stream.late.of_heartbeat()
    row = source.select(*columns, F.col(_MARKER)).withWatermark(quoted(event_time), f"{delay_ms} milliseconds")
    return row.observe(f"{stream.metric}:heartbeat", F.max(quoted(event_time)).alias("time"))


def _null_like(df: DataFrame, column: str) -> Column:
    """A null of the column's type that is never folded: folded, a filter on it would drop the branch."""
    kind = df.schema[column].dataType
    return F.get(F.array(F.lit(None).cast(kind)), F.col(_ROW)).alias(column)
