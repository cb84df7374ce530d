"""Cuts files into steps, and reads steps: parquet by its row groups, text in steps of `STEP_ROWS` rows.

A step is the smallest part of a file that is read alone; a position is the number of a step. Each format has

    schema      the columns in the file's own types
    index       the number of rows and the largest event time of each step. Parquet keeps both in its footer; a text
                file is read through once for its index
    read        (rows, the position after them) of the steps from `start` up to and without `stop`. A step may come in
                pieces: after each but the last, the position is still that of the step

An unreadable file raises one of `UNREADABLE`.

Times without a zone are UTC. A file whose columns differ from the schema is read as far as it fits: missing columns
are null, other columns are left out, and values are converted if the conversion loses nothing.

One file, because all formats are cut into steps alike, and fit their rows to the schema in one way.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, fs, json, parquet

STEP_ROWS = 4_096
"""Number of rows of a step of a text file."""

TIME = pa.timestamp("us", tz="UTC")
_BATCH_ROWS = 65_536
_PIECE_BYTES = 64 << 20  # of a row group at once, by the mean size that its file tells
_US_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}
_Integers: TypeAlias = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).min  # in arrays of largest times: the step has no event time
_NO_TIME = np.iinfo(np.int64).max  # the same in arrays of smallest times
_BLANK_BYTES = 4_096  # a file of blanks of this size at most counts as empty
_JSON_BLOCK_BYTES = 16 << 20
_MOST_LINE_BYTES = 32 << 20  # of JSON
QUOTED = csv.ParseOptions(newlines_in_values=True)
"""By default Arrow takes a line break in quotes for the end of a row where it cuts a file into blocks of a megabyte."""
_PACKINGS: dict[str, Literal["gzip", "bz2", "lz4", "zstd"]]
_PACKINGS = {".gz": "gzip", ".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd"}
UNREADABLE = OSError, pa.ArrowException, UnicodeDecodeError
"""The errors of an unreadable file; the last is of a column's name that is no UTF-8."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file as it was found, on its file system."""

    filesystem: fs.FileSystem
    path: str
    size_bytes: int  # 0: unknown


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The rows, sizes and event times of a file's steps; arrays of int64."""

    rows: _Integers  # before each step and, last, in the file; shape (steps + 1,)
    size_bytes: _Integers  # before each step and, last, in the file; shape (steps + 1,)
    latest_us: _Integers  # largest event time of each step, `_NEVER` without one; shape (steps,)
    earliest_us: _Integers  # smallest event time of each step, `_NO_TIME` without one; shape (steps,)

    @property
    def steps(self) -> int:
        return len(self.rows) - 1

    def first_step(self, time_us: int) -> int | None:
        later = np.flatnonzero((self.latest_us >= time_us) & (self.latest_us != _NEVER))
        return int(later[0]) if len(later) else None

    def earliest_from(self, step: int) -> int | None:
        earliest_us = int(self.earliest_us[step:].min(initial=_NO_TIME))
        return None if earliest_us == _NO_TIME else earliest_us


class ParquetFormat:
    """A step is a row group."""

    def schema(self, placed: PlacedFile) -> pa.Schema:
        return parquet.read_schema(placed.path, filesystem=placed.filesystem)

    def index(self, placed: PlacedFile, schema: pa.Schema, event_time: str | None) -> FileIndex:
        del schema  # the footer has it
        with _opened(placed) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            rows, sizes = _sums(group.num_rows for group in groups), _sums(group.total_byte_size for group in groups)
            ends = np.array(_ends_us(file, event_time), np.int64).reshape(len(groups), 2)
            return FileIndex(rows, sizes, ends[:, 1], ends[:, 0])

    def read(self, placed: PlacedFile, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[pa.Table, int]]:
        with _opened(placed) as file:
            here = _there(file, schema.names)
            for group in range(start, min(stop, file.metadata.num_row_groups)):
                left = file.metadata.row_group(group).num_rows
                for piece in _pieces(file, group, here):
                    left -= piece.num_rows
                    yield _fitted(piece, schema), group if left else group + 1


def _opened(placed: PlacedFile) -> parquet.ParquetFile:
    # Spark writes times as INT96. Arrow takes them for nanoseconds, which wrap round before 1677 and after 2262.
    return parquet.ParquetFile(placed.path, filesystem=placed.filesystem, coerce_int96_timestamp_unit="us")


