"""The files of late rows, as a reader of their folder sees them; no Spark here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from lowmark.integration.process.arrow_files import file_system
from lowmark.integration.transport.late_files import _put


def test_a_reader_of_the_folder_does_not_meet_a_file_that_is_half_written(tmp_path: Path) -> None:
    table = pa.table({"v": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    whole = io.BytesIO()
    pq.write_table(table, whole)
    whole.seek(0)
    seen = list[int]()

    class Slow:
        """A file whose reader looks at the folder after the first half was read."""

        def read(self, _: int) -> bytes:
            if whole.tell():
                seen.append(ds.dataset(tmp_path).count_rows())
            return whole.read(len(whole.getvalue()) // 2 + 1)

    files, folder = file_system(str(tmp_path))
    slow: Any = Slow()
    _put(files, f"{folder}/b.parquet", slow)
    assert set(seen) == {1}, "rows of the whole file alone"
    assert ds.dataset(tmp_path).count_rows() == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]
