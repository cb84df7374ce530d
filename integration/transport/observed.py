"""The observed-metrics transport, both ends: the expressions that Spark evaluates, and the reader of their results.

`Dataset.observe` gives one row per batch, through Spark's own accumulators, in the progress event:

    latest    tuple sketch, split -> largest event time in seconds (mode "max")
    rows      rows of the batch
    null_split_rows         rows without a split
    null_time_rows          rows with a split and without a time
    before_epoch_rows       rows from before 1970
    newest                  largest event time of all rows, microseconds, including rows beyond the guard
    future                  with a guard: a sketch of the number of rows beyond it per split
    earliest, split_rows    with `detail`: sketches of the smallest event time and of the rows per split
    names, hindmost         if names are not known otherwise: the split's columns of a sample of the rows, and of the
                            row with the smallest event time, whose split users ask for first; `hindmost` is JSON in a
                            binary, because Spark would copy a string or a struct on every row that does not change it

A sketch is exact up to a number of splits equal to its size, and the theta in every report proves this.
Its layout (datasketches-java 6.2, `CompactSketch.toByteArray`), little endian: byte 0 preamble longs, 1 serial
version 3, 2 family 9, 5 flags; with two preamble longs a u32 count at 8, with three also theta at 16; then 17
bytes an entry: u64 hash, f64 value, u8 mode.

Event time is observed as `cast(ts as double)`, seconds, because that is one interpreted node per row instead of
two; microseconds come back exactly by rounding for every time before the year 2112, within 1 us to 2255.

Costs per row (Spark 4.2, `AggregatingAccumulator`): counts and min_by are compiled; sketches and sets evaluate their
arguments node by node, some 8 ns each. So:

    The guard stands in the value, where it costs one comparison for a row of the past. In a stream
    `current_timestamp()` becomes a literal only after constants were folded, so every row that needs now + interval
    adds it up again. The guard does not stand in the key: a sketch asks its key for its type on every row, and `if`
    computes its type. The guard of `future` does stand in the key, inside `unix_micros`: the type of `unix_micros` is a
    constant, and the keys of other rows are not computed. Bad rows are counted by `count`, which is never null and so
    costs half of a `sum`. No compiled expression holds the batch's time: as a literal it would be compiled anew for
    every batch, some 50 ms. So a sketch, which is never compiled, counts the rows beyond the guard.
"""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from lowmark.integration.errors import TooManySplits, UnreadableReport
from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.splits.events import BatchCounts, SplitColumn
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .measure import Measure, Measured
from .python_values import from_json
from .split_key import SplitKey, quoted

Ids = npt.NDArray[np.uint64]

_ENTRY = np.dtype([("split", "<u8"), ("value", "<f8"), ("mode", "u1")])
_EMPTY_FLAG = 0x04
_SECOND_US = 1e6
_LARGEST = 2.0**63 - 1_024  # the largest double that fits 64 bits
_COUNTS = ("rows", "null_split_rows", "null_time_rows", "before_epoch_rows")
# One row in 16, chosen by bits of the time that differ even between whole seconds and whole minutes.
_SAMPLE_MASK = 0b11_0110_0000_0000


