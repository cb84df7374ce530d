"""Files as a source: discovery, steps, search by time, and errors."""

from __future__ import annotations

import gzip
import os
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from lowmark.sources import SourceSplit, SplitEnd, check_source, read_slices
from lowmark.sources.files import FileSource, FileSplit, InvalidFileOption, formats
from lowmark.sources.files import source as files_source
from lowmark.sources.files.errors import FileChanged, FileUnreadable, NoSchema
from lowmark.sources.files.formats import FORMATS, STEP_ROWS, PlacedFile, spark_schema
from lowmark.sources.files.listing import resolve_paths
from lowmark.sources.files.source import FilePlanner
from lowmark.sources.kit.discovery import DiscoveryFailed
from lowmark.sources.testing import ManualEnumeratorContext
from lowmark.watermark import InvalidDuration, LowmarkError
from pyarrow import fs

SECOND_US = 1_000_000
TIME: pa.DataType = pa.timestamp("us", tz="UTC")
WATCHED = pa.proxy_memory_pool(pa.default_memory_pool())  # never freed, because arrays made in it must not outlive it
SCHEMA = pa.schema({"id": pa.int64(), "ts": TIME, "name": pa.string()})


def table(first: int, count: int, *, seed: int = 1) -> pa.Table:
    """Return rows a second apart, slightly out of order; one in ten has no time."""
    chance = random.Random(f"{seed} {first}")
    ids = range(first, first + count)
    times = [None if chance.random() < 0.1 else (each + chance.randrange(20)) * SECOND_US for each in ids]
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "ts": pa.array(times, TIME), "name": [f"n{each}" for each in ids]},
        schema=SCHEMA,
    )


def parquet(path: Path, rows: pa.Table, *, group: int = 10, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=group, **options)


def csv(path: Path, rows: pa.Table) -> None:
    pcsv.write_csv(rows, path)


def json(path: Path, rows: pa.Table) -> None:
    def line(row: dict[str, Any]) -> str:
        time = "null" if row["ts"] is None else f'"{row["ts"].isoformat()}"'
        return f'{{"id": {row["id"]}, "ts": {time}, "name": "{row["name"]}"}}\n'

    path.write_text("".join(map(line, rows.to_pylist())))


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {"parquet": parquet, "csv": csv, "json": json}


def touch(path: Path, seconds: int) -> None:
    os.utime(path, ns=(seconds * 10**9, seconds * 10**9))


def read(source: FileSource, splits: list[FileSplit] | None = None) -> list[dict[str, Any]]:
    """Read all rows of a source, in the order of its splits."""
    splits = list(source.discover()) if splits is None else splits
    ends = source.create_planner().latest(splits)
    ranges = [replace(split, stop=ends[split.split_id].position) for split in splits]
    return [row for part in read_slices(source, ranges) for row in part.rows.to_pylist()]


# -- all formats


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def filled(folder: Path, kind: str, counts: tuple[int, ...] = (35, 1, 60)) -> FileSource:
    """Fill a folder with files of consecutive rows."""
    first = 0
    for index, count in enumerate(counts):
        path = folder / f"part-{index}.{kind}"
        WRITERS[kind](path, table(first, count))
        touch(path, 1_000 + index)
        first += count
    return FileSource(str(folder), format=kind, schema=SCHEMA, event_time="ts", bounded=True)


def test_every_row_is_read_once_in_order(tmp_path: Path, kind: str) -> None:
    source = filled(tmp_path, kind)
    expected = pa.concat_tables([table(0, 35), table(35, 1), table(36, 60)]).to_pylist()

    assert read(source) == expected
    assert source.schema == SCHEMA


def test_the_laws_hold(tmp_path: Path, kind: str) -> None:
    checked = check_source(filled(tmp_path, kind), rows=12)
    assert checked.rows == 96
    assert checked.found_by_time > 4


