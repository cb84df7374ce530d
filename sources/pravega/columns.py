"""The columns of rows, made from a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from lowmark.sources.kit.options import chosen_columns

from .chunks import Chunk
from .errors import InvalidPravegaOption
from .event_time import NO_TIME, TIME, EventTime
from .events import payloads
from .notes import NOTED_TIME, SegmentNotes
from .segment import PravegaSplit, segment_name

DEFAULT_COLUMNS = ("stream", "segment", "offset", "event")
EVENT_TIME = "event_time"
_TYPES: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "segment": pa.string(),
    "offset": pa.int64(),
    "event": pa.binary(),
    EVENT_TIME: TIME,
    NOTED_TIME: TIME,
}


class PravegaColumns:
    """Makes rows.

    Args:
        names: names of the columns, in order; None: all columns.
        noted: whether there is a column with the time noted by writers.
    """

    def __init__(self, names: Sequence[str] | None, event_time: EventTime | None, *, noted: bool = False) -> None:
        there = [*DEFAULT_COLUMNS, *([] if event_time is None else [EVENT_TIME]), *([NOTED_TIME] if noted else [])]
        hint = "event_time= makes the column event_time."
        self.names = tuple(there) if names is None else chosen_columns(names, there, InvalidPravegaOption, hint)
        self._event_time = event_time
        self._looks_inside = not {"event", EVENT_TIME}.isdisjoint(self.names)
        self.schema = pa.schema([(name, _TYPES[name]) for name in self.names])

    def rows(self, split: PravegaSplit, chunk: Chunk, notes: SegmentNotes | None) -> pa.RecordBatch:
        """Return the events of a chunk; with the notes of the segment, if there is a column for them."""
        count = len(chunk.ends)
        columns: list[pa.Array[Any]] = []
        events = payloads(chunk.data, chunk.ends) if self._looks_inside else None
        for name in self.names:
            if name == "event" and events is not None:
                columns.append(events)
            elif events is not None and name == EVENT_TIME and self._event_time is not None:
                columns.append(self._event_time.times(events))
            elif name == NOTED_TIME and notes is not None:
                times_us = notes.at_us(chunk.begins)
                columns.append(pa.array(times_us, pa.int64(), mask=times_us == NO_TIME).cast(TIME))
            elif name == "offset":
                columns.append(pa.array(np.asarray(chunk.begins)))
            else:
                text = split.stream if name == "stream" else segment_name(split.segment)
                columns.append(pa.repeat(pa.scalar(text, pa.string()), count))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
