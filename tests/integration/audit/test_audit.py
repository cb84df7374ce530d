"""`lowmark audit` without a broker: files, event times, cuts, the page; a person can paste the printed strategy."""

from __future__ import annotations

import datetime as dt
import gzip
import importlib.util
import io
import json
import os
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from lowmark.integration.audit.audit import Audit, Question
from lowmark.integration.audit.cuts import ByRows, ByTime, Cut, Proportional, spark_shares
from lowmark.integration.audit.event_time import EventTimes, TimeReader, Unit, json_path, shown_place
from lowmark.integration.audit.files import FilesAudit
from lowmark.integration.audit.page import page
from lowmark.integration.errors import AuditImpossible
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.replay.replay import Batches
from lowmark.watermark.replay.report import AuditReport
from pyarrow import csv, parquet

from tests.integration.cli import test_cli

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
HOSTILE = ["<script>alert(1)</script>", 'a"b\n\x1b[2J', "x" * 10_000, "käse 🧀", "'; DROP"]


def call(*arguments: str | Path) -> tuple[int, str, str]:
    return test_cli.call("audit", *map(str, arguments))


def told(*arguments: str | Path) -> dict[str, Any]:
    code, out, err = call(*arguments, "--json")
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def rows_of(split: int, batch: int, behind_s: int = 0) -> list[int]:
    """Event times of ten rows, a second apart, microseconds."""
    return [START_US + (batch * 10 + row - behind_s) * SECOND_US for row in range(10)]