def test_the_laws_hold_in_another_process(tmp_path: Path) -> None:
    check_source(filled(tmp_path, "parquet"), other_process=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_text_is_cut_every_so_many_rows(tmp_path: Path, kind: str) -> None:
    source = filled(tmp_path, kind, (3 * STEP_ROWS + 5, 2 * STEP_ROWS))
    first, second = source.discover()
    planner = source.create_planner()
    ends = planner.latest([first, second])

    assert {name: (end.position, end.rows, end.finished) for name, end in ends.items()} == {
        first.split_id: (4, 3 * STEP_ROWS + 5, True),
        second.split_id: (2, 2 * STEP_ROWS, True),
    }
    assert planner.rows_before(first, 3) == 3 * STEP_ROWS
    assert planner.after_rows(first, 2 * STEP_ROWS, ends[first.split_id]) == 2
    check_source(source, rows=STEP_ROWS, most_rows=5 * STEP_ROWS)


def test_a_text_larger_than_what_is_read_at_once_is_cut_the_same(tmp_path: Path) -> None:
    wide = table(0, 3 * STEP_ROWS + 5)
    wide = wide.set_column(2, "name", pa.array([f"{each:>300}" for each in range(wide.num_rows)]))
    csv(tmp_path / "a.csv", wide)  # 4 MB, more than Arrow's block of 1 MB
    source = FileSource(str(tmp_path), format="csv", schema=SCHEMA)
    (split,) = source.discover()
    for start in range(4):
        (part,) = (
            pa.Table.from_batches(
                [each.rows for each in read_slices(source, [replace(split, start=start, stop=start + 1)])]
            )
            .select(["id"])
            .to_batches()[:1]
        )
        assert part["id"][0].as_py() == start * STEP_ROWS
    check_source(source, rows=STEP_ROWS, most_rows=5 * STEP_ROWS)


def test_parquet_is_cut_by_row_groups(tmp_path: Path) -> None:
    source = filled(tmp_path, "parquet", (35,))
    (split,) = source.discover()
    planner = source.create_planner()
    end = planner.latest([split])[split.split_id]

    assert (end.position, end.rows, end.finished) == (4, 35, True)
    assert end.size_bytes is not None
    assert end.size_bytes > 100
    assert planner.latest([replace(split, start=3)])[split.split_id].rows == 5
    assert planner.latest([replace(split, start=1, stop=2)])[split.split_id].position == 2
    assert [planner.after_rows(split, rows, end) for rows in (1, 10, 19, 20, 34, 35, 99)] == [1, 1, 1, 2, 3, 4, 4]
    assert planner.rows_before(replace(split, start=1), 4) == 25


def test_a_row_group_larger_than_a_batch_is_one_step(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table(0, 150_000), group=150_000)
    source = FileSource(str(tmp_path))
    (split,) = source.discover()
    parts = list(read_slices(source, [replace(split, stop=1)]))
    assert {part.position for part in parts[:-1]} == {0}
    assert (parts[-1].position, sum(part.rows.num_rows for part in parts)) == (1, 150_000)


@pytest.mark.slow
@pytest.mark.parametrize("event_time", [None, "ts"])
def test_a_packed_row_group_is_read_in_pieces(tmp_path: Path, event_time: str | None) -> None:
    """131,072 rows with a text of 2 KB are 256 MiB, in a file of some KiB; their times are texts, too."""
    count = 131_072
    rows = {"name": ["x" * 2_048] * count, "ts": ["2026-01-01T00:00:00Z"] * count}
    pq.write_table(pa.table(rows), tmp_path / "bomb.parquet", row_group_size=count, compression="zstd")
    assert (tmp_path / "bomb.parquet").stat().st_size < 65_536
    source = FileSource(str(tmp_path), event_time=event_time)
    before = pa.default_memory_pool()
    pa.set_memory_pool(WATCHED)
    try:
        (split,) = source.discover()
        end = source.create_planner().latest([split])[split.split_id]
        count_read = sum(part.rows.num_rows for part in read_slices(source, [replace(split, stop=end.position)]))
    finally:
        pa.set_memory_pool(before)
    most_mib = (WATCHED.max_memory() or 0) / 2**20
    assert (end.rows, count_read) == (count, count)
    assert most_mib < 64, f"{most_mib:.0f} MiB at once"


# -- time


def test_find_time_needs_an_event_time(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table(0, 20))
    source = FileSource(str(tmp_path))
    assert source.event_time is None
    assert source.create_planner().find_time(source.discover(), 0) is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "+02:00"])
def test_statistics_of_any_unit_find_the_row_group(tmp_path: Path, unit: str, zone: str | None) -> None:
    at = pa.array([-5, -1, 0, 1, 7, 7], pa.timestamp("s")).cast(pa.timestamp(unit, tz=zone))
    pq.write_table(pa.table({"ts": at}), tmp_path / "a.parquet", row_group_size=2)
    source = FileSource(str(tmp_path), event_time="ts")
    found = [
        (source.create_planner().find_time(source.discover(), second * SECOND_US) or {})["a.parquet"]
        for second in (-9, -1, 0, 1, 2, 7, 8)
    ]
    assert found == [0, 0, 1, 1, 2, 2, None]
    check_source(source, rows=1)


def test_parts_of_a_microsecond_before_1970_are_cut_as_the_rows_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ts": pa.array([-1_500, -500], pa.timestamp("ns"))}), tmp_path / "a.parquet")
    source = FileSource(str(tmp_path), event_time="ts")
    assert [row["ts"].microsecond for row in read(source)] == [999_999, 0]
    assert source.create_planner().find_time(source.discover(), 0) == {"a.parquet": 0}


@pytest.mark.parametrize("statistics", [True, False])
def test_a_time_beyond_64_bits_of_microseconds_makes_the_file_unreadable(tmp_path: Path, *, statistics: bool) -> None:
    """As Java's largest number of milliseconds, which programs write for a time that never comes."""
    parquet(tmp_path / "a.parquet", table(0, 10))
    at = pa.array([0, 2**63 - 1], pa.timestamp("ms", tz="UTC"))
    parquet(tmp_path / "b.parquet", pa.table({"id": [7, 8], "ts": at}), write_statistics=statistics)
    with pytest.raises(FileUnreadable, match=r"cannot read the index of file .*b.parquet.*9223372036854775807"):
        read(FileSource(str(tmp_path), schema=SCHEMA, event_time="ts"))
    with pytest.raises(FileUnreadable, match=r"cannot read the rows of file .*b.parquet.*9223372036854775807"):
        read(FileSource(str(tmp_path), schema=SCHEMA))
    assert len(read(FileSource(str(tmp_path), schema=SCHEMA, event_time="ts", on_unreadable="skip"))) == 10


@pytest.mark.parametrize("options", [{"write_statistics": False}, {"use_deprecated_int96_timestamps": True}])
def test_without_statistics_the_column_itself_is_asked(tmp_path: Path, options: dict[str, Any]) -> None:
    parquet(tmp_path / "a.parquet", table(0, 50), **options)
    source = FileSource(str(tmp_path), event_time="ts", schema=SCHEMA)
    checked = check_source(source)
    assert checked.found_by_time > 4


def test_a_row_group_without_a_time_is_never_found(tmp_path: Path) -> None:
    rows = pa.table({"ts": pa.array([None, None, 5, None], TIME)})
    for name, statistics in (("a", True), ("b", False)):
        pq.write_table(rows, tmp_path / f"{name}.parquet", row_group_size=2, write_statistics=statistics)
    source = FileSource(str(tmp_path), event_time="ts")
    planner = source.create_planner()
    assert planner.find_time(source.discover(), -(2**63)) == {"a.parquet": 1, "b.parquet": 1}
    assert planner.find_time(source.discover(), 6) == {"a.parquet": None, "b.parquet": None}


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_times_in_text_may_have_a_zone_or_none(tmp_path: Path, kind: str) -> None:
    texts = ["2026-01-01T00:00:00Z", "2026-01-01 00:00:01.5", "2026-01-01T02:00:02+02:00", "2026-01-01"]
    lines = [f'{{"ts": "{text}"}}' for text in texts] if kind == "json" else ["ts", *texts]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    source = FileSource(str(tmp_path), format=kind, schema=pa.schema([("ts", pa.string())]), event_time="ts")
    midnight = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert [(row["ts"] - midnight).total_seconds() for row in read(source)] == [0, 1.5, 2, 0]


