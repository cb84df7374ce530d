"""The files of `wrap(late_to=...)`: the rows of a batch that Spark drops because they come too late.

Spark has no second output of an operator. So the query reads its source once more, keeps the rows that Spark's rule
drops (`late.py` has the watermark), and sends only these to one task. The task writes one file and yields no row.

    FOLDER/STREAM-QUERY-BATCH.parquet

Each batch has one file, whatever tasks read the source, because the number of tasks may differ when a batch runs again.
The file is replaced as a whole, and removed if the batch has no late row. So the folder never has a row twice, also if
a task of a killed driver ends late: that task writes the same rows under the same name. Where a file can be renamed, an
attempt of a task writes a file of its own, and renames it when it is whole:

    FOLDER/.parts/STREAM-QUERY-BATCH.parquet.ATTEMPT

On HDFS, a rename does not replace a file. There a finished file with the same rows stays: if the task removed it, and
was then killed with its driver already gone, no later task would write the file. Only a batch that was planned anew has
other rows, and that batch runs again.

The files that dead attempts leave in ``.parts`` are removed when their query writes the file of a later batch. No
attempt of the later batch needs them, and an old attempt that is still alive has nothing to add.

Executors import this module.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from lowmark.integration.errors import LateRowsNotWritten
from lowmark.integration.process.arrow_files import file_system
from lowmark.sources.worker_costs import spare_next_task
from lowmark.watermark.printable import in_one_line
from pyarrow.fs import FileSelector, FileSystem, FileType

from .late import of_this_batch, this_batch
from .python_values import rows_of

UNTIL, WATERMARK, LATE_BY = "until", "watermark", "late_by_us"
"""Columns that the files have beside the user's."""

_MOST_BYTES = 151  # of a stream's name: hash, id of the query, batch, ending and attempt take 102 of a file's 255
_RENAMES = frozenset({"local", "hdfs"})  # elsewhere a file appears when its stream is closed, as a whole
_PARTS = ".parts"  # readers of a folder leave out names that begin with a dot
_BATCH_DIGITS = 10  # of a batch in the name of a file


def file_name(stream: str, query_id: str, batch_id: int) -> str:
    """Return the name of the file of one batch.

    >>> file_name("eu/orders", "4d9ad2e2", 17)
    'eu%2Forders-4d9ad2e2-0000000017.parquet'

    Readers of a folder leave out names that begin with a dot or an underscore.

    >>> file_name("_orders", "4d9ad2e2", 17)
    '%5Forders-4d9ad2e2-0000000017.parquet'

    A long name is cut, because a file's name has at most 255 bytes, and its hash keeps it apart from others.

    >>> file_name("orders" * 99, "4d9ad2e2", 17)[140:]
    'dersorderso~342c84032a73-4d9ad2e2-0000000017.parquet'
    """
    name = quote(stream, safe="")
    if name.startswith((".", "_")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _MOST_BYTES:
        name = f"{name[:_MOST_BYTES]}~{hashlib.sha256(stream.encode()).hexdigest()[:12]}"
    return f"{name}-{query_id}-{batch_id:0{_BATCH_DIGITS}}.parquet"


@dataclass(frozen=True, slots=True)
class LateFileWriter:
    """The function that `mapInArrow` runs in one task over the late rows of a batch."""

    stream: str
    event_time: str
    folder: str  # absolute path of this machine, or an address with a scheme

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids, watermark_us = this_batch(), of_this_batch()
        rows = (self._with_lateness(batch, watermark_us) for batch in batches if batch.num_rows)
        first = next(rows, None)  # raises `late.watermark`'s error if there are rows, and the watermark is not known
        if ids is not None and watermark_us is not None:
            query_id, batch_id = ids
            name = file_name(self.stream, query_id, batch_id)
            try:
                self._replace(name, first, rows)
            except (OSError, ValueError, pa.ArrowException) as failed:
                raise LateRowsNotWritten(self.stream, str(batch_id), self.folder, in_one_line(failed)) from failed
        spare_next_task()
        yield from ()

    def _replace(self, name: str, first: pa.RecordBatch | None, others: Iterable[pa.RecordBatch]) -> None:
        import pyarrow.parquet as pq

        files, folder = file_system(self.folder)
        path = f"{folder}/{name}"
        if first is None:
            _remove(files, path)
            return
        files.create_dir(folder, recursive=True)
        with tempfile.TemporaryFile() as whole:  # so a row that fails leaves no half of a file in a bucket
            with pq.ParquetWriter(whole, first.schema) as writer:
                for batch in chain([first], others):
                    writer.write_batch(batch)
            whole.seek(0)
            _put(files, path, whole)

    def _with_lateness(self, batch: pa.RecordBatch, watermark_us: int | None) -> pa.RecordBatch:
        import pyarrow.compute as pc

        times = batch.column(batch.schema.get_field_index(self.event_time))
        late_by_us = pc.subtract(pa.scalar(watermark_us, pa.int64()), times.cast(pa.int64()))
        watermarks = pa.repeat(pa.scalar(watermark_us, pa.int64()), batch.num_rows).cast(pa.timestamp("us", tz="UTC"))
        names = [*batch.schema.names, WATERMARK, LATE_BY]
        return pa.RecordBatch.from_arrays([*batch.columns, watermarks, late_by_us], names=names)


def _put(files: FileSystem, path: str, whole: Any) -> None:
    """Write a file that readers see as a whole or not at all."""
    if files.type_name not in _RENAMES:
        _copy(whole, files, path)
        return
    folder, _, name = path.rpartition("/")
    parts = f"{folder}/{_PARTS}"
    files.create_dir(parts)
    part = f"{parts}/{name}.{uuid.uuid4().hex}"
    _copy(whole, files, part)
    if files.type_name == "hdfs" and _is_written(files, path, whole):
        files.delete_file(part)
    else:
        files.move(part, path)
    with suppress(OSError):  # what is left after an error is removed in a later batch
        _remove_earlier_parts(files, parts, name)


def _copy(whole: Any, files: FileSystem, path: str) -> None:
    with files.open_output_stream(path) as stream:
        shutil.copyfileobj(whole, stream, 1 << 20)


def _is_written(files: FileSystem, path: str, whole: Any) -> bool:
    """Return whether a file has all rows of `whole` already; a file with other rows is removed."""
    if files.get_file_info(path).type == FileType.NotFound:
        return False
    whole.seek(0)
    with files.open_input_file(path) as there, suppress(pa.ArrowInvalid):  # a broken file is no such file
        if _rows_of(there) == _rows_of(whole):
            return True
    files.delete_file(path)
    return False


def _rows_of(file: Any) -> tuple[pa.Schema, int]:
    """Return the schema of a file and a number for its rows in any order, because attempts read them in any order."""
    import pyarrow.parquet as pq

    content, told = pq.ParquetFile(file), 0
    for batch in content.iter_batches():
        for row in rows_of(batch, exact=True):
            told += int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "big")
    return content.schema_arrow, told


def _remove_earlier_parts(files: FileSystem, parts: str, name: str) -> None:
    """Remove what dead attempts left of the batches before the batch of a file."""
    of_query = name.removesuffix(".parquet")[:-_BATCH_DIGITS]
    for found in files.get_file_info(FileSelector(parts)):
        if found.base_name.startswith(of_query) and found.base_name < name:  # batches have equally many digits
            files.delete_file(found.path)


def _remove(files: FileSystem, path: str) -> None:
    if files.get_file_info(path).type != FileType.NotFound:
        files.delete_file(path)