@pytest.fixture
def bronze(tmp_path: Path) -> Path:
    """Twenty files of two partitions; one partition is two minutes behind."""
    folder = tmp_path / "bronze"
    folder.mkdir()
    for batch in range(20):
        times = [*rows_of(0, batch), *rows_of(1, batch, behind_s=120)]
        table = pa.table(
            {
                "topic": ["orders"] * 20,
                "partition": pa.array([0] * 10 + [1] * 10, pa.int32()),
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        parquet.write_table(table, folder / f"{batch:02}.parquet")
        os.utime(folder / f"{batch:02}.parquet", (1_700_000_000 + batch, 1_700_000_000 + batch))
    return folder


def test_files_are_replayed_by_age_and_the_strategy_is_python(bronze: Path) -> None:
    answer = told("files", bronze, "--delay", "1 minute", "--delay", "3 minutes")
    minute, more = answer["native"]
    # From the third file on all rows of orders/1 are late, by the first file's largest time.
    assert minute == {
        "delay": "1m",
        "delay_us": 60_000_000,
        "rows_dropped": 180,
        "splits": {"orders/1": 180},
        "rows_kept_at_most": minute["rows_kept_at_most"],
    }
    assert more["rows_dropped"] == 0
    # The largest time two batches before is 11 s before a batch begins, and orders/1 is 120 s behind.
    assert answer["native_smallest_delay_us"] == 109_001_000
    assert [bound["rows_dropped"] for bound in answer["lowmark"]] == [0, 0]
    assert answer["splits"]["orders/1"]["out_of_orderness_us"]["max"] == 0
    assert 119_000_000 <= answer["splits"]["orders/1"]["most_behind_us"] <= 130_000_000
    names: dict[str, Any] = {"WatermarkStrategy": WatermarkStrategy}
    exec(answer["strategy"], names)
    assert names["strategy"] == WatermarkStrategy.for_monotonous_timestamps()


def test_one_history_in_three_formats_gives_one_answer(bronze: Path, tmp_path: Path) -> None:
    answers = []
    for suffix in (".parquet", ".csv", ".json"):
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        for file in sorted(bronze.iterdir()):
            to, table = folder / file.with_suffix(suffix).name, parquet.read_table(file)
            if suffix == ".csv":
                csv.write_csv(table, to)
            elif suffix == ".json":
                lines = table.set_column(2, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()
                to.write_text("\n".join(map(json.dumps, lines)))
            else:
                parquet.write_table(table, to)
            os.utime(to, (file.stat().st_mtime, file.stat().st_mtime))
        more = [] if suffix == ".parquet" else ["--event-time", "timestamp", "--split", "topic", "--split", "partition"]
        answers.append(told("files", folder, *more))
    for answer in answers:
        assert answer["splits"] == answers[0]["splits"]
        assert answer["native"] == answers[0]["native"]


NAMED: dict[str, Any] = {"topic": "a-b", "partition": 3, "live": True, "raw": b"\x00\xff", "day": dt.date(2026, 1, 2)}


def test_a_split_has_the_name_that_the_service_gives_it(tmp_path: Path) -> None:
    rows = [NAMED, {**dict.fromkeys(NAMED), "topic": ""}]
    parquet.write_table(
        pa.Table.from_pylist([{**row, "at": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)} for row in rows]),
        tmp_path / "a.parquet",
    )
    named = told("files", tmp_path, "--event-time", "at", *(word for name in NAMED for word in ("--split", name)))
    key = SplitKey(tuple(NAMED), ("string", "int", "boolean", "binary", "date"))
    assert set(named["splits"]) == {key.name(tuple(row.values())) for row in rows}
    assert set(named["splits"]) == {"a-b/3/True/00ff/2026-01-02", '""/null/null/null/null'}


def test_text_and_page_say_the_same_and_hostile_names_do_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    for batch in range(10):
        rows = [
            {"device": name, "at": time_us}
            for at, name in enumerate(HOSTILE)
            for time_us in rows_of(0, batch, behind_s=(at * 50 if batch % 3 else 0) + (batch % 2) * 20)
        ]
        (folder / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))
        os.utime(folder / f"{batch}.json", (batch, batch))
    html = tmp_path / "audit.html"
    code, out, err = call("files", folder, "--event-time", "$.at", "--split", "device", "--html", html)
    assert code == 0, err
    assert "\x1b" not in out
    text = html.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=", text)
    assert len(text) < 200_000
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(picture)  # our own picture
    # The pasted strategy is still Python, and only that.
    names: dict[str, Any] = {"WatermarkStrategy": WatermarkStrategy}
    code_of = told("files", folder, "--event-time", "$.at", "--split", "device")["strategy"]
    exec(code_of, names)
    assert isinstance(names["strategy"], WatermarkStrategy)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "none", "does not exist"),
        (lambda folder: folder, "no parquet, CSV or JSON file"),
        (lambda folder: _written(folder, "a.parquet", b"no parquet at all"), "a.parquet' holds no row"),
        (lambda folder: _written(folder, "a.json", b'{"at": "soon"}\n{"at": null}\nbroken\n[1]\n'), "none of 4 rows"),
        (lambda folder: _written(folder, "a.csv", b"id,name\n1,x\n"), "not clear which column"),
    ],
)
def test_what_cannot_be_audited_is_told_in_one_line(tmp_path: Path, make: Any, words: str) -> None:
    path = make(tmp_path)
    arguments = ["--event-time", "$.at"] if path.suffix == ".json" else []
    code, out, err = call("files", path, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert "Hint:" in err
    assert words in json.loads(call("files", path, *arguments, "--json")[1])["error"]


def _written(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_a_broken_file_is_told_and_the_others_are_read(bronze: Path) -> None:
    (bronze / "99.parquet").write_bytes(b"no parquet")
    answer = told("files", bronze)
    assert not answer["complete"]
    assert any("99.parquet cannot be read" in note for note in answer["notes"])
    assert answer["rows"] == 400


def timed(count: int) -> Any:
    return pa.array([START_US] * count, pa.timestamp("us", "UTC"))


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [True, False], ids=["repeated", "packed"])
def test_a_small_file_that_unpacks_to_much_is_told_and_takes_no_memory(tmp_path: Path, repeated: bool) -> None:
    """A text of 30 KB in each of 65,536 rows is 1.9 GiB, in a file of some KiB. Packed: one text of 300 MB."""
    rows = 65_536 if repeated else 1
    who = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), ["x" * (30_000 if repeated else 300_000_000)]
    )
    bomb = tmp_path / "bomb.parquet"
    # Arrow's own schema would declare a dictionary of texts; without it the column is plain text.
    parquet.write_table(
        pa.table({"at": timed(rows), "who": who}), bomb, compression="zstd", store_schema=False,
        use_dictionary=repeated, write_statistics=repeated,
    )  # fmt: skip
    assert bomb.stat().st_size < 100_000
    parquet.write_table(pa.table({"at": timed(10), "who": ["a"] * 10}), tmp_path / "good.parquet")
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        answer = told("files", tmp_path, "--split", "who", "--event-time", "at")
    finally:
        pa.set_memory_pool(before)
    assert (answer["rows"], answer["complete"]) == (10, False)
    assert "bomb.parquet cannot be read: a piece of its columns takes" in " ".join(answer["notes"])
    assert (pool.max_memory() or 0) < 100_000_000


