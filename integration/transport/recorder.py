"""Measures rows that a source of ours reads, by whole Arrow batches in one pass, and sends the result to the service.

The result arrives with the task's end, in an accumulator that the service reads. Executors import this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lowmark.sources.metric_group import added_up
from lowmark.sources.planning.slots import SlotWork
from lowmark.watermark import LowmarkError, SplitId, WatermarkStrategy
from lowmark.watermark.lateness import SliceLateness
from lowmark.watermark.splits.tracker import SplitMark
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame

from .accumulated import BatchTrack, TrackedMeasure, Tracks, add_to_batch, future_limit_us
from .late import of_this_batch
from .measure import Measure, Measured
from .split_key import SplitKey

if TYPE_CHECKING:
    from lowmark.sources import SourceEvent, SplitRows, VersionedSerializer

SPLIT_TYPE = "string"


class EventWithoutFormat(LowmarkError, RuntimeError):
    """A reader sent an event, but its source has no format for events."""

    reader: int  # its subtask
    event: str
    _fact = "reader {reader} sends its enumerator the event {event}, and its source has no format for events"
    _hint = "give the source an event_serializer."


@dataclass(frozen=True)
class AccumulatorRecorder:
    """Measures event times per split while a task reads."""

    event_time: str | None  # the column to measure; None: only what readers count and send is kept
    future_guard_us: int | None  # rows further ahead of the task's clock move no watermark; None: no guard
    key: SplitKey
    tracks: Accumulator[Tracks]
    events: VersionedSerializer[Any] | None
    lateness: bool = False  # whether to count rows by lateness and by event time

    def begin(self, task: SlotWork[Any]) -> _SlotRecording:
        return _SlotRecording(self, task)


class _SlotRecording:
    """The measurements of one slot in a batch."""

    def __init__(self, recorder: AccumulatorRecorder, task: SlotWork[Any]) -> None:
        self._recorder, self._cell = recorder, task.subtask
        self._late_us = of_this_batch()
        self._late_rows = defaultdict[tuple[SplitId, int], int](int)
        self._track = BatchTrack(late=None if self._late_us is None else self._late_rows)
        self._ids: dict[str, int] = {}
        self._counted: list[Mapping[str, float]] = []  # by each reader; its threads add to the list
        self._lateness: dict[int, SliceLateness] = {}
        self._future_limit_us = future_limit_us(recorder.future_guard_us)

    def see(self, rows: SplitRows) -> None:
        import pyarrow.compute as pc

        if self._recorder.event_time is None or len(rows.rows) == 0:
            return
        split = self._ids.get(rows.split_id)
        if split is None:
            split = self._ids[rows.split_id] = self._recorder.key.split_id((rows.split_id,))
            self._track.names[split] = rows.split_id
        micros = rows.rows.column(self._recorder.event_time).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        if self._recorder.lateness:
            self._count_lateness(split, np.asarray(micros.drop_null()))
        ends = pc.min_max(micros)
        latest_us, first_us = ends["max"].as_py(), ends["min"].as_py()
        if self._late_us is not None and first_us is not None and first_us <= self._late_us:
            late: Any = pc.less_equal(micros, pa.scalar(self._late_us, pa.int64()))
            self._late_rows[split, self._cell] += late.true_count
        tracker = self._track.tracker
        if micros.null_count == 0 and first_us >= 0 and latest_us <= self._future_limit_us:
            tracker.observe_many(split, SplitMark(latest_us, first_us, len(micros)), self._cell)
            return
        # Count each bad row by its kind: null, before 1970, or too far ahead of the clock.
        for time_us in micros.to_pylist():
            tracker.observe(split, time_us, self._cell, latest_us=self._future_limit_us)

    def _count_lateness(self, split: int, times_us: npt.NDArray[np.int64]) -> None:
        seen = self._lateness.setdefault(split, SliceLateness())
        self._track.lateness[split, self._cell], self._track.times[split, self._cell] = seen.behind, seen.times
        seen.add(times_us[(times_us >= 0) & (times_us <= self._future_limit_us)])

    def send(self, event: SourceEvent) -> None:
        serializer = self._recorder.events
        if serializer is None:
            raise EventWithoutFormat(self._cell, f"{event!r:.200}")
        sent = self._track.events.setdefault(self._cell, [])
        sent.append((self._cell, serializer.version, serializer.serialize(event)))

    def count(self, counted: Mapping[str, float]) -> None:
        self._counted.append(counted)

    def end(self) -> None:
        self._track.counted[self._cell] = added_up(self._counted)
        add_to_batch(self._recorder.tracks, self._track)


@dataclass(frozen=True, slots=True)
class RecordedMeasure(TrackedMeasure):
    """Measures a stream that a source of ours reads, if the user does not change its rows: see `Measure`."""

    def _measured(self, track: BatchTrack, strategy: WatermarkStrategy, batch_id: int) -> Measured:  # noqa: ARG002
        marks = track.tracker.marks()
        of_max = strategy.watermark_of_max
        return Measured(
            watermarks_us={split: of_max(mark.max_us) for split, mark in marks.items()} if strategy.emits else {},
            first_us={split: mark.min_us for split, mark in marks.items()},
            rows={split: mark.rows for split, mark in marks.items()},
            counts=track.tracker.counts(),
            names=track.names,
            latest_us={split: mark.max_us for split, mark in marks.items()},
            events=tuple(event for task in sorted(track.events) for event in track.events[task]),
            lateness=_by_split(track.lateness),
            counted=added_up(track.counted.values()),
            newest_us=track.tracker.newest_us(),
            future_rows={split: mark.rows for split, mark in track.tracker.future_marks().items()},
            times=_by_split(track.times),
            late_rows=track.late_rows(),
        )


@dataclass(frozen=True, slots=True)
class ReaderMeasure(Measure):
    """Adds what readers of a source of ours count and send to the measurement of rows by others: see `Measure`."""

    rows: Measure
    readers: RecordedMeasure

    def observe(self, df: DataFrame) -> DataFrame:
        return self.rows.observe(df)

    def report(
        self, query_id: str, batch_id: int, metrics: Mapping[str, Any], strategy: WatermarkStrategy
    ) -> Measured | None:
        measured, said = (each.report(query_id, batch_id, metrics, strategy) for each in (self.rows, self.readers))
        if measured is None or said is None:
            return measured
        return replace(measured, counted=said.counted, events=said.events)

    def forget(self, query_id: str, batch_id: int) -> None:
        self.rows.forget(query_id, batch_id)
        self.readers.forget(query_id, batch_id)

    def close(self) -> None:
        self.rows.close()
        self.readers.close()


def _by_split(counted: Mapping[tuple[SplitId, int], Mapping[int, int]]) -> dict[SplitId, dict[int, int]]:
    """Add up the counts of all tasks by split."""
    by_split = defaultdict[SplitId, list[Mapping[int, int]]](list)
    for (split, _), by_value in counted.items():
        by_split[split].append(by_value)
    return {split: added_up(each) for split, each in by_split.items()}
