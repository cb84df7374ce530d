"""Audits files in the order of Spark's file source: oldest first, one or more files per batch.

A file is read in pieces of some thousand rows, and only in the columns that are needed. JSON is read line by line, so a
broken line costs only itself. A broken file of another kind is reported, and the other files are read.

The files come from strangers: a link in a folder is skipped and reported, and the unpacked size of a file's pieces is
bounded.

One file, because formats, pieces and faults of a file are met in one loop over its pieces.
"""

from __future__ import annotations

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import split_name
from lowmark.sources.files.formats import is_without_rows
from lowmark.watermark import format_duration_us
from lowmark.watermark.printable import counted, first_line
from lowmark.watermark.replay.report import AuditReport

from . import delta
from .audit import Audit, Question
from .cuts import AsRead
from .event_time import EventTimes, TimeReader, field_values, json_path

_PARQUET, _CSV, _JSON = (".parquet", ".pq"), (".csv",), (".json", ".jsonl", ".ndjson")
_GZIP = ".gz"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_PIECE_ROWS = 65_536
_BATCH_ROWS = 1_000_000
"""A larger batch is taken as several, to bound the memory."""
_GUESSED_ROW_BYTES = 100
_PIECE_BYTES = _PIECE_ROWS * _GUESSED_ROW_BYTES  # of JSON
_GUESSED_PACKING = 5  # guessed ratio of gzip
_BRONZE = ("topic", "partition")
_IS = "is", "are"
_MOST_SPLITS = 100_000
_UNREADABLE_NAMED = 3
_MOST_BYTES = 1 << 28
"""Most bytes of a file in memory: unpacked columns of a row group, a piece of them as texts, or a line of JSON."""


class _File(NamedTuple):
    """A listed file; files sort by age, oldest first, then by name."""

    written_ns: int
    path: Path
    size_bytes: int

    @property
    def kind(self) -> str:
        return _kind(self.path)


