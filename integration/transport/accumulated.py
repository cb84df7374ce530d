"""The accumulator: carries the measurements of tasks whose rows pass through Python to the driver.

Each task adds its measurements to a Spark accumulator, keyed by query and batch; this module has both ends of that
value. Values merge by maximum, minimum and union, so a retried task changes nothing. A value that adds up over tasks
has the number of its task in the key, its cell. A task of `coalesce` measures several partitions under one number, so
each measurement of `mapped.py` says which attempt of a task made it: the second measurement of an attempt is of
another partition, and `absorb` moves its cells (`tracker`, `late`). The other values with cells come from
`recorder.py`: each task has one reader.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lowmark.sources.metric_group import added_up
from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.moment import MOST_US
from lowmark.watermark.splits.tracker import SplitTracker
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from .late import this_batch
from .measure import Measure, Measured

_CELLS = 1 << 32  # more than a stage has partitions


@dataclass(slots=True)
class BatchTrack:
    """The measurements of the tasks of one batch: what `Measured` has, by task, by split, or by split and task."""

    tracker: SplitTracker = field(default_factory=SplitTracker)
    watermarks_us: dict[SplitId, int] = field(default_factory=dict)  # the largest that a generator emitted
    names: dict[int, str] = field(default_factory=dict)
    events: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    lateness: dict[tuple[SplitId, int], dict[int, int]] = field(default_factory=dict)
    counted: dict[int, dict[str, float]] = field(default_factory=dict)
    times: dict[tuple[SplitId, int], dict[int, int]] = field(default_factory=dict)
    late: dict[tuple[SplitId, int], int] | None = None  # see `late.py`; None: not counted
    partitions: dict[int, int] = field(default_factory=dict)  # by attempt of a task; empty if cells tell them apart

    def absorb(self, other: BatchTrack) -> None:
        """Merge another track into this track, in any order. A track twice changes nothing without `partitions`."""
        before = max((self.partitions.get(attempt, 0) for attempt in other.partitions), default=0)
        self.partitions |= {attempt: before + count for attempt, count in other.partitions.items()}
        moved = before * _CELLS
        self.tracker.absorb(other.tracker, moved=moved)
        for split, watermark_us in other.watermarks_us.items():
            self.watermarks_us[split] = max(self.watermarks_us.get(split, watermark_us), watermark_us)
        self.names.update(other.names)
        self.events.update(other.events)
        self.lateness.update(other.lateness)
        self.counted.update(other.counted)
        self.times.update(other.times)
        if other.late is not None:
            others = {(split, cell + moved): rows for (split, cell), rows in other.late.items()}
            self.late = {**(self.late or {}), **others}

    def late_rows(self) -> dict[SplitId, int] | None:
        return None if self.late is None else added_up({split: rows} for (split, _), rows in self.late.items())


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


class _Dropped(TrackParam):
    """Tells Spark to drop tracks that nobody takes."""

    def addInPlace(self, value1: Tracks, value2: Tracks) -> Tracks:  # noqa: ARG002  # Spark's interface
        return {}


@dataclass(frozen=True, slots=True)
class TrackedMeasure(Measure):
    """Measures what tasks add to an accumulator."""

    tracks: Accumulator[Tracks]

    def report(
        self,
        query_id: str,
        batch_id: int,
        metrics: Mapping[str, Any],  # noqa: ARG002
        strategy: WatermarkStrategy,
    ) -> Measured | None:
        self.forget(query_id, batch_id - 1)  # older batches are not asked for any more
        track = self.tracks.value.get((query_id, batch_id))
        if track is None:
            return None
        copy = BatchTrack()  # because late tasks may still add
        copy.absorb(track)
        return self._measured(copy, strategy, batch_id)

    @abstractmethod
    def _measured(self, track: BatchTrack, strategy: WatermarkStrategy, batch_id: int) -> Measured:
        """Return the measurements of a batch with a track."""

    def forget(self, query_id: str, batch_id: int) -> None:
        tracks = self.tracks.value
        for query, batch in list(tracks):
            if query == query_id and batch <= batch_id:  # later tracks stay, because the query may be running again
                del tracks[query, batch]

    def close(self) -> None:
        self.tracks.accum_param = _Dropped()  # queries may outlive the service that takes tracks
        self.tracks.value.clear()


def future_limit_us(guard_us: int | None) -> int:
    """Return the largest event time that moves a watermark, by the clock of this task: any without a guard."""
    return MOST_US if guard_us is None else min(MOST_US, time.time_ns() // 1_000 + guard_us)


def add_to_batch(tracks: Accumulator[Tracks], track: BatchTrack) -> None:
    """Add the measurements of this task to those of its batch; no service hears of a batch query."""
    if (batch := this_batch()) is not None:
        tracks.add({batch: track})


def map_in_arrow(
    df: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], object], schema: StructType
) -> DataFrame:
    """Return `df.mapInArrow(function, schema)` without requiring pandas, which is not used here."""
    from .split_key import quoted  # here, because executors import this module, and may lack the packages of its hashes

    made = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*map(quoted, df.columns))
    return DataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)
