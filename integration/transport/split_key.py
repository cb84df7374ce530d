"""Names and keys of splits: the user's columns <-> the 63-bit ids in the sketches.

A string per row would cost several times as much as everything else, so the id of a split is a hash that the JVM
computes from the columns. Names are looked up: the same hash is computed here from names that are known otherwise (from
offsets of the source, ``splits=``, or a sample of the rows). A split with an unknown name is shown by its hash.

    one integer column   id = murmur(bigint)             any other   id = murmur(xxhash64(columns, seed 42))

Source: `org.apache.datasketches.hash.MurmurHash3` (seed 9001, first word, shifted right by one) and
`org.apache.spark.sql.catalyst.expressions.XxHash64`. Both are stable formats of those projects.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import mmh3
import xxhash
from lowmark.integration.errors import WrapRefused

from .python_values import BROKEN_TEXT

SplitValue = str | int | bool | bytes | dt.date | None

_SKETCH_SEED = 9001
_SPARK_SEED = 42
_INTEGRAL = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}  # bits
_HASHABLE = _INTEGRAL.keys() | {"string", "boolean", "date", "binary"}
# An id cannot be turned back into its integer, but partition numbers are small, so the first 65,536 are tried.
_TRIED_INTEGERS = 65_536


def quoted(column: str) -> str:
    """Quote a column's name for SQL.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + column.replace("`", "``") + "`"


def split_name(values: Iterable[object]) -> str:
    """Return the name of a split, the same in every place: its values joined by "/"; an empty string gives "".

    >>> split_name(("orders", 3)), split_name(("", None))
    ('orders/3', '""/null')
    """
    return "/".join(map(_shown, values))


