"""A scripted stream of splits, computed instead of read: every row is a function of (script, seed, split, position).

A script says for each split how its event times run: on time, behind by some minutes, silent from some point on, or
with one row of a wrong clock. Any range of the stream can be made again, anywhere, in any order.

Positions are *ticks*: in each tick every split delivers its share of rows. The last tick, `ticks`, ends the stream: a
split that is behind delivers its remaining rows, and every split that has not fallen silent delivers one more row,
later than all before, as in a stream that goes on. Without that row the last windows would never be over.

    tick       0         1                    ...      ticks - 1      ticks
    regular    R rows    R rows               ...      R rows         1 last row
    behind     R rows, each `behind_us` older ...      R rows         all it still owes, and 1 last row
    silent     R rows    R rows, up to silent_from_tick, then nothing

Within a split rows arrive shuffled: each is up to `shuffle_us` later in event time than its turn, so a row arrives at
most `shuffle_us` after a newer row.

A split may begin later than the stream, at `from_tick`, and continue other splits, its `parents`, which end there: a
reshard. A parent has no remaining rows and no last row; its children go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lowmark.sources.kit.options import listed
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown

_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS: list[tuple[str, pa.DataType]] = [("split", pa.string()), ("number", pa.int64()), ("event_time", _TIME)]
SCHEMA = pa.schema(_COLUMNS)
"""A row: its split, its number within the split (from 0, without gaps), its event time."""

_MASK = (1 << 64) - 1
_MOST = 1 << 60  # sums of a few such times fit 64 bits


class InvalidScript(LowmarkError, ValueError):
    """A script that describes no stream."""

    what: str  # the part at fault
    expected: str  # the accepted values
    got: str  # the given value, as text
    _fact = "{what:.200}: expected {expected:.500}, got {got:.200}"
    _hint = ""


@dataclass(frozen=True, slots=True)
class SplitScript:
    """The script of one split.

    Attributes:
        name: name of the split.
        rows_per_tick: rows it delivers in a tick, 1 or more.
        behind_us: how much older its event times are than the stream's, microseconds, a whole number of ticks.
        silent_from_tick: the first tick from which on it delivers no row. None: it never falls silent.
        stray_tick: the first row of this tick is dated `stray_us` too late. None: no such row.
        stray_us: how far ahead that row is, microseconds; a negative value makes it a late row.
        last_us: event time of its last row, microseconds after the end of the last regular tick.
        from_tick: its first tick.
        parents: names of the splits that end where it begins.
    """

    name: str
    rows_per_tick: int
    behind_us: int = 0
    silent_from_tick: int | None = None
    stray_tick: int | None = None
    stray_us: int = 0
    last_us: int = 0
    from_tick: int = 0
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class StreamScript:
    """A whole stream: finite, and the same for the same seed in every process.

    Attributes:
        splits: the splits, at least one.
        start_us: event time at which tick 0 begins, microseconds since the epoch.
        ticks: number of regular ticks; the stream's positions are 0 to `ticks` + 1.
        tick_us: event time that passes in a tick, microseconds.
        shuffle_us: how much later than its turn a row's event time may be, microseconds, 1 or more.

    Raises:
        InvalidScript: a value is invalid.

    >>> script = StreamScript((SplitScript("a", 2), SplitScript("b", 2, silent_from_tick=1)), 0, 3, 1_000_000, 1)
    >>> script.rows("a", 0, 4, seed=7)["event_time"].cast("int64").to_pylist()
    [0, 500000, 1000000, 1500000, 2000000, 2500000, 3000000]
    >>> script.count_rows("b", 0, 4)
    2
    """

    splits: tuple[SplitScript, ...]
    start_us: int
    ticks: int
    tick_us: int
    shuffle_us: int

    def __post_init__(self) -> None:
        _check_types(self)
        names = [split.name for split in self.splits]
        if not names or len(set(names)) != len(names):
            raise InvalidScript("splits", "one or more, each name once", str(names))
        for what, value in (("ticks", self.ticks), ("tick_us", self.tick_us), ("shuffle_us", self.shuffle_us)):
            if value < 1:
                raise InvalidScript(what, "1 or more", str(value))
        if max(abs(self.start_us), self.shuffle_us) >= _MOST:
            raise InvalidScript("start_us and shuffle_us", "numbers of 60 bits", "larger ones")
        for split in self.splits:
            if split.rows_per_tick < 1:
                raise InvalidScript(f"rows_per_tick of {split.name}", "1 or more", str(split.rows_per_tick))
            if split.behind_us < 0 or split.behind_us % self.tick_us:
                what = f"behind_us of {split.name}"
                raise InvalidScript(what, f"whole ticks of {self.tick_us}", str(split.behind_us))
            if not 0 <= split.from_tick <= self.ticks:
                raise InvalidScript(f"from_tick of {split.name}", f"0 to {self.ticks}", str(split.from_tick))
            self._check_size(split)
            for parent in split.parents:
                self._check_parent(split, parent)

    def _check_size(self, split: SplitScript) -> None:
        """Check that counts of rows and sums of times fit 64 bits."""
        span_us = (self.ticks + 1) * self.tick_us + split.behind_us
        sizes = (span_us * split.rows_per_tick, split.stray_tick, split.stray_us, split.last_us, split.silent_from_tick)
        if any(abs(size or 0) >= _MOST for size in sizes):
            raise InvalidScript(f"split {split.name}", "rows and times in 60 bits", "larger ones")

    def _check_parent(self, child: SplitScript, parent: str) -> None:
        what, found, end = f"parents of {child.name}", self._by_name.get(parent), self.ends_at(parent)
        if found is None or found[1].from_tick >= child.from_tick:
            raise InvalidScript(what, "splits that begin before it", repr(parent))
        if end != child.from_tick:
            wanted = f"all children of {parent!r} to begin in one tick"
            raise InvalidScript(what, wanted, f"{end} and {child.from_tick}")

    @property
    def end(self) -> int:
        return self.ticks + 1

    @property
    def end_us(self) -> int:
        """Event time at which the last regular tick ends; only last rows and strays are later."""
        return self.start_us + self.ticks * self.tick_us

    def ends_at(self, split: str) -> int | None:
        """The tick in which the children of a split begin, None without children."""
        return self._ends.get(split)

    def first_at(self, split: str, time_us: int, *, seed: int) -> int | None:
        """Find the first row of a split, in order of arrival, that is at or after a time.

        Args:
            split: its name.
            time_us: event time, microseconds since the epoch.
            seed: as for `rows`.

        Returns:
            The tick in which it arrives, None if no row is that late. O(rows that `shuffle_us` mixes).
        """
        index, script = self._find(split)
        count = self._rows_before(script, self.end)
        turn = time_us - self.start_us + script.behind_us - script.from_tick * self.tick_us
        first, certain = (-(-after * script.rows_per_tick // self.tick_us) for after in (turn - self.shuffle_us, turn))
        special = [number for number in (self._stray(script), self._last(script)) if number is not None]
        # The row after the certain row may be special, and the next row, the last, too.
        numbers = np.arange(max(0, first - 1), min(count, max(0, certain) + 3), dtype=np.int64)
        numbers = np.unique(np.concatenate([numbers, np.array(special, np.int64)]))
        numbers = numbers[(numbers >= 0) & (numbers < count)]
        later = numbers[self._times_of(script, index, numbers, seed) >= time_us]
        return min(script.from_tick + int(later[0]) // script.rows_per_tick, self.ticks) if len(later) else None

    def begins_us(self, split: str, tick: int) -> int:
        """The event time before which a split has no regular row from a tick on."""
        _, script = self._find(split)
        return self.start_us + min(tick, self.ticks) * self.tick_us - script.behind_us

    def rows(self, split: str, start: int, end: int, *, seed: int) -> pa.RecordBatch:
        """Make the rows of one split in the ticks from `start` up to and without `end`. Raises LookupError.

        Args:
            split: its name.
            start: the first tick.
            end: the tick after the last; there are no rows beyond the stream's end.
            seed: any integer.

        Returns:
            Rows of `SCHEMA` in order of arrival. O(rows), independent of earlier rows.
        """
        _, script = self._find(split)
        numbers = np.arange(self._rows_before(script, start), self._rows_before(script, end), dtype=np.int64)
        columns: list[pa.Array[Any]] = [
            pa.repeat(pa.scalar(script.name, pa.string()), len(numbers)),
            pa.array(numbers),
            pa.array(self.times_us(split, start, end, seed=seed), _TIME),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def times_us(self, split: str, start: int, end: int, *, seed: int) -> npt.NDArray[np.int64]:
        """Make only the event times of `rows`, microseconds since the epoch."""
        index, script = self._find(split)
        numbers = np.arange(self._rows_before(script, start), self._rows_before(script, end), dtype=np.int64)
        return self._times_of(script, index, numbers, seed)

    def count_rows(self, split: str, start: int, end: int) -> int:
        """How many rows `rows` would make. O(1)."""
        _, script = self._find(split)
        return max(0, self._rows_before(script, end) - self._rows_before(script, start))

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> StreamScript:
        """Make a script from `to_plain`. Raises `InvalidScript` if a field is missing, unknown or invalid."""
        try:
            script = msgspec.convert(plain, cls)
        except (ValueError, RecursionError) as wrong:
            if isinstance(wrong.__cause__, InvalidScript):
                raise wrong.__cause__ from None
            raise InvalidScript("it", "the fields of a StreamScript", f"something else: {wrong}") from wrong
        _check_names("the script", plain, StreamScript)
        for split in plain["splits"]:
            _check_names("a split", split, SplitScript)
        return script

    def _find(self, name: str) -> tuple[int, SplitScript]:
        found = self._by_name.get(name)
        if found is None:
            raise LookupError(f"no split {name!r} in this script, which has {[split.name for split in self.splits]}")
        return found

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[int, SplitScript]]:
        return {split.name: (index, split) for index, split in enumerate(self.splits)}

    @cached_property
    def _ends(self) -> Mapping[str, int]:
        """Parent -> the tick in which its first child begins."""
        ends: dict[str, int] = {}
        for child in self.splits:
            for parent in child.parents:
                ends[parent] = min(child.from_tick, ends.get(parent, child.from_tick))
        return ends

    def __getstate__(self) -> dict[str, Any]:
        """The fields only, because a pickled source must not carry the look-up tables."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _owed_rows(self, split: SplitScript) -> int:
        return split.behind_us // self.tick_us * split.rows_per_tick

    def _rows_before(self, split: SplitScript, tick: int) -> int:
        """The number of rows in all earlier ticks, which is also the number of the next row."""
        ends = (split.silent_from_tick, self.ends_at(split.name))
        silent = min((end for end in ends if end is not None), default=self.end)
        rows = max(0, min(tick, self.ticks, silent) - split.from_tick) * split.rows_per_tick
        over = tick > self.ticks and silent > self.ticks
        return rows + self._owed_rows(split) + 1 if over else rows

    def _stray(self, split: SplitScript) -> int | None:
        """Number of the row of a wrong clock."""
        return None if split.stray_tick is None else (split.stray_tick - split.from_tick) * split.rows_per_tick

    def _last(self, split: SplitScript) -> int:
        """Number of the last row, if there is one."""
        return (self.ticks - split.from_tick) * split.rows_per_tick + self._owed_rows(split)

    def _times_of(
        self, split: SplitScript, index: int, numbers: npt.NDArray[np.int64], seed: int
    ) -> npt.NDArray[np.int64]:
        late_us = (_random(numbers, seed, index) % np.uint64(self.shuffle_us)).astype(np.int64)
        begin_us = self.start_us - split.behind_us + split.from_tick * self.tick_us
        times_us = begin_us + numbers * self.tick_us // split.rows_per_tick + late_us
        if split.stray_tick is not None:
            times_us[numbers == self._stray(split)] += split.stray_us
        times_us[numbers == self._last(split)] = self.end_us + split.last_us
        return times_us