# -- which files


def names(source: FileSource) -> list[str]:
    return [split.split_id for split in source.discover()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for index, name in enumerate(["b.csv", "a.csv", "x.txt", "d1/c.csv", "d1/d2/e.csv", "d3/f[1].csv",
                                  ".hidden.csv", "_SUCCESS", "_tmp/g.csv", "_day=1/h.csv", "d1/.h/i.csv",
                                  "j.csv._COPYING_", "k_$folder$"]):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")
        touch(tmp_path / name, 1_000 + index)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "recursive", "expected"),
    [
        ("", False, ["b.csv", "a.csv", "x.txt"]),
        ("", True, ["b.csv", "a.csv", "x.txt", "d1/c.csv", "d1/d2/e.csv", "d3/f[1].csv", "_day=1/h.csv"]),
        ("*.csv", False, ["b.csv", "a.csv"]),
        ("[!b].csv", False, ["a.csv"]),
        ("{a,x}.*", False, ["a.csv", "x.txt"]),
        ("d?", False, ["d1/c.csv", "d3/f[1].csv"]),
        ("d?/", False, ["d1/c.csv", "d3/f[1].csv"]),
        ("d1", False, ["c.csv"]),
        ("d*/*.csv", False, ["d1/c.csv", "d3/f[1].csv"]),
        ("**/*.csv", False, ["b.csv", "a.csv", "d1/c.csv", "d1/d2/e.csv", "d3/f[1].csv", "_day=1/h.csv"]),
        ("d1/*", False, ["c.csv", "d2/e.csv"]),
        ("a.csv", False, ["a.csv"]),
    ],
)
def test_paths_are_folders_patterns_and_files(tree: Path, path: str, recursive: bool, expected: list[str]) -> None:
    assert names(FileSource(str(tree / path), format="csv", recursive=recursive)) == expected
    if path:
        uri = f"{tree.as_uri()}/{path}"
        assert names(FileSource(uri, format="csv", recursive=recursive)) == expected


def test_several_paths_have_one_root_and_every_file_once(tree: Path) -> None:
    source = FileSource([str(tree / "d1"), str(tree / "d3/*"), str(tree / "d1/c.csv")], format="csv")
    assert names(source) == ["d1/c.csv", "d3/f[1].csv"]
    assert len(read(source)) == 2


def test_a_file_system_may_be_given(tree: Path) -> None:
    below = fs.SubTreeFileSystem(str(tree), fs.LocalFileSystem())
    source = FileSource("d1", format="csv", filesystem=below)
    assert names(source) == ["c.csv"]
    assert read(pickle.loads(pickle.dumps(source))) == [{"id": 1}]  # noqa: TID251  # our own


def test_files_of_two_file_systems_are_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match="expected one file system"):
        FileSource([str(tree), "mock:///x"], format="csv").discover()


def test_an_unknown_file_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ValueError, match=r"a file system that Arrow knows, got 'memory://x'. Hint: install fsspec"):
        FileSource("memory://x", format="csv").discover()


def test_an_address_that_arrow_cannot_read_is_told_with_the_reason_and_without_its_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InvalidFileOption, match=r"got 's3://bucket/a b'. .*syntax error at character ' '") as refused:
        FileSource("s3://AKIA:hunter2@bucket/a b", format="csv").discover()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "folder", "matches"),
    [
        ("s3://bucket/in/*.csv?region=eu-central-1&scheme=http", "bucket/in", "a.csv"),
        ("s3://bucket/in/part-?.csv?region=eu-central-1", "bucket/in", "part-1.csv"),
        ("s3://bucket/in?a=b/*.csv?region=eu-central-1", "bucket", "inXa=b/a.csv"),
    ],
)
def test_an_address_may_have_parameters_of_its_file_system(path: str, folder: str, matches: str) -> None:
    listing = resolve_paths([path])
    assert isinstance(listing.filesystem, fs.S3FileSystem)
    assert listing.filesystem.region == "eu-central-1"
    (place,) = listing.places
    assert place.folder == folder
    assert place.pattern.fullmatch(matches)


@pytest.mark.parametrize("pattern", ["f[[]1].csv", "f[+-[]1].csv", "f[[&&]1].csv", "f[!--a]1].csv"])
def test_what_python_reads_otherwise_in_brackets_means_itself(tree: Path, pattern: str) -> None:
    assert names(FileSource(str(tree / "d3" / pattern), format="csv")) == ["f[1].csv"]


def test_a_second_mark_in_brackets_is_a_character(tmp_path: Path) -> None:
    for name in ("!.csv", "a.csv", "b.csv"):
        (tmp_path / name).write_text("id\n1\n")
    assert names(FileSource(str(tmp_path / "[!!a].csv"), format="csv")) == ["b.csv"]


def test_a_file_whose_name_is_no_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / os.fsdecode(b"b\xff.csv")).write_text("id\n1\n")
    with pytest.raises(InvalidFileOption, match=r"expected files .*UTF-8, got b'b\\xff\.csv'\. Hint: rename"):
        FileSource(str(tmp_path), format="csv").discover()


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(InvalidFileOption, match=r"expected patterns as of a shell.* bad character range z-a"):
        FileSource("/x/[z-a]", format="csv").discover()


