"""Event times in payloads: their place and their format. A value that is no time is counted, and stops nothing."""

from __future__ import annotations

import datetime as dt
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lowmark.integration.errors import AuditImpossible
from lowmark.watermark.lateness import Micros
from lowmark.watermark.moment import INT64, datetime_from_iso, us_of
from lowmark.watermark.printable import counted
from lowmark.watermark.replay.profile import Flags

_STEP = re.compile(r"\.([^.\[\]]+)|\[\s*'([^']+)'\s*\]|\[\s*\"([^\"]+)\"\s*\]|\[\s*(\d{1,6})\s*\]")
_NUMBER_TEXT = r"^-?\d{1,300}(\.\d{0,300})?$"
_DATE_TEXT = r"^\d{4}(-\d\d-\d\d|\d{4}T)"
_MOST_STEPS = 100  # each step is a decoder within a decoder
_MOST_US = 1 << 62
_LEAST_OF_OUR_DAYS = 1e8  # 1973 in seconds; a smaller number does not show its unit
_MOST_OF_ANY_UNIT = 2.0**63  # from here on a number is no time in any unit

JsonPath = tuple[str | int, ...]
"""Names of fields, and indexes of arrays from 0."""


@dataclass(frozen=True, slots=True)
class Header:
    """A record's header with a text."""

    name: str


class Unit(str, Enum):
    """The unit of a number that counts since 1970."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"

    @property
    def word(self) -> str:
        return self.name.lower()


_US_PER = {Unit.SECONDS: 1e6, Unit.MILLISECONDS: 1e3, Unit.MICROSECONDS: 1.0, Unit.NANOSECONDS: 1e-3}
_LIMITS = (1e11, 1e14, 1e17)  # bounds between the sizes of the units, in the order of `Unit`


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event times of n rows: microseconds since the epoch, 0 where `timed` says that the row has none.

    `null`: rows without a value. Other rows without a time have a value that cannot be read.
    """

    times_us: Micros
    timed: Flags
    null: Flags

    @property
    def null_rows(self) -> int:
        return int(self.null.sum())

    @property
    def unreadable_rows(self) -> int:
        return int((~self.timed & ~self.null).sum())

    def of(self, rows: npt.NDArray[np.intp]) -> EventTimes:
        return EventTimes(self.times_us[rows], self.timed[rows], self.null[rows])


def json_path(text: str) -> JsonPath:
    """Return the steps of a JSON path. Raises AuditImpossible.

    >>> json_path("$.order.paid_at"), json_path("$['paid at']"), json_path("paid_at"), json_path("$.items[0].at")
    (('order', 'paid_at'), ('paid at',), ('paid_at',), ('items', 0, 'at'))
    """
    rest = text[1:] if text.startswith("$") else f".{text}"
    steps = tuple(int(index) if index else next(filter(None, names)) for *names, index in _STEP.findall(rest))
    if not steps or _STEP.sub("", rest):
        raise AuditImpossible(
            f"{text!r:.100} is no path into JSON", "write '$.paid_at', '$.order.paid_at' or '$.items[0].at'."
        )
    if len(steps) > _MOST_STEPS:
        raise AuditImpossible(f"{text!r:.100} goes {len(steps):,} steps deep", f"{_MOST_STEPS} steps can be gone.")
    return steps


def record_place(text: str) -> JsonPath | Header:
    """Return the place of event time: ``header:NAME``, or as `json_path`."""
    kind, colon, name = text.partition(":")
    return Header(name) if colon and kind == "header" and name else json_path(text)


def shown_place(place: JsonPath | Header) -> str:
    """A place as users write it.

    >>> shown_place(json_path("$.items[0].at")), shown_place(json_path("$['paid.at']")), shown_place(Header("paid_at"))
    ('$.items[0].at', "$['paid.at']", 'header:paid_at')
    """
    if isinstance(place, Header):
        return f"header:{place.name}"
    return "$" + "".join(map(_shown_step, place))


def _shown_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    quote = '"' if "'" in step else "'"
    return f"[{quote}{step}{quote}]" if set(step) & set(".[]") else f".{step}"


