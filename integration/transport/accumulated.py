"""The accumulator transport: watermarks that Python code makes on the executors.

A strategy with its own generator sees every row in Python, so the rows pass through `mapInArrow` once. (Without such a
generator, `mapped.py` does the same by whole batches.) Each task adds its measurements to a Spark accumulator, keyed by
query and batch; this module has both ends of that value. Values merge by maximum and union only, so a retried task
changes nothing. A task of `coalesce` measures several partitions under one number, so each measurement says which
attempt of a task made it: the second one of an attempt is of another partition, and moves to cells of its own.

A generator lives for one split in one task: it starts anew with every batch. The watermarks that it emits merge by
maximum over tasks and batches, as Flink's do over time.
"""

from __future__ import annotations

import datetime as dt
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from lowmark.integration.errors import NoEventTime
from lowmark.watermark import InvalidStrategy, SplitId, WatermarkGenerator, WatermarkStrategy
from lowmark.watermark.moment import LEAST_US, MILLISECOND_US, MOST_US, us_of
from lowmark.watermark.splits.events import BatchCounts
from lowmark.watermark.splits.tracker import SplitTracker
from pyspark.accumulators import AccumulatorParam

from .late import of_this_batch
from .measure import Measured, added_up
from .python_values import rows_of, split_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from .split_key import SplitKey

_CELLS = 1 << 32  # more than a stage has partitions


