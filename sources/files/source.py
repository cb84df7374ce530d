"""Files as a source: one split for each file, with new files found while running, in event-time order by known times.

    position     a step of the file: a row group of parquet, 4,096 rows of text (`formats`)
    split id     the file's path below the root that the paths have in common; a path that is added or taken away later
                 changes the root, and the checkpoint goes along
    event time   parquet: from the row groups' statistics; csv and json: files are read through once, when planned

A file is read once, whole, as it was when it was found: its size and time of modification are in the split. A file
that has changed since is an error, because its rows could not be read again. So write a file under another name
(beginning with "." or "_") or in another folder, and rename the complete file.

A file is remembered by its path, and not read again. `kit/discovery.py` says what of it a checkpoint has
(`remember`, and `keep` for `max_age`), and docs/read.md which files are missed. Two things follow for paths:

- a file system that knows no times of modification has all files at one time, so all their paths are remembered;
- a path that is used again, or touched, is not read again as long as it is among the newest, or its query runs on.

Not supported: partition columns from folder names (a column must be in the file), and files that are appended to.

One file, because a file's discovery, its times and its rows depend on the same identity of the file.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from numbers import Integral
from pathlib import Path
from posixpath import normpath, relpath
from typing import Literal

import numpy as np
import pyarrow as pa
from lowmark.sources.api import SplitEnd, SplitEnumerator, SplitEnumeratorContext, SplitPlanner, SplitReader
from lowmark.sources.kit.data_loss import LOSSES
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator
from lowmark.sources.kit.options import check_flags, chosen_columns, listed, one_of
from lowmark.sources.kit.simple import SimpleSource, SimpleSplitReader
from lowmark.sources.metric_group import Counter, MetricGroup
from lowmark.sources.worker import described
from lowmark.watermark import duration_us
from lowmark.watermark.errors import shown, without_login
from lowmark.watermark.moment import us_of
from pyarrow import fs

from .errors import FileChanged, FileUnreadable, InvalidFileOption, NoSchema
from .formats import FORMATS, TIME, UNREADABLE, FileIndex, PlacedFile, spark_schema
from .listing import FileListing, FileSplit, beginning, resolve_paths

log = logging.getLogger("lowmark")

REMEMBERED_FILES = 4_096
"""The checkpoint has the names of at least this number of files, the newest."""
_KEPT_INDEXES = 10_000
_OPEN_AT_ONCE = 16
_LOOKED_AT = 100  # files, for one that says the types of its columns
_NOTHING = FileIndex(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
OnTrouble = Literal["error", "skip"]


def _clock_us() -> int:
    return time.time_ns() // 1_000


def _steady_us() -> int:
    return time.monotonic_ns() // 1_000


class FileSource(SimpleSource[FileSplit]):
    r"""Reads files of one format.

    Args:
        paths: a folder, a pattern, a file, or several (see `listing`); URIs for other file systems.
        format: "parquet", "csv" (with a line of names), "json" (an object in each line).
        schema: the columns; by default the columns of the first file, which must exist then (of csv, of the first with
            rows; of json, of its first 16 MiB). Give it for long-lived queries, because the first file may be deleted
            one day.
        event_time: the column with the event time: a time, or text in ISO 8601. None: batches are cut by rows only.
        columns: the columns to read, in this order; by default all. `event_time` must be among them.
        recursive: whether folders stand for the folders below them too.
        bounded: whether to read only the files present at the first start with it, and then end. A restart reads later
            files only without it.
        discover_every: how often to look for new files, a duration.
        modified_after: only files modified after this, an aware `datetime` or microseconds since the epoch.
        min_age: only files not modified for this long, a duration: for writers that do not rename. A file whose time of
            modification is ahead of the clock is read once it was seen unchanged for this long.
        max_age: files older than the newest by this duration are never new.
        on_unreadable: "error", or "skip": log a warning and go on without the file's (remaining) rows. A network error
            is skipped too, so rows can be lost.
        on_vanished: the same for files that were deleted or changed after they were found. A file that is rewritten
            while it is read fails its batch in any case, and is an error or skipped when the batch is read again.
        filesystem: the file system of paths that are no URIs; Arrow's, picklable.
        now_us: the wall clock, for `min_age`; picklable.
        steady_us: a clock that never steps, for `min_age`; picklable.

    An invalid option raises `InvalidFileOption`, `schema` raises `NoSchema`, planning and reading raise
    `FileUnreadable` and `FileChanged`.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("id,ts\n1,2026-01-01T00:00:00Z\n2,2026-01-01T00:00:05Z\n")
    >>> source = FileSource(str(folder), format="csv", event_time="ts", bounded=True)
    >>> source.schema
    id: int64
    ts: timestamp[us, tz=UTC]
    >>> [split.split_id for split in source.discover()]
    ['a.csv']
    """

    split_type = FileSplit
    event_time: str | None = None

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        format: str = "parquet",  # noqa: A002  # Spark's and Arrow's word
        schema: pa.Schema | None = None,
        event_time: str | None = None,
        columns: Sequence[str] | None = None,
        recursive: bool = False,
        bounded: bool = False,
        discover_every: str | timedelta = "1 minute",
        modified_after: datetime | int | None = None,
        min_age: str | timedelta | None = None,
        max_age: str | timedelta | None = None,
        on_unreadable: OnTrouble = "error",
        on_vanished: OnTrouble = "error",
        filesystem: fs.FileSystem | None = None,
        now_us: Callable[[], int] = _clock_us,
        steady_us: Callable[[], int] = _steady_us,
    ) -> None:
        if format not in list(FORMATS):
            raise InvalidFileOption("format", shown(format), f"one of {sorted(FORMATS)}", "name what the files are.")
        for option, value in (("on_unreadable", on_unreadable), ("on_vanished", on_vanished)):
            one_of(value, option, ("error", "skip"), InvalidFileOption)
        check_flags({"recursive": recursive, "bounded": bounded}, InvalidFileOption)
        if event_time is not None and not isinstance(event_time, str):
            raise InvalidFileOption("event_time", shown(event_time), "the name of a column", "None cuts by rows only.")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise InvalidFileOption("schema", shown(schema), "a pyarrow.Schema", "None takes that of the first file.")
        system: object = filesystem
        if system is not None and not isinstance(system, fs.FileSystem):
            hint = "wrap one of fsspec as PyFileSystem(FSSpecHandler(filesystem))."
            got = f"a {type(system).__name__}"
            raise InvalidFileOption("filesystem", got, "a pyarrow.fs.FileSystem", hint)
        if columns is not None:
            columns = chosen_columns(columns, None, InvalidFileOption, "None reads all columns.")
            if event_time is not None and event_time not in columns:
                wanted = f"event_time {event_time!r} among them"
                raise InvalidFileOption("columns", str(list(columns)), wanted, "add it.")
        self.paths = tuple(listed(paths))
        for path in self.paths:
            if not isinstance(path, str) or not path:
                raise InvalidFileOption("paths", shown(path), "texts", "write a path of pathlib as str(path).")
        # A relative path means the same folder in each process, whatever folder that process is in.
        self._beside = "" if all("://" in path for path in self.paths) else str(Path.cwd())
        self.bounded, self.discover_every = bounded, discover_every
        self._period_seconds = duration_us(discover_every, what="discover_every") / 1_000_000
        if self._period_seconds == 0:
            wanted = "a duration above 0"
            raise InvalidFileOption("discover_every", shown(discover_every), wanted, "each look lists all files.")
        self._format, self.event_time, self._columns, self._recursive = format, event_time, columns, recursive
        self._given_schema, self._filesystem = schema, filesystem
        self._now_us, self._steady_us = now_us, steady_us
        self._young: dict[FileSplit, int] = {}  # files that are too young by their times, and since when they are known
        self._modified_after_us = _instant_us(modified_after)
        self._min_age_us = None if min_age is None else duration_us(min_age, what="min_age")
        self._max_age_us = None if max_age is None else duration_us(max_age, what="max_age")
        self._on_unreadable, self._on_vanished = on_unreadable, on_vanished

    def __repr__(self) -> str:
        return f"FileSource({without_login(', '.join(self.paths))}, format={self._format!r})"

    @cached_property
    def listing(self) -> FileListing:
        return resolve_paths(self.paths, recursive=self._recursive, filesystem=self._filesystem, beside=self._beside)

    @cached_property
    def schema(self) -> pa.Schema:  # kept, so that every process has the same schema
        given = self._given_schema
        found = self._first_schema() if given is None else spark_schema(given, event_time=self.event_time)
        names = found.names if self._columns is None else list(self._columns)
        wanted = [name for name in (*names, self.event_time) if name is not None]
        if missing := [name for name in wanted if name not in found.names]:
            raise NoSchema(repr(self), f"no column {missing[0]!r} among {found.names}", "name one of these.")
        if twice := [name for name in wanted if found.names.count(name) > 1]:
            fact = f"column {twice[0]!r} is there more than once in {found.names}"
            raise NoSchema(repr(self), fact, "rename it in the files, or name the other columns in columns=.")
        if self.event_time is not None and (kind := found.field(self.event_time).type) != TIME:
            hint = "write times, or text in ISO 8601, or give a schema that declares the column as a timestamp."
            raise NoSchema(repr(self), f"event_time {self.event_time!r} is {kind}", hint)
        return pa.schema([found.field(name) for name in names])

    def discover(self, *, again: bool = False) -> Sequence[FileSplit]:
        files = self.listing.files(deleted=again)
        if self._modified_after_us is not None:
            files = [file for file in files if file.modified_us > self._modified_after_us]
        if self._min_age_us is not None:
            files = self._settled(files, self._min_age_us)
        return files

    def restore_enumerator(
        self, context: SplitEnumeratorContext[FileSplit], state: DiscoveredSplits[FileSplit]
    ) -> SplitEnumerator[FileSplit, DiscoveredSplits[FileSplit]]:
        again = state.discovered

        def discover() -> Sequence[FileSplit]:
            nonlocal again
            found = self.discover(again=again)
            again = True
            return found

        return DiscoveringEnumerator(
            context,
            discover,
            period_seconds=self._period_seconds,
            bounded=self.bounded,
            known=_with_root(self.listing.root, state),
            stamp_of=lambda split: split.modified_us,
            keep=self._max_age_us,
            remember=REMEMBERED_FILES,
            root=self.listing.root,
            source=repr(self),
        )

    def create_planner(self) -> SplitPlanner[FileSplit]:
        return FilePlanner(self)

    def create_split_reader(self) -> SplitReader[FileSplit]:
        return FileSplitReader(self)

    def latest(self, splits: Sequence[FileSplit]) -> Mapping[str, SplitEnd]:
        return FilePlanner(self).latest(splits)

    def read(self, split: FileSplit, losses: Counter | None = None) -> Iterator[tuple[pa.Table, int]]:
        """Read a slice; count in `losses` if rows are skipped."""
        assert split.stop is not None, "slices have one"
        reached = split
        try:
            self._check_unchanged(split)
            for rows, position in FORMATS[self._format].read(self._placed(split), self.schema, split.start, split.stop):
                yield rows, position
                reached = replace(split, start=position)
        except (*UNREADABLE, FileChanged) as trouble:
            self._raise_or_skip(reached, "read the rows", trouble)
            if losses is not None:
                losses.inc()
        else:
            # Not skipped, because rows of both files were handed out; the next attempt finds the change first.
            self._check_unchanged(split, read=True)

    def index(self, split: FileSplit) -> FileIndex | None:
        try:
            self._check_unchanged(split)
            return FORMATS[self._format].index(self._placed(split), self.schema, self.event_time)
        except (*UNREADABLE, FileChanged) as trouble:
            self._raise_or_skip(split, "read the index", trouble)
            return None

    def _placed(self, split: FileSplit) -> PlacedFile:
        return PlacedFile(self.listing.filesystem, self.listing.path(split.split_id), split.size_bytes)

    def _raise_or_skip(self, split: FileSplit, action: str, trouble: Exception) -> None:
        """Raise the error of a file, or log it if the file is skipped."""
        if isinstance(trouble, FileNotFoundError):
            trouble = self._changed(split, None)
        if not isinstance(trouble, FileChanged):
            path, cause = self.listing.path(split.split_id), trouble
            trouble = FileUnreadable(repr(self), path, split.split_id, action, described(cause))
            trouble.__cause__ = cause
        option = self._on_vanished if isinstance(trouble, FileChanged) else self._on_unreadable
        if option == "error":
            raise trouble
        until = "its end" if split.stop is None else f"position {split.stop}"
        log.warning("skipped from position %d on, to %s: %s", split.start, until, trouble)

    def _settled(self, files: Sequence[FileSplit], min_age_us: int) -> list[FileSplit]:
        """The files that were not modified for long enough, by their times or by watching them.

        A watched file does not wait for a wall clock that was set back, or is behind its writer's clock.
        """
        youngest_us, steady_us = self._now_us() - min_age_us, self._steady_us()
        self._young = {file: self._young.get(file, steady_us) for file in files if file.modified_us > youngest_us}
        return [file for file in files if steady_us - self._young.get(file, steady_us - min_age_us) >= min_age_us]

    def _first_schema(self) -> pa.Schema:
        """The columns of the first file, in types of Spark; of the first with values, if there is one."""
        try:
            files = [file for file in self.discover() if file.size_bytes]
        except (OSError, pa.ArrowException) as cause:
            fact = f"its files cannot be listed ({described(cause)}), and it takes the columns from the first"
            raise NoSchema(repr(self), fact, "correct the paths: each folder must be there.") from cause
        if not files:
            raise NoSchema(repr(self), "there is no file yet to take the columns from", "pass schema=.")
        columns = pa.schema([])
        for file in files[:_LOOKED_AT]:
            placed = self._placed(file)
            try:
                found = FORMATS[self._format].schema(placed)
                columns = spark_schema(found, event_time=self.event_time)
            except UNREADABLE as cause:
                why = f"{placed.path}, which cannot be read ({described(cause)})"
                fact = f"it takes the columns from its first file, {why}"
                raise NoSchema(repr(self), fact, "pass schema=, or take that file away.") from cause
            if not all(pa.types.is_null(each.type) for each in found):
                break  # else it has the names of columns only
        return columns

    def _check_unchanged(self, split: FileSplit, *, read: bool = False) -> None:
        """Raise FileChanged if a file is not as it was found. If it is read already, it may be deleted."""
        now = self.listing.find(split.split_id)
        if now is not None and _key(now) != _key(split):
            # Asked again, because the client of S3 takes an answer that is cut in its headers for an empty file.
            now = self.listing.find(split.split_id)
        if now is None and read:
            return
        if now is None or _key(now) != _key(split):
            raise self._changed(split, now)

    def _changed(self, split: FileSplit, now: FileSplit | None) -> FileChanged:
        is_now = "gone" if now is None else _size_and_time(now)
        return FileChanged(repr(self), self.listing.path(split.split_id), split.split_id, _size_and_time(split), is_now)


class FileSplitReader(SimpleSplitReader[FileSplit]):
    """Reads files, and counts those with skipped rows as `data_losses`."""

    def __init__(self, source: FileSource) -> None:
        super().__init__(source)
        self._files, self._losses = source, self.metrics.counter(LOSSES)

    def read(self, split: FileSplit) -> Iterator[tuple[pa.Table, int]]:
        return self._files.read(split, self._losses)


class FilePlanner(SplitPlanner[FileSplit]):
    """Plans the steps of files by their indexes, and counts skipped files as `data_losses`."""

    def __init__(self, source: FileSource) -> None:
        self.metrics = MetricGroup()
        self._files, self._losses = source, self.metrics.counter(LOSSES)
        self._indexes: OrderedDict[tuple[str, int, int], FileIndex] = OrderedDict()  # the live ones at the end
        self._most_indexes = _KEPT_INDEXES

    def metric_values(self) -> Mapping[str, float]:
        return self.metrics.values()

    def latest(self, splits: Sequence[FileSplit]) -> Mapping[str, SplitEnd]:
        # Every batch asks about all live splits, so the index of none of them may be forgotten.
        self._most_indexes = max(self._most_indexes, len(splits))
        for key in map(_key, splits):
            if key in self._indexes:
                self._indexes.move_to_end(key)
        self._ask(splits)
        return {split.split_id: self._end(split) for split in splits}

    def after_rows(self, split: FileSplit, rows: int, end: SplitEnd) -> int:
        before = self._index(split).rows
        fits = int(np.searchsorted(before, before[min(split.start, len(before) - 1)] + rows, side="right")) - 1
        return min(max(fits, split.start + 1), end.position)

    def rows_before(self, split: FileSplit, position: int) -> int:
        return self._between(self._index(split).rows, split.start, position)

    def find_time(self, splits: Sequence[FileSplit], time_us: int) -> Mapping[str, int | None] | None:
        if self._files.event_time is None:
            return None
        self._ask(splits)
        return {split.split_id: self._index(split).first_step(time_us) for split in splits}

    def claim_us(self, split: FileSplit, position: int, time_us: int) -> int:
        earliest_us = self._index(split).earliest_from(position)
        return time_us if earliest_us is None else min(time_us, earliest_us)

    def _end(self, split: FileSplit) -> SplitEnd:
        index = self._index(split)
        position = max(split.start, index.steps if split.stop is None else min(split.stop, index.steps))
        return SplitEnd(
            position=position,
            rows=self._between(index.rows, split.start, position),
            size_bytes=self._between(index.size_bytes, split.start, position),
            finished=True,
        )

    def _between(self, sums: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, position: int) -> int:
        last = len(sums) - 1
        return max(0, int(sums[min(position, last)] - sums[min(start, last)]))

    def _index(self, split: FileSplit) -> FileIndex:
        key = _key(split)
        if key not in self._indexes:
            self._keep(key, self._files.index(split))
        return self._indexes[key]

    def _ask(self, splits: Sequence[FileSplit]) -> None:
        unknown = [split for split in splits if _key(split) not in self._indexes]
        if len(unknown) > 1:
            with ThreadPoolExecutor(min(_OPEN_AT_ONCE, len(unknown))) as pool:
                for split, index in zip(unknown, pool.map(self._files.index, unknown), strict=True):
                    self._keep(_key(split), index)

    def _keep(self, key: tuple[str, int, int], index: FileIndex | None) -> None:
        self._indexes[key] = _NOTHING if index is None else index
        self._losses.inc(index is None)
        while len(self._indexes) > self._most_indexes:
            self._indexes.popitem(last=False)


def _key(split: FileSplit) -> tuple[str, int, int]:
    return split.split_id, split.size_bytes, split.modified_us


def _with_root(root: str, known: DiscoveredSplits[FileSplit]) -> DiscoveredSplits[FileSplit]:
    """The state with ids below another root, because a path was added or taken away; not for a folder that was moved.

    The id of a file outside of the root begins with "../", because its path may be added again.
    """
    now, before = beginning(root), beginning(known.root)
    if not (before.startswith(now) or now.startswith(before)):
        return known

    def below(name: str) -> str:
        path = normpath(f"{before}{name}") if name.startswith("../") else f"{before}{name}"
        return path.removeprefix(now) if path.startswith(now) else relpath(path, root)

    pending = [replace(split, split_id=below(split.split_id)) for split in known.pending]
    return replace(
        known,
        assigned=tuple(map(below, known.assigned)),
        pending=tuple(split for split in pending if not split.split_id.startswith("../")),
    )


def _size_and_time(file: FileSplit) -> str:
    modified = datetime.fromtimestamp(file.modified_us / 1_000_000, timezone.utc)
    return f"{file.size_bytes} bytes, modified {modified.isoformat(sep=' ', timespec='milliseconds')}"


def _instant_us(value: datetime | int | None) -> int | None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidFileOption("modified_after", repr(value), "an aware datetime", "add tzinfo=timezone.utc.")
        return us_of(value)
    given: object = value
    if given is not None and not isinstance(given, Integral):
        wanted = "an aware datetime, or microseconds since the epoch"
        raise InvalidFileOption("modified_after", shown(given), wanted, "write a datetime with its time zone.")
    return value
