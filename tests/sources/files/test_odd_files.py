"""Files that are valid in a rare way, and files whose columns cannot be told apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from lowmark.sources.files import FileSource

from .test_files import read


def test_a_value_in_quotes_may_have_line_breaks_in_a_csv_of_any_size(tmp_path: Path) -> None:
    """Arrow reads a file in blocks of a megabyte, and such a value may lie across the edge of two blocks."""
    value = "a line\n" * 60_000
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f'{n},"{value}"\n' for n in range(7)))
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])

    assert read(FileSource(str(tmp_path), format="csv", schema=schema)) == [{"id": n, "text": value} for n in range(7)]
    assert FileSource(str(tmp_path), format="csv").schema == schema