def test_texts_that_many_rows_repeat_are_split_as_others(tmp_path: Path) -> None:
    who = ["a", None, "b", "a", ""] * 20
    parquet.write_table(pa.table({"at": timed(100), "who": who}), tmp_path / "a.parquet")
    splits = told("files", tmp_path, "--split", "who")["splits"]
    assert {split: profile["rows"] for split, profile in splits.items()} == {"a": 40, "null": 20, "b": 20, '""': 20}


def test_a_link_in_a_folder_is_passed_over_and_told(tmp_path: Path) -> None:
    """A link could lead the audit to a file that its owner did not mean to show."""
    (tmp_path / "landing").mkdir()
    parquet.write_table(pa.table({"at": timed(10)}), tmp_path / "landing/a.parquet")
    parquet.write_table(pa.table({"at": timed(5)}), tmp_path / "secret.parquet")
    (tmp_path / "landing/b.parquet").symlink_to(tmp_path / "secret.parquet")
    answer = told("files", tmp_path / "landing")
    assert answer["rows"] == 10
    assert "1 link is passed over: name a file itself to read it" in answer["notes"]
    assert told("files", tmp_path / "landing/b.parquet")["rows"] == 5


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_name_that_is_no_utf_8_is_told_in_escapes(tmp_path: Path, kind: str) -> None:
    written = tmp_path / "plain"
    if kind == "json":
        written.write_text('{"at": "2026-01-01T00:00:00Z"}\n')
    else:
        write = parquet.write_table if kind == "parquet" else csv.write_csv
        write(pa.table({"at": timed(1)}), written)
    (tmp_path / "folder").mkdir()
    written.rename(tmp_path / "folder" / os.fsdecode(b"a\xff." + kind.encode()))
    answer = told("files", tmp_path / "folder", "--event-time", "at", "--html", tmp_path / "page.html")
    assert list(answer["splits"]) == [f"a\\xff.{kind}"]
    code, out, _ = call("files", tmp_path / "folder", "--event-time", "at")
    assert (code, "a\\xff" in out) == (0, True)


@pytest.mark.parametrize("steps", [101, 100_000])
def test_a_path_without_end_is_refused(tmp_path: Path, steps: int) -> None:
    _written(tmp_path, "a.json", b'{"a": 1}\n')
    code, _, err = call("files", tmp_path, "--event-time", "$" + ".a" * steps)
    assert (code, f"goes {steps:,} steps deep" in err) == (2, True), err


def test_a_split_that_is_no_path_is_not_taken_for_the_event_time(tmp_path: Path) -> None:
    _written(tmp_path, "a.json", b'{"at": 1}\n')
    code, _, err = call("files", tmp_path, "--event-time", "$.at", "--split", "device[")
    assert (code, "'device[' is no path into JSON" in err, "--event-time 'device['" in err) == (2, True, False), err


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_that_vanishes_meanwhile_is_told_and_the_others_are_read(tmp_path: Path, kind: str) -> None:
    table = pa.table({"at": pa.array(rows_of(0, 0), pa.timestamp("us", "UTC"))})
    for name in "abc":
        write = parquet.write_table if kind == "parquet" else csv.write_csv
        write(table, tmp_path / f"{name}.{kind}")

    def vanish(read: int, size: int) -> None:
        assert read <= size
        (tmp_path / f"b.{kind}").unlink(missing_ok=True)

    found = FilesAudit(
        tmp_path, Question(), "at", (), TimeReader(), START_US + 3_600 * SECOND_US, progress=vanish
    ).run()
    assert (found.rows, found.complete) == (20, False)
    assert any(f"b.{kind} cannot be read" in note for note in found.notes)