def _check_types(script: StreamScript) -> None:
    """Refuse values of other types, because a script that is written in Python comes past the checks of JSON."""
    _check_numbers(script, "")
    for split in listed(script.splits):
        if not isinstance(split, SplitScript) or not isinstance(split.name, str):
            raise InvalidScript("splits", "SplitScripts with texts as names", shown(split))
        _check_numbers(split, f" of {split.name}")
        parents: object = split.parents
        if parents != () and (
            isinstance(parents, str) or not all(isinstance(parent, str) for parent in listed(parents))
        ):
            raise InvalidScript(f"parents of {split.name}", "a tuple of names", shown(parents))


def check_whole(value: object, what: str) -> None:
    """Refuse a value that is no whole number."""
    if not isinstance(value, Integral):
        raise InvalidScript(what, "a whole number", shown(value))


def _check_numbers(script: StreamScript | SplitScript, of: str) -> None:
    """Refuse a number field without a whole number; some fields may be None."""
    for name, optional in _NUMBERS[SplitScript if isinstance(script, SplitScript) else StreamScript]:
        value = getattr(script, name)
        # First the type, because isinstance asks an abstract class slowly, and a script may have 100,000 splits.
        if type(value) is not int and not (value is None and optional):
            check_whole(value, f"{name}{of}")


_NUMBERS: Mapping[type, list[tuple[str, bool]]] = {
    kind: [(field.name, "None" in str(field.type)) for field in fields(kind) if str(field.type).startswith("int")]
    for kind in (StreamScript, SplitScript)
}
"""The fields that are whole numbers, and whether each may be None."""


def _check_names(what: str, plain: Mapping[str, Any], kind: type[StreamScript | SplitScript]) -> None:
    """Refuse unknown fields, because a misspelt field would otherwise have no effect."""
    known = {field.name for field in fields(kind)}
    for name in plain:
        if name not in known:
            raise InvalidScript(what, f"fields among {sorted(known)}", shown(name))


def _random(numbers: npt.NDArray[np.int64], seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """64 random bits per number: a hash, so that no row depends on the rows before it.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64), variant 13.
    """
    key = _mixed(_mixed(seed & _MASK) ^ (stream + 1))
    bits = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _mixed(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