@dataclass
class FilesAudit:
    """One audit of files."""

    path: Path
    question: Question
    event_time: str | None  # the column; None: `timestamp`, or the only column of that type
    split: tuple[str, ...]  # columns of the split; empty: topic and partition if they exist, else the file
    reader: TimeReader
    now_us: int
    stop: Callable[[], bool] = bool  # called often; True ends the reading, and the report covers the rows so far
    progress: Callable[[int, int], None] = lambda _read, _total: None  # called with the bytes read, and all bytes
    _notes: list[str] = field(default_factory=list, init=False)
    _numbers: dict[str, int] = field(default_factory=dict, init=False)
    _split_fields: set[str] = field(default_factory=set, init=False)  # columns of the split that a row has had
    _left_out_rows: int = field(default=0, init=False)  # of CSV, with more or fewer values than the first line
    _complete: bool = field(default=True, init=False)  # whether every folder could be listed

    def run(self) -> AuditReport:
        """Read the files, and return the report.

        Raises:
            AuditImpossible: there is nothing to audit.
            KeyboardInterrupt: `stop` ended the reading before the first row.
        """
        files = self._files()
        size = sum(file.size_bytes for file in files)
        cut = AsRead(self.now_us)
        audit = Audit([], cut, self.question, self.now_us, timed=False)
        read, in_batch, trigger, unreadable = 0, 0, -1, 0
        for file in files:
            if self.question.trigger_us is not None:
                due = file.written_ns // 1_000 // self.question.trigger_us
                if due != trigger:
                    cut.batch_over()
                trigger = due
            before = audit.rows
            try:
                self._read(file, audit, cut)
            except (OSError, pa.ArrowException, UnicodeDecodeError, EOFError, zlib.error) as broken:
                unreadable += 1
                if unreadable <= _UNREADABLE_NAMED:
                    self._notes.append(f"{self._name(file)} cannot be read: {first_line(broken):.200}")
            in_batch += audit.rows - before
            if self.question.trigger_us is None and in_batch >= (self.question.rows_per_batch or 1):
                cut.batch_over()
                in_batch = 0
            audit.advance()
            read += file.size_bytes
            self.progress(read, size)
            if self.stop():
                break
        if unreadable > _UNREADABLE_NAMED:
            self._notes.append(f"{unreadable} files in all cannot be read")
        if left_out := self._left_out_rows:
            rows = counted(left_out, "CSV row", _IS)
            self._notes.append(f"{rows} left out: not as many values as in the first line")
        self._check(audit, files)
        notes = [*self._notes, *self.reader.notes]
        if self.stop():
            notes.append("interrupted: this is what was read by then")
        return audit.report(
            what=f"{_text(str(self.path))}, {counted(audit.rows, 'row')} of {counted(len(files), 'file')}",
            order=self._order(),
            event_time=f"column {self.event_time}",
            complete=self._complete and not self.stop() and unreadable == 0 and not left_out,
            notes=notes,
        )

    def _order(self) -> str:
        begin = "as Spark's file source reads them, the oldest first, "
        if self.question.trigger_us is not None:
            return (
                f"{begin}a batch for every {format_duration_us(self.question.trigger_us)} in which files were written"
            )
        if self.question.rows_per_batch is not None:
            return f"{begin}whole files up to {self.question.rows_per_batch:,} rows a batch"
        return f"{begin}a file a batch (maxFilesPerTrigger=1)"

    def _check(self, audit: Audit, files: Sequence[_File]) -> None:
        if audit.rows == 0:
            if self.stop():
                raise KeyboardInterrupt
            why = f": {self._notes[0]}" if self._notes else ""
            hold = "holds" if len(files) == 1 else "hold"
            raise AuditImpossible(
                f"{counted(len(files), 'file')} below {str(self.path)!r:.200} {hold} no row{why}",
                "audit them once they do.",
            )
        if (counts := audit.why_no_times()) is not None:
            raise AuditImpossible(
                f"none of {audit.rows:,} rows has a usable event time in {self.event_time!r:.100}: {counts}",
                "name the column with --event-time, and how it is written with --unit or --format."
                + (" Each line of a JSON file is read as one object." if files[0].kind in _JSON else ""),
            )
        if without := [name for name in self.split if name not in self._split_fields]:
            raise AuditImpossible(
                f"none of {audit.rows:,} rows has a value in {without[0]!r:.100}, so it tells no split",
                "name the columns of the split with --split.",
            )

    def _files(self) -> list[_File]:
        """The files to read, the oldest first."""
        try:
            if not self.path.exists():
                raise AuditImpossible(f"{str(self.path)!r:.200} does not exist", "check the path.")
            known = sorted(self._listed())
        except OSError as failed:
            raise AuditImpossible(
                f"{str(self.path)!r:.200} cannot be listed: {failed.strerror}", "check the path."
            ) from failed
        if not known:
            raise AuditImpossible(
                f"no parquet, CSV or JSON file below {str(self.path)!r:.200}",
                "files end with .parquet, .csv, .json, .jsonl or .ndjson, the last four also with .gz behind.",
            )
        if self.question.last_us is not None:
            since_ns = (self.now_us - self.question.last_us) * 1_000
            known = [each for each in known if each.written_ns >= since_ns]
            if not known:
                raise AuditImpossible(
                    f"no file below {str(self.path)!r:.200} was written in the last "
                    f"{format_duration_us(self.question.last_us)}",
                    "ask for more with --last, for the newest rows with --rows, or for --all.",
                )
        if self.question.rows is not None:
            rows, first = 0, len(known)
            while first and rows < self.question.rows:
                first -= 1
                rows += _rows(known[first])
            if first:
                self._notes.append(f"{counted(first, 'older file', _IS)} left out (--all reads them, too)")
            known = known[first:]
        return known

    def _listed(self) -> Iterator[_File]:
        """The files of a known kind that Spark does not ignore; of a Delta table, those of its newest version."""
        if (self.path / "_delta_log").is_dir():
            yield from map(_File._make, delta.live_files(self.path))
            return
        links = 0
        for path in [self.path] if self.path.is_file() else self._below():
            if _kind(path) in (*_PARQUET, *_CSV, *_JSON):
                with suppress(FileNotFoundError):
                    stat = path.stat() if path == self.path else path.lstat()
                    links += S_ISLNK(stat.st_mode)
                    if S_ISREG(stat.st_mode):
                        yield _File(stat.st_mtime_ns, path, stat.st_size)
        if links:
            self._notes.append(f"{counted(links, 'link', _IS)} passed over: name a file itself to read it")

    def _below(self) -> Iterator[Path]:
        """All below the folder that Spark does not ignore. Raises OSError: the folder itself cannot be listed."""
        for folder, folders, names in os.walk(self.path, onerror=self._miss):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            yield from (Path(folder, name) for name in (*folders, *names) if not _is_hidden(name))

    def _miss(self, failed: OSError) -> None:
        folder = Path(failed.filename)
        if folder == self.path:
            raise failed
        self._complete = False
        self._notes.append(f"{_text(str(folder.relative_to(self.path)))} cannot be listed: {failed.strerror}")

    def _name(self, file: _File) -> str:
        """The path below the audited folder, because files of several folders may have one name."""
        return _text(str(file.path.relative_to(self.path)) if file.path != self.path else file.path.name)

    # -- reading

    def _read(self, file: _File, audit: Audit, cut: AsRead) -> None:
        unbroken = 0
        for times, splits in self._pieces(file):
            if splits is None:
                names, split_of = np.array([self._name(file)], object), np.zeros(len(times.timed), np.intp)
            else:
                names, split_of = np.unique(splits, return_inverse=True)
            new = [name for name in names if name not in self._numbers]
            if len(self._numbers) + len(new) > _MOST_SPLITS:
                raise AuditImpossible(
                    f"there are more than {_MOST_SPLITS:,} splits", "name another column with --split."
                )
            self._numbers |= {name: len(self._numbers) + at for at, name in enumerate(new)}
            audit.discover(new)
            by_split = np.argsort(split_of, kind="stable")
            ends = np.cumsum(np.bincount(split_of, minlength=len(names)))
            for name, rows in zip(names, np.split(by_split, ends)[:-1], strict=True):
                audit.add(self._numbers[name], rows, times.of(rows), written_us=None)
            unbroken += len(times.timed)
            if unbroken >= _BATCH_ROWS:
                cut.batch_over()
                audit.advance()
                note = f"batches of more than {_BATCH_ROWS:,} rows are taken as several"
                if note not in self._notes:
                    self._notes.append(note)
                unbroken = 0
            if self.stop():
                return

    def _pieces(self, file: _File) -> Iterator[tuple[EventTimes, Any]]:
        folders = _partition_values(file.path.relative_to(self.path)) if file.path != self.path else {}
        if file.kind in _JSON:
            yield from self._json_pieces(file.path, folders)
            return
        columns = partial(self._columns, file, folders)
        pieces = _parquet(file.path, columns) if file.kind in _PARQUET else _csv(file.path, columns, self._leave_out)
        for batch in pieces:
            assert self.event_time is not None, "settled with the columns"
            times = self.reader.column(_column(batch, self.event_time, folders))
            yield times, self._named([_column(batch, name, folders).to_pylist() for name in self.split])

    def _leave_out(self, _row: object) -> Literal["skip"]:
        self._left_out_rows += 1
        return "skip"

    def _json_pieces(self, file: Path, folders: Mapping[str, str | None]) -> Iterator[tuple[EventTimes, Any]]:
        if self.event_time is None:
            raise AuditImpossible("JSON files have no columns of times", "name the field: --event-time '$.paid_at'.")
        path = json_path(self.event_time)
        self._choose_split(folders)
        with gzip.open(file) if file.suffix.lower() == _GZIP else file.open("rb") as opened:
            for piece in _lines(opened):
                rows = [line for line in piece if line.strip()]
                if rows:
                    columns = [
                        [folders[name]] * len(rows) if name in folders else field_values(rows, json_path(name))[0]
                        for name in self.split
                    ]
                    if self.event_time in folders:
                        times = self.reader.column(pa.array([folders[self.event_time]] * len(rows), pa.string()))
                    else:
                        times = self.reader.payloads(rows, path)
                    yield times, self._named(columns)

    def _named(self, columns: Sequence[Sequence[Any]]) -> Any:
        """Return the name of each row's split; None without columns of the split."""
        told = zip(self.split, columns, strict=True)
        self._split_fields |= {name for name, column in told if any(value is not None for value in column)}
        return _split_names(columns) if columns else None

    def _choose_split(self, known: Collection[str]) -> None:
        if not self.split and set(_BRONZE) <= set(known):
            self.split = _BRONZE

    def _columns(self, file: _File, folders: Mapping[str, str | None], schema: pa.Schema) -> list[str]:
        """Return the columns to read from a file, without those in folder names. The first file decides the choice.

        Raises:
            AuditImpossible: the first file lacks a column, or has a column twice.
            OSError: a later file does.
        """
        if self.event_time is not None and self.event_time.startswith("$."):
            self.event_time = self.event_time[2:]
        if self.event_time is None:
            times = [each.name for each in schema if pa.types.is_timestamp(each.type)]
            if "timestamp" not in times and len(times) != 1:
                raise AuditImpossible(
                    f"it is not clear which column is event time; there are: {', '.join(schema.names):.300}",
                    "name it with --event-time.",
                )
            self.event_time = "timestamp" if "timestamp" in times else times[0]
        known = [*schema.names, *folders]
        self._choose_split(known)
        wanted = [self.event_time, *self.split]
        for name in wanted:
            twice = name not in folders and schema.names.count(name) > 1
            if twice or name not in known:
                many = "more than one" if twice else "no"
                why = f"there is {many} column {name!r:.100}; there are: {', '.join(known):.300}"
                if self._numbers:
                    raise OSError(why)
                within = "name a whole column: a field within one is read from JSON alone."
                raise AuditImpossible(
                    f"{self._name(file)}: {why}", within if name.split(".")[0] in known else "check the spelling."
                )
        return [name for name in dict.fromkeys(wanted) if name not in folders]