@dataclass(slots=True)
class BatchTrack:
    """The measurements of the tasks of one batch.

    Attributes:
        tracker: event times and counts per split and task.
        watermarks_us: the largest watermark that a generator emitted, by split id.
        names: id -> name of every split with rows.
        events: events from readers to their enumerator, by task: (subtask, serializer's version, event).
        lateness: rows by bucket of lateness, by split and task.
        counted: counts by readers, by task and name.
        times: rows by event time, rounded down, by split and task.
        late: rows at or below the watermark by which Spark drops rows, by split and task; None: not counted.
        partitions: how many partitions an attempt of a task has measured, by its id; empty if cells tell them apart.
    """

    tracker: SplitTracker = field(default_factory=SplitTracker)
    watermarks_us: dict[SplitId, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    events: dict[int, tuple[tuple[int, int, bytes], ...]] = field(default_factory=dict)
    lateness: dict[tuple[SplitId, int], dict[int, int]] = field(default_factory=dict)
    counted: dict[int, dict[str, float]] = field(default_factory=dict)
    times: dict[tuple[SplitId, int], dict[int, int]] = field(default_factory=dict)
    late: dict[tuple[SplitId, int], int] | None = None
    partitions: dict[int, int] = field(default_factory=dict)

    def absorb(self, other: BatchTrack) -> None:
        """Merge another track into this track, in any order. A track twice changes nothing without `partitions`."""
        before = max((self.partitions.get(attempt, 0) for attempt in other.partitions), default=0)
        self.partitions |= {attempt: before + count for attempt, count in other.partitions.items()}
        moved = before * _CELLS
        self.tracker.absorb(other.tracker, moved=moved)
        for split, watermark_us in other.watermarks_us.items():
            known_us = self.watermarks_us.get(split)
            self.watermarks_us[split] = watermark_us if known_us is None else max(known_us, watermark_us)
        self.names.update(other.names)
        self.events.update(other.events)
        self.lateness.update(other.lateness)
        self.counted.update(other.counted)
        self.times.update(other.times)
        if other.late is not None:
            others = {(split, cell + moved): rows for (split, cell), rows in other.late.items()}
            self.late = {**(self.late or {}), **others}

    def late_rows(self) -> dict[SplitId, int] | None:
        """Rows at or below the watermark by which Spark drops rows, by split; None: not counted."""
        if self.late is None:
            return None
        return added_up({split: rows} for (split, _), rows in self.late.items())

    def counts(self) -> BatchCounts:
        return self.tracker.counts()

    def measured(
        self, watermarks_us: Mapping[SplitId, int], latest_us: Mapping[SplitId, int] | None = None
    ) -> Measured:
        """Return the measurements of the batch, with the given watermarks."""
        marks = self.tracker.marks()
        return Measured(
            watermarks_us,
            {split: mark.min_us for split, mark in marks.items()},
            {split: mark.rows for split, mark in marks.items()},
            self.counts(),
            self.names,
            {} if latest_us is None else latest_us,
            tuple(event for task in sorted(self.events) for event in self.events[task]),
            lateness=_by_split(self.lateness),
            counted=added_up(self.counted.values()),
            newest_us=self.tracker.newest_us(),
            future_rows={split: mark.rows for split, mark in self.tracker.future_marks().items()},
            times=_by_split(self.times),
            late_rows=self.late_rows(),
        )


def _by_split(counted: Mapping[tuple[SplitId, int], Mapping[int, int]]) -> dict[SplitId, dict[int, int]]:
    """Add up the counts of all tasks by split."""
    by_split: dict[SplitId, dict[int, int]] = {}
    for (split, _), by_value in counted.items():
        known = by_split.setdefault(split, {})
        for value, rows in by_value.items():
            known[value] = known.get(value, 0) + rows
    return by_split


Assigner = Callable[[Any, "int | None"], object]
Tracks = dict[tuple[str, int], BatchTrack]
"""(query id, batch id) -> measurements of its tasks."""


class TrackParam(AccumulatorParam[Tracks]):
    """Tells Spark how to merge the tracks of tasks."""

    def zero(self, value: Tracks) -> Tracks:  # noqa: ARG002  # Spark's interface
        return {}

    def addInPlace(self, value1: Tracks, value2: Tracks) -> Tracks:
        for batch, track in value2.items():
            # Absorb into a new track, so that `track` stays unchanged.
            value1.setdefault(batch, BatchTrack()).absorb(track)
        return value1


class TrackShelf:
    """The measurements of a stream's tasks in its accumulator, until the service takes them."""

    def __init__(self, accumulator: Accumulator[Tracks]) -> None:
        self._accumulator = accumulator

    def take(self, query_id: str, batch_id: int) -> BatchTrack | None:
        """Return the track of a batch, None without one, and drop the tracks of older batches, which are not needed."""
        self.forget(query_id, batch_id - 1)
        track = self._accumulator.value.get((query_id, batch_id))
        if track is None:
            return None
        copy = BatchTrack()  # because late tasks may still add
        copy.absorb(track)
        return copy

    def forget(self, query_id: str, batch_id: int) -> None:
        """Drop the tracks of a query up to a batch. Later tracks stay, because the query may be running again."""
        tracks = self._accumulator.value
        for query, batch in list(tracks):
            if query == query_id and batch <= batch_id:
                del tracks[query, batch]

    def close(self) -> None:
        """Drop all tracks, now and in the future, because queries may outlive the service that takes tracks."""
        self._accumulator.accum_param = _Dropped()
        self._accumulator.value.clear()


@dataclass(frozen=True, slots=True)
class TrackedMeasure:
    """The part of a `Measure` that is the same for all whose tasks measure in Python."""

    tracks: TrackShelf

    def observe(self, df: DataFrame) -> DataFrame:
        return df

    def forget(self, query_id: str, batch_id: int) -> None:
        self.tracks.forget(query_id, batch_id)

    def close(self) -> None:
        self.tracks.close()


@dataclass(frozen=True, slots=True)
class AccumulatedMeasure(TrackedMeasure):
    """Measures a stream whose strategy is written in Python: see `Measure`."""

    def report(
        self,
        query_id: str,
        batch_id: int,
        metrics: Mapping[str, Any],  # noqa: ARG002
        strategy: WatermarkStrategy,  # noqa: ARG002
    ) -> Measured | None:
        track = self.tracks.take(query_id, batch_id)
        if track is None:
            return None
        watermarks_us = {s: us // MILLISECOND_US * MILLISECOND_US for s, us in track.watermarks_us.items()}
        return track.measured(watermarks_us)


class _Dropped(TrackParam):
    """Tells Spark to drop tracks that nobody takes."""

    def addInPlace(self, value1: Tracks, value2: Tracks) -> Tracks:  # noqa: ARG002  # Spark's interface
        return {}


class _LatestWatermark:
    """Receives a generator's watermarks, and keeps the largest."""

    def __init__(self) -> None:
        self.watermark_us: int | None = None

    def emit_watermark(self, watermark_us: int) -> None:
        try:
            us = operator.index(watermark_us)  # of an integer of numpy, too
            if not LEAST_US <= us <= MOST_US:
                raise OverflowError
        except (TypeError, OverflowError):
            raise InvalidStrategy(
                "for_generator", f"emit_watermark({watermark_us!r:.100})",
                "microseconds since the epoch as an int, in 64 bits", "round a float: emit_watermark(int(...)).",
            ) from None  # fmt: skip
        if self.watermark_us is None or us > self.watermark_us:
            self.watermark_us = us

    def mark_idle(self) -> NoReturn:
        """Refuse Flink's call: a generator sees neither the other splits nor the rows that wait.

        Raises:
            InvalidStrategy: always; it says what to use instead.
        """
        raise InvalidStrategy(
            "for_generator", "mark_idle() or mark_active()", "a generator that only emits watermarks",
            "leave the call out: with_idleness() of the strategy says when a silent split is not waited for.",
        )  # fmt: skip

    mark_active = mark_idle


def map_in_arrow(
    df: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], object], schema: StructType
) -> DataFrame:
    """Return `df.mapInArrow(function, schema)` without requiring pandas, which is not used here."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    from .split_key import quoted

    made = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*map(quoted, df.columns))
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)


def add_to_batch(tracks: Accumulator[Tracks], track: BatchTrack) -> None:
    """Add the measurements of this task to those of its batch; no service hears of a batch query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "rows are measured in tasks"
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if batch_id is not None and query_id is not None:
        tracks.add({(query_id, int(batch_id)): track})