def test_what_spark_passes_over_in_a_folder_is_passed_over(bronze: Path) -> None:
    """The log of a sink, a job's temporary files, checksums, also as folders; not the folder of a partition."""
    for folder in ("_spark_metadata", "_temporary/0", ".hidden", "_kind=a"):
        (bronze / folder).mkdir(parents=True)
    (bronze / "_spark_metadata/000.json").write_text('{"commitInfo": {}}\n')
    for name in ("_temporary/0/part.parquet", ".hidden/a.parquet", "_kind=a/b.parquet"):
        (bronze / name).write_bytes((bronze / "00.parquet").read_bytes())
    answer = told("files", bronze)
    assert answer["rows"] == 420


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json", ".csv.gz", ".json.gz"])
def test_folders_give_columns_and_files_may_be_packed(tmp_path: Path, suffix: str) -> None:
    for number, folder in enumerate(("region=a%2Fb/device=1", "region=__HIVE_DEFAULT_PARTITION__/device=2")):
        file = tmp_path / "table" / folder / f"0{suffix}"
        file.parent.mkdir(parents=True)
        table = pa.table({"at": rows_of(0, number)})
        out = io.BytesIO()
        if ".csv" in suffix:
            csv.write_csv(table, out)
        elif ".json" in suffix:
            out.write("\n".join(map(json.dumps, table.to_pylist())).encode())
        else:
            parquet.write_table(table, out)
        file.write_bytes(gzip.compress(out.getvalue()) if suffix.endswith(".gz") else out.getvalue())
    answer = told("files", tmp_path / "table", "--event-time", "at", "--split", "region", "--split", "device")
    assert {name: split["rows"] for name, split in answer["splits"].items()} == {"a/b/1": 10, "null/2": 10}
    assert answer["splits"]["a/b/1"]["first_us"] == START_US


def test_a_torn_packed_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"at": 1700000000}\n' * 10_000)
    (tmp_path / "a.json.gz").write_bytes(packed)
    (tmp_path / "b.json.gz").write_bytes(packed[:-20])
    answer = told("files", tmp_path, "--event-time", "at")
    assert not answer["complete"]
    assert any("b.json.gz cannot be read" in note for note in answer["notes"])


def test_a_delta_table_is_read_by_its_log(tmp_path: Path) -> None:
    def rows(batch: int, device: str) -> pa.Table:
        return pa.table({"at": pa.array(rows_of(0, batch), pa.timestamp("us", "UTC")), "device": [device] * 10})

    write_deltalake(tmp_path, rows(0, "gone"), partition_by=["device"])
    write_deltalake(tmp_path, rows(1, "a b"), mode="overwrite")
    write_deltalake(tmp_path, rows(2, "c"), mode="append")
    assert len([*tmp_path.rglob("*.parquet")]) == 3
    answer = told("files", tmp_path, "--event-time", "at", "--split", "device")
    assert {name: split["rows"] for name, split in answer["splits"].items()} == {"a b": 10, "c": 10}


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping"])
def test_a_delta_table_whose_files_are_not_its_rows_is_refused(tmp_path: Path, feature: str) -> None:
    write_deltalake(tmp_path, pa.table({"at": rows_of(0, 0)}))
    DeltaTable(tmp_path).alter.add_feature(
        {"deletionVectors": TableFeatures.DeletionVectors, "columnMapping": TableFeatures.ColumnMapping}[feature],
        allow_protocol_versions_increase=True,
    )
    code, out, err = call("files", tmp_path, "--event-time", "at")
    assert (code, out) == (2, "")
    assert f"uses {feature}" in err
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")
    code, out, err = call("files", tmp_path, "--event-time", "at")
    assert (code, out) == (2, "")
    assert "cannot be read" in err


def test_a_delta_table_of_version_2_that_maps_columns_is_refused(tmp_path: Path) -> None:
    """Its column "at" has been renamed, and another one has the name now."""
    write_deltalake(tmp_path, pa.table({"at": timed(10), "new": timed(10)}))
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    [metadata] = [entry["metaData"] for entry in entries if "metaData" in entry]
    fields = json.loads(metadata["schemaString"])["fields"]
    for number, (field, name) in enumerate(zip(fields, ["old", "at"], strict=True), start=1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["name"] = name
    metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    entries = [protocol if "protocol" in entry else entry for entry in entries]
    log.write_text("\n".join(map(json.dumps, entries)))
    code, out, err = call("files", tmp_path, "--event-time", "at")
    assert (code, out) == (2, "")
    assert "uses columnMapping: its files name columns otherwise than the table" in err


@pytest.mark.parametrize("name", ["{}", "file://{}", "../secret.parquet", "a/..%2F../secret.parquet", "link"])
def test_a_delta_table_that_names_a_file_outside_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    """As a clone does, and a log could that is meant to show a file of its reader."""
    table, secret = tmp_path / "table", tmp_path / "secret.parquet"
    write_deltalake(table, pa.table({"at": timed(10)}))
    [inside] = table.glob("*.parquet")
    inside.rename(secret)
    (table / "link").symlink_to(secret)
    log = table / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace(inside.name, name.format(secret)))
    code, out, err = call("files", table, "--event-time", "at")
    assert (code, out) == (2, "")
    assert "names a file outside of its folder" in err


