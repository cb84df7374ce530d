"""`lowmark audit files`: splits by file, files that have no row, another column or an empty cell, and its page."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lowmark.integration.audit import files
from lowmark.integration.audit.audit import Question
from lowmark.integration.audit.event_time import TimeReader
from lowmark.integration.audit.files import FilesAudit
from lowmark.integration.audit.page import page
from lowmark.integration.audit.schema import Schema
from lowmark.integration.cli.audit import _properties, _reader, _Watch
from lowmark.integration.errors import AuditImpossible
from lowmark.watermark.replay.report import AuditReport
from pyarrow import csv, parquet
from rich.cells import cell_len

from tests.integration.audit.test_audit import call
from tests.servers.local import LOWMARK
from tests.worlds.encrypted_files import encrypt

START_S = 1_700_000_000


def rows(count: int, first: int = 0) -> str:
    """JSON lines, a second apart."""
    return "".join(json.dumps({"at": START_S + first + row}) + "\n" for row in range(count))


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files, the first as the oldest."""
    for age, (name, text) in enumerate(files.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, (START_S + age, START_S + age))


def audited(path: Path, *split: str) -> AuditReport:
    return FilesAudit(path, Question(), "at", split, TimeReader(), (START_S + 10**6) * 10**6).run()


def test_the_page_shows_splits_that_were_found_after_the_first_batch(tmp_path: Path) -> None:
    write(tmp_path, {"a.json": rows(5_000), "b.json": rows(5_000, first=100)})
    assert page(audited(tmp_path)).count('stroke="var(--split)"') == 2


def test_the_page_draws_only_splits_that_have_a_time(tmp_path: Path) -> None:
    """Twenty-four files without a usable time take all lines of the picture."""
    write(
        tmp_path,
        {f"a{number:02}.json": '{"at": "soon"}\n' * 2_000 for number in range(24)}
        | {f"b{number}.json": rows(5_000, first=5_000 * number) for number in range(3)},
    )
    assert page(audited(tmp_path)).count('stroke="var(--split)"') == 3


@pytest.mark.parametrize("name", ["数据中心华东订单分区一二三四五六七八九", "orders-of-the-east-17"])
def test_the_name_beside_a_bar_ends_before_the_bar(tmp_path: Path, name: str) -> None:
    write(tmp_path, {f"{name}.json": rows(100, first=50) + rows(100)})
    [shown] = re.findall(r'<text x="0" y="17">([^<]*)</text>', page(audited(tmp_path)))
    assert cell_len(shown) <= 20
    assert f"{name}.json".startswith(shown.removesuffix("…"))