def _kind(path: Path) -> str:
    """The end of a file's name, without ``.gz``; a gzipped parquet file has no kind, because parquet packs within."""
    inner = path.with_suffix("").suffix.lower() if path.suffix.lower() == _GZIP else path.suffix.lower()
    return "" if path.suffix.lower() == _GZIP and inner in _PARQUET else inner


def _partition_values(path: Path) -> dict[str, str | None]:
    """The columns in the names of a file's folders, as Hive and Spark write them.

    >>> _partition_values(Path("day=2026-11-24/region=a%2Fb/0.parquet"))
    {'day': '2026-11-24', 'region': 'a/b'}
    """
    parts = [part.partition("=") for part in path.parts[:-1]]
    return {unquote(name): None if value == _HIVE_NULL else unquote(value) for name, is_one, value in parts if is_one}


def _is_hidden(name: str) -> bool:
    """Whether Spark ignores a name: `_delta_log`, `_temporary`, a leading dot; partitions (`_kind=a`) do not count."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _rows(file: _File) -> int:
    """About how many rows a file has."""
    if file.kind in _PARQUET:
        from pyarrow import parquet

        try:
            with file.path.open("rb") as raw:
                return int(parquet.read_metadata(raw).num_rows)
        except (OSError, pa.ArrowException):
            return 0
    packed = file.path.suffix.lower() == _GZIP
    return file.size_bytes * (_GUESSED_PACKING if packed else 1) // _GUESSED_ROW_BYTES + 1


def _text(name: str) -> str:
    """The name, even if it is no UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _parquet(file: Path, columns: Callable[[pa.Schema], list[str]]) -> Iterator[pa.RecordBatch]:
    """Pieces of the wanted columns. Raises OSError: a row group would not fit into memory."""
    from pyarrow import parquet

    with file.open("rb") as raw, parquet.ParquetFile(raw) as opened:
        schema = opened.schema_arrow
        wanted = columns(schema)
        _check_size(max(_unpacked(opened, wanted), default=0))
    # Parquet stores a repeated text once; dictionary columns keep it so in memory.
    texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
    # As nanoseconds, Spark's INT96 wraps round before 1677 and after 2262.
    options: Any = {"read_dictionary": texts, "coerce_int96_timestamp_unit": "us"}
    with file.open("rb") as raw, parquet.ParquetFile(raw, **options) as opened:
        yield from opened.iter_batches(_PIECE_ROWS, columns=wanted)


