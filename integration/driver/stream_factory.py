"""Makes streams: the measured rows of a DataFrame, and the properties that the service must know.

`wrapped` rows are the user's own, measured by `observe`, or in Python if Spark cannot observe splits or the strategy
has code in Python. Rows that a source of ours `read`s are measured by its reader, unless the user prepares the rows
first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark import versions
from lowmark.integration.spark.logical_plan import InputPlan
from lowmark.integration.transport.accumulated import TrackParam
from lowmark.integration.transport.mapped import BatchMap, MappedMeasure
from lowmark.integration.transport.measure import Measure
from lowmark.integration.transport.observed import ObservedMeasure
from lowmark.integration.transport.planner_peer import ServicePeer
from lowmark.integration.transport.recorder import SPLIT_TYPE, AccumulatorRecorder, ReaderMeasure, RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import FailoverPolicy, Source
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.rate import RateLimiterStrategy
from lowmark.sources.spark import Binding, load
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession

from . import check, wrap
from .late_output import LateOutput
from .stream import Stream, metric_of


@dataclass(frozen=True, slots=True)
class UserRows:
    """A user's arguments about the rows of a stream; see `LowWatermarkService.wrap`."""

    name: str
    event_time: str
    split: str | Sequence[str]
    strategy: WatermarkStrategy
    max_splits: int
    detail: bool = False
    splits: Iterable[object] | None = None


def wrapped(df: DataFrame, given: UserRows, late: LateOutput) -> tuple[DataFrame, Stream]:
    """Return the measured rows and their stream; errors are those of `LowWatermarkService.wrap`."""
    name, event_time, strategy = given.name, given.event_time, given.strategy
    plan = wrap.check_input(df, name=name, event_time=event_time, strategy=strategy)
    late.check(df, name, strategy)
    dropped = late.branch(df, name, event_time)
    df, stream = _of_rows(df, plan, given)
    return df, replace(stream, late=late, dropped=dropped)


def audited(df: DataFrame, given: UserRows) -> Stream:
    """Return the stream of rows that have a watermark of their own; see `LowWatermarkService.audit`."""
    if not versions.observes_splits(df.sparkSession):
        raise WrapRefused(
            given.name,
            f"an audit adds one observation and nothing else; Spark {df.sparkSession.version} cannot observe splits",
            "audit with Spark 4.2 or newer, or what is stored: lowmark.integration.audit_table, `lowmark audit`.",
        )
    plan = wrap.check_audited(df, name=given.name, event_time=given.event_time, strategy=given.strategy)
    _, stream = _of_rows(df, plan, given)
    return stream


def check_arguments(source: object, *, name: str, event_time: object, prepare: object, split_column: object) -> None:
    """Raise `WrapRefused` for arguments of another type than `LowWatermarkService.read` takes, before Python does."""
    if not isinstance(source, Source):
        raise WrapRefused(
            name,
            f"expected a source to read, got {source!r:.100}",
            "pass one that is made with its options, as KafkaSource(...) is.",
        )
    if event_time is not None:
        wrap.check_text(name, "event_time", event_time, "ts")
    wrap.check_text(name, "split_column", split_column, "split_id")
    if prepare is not None:
        check.function(name, "prepare", prepare, "pass one that takes the source's DataFrame and returns yours.")


def check_options(name: str, options: PlanOptions) -> None:
    """Raise `WrapRefused` for options that no batch can have, because the planner fails later and names none."""

    def counts(value: Any) -> bool:
        return value is None or (value is not True and isinstance(value, Real) and float(value) >= 1)

    slots: object = options.slots  # callers may ignore the types
    slice_us, seconds = options.max_slice_us, options.timeout_seconds
    rate, failover = options.rate, options.failover
    for argument, given, fits, expected in (
        ("tasks", slots, isinstance(slots, Integral) and counts(slots), "a whole number, 1 or more"),
        ("max_rows_per_batch", options.max_rows, counts(options.max_rows), "1 or more"),
        ("max_bytes_per_batch", options.max_bytes, counts(options.max_bytes), "1 or more"),
        ("max_slice", f"{slice_us} us", slice_us is None or slice_us >= 1_000, "1 millisecond or more"),
        ("by_time", options.by_time, isinstance(options.by_time, bool), "True or False"),
        ("timeout", f"{seconds} s", seconds > 0, "more than 0"),
        ("rate", rate, isinstance(rate, RateLimiterStrategy | None), "a RateLimiterStrategy"),
        ("failover", failover, isinstance(failover, FailoverPolicy | None), "a FailoverPolicy"),
    ):
        if not fits:
            fact = f"{argument} is {given!r:.100}, expected {expected}"
            raise WrapRefused(name, fact, f"leave {argument} out for its default.")


def event_time_of(source: Source[Any, Any], name: str, event_time: str | None) -> str:
    """Return the column with the event time of a source's rows: the named one, else the source's own."""
    time = source.event_time if event_time is None else event_time
    if time is None:
        raise WrapRefused(
            name,
            f"{type(source).__name__} keeps no event time of its own",
            "name the column with event_time=..., and make it with prepare=... if it is inside a payload.",
        )
    return time


