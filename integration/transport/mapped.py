"""The mapped transport: Python reduces whole Arrow batches, if the JVM cannot, or if the strategy has code in Python.

Spark before 4.2 has no aggregate that keeps the exact maximum of each key cheaply (`tuple_sketch_agg_double`, see
`observed.py`). There all rows pass through `mapInArrow` once, unchanged, and each Arrow batch is grouped by the split's
columns. When a task ends, its result goes into the stream's accumulator (`accumulated.py`). The result is as exact, and
costs the way from the JVM to Python and back: about a microsecond of a core's time per row, more for wide rows.

A timestamp assigner and a generator have to see every row (`user_functions.py`); the rows are measured in the same way,
by whole batches.

Executors import this module, and for it need pyarrow and numpy but no other compiled package: the module names a split
by the values of its columns, as JSON, and the driver makes ids from the names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from lowmark.integration.errors import TooManySplits
from lowmark.sources.worker_costs import spare_next_task
from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.moment import MILLISECOND_US, MOST_US
from lowmark.watermark.splits.events import BatchCounts, SplitColumn
from lowmark.watermark.splits.tracker import SplitMark
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from .accumulated import BatchTrack, TrackedMeasure, Tracks, add_to_batch, future_limit_us, map_in_arrow
from .late import of_this_batch
from .measure import Measured
from .python_values import from_json, rows_of, split_values, to_json
from .user_functions import Generators, assigned_us

if TYPE_CHECKING:
    from .split_key import SplitKey

Value = TypeVar("Value")

DELAY_KEY = "spark.watermarkDelayMs"
"""Key in the metadata of a column, by which Spark knows an event time."""
_TIME = "time"
_MOST_KNOWN = 100_000  # splits whose ids a driver keeps; a source of files has ever new splits
# Above so many groups, groups are merged again, which keeps a task of thousands of splits and batches small.
_MOST_GROUPS = 65_536


@dataclass(frozen=True)
class BatchMap:
    """The function that `mapInArrow` runs: reduces batches, and reports to the accumulator."""

    stream: str
    columns: tuple[str, ...]  # of the split
    integral: bool  # the split is one integer column, so a row without a number has no split
    event_time: str  # the TIMESTAMP column; added for an assigner if it does not exist
    strategy: WatermarkStrategy
    tracks: Accumulator[Tracks]

    def apply(self, df: DataFrame) -> DataFrame:
        """Return the same rows, with event times assigned if there is an assigner."""
        fields = [
            StructField(f.name, f.dataType, nullable=True, metadata=without_delay(f.metadata)) for f in df.schema.fields
        ]
        if self.strategy.timestamp_assigner is not None:
            names = df.columns
            at = names.index(self.event_time) if self.event_time in names else len(names)
            fields[at : at + 1] = [StructField(self.event_time, TimestampType())]
        return map_in_arrow(df, self, StructType(fields))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a task"
        reduction = _Reduction(self, cell=context.partitionId())
        for batch in batches:
            yield reduction.see(batch)
        add_to_batch(self.tracks, reduction.track(attempt=context.taskAttemptId()))
        spare_next_task()


class _Reduction:
    """The measurements of one task."""

    def __init__(self, job: BatchMap, *, cell: int) -> None:
        self._job, self._cell = job, cell
        self._future_limit_us = future_limit_us(job.strategy.future_guard_us)
        self._generators = Generators(job.strategy)
        self._counts = BatchCounts()
        self._groups: list[pa.Table] = []
        self._future: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self._late_us = of_this_batch()
        self._group_count = 0

    def see(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Measure a batch, and return it with its event times assigned."""
        job, strategy = self._job, self._job.strategy
        at = batch.schema.get_field_index(job.event_time)
        micros: Any = None if at < 0 else batch.column(at).cast(pa.int64())
        if not strategy.runs_python:
            self._measure(batch, micros)
            return batch
        rows, made = rows_of(batch), batch
        times_us: list[int | None] = [None] * len(rows) if at < 0 else micros.to_pylist()
        if (assigner := strategy.timestamp_assigner) is not None:
            times_us = [assigned_us(job.stream, assigner, *each) for each in zip(rows, times_us, strict=True)]
            micros = pa.array(times_us, type=pa.int64())
            times = micros.cast(pa.timestamp("us", tz="UTC"))
            made = batch.append_column(job.event_time, times) if at < 0 else batch.set_column(at, job.event_time, times)
        self._measure(batch, micros)
        if strategy.generator is not None and strategy.emits:
            self._generate(batch, rows, times_us)
        return made

    def track(self, *, attempt: int) -> BatchTrack:
        """Return the measurements, with splits named by their values."""
        track = BatchTrack(partitions={attempt: 1})
        self._group_again()
        marked = 0
        for values, mark in _marks(self._groups):
            track.tracker.observe_many(_text(values), mark, self._cell)
            marked += mark.rows
        for values, mark in _marks(self._future):
            track.tracker.mark_future(_text(values), mark, self._cell)
        track.tracker.count(replace(self._counts, rows=self._counts.rows - marked), self._cell)
        if self._late_us is not None:
            track.late = {(_text(values), self._cell): mark.rows for values, mark in _marks(self._late)}
        track.watermarks_us = {_text(values): us for values, us in self._generators.watermarks_us()}
        return track

    def _measure(self, batch: pa.RecordBatch, micros: Any) -> None:
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        keys = self._keys(batch)
        no_split = reduce(pc.or_, map(pc.is_null, keys))
        no_time = pc.and_not(pc.is_null(micros), no_split)
        before_epoch = pc.less(micros, _int64(0))
        future_rows = 0
        if self._late_us is not None:
            late = pc.less_equal(micros, _int64(self._late_us))
            if late.true_count:
                self._late.append(_grouped(keys, _only(late, micros)))
        if self._future_limit_us < MOST_US:
            future = pc.greater(micros, _int64(self._future_limit_us))
            future_rows = future.true_count
            if future_rows:
                self._future.append(_grouped(keys, _only(future, micros)))
                micros = _only(pc.invert(future), micros)
        self._counts += BatchCounts(
            rows=batch.num_rows,
            future_rows=future_rows,
            null_time_rows=no_time.true_count,
            null_split_rows=no_split.true_count,
            before_epoch_rows=before_epoch.true_count,
        )
        self._groups.append(_grouped(keys, micros))
        self._group_count += self._groups[-1].num_rows
        if self._group_count > _MOST_GROUPS:
            self._group_again()

    def _group_again(self) -> None:
        self._groups, self._future = _regrouped(self._groups), _regrouped(self._future)
        self._late = _regrouped(self._late)
        self._group_count = sum(table.num_rows for table in self._groups)

    def _generate(self, batch: pa.RecordBatch, rows: list[dict[str, Any]], times_us: list[int | None]) -> None:
        splits = zip(*map(split_values, self._keys(batch)), strict=True)
        for values, row, time_us in zip(splits, rows, times_us, strict=True):
            has_split = values != (None,) or not self._job.integral
            if has_split and time_us is not None and time_us <= self._future_limit_us:
                self._generators.see(values, row, time_us)

    def _keys(self, batch: pa.RecordBatch) -> list[pa.Array[Any]]:
        return [batch.column(batch.schema.get_field_index(column)) for column in self._job.columns]