@dataclass
class TimeReader:
    """Converts values to event times."""

    unit: Unit | None = None  # of numbers; None: guessed from the first numbers that show theirs
    pattern: str | None = None  # format of texts for `strptime`; None: ISO-8601, in UTC if no zone is given
    _guessed: bool = field(default=False, init=False)
    _of_another_unit: Counter[Unit] = field(default_factory=Counter, init=False)

    @property
    def notes(self) -> list[str]:
        if not self._guessed:
            return []
        taken = self._taken
        made = [f"numbers are taken as {taken.word} since 1970, by their size (--unit says otherwise)"]
        for unit, rows in sorted(self._of_another_unit.items()):
            made.append(
                f"units are mixed: {counted(rows, 'row', ('has', 'have'))} a time that looks like {unit.word} among "
                f"{taken.word}; these rows count as unreadable, and a query with one unit for all rows has wrong times "
                "there"
            )
        return made

    def payloads(self, payloads: Sequence[bytes | None], path: JsonPath) -> EventTimes:
        found, broken = field_values(payloads, path)
        times = self.values(found)
        return EventTimes(times.times_us, times.timed, times.null & ~broken)

    def headers(self, values: Sequence[bytes | None]) -> EventTimes:
        """Return the times in a header's values: texts, and numbers as texts."""
        texts = [None if value is None else value.decode(errors="replace") for value in values]
        return self.column(pa.array(texts, pa.string()))

    def values(self, values: Sequence[Any]) -> EventTimes:
        """Return the times in values of records: numbers, texts, and times that a decoder has made."""
        kinds = set(map(type, values)) - {type(None)}
        if kinds <= {int} or kinds == {float}:
            try:
                return self.column(pa.array(values, pa.float64() if kinds == {float} else pa.int64()))
            except (pa.ArrowInvalid, OverflowError):
                pass
        elif kinds == {str}:
            return self.column(pa.array(values, pa.string()))
        elif kinds == {dt.datetime}:
            return self.column(pa.array(values, pa.timestamp("us", "UTC")))
        return self._one_by_one(values)

    def column(self, column: pa.Array[Any]) -> EventTimes:
        """Return the times in an Arrow column of timestamps, dates, numbers or texts."""
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return _settled(_micros(column), _null(column))
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return self._numbers(column)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._texts(column.cast(pa.string()))
        return _settled(pa.nulls(len(column), pa.int64()), _null(column))

    # -- how

    def _numbers(self, column: pa.Array[Any]) -> EventTimes:
        valid = np.asarray(column.is_valid())
        values = np.asarray(column.fill_null(0))
        unit = self._unit_for(np.abs(values[valid].astype(np.float64)))
        if self._guessed:
            valid = valid & ~self._another(values, valid, unit)
        if np.issubdtype(values.dtype, np.integer):
            most = min(int(_MOST_US / _US_PER[unit]), INT64[-1])
            fits = (
                valid & (values <= most) & (values >= (-most if np.issubdtype(values.dtype, np.signedinteger) else 0))
            )
            whole = np.where(fits, values, 0).astype(np.int64)
            times_us = whole // 1_000 if unit is Unit.NANOSECONDS else whole * int(_US_PER[unit])
        else:
            scaled = values.astype(np.float64) * _US_PER[unit]
            fits = valid & np.isfinite(scaled) & (np.abs(scaled) < _MOST_US)
            times_us = np.where(fits, np.floor(np.where(fits, scaled, 0)), 0).astype(np.int64)
        return EventTimes(times_us, fits, _null(column))

    def _unit_for(self, sizes: npt.NDArray[np.float64]) -> Unit:
        """The unit of numbers of these sizes, shape (n,). A guess is kept once a number has shown its unit."""
        if self.unit is None and len(sizes):
            self._guessed = True
            showing = sizes[_show_unit(sizes)]
            if len(showing):
                self.unit = _unit_of(float(np.median(showing)))
        return self._taken

    @property
    def _taken(self) -> Unit:
        """The unit that numbers are taken in, also before a number has shown its unit."""
        return Unit.SECONDS if self.unit is None else self.unit

    def _another(self, values: npt.NDArray[Any], valid: Flags, unit: Unit) -> Flags:
        """Find and count the numbers whose size fits a unit other than ``unit``; shape (n,)."""
        sizes = np.abs(values.astype(np.float64))
        units = np.searchsorted(_LIMITS, sizes, side="right")
        another: Flags = valid & _show_unit(sizes) & (units != list(Unit).index(unit))
        found, rows = np.unique(units[another], return_counts=True)
        self._of_another_unit.update(
            {list(Unit)[each]: count for each, count in zip(found, rows.tolist(), strict=True)}
        )
        return another

    def _texts(self, column: pa.Array[Any]) -> EventTimes:
        if self.pattern is not None:
            return self._formatted(column, self.pattern)
        is_number = pc.match_substring_regex(column, _NUMBER_TEXT)
        if _count(is_number) > _count(pc.match_substring_regex(column, _DATE_TEXT)):
            # Numbers as texts, as in CSV. A text that is neither number nor date leaves the other rows readable.
            numbers = pc.if_else(is_number, column, pa.scalar(None, pa.string()))
            whole = pc.all(pc.match_substring_regex(numbers, r"^-?\d{1,18}$"), skip_nulls=True).as_py()
            read = self._numbers(numbers.cast(pa.int64() if whole else pa.float64()))
            return EventTimes(read.times_us, read.timed, _null(column))
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return _settled(column.cast(kind).cast(pa.int64()), _null(column))
            except pa.ArrowInvalid:
                continue
        return self._one_by_one(column.to_pylist())

    def _formatted(self, column: pa.Array[Any], pattern: str) -> EventTimes:
        try:
            made: Any = pc.strptime(column, format=pattern, unit="s", error_is_null=True).cast(pa.timestamp("s", "UTC"))
            written = pc.strftime(made, format=pattern)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
            raise AuditImpossible(
                f"--format {pattern!r:.100} cannot be used: {wrong!s:.200}",
                "write it as strptime does, such as '%Y-%m-%d %H:%M:%S'.",
            ) from wrong
        made = made.cast(pa.timestamp("us")).cast(pa.int64())
        # Python reads each text that Arrow would write otherwise, because Arrow lacks %f and %V, takes any zone of %Z
        # for UTC, and 30 February for a day of March.
        same: Any = pc.equal(written, column)
        left = pc.and_not(column.is_valid(), same.fill_null(False))
        if pc.any(left).as_py():
            read = pa.array([self._single(text) for text in column.filter(left).to_pylist()], pa.int64())
            made = pc.replace_with_mask(made, left, read)
        return _settled(made, _null(column))

    def _one_by_one(self, values: Sequence[Any]) -> EventTimes:
        made = pa.array([self._single(value) for value in values], pa.int64())
        return _settled(made, np.array([value is None for value in values], np.bool_))

    def _single(self, value: Any) -> int | None:
        try:
            if isinstance(value, dt.datetime):
                return us_of(value)
            if isinstance(value, str):
                if self.pattern is not None:
                    at = dt.datetime.strptime(value, self.pattern)  # noqa: DTZ007  # UTC if no zone is given
                else:
                    at = datetime_from_iso(value)
                at = at.replace(tzinfo=dt.timezone.utc) if at.tzinfo is None else at
                return us_of(at)
            if isinstance(value, int | float) and not isinstance(value, bool):
                size = abs(float(value))
                unit = self._unit_for(np.array([size])) if self.unit is None else self.unit
                if self._guessed and _show_unit(size) and _unit_of(size) is not unit:
                    self._of_another_unit[_unit_of(size)] += 1
                    return None
                time_us = math.floor(value * _US_PER[unit])
                return time_us if abs(time_us) < _MOST_US else None
        except (ValueError, OverflowError, TypeError):  # TypeError: a time without a zone
            return None
        return None