def _there(file: parquet.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Return the columns that a file has, each once. Raises ArrowInvalid."""
    found = Counter(file.schema_arrow.names)
    if twice := [name for name in columns if found[name] > 1]:
        raise pa.ArrowInvalid(f"column {twice[0]!r} is there more than once")
    return [name for name in columns if name in found]


def _pieces(file: parquet.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a row group, so few at once that a text which many of them share is not unpacked for all."""
    metadata = file.metadata.row_group(group)
    rows = min(STEP_ROWS, max(1, _PIECE_BYTES * metadata.num_rows // max(1, metadata.total_byte_size)))
    for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
        yield pa.Table.from_batches([batch])


def _ends_us(file: parquet.ParquetFile, column: str | None) -> list[tuple[int, int]]:
    """The smallest and the largest event time of each row group, from the statistics or from the column itself."""
    groups = range(file.metadata.num_row_groups)
    if column is None or not _there(file, [column]):
        return [(_NO_TIME, _NEVER)] * len(groups)
    # By the schema, because Arrow ends the process if it is asked for an encrypted column without its key.
    paths = (file.schema.column(at).path for at in range(len(file.schema)))
    found = [at for at, path in enumerate(paths) if path == column]  # `a.b` may also be the field b of a column a
    place = found[0] if len(found) == 1 else None
    return [_ends_of_group_us(file, group, column, place) for group in groups]


def _ends_of_group_us(file: parquet.ParquetFile, group: int, column: str, place: int | None) -> tuple[int, int]:
    """The ends of a row group; `place` is that of the column among the file's, None if it is not known."""
    kind = file.schema_arrow.field(column).type
    metadata = file.metadata.row_group(group)
    chunk = None if place is None else metadata.column(place)
    statistics = None if chunk is None or chunk.physical_type != "INT64" else chunk.statistics
    if statistics is not None and pa.types.is_timestamp(kind):
        if statistics.has_min_max and (raw := statistics.max_raw) is not None:
            least: Any = statistics.min_raw
            return _raw_us(least, kind.unit), _raw_us(raw, kind.unit)
        if statistics.null_count == metadata.num_rows:
            return _NO_TIME, _NEVER
    ends = [_ends(_utc(piece.column(column))) for piece in _pieces(file, group, [column])]
    return min((first for first, _ in ends), default=_NO_TIME), max((last for _, last in ends), default=_NEVER)


def _raw_us(raw: int, unit: str) -> int:
    """Microseconds, cut off toward zero as Arrow's cast does."""
    if unit == "ns":
        return raw // 1_000 if raw >= 0 else -(-raw // 1_000)
    us = raw * _US_PER[unit]
    if not -(2**63) <= us < 2**63:
        raise pa.ArrowInvalid(f"the time {raw} {unit} does not fit into 64 bits of microseconds")
    return us


class TextFormat(ABC):
    """A step is `STEP_ROWS` rows; the last step has the rest."""

    _lines_of_names: ClassVar[int] = 0

    def index(self, placed: PlacedFile, schema: pa.Schema, event_time: str | None) -> FileIndex:
        columns = schema if event_time is None else pa.schema([schema.field(event_time)])
        count, times = 0, []
        for rows in self._rows(placed, columns):
            count += rows.num_rows
            if event_time is not None:
                times.append(_utc(rows.column(event_time)).cast(pa.int64()))
        edges = np.append(np.arange(0, count, STEP_ROWS, dtype=np.int64), count)
        latest_us = _by_step(np.maximum, times, _NEVER, edges)
        earliest_us = _by_step(np.minimum, times, _NO_TIME, edges)
        # By Python's integers, because rows times bytes of a large file pass 64 bits.
        sizes = np.array([edge * placed.size_bytes // max(1, count) for edge in edges.tolist()], np.int64)
        return FileIndex(edges, sizes, latest_us, earliest_us)

    def read(self, placed: PlacedFile, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[pa.Table, int]]:
        position, skip, kept = start, start * STEP_ROWS, pa.Table.from_batches([], schema)
        for rows in self._rows(placed, schema):
            rest = rows.slice(min(skip, rows.num_rows))
            skip -= rows.num_rows - rest.num_rows
            kept = pa.concat_tables([kept, _fitted(pa.Table.from_batches([rest]), schema)])
            steps = min(kept.num_rows // STEP_ROWS, stop - position)
            if steps:
                position += steps
                yield kept.slice(0, steps * STEP_ROWS), position
                kept = kept.slice(steps * STEP_ROWS)
            if position == stop:
                return
        if kept.num_rows:
            yield kept, position + 1

    def _rows(self, placed: PlacedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; none of an empty file, or of one with a line of names alone: Arrow refuses both."""
        try:
            yield from self._stream(_text(placed), schema)
        except pa.ArrowInvalid:
            with _text(placed) as stream:
                if not is_without_rows(stream, self._lines_of_names):
                    raise

    @abstractmethod
    def _stream(self, text: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that is not empty, with the columns of `schema`, in batches of any size."""


class CsvFormat(TextFormat):
    """CSV with a line of names at the top; compressed if the file's name says so (.gz, .bz2, .zst).

    Arrow closes the files, because its threads still read ahead when the rows are left early: in a file that was closed
    here they would read from the next file that has the same descriptor.
    """

    _lines_of_names = 1

    def schema(self, placed: PlacedFile) -> pa.Schema:
        with csv.open_csv(_text(placed), parse_options=QUOTED) as rows:
            # A time of day stays text, because Arrow makes no number of such a text.
            return _as_text(rows.schema, pa.types.is_time)

    def _stream(self, text: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Times are read as text and converted by `_utc`, because Arrow takes no more than 6 digits of a second, and in
        # csv only all with or all without a zone.
        types = _as_text(schema, pa.types.is_timestamp)
        convert = csv.ConvertOptions(column_types=types, include_columns=schema.names, include_missing_columns=True)
        with csv.open_csv(text, parse_options=QUOTED, convert_options=convert) as rows:
            yield from rows


def is_without_rows(stream: Any, lines_of_names: int) -> bool:
    """Whether a text file, open at its begin, has no more than its lines of names."""
    lines = stream.read(_BLANK_BYTES).strip().splitlines()
    return len(lines) <= lines_of_names and not stream.read(1)


def _as_text(schema: pa.Schema, of: Callable[[pa.DataType], bool]) -> pa.Schema:
    """The columns, those of some types as text."""
    return pa.schema([each.with_type(pa.string()) if of(each.type) else each for each in schema])


def _text(placed: PlacedFile) -> Any:
    """Open a text, unpacked. Raises OSError for one that is shorter than it was found.

    The client of S3 takes an answer that is cut in its headers for an empty one, and then the file for an empty file.
    """
    file = placed.filesystem.open_input_file(placed.path)
    if placed.size_bytes and (size := file.size()) < placed.size_bytes:
        file.close()
        raise OSError(f"it had {placed.size_bytes} bytes when it was found, and has {size}")
    packing = next((packing for ending, packing in _PACKINGS.items() if placed.path.endswith(ending)), None)
    return file if packing is None else pa.CompressedInputStream(file, packing)


class JsonFormat(TextFormat):
    """JSON with one object in each line."""

    def schema(self, placed: PlacedFile) -> pa.Schema:
        for rows in _objects(_text(placed), None):
            return rows.schema
        raise pa.ArrowInvalid("it has no object")

    def _stream(self, text: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        types = _as_text(schema, pa.types.is_timestamp)  # as in csv
        parse = json.ParseOptions(explicit_schema=types, unexpected_field_behavior="ignore")
        for rows in _objects(text, parse):
            yield from rows.to_batches(_BATCH_ROWS)


def _objects(text: Any, parse: json.ParseOptions | None) -> Iterator[pa.Table]:
    """The rows of whole lines, a block at a time. Arrow's dataset reads no column that the first block has not."""
    rest = b""
    with text as stream:
        block = stream.read(_JSON_BLOCK_BYTES)
        while block:
            lines, block = rest + block, stream.read(_JSON_BLOCK_BYTES)
            lines, _, rest = lines.rpartition(b"\n") if block else (lines, b"", b"")
            if len(rest) > _MOST_LINE_BYTES:
                raise pa.ArrowInvalid(f"a line of it takes more than {_MOST_LINE_BYTES >> 20} MiB")
            if re.match(rb"\s*null", lines):  # Arrow would end the process
                raise pa.ArrowInvalid("a line of it is null, and no object")
            if lines.strip():  # Arrow refuses a text without an object
                yield json.read_json(BytesIO(lines), json.ReadOptions(block_size=len(lines)), parse)


FORMATS: dict[str, ParquetFormat | CsvFormat | JsonFormat] = {
    "parquet": ParquetFormat(),
    "csv": CsvFormat(),
    "json": JsonFormat(),
}
"""The formats by the names in `FileSource`'s `format`."""


def spark_schema(schema: pa.Schema, *, event_time: str | None) -> pa.Schema:
    """Return a file's columns in types of Spark: times in UTC microseconds, no dictionaries, no views.

    If the event-time column is text in the file, it becomes a time.

    >>> spark_schema(pa.schema([("t", pa.timestamp("ns")), ("s", pa.large_string())]), event_time="t")
    t: timestamp[us, tz=UTC]
    s: string
    """
    return pa.schema(
        [
            pa.field(each.name, TIME if each.name == event_time and _is_text(each.type) else _spark_type(each.type))
            for each in schema
        ]
    )


def _spark_type(kind: Any) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return TIME
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _spark_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    simple: list[tuple[Any, pa.DataType]] = [
        (_is_text, pa.string()),
        (pa.types.is_large_binary, pa.binary()),
        (pa.types.is_binary_view, pa.binary()),
        (pa.types.is_fixed_size_binary, pa.binary()),
        (pa.types.is_float16, pa.float32()),
        (pa.types.is_uint8, pa.int16()),
        (pa.types.is_uint16, pa.int32()),
        (pa.types.is_uint32, pa.int64()),
        (pa.types.is_uint64, pa.decimal128(20)),
        (pa.types.is_time32, pa.int32()),
        (pa.types.is_time64, pa.int64()),
        (pa.types.is_date64, pa.date32()),
        (pa.types.is_duration, pa.duration("us")),
        (pa.types.is_null, pa.string()),
    ]
    return next((ours for of, ours in simple if of(kind)), kind)


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table([_converted(table, field) for field in schema], schema=schema)


def _converted(table: pa.Table, field: pa.Field[Any]) -> Any:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    if column.type == field.type:
        return column
    if pa.types.is_timestamp(field.type):
        return _utc(column)
    return column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))


def _utc(column: Any) -> Any:
    """Times and days as `TIME`, parts of a microsecond cut off; texts with or without a zone."""
    if _is_text(column.type):
        text = column.cast(pa.string())
        text = pc.if_else(pc.equal(text, pa.scalar("")), None, text)
        zoned = pc.match_substring_regex(text, r"(Z|[+-]\d\d(:?\d\d)?)$")
        dated = pc.match_substring_regex(text, r"^[^T ]*$")  # a day alone: its sign is no zone
        text = pc.if_else(dated, pc.binary_join_element_wise(text, "T00:00:00Z", ""), text)
        text = pc.if_else(pc.or_(zoned, dated), text, pc.binary_join_element_wise(text, "Z", ""))
        try:
            return text.cast(TIME)
        except pa.ArrowInvalid:  # Java and Go write nine digits of a second, Arrow takes six
            text = pc.replace_substring_regex(text, r"(\.\d{6})\d+", r"\1")
        try:
            return text.cast(TIME)
        except pa.ArrowInvalid as failed:  # it names the text with the zone that was added here
            wrong = next(as_written for as_written, zoned in zip(column, text, strict=True) if not _is_time(zoned))
            raise pa.ArrowInvalid(f"the text {wrong.as_py()!r:.100} is no time of ISO 8601") from failed
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type) or pa.types.is_null(column.type):
        return column.cast(options=pc.CastOptions(TIME, allow_time_truncate=True))
    raise pa.ArrowInvalid(f"a time is expected, and the column is {column.type}")


def _is_time(text: Any) -> bool:
    """Whether Arrow reads a text, with a zone, as a time."""
    try:
        text.cast(TIME)
    except pa.ArrowInvalid:
        return False
    return True


def _ends(times: Any) -> tuple[int, int]:
    micros = times.cast(pa.int64())
    smallest, largest = pc.min(micros).as_py(), pc.max(micros).as_py()
    return (_NO_TIME, _NEVER) if smallest is None or largest is None else (int(smallest), int(largest))


def _by_step(fold: np.ufunc, times: list[Any], missing: int, edges: _Integers) -> _Integers:
    if not times or edges[-1] == 0:
        return np.full(len(edges) - 1, missing, np.int64)
    filled = [pc.fill_null(part, missing).to_numpy(zero_copy_only=False) for part in times]
    return fold.reduceat(np.concatenate(filled), edges[:-1])


def _sums(counts: Any) -> _Integers:
    return np.cumsum(np.array([0, *counts], np.int64))