@dataclass(frozen=True, slots=True)
class MappedMeasure(TrackedMeasure):
    """Measures a stream whose rows are reduced in Python: see `Measure`."""

    stream: str
    key: SplitKey
    max_splits: int
    detail: bool  # also report rows and earliest event time of each split
    _known: dict[str, tuple[int | None, str]] = field(default_factory=dict)

    def _measured(self, track: BatchTrack, strategy: WatermarkStrategy, batch_id: int) -> Measured:
        names: dict[int, str] = {}
        marks = self._by_id(track.tracker.marks(), names, SplitMark.added)
        future = self._by_id(track.tracker.future_marks(), names, SplitMark.added)
        late_rows = track.late_rows()
        if len(marks) > self.max_splits:
            raise TooManySplits(self.stream, batch_id, len(marks), self.max_splits)
        watermarks_us: Mapping[SplitId, int]
        if strategy.generator is not None:
            emitted = self._by_id(track.watermarks_us, names, max)
            watermarks_us = {split: us // MILLISECOND_US * MILLISECOND_US for split, us in emitted.items()}
        else:
            ids = np.fromiter(marks.keys(), np.uint64, len(marks))
            latest_us = np.fromiter((mark.max_us for mark in marks.values()), np.int64, len(marks))
            watermarks_us = SplitColumn(ids, strategy.watermarks_of_max(latest_us))
        return Measured(
            watermarks_us=watermarks_us,
            first_us={split: mark.min_us for split, mark in marks.items()} if self.detail else {},
            rows={split: mark.rows for split, mark in marks.items()} if self.detail else None,
            counts=track.tracker.counts(),
            names=names,
            newest_us=track.tracker.newest_us(),
            future_rows={split: mark.rows for split, mark in future.items()},
            late_rows=None if late_rows is None else self._by_id(late_rows, names, add),
        )

    def _by_id(
        self, by_text: Mapping[SplitId, Value], names: dict[int, str], merged: Callable[[Value, Value], Value]
    ) -> dict[SplitId, Value]:
        """Give the splits their ids, and add their names; values that no row can have are no split.

        Spark's hash passes over nulls, so ("x", null) and (null, "x") are one split, whose values are merged.
        """
        by_id: dict[SplitId, Value] = {}
        for text, value in by_text.items():
            assert isinstance(text, str), "tasks name splits by their values"
            split, name = self._split(text)
            if split is not None:
                by_id[split] = merged(by_id[split], value) if split in by_id else value
                names[split] = name
        return by_id

    def _split(self, text: str) -> tuple[int | None, str]:
        """Id and name of a split; the id is None if no row can have these values."""
        known = self._known.get(text)
        if known is None:
            values = [from_json(plain, kind) for plain, kind in zip(json.loads(text), self.key.types, strict=True)]
            split = None if self.key.integral and values[0] is None else self.key.split_id(values)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[text] = split, self.key.name(values)
        return known


def without_delay(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a column that is no event time; Parquet files keep the mark of an earlier query's."""
    return {key: value for key, value in metadata.items() if key != DELAY_KEY}


def _grouped(keys: Sequence[Any], micros: Any) -> pa.Table:
    """One row per split: its values, the largest and the smallest time, the number of times."""
    names = [str(at) for at in range(len(keys))]
    table = pa.Table.from_arrays([*keys, micros], names=[*names, _TIME])
    found: Any = table.group_by(names, use_threads=False)
    grouped: pa.Table = found.aggregate([(_TIME, "max"), (_TIME, "min"), (_TIME, "count")])
    return grouped.select([*names, f"{_TIME}_max", f"{_TIME}_min", f"{_TIME}_count"])


def _regrouped(tables: list[pa.Table]) -> list[pa.Table]:
    """Merge tables of groups into at most one table."""
    if len(tables) < 2:
        return tables
    *names, latest, first, rows = tables[0].column_names
    found: Any = pa.concat_tables(tables).group_by(names, use_threads=False)
    grouped = found.aggregate([(latest, "max"), (first, "min"), (rows, "sum")])
    grouped = grouped.select([*names, f"{latest}_max", f"{first}_min", f"{rows}_sum"])
    return [grouped.rename_columns([*names, latest, first, rows])]


def _marks(tables: Iterable[pa.Table]) -> Iterator[tuple[tuple[Any, ...], SplitMark]]:
    """The values and the mark of each split with a time."""
    for table in tables:
        *keys, latest, first, rows = map(split_values, table.columns)
        for values, latest_us, first_us, count in zip(zip(*keys, strict=True), latest, first, rows, strict=True):
            if count:
                yield values, SplitMark(latest_us, first_us, count)


def _only(mask: Any, micros: Any) -> Any:
    """The times for which a mask is true, null in place of the others."""
    import pyarrow.compute as pc

    return pc.if_else(mask, micros, _int64(None))


def _int64(value: int | None) -> Any:
    return pa.scalar(value, pa.int64())


_text = json.JSONEncoder(default=to_json).encode  # the values of a split's columns