def _unpacked(file: Any, wanted: Sequence[str]) -> Iterator[int]:
    """The bytes of each wanted column in each row group, as stated in the file."""
    # By the schema, because Arrow ends the process if it is asked for an encrypted column without its key.
    paths = [f"{file.schema.column(at).path}." for at in range(len(file.schema))]
    begins = tuple(f"{name}." for name in wanted)
    columns = [at for at, path in enumerate(paths) if path.startswith(begins)]  # also within a struct
    for group in range(file.num_row_groups):
        metadata = file.metadata.row_group(group)
        yield from (metadata.column(at).total_uncompressed_size for at in columns)


def _column(batch: pa.RecordBatch, name: str, folders: Mapping[str, str | None]) -> Any:
    """A column of a piece, with its texts spelled out; or the value in a folder's name, for each row."""
    if name in folders:
        return pa.array([folders[name]] * batch.num_rows, pa.string())
    return _spelled(batch.column(name))


def _spelled(column: Any) -> Any:
    """The texts of a dictionary column; another column as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    sizes = pc.binary_length(column.dictionary)
    _check_size(pc.sum(pc.take(sizes, column.indices)).as_py() or 0)
    return column.cast(column.type.value_type)


def _check_size(size_bytes: int) -> None:
    if size_bytes > _MOST_BYTES:
        raise OSError(f"a piece of its columns takes {size_bytes >> 20:,} MiB, and {_MOST_BYTES >> 20} are read")


def _stream(file: Path) -> Any:
    """The unpacked bytes of a file. Opened here, because pyarrow opens no file whose name is no UTF-8."""
    raw = file.open("rb")
    return pa.input_stream(raw, compression="gzip") if file.suffix.lower() == _GZIP else raw


def _csv(
    file: Path, columns: Callable[[pa.Schema], list[str]], leave_out: Callable[[object], Literal["skip"]]
) -> Iterator[pa.RecordBatch]:
    """Pieces of the wanted columns. `leave_out` is called with each row of another length than the first."""
    from pyarrow import csv

    with _stream(file) as raw:
        if is_without_rows(raw, lines_of_names=1):  # Arrow refuses such a file
            return
    parse = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
    with _stream(file) as raw, csv.open_csv(raw, parse_options=parse) as opened:
        schema = opened.schema
    wanted = columns(schema)
    # As texts, because a type guessed from the first rows may not fit the others, and one bad time must not end the
    # file. An empty cell is null, as in Spark.
    options = csv.ConvertOptions(
        include_columns=wanted,
        column_types=dict.fromkeys(wanted, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    parse = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=leave_out)
    with _stream(file) as raw, csv.open_csv(raw, parse_options=parse, convert_options=options) as opened:
        yield from opened


def _lines(opened: Any) -> Iterator[list[bytes]]:
    """Pieces of some lines. Raises OSError: a line would not fit into memory."""
    rest = opened.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
    while block := opened.read(_PIECE_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _MOST_BYTES:
            raise OSError(f"a line of it takes more than {_MOST_BYTES >> 20} MiB, the most that is read at a time")
        yield lines
    yield [rest]


def _split_names(columns: Sequence[Sequence[object]]) -> Any:
    """The names of the rows' splits, as the service shows them."""
    # Python takes 1, 1.0 and True for one key.
    told = ([str(each) if isinstance(each, float | bool) else each for each in column] for column in columns)
    rows = list(zip(*told, strict=True))
    try:
        names = {values: split_name(values) for values in set(rows)}  # many rows, few splits
    except TypeError:  # lists and structs
        return np.array([split_name(values) for values in rows], dtype=object)
    return np.array([names[values] for values in rows], dtype=object)