def test_modified_after_and_min_age_leave_files_out(tree: Path) -> None:
    after = datetime.fromtimestamp(1_000, timezone.utc)
    assert names(FileSource(str(tree), format="csv", modified_after=after)) == ["a.csv", "x.txt"]
    assert names(FileSource(str(tree), format="csv", modified_after=1_001 * SECOND_US)) == ["x.txt"]
    young = FileSource(str(tree), format="csv", min_age="10 seconds", now_us=lambda: 1_011 * SECOND_US)
    assert names(young) == ["b.csv", "a.csv"]


def test_a_wall_clock_that_is_set_back_keeps_no_file_too_young(tree: Path) -> None:
    """A file unchanged for `min_age` is old enough for any wall clock; a changed file is not."""
    steady = [0]
    source = FileSource(
        str(tree), format="csv", min_age="10 seconds", now_us=lambda: 900 * SECOND_US, steady_us=lambda: steady[0]
    )
    assert names(source) == []
    steady[0] = 10 * SECOND_US - 1
    assert names(source) == []
    touch(tree / "x.txt", 1_003)
    steady[0] += 1
    assert names(source) == ["b.csv", "a.csv"]
    steady[0] += 10 * SECOND_US
    assert names(source) == ["b.csv", "a.csv", "x.txt"]


# -- columns


def test_a_first_file_with_names_of_columns_only_says_no_types(tmp_path: Path) -> None:
    for at, (name, rows) in enumerate([("a", ""), ("b", "7,2026-01-01T00:00:00Z\n"), ("c", "x,y\n")]):
        (tmp_path / f"{name}.csv").write_text(f"id,ts\n{rows}")
        os.utime(tmp_path / f"{name}.csv", (at, at))
    source = FileSource(str(tmp_path), format="csv", event_time="ts")
    assert source.schema == pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])


def test_the_first_file_says_the_columns(tmp_path: Path) -> None:
    parquet(tmp_path / "b.parquet", table(0, 5))
    pq.write_table(pa.table({"other": [1]}), tmp_path / "a.parquet")
    touch(tmp_path / "b.parquet", 1_000)
    source = FileSource(str(tmp_path))
    assert source.schema == SCHEMA
    assert read(source)[-1] == {"id": None, "ts": None, "name": None}
    assert pickle.loads(pickle.dumps(source)).__dict__["schema"] == SCHEMA  # noqa: TID251  # every process has the same


def test_columns_may_be_chosen(tmp_path: Path, kind: str) -> None:
    filled(tmp_path, kind, (3,))
    source = FileSource(str(tmp_path), format=kind, schema=SCHEMA, columns=["name", "id"])
    assert read(source)[0] == {"name": "n0", "id": 0}
    assert list(read(source)[0]) == ["name", "id"]


def test_types_are_those_that_spark_has() -> None:
    plain = pa.schema(
        [("a", pa.dictionary(pa.int32(), pa.large_string())), ("b", pa.list_(pa.timestamp("ns"))), ("c", pa.uint32()),
         ("d", pa.struct([("e", pa.timestamp("s"))])), ("f", pa.null()), ("g", pa.large_binary()), ("h", pa.bool_()),
         ("i", pa.map_(pa.string(), pa.float16())), ("j", pa.uint64()), ("t", pa.string())]
    )  # fmt: skip
    assert spark_schema(plain, event_time="t") == pa.schema(
        [("a", pa.string()), ("b", pa.list_(TIME)), ("c", pa.int64()), ("d", pa.struct([("e", TIME)])),
         ("f", pa.string()), ("g", pa.binary()), ("h", pa.bool_()), ("i", pa.map_(pa.string(), pa.float32())),
         ("j", pa.decimal128(20)), ("t", TIME)]
    )  # fmt: skip


def test_such_types_are_read(tmp_path: Path) -> None:
    rows = pa.table(
        {"a": pa.array(["x"]).dictionary_encode(), "b": pa.array([[5_500]], pa.list_(pa.timestamp("ns"))),
         "j": pa.array([2**63], pa.uint64())}
    )  # fmt: skip
    pq.write_table(rows, tmp_path / "a.parquet")
    (row,) = read(FileSource(str(tmp_path)))
    assert row["a"] == "x"
    assert row["b"][0].microsecond == 5
    assert row["j"] == 2**63


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_digits_beyond_a_microsecond_are_cut_off(tmp_path: Path, kind: str) -> None:
    """As a Java program writes them, and a Go program."""
    texts = ["2026-01-01T00:00:00.123456789Z", "2026-01-01 00:00:00.123456789", "2026-01-01T02:00:00.1234567+02:00"]
    lines = {"csv": ["ts", *texts], "json": [f'{{"ts": "{text}"}}' for text in texts]}
    if kind == "parquet":
        parquet(tmp_path / "a.parquet", pa.table({"ts": texts}))
    else:
        (tmp_path / f"a.{kind}").write_text("\n".join(lines[kind]))
    for options in ({"event_time": "ts"}, {"schema": pa.schema({"ts": TIME})}):
        rows = read(FileSource(str(tmp_path), format=kind, **options))
        assert [row["ts"] for row in rows] == [datetime(2026, 1, 1, 0, 0, 0, 123_456, timezone.utc)] * 3


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_times_in_texts_of_any_type_of_arrow_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    """As Polars and pandas write them."""
    texts = pa.array(["2026-01-01", "2026-01-01T00:00:01Z", "", None]).cast(kind)
    parquet(tmp_path / "a.parquet", pa.table({"ts": texts}))
    midnight = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = read(FileSource(str(tmp_path), event_time="ts"))
    assert [row["ts"] for row in rows] == [midnight, midnight + timedelta(seconds=1), None, None]


@pytest.mark.parametrize("kind", [pa.null(), pa.date32(), pa.date64()], ids=str)
def test_days_and_a_column_without_a_value_are_times_where_the_schema_says_so(
    tmp_path: Path, kind: pa.DataType
) -> None:
    day = pa.array([None if kind == pa.null() else date(2026, 1, 1)], kind)
    parquet(tmp_path / "a.parquet", pa.table({"ts": day}))
    parquet(tmp_path / "b.parquet", pa.table({"ts": ["2026-01-02"]}))
    rows = read(FileSource(str(tmp_path), schema=pa.schema({"ts": TIME}), event_time="ts"))
    first = None if kind == pa.null() else datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert [row["ts"] for row in rows] == [first, datetime(2026, 1, 2, tzinfo=timezone.utc)]


