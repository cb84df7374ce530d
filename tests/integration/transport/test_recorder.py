"""The measurements of a task that reads a source of ours, and the tracks that the driver gets of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lowmark.integration.transport.accumulated import BatchTrack, Tracks
from lowmark.integration.transport.measure import Measured
from lowmark.integration.transport.recorder import (
    SPLIT_TYPE,
    AccumulatorRecorder,
    EventWithoutFormat,
    ReaderMeasure,
    RecordedMeasure,
)
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import SourceEvent
from lowmark.sources.planning.slots import SlotWork
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.lateness import buckets_of

SECOND_US = 1_000_000
STRATEGY = WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.9, at_least="1 second", at_most="1 minute")
KEY = SplitKey(("split_id",), (SPLIT_TYPE,))


@pytest.fixture(autouse=True)
def _in_task_of_batch_0(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"streaming.sql.batchId": "0", "sql.streaming.queryId": "q"}
    context = SimpleNamespace(getLocalProperty=known.get)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)


def recording(times_s: list[list[float | None]]) -> BatchTrack:
    """Return the track of a task that reads these portions of a split."""
    left: list[dict[Any, BatchTrack]] = []
    recorder = AccumulatorRecorder("ts", None, KEY, SimpleNamespace(add=left.append), None, lateness=True)  # type: ignore[arg-type]
    task = recorder.begin(SlotWork(3, 17, ()))
    for portion in times_s:
        micros = [None if at is None else round(at * SECOND_US) for at in portion]
        batch = pa.record_batch({"ts": pa.array(micros, pa.timestamp("us", "UTC"))})
        task.see(SimpleNamespace(split_id="a", rows=batch))  # type: ignore[arg-type]
    task.end()
    return left[0]["q", 0]


def accumulated(tracks: Tracks) -> Any:
    return SimpleNamespace(value=tracks)


def measured(track: BatchTrack) -> Measured:
    found = RecordedMeasure(accumulated({("q", 0): track})).report("q", 0, {}, STRATEGY)
    assert found is not None
    return found


def test_rows_are_counted_by_how_late_they_are_across_portions() -> None:
    track = recording([[10, 30, 20, None], [40, 25, 40]])
    again = recording([[10, 30, 20, None], [40, 25, 40]])
    track.absorb(again)
    [counted] = measured(track).lateness.values()  # a retried task counts once
    late = buckets_of(np.array([0, 10 * SECOND_US, 15 * SECOND_US])).tolist()
    assert counted == {late[0]: 4, late[1]: 1, late[2]: 1}


def test_rows_are_counted_by_their_times_across_portions_and_tasks() -> None:
    track = recording([[10, 30, 20, None], [40, 10]])
    track.times["other", 4] = {7: 1}
    [(split, counted), (_, other)] = measured(track).times.items()
    assert counted[10 * SECOND_US] == 2  # the time of the first row is exact
    assert sum(counted.values()) == 5
    assert split != "other"
    assert other == {7: 1}


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 1_000), ("ns", 1_000_000_000)])
def test_times_of_a_source_in_another_unit_are_measured_as_spark_gets_them(unit: Any, second: int) -> None:
    left: list[dict[Any, BatchTrack]] = []
    task = AccumulatorRecorder("ts", None, KEY, SimpleNamespace(add=left.append), None).begin(SlotWork(0, 1, ()))  # type: ignore[arg-type]
    rows = pa.record_batch({"ts": pa.array([30 * second, 50 * second], pa.timestamp(unit, "Europe/Berlin"))})
    task.see(SimpleNamespace(split_id="a", rows=rows))  # type: ignore[arg-type]
    task.end()

    found = measured(left[0]["q", 0])
    assert (*found.first_us.values(), *found.latest_us.values()) == (30 * SECOND_US, 50 * SECOND_US)


class PlainEvents:
    """The format of events that are bytes."""

    version = 1

    def serialize(self, event: bytes) -> bytes:
        return event


def test_what_readers_count_and_send_is_added_where_others_measure_the_rows() -> None:
    tracks: Tracks = {}
    recorder: Any = AccumulatorRecorder(None, None, KEY, SimpleNamespace(add=tracks.update), PlainEvents())  # type: ignore[arg-type]
    task = recorder.begin(SlotWork(3, 17, ()))
    task.see(SimpleNamespace(split_id="a", rows="of any columns"))
    task.count({"data_losses": 1, "lost_offsets": 5})
    task.send(b"gap")
    task.end()
    rows: Any = SimpleNamespace(report=lambda *asked: Measured(rows={7: 2}), forget=lambda *asked: None)
    measure = ReaderMeasure(rows, RecordedMeasure(accumulated(tracks)))
    found = measure.report("q", 0, {}, STRATEGY)
    assert found == Measured(rows={7: 2}, counted={"data_losses": 1, "lost_offsets": 5}, events=((3, 1, b"gap"),))
    measure.forget("q", 0)
    assert tracks == {}
    assert measure.report("q", 1, {}, STRATEGY) == Measured(rows={7: 2}), "of a batch without a reader's word"


@dataclass(frozen=True)
class Told(SourceEvent):
    """The message of a reader to its enumerator."""

    rows: int


def test_an_event_of_a_source_without_a_format_for_events_is_refused_and_says_what_is_missing() -> None:
    nowhere: Any = None  # no report leaves the task
    recorder = AccumulatorRecorder("at", None, KEY, nowhere, events=None)
    with pytest.raises(EventWithoutFormat, match=r"reader 3 .* Told\(rows=7\).* Hint: give .* an event_serializer"):
        recorder.begin(SlotWork(3, 17, ())).send(Told(7))