def field_values(payloads: Sequence[bytes | None], path: JsonPath) -> tuple[list[Any], Flags]:
    """Return a field of each JSON payload, None for a payload without the field; and which payloads are no JSON."""
    decode, get = _decoder(path)
    found: list[Any] = []
    broken = np.zeros(len(payloads), np.bool_)
    for at, payload in enumerate(payloads):
        value = None
        try:
            value = None if payload is None else get(decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            broken[at] = True
        except (AttributeError, IndexError, TypeError):  # a step is null, or an array is too short
            pass
        found.append(value)
    return found, broken


def _decoder(path: JsonPath) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
    """Return a decoder for one field of a JSON object, and a getter for the field; all other fields are skipped."""
    kind: Any = Any
    for step in reversed(path):
        optional = kind if kind is Any else kind | None
        if isinstance(step, int):
            kind = GenericAlias(list, (optional,))
        else:
            kind = msgspec.defstruct("Payload", [("value", optional, None)], rename={"value": step})

    def get(found: Any) -> Any:
        for step in path:
            found = found[step] if isinstance(step, int) else found.value
        return found

    return msgspec.json.Decoder(kind).decode, get


def _show_unit(sizes: Any) -> Any:
    """Whether a number shows its unit by its size; of an array, which of its numbers do."""
    return (sizes >= _LEAST_OF_OUR_DAYS) & (sizes < _MOST_OF_ANY_UNIT)


def _unit_of(size: float) -> Unit:
    """The unit of a number by its size: from 1973 to 5138 each unit has its own range."""
    return list(Unit)[bisect_right(_LIMITS, size)]


def _count(flags: Any) -> int:
    return int(pc.sum(flags, min_count=0).as_py())


def _null(column: pa.Array[Any]) -> Flags:
    return np.asarray(column.is_null())


def _micros(column: Any) -> Any:
    """Microseconds of times and days, parts cut off; null where they do not fit into 64 bits."""
    options: Any = pc.CastOptions(pa.timestamp("us"), allow_time_truncate=True)
    try:
        return column.cast(options=options).cast(pa.int64())
    except pa.ArrowInvalid:
        seconds: Any = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        most: Any = INT64[-1] // 1_000_000
        fits = pc.and_(pc.less(seconds, most), pc.greater(seconds, -most))
        return pc.if_else(fits, column, pa.scalar(None, column.type)).cast(options=options).cast(pa.int64())


def _settled(micros: pa.Array[Any], null: Flags) -> EventTimes:
    return EventTimes(np.asarray(micros.fill_null(0)).astype(np.int64), np.asarray(micros.is_valid()), null)