@dataclass(frozen=True, slots=True)
class ObservedMeasure(Measure):
    """Measures a stream by Spark's observed metrics: see `Measure`."""

    metric: str  # name of the observation
    stream: str
    key: SplitKey
    event_time: str
    future_guard_us: int | None  # events further ahead of the batch's wall clock move no watermark; None: no guard
    sketch_lg: int  # base-2 logarithm of the number of splits counted exactly, 4 to 26
    detail: bool  # also measure the earliest event time and the rows of each split; about a quarter more work
    sample_names: bool  # also collect the names of a sample of the rows

    def observe(self, df: DataFrame) -> DataFrame:
        return df.observe(self.metric, *self.columns())

    def report(
        self,
        query_id: str,  # noqa: ARG002
        batch_id: int,
        metrics: Mapping[str, Any],
        strategy: WatermarkStrategy,
    ) -> Measured | None:
        if (metric := metrics.get(self.metric)) is None:
            return None
        where = f'stream "{self.stream}", batch {batch_id}'
        try:
            latest, counts = metric["latest"], {name: operator.index(metric[name]) for name in _COUNTS}
        except (KeyError, TypeError) as broken:
            raise UnreadableReport(where, f"the observed metric has no usable field {broken}") from broken
        raw = _raw(latest, where)
        splits, seconds = decode_sketch(raw, where=where)
        theta = _theta(raw)
        if not 0 < theta <= 1:
            raise UnreadableReport(where, f"expected a sketch with a theta above 0 and up to 1, got {theta:g}")
        if theta < 1.0:
            raise TooManySplits(self.stream, batch_id, round(len(splits) / theta), 1 << self.sketch_lg)
        latest_us = _whole(seconds, _SECOND_US, where)
        future_rows = self._per_split(metric, "future", where, 1)
        return Measured(
            watermarks_us=SplitColumn(splits, strategy.watermarks_of_max(latest_us)) if strategy.emits else {},
            first_us=self._per_split(metric, "earliest", where, _SECOND_US),
            rows=self._per_split(metric, "split_rows", where, 1) or None,
            counts=BatchCounts(**counts, future_rows=sum(future_rows.values())),
            names=self._names(metric, where),
            newest_us=self._newest_us(metric, where),
            future_rows=future_rows,
        )

    def columns(self) -> list[Column]:
        time, none = quoted(self.event_time), self.key.any_null()
        micros = f"unix_micros({time})"
        split = self.key.expression()
        seconds = self._guarded("null", f"cast({time} as double)")
        made = {
            "latest": self._sketch(split, seconds, "max"),
            "rows": "count(1)",
            "null_split_rows": f"count(case when {none} then 1 end)",
            "null_time_rows": f"count(case when {time} is null and not ({none}) then 1 end)",
            "before_epoch_rows": f"count(case when {micros} < 0 then 1 end)",
            "newest": f"max({micros})",
        }
        if self.future_guard_us is not None:
            # Only rows beyond the guard have a key, which is cast to a time and back: `unix_micros` has a fixed type.
            key = self._guarded(f"timestamp_micros({split})", "null")
            made["future"] = self._sketch(f"unix_micros({key})", "1.0D", "sum")
        if self.detail:
            made["earliest"] = self._sketch(split, seconds, "min")
            made["split_rows"] = self._sketch(split, self._guarded("null", "1.0D"), "sum")
        if self.sample_names:
            named = f"struct({', '.join(map(quoted, self.key.columns))})"
            made["names"] = f"collect_set(if(({micros} & {_SAMPLE_MASK}) = 0, {named}, null))"
            made["hindmost"] = f"min_by(cast(to_json({named}) as binary), {time})"
        return [F.expr(text).alias(name) for name, text in made.items()]

    def _per_split(self, metric: Mapping[str, Any], name: str, where: str, unit: float) -> dict[SplitId, int]:
        if name not in metric:
            return {}
        splits, values = decode_sketch(metric[name], where=where)
        return dict(zip(splits.tolist(), _whole(values, unit, where).tolist(), strict=True))

    def _newest_us(self, metric: Mapping[str, Any], where: str) -> int | None:
        newest_us = metric.get("newest")
        if newest_us is None or type(newest_us) is int:
            return newest_us
        raise UnreadableReport(where, f"expected the newest time as a whole number, got {newest_us!r:.40}")

    def _names(self, metric: Mapping[str, Any], where: str) -> dict[int, str]:
        key, names = self.key, dict[int, str]()
        sample, hindmost = metric.get("names"), metric.get("hindmost")
        try:
            # A struct is a Row in a listener's event, and an object without its null fields in JSON.
            rows = [row if isinstance(row, Mapping) else row.asDict() for row in sample or () if row is not None]
            if hindmost is not None:
                text = base64.b64decode(hindmost) if isinstance(hindmost, str) else bytes(memoryview(hindmost))
                rows.append(json.loads(text))
            for row in rows:
                # A value that Python has not, such as a date after the year 9999 or half of a surrogate pair, leaves
                # its split without a name; its rows still count.
                with suppress(ValueError, OverflowError):
                    values = [
                        from_json(row.get(column), kind) for column, kind in zip(key.columns, key.types, strict=True)
                    ]
                    if key.fits(values):
                        names[key.split_id(values)] = key.name(values)
        except (ValueError, TypeError, AttributeError, RecursionError) as broken:
            raise UnreadableReport(where, f"expected rows of {key.columns} as names: {broken}") from broken
        return names

    def _sketch(self, key: str, value: str, mode: str) -> str:
        return f"tuple_sketch_agg_double({key}, {value}, {self.sketch_lg}, '{mode}')"

    def _guarded(self, beyond: str, others: str) -> str:
        """A value for rows beyond the guard, and a value for the others."""
        if self.future_guard_us is None:
            return others
        # The guard must be inside the expression: behind it, one bad row would hide its split's good rows.
        seconds = f"{self.future_guard_us // 1_000_000}.{self.future_guard_us % 1_000_000:06}"
        # Quoted, because a session may reserve the words of the SQL standard, and this one takes no brackets then.
        time, now = quoted(self.event_time), "`current_timestamp`()"
        return f"if({time} > {now}, if({time} > {now} + interval '{seconds}' second, {beyond}, {others}), {others})"