def test_a_time_of_day_is_the_number_of_its_file(tmp_path: Path) -> None:
    at = pa.array([3_600_000], pa.time32("ms"))
    rows = pa.table({"a": at, "b": pa.StructArray.from_arrays([at], ["c"]), "d": at.cast(pa.time64("us"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert read(FileSource(str(tmp_path))) == [{"a": 3_600_000, "b": {"c": 3_600_000}, "d": 3_600_000_000}]


def test_a_time_of_day_in_csv_is_text(tmp_path: Path) -> None:
    """Arrow takes it for a time, which is a number for Spark, but makes no number of the text."""
    (tmp_path / "a.csv").write_text("id,at\n1,12:30:00\n2,\n")
    source = FileSource(str(tmp_path), format="csv")
    assert source.schema.types == [pa.int64(), pa.string()]
    assert read(source) == [{"id": 1, "at": "12:30:00"}, {"id": 2, "at": ""}]


def test_types_of_arrow_become_those_that_spark_reads(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([b"x"], pa.binary_view()), "b": pa.array([1_999], pa.duration("ns"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    source = FileSource(str(tmp_path))
    assert source.schema.types == [pa.binary(), pa.duration("us")]
    assert read(source) == [{"a": b"x", "b": timedelta(microseconds=1)}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"event_time": "when"}, r"FileSource\(.*, format='parquet'\): no column 'when' among \['id', 'ts', 'name'\]"),
        ({"columns": ["id", "x"]}, "no column 'x' among"),
        ({"event_time": "id"}, "event_time 'id' is int64. Hint: write times, or text in ISO 8601"),
    ],
)
def test_columns_that_are_not_there_are_named(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    parquet(tmp_path / "a.parquet", table(0, 5))
    with pytest.raises(NoSchema, match=text):
        _ = FileSource(str(tmp_path), **options).schema


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / f"a.{kind}", pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]))
    with pytest.raises(NoSchema, match=r"column 'id' is there more than once in \['id', 'id'\]. Hint: "):
        _ = FileSource(str(tmp_path), format=kind).schema


def test_without_a_file_the_columns_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(NoSchema, match=r"there is no file yet to take the columns from. Hint: pass schema="):
        _ = FileSource(str(tmp_path)).schema
    assert FileSource(str(tmp_path), schema=SCHEMA).schema == SCHEMA


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_text_file_with_nothing_in_it_has_no_rows_also_where_it_is_compressed(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    """As a log that is rotated after an hour without a line."""
    WRITERS[kind](tmp_path / f"a.{kind}", table(0, 3))
    (tmp_path / f"b.{kind}.gz").write_bytes(gzip.compress(content))
    (tmp_path / f"c.{kind}").write_bytes(content)
    assert len(read(FileSource(str(tmp_path), format=kind, schema=SCHEMA, event_time="ts"))) == 3
    (tmp_path / f"d.{kind}.gz").write_bytes(gzip.compress(b"\n" * 10_000 + b'{"id": 1'))
    with pytest.raises(FileUnreadable):
        read(FileSource(str(tmp_path), format=kind, schema=SCHEMA, event_time="ts"))


def test_the_sizes_of_a_very_large_text_file_are_shares_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows times bytes pass 64 bits in a file of 100 GB with 100 million rows."""
    monkeypatch.setattr(formats, "_text", lambda placed: placed.filesystem.open_input_file(placed.path))
    csv(tmp_path / "a.csv", table(0, STEP_ROWS + 1))
    index = FORMATS["csv"].index(PlacedFile(fs.LocalFileSystem(), str(tmp_path / "a.csv"), 2**60), SCHEMA, None)
    assert index.size_bytes.tolist() == [0, 2**60 * STEP_ROWS // (STEP_ROWS + 1), 2**60]


def test_a_folder_that_is_not_there_tells_no_columns(tmp_path: Path) -> None:
    with pytest.raises(NoSchema, match=r"FileSource\(.*: its files cannot be listed \(FileNotFoundError: .*nowhere'"):
        _ = FileSource(str(tmp_path / "nowhere")).schema


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_compressed_text_is_read(tmp_path: Path, kind: str) -> None:
    filled(tmp_path, kind, (50,))
    (plain,) = tmp_path.iterdir()
    with gzip.open(tmp_path / f"{plain.name}.gz", "wb") as packed:
        packed.write(plain.read_bytes())
    plain.unlink()
    assert read(FileSource(str(tmp_path), format=kind, schema=SCHEMA)) == table(0, 50).to_pylist()


def test_an_empty_file_holds_nothing(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        parquet(tmp_path / "empty.parquet", table(0, 0))
    else:
        (tmp_path / f"empty.{kind}").write_text("")
    source = FileSource(str(tmp_path), format=kind, schema=SCHEMA, event_time="ts")
    splits = source.discover()
    planner = source.create_planner()
    end = planner.latest(splits)[f"empty.{kind}"]
    assert (end.rows, end.finished) == (0, True)
    assert planner.find_time(splits, 0) == {f"empty.{kind}": None}
    assert read(source) == []


# -- trouble


def damage(path: Path, kind: str, how: str) -> str:
    """Damage a file and return what the error must say."""
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[:-20])
        return {"parquet": "Parquet magic bytes not found", "csv": "Expected 3 columns", "json": "JSON parse error"}[
            kind
        ]
    if how == "garbage":
        path.write_bytes(bytes(random.Random(7).randrange(256) for _ in range(5_000)))
        return "ArrowInvalid"
    if kind == "parquet":  # a page of the second row group; the footer is intact
        middle = pq.read_metadata(path).row_group(1).column(0).data_page_offset
        path.write_bytes(data[: middle + 15] + bytes(40) + data[middle + 55 :])
        return "OSError"
    path.write_bytes(data.replace(b"3", b"x"))
    return "conversion" if kind == "csv" else "JSON"


@pytest.mark.parametrize("how", ["cut", "garbage", "pages"])
def test_a_damaged_file_is_named_or_skipped(
    tmp_path: Path, kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, kind, (40, 40))
    bad = tmp_path / f"part-1.{kind}"
    text = damage(bad, kind, how)
    source = FileSource(str(tmp_path), format=kind, schema=SCHEMA)
    with pytest.raises(FileUnreadable) as failed:
        read(source)
    said = str(failed.value)
    assert text in said
    assert str(bad) in said
    assert f"(split 'part-1.{kind}')" in said
    assert "Hint: give the right to read it if that is missing, or pass a schema= that fits all files" in said
    assert str(pickle.loads(pickle.dumps(failed.value))) == said  # noqa: TID251  # our own

    skipping = FileSource(str(tmp_path), format=kind, schema=SCHEMA, on_unreadable="skip")
    rows = read(skipping)
    assert rows[:40] == table(0, 40).to_pylist()
    assert len(rows) < 80
    assert f"skipped from position {len(rows[40:]) // 10} on, to " in caplog.text
    planner, counted = skipping.create_planner(), list[Mapping[str, float]]()
    splits = skipping.discover()
    ends = planner.latest(splits)
    ranges = [replace(split, stop=ends[split.split_id].position) for split in splits]
    list(read_slices(skipping, ranges, count=counted.append))
    assert planner.metric_values()["data_losses"] + counted[0]["data_losses"] == 1
    assert str(bad) in caplog.text


def test_a_file_that_may_not_be_read_is_named_by_the_file_systems_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(tmp_path, "csv", (5,))

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lowmark.sources.files.formats._text", refuse)
    with pytest.raises(FileUnreadable, match=r"cannot read the index of file .*part-0.csv .*Permission denied"):
        read(source)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("how", ["gone", "grown", "rewritten"])
def test_a_file_that_changed_is_named_or_skipped(
    tmp_path: Path, how: str, planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, "parquet", (40, 40))

    def change() -> None:
        path = tmp_path / "part-1.parquet"
        if how == "gone":
            path.unlink()
        elif how == "grown":
            parquet(path, table(0, 90))
            touch(path, 1_001)
        else:
            touch(path, 5_000)

    def attempt(source: FileSource) -> list[dict[str, Any]]:
        splits = list(source.discover()) if not changed else found
        found[:] = splits
        if planned:
            ends = source.create_planner().latest(splits)
            ranges = [replace(split, stop=ends[split.split_id].position) for split in splits]
            change()
            return [row for part in read_slices(source, ranges) for row in part.rows.to_pylist()]
        if not changed:
            change()
            changed.append(how)
        return read(source, splits)

    changed: list[str] = []
    found: list[FileSplit] = []
    with pytest.raises(FileChanged) as failed:
        attempt(FileSource(str(tmp_path), schema=SCHEMA))
    said = str(failed.value)
    assert "part-1.parquet' was" not in said
    assert "(split 'part-1.parquet') was" in said
    assert {"gone": "is gone.", "grown": "bytes", "rewritten": "modified 1970-01-01 01:23:20.000+00:00"}[how] in said

    if planned:
        filled(tmp_path, "parquet", (40, 40))
    assert attempt(FileSource(str(tmp_path), schema=SCHEMA, on_vanished="skip")) == table(0, 40).to_pylist()
    assert "skipped from position 0 on" in caplog.text


@pytest.mark.parametrize("on_vanished", ["error", "skip"])
def test_a_file_that_is_rewritten_while_it_is_read_fails_its_batch_and_is_skipped_when_it_is_read_again(
    tmp_path: Path, kind: str, on_vanished: Any
) -> None:
    filled(tmp_path, kind, (35,))
    source = FileSource(str(tmp_path), format=kind, schema=SCHEMA, on_vanished=on_vanished)
    [split] = source.discover()
    part = replace(split, stop=source.latest([split])[split.split_id].position)
    rows = source.read(part)
    next(rows)
    touch(tmp_path / f"part-0.{kind}", 5_000)
    with pytest.raises(FileChanged, match=r"modified 1970-01-01 00:16:40.* when it was found, and is .* 01:23:20"):
        list(rows)
    if on_vanished == "skip":
        assert list(source.read(part)) == []


def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(tmp_path: Path, kind: str) -> None:
    source = filled(tmp_path, kind, (35,))
    [split] = source.discover()
    rows = source.read(replace(split, stop=source.latest([split])[split.split_id].position))
    first, _ = next(rows)
    (tmp_path / f"part-0.{kind}").unlink()
    assert first.num_rows + sum(rest.num_rows for rest, _ in rows) == 35


def test_a_file_that_goes_in_the_moment_it_is_opened_is_gone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(tmp_path, "csv", (5,))

    def gone(*args: object) -> None:
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr("lowmark.sources.files.formats._text", gone)
    with pytest.raises(FileChanged, match=r"and is gone\. Hint"):
        read(source)


def test_a_skipped_file_has_no_rows_for_the_planner(tmp_path: Path) -> None:
    filled(tmp_path, "parquet", (40, 40))
    damage(tmp_path / "part-0.parquet", "parquet", "cut")
    source = FileSource(str(tmp_path), schema=SCHEMA, event_time="ts", on_unreadable="skip")
    planner = source.create_planner()
    splits = source.discover()
    assert planner.latest(splits)["part-0.parquet"] == SplitEnd(position=0, rows=0, size_bytes=0, finished=True)
    assert planner.find_time(splits, 0) == {"part-0.parquet": None, "part-1.parquet": 0}
    assert planner.latest([replace(split, start=2) for split in splits])["part-0.parquet"].position == 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits whose indexes were read."""
    asked: list[str] = []
    index = FileSource.index

    def counted(self: FileSource, split: FileSplit) -> object:
        asked.append(split.split_id)
        return index(self, split)

    monkeypatch.setattr(FileSource, "index", counted)
    return asked


def test_the_planner_reads_no_index_again_however_many_splits_are_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setattr("lowmark.sources.files.source._KEPT_INDEXES", 2)
    source = filled(tmp_path, "parquet", (5, 5, 5, 5))
    damage(tmp_path / "part-2.parquet", "parquet", "cut")
    source = FileSource(str(tmp_path), schema=SCHEMA, event_time="ts", on_unreadable="skip")
    planner, splits = source.create_planner(), source.discover()
    assert isinstance(planner, FilePlanner)
    for live in (splits[:3], splits[:3], [splits[0], *splits[2:]], [splits[0], *splits[2:]]):  # one ends, one is new
        assert [end.rows for end in planner.latest(live).values()] == [
            0 if split.split_id == "part-2.parquet" else 5 for split in live
        ]
        planner.find_time(live[1:], 0)
    assert sorted(asked) == sorted(split.split_id for split in splits)
    assert planner.metric_values() == {"data_losses": 1}
    assert len(planner._indexes) == 3  # as many as were live at once


def test_an_index_is_read_once(tmp_path: Path, asked: list[str]) -> None:
    source = filled(tmp_path, "parquet")
    planner, splits = source.create_planner(), source.discover()
    planner.latest(splits)
    planner.find_time(splits, 0)
    planner.latest(splits)
    assert sorted(asked) == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"format": "xml"}, ValueError, r"format: expected one of \['csv', 'json', 'parquet'\], got 'xml'"),
        ({"on_unreadable": "ignore"}, ValueError, 'on_unreadable: expected "error" or "skip", got \'ignore\''),
        ({"on_vanished": None}, ValueError, "on_vanished: expected"),
        ({"columns": ["a"], "event_time": "b"}, ValueError, "columns: expected event_time 'b' among them"),
        ({"format": ["csv"]}, InvalidFileOption, "format: expected one of"),
        ({"paths": None}, InvalidFileOption, "paths: expected texts, got None"),
        ({"paths": Path("x")}, InvalidFileOption, r"paths: expected texts, got PosixPath.* Hint: .* str\(path\)"),
        ({"paths": [["x"]]}, InvalidFileOption, r"paths: expected texts, got \['x'\]"),
        ({"paths": b"x"}, InvalidFileOption, "paths: expected texts"),
        ({"paths": ""}, InvalidFileOption, "paths: expected texts, got ''"),
        ({"columns": 5}, InvalidFileOption, "columns: expected names of columns, each once, got 5"),
        ({"columns": "ab", "event_time": "a"}, InvalidFileOption, r"columns: expected .* Hint: write \['ab'\]"),
        ({"columns": []}, InvalidFileOption, "columns: expected names of columns, each once"),
        ({"columns": ["a", "a"]}, InvalidFileOption, "columns: expected names of columns, each once"),
        ({"event_time": ["a"]}, InvalidFileOption, "event_time: expected the name of a column"),
        ({"schema": "a int"}, InvalidFileOption, "schema: expected a pyarrow.Schema, got 'a int'"),
        (
            {"filesystem": object()},
            InvalidFileOption,
            "filesystem: expected a pyarrow.fs.FileSystem, got a object.*FSS",
        ),
        ({"modified_after": "2026-01-01"}, InvalidFileOption, "modified_after: expected an aware datetime, or micro"),
        ({"modified_after": float("nan")}, InvalidFileOption, "modified_after: expected .*, got nan"),
        ({"bounded": "false"}, InvalidFileOption, "bounded: expected True or False, got 'false'"),
        ({"discover_every": "soon"}, InvalidDuration, "discover_every"),
        ({"discover_every": "0 seconds"}, InvalidFileOption, "discover_every: expected a duration above 0"),
        ({"max_age": 5}, InvalidDuration, "max_age"),
        ({"modified_after": datetime(2026, 1, 1)}, ValueError, "modified_after: expected an aware datetime"),  # noqa: DTZ001
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        FileSource(**{"paths": "x", **options})


# -- discovery


class Enumerated:
    """The enumerator of a source, with one reader."""

    def __init__(self, source: FileSource, state: Any = None) -> None:
        self.context = ManualEnumeratorContext[FileSplit](num_subtasks=1)
        self.enumerator = (
            source.create_enumerator(self.context) if state is None else source.restore_enumerator(self.context, state)
        )
        self.enumerator.start()
        self.context.register(0)
        self.enumerator.add_reader(0)
        self.context.run_async()

    @property
    def found(self) -> list[str]:
        return [split.split_id for _, split in self.context.assigned]


def test_new_files_are_found_once_and_changed_ones_are_not_new(tmp_path: Path) -> None:
    filled(tmp_path, "parquet", (5, 5))
    run = Enumerated(FileSource(str(tmp_path), discover_every="10 seconds"))
    assert run.context.periods == [10.0]
    parquet(tmp_path / "new.parquet", table(0, 5))
    touch(tmp_path / "part-0.parquet", 9_000)
    run.context.next_period()
    run.context.next_period()
    assert run.found == ["part-0.parquet", "part-1.parquet", "new.parquet"]


def test_a_bounded_source_ends_with_what_was_there(tmp_path: Path) -> None:
    run = Enumerated(filled(tmp_path, "parquet", (5,)))
    parquet(tmp_path / "new.parquet", table(0, 5))
    run.context.next_period()
    assert run.context.no_more_splits == {0}
    assert run.found == ["part-0.parquet"]

    again = Enumerated(filled(tmp_path, "parquet", (5,)), run.enumerator.snapshot_state(1))
    assert again.found == []
    assert again.context.no_more_splits == {0}


def test_a_source_that_is_bounded_from_a_restart_on_reads_what_is_there_then(tmp_path: Path) -> None:
    """The source read no file that had come since the query was stopped, and the query ended."""
    filled(tmp_path, "parquet", (5,))
    state = Enumerated(FileSource(str(tmp_path))).enumerator.snapshot_state(1)
    parquet(tmp_path / "new.parquet", table(0, 5))
    bounded = FileSource(str(tmp_path), bounded=True)
    run = Enumerated(bounded, state)
    assert (run.found, run.context.no_more_splits) == (["new.parquet"], {0})

    parquet(tmp_path / "newer.parquet", table(0, 5))
    assert Enumerated(bounded, run.enumerator.snapshot_state(2)).found == []
    assert Enumerated(FileSource(str(tmp_path)), run.enumerator.snapshot_state(2)).found == ["newer.parquet"]


def test_a_restart_goes_on_with_new_files(tmp_path: Path) -> None:
    filled(tmp_path, "parquet", (5, 5))
    source = FileSource(str(tmp_path))
    state = Enumerated(source).enumerator.snapshot_state(1)
    parquet(tmp_path / "new.parquet", table(0, 5))
    assert Enumerated(source, state).found == ["new.parquet"]


def test_no_file_is_read_again_because_a_path_is_added_or_taken_away(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for number, folder in enumerate((one, two, one / "in")):
        folder.mkdir(exist_ok=True)
        parquet(folder / f"{number}.parquet", table(0, 5))
        touch(folder / f"{number}.parquet", 1_000 + number)
    first = Enumerated(FileSource(str(one), recursive=True))
    assert first.found == ["0.parquet", "in/2.parquet"]
    both = Enumerated(FileSource([str(one), str(two)], recursive=True), first.enumerator.snapshot_state(1))
    assert both.found == ["two/1.parquet"]
    parquet(one / "new.parquet", table(0, 5))
    again = Enumerated(FileSource(str(one / "in"), recursive=True), both.enumerator.snapshot_state(2))
    assert again.found == []
    back = Enumerated(FileSource([str(one), str(two)], recursive=True), again.enumerator.snapshot_state(3))
    assert back.found == ["one/new.parquet"], "the files of a path that is added again were read before"
    one.rename(tmp_path / "moved")
    assert Enumerated(FileSource(str(tmp_path / "moved/in")), again.enumerator.snapshot_state(3)).found == []


def test_files_of_two_buckets_are_read_once() -> None:
    """The root of two buckets is empty, and S3 and Google's storage refuse a path that begins with a separator."""
    buckets, _ = fs.FileSystem.from_uri("mock:///")
    for name in ("one/in/a.csv", "two/b.csv"):
        buckets.create_dir(name.rpartition("/")[0])
        with buckets.open_output_stream(name) as file:
            file.write(b"id\n1\n")
    both = FileSource(["one/in", "two"], format="csv", filesystem=buckets)
    assert [both.listing.path(name) for name in names(both)] == ["one/in/a.csv", "two/b.csv"]
    assert read(both) == [{"id": 1}, {"id": 1}]
    first = Enumerated(FileSource("one/in", format="csv", filesystem=buckets))
    assert first.found == ["a.csv"]
    second = Enumerated(both, first.enumerator.snapshot_state(1))
    assert second.found == ["two/b.csv"]
    third = Enumerated(FileSource("one/in", format="csv", filesystem=buckets), second.enumerator.snapshot_state(2))
    assert third.found == []
    assert Enumerated(both, third.enumerator.snapshot_state(3)).found == []


def test_max_age_bounds_what_is_remembered(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), max_age="100 seconds")
    for number, seconds in enumerate([1_000, 1_050, 1_120]):
        parquet(tmp_path / f"{number}.parquet", table(0, 5))
        touch(tmp_path / f"{number}.parquet", seconds)
    run = Enumerated(source)
    assert run.found == ["1.parquet", "2.parquet"], "the first is too old by the newest"

    parquet(tmp_path / "3.parquet", table(0, 5))
    touch(tmp_path / "3.parquet", 1_200)
    run.context.next_period()
    state = run.enumerator.snapshot_state(1)
    assert isinstance(state, object)
    assert state.assigned == ("2.parquet", "3.parquet")
    (tmp_path / "3.parquet").unlink()
    again = Enumerated(source, state)
    assert again.found == [], "what is forgotten is not new although the newest file is gone"


def test_a_folder_that_is_not_there_is_an_error_of_discovery(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryFailed, match=r"cannot discover splits, at the first attempt: FileNotFoundError"):
        Enumerated(FileSource(str(tmp_path / "missing"), schema=SCHEMA))


def test_ids_are_of_files_and_never_of_machines(tmp_path: Path) -> None:
    source = filled(tmp_path, "parquet", (5,))
    (split,) = source.discover()
    assert isinstance(split, SourceSplit)
    assert source.split_serializer.serialize(split).find(str(tmp_path).encode()) == -1
    assert isinstance(FileChanged("s", "p", "i", "a", "b"), LowmarkError)


def test_of_many_files_the_newest_are_remembered_and_none_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_source, "REMEMBERED_FILES", 4)

    def add(number: int, seconds: int) -> None:
        parquet(tmp_path / f"{number:02}.parquet", table(0, 1))
        touch(tmp_path / f"{number:02}.parquet", seconds)

    for number in range(20):
        add(number, 1_000 + number)
    source = FileSource(str(tmp_path))
    run = Enumerated(source)
    state = run.enumerator.snapshot_state(1)
    assert state.assigned == ("16.parquet", "17.parquet", "18.parquet", "19.parquet")
    add(20, 1_003)  # moved here with its old time
    run.context.next_period()
    assert run.found == [f"{number:02}.parquet" for number in range(21)]

    add(21, 1_021)
    again = Enumerated(source, run.enumerator.snapshot_state(2))
    assert again.found == ["21.parquet"]
