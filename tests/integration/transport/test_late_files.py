"""The files of late rows, as a reader of their folder sees them; no Spark here."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from lowmark.integration.process.arrow_files import file_system
from lowmark.integration.transport.late_files import _put, file_name


def parquet(*values: int) -> bytes:
    whole = io.BytesIO()
    pq.write_table(pa.table({"v": values}), whole)
    return whole.getvalue()


class Halves:
    """A file that is read in two halves, with something between them."""

    def __init__(self, content: bytes, between: Callable[[], object]) -> None:
        self._content, self._between, self._reads = content, between, 0

    def read(self, _: int) -> bytes:
        self._reads += 1
        half = len(self._content) // 2
        if self._reads == 2:
            self._between()
        return {1: self._content[:half], 2: self._content[half:]}.get(self._reads, b"")


def test_a_reader_of_the_folder_does_not_meet_a_file_that_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(1))
    seen = list[int]()
    files, folder = file_system(str(tmp_path))
    slow: Any = Halves(parquet(2), lambda: seen.append(ds.dataset(tmp_path).count_rows()))
    _put(files, f"{folder}/b.parquet", slow)
    assert seen == [1], "rows of the whole file alone"
    assert ds.dataset(tmp_path).count_rows() == 2
    assert sorted(each.name for each in tmp_path.glob("*.parquet")) == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("stream", ["_orders", ".orders", "." * 200, "orders", "eu/orders"])
def test_a_reader_of_the_folder_sees_the_files_of_every_stream(stream: str, tmp_path: Path) -> None:
    files, folder = file_system(str(tmp_path))
    _put(files, f"{folder}/{file_name(stream, str(uuid.uuid4()), 4)}", io.BytesIO(parquet(1, 2)))
    assert ds.dataset(tmp_path).count_rows() == 2


def test_two_attempts_of_a_batch_write_no_file_of_the_other(tmp_path: Path) -> None:
    """A task of a killed driver, and the task of the next driver, which is faster."""
    files, folder = file_system(str(tmp_path))
    path = f"{folder}/{file_name('orders', 'q', 4)}"
    seen = list[object]()

    def rows() -> list[int]:
        return [int(v) for v in pq.read_table(path).column("v").to_numpy()]

    def next_driver() -> None:
        _put(files, path, io.BytesIO(parquet(*range(1_000))))
        seen.append(rows())

    old: Any = Halves(parquet(*reversed(range(1_000))), next_driver)
    _put(files, path, old)
    assert seen == [list(range(1_000))]
    assert sorted(rows()) == list(range(1_000))
    assert not list((tmp_path / ".parts").iterdir())


def test_what_dead_attempts_left_is_removed_in_a_later_batch_and_nothing_else(tmp_path: Path) -> None:
    files, folder = file_system(str(tmp_path))
    names = [file_name("orders", query, batch) for query in ("q", "other") for batch in (3, 4, 5)]
    parts = [f"{name}.{'0' * 32}" for name in names]
    (tmp_path / ".parts").mkdir()
    for name, part in zip(names, parts, strict=True):
        (tmp_path / name).write_bytes(parquet(1))
        (tmp_path / ".parts" / part).write_bytes(parquet(1)[:50])
    _put(files, f"{folder}/{names[1]}", io.BytesIO(parquet(2)))
    assert sorted(each.name for each in tmp_path.glob("*.parquet")) == sorted(names)
    left = sorted(each.name for each in (tmp_path / ".parts").iterdir())
    assert left == sorted(parts[1:]), "all but that of batch 3 of the same query"