@dataclass(frozen=True, slots=True)
class SplitKey:
    """The columns that identify a split, and their Spark types in short form ("string", "int", ...).

    >>> key = SplitKey(("topic", "partition"), ("string", "int"))
    >>> key.name(("orders", 3))
    'orders/3'
    >>> key.split_id(("orders", 3)) == key.split_id(("orders", 4))
    False
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, stream: str, columns: Sequence[str], types: Mapping[str, str]) -> SplitKey:
        """Check the columns a user named against the DataFrame's schema.

        Args:
            types: every column of the DataFrame -> its type in Spark's short form.

        Raises:
            WrapRefused: a column is missing, named twice, or of an unsupported type.
        """
        if not columns:
            raise WrapRefused(
                stream, "split names no column", 'pass split="partition" or split=["topic", "partition"].'
            )
        if len(set(columns)) != len(columns):
            raise WrapRefused(stream, f"split names a column twice: {list(columns)}", "name each column once.")
        for column in columns:
            if column not in types:
                known = ", ".join(sorted(types))
                raise WrapRefused(
                    stream,
                    f'split column "{column}" does not exist; there are: {known}',
                    "check the spelling.",
                )
            if types[column] not in _HASHABLE:
                raise WrapRefused(
                    stream,
                    f'split column "{column}" is {types[column]}, which cannot name a split',
                    f"cast it to string or to an integer type first. Types that can: {', '.join(sorted(_HASHABLE))}.",
                )
        return cls(tuple(columns), tuple(types[column] for column in columns))

    @property
    def integral(self) -> bool:
        """True for a single integer column, whose value itself is the sketch's key."""
        return len(self.types) == 1 and self.types[0] in _INTEGRAL

    @property
    def text(self) -> str:
        """Columns and types, such as "topic string, partition int"; equal for all types of one integer column."""
        if self.integral:
            return f"{self.columns[0]} integer"
        return ", ".join(f"{column} {kind}" for column, kind in zip(self.columns, self.types, strict=True))

    def expression(self) -> str:
        """Return the sketch's key as SQL: a bigint, null for a single integer column that is null."""
        if self.integral:  # sketches take int and bigint only, and hash both as bigint
            (column,), (kind,) = self.columns, self.types
            return quoted(column) if kind in ("int", "bigint") else f"cast({quoted(column)} as int)"
        return f"xxhash64({', '.join(map(quoted, self.columns))})"

    def any_null(self) -> str:
        """Return the SQL condition that a split column is null."""
        return " or ".join(f"{quoted(column)} is null" for column in self.columns)

    def split_id(self, values: Sequence[SplitValue]) -> int:
        """Return the id that the JVM's sketch gives to rows with these values: 0 to 2^63 - 1."""
        if self.integral:
            (value,) = values
            return _sketch_hash(_integer(value))
        seed = _SPARK_SEED
        for value, kind in zip(values, self.types, strict=True):
            if value is not None:
                seed = xxhash.xxh64_intdigest(_spark_bytes(value, kind), seed)
        return _sketch_hash(seed - (1 << 64) if seed >= 1 << 63 else seed)

    def name(self, values: Sequence[SplitValue]) -> str:
        r"""Return the name of a split; bytes that are no text are shown by their numbers.

        >>> print(SplitKey(("device",), ("string",)).name([b"a\xff".decode(errors=BROKEN_TEXT)]))
        a\udcff
        """
        return split_name(values).encode(errors="backslashreplace").decode()

    def declared(self, stream: str, splits: Iterable[object]) -> dict[int, str]:
        """Return id -> name of the user's ``splits=``: one value each for a single column, else a tuple or list each.

        Raises:
            WrapRefused: a value does not fit the columns.
        """
        named: dict[int, str] = {}
        for split in splits:
            values: tuple[object, ...] = tuple(split) if isinstance(split, tuple | list) else (split,)
            if len(values) != len(self.columns) or not all(map(_fits, values, self.types)):
                shape = ", ".join(f"{c} {t}" for c, t in zip(self.columns, self.types, strict=True))
                raise WrapRefused(
                    stream,
                    f"splits= holds {split!r}, which is no value of ({shape})",
                    "give one value for a single split column, a tuple in column order for several.",
                )
            named[self.split_id(values)] = self.name(values)  # type: ignore[arg-type]  # checked by _fits
        return named

    def fits(self, values: Sequence[object]) -> bool:
        """Whether a row may have these values: of the columns' types, or null."""
        return all(value is None or _fits(value, kind) for value, kind in zip(values, self.types, strict=True))

    def guessed_name(self, split: int) -> str | None:
        """Return the name of a split from its id alone; only small integers are found."""
        return _small_integers().get(split) if self.integral else None


@cache
def _small_integers() -> dict[int, str]:
    return {_sketch_hash(n): str(n) for n in range(_TRIED_INTEGERS)}


def _sketch_hash(key: int) -> int:
    return mmh3.hash64(key.to_bytes(8, "little", signed=True), seed=_SKETCH_SEED, signed=False)[0] >> 1


def _spark_bytes(value: SplitValue, kind: str) -> bytes:
    match value:
        case str():
            return value.encode(errors=BROKEN_TEXT)
        case bytes():
            return value
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days.to_bytes(4, "little", signed=True)
        case _:  # XxHash64 hashes everything up to int as 4 bytes, bigint as 8
            return _integer(value).to_bytes(8 if kind == "bigint" else 4, "little", signed=True)


def _integer(value: SplitValue) -> int:
    assert isinstance(value, int), value
    return int(value)


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str) and _has_bytes(value)
        case "binary":
            return isinstance(value, bytes)
        case "date":
            return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        case "boolean":
            return isinstance(value, bool)
        case _:
            half = 1 << _INTEGRAL[kind] - 1
            return isinstance(value, int) and not isinstance(value, bool) and -half <= value < half


def _has_bytes(text: str) -> bool:
    """Whether a row may have this text; half of a character is none that a row has."""
    try:
        text.encode(errors=BROKEN_TEXT)
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case "":
            return '""'
        case bytes():
            return value.hex()
        case _:
            return str(value)
