"""The mapped transport: Python reduces whole Arrow batches, if the JVM cannot, or if Python finds the event times.

Spark before 4.2 has no aggregate that keeps the exact maximum of each key cheaply (`tuple_sketch_agg_double`, see
`observed.py`). There all rows pass through `mapInArrow` once, unchanged, and each Arrow batch is grouped by the split's
columns. When a task ends, its result goes into the stream's accumulator (`accumulated.py`). The result is as exact, and
costs the way from the JVM to Python and back: about a microsecond of a core's time per row, more for wide rows.

A timestamp assigner has to see every row; its times are measured in the same way, by whole batches.

Executors import this module, and for it need pyarrow and numpy but no other compiled package: the module names a split
by the values of its columns, as JSON, and the driver makes ids from the names.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from lowmark.integration.errors import TooManySplits
from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.splits.events import BatchCounts, SplitColumn
from lowmark.watermark.splits.tracker import SplitMark

from .accumulated import (
    Assigner,
    BatchTrack,
    TrackedMeasure,
    Tracks,
    add_to_batch,
    assigned_us,
    map_in_arrow,
    with_time_field,
    with_times,
)
from .late import of_this_batch
from .measure import Measured
from .python_values import rows_of, split_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from .split_key import SplitKey

_TIME = "time"
_EPOCH = dt.date(1970, 1, 1)
# Above so many groups, groups are merged again, which keeps a task of thousands of splits and batches small.
_MOST_GROUPS = 65_536


@dataclass(frozen=True)
class BatchMap:
    """The function that `mapInArrow` runs: reduces batches, and reports to the accumulator.

    Attributes:
        event_time: the TIMESTAMP column; added for an assigner if it does not exist.
        future_guard_us: rows further ahead of the task's clock move no watermark; None: no guard.
        assigner: finds the event time of a row; None: the column has it.
    """

    stream: str
    columns: tuple[str, ...]
    event_time: str
    future_guard_us: int | None
    tracks: Accumulator[Tracks]
    assigner: Assigner | None = None

    def apply(self, df: DataFrame) -> DataFrame:
        """Return the same rows, with event times assigned if there is an assigner."""
        return map_in_arrow(df, self, self.schema(df))

    def schema(self, df: DataFrame) -> StructType:
        from pyspark.sql.types import StructField, StructType

        fields = [StructField(f.name, f.dataType, nullable=True, metadata=f.metadata) for f in df.schema.fields]
        return StructType(fields) if self.assigner is None else with_time_field(fields, self.event_time)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a task"
        reduction = _Reduction(self, cell=context.partitionId())
        for batch in batches:
            yield reduction.see(batch)
        add_to_batch(self.tracks, reduction.track(attempt=context.taskAttemptId()))


class _Reduction:
    """The measurements of one task."""

    def __init__(self, job: BatchMap, *, cell: int) -> None:
        self._job, self._cell = job, cell
        guard_us = job.future_guard_us
        self._future_limit_us = None if guard_us is None else time.time_ns() // 1_000 + guard_us
        self._counts = BatchCounts()
        self._groups: list[pa.Table] = []
        self._future: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self._late_us = of_this_batch()
        self._group_count = 0

    def see(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Measure a batch, and return it with its event times assigned."""
        import pyarrow as pa

        at = batch.schema.get_field_index(self._job.event_time)
        if self._job.assigner is None:
            self._measure(batch, batch.column(at).cast(pa.int64()))
            return batch
        micros = pa.array(self._assigned(batch, at, self._job.assigner), type=pa.int64())
        self._measure(batch, micros)
        return with_times(batch, self._job.event_time, micros.cast(pa.timestamp("us", tz="UTC")))

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
        if self._late_us is not None:
            track.late = {(_text(values), self._cell): mark.rows for values, mark in _marks(_regrouped(self._late))}
        rest = self._counts.rows - marked
        counts = BatchCounts(
            rows=rest,
            future_rows=self._counts.future_rows,
            null_time_rows=self._counts.null_time_rows,
            null_split_rows=self._counts.null_split_rows,
            before_epoch_rows=self._counts.before_epoch_rows,
        )
        track.tracker.count(counts, self._cell)
        return track

    def _measure(self, batch: pa.RecordBatch, micros: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        keys = [batch.column(batch.schema.get_field_index(column)) for column in self._job.columns]
        future = before = null_split = null_time = 0
        no_split: Any = None
        if any(key.null_count for key in keys):
            for key in keys:
                is_null = pc.is_null(key)
                no_split = is_null if no_split is None else pc.or_(no_split, is_null)
            null_split = _count(no_split)
        if micros.null_count:
            no_time: Any = pc.is_null(micros)
            null_time = _count(no_time if no_split is None else pc.and_(no_time, pc.invert(no_split)))
        ends = pc.min_max(micros)
        first_us, latest_us = ends["min"].as_py(), ends["max"].as_py()
        if first_us is not None and first_us < 0:
            before = _count(pc.less(micros, pa.scalar(0, pa.int64())))
        if self._late_us is not None and first_us is not None and first_us <= self._late_us:
            late = pc.less_equal(micros, pa.scalar(self._late_us, pa.int64()))
            self._late.append(_grouped(keys, pc.if_else(late, micros, pa.scalar(None, pa.int64()))))
        limit_us = self._future_limit_us
        if limit_us is not None and latest_us is not None and latest_us > limit_us:
            beyond: Any = pc.greater(micros, pa.scalar(limit_us, pa.int64()))
            future, no_time_us = _count(beyond), pa.scalar(None, pa.int64())
            self._future.append(_grouped(keys, pc.if_else(beyond, micros, no_time_us)))
            micros = pc.if_else(beyond, no_time_us, micros)
        self._counts += BatchCounts(batch.num_rows, future, null_time, null_split, before)
        self._groups.append(_grouped(keys, micros))
        self._group_count += self._groups[-1].num_rows
        if self._group_count > _MOST_GROUPS:
            self._group_again()

    def _group_again(self) -> None:
        self._groups, self._future = _regrouped(self._groups), _regrouped(self._future)
        self._late = _regrouped(self._late)
        self._group_count = sum(table.num_rows for table in self._groups)

    def _assigned(self, batch: pa.RecordBatch, at: int, assigner: Assigner) -> list[int | None]:
        import pyarrow as pa

        own_us: Sequence[int | None]
        own_us = [None] * batch.num_rows if at < 0 else batch.column(at).cast(pa.int64()).to_pylist()
        return [
            assigned_us(self._job.stream, assigner, row, row_us)
            for row, row_us in zip(rows_of(batch), own_us, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class MappedMeasure(TrackedMeasure):
    """Measures a stream whose rows are reduced in Python: see `Measure`.

    Attributes:
        detail: also report rows and earliest event time of each split.
    """

    stream: str
    key: SplitKey
    max_splits: int
    detail: bool
    _known: dict[str, tuple[int | None, str]] = field(default_factory=dict)

    def report(
        self,
        query_id: str,
        batch_id: int,
        metrics: Mapping[str, Any],  # noqa: ARG002
        strategy: WatermarkStrategy,
    ) -> Measured | None:
        track = self.tracks.take(query_id, batch_id)
        if track is None:
            return None
        marks: dict[int, SplitMark] = {}
        names: dict[int, str] = {}
        future_rows: dict[SplitId, int] = {}
        for text, mark in track.tracker.marks().items():
            assert isinstance(text, str), "tasks name splits by their values"
            split, name = self._split(text)
            if split is not None:
                marks[split], names[split] = mark, name
        for text, mark in track.tracker.future_marks().items():
            assert isinstance(text, str), "tasks name splits by their values"
            split, name = self._split(text)
            if split is not None:
                future_rows[split], names[split] = mark.rows, name
        late_rows: dict[SplitId, int] | None = None
        if (counted := track.late_rows()) is not None:
            ids_of = ((self._split(str(text))[0], rows) for text, rows in counted.items())
            late_rows = {split: rows for split, rows in ids_of if split is not None}
        if len(marks) > self.max_splits:
            raise TooManySplits(self.stream, batch_id, len(marks), self.max_splits)
        ids = np.fromiter(marks.keys(), np.uint64, len(marks))
        latest_us = np.fromiter((mark.max_us for mark in marks.values()), np.int64, len(marks))
        return Measured(
            SplitColumn(ids, strategy.watermarks_of_max(latest_us)) if strategy.emits else {},
            {split: mark.min_us for split, mark in marks.items()} if self.detail else {},
            {split: mark.rows for split, mark in marks.items()} if self.detail else None,
            track.counts(),
            names,
            newest_us=track.tracker.newest_us(),
            future_rows=future_rows,
            late_rows=late_rows,
        )

    def _split(self, text: str) -> tuple[int | None, str]:
        """Id and name of a split; the id is None if no row can have these values."""
        known = self._known.get(text)
        if known is None:
            values = [_value(plain, kind) for plain, kind in zip(json.loads(text), self.key.types, strict=True)]
            split = None if self.key.integral and values[0] is None else self.key.split_id(values)
            known = self._known[text] = split, self.key.name(values)
        return known


def _grouped(keys: Sequence[Any], micros: Any) -> pa.Table:
    """One row per split: its values, the largest and the smallest time, the number of times."""
    import pyarrow as pa

    names = [str(at) for at in range(len(keys))]
    table = pa.Table.from_arrays([*keys, micros], names=[*names, _TIME])
    found: Any = table.group_by(names, use_threads=False)
    grouped: pa.Table = found.aggregate([(_TIME, "max"), (_TIME, "min"), (_TIME, "count")])
    return grouped.select([*names, f"{_TIME}_max", f"{_TIME}_min", f"{_TIME}_count"])


def _regrouped(tables: list[pa.Table]) -> list[pa.Table]:
    """Merge tables of groups into at most one table."""
    import pyarrow as pa

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
        columns = [split_values(column) for column in table.columns]
        *keys, latest, first, rows = columns
        for values, latest_us, first_us, count in zip(zip(*keys, strict=True), latest, first, rows, strict=True):
            if count:
                yield values, SplitMark(latest_us, first_us, count)


def _count(mask: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(mask).as_py() or 0)


def _text(values: Iterable[Any]) -> str:
    """The values of a split's columns as JSON, which has no dates and no binaries."""
    return json.dumps([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dt.date():
            return (value - _EPOCH).days
        case _:
            return value


def _value(plain: Any, kind: str) -> Any:
    if plain is None:
        return None
    match kind:
        case "date":
            return np.datetime64(plain, "D").item()  # days since 1970, where Python has no such date
        case "binary":
            return base64.b64decode(plain)
        case _:
            return plain