def read(
    spark: SparkSession,
    source: Source[Any, Any],
    given: UserRows,
    prepare: Callable[[DataFrame], DataFrame] | None,
    options: PlanOptions,
    late: LateOutput,
    address: str,
) -> tuple[DataFrame, Stream]:
    """Return the measured rows of a source, and their stream; `address` is where the service listens.

    Other arguments and errors are those of `LowWatermarkService.read`.
    """
    name, time, strategy, split_column = given.name, given.event_time, given.strategy, given.split
    assert isinstance(split_column, str), "a source of ours has one column with its splits"
    if source.externally_induced and options.rate not in (None, RateLimiterStrategy.no_op()):
        raise WrapRefused(
            name,
            f"rate is {options.rate}, but the system of {type(source).__name__} decides where a batch ends, and a "
            "batch has all rows up to there",
            "leave rate= out, or make the source without that (PravegaSource with subscriber= in place of "
            "reader_group=).",
        )
    stream_id, key = _new_id(), SplitKey((split_column,), (SPLIT_TYPE,))
    measured = prepare is None and not strategy.runs_python  # by the reader
    accumulator: Any = spark.sparkContext.accumulator({}, TrackParam())
    recorder = AccumulatorRecorder(
        time if measured else None,
        strategy.future_guard_us,
        key,
        accumulator,
        source.event_serializer,
        lateness=strategy.adaptive is not None,
    )
    peer = ServicePeer(address=address, stream_id=stream_id, stream=name)
    df = load(spark, Binding(source, name, options, split_column, peer, recorder))
    if prepare is not None:
        df = prepare(df)
        if not isinstance(df, DataFrame):
            raise WrapRefused(name, f"prepare returned {df!r:.100}, expected a DataFrame", "return what it made.")
    wrap.check_input(df, name=name, event_time=time, strategy=strategy)
    late.check(df, name, strategy)
    dropped = late.branch(df, name, time)
    SplitKey.of(name, [split_column], dict(df.dtypes))
    wrap.check_session(spark, name=name)
    measure: Measure
    if measured:
        measure = RecordedMeasure(accumulator)
    else:
        df, rows = _measured(df, stream_id, key, given, names=False)
        measure = ReaderMeasure(rows, RecordedMeasure(accumulator))
    stream = Stream(
        name=name,
        stream_id=stream_id,
        strategy=strategy,
        key=key,
        measure=measure,
        reads=True,
        claims=measured and time == source.event_time and strategy.emits,
        shows_names=strategy.runs_python or measured,
        late=late,
        dropped=dropped,
    )
    return df, stream


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def _of_rows(df: DataFrame, plan: InputPlan, given: UserRows) -> tuple[DataFrame, Stream]:
    """Return the user's own rows, measured, and their stream."""
    name, split, strategy = given.name, given.split, given.strategy
    key = SplitKey.of(name, [split] if isinstance(split, str) else split, dict(df.dtypes))
    wrap.check_session(df.sparkSession, name=name)
    kafka = set(key.columns) <= plan.kafka_columns & {"topic", "partition"} and "partition" in key.columns
    declared = {} if given.splits is None else key.declared(name, given.splits)
    names_are_known = kafka or bool(declared) or key.integral  # without a look at rows
    shows_names = strategy.runs_python or not names_are_known
    stream_id = _new_id()
    df, measure = _measured(df, stream_id, key, given, names=shows_names)
    stream = Stream(
        name=name,
        stream_id=stream_id,
        strategy=strategy,
        key=key,
        measure=measure,
        sources=plan.sources,
        kafka=kafka,
        declared=declared,
        names=dict(declared),
        withholds=plan.withholds_rows,
        keeps_rows=plan.keeps_rows,
        shows_names=shows_names,
    )
    return df, stream


def _measured(
    df: DataFrame, stream_id: str, key: SplitKey, given: UserRows, *, names: bool
) -> tuple[DataFrame, Measure]:
    """Choose the cheapest measurement: in the JVM, else in Python."""
    name, event_time, strategy = given.name, given.event_time, given.strategy
    detail = given.detail or strategy.adaptive is not None  # an adaptive strategy uses the earliest row of each batch
    # Twice the splits, because a union of sketches is trimmed to its size, and no split may be trimmed.
    sketch_lg = max(4, (2 * given.max_splits - 1).bit_length())
    if not strategy.runs_python and versions.observes_splits(df.sparkSession):
        return df, ObservedMeasure(
            metric=metric_of(stream_id),
            stream=name,
            key=key,
            event_time=event_time,
            future_guard_us=strategy.future_guard_us,
            sketch_lg=sketch_lg,
            detail=detail,
            sample_names=names,
        )
    versions.check_arrow(df, name)
    if strategy.runs_python:
        versions.check_zone(df, name)
    else:
        versions.tell_cost(df.sparkSession, name)
    accumulator: Any = df.sparkSession.sparkContext.accumulator({}, TrackParam())
    rows = BatchMap(name, key.columns, key.integral, event_time, strategy, accumulator)
    detail = detail or (strategy.runs_python and strategy.generator is not None)
    return rows.apply(df), MappedMeasure(accumulator, name, key, 1 << sketch_lg, detail)