def test_two_files_of_one_name_in_two_folders_are_two_splits(tmp_path: Path) -> None:
    write(
        tmp_path, {"day=2/part-0.json": rows(100, first=500), "day=1/part-0.json": rows(100), "day=3/no.csv": "no\n1\n"}
    )
    found = audited(tmp_path)
    assert {split.name: split.profile.rows for split in found.splits} == {
        "day=1/part-0.json": 100,
        "day=2/part-0.json": 100,
    }
    assert [split.profile.disorder.largest_us for split in found.splits] == [0, 0], "each is in order"
    assert any(note.startswith("day=3/no.csv cannot be read") for note in found.notes)
    assert [split.name for split in audited(tmp_path / "day=1/part-0.json").splits] == ["part-0.json"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_page_that_cannot_be_written_costs_no_report(tmp_path: Path, as_json: bool) -> None:
    write(tmp_path / "orders", {"a.json": rows(100)})
    words: list[str | Path] = ["files", tmp_path / "orders", "--event-time", "at", *(["--json"] if as_json else [])]
    code, out, err = call(*words, "--html", tmp_path / "none/page.html")
    printed = call(*words)[1]
    if as_json:  # one object, as always
        assert {**json.loads(printed), "error": json.loads(out)["error"]} == json.loads(out)
    assert (code, as_json or out == printed) == (2, True)
    assert "cannot write" in err
    assert "name a file in a folder that is there" in err


def test_an_audit_that_is_interrupted_before_its_first_row_exits_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.json": "", "b.json": rows(100)})
    monkeypatch.setattr(_Watch, "progress", lambda _self, _read, _total: signal.raise_signal(signal.SIGINT))
    assert call("files", tmp_path, "--event-time", "at") == (130, "", "")
    (tmp_path / "a.json").unlink()
    code, out, _ = call("files", tmp_path, "--event-time", "at")
    assert (code, "interrupted: this is what was read by then" in out) == (130, True)


def test_an_audit_that_is_terminated_gives_the_cursor_of_the_terminal_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.json": "", "b.json": rows(100)})
    monkeypatch.setattr(_Watch, "progress", lambda _self, _read, _total: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    code, _, err = call("files", tmp_path, "--event-time", "at")
    assert code == 143
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h") == 1, "the cursor is hidden once, and shown again"


@pytest.mark.parametrize("empty", ["", '""'])
def test_an_empty_cell_is_null_as_in_spark(tmp_path: Path, empty: str) -> None:
    write(tmp_path, {"a.csv": f"at,p\n{START_S},a\n{empty},a\n{START_S},{empty}\nNULL,a\n{START_S},NULL\n"})
    found = audited(tmp_path, "p")
    profiles = {split.name: split.profile for split in found.splits}
    assert {name: profile.rows for name, profile in profiles.items()} == {"a": 3, "null": 1, "NULL": 1}
    assert (profiles["a"].null_rows, profiles["a"].unreadable_rows) == (1, 1)


def test_an_empty_format_is_none(tmp_path: Path) -> None:
    """A script has an empty text for a variable that is not set. Arrow crashes by an empty format."""
    write(tmp_path, {"a.csv": "at\n2026-11-24T10:00:00Z\n"})
    assert _reader(None, "").pattern is None
    assert call("files", tmp_path, "--event-time", "at", "--format", "")[::2] == (0, "")


@pytest.mark.slow  # starts a process
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_of_a_name_gets_an_escape(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, {"é日本🛒.json": rows(2)})
    environment = {**os.environ, "PYTHONIOENCODING": encoding}

    def said(*options: str) -> str:
        words = [*LOWMARK, "audit", "files", str(tmp_path), "--event-time", "at", *options]
        return subprocess.run(words, capture_output=True, check=True, env=environment).stdout.decode(encoding)

    assert f"{'é' if encoding == 'latin-1' else chr(92) + 'xe9'}\\u65e5\\u672c\\U0001f6d2.json" in said()
    assert json.loads(said("--json"))["splits"].keys() == {"é日本🛒.json"}


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.json.gz"])
def test_a_byte_order_mark_costs_no_row(tmp_path: Path, name: str) -> None:
    text = f"\ufeffat\n{START_S}\n{START_S + 1}\n" if name.endswith(".csv") else f"\ufeff{rows(2)}"
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    [split] = audited(tmp_path).splits
    assert (split.profile.rows, split.profile.unreadable_rows) == (2, 0)


def test_a_byte_order_mark_is_no_part_of_a_property_and_of_a_schema(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("\ufeffsecurity.protocol=SASL_SSL\n", encoding="utf-8")
    assert _properties(None, file) == {"security.protocol": "SASL_SSL"}
    avro = tmp_path / "order.avsc"
    avro.write_text('\ufeff{"type": "record", "name": "order", "fields": []}', encoding="utf-8")
    assert Schema.read(avro).values([b""], ("at",)) == [None]


@pytest.mark.parametrize("split", [("partition",), ("p", "partition"), ("nope", "p")])
def test_a_field_of_the_split_that_no_row_of_json_has_is_told(tmp_path: Path, split: tuple[str, ...]) -> None:
    """Without it, every row is of the split "null", and the report looks right."""
    write(tmp_path, {"day=1/a.json": json.dumps({"at": START_S, "p": "a"}) + "\n" + json.dumps({"at": START_S})})
    [absent] = set(split) - {"p"}
    with pytest.raises(AuditImpossible, match=f"none of 2 rows has a value in '{absent}', so it tells no split"):
        audited(tmp_path, *split)
    assert {each.name for each in audited(tmp_path, "p", "day").splits} == {"a/1", "null/1"}


def test_a_json_file_of_one_array_is_refused_for_what_it_is(tmp_path: Path) -> None:
    """Its times are right, and the error asked for another column and format alone."""
    write(tmp_path, {"a.json": json.dumps([{"at": START_S}, {"at": START_S + 1}], indent=1)})
    with pytest.raises(AuditImpossible, match="Each line of a JSON file is read as one object"):
        audited(tmp_path)


def test_a_field_within_a_column_of_parquet_is_not_taken_for_a_wrong_spelling(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"at": [START_S], "order": [{"shop": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(AuditImpossible, match="Hint: name a whole column: a field within one is read from JSON alone"):
        audited(tmp_path, "order.shop")


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"day=1/a.json": rows(10), "day=2/b.json": rows(10), ".hidden/c.json": rows(10)})
    scandir, closed = os.scandir, {str(tmp_path / name) for name in ("day=2", ".hidden")}

    def guarded(folder: str | Path = ".") -> Any:
        if str(folder) in closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (10, False)
    assert [note for note in found.notes if "listed" in note] == ["day=2 cannot be listed: Permission denied"]
    closed.add(str(tmp_path))
    with pytest.raises(AuditImpossible, match="cannot be listed: Permission denied"):
        audited(tmp_path)


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
def test_the_event_time_may_stand_in_the_name_of_a_folder(tmp_path: Path, suffix: str) -> None:
    for day in (14, 15):
        write(tmp_path, {f"at=2023-11-{day}/a.{suffix}": '{"v": 1}\n' * 3 if suffix == "json" else "v\n1\n1\n1\n"})
        if suffix == "parquet":
            parquet.write_table(pa.table({"v": [1, 1, 1]}), tmp_path / f"at=2023-11-{day}/a.parquet")
    found = audited(tmp_path)
    days = [split.profile.first_us for split in found.splits]
    assert days == [(START_S - 80_000 + day * 86_400) * 10**6 for day in (0, 1)], "midnight"
    assert found.rows == 6


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_topic_and_partition_in_the_names_of_folders_tell_the_split(tmp_path: Path, suffix: str) -> None:
    row = "1700000000"
    text = f'{{"at": {row}}}\n' if suffix == "json" else f"at\n{row}\n"
    write(tmp_path, {f"topic=orders/partition={at % 2}/{at}.{suffix}": text for at in range(4)})
    assert {split.name: split.profile.rows for split in audited(tmp_path).splits} == {"orders/0": 2, "orders/1": 2}


def test_a_value_in_quotes_may_have_line_breaks_in_a_csv_larger_than_a_block(tmp_path: Path) -> None:
    value = "a line\n" * 60_000
    write(tmp_path, {"a.csv": "at,text\n" + "".join(f'{START_S + n},"{value}"\n' for n in range(7))})
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (7, True)


@pytest.mark.parametrize("text", ["", "\n \n", "at,shop", "at,shop\n"])
def test_a_csv_file_without_a_row_is_read(tmp_path: Path, text: str) -> None:
    """As by Spark and by `FileSource`. Arrow refuses the first three."""
    write(tmp_path, {"a.csv": text, "b.csv": f"at,shop\n{START_S},x\n", "c.csv": text})
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(text.encode()))
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (1, True)
    assert not any("cannot be read" in note for note in found.notes)


@pytest.mark.parametrize("first", [0, 100_000], ids=["at the top", "after a block"])
def test_a_row_of_csv_with_other_columns_than_the_first_line_is_told_and_the_others_are_read(
    tmp_path: Path, first: int
) -> None:
    whole = f"{START_S},shop\n"
    write(tmp_path, {"a.csv": "at,shop\n" + whole * first + f"{START_S}\n{whole}{whole[:-1]},more\n" + whole * 10})
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (first + 11, False)
    assert "2 CSV rows are left out: not as many values as in the first line" in found.notes
    write(tmp_path, {"a.csv": f"at,shop\n{START_S}\n"})
    with pytest.raises(AuditImpossible, match=r"1 file below .* holds no row: 1 CSV row is left out"):
        audited(tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_with_two_columns_of_the_name_is_told_and_the_others_are_read(tmp_path: Path, kind: str) -> None:
    for age, names in enumerate((["at", "other"], ["at", "at"], ["at", "other"])):
        table, file = pa.table([pa.array([START_S] * 10)] * 2, names=names), tmp_path / f"{'abc'[age]}.{kind}"
        (parquet.write_table if kind == "parquet" else csv.write_csv)(table, file)
        os.utime(file, (START_S + age, START_S + age))
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (20, False)
    assert f"b.{kind} cannot be read: there is more than one column 'at'; there are: at, at" in found.notes


def test_the_size_of_a_column_with_a_dot_in_its_name_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 1_000)
    parquet.write_table(pa.table({"at": [START_S], "who.it": [b"x" * 2_000]}), tmp_path / "a.parquet")
    with pytest.raises(AuditImpossible, match="a piece of its columns takes"):
        audited(tmp_path, "who.it")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_line_without_end_is_told_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(files, "_PIECE_BYTES", 100)
    monkeypatch.setattr(files, "_MOST_BYTES", 1_000)
    name = "b.json.gz" if packed else "b.json"
    text = rows(50) + json.dumps({"more": "x" * 5_000, "at": START_S}) + "\n" + rows(50)
    write(tmp_path, {"a.json": rows(50).rstrip("\n"), "c.json": rows(1)})
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = audited(tmp_path)
    assert {split.name: split.profile.rows for split in found.splits} == {"a.json": 50, name: 50, "c.json": 1}
    assert f"{name} cannot be read: a line of it takes more than 0 MiB, the most that is read at a time" in found.notes
    assert not found.complete


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_with_other_columns_is_told_and_the_others_are_read(tmp_path: Path, kind: str) -> None:
    for age, column in enumerate(("at", "paid", "at")):
        table, file = pa.table({column: pa.array([START_S] * 10)}), tmp_path / f"{'abc'[age]}.{kind}"
        (parquet.write_table if kind == "parquet" else csv.write_csv)(table, file)
        os.utime(file, (START_S + age, START_S + age))
    found = audited(tmp_path)
    assert (found.rows, found.complete) == (20, False)
    assert f"b.{kind} cannot be read: there is no column 'at'; there are: paid" in found.notes
    (tmp_path / f"a.{kind}").unlink()
    with pytest.raises(AuditImpossible, match=f"b.{kind}: there is no column 'at'; there are: paid"):
        audited(tmp_path)


def test_times_as_spark_writes_them_are_read_whatever_their_year(tmp_path: Path) -> None:
    """Spark writes INT96, which Arrow takes for nanoseconds."""
    years = {"at": pa.array([year * 10**14 for year in (-600, -100, 17, 18, 2_500)], pa.timestamp("us", "UTC"))}
    profiles = []
    for form in (True, False):
        (folder := tmp_path / f"{form}").mkdir()
        parquet.write_table(pa.table(years), folder / "a.parquet", use_deprecated_int96_timestamps=form)
        [split] = audited(folder).splits
        profiles.append((split.profile.before_epoch_rows, split.profile.future_rows, split.profile.furthest_future_us))
    assert profiles[0] == profiles[1]


def test_values_of_json_that_differ_as_texts_are_several_splits(tmp_path: Path) -> None:
    values = ("1", "1.0", "true", "0", "false", "-0.0")
    rows = (f'{{"at": {START_S + at}, "device": {value}}}\n' for at, value in enumerate(values))
    write(tmp_path, {"a.json": "".join(rows)})
    assert {split.name for split in audited(tmp_path, "device").splits} == {"1", "1.0", "True", "0", "False", "-0.0"}


def test_a_file_with_an_encrypted_column_beside_the_wanted_ones_is_read(tmp_path: Path) -> None:
    times = pa.array([START_S * 10**6, START_S * 10**6 + 1], pa.timestamp("us", "UTC"))
    encrypt(tmp_path / "a.parquet", pa.table({"card": [1, 2], "at": times}), "card")
    assert audited(tmp_path).splits[0].profile.rows == 2
