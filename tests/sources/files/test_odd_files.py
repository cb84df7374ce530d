"""Files that are valid in a rare way, and files whose columns cannot be told apart."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.sources.files import FileSource
from lowmark.sources.files.errors import FileUnreadable, NoSchema

from tests.worlds.encrypted_files import encrypt

from .test_files import read


def test_a_value_in_quotes_may_have_line_breaks_in_a_csv_larger_than_a_block(tmp_path: Path) -> None:
    """Arrow reads a file in blocks of a megabyte, and such a value may lie across the edge of two blocks."""
    value = "a line\n" * 60_000
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f'{n},"{value}"\n' for n in range(7)))
    types: dict[str, pa.DataType] = {"id": pa.int64(), "text": pa.string()}
    schema = pa.schema(types)

    assert read(FileSource(str(tmp_path), format="csv", schema=schema)) == [{"id": n, "text": value} for n in range(7)]
    assert FileSource(str(tmp_path), format="csv").schema == schema


@pytest.mark.parametrize(
    ("kind", "content", "cause"),
    [
        ("csv", "größe\n1\n", "UnicodeDecodeError"),
        ("json", '{"größe": 1}\n', "UnicodeDecodeError"),
        ("parquet", "no parquet", "ArrowInvalid"),
    ],
)
@pytest.mark.parametrize("on_unreadable", ["error", "skip"])
def test_a_first_file_that_does_not_tell_its_columns_is_named(
    tmp_path: Path, kind: str, content: str, cause: str, on_unreadable: Literal["error", "skip"]
) -> None:
    (path := tmp_path / f"a.{kind}").write_bytes(content.encode("latin-1"))

    with pytest.raises(NoSchema, match=rf"its first file, {path}, which .*\({cause}.*\. Hint: pass schema="):
        _ = FileSource(str(tmp_path), format=kind, on_unreadable=on_unreadable).schema


@pytest.mark.parametrize("column", ["id", "ts"])
def test_a_later_parquet_file_that_has_a_column_twice_is_named(tmp_path: Path, column: str) -> None:
    times = pa.array([1], pa.timestamp("us", "UTC"))
    pq.write_table(pa.Table.from_arrays([pa.array([1]), times], names=["id", "ts"]), tmp_path / "a.parquet")
    source = FileSource(str(tmp_path), event_time="ts", schema=pa.schema({"id": pa.int64(), "ts": times.type}))
    twice = {"id": pa.array([2]), "ts": times}[column]
    odd = pa.Table.from_arrays([pa.array([2]), times, twice], names=["id", "ts", column])
    pq.write_table(odd, path := tmp_path / "b.parquet")

    with pytest.raises(FileUnreadable, match=rf"of file {path} .*ArrowInvalid: column '{column}' is there more than"):
        read(source)


def test_a_later_parquet_file_with_a_column_whose_name_is_no_utf_8_is_named_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        pq.write_table(pa.table({"id": [1], "größe": [2]}), tmp_path / f"{name}.parquet", store_schema=False)
    path = tmp_path / "b.parquet"
    path.write_bytes(path.read_bytes().replace("größe".encode(), "größe  ".encode("latin-1")))
    schema = pa.schema({"id": pa.int64()})

    with pytest.raises(FileUnreadable, match=rf"cannot read the index of file {path} .*UnicodeDecodeError"):
        read(FileSource(str(tmp_path), schema=schema))
    assert read(FileSource(str(tmp_path), schema=schema, on_unreadable="skip")) == [{"id": 1}]
    assert f"cannot read the index of file {path}" in caplog.text


@pytest.mark.parametrize("wrong", ["soon", "2026-11-20T25:00:00", "20/11/2026 10:00"])
@pytest.mark.parametrize("event_time", ["ts", None])
def test_a_text_that_is_no_time_is_told_as_it_stands_in_the_file(
    tmp_path: Path, wrong: str, event_time: str | None
) -> None:
    right = ["2026-11-20T10:00:00.123456789Z", None, "2026-11-20", ""]
    (tmp_path / "a.json").write_text("".join(json.dumps({"ts": text}) + "\n" for text in [*right, wrong, "later"]))
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC"))])
    source = FileSource(str(tmp_path), format="json", schema=schema, event_time=event_time)
    with pytest.raises(FileUnreadable, match=rf"ArrowInvalid: the text '{wrong}' is no time of ISO 8601\. Hint"):
        read(source)


@pytest.mark.parametrize("names", ["id,ts", "id,ts\n", "\n id,ts \r\n\n"])
def test_a_csv_file_with_its_names_alone_has_no_rows(tmp_path: Path, names: str) -> None:
    """Arrow refuses the file if no line break follows the names."""
    (tmp_path / "a.csv").write_text(names)
    (tmp_path / "b.csv").write_text("id,ts\n1,2026-11-20")
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    rows = read(FileSource(str(tmp_path), format="csv", event_time="ts", schema=schema))

    assert [row["id"] for row in rows] == [1]


@pytest.mark.parametrize("content", ['{"id": 1', "id"])
def test_a_line_of_json_that_is_cut_off_is_no_empty_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(FileUnreadable, match="JSON parse error"):
        read(FileSource(str(tmp_path), format="json", schema=pa.schema({"id": pa.int64()})))


@pytest.mark.parametrize("given", [True, False])
def test_times_as_spark_writes_them_are_read_whatever_their_year(tmp_path: Path, given: bool) -> None:
    """Spark writes INT96, which Arrow takes for nanoseconds; year 9999 stands for "no end" in many tables."""
    times = pa.array([dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) for year in (1, 1600, 2026, 9999)])
    table = pa.table({"ts": times.cast(pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    source = FileSource(str(tmp_path), event_time="ts", schema=table.schema if given else None)
    [split] = source.discover()
    latest_us = table["ts"].cast(pa.int64())[-1].as_py()

    assert read(source) == table.to_pylist()
    assert source.create_planner().find_time([split], latest_us) == {"a.parquet": 0}
    assert source.create_planner().find_time([split], latest_us + 1) == {"a.parquet": None}


def test_a_column_that_begins_behind_the_first_block_of_a_json_file_is_read(tmp_path: Path) -> None:
    without = '{"text": "' + "x" * 990 + '"}\n'
    (tmp_path / "a.json").write_text(without * 18_000 + '{"id": 7, "ts": "2026-01-01T00:00:00Z"}\n')
    columns: Any = {"id": pa.int64(), "ts": pa.timestamp("us", tz="UTC")}
    source = FileSource(str(tmp_path), format="json", schema=pa.schema(columns), event_time="ts")
    rows = read(source)
    assert len(rows) == 18_001
    assert rows[-1] == {"id": 7, "ts": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)}


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_a_first_line_of_json_that_is_larger_than_a_block_is_read(tmp_path: Path, given: bool) -> None:
    text = "x" * 20_000_000
    (tmp_path / "a.json").write_text(f'{{"id": 1, "text": "{text}"}}\n{{"id": 2, "text": "short"}}\n')
    columns: Any = {"id": pa.int64(), "text": pa.string()}
    rows = read(FileSource(str(tmp_path), format="json", schema=pa.schema(columns) if given else None))
    assert [row["id"] for row in rows] == [1, 2]
    assert [len(row["text"]) for row in rows] == [len(text), len("short")]


def test_a_last_line_of_json_without_a_line_break_tells_columns_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n{"text": "a"}')
    assert read(FileSource(str(tmp_path), format="json")) == [{"id": 1, "text": None}, {"id": None, "text": "a"}]


@pytest.mark.slow
def test_a_line_of_json_without_end_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "' + "x" * 60_000_000 + '"}\n')
    with pytest.raises(FileUnreadable, match=r"a\.json.*a line of it takes more than 32 MiB"):
        read(FileSource(str(tmp_path), format="json", schema=pa.schema([("text", pa.string())])))


@pytest.mark.parametrize("given", [False, True])
def test_a_first_line_of_json_that_is_null_is_told(tmp_path: Path, given: bool) -> None:
    (tmp_path / "a.json").write_text('\nnull\n{"id": 1}\n')
    schema = pa.schema([("id", pa.int64())]) if given else None
    with pytest.raises(FileUnreadable if given else NoSchema, match=r"a\.json.*a line of it is null"):
        read(FileSource(str(tmp_path), format="json", schema=schema))


def test_a_column_with_a_dot_in_its_name_is_not_taken_for_a_field_of_another_column(tmp_path: Path) -> None:
    inner = pa.array([{"at": 100}, {"at": 200}], pa.struct([("at", pa.int64())]))
    rows = pa.table({"event": inner, "event.at": pa.array([1, 2], pa.timestamp("us", tz="UTC"))})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1)
    source = FileSource(str(tmp_path), event_time="event.at")
    found = source.create_planner().find_time(source.discover(), 2)
    assert found == {"a.parquet": 1}


def test_the_columns_beside_an_encrypted_one_are_read(tmp_path: Path) -> None:
    times = pa.array([1, 2], pa.timestamp("us", tz="UTC"))
    encrypt(tmp_path / "a.parquet", pa.table({"card": [1, 2], "ts": times, "name": ["a", "b"]}), "card")
    source = FileSource(str(tmp_path), event_time="ts", columns=["ts", "name"])
    assert [row["name"] for row in read(source)] == ["a", "b"]
    with pytest.raises(FileUnreadable, match=r"a\.parquet.*Cannot decrypt"):
        read(FileSource(str(tmp_path), event_time="ts"))