def test_an_empty_path_is_refused_and_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("at\n2026-11-24T10:00:00Z\n")
    code, out, err = call("files", "", "--event-time", "at")  # as of a variable that a shell does not know
    assert (code, out) == (2, "")
    assert "the path is empty; name a file or a folder" in err


def test_two_ways_to_cut_batches_are_refused(tmp_path: Path) -> None:
    both = ("--rows-per-batch", "9", "--trigger", "1m")
    code, out, _ = call("files", str(tmp_path), "--event-time", "at", *both, "--json")
    said = "--trigger: a number of rows cuts batches already. Hint: leave one of them out."
    assert (code, json.loads(out)["error"]) == (2, said)


def test_files_elsewhere_are_refused_under_the_name_that_was_given(tmp_path: Path) -> None:
    for given, said, call_says in (
        ("s3://key:secret@bucket/orders", "s3://bucket/orders", "s3a://bucket/orders"),
        ("abfss://box@account/orders", "abfss://box@account/orders", "abfss://box@account/orders"),
        ("hdfs:/orders", "hdfs:/orders", "hdfs:/orders"),
    ):
        code, out, err = call("files", given, "--event-time", "at")
        assert (code, out) == (2, "")
        assert f"{said} is not on this machine" in err
        assert (
            "Hint: copy some of its files into a folder here and name that folder, or audit it in a Spark session"
            in err
        )
        assert f'lowmark.audit_table(spark.read.parquet("{call_says}"), split=..., event_time=..., order=...)' in err
    for name in ("a b", "a?b#c"):
        parquet.write_table(pa.table({"at": rows_of(0, 0)}), tmp_path / f"{name}.parquet")
        for uri in ((tmp_path / f"{name}.parquet").as_uri(), f"file:{tmp_path}/{name}.parquet"):
            assert told("files", uri, "--event-time", "at")["rows"] == 10


