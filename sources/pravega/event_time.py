"""Finds event time in the bytes of events, because Pravega keeps no time of an event.

`EventTime("$.at")` reads one field of JSON without reading the rest; `EventTime.of(function)` calls your
function: Arrow's binary array in, an array of times out. Both run where events are read and, once more, where
batches are planned by time, so that slices and alignment know a time before a row is read.

An event without a readable time has no time: it passes through and moves no watermark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import LEAST_US, datetime_from_iso, us_of

from .errors import InvalidPravegaOption

TIME = pa.timestamp("us", tz="UTC")
_UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
NO_TIME = LEAST_US
_NUMBER = re.compile(r"-?\d{1,25}(\.\d{1,25})?", re.ASCII)
_NUMBERS_US = range(-(2**62), 2**62)

Decode = Callable[[pa.BinaryArray], Any]


def unit_us(unit: str) -> int:
    """Return the microseconds in a unit of time, or refuse the unit."""
    if unit not in _UNITS_US:
        raise InvalidPravegaOption("event_time_unit", repr(unit), "s, ms or us", "ms is usual.")
    return _UNITS_US[unit]


@dataclass(frozen=True)
class EventTime:
    """How to find the time of an event. Picklable, if its function is picklable.

    Attributes:
        path: path of a field in JSON, such as "$.order.at"; "" with `decode`.
        unit: unit of numbers in the field, also of numbers written as text: "s", "ms" or "us". Other text is ISO 8601,
            in UTC without a zone.
        decode: events -> an array of as many times: timestamps, or whole microseconds since the epoch.

    Raises:
        InvalidPravegaOption: the path or the unit is invalid.

    >>> EventTime("$.at").times_us(pa.array([b'{"at": 7}', b'{"at": "1970-01-01T00:00:01Z"}'])).tolist()
    [7000, 1000000]
    """

    path: str = ""
    unit: str = "ms"
    decode: Decode | None = None

    def __post_init__(self) -> None:
        unit_us(self.unit)
        if self.decode is None:
            fits = self.path.startswith("$.") and all(part.isidentifier() for part in self.path[2:].split("."))
        else:
            fits = callable(self.decode)
        if not fits:
            given = self.path if self.decode is None else self.decode
            raise InvalidPravegaOption(
                "event_time", shown(given), 'a path such as "$.order.at", or a function', "fields of objects only."
            )

    @classmethod
    def of(cls, given: str | Decode | EventTime, unit: str = "ms") -> EventTime:
        """Take a user's value: a path, a function, or an `EventTime`."""
        if isinstance(given, EventTime):
            return given
        return cls(given, unit) if isinstance(given, str) else cls("", unit, given)

    def times(self, events: pa.BinaryArray) -> pa.Array[Any]:
        """Return the time of each event, null for an event without one, or refuse what the function returns."""
        if self.decode is None:
            return self._from_json(events)
        found: Any = self.decode(events)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if not isinstance(found, pa.Array) or len(found) != len(events):
            raise _unfit(f"{type(found).__name__} for {len(events)} events", "return one of pyarrow's arrays.")
        if pa.types.is_timestamp(found.type):
            kind: Any = pa.timestamp("us", tz=found.type.tz)  # a time without a zone counts as UTC, like its number
        elif pa.types.is_integer(found.type) or pa.types.is_null(found.type):
            kind = pa.int64()
        else:
            raise _unfit(f"an array of {found.type}", "cast it to timestamps or int64.")
        try:
            # Nanoseconds are cut to whole microseconds; any other number that does not fit is refused.
            whole = found.cast(kind, safe=getattr(found.type, "unit", "") != "ns")
        except pa.ArrowInvalid as wrong:
            raise _unfit(f"an array of {found.type}", f"{wrong}; null is for an event without a time.") from None
        return whole.cast(pa.int64()).cast(TIME)

    def times_us(self, events: pa.BinaryArray) -> npt.NDArray[np.int64]:
        """Do `times`, in microseconds since the epoch; `NO_TIME` for an event without a time."""
        return np.asarray(self.times(events).cast(pa.int64()).fill_null(NO_TIME), np.int64)

    def _from_json(self, events: pa.BinaryArray) -> pa.Array[Any]:
        read, per_unit_us = _reader_of(self.path), _UNITS_US[self.unit]
        found = [_us(read(event), per_unit_us) for event in events.to_pylist()]
        return pa.array(found, pa.int64()).cast(TIME)


@cache
def _reader_of(path: str) -> Callable[[bytes | None], Any]:
    """Return a function that reads a field of JSON, and gives None for a missing field."""
    names = path[2:].split(".")
    kind: Any = int | float | str
    for name in reversed(names):
        # The field has a name of its own, because a struct cannot have all names of JSON, such as `__init__`.
        kind = msgspec.defstruct("Event", [("field", kind | None, None)], rename={"field": name})
    decode = msgspec.json.Decoder(kind).decode

    def read(event: bytes | None) -> Any:
        try:
            value = decode(event or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        for _ in names:
            if value is None:
                return None
            value = value.field
        return value

    return read


def _unfit(got: str, hint: str) -> InvalidPravegaOption:
    return InvalidPravegaOption(
        "event_time", got, "an array with a time for each: timestamps, or whole microseconds", hint
    )


def _us(value: float | str | None, per_unit_us: int) -> int | None:
    try:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value) if "." in value else int(value)
        if isinstance(value, str):
            found = datetime_from_iso(value)
            return us_of(found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc))
        if value is None:
            return None
        us = int(value * per_unit_us)
    except (ValueError, OverflowError):
        return None
    return us if us in _NUMBERS_US else None