def decode_sketch(sketch: bytes | str, *, where: str) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Return the ids and the values in a tuple sketch of doubles, given as bytes or base64. Raises UnreadableReport."""
    raw = _raw(sketch, where)
    longs, flags = raw[0], raw[5]
    if raw[1] != 3 or raw[2] != 9 or longs not in (1, 2, 3):
        raise UnreadableReport(where, f"expected a tuple sketch (version 3, family 9), got the bytes {raw[:8].hex()}")
    if flags & _EMPTY_FLAG:
        count, body = 0, len(raw)
    elif longs == 1:
        count, body = 1, 8
    else:
        count, body = int.from_bytes(raw[8:12], "little"), 8 * longs
    if len(raw) - body != count * _ENTRY.itemsize:
        raise UnreadableReport(
            where, f"a sketch of {count} splits needs {count * _ENTRY.itemsize} bytes, got {len(raw) - body}"
        )
    entries = np.frombuffer(raw, dtype=_ENTRY, count=count, offset=body) if count else np.empty(0, _ENTRY)
    return entries["split"], entries["value"]


def _theta(raw: bytes) -> float:
    """The share of hashes that a sketch kept: 1.0 means that it has every split."""
    return int.from_bytes(raw[16:24], "little") / float(1 << 63) if raw[0] == 3 else 1.0


def _raw(sketch: bytes | str, where: str) -> bytes:
    try:
        # Through a view, which only bytes-like objects allow: `bytes(7)` would be seven zeros.
        raw = base64.b64decode(sketch, validate=True) if isinstance(sketch, str) else bytes(memoryview(sketch))
    except (TypeError, ValueError) as broken:
        raise UnreadableReport(where, f"expected a sketch as bytes or base64, got {sketch!r:.40}") from broken
    if len(raw) < 8:
        raise UnreadableReport(where, f"expected a sketch of at least 8 bytes, got {len(raw)}")
    return raw


def _whole(values: npt.NDArray[np.float64], unit: float, where: str) -> npt.NDArray[np.int64]:
    """The values in this unit as whole numbers, clipped to 64 bits."""
    if not np.isfinite(values).all():
        raise UnreadableReport(where, "expected numbers in a sketch, got infinite ones or none")
    with np.errstate(over="ignore"):
        whole = np.rint(values * unit)
    return np.clip(whole, -(2.0**63), _LARGEST).astype(np.int64)