def test_rows_that_have_no_good_time_are_counted_for_what_they_are(tmp_path: Path) -> None:
    times = [START_US // 1_000, None, "soon", -5, START_US // 1_000 + 10**12, START_US // 1_000 + 1]
    (tmp_path / "a.json").write_text("\n".join(json.dumps({"at": at}) for at in times) + "\n{broken\n")
    [split] = told("files", tmp_path, "--event-time", "at", "--unit", "ms")["splits"].values()
    assert split["rows"] == 7
    assert (split["null_rows"], split["unreadable_rows"]) == (1, 2)
    assert (split["before_1970_rows"], split["future_rows"]) == (1, 1)


def test_rows_without_a_good_time_are_counted_in_their_own_split(tmp_path: Path) -> None:
    rows = [("silent", None), ("broken", "soon"), ("silent", None), ("good", START_US // 1_000), ("broken", "soon")]
    (tmp_path / "a.json").write_text("".join(json.dumps({"who": who, "at": at}) + "\n" for who, at in rows))
    splits = told("files", tmp_path, "--event-time", "at", "--split", "who", "--unit", "ms")["splits"]
    counts = {name: (split["null_rows"], split["unreadable_rows"]) for name, split in splits.items()}
    assert counts == {"silent": (2, 0), "broken": (0, 2), "good": (0, 0)}


@pytest.mark.parametrize(
    ("values", "reader", "expected"),
    [
        ([1_700_000_000, None], TimeReader(), [START_US, None]),
        ([1_700_000_000_123], TimeReader(), [START_US + 123_000]),
        ([1_700_000_000_123_456], TimeReader(), [START_US + 123_456]),
        ([1_700_000_000_123_456_789], TimeReader(), [START_US + 123_456]),
        ([1_700_000_000.5], TimeReader(), [START_US + 500_000]),
        ([5], TimeReader(Unit.SECONDS), [5 * SECOND_US]),
        (["2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"], TimeReader(), [START_US, START_US]),
        (["2023-11-14 22:13:20", "soon", None], TimeReader(), [START_US, None, None]),
        (
            ["20231114T221320.5Z", "2023-11-14T22:13:20.123456789Z"],
            TimeReader(),
            [START_US + 500_000, START_US + 123_456],
        ),
        (["1700000000"], TimeReader(), [START_US]),
        (["1700000000", "soon", None, "9" * 400], TimeReader(), [START_US, None, None, None]),
        (
            ["soon", "", *[None] * 100, "1700000000", "1700000001"],
            TimeReader(),
            [*[None] * 102, START_US, START_US + SECOND_US],
        ),
        (["0", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z"], TimeReader(), [None, START_US, START_US]),
        (["14.11.2023 22:13"], TimeReader(pattern="%d.%m.%Y %H:%M"), [START_US - 20 * SECOND_US]),
        (["14.11.2023 22:13:20.5"] * 3, TimeReader(pattern="%d.%m.%Y %H:%M:%S.%f"), [START_US + 500_000] * 3),
        (
            ["2023-11-14 23:13:20.0+0100", None, "soon"],
            TimeReader(pattern="%Y-%m-%d %H:%M:%S.%f%z"),
            [START_US, None, None],
        ),
        (["30.02.2023", "31.04.2023", None], TimeReader(pattern="%d.%m.%Y"), [None, None, None]),
        (["2023-W46-2"], TimeReader(pattern="%G-W%V-%u"), [START_US - (22 * 3_600 + 13 * 60 + 20) * SECOND_US]),
        (
            ["22:13:20 14.11.2023 XYZ", "22:13:20 14.11.2023 UTC"],
            TimeReader(pattern="%X %d.%m.%Y %Z"),
            [None, START_US],
        ),
        (
            ["14.11.2023 22:13:60", "1.2.2023 03:04:05"],
            TimeReader(pattern="%d.%m.%Y %X"),
            [None, 1_675_220_645 * SECOND_US],
        ),
        ([1_700_000_000, "2023-11-14T22:13:20Z", True, {}], TimeReader(), [START_US, START_US, None, None]),
        ([2**70, 1_700_000_000], TimeReader(Unit.SECONDS), [None, START_US]),
        ([float("inf"), float("nan")], TimeReader(), [None, None]),
    ],
)
def test_times_are_read_as_they_are_written(values: list[Any], reader: TimeReader, expected: list[int | None]) -> None:
    times = reader.values(values)
    made = [at if timed else None for at, timed in zip(times.times_us.tolist(), times.timed.tolist(), strict=True)]
    assert made == expected
    assert times.null_rows == sum(value is None for value in values)
    assert times.null_rows + times.unreadable_rows == sum(at is None for at in expected)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**63 - 1, 7_000, -(2**62)], pa.timestamp("ms", "UTC")),
        pa.array([2**50, 7, -(2**63)], pa.timestamp("s")),
        pa.array([2**31 - 1, 0, -(2**31)], pa.int32()).cast(pa.date32()),
    ],
)
def test_a_time_beyond_64_bits_of_microseconds_is_unreadable_and_not_another_time(column: pa.Array[Any]) -> None:
    times = TimeReader().column(column)
    assert times.timed.tolist() == [False, True, False]
    assert times.times_us[1] == (0 if pa.types.is_date(column.type) else 7 * SECOND_US)
    assert times.unreadable_rows == 2


def test_a_payload_that_is_no_json_costs_itself_alone() -> None:
    payloads = [b'{"a": {"at": 1700000000}}', b"\xff", None, b'{"a": 5}', b"[]", b'{"a": null}', b"9" * 5_000]
    times = TimeReader(Unit.SECONDS).payloads(payloads, json_path("$.a.at"))
    assert times.timed.tolist() == [True] + [False] * 6
    assert (times.null_rows, times.unreadable_rows) == (2, 4)


def test_a_path_may_lead_through_arrays() -> None:
    payloads = [
        b'{"items": [{"at": 1}, {"at": 1700000000}]}',
        b'{"items": []}',
        b'{"items": [null, null]}',
        b'{"items": null}',
        b"{}",
        b'{"items": {"at": 1}}',
    ]
    times = TimeReader(Unit.SECONDS).payloads(payloads, json_path("$.items[1].at"))
    assert times.timed.tolist() == [True] + [False] * 5
    assert times.times_us[0] == START_US
    assert (times.null_rows, times.unreadable_rows) == (4, 1)  # an object is no array


@pytest.mark.parametrize("in_values", [True, False])
@pytest.mark.parametrize("absurd", [float("inf"), -float("inf"), 1e300, 1e30])
def test_a_number_beyond_every_unit_is_unreadable_and_no_other_unit(absurd: float, in_values: bool) -> None:
    numbers: list[Any] = [absurd, absurd, 1_700_000_000.0]
    reader = TimeReader()
    times = reader.values([*numbers, "no time"]) if in_values else reader.column(pa.array(numbers))
    assert times.timed.tolist()[:3] == [False, False, True]
    assert times.times_us[2] == START_US
    assert [note for note in reader.notes if "units are mixed" in note] == []


@pytest.mark.parametrize("in_values", [True, False])
def test_numbers_of_two_units_are_named_and_the_smaller_part_is_not_taken(in_values: bool) -> None:
    seconds, milliseconds = [1_700_000_000] * 3, [1_700_000_000_000] * 7
    reader = TimeReader()
    mixed: list[Any] = [*milliseconds, *seconds, 0]
    times = reader.values([*mixed, "no time"]) if in_values else reader.column(pa.array(mixed))
    assert times.timed.tolist()[:11] == [True] * 7 + [False] * 3 + [True]  # the unit of 0 is unknown
    assert times.unreadable_rows == 3 + in_values
    assert any("3 rows have a time that looks like seconds among milliseconds" in note for note in reader.notes)
    named = TimeReader(Unit.MILLISECONDS)
    assert named.column(pa.array(mixed)).timed.all()  # a named unit is believed
    assert named.notes == []


def test_a_number_without_sign_that_is_no_time_is_not_taken_for_one_before_1970() -> None:
    times = TimeReader(Unit.NANOSECONDS).column(pa.array([2**64 - 1, 1_700_000_000 * 10**9], pa.uint64()))
    assert times.timed.tolist() == [False, True]


@pytest.mark.parametrize("first", [0, 0.0, float("nan"), float("inf"), -1, 2.5])
@pytest.mark.parametrize("beside", [[], ["soon"]], ids=["numbers", "texts"])
def test_a_number_that_shows_no_unit_does_not_choose_it(first: float, beside: list[Any]) -> None:
    good = type(first)(START_US // 1_000)
    for pieces in ([[first], [good]], [[first, first, good]]):
        reader = TimeReader()
        times = [reader.values([*piece, *beside]).times_us.tolist() for piece in pieces]
        assert START_US in times[-1]
        assert "numbers are taken as milliseconds since 1970" in reader.notes[0]
    small = TimeReader()
    assert small.values([5]).times_us.tolist() == [5 * SECOND_US]
    assert "numbers are taken as seconds since 1970" in small.notes[0]


@pytest.mark.parametrize("text", ["$", "", "$.a[-1]", "$.a[x]", "$..a", "a b[", "$.a]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(AuditImpossible, match="no path into JSON"):
        json_path(text)


@pytest.mark.parametrize(
    "path",
    [
        "$.a.b",
        "$['paid.at']",
        "$[3]",
        "$.a[0]['b[1]'].c d",
        '$["it\'s.at"]',
        "$['say \".\"']",
        "$.it's",
        "$.0",
        "$.ä['$.x']",
    ],
)
def test_a_path_is_shown_as_one_that_leads_there(path: str) -> None:
    assert shown_place(json_path(path)) == path


# --- cuts: the same batches, at any pace of reading


def batches_of(cut: Cut, keys: list[list[int]], seed: int) -> list[list[tuple[int, int]]]:
    """All batches as (split, time) lists, with splits read in random portions; the time of a row is its key."""
    chance, at = random.Random(seed), [0] * len(keys)
    made: list[list[tuple[int, int]]] = []

    def drain() -> None:
        drained: Batches | None = cut.drain()
        if drained is not None:
            rows = list(zip(drained.splits.tolist(), drained.times_us.tolist(), strict=True))
            begin = 0
            for end in drained.ends.tolist():
                made.append(rows[begin:end])
                begin = end

    while any(at[split] < len(keys[split]) for split in range(len(keys))):
        split = chance.choice([split for split in range(len(keys)) if at[split] < len(keys[split])])
        portion = keys[split][at[split] : at[split] + chance.randint(1, 30)]
        at[split] += len(portion)
        numbers = np.array(portion, np.int64)
        cut.add(split, numbers, numbers, np.ones(len(portion), np.bool_))
        if at[split] == len(keys[split]):
            cut.end(split)
        drain()
    cut.end_all()
    drain()
    return made


@pytest.mark.parametrize("seed", range(8))
def test_batches_do_not_depend_on_the_pace_of_reading(seed: int) -> None:
    chance = random.Random(seed)
    keys = [sorted(chance.sample(range(5_000), chance.randint(1, 200))) for _ in range(4)]
    every = sorted((key, split) for split in range(4) for key in keys[split])
    by_rows = batches_of(ByRows(4, 37), keys, seed)
    assert [[key for _, key in batch] for batch in by_rows] == [
        [key for key, _ in every[first : first + 37]] for first in range(0, len(every), 37)
    ], f"seed {seed}"
    assert len(batches_of(ByRows(4, 2**63 - 1), keys, seed)) == 1, "as large as a long of Spark's options"
    by_time = batches_of(ByTime(4, 100), keys, seed)
    triggers = sorted({key // 100 for key, _ in every})
    assert [[key for _, key in batch] for batch in by_time] == [
        [key for key, _ in every if key // 100 == trigger] for trigger in triggers
    ], f"seed {seed}"
    offsets = [list(range(10, 10 + chance.randint(1, 300))) for _ in range(4)]
    shares = batches_of(Proportional([10] * 4, [10 + len(of) for of in offsets], 50, 0), offsets, seed)
    begins, ends = np.full(4, 10), np.array([10 + len(of) for of in offsets])
    for batch in shares:
        bounds = spark_shares(begins, ends, 50)
        assert [sum(of == split for of, _ in batch) for split in range(4)] == (bounds - begins).tolist(), f"seed {seed}"
        begins = bounds
    assert (begins == ends).all(), f"seed {seed}"


def test_empty_triggers_are_counted_over_what_was_drained_before() -> None:
    cut = ByTime(1, 10)
    cut.add(0, np.array([5, 25]), np.array([5, 25]), np.array([True, True]))
    first = cut.drain()
    cut.add(0, np.array([77]), np.array([77]), np.array([True]))
    cut.end_all()
    second = cut.drain()
    assert first is not None
    assert second is not None
    assert first.pauses.tolist() == [0]
    assert second.pauses.tolist() == [1, 4]


def test_advice_names_the_silent_the_stray_and_the_late(tmp_path: Path) -> None:
    del tmp_path
    cut = ByTime(3, 10 * SECOND_US)
    audit = Audit(["on-time", "silent", "stray"], cut, Question(), START_US, timed=True)
    written_us = START_US + np.arange(20_000) * SECOND_US
    for split, count in ((0, 20_000), (1, 500), (2, 20_000)):
        times_us = written_us[:count].copy()
        if split == 0:
            times_us[100::10_000] -= 90 * SECOND_US
            times_us[::10] -= 4 * SECOND_US
        if split == 2:
            times_us[77] += 10**15
        ok = EventTimes(times_us, np.ones(count, np.bool_), np.zeros(count, np.bool_))
        audit.add(split, written_us[:count], ok, written_us=written_us[:count])
        cut.end(split)
    found: AuditReport = audit.report(what="it", order="", event_time="", complete=True, notes=())
    code = found.advice.code()
    assert 'with_idleness("1 minute")  # silent has had no row for 5h 25m' in code
    assert "1 row of bad clocks, stray up to" in code
    assert '("5 seconds")  # 99.99 % of rows; 2 rows of on-time need 1m 33s' in code
    assert found.lowmark[0].rows_dropped < found.native[0].rows_dropped
    assert "5h 25m" in page(found)


@pytest.mark.parametrize("topics", [(), ("--topic", ""), ("--topic", "a", "--topic-pattern", "b")])
def test_topics_are_names_or_a_pattern(topics: tuple[str, ...]) -> None:
    code, out, err = call("kafka", "--bootstrap-servers", "127.0.0.1:9", *topics)
    assert (code, out, "expected either --topic" in err) == (2, "", True), err


@pytest.mark.parametrize("none", ["", " , "])
def test_brokers_that_are_none_are_refused_at_once(none: str) -> None:
    code, out, err = call("kafka", "--bootstrap-servers", none, "--topic", "orders")
    assert (code, out, "--bootstrap-servers: it names no broker" in err) == (2, "", True), err


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "confluent_kafka" else found(name))
    code, out, err = call("kafka", "--bootstrap-servers", "127.0.0.1:9", "--topic", "orders")
    assert (code, out) == (2, "")
    assert 'pip install "lowmark[kafka]"' in err