def with_time_field(fields: Sequence[StructField], event_time: str) -> StructType:
    """Return a schema in which the column of this name is a timestamp; the column comes last if it is new."""
    from pyspark.sql.types import StructField, StructType, TimestampType

    names = [field.name for field in fields]
    at = names.index(event_time) if event_time in names else len(names)
    return StructType([*fields[:at], StructField(event_time, TimestampType()), *fields[at + 1 :]])


def with_times(batch: pa.RecordBatch, event_time: str, times: pa.Array[Any]) -> pa.RecordBatch:
    """Return a batch with these times in the column of this name; the column comes last if it is new."""
    at = batch.schema.get_field_index(event_time)
    return batch.append_column(event_time, times) if at < 0 else batch.set_column(at, event_time, times)


def assigned_us(stream: str, assigner: Assigner, row: Mapping[str, Any], row_us: int | None) -> int | None:
    """Return the time that a timestamp assigner gives a row, in microseconds; None: no time that Spark can hold.

    Raises:
        NoEventTime: the assigner returned neither a time nor None.
    """
    assigned = assigner(row, row_us)
    if assigned is None:
        return None
    if isinstance(assigned, int) and not isinstance(assigned, bool):
        return assigned if LEAST_US <= assigned <= MOST_US else None
    if isinstance(assigned, dt.datetime) and assigned.tzinfo is not None:
        return us_of(assigned)
    raise NoEventTime(stream, f"{assigned!r:.200}", f"{row!r:.200}")


@dataclass(frozen=True)
class EventTimeMap:
    """The function that `mapInArrow` runs: finds event times, feeds generators, reports to the accumulator.

    Attributes:
        event_time: the column for the assigned time, added if it does not exist.
        strategy: a strategy with a generator, and possibly a timestamp assigner.
    """

    stream: str
    key: SplitKey
    event_time: str
    strategy: WatermarkStrategy
    tracks: Accumulator[Tracks]

    def apply(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame with its event time assigned."""
        return map_in_arrow(df, self, self.schema(df))

    def schema(self, df: DataFrame) -> StructType:
        return with_time_field(df.schema.fields, self.event_time)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "mapInArrow runs in a task"
        task = _Measuring(self, cell=context.partitionId())
        for batch in batches:
            yield task.measure(batch)
        add_to_batch(self.tracks, task.track(attempt=context.taskAttemptId()))


class _Measuring:
    """The generators and measurements of one task of Spark."""

    def __init__(self, job: EventTimeMap, *, cell: int) -> None:
        self._job, self._cell = job, cell
        self._tracker = SplitTracker()
        self._ids: dict[tuple[Any, ...], int] = {}
        self._generators: dict[int, tuple[WatermarkGenerator, _LatestWatermark]] = {}
        guard_us = job.strategy.future_guard_us
        self._future_limit_us = None if guard_us is None else time.time_ns() // 1_000 + guard_us
        self._late_us = of_this_batch()
        self._late: dict[tuple[SplitId, int], int] = {}

    def measure(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        at = batch.schema.get_field_index(self._job.event_time)
        own_us = [None] * batch.num_rows if at < 0 else batch.column(at).cast(pa.int64()).to_pylist()
        columns = [batch.column(batch.schema.get_field_index(column)) for column in self._job.key.columns]
        splits = map(self._split_id, zip(*map(split_values, columns), strict=True))
        times = [self._see(*each) for each in zip(rows_of(batch), own_us, splits, strict=True)]
        column = pa.array(times, type=pa.timestamp("us", tz="UTC"))
        return with_times(batch, self._job.event_time, column)

    def track(self, *, attempt: int) -> BatchTrack:
        watermarks_us: dict[SplitId, int] = {}
        for split, (generator, output) in self._generators.items():
            generator.on_periodic_emit(output)
            if output.watermark_us is not None:
                watermarks_us[split] = output.watermark_us
        names = {split: self._job.key.name(values) for values, split in self._ids.items()}
        late = None if self._late_us is None else self._late
        return BatchTrack(self._tracker, watermarks_us, names, late=late, partitions={attempt: 1})

    def _see(self, row: dict[str, Any], row_us: int | None, split: int | None) -> int | None:
        assigner: Assigner | None = self._job.strategy.timestamp_assigner
        time_us = row_us if assigner is None else assigned_us(self._job.stream, assigner, row, row_us)
        self._tracker.observe(split, time_us, self._cell, latest_us=self._future_limit_us)
        if split is not None and time_us is not None and self._late_us is not None and time_us <= self._late_us:
            self._late[split, self._cell] = self._late.get((split, self._cell), 0) + 1
        guarded = time_us is not None and self._future_limit_us is not None and time_us > self._future_limit_us
        if split is not None and time_us is not None and not guarded:
            if split not in self._generators:
                self._generators[split] = (self._job.strategy.create_generator(), _LatestWatermark())
            generator, output = self._generators[split]
            generator.on_event(row, time_us, output)
        return time_us

    def _split_id(self, values: tuple[Any, ...]) -> int | None:
        if self._job.key.integral and values[0] is None:
            return None
        split = self._ids.get(values)
        if split is None:
            split = self._ids[values] = self._job.key.split_id(values)
        return split
