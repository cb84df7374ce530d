"""`lowmark adopt` and `leave` on checkpoints as Spark writes them, without Spark: changes, refusals and crashes.

`test_adopted_queries.py` and `test_adoption_walks.py` show that real queries continue from these changes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.errors import AdoptionRefused, CheckpointUnreadable, CheckpointUnwritable
from lowmark.integration.spark import adoption
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.checkpoint import kafka_starting_offsets
from lowmark.integration.spark.checkpoint_store import CheckpointStore, HadoopStore, LocalStore
from lowmark.integration.spark.offset_log import EVOLUTION
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.api import SplitT
from lowmark.sources.files import FileSplit
from lowmark.sources.kafka.split import KafkaSplit, split_id
from lowmark.sources.planning.offset import BatchOffset, BatchState, Placed
from lowmark.sources.serializer import DataclassSerializer

from tests.integration.cli.test_cli import call
from tests.snippets import block

CONF = {"spark.sql.streaming.multipleWatermarkPolicy": "min"}
HEARTBEAT = json.dumps(HeartbeatOffset("orders").to_json())


def metadata(**fields: Any) -> str:
    return json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": 6, "conf": CONF, **fields}, separators=(",", ":"))


def written(
    folder: Path, batches: dict[int, list[str]], *, version: str = "v1", commits: int | None = None, **fields: Any
) -> Path:
    """Write a checkpoint whose files are an hour old; each batch has a line for each source."""
    root = folder / "checkpoint"
    newest = max(batches)
    files = {f"offsets/{batch}": "\n".join([version, metadata(**fields), *lines]) for batch, lines in batches.items()}
    files |= {f"commits/{batch}": "v1\n{}" for batch in range((newest if commits is None else commits) + 1)}
    sources = len(batches[newest])
    files |= {f"sources/{source}/0": f"of source {source}" for source in range(sources)}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return root


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return written(tmp_path, {n: [f'{{"logOffset":{n}}}'] for n in range(5)})


def lines(root: Path, batch: int) -> list[str]:
    return (root / "offsets" / str(batch)).read_text().split("\n")[2:]


def contents(root: Path) -> dict[str, bytes]:
    """Read all files that Spark reads; checksums may go, and temporary files may stay."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.endswith((".crc", ".lowmark"))]
    return {str(f.relative_to(root)): f.read_bytes() for f in files if "changes" not in f.parts}


def test_only_the_entries_that_a_restart_reads_gain_a_line(native: Path) -> None:
    before = contents(native)
    done = adopt(native, "orders")

    changed = {name for name, text in contents(native).items() if before.get(name) != text}
    assert changed == {"offsets/3", "offsets/4"}
    assert lines(native, 4) == ['{"logOffset":4}', HEARTBEAT]
    assert lines(native, 3) == ['{"logOffset":3}', HEARTBEAT]
    assert not (native / "offsets/.4.crc").exists(), "Hadoop would refuse the file beside its old checksum"
    assert (native / "offsets/.2.crc").exists()
    assert str(done).startswith(
        'added the heartbeat of "orders", in offsets/4, offsets/3\nbackup: lowmark/changes/1.json'
    )


def test_what_is_left_is_as_it_was_adopted_to_the_byte(native: Path) -> None:
    before = contents(native)
    adopt(native, "orders")
    leave(native)
    assert contents(native) == before
    adopt(native, "orders")
    leave(native)
    assert contents(native) == before
    assert len(list((native / "lowmark/changes").iterdir())) == 4, "each has its backup"


def test_a_second_time_there_is_nothing_to_do(native: Path) -> None:
    assert "of a query without lowmark" in str(leave(native))
    adopt(native, "orders")
    before = contents(native)
    assert str(adopt(native, "orders")) == "nothing to do: the heartbeat is there already"
    assert contents(native) == before
    with pytest.raises(
        AdoptionRefused, match=r'of a query with lowmark already \("orders"\). Hint: run `lowmark leave`'
    ):
        adopt(native, "payments")


def test_a_dry_run_changes_nothing_and_says_the_same(native: Path) -> None:
    before = contents(native)
    would = str(adopt(native, "orders", dry_run=True))
    assert contents(native) == before
    assert not (native / "lowmark").exists()
    assert would.replace("would add", "added") == str(adopt(native, "orders"))


def test_undo_goes_back_until_a_batch_was_planned(native: Path) -> None:
    before = contents(native)
    adopt(native, "orders")
    assert str(adopt(native, undo=True, dry_run=True)).startswith('would remove the heartbeat of "orders"')
    assert str(adopt(native, undo=True)).splitlines() == [
        'removed the heartbeat of "orders", in offsets/4, offsets/3',
        "backup: lowmark/changes/2.json in the checkpoint",
    ]
    assert contents(native) == before
    with pytest.raises(
        AdoptionRefused, match=r"the last change was `lowmark adopt --undo`.*it is of a query without lowmark now"
    ):
        adopt(native, undo=True)
    adopt(native, "orders")
    adopted = contents(native)
    leave(native)
    assert str(leave(native, undo=True)).startswith('added the heartbeat of "orders"')
    assert contents(native) == adopted
    with pytest.raises(
        AdoptionRefused, match=r"the last change was `lowmark leave --undo`.*with lowmark now; `lowmark leave` takes"
    ):
        adopt(native, undo=True)
    leave(native)
    adopt(native, "orders")
    shutil.copy(native / "offsets/4", native / "offsets/5")
    with pytest.raises(AdoptionRefused, match=r"a batch was planned since it was adopted. Hint: run `lowmark leave`"):
        adopt(native, stopped=True, undo=True)


def test_a_checkpoint_of_one_batch(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["-"]})
    adopt(root, "orders")
    assert lines(root, 0) == ["-", HEARTBEAT]


def test_several_streams_move_the_sources_behind_a_heartbeat(tmp_path: Path) -> None:
    root = written(tmp_path, {n: [f'{{"a":{n}}}', f'{{"b":{n}}}', f'{{"c":{n}}}'] for n in range(3)})
    before = contents(root)
    done = adopt(root, {"orders": [0, 1], "payments": [2]})

    assert ["heartbeat" if HeartbeatOffset.find(line) else line for line in lines(root, 2)] == [
        '{"a":2}', '{"b":2}', "heartbeat", '{"c":2}', "heartbeat",
    ]  # fmt: skip
    assert "moved sources/2 to sources/3" in str(done)
    assert (root / "sources/3/0").read_text() == "of source 2"
    leave(root)
    assert contents(root) == before

    adopt(root, ["one", "two", "three"])
    assert [(root / f"sources/{n}/0").read_text() for n in (0, 2, 4)] == [f"of source {n}" for n in range(3)]
    leave(root)
    assert contents(root) == before


def test_version_2_numbers_its_sources_in_any_order(tmp_path: Path) -> None:
    batches = {n: ['1:{"b":1}', '0:{"a":1}'] for n in range(3)}
    root = written(tmp_path, batches, version="v2", sourceMetadataInfo={})
    before = contents(root)
    adopt(root, ["orders", "payments"])

    assert [line for line in lines(root, 2) if "lowmark" not in line] == ['2:{"b":1}', '0:{"a":1}']
    assert f"1:{HEARTBEAT}" in lines(root, 2)
    assert (root / "sources/2/0").read_text() == "of source 1"
    leave(root)
    assert contents(root) == before


def test_named_sources_need_nothing(tmp_path: Path) -> None:
    conf = {**CONF, EVOLUTION: "true"}
    root = written(tmp_path, {0: ['orders:{"a":1}']}, version="v2", conf=conf, sourceMetadataInfo={})
    assert "its sources have names (source evolution)" in str(adopt(root, "orders"))
    assert "its sources have names (source evolution)" in str(leave(root))


# -- refusals


@pytest.mark.parametrize(
    ("change", "streams", "text"),
    [
        ({"version": "v3"}, "orders", r"offsets/4 has version 'v3', expected 'v1' or 'v2'. Hint: use the lowmark"),
        ({"surprise": 1}, "orders", r"has metadata that is not known here: surprise"),
        ({"lines": ["{"]}, "orders", r"has an offset of source 0 that is no JSON: '{'"),
        (
            {"lines": ['{"a":1}', '{"b":1}']},
            "orders",
            r"it has 2 sources, and the sources of orders are not given. Hint: ",
        ),
        ({"lines": ['{"a":1}', '{"b":1}']}, "eu's orders", r"such as --stream 'eu'\"'\"'s orders=0'; several are"),
        ({"lines": ['{"a":1}', '{"b":1}']}, {"a": [0], "b": [0]}, r"source 0 is of two streams"),
        ({"lines": ['{"a":1}', '{"b":1}']}, {"a": [2]}, r"the sources of a are 2, and it has 0 to 1"),
        ({"lines": ["1", "2", "3"]}, {"a": [0, 2]}, r"the sources of a are 0, 2, .*sources that follow each other"),
        ({}, {"a": 0}, r"the sources of a are 0, and no list of numbers. Hint: pass a list of numbers, such as \[0\]"),
        ({}, {"a": "0"}, r"the sources of a are '0', and no list of numbers"),
        ({}, {"a": ["0"]}, r"the sources of a are \['0'\], and no list of numbers"),
        ({}, "", r"the name of a stream is empty"),
        ({}, "a\nb", r"the name of a stream holds .*one line"),
        ({}, None, r"it is not said what the stream is called. Hint: pass --stream NAME"),
        ({"commits": 3}, "orders", r"batch 4 is planned and not committed, so a query may be running it. Hint: stop"),
    ],
)
def test_what_is_not_known_for_sure_is_refused_and_left_as_it_was(
    tmp_path: Path, change: dict[str, Any], streams: Any, text: str
) -> None:
    each = change.pop("lines", ['{"logOffset":1}'])
    root = written(tmp_path, dict.fromkeys(range(5), each), **change)
    before = contents(root)
    with pytest.raises(AdoptionRefused, match=text) as refused:
        adopt(root, streams)
    assert str(root) in str(refused.value)
    assert contents(root) == before


@pytest.mark.parametrize("length", [0, 2, 20, -1], ids=["empty", "version", "metadata", "offset"])
def test_an_entry_that_a_stop_of_the_machine_has_cut_short_is_not_taken_for_one_of_another_spark(
    native: Path, length: int
) -> None:
    newest = native / "offsets/4"
    newest.write_text(newest.read_text()[:length])
    with pytest.raises(AdoptionRefused, match=r"Hint: did the machine stop while it was written\? Use a copy of"):
        adopt(native, "orders")


@pytest.mark.parametrize("policy", ["max", "MAX"])
def test_two_streams_under_the_policy_max_are_refused(tmp_path: Path, policy: str) -> None:
    conf = {"spark.sql.streaming.multipleWatermarkPolicy": policy}
    root = written(tmp_path, {0: ["1", "2"]}, conf=conf)
    with pytest.raises(AdoptionRefused, match="multipleWatermarkPolicy is max in it"):
        adopt(root, ["a", "b"])


def test_a_source_that_is_read_twice_is_refused(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "1"]})
    shutil.rmtree(root / "sources/1")
    with pytest.raises(AdoptionRefused, match="seems to read one source twice"):
        adopt(root, ["a", "b"])


@pytest.mark.parametrize(
    "offsets",
    [["1", "1", "2"], ["1", "1", HEARTBEAT, "2", HEARTBEAT.replace("orders", "other")]],
    ids=["adopt", "leave"],
)
def test_a_source_that_is_read_twice_before_another_is_refused(tmp_path: Path, offsets: list[str]) -> None:
    """Numbers count sources, so no line belongs to the folder of the other source."""
    root = written(tmp_path, {0: offsets})
    numbers = {0, 1} if len(offsets) == 3 else {0, 2}
    for folder in set(range(len(offsets))) - numbers:
        shutil.rmtree(root / f"sources/{folder}")
    before = contents(root)
    with pytest.raises(AdoptionRefused, match="seems to read one source twice"):
        adopt(root, {"a": [0, 1], "b": [2]}) if len(offsets) == 3 else leave(root)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("wrapped", "native", "folders"),
    [
        (["1", HEARTBEAT, "1"], ["1"], {0}),
        (["1", "2", HEARTBEAT, "1", "2"], ["1", "2"], {0, 1}),
        (["1", HEARTBEAT, "2", HEARTBEAT.replace("orders", "other"), "2"], ["1", "2"], {0, 2}),
    ],
    ids=["a source", "two sources", "the second stream"],
)
def test_the_line_of_late_to_is_left_out_with_the_heartbeat(
    tmp_path: Path, wrapped: list[str], native: list[str], folders: set[int]
) -> None:
    """The native query has no second use of a source, and Spark compares the numbers of lines."""
    root = written(tmp_path, {0: [line if "lowmark" in line else "-" for line in wrapped], 1: wrapped})
    for folder in {*range(len(wrapped))} - folders:
        shutil.rmtree(root / f"sources/{folder}")
    before = contents(root)
    done = leave(root)
    assert (lines(root, 1), lines(root, 0)) == (native, ["-"] * len(native))
    assert "mind: the line of a source that late_to read once more goes, too" in str(done)
    assert [(root / f"sources/{n}/0").read_text() for n in range(len(native))] == [
        f"of source {n}" for n in sorted(folders)
    ]
    leave(root, undo=True)
    assert contents(root) == before


def test_a_source_of_its_own_behind_the_heartbeat_stays(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "1"]})
    before = contents(root)
    assert adopt(root, {"orders": [0]}).done
    assert "mind" not in str(leave(root))
    assert contents(root) == before


def test_what_may_be_a_line_of_late_to_or_a_source_of_its_own_is_refused(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", HEARTBEAT, "1"]})
    shutil.rmtree(root / "sources")
    before = contents(root)
    with pytest.raises(AdoptionRefused, match=r"no folder in sources/ tells whether late_to reads those once more"):
        leave(root)
    assert contents(root) == before


def test_sources_that_stand_at_the_same_offset_are_adopted_and_left(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "1"]})
    before = contents(root)
    assert adopt(root, ["a", "b"]).done
    assert leave(root).done
    assert contents(root) == before


@pytest.mark.parametrize("batch_ms", [5, 4_102_444_800_000], ids=["in the commit log", "in the offset log"])
def test_a_watermark_ahead_of_the_clock_is_told_before_all_rows_are_late(tmp_path: Path, batch_ms: int) -> None:
    """One timestamp of the year 2100 has set native Spark's watermark, which lowmark keeps."""
    root = written(tmp_path, {0: ["1"]}, batchWatermarkMs=batch_ms)
    (root / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":4102444800000}')
    for dry_run in (True, False):
        done = adopt(root, "orders", dry_run=dry_run, stopped=True)
        last = str(done).splitlines()[-1]
        assert last.startswith("mind: Spark's watermark in it stands at 2100-01-01 00:00:00.000 UTC, 2")
        assert last.endswith(f"Start with a new checkpoint; for Kafka, `lowmark offsets {root}` says where.")
    assert "mind" not in str(leave(root, stopped=True))


def read_offset(checkpoint: int, *splits: SplitT) -> str:
    live = tuple(Placed(0, split) for split in splits)
    serializer = DataclassSerializer(type(splits[0]))
    return json.dumps(BatchOffset.encode("orders", checkpoint, "token", BatchState(b"", live), serializer).to_json())


def partition(number: int, start: int, topic_id: str = "") -> KafkaSplit:
    name = split_id("orders", number, topic_id)
    return KafkaSplit(split_id=name, topic="orders", partition=number, topic_id=topic_id, start=start)


def test_what_service_read_wrote_is_left_for_a_new_checkpoint_at_its_offsets(tmp_path: Path) -> None:
    """The topic was made again; partition 2 has ended, so it has no position."""
    first = read_offset(1, partition(0, 5), partition(1, 7), partition(2, 9))
    last = read_offset(2, partition(0, 12), partition(1, 3, "qX1"), partition(1, 30))
    root = written(tmp_path, {0: [first, HEARTBEAT], 1: [last, HEARTBEAT]}, commits=0)
    code, _, err = call("leave", str(root), "--stopped")
    assert (code, 'stream "orders" is read by service.read' in err) == (2, True)
    [command] = re.findall(r"start with a new checkpoint; `lowmark (\w+)` prints where", err)
    assert json.loads(call(command, str(root))[1]) == {"orders": {"0": 5, "1": 7, "2": 9}}
    assert json.loads(call(command, str(root), "--planned")[1]) == {"orders": {"0": 12, "1": 3}}
    code, _, err = call(command, str(root), "--window", "1 minute", "--delay", "1 second")
    assert (code, "prints without --window" in err) == (2, True)


def test_a_second_adoption_of_sources_at_equal_offsets_finds_nothing_to_do(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ['{"logOffset":3}', '{"logOffset":3}']})
    assert adopt(root, ["orders", "payments"], stopped=True).done
    again = adopt(root, ["orders", "payments"], stopped=True)
    assert (again.done, again.why_nothing) == (False, "the heartbeat is there already")


@pytest.mark.parametrize("late_to", [False, True])
def test_what_service_read_wrote_of_another_system_is_left_for_a_place_of_the_user_s_choice(
    tmp_path: Path, late_to: bool
) -> None:
    planned = read_offset(1, FileSplit(split_id="/data/orders/0", start=8))
    root = written(tmp_path, {0: [planned, HEARTBEAT, planned] if late_to else [planned, HEARTBEAT]})
    shutil.rmtree(root / "sources")
    with pytest.raises(AdoptionRefused, match="Hint: start with a new checkpoint, at a place that you choose") as left:
        leave(root)
    assert "lowmark offsets" not in str(left.value)
    with pytest.raises(CheckpointUnreadable, match="none of its sources is Kafka"):
        kafka_starting_offsets(root)


def test_a_folder_in_the_place_of_a_source_is_not_written_over(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "2"]})
    (root / "sources/2").mkdir()
    (root / "sources/2/0").touch()
    with pytest.raises(AdoptionRefused, match="sources/2 is there and of no source that is known"):
        adopt(root, ["a", "b"])


def test_an_empty_folder_is_of_a_query_that_was_refused_at_its_start(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "2"]})
    before = contents(root)
    (root / "sources/2").mkdir()
    adopt(root, ["a", "b"])
    assert (root / "sources/2/0").read_text() == "of source 1"
    (root / "sources/1").mkdir()
    leave(root)
    assert contents(root) == before


@pytest.mark.parametrize("after", [False, True], ids=["before the move", "after it"])
def test_an_empty_folder_is_not_moved_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    root = written(tmp_path, {0: ["1", "2"]})
    before = contents(root)
    (root / "sources/2").mkdir()
    move = LocalStore.move

    def cut(store: LocalStore, source: str, target: str) -> None:
        if after:
            move(store, source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "move", cut)
        with pytest.raises(KeyboardInterrupt):
            adopt(root, ["a", "b"])
    adopt(root, undo=True)
    assert contents(root) == before


def test_a_log_that_was_just_written_may_have_a_query(native: Path) -> None:
    os.utime(native / "commits/4")
    with pytest.raises(AdoptionRefused, match=r"written 0 seconds ago.*wait until it is quiet for 20 seconds, or stop"):
        adopt(native, "orders")
    adopt(native, "orders", stopped=True)
    os.utime(native / "commits/4", (1_700_000_000, 1_700_000_000))
    leave(native)  # the command's own writes are no sign of a running query


def test_a_batch_whose_plan_was_removed_by_hand_to_run_it_again_is_no_sign_of_a_query(native: Path) -> None:
    (native / "offsets/4").unlink()  # commits/4 is still there, and batch 3 is committed
    assert str(adopt(native, "orders")).splitlines()[0] == 'added the heartbeat of "orders", in offsets/3, offsets/2'


def test_what_root_writes_is_of_the_user_whose_query_goes_on_from_it(native: Path) -> None:
    owner = (12_345, 54_321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for path in (native, *native.rglob("*")):
        os.chown(path, *owner)
    adopt(native, "orders")
    assert {(path.stat().st_uid, path.stat().st_gid) for path in native.rglob("*")} == {owner}
    assert (native / "lowmark/changes/1.json").exists()


def test_what_one_of_a_group_writes_can_be_written_by_the_group_whose_query_goes_on_from_it(
    native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    for path in (native, *native.rglob("*")):
        path.chmod(path.stat().st_mode | 0o060)
    before = os.umask(0o077)
    try:
        adopt(native, "orders")
    finally:
        os.umask(before)
    written = [
        native / name for name in ("lowmark", "lowmark/changes", "lowmark/changes/1.json", "offsets/3", "offsets/4")
    ]
    assert [stat.S_IMODE(path.stat().st_mode) for path in written] == [0o770, 0o770, 0o660, 0o660, 0o660]


def test_a_dry_run_says_what_the_command_would_be_refused_for_now(native: Path) -> None:
    os.utime(native / "commits/4")
    would = adopt(native, "orders", dry_run=True)
    assert str(would).splitlines()[0] == 'would add the heartbeat of "orders", in offsets/4, offsets/3'
    assert re.search(r"\nnot yet: its log was written 0 seconds ago.*--stopped \(stopped=True\).$", str(would))
    assert "not yet" not in str(adopt(native, "orders", dry_run=True, stopped=True))


def test_a_dry_run_names_the_running_query_of_its_session(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (link := tmp_path / "link").symlink_to(native)
    monkeypatch.setattr(adoption, "open_store", lambda _, place: LocalStore(Path(place)))
    execution = SimpleNamespace(resolvedCheckpointRoot=lambda: str(native))
    query = SimpleNamespace(name="hourly", _jsq=SimpleNamespace(streamingQuery=lambda: execution))
    spark: Any = SimpleNamespace(_jsparkSession=None, streams=SimpleNamespace(active=[query]))
    before = contents(native)
    for stopped, path in product((False, True), (native, link)):
        would = adopt(path, "orders", spark=spark, dry_run=True, stopped=stopped)
        assert would.why_not_yet == "query hourly runs on it; stop it first."
        with pytest.raises(AdoptionRefused, match=r"query hourly runs on it. Hint: stop it first"):
            adopt(path, "orders", spark=spark, stopped=stopped)
    assert contents(native) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("offsets", r"offsets cannot be read \(Not a directory\)"),
        ("offsets/4", r"offsets/4 cannot be read \(Is a directory\)"),
        ("lowmark/changes/1.json", r"lowmark/changes/1.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(native: Path, name: str, text: str) -> None:
    path = native / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    elif path.exists():
        path.unlink()
        path.mkdir()
    else:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\xff")
    with pytest.raises((CheckpointUnreadable, AdoptionRefused), match=text):
        adopt(native, "orders")
    with pytest.raises((CheckpointUnreadable, AdoptionRefused), match=text):
        leave(native)


@pytest.mark.parametrize("name", ["offsets/4", "offsets/3", "commits/4"])
def test_a_file_of_sparks_that_is_no_text_is_named(native: Path, name: str) -> None:
    whole = (native / name).read_bytes()
    (native / name).write_bytes(whole + b"\xff")
    with pytest.raises(AdoptionRefused, match=f"{name} is not UTF-8. Hint: use a copy of the checkpoint from before"):
        adopt(native, "orders", stopped=True)

    (native / name).write_bytes(whole)
    adopt(native, "orders", stopped=True)
    damaged = (native / name).read_bytes() + b"\xff"
    (native / name).write_bytes(damaged)
    if name.startswith("offsets"):
        with pytest.raises(AdoptionRefused, match=f"{name} is not UTF-8"):
            adopt(native, undo=True, stopped=True)
    assert (native / name).read_bytes() == damaged


@pytest.mark.parametrize("name", ["lowmark/changes/.1.json.lowmark", "offsets/.4.lowmark"])
def test_what_cannot_be_written_is_named_and_gone_on_with(native: Path, name: str) -> None:
    """A folder stands in the way of a file; this stops even root, whose permissions have no limits."""
    path = native / name
    path.mkdir(parents=True)
    with pytest.raises(CheckpointUnwritable, match=r"cannot be written \(.*\). Hint: .*go on where they") as told:
        adopt(native, "orders")
    assert str(native) in str(told.value)
    path.rmdir()
    assert adopt(native, "orders").done
    assert lines(native, 4) == ['{"logOffset":4}', HEARTBEAT]


def test_a_change_of_a_later_lowmark_is_refused(native: Path) -> None:
    adopt(native, "orders")
    file = native / "lowmark/changes/1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    with pytest.raises(AdoptionRefused, match=r"has format 2, and this lowmark knows 1. Hint: use the later version"):
        leave(native)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match="there is no such folder"):
        adopt(tmp_path / "none", "orders")
    with pytest.raises(CheckpointUnreadable, match=r"no planned batch.*a query of either kind can start on it"):
        adopt(tmp_path, "orders")
    with pytest.raises(AdoptionRefused, match=r"not on this machine.*lowmark.leave\('s3a://b/orders', spark=spark\)"):
        leave("s3a://b/orders")


def test_the_root_of_this_machine_is_not_the_folder_of_the_process(
    native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(native)
    with pytest.raises(CheckpointUnreadable, match='checkpoint "/": it has no planned batch'):
        adopt("/", "orders")


def test_the_call_for_a_checkpoint_elsewhere_can_be_pasted() -> None:
    with pytest.raises(AdoptionRefused, match=r"lowmark.adopt\('hdfs://nn/x', 'NAME', spark=spark\) in a session"):
        adopt("hdfs://nn/x", "orders")


def test_a_path_with_a_scheme_of_this_machine(native: Path) -> None:
    adopt(f"file://{native}", "orders")
    assert len(lines(native, 4)) == 2


# -- crashes


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run work in a process that is killed before its n-th change of a file; return False if it ended before."""
    child = os.fork()
    if child == 0:
        left = step
        real: dict[str, Callable[..., Any]] = {
            "rename": os.rename,
            "unlink": os.unlink,
            "open": os.open,
            "mkdir": os.mkdir,
        }

        def counting(name: str) -> Callable[..., Any]:
            def change(path: Any, *args: Any, **options: Any) -> Any:
                nonlocal left
                if name != "open" or args[0] & os.O_CREAT:
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return real[name](path, *args, **options)

            return change

        for name in real:
            setattr(os, name, counting(name))
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # a process of a test has nobody to raise to
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed by itself"
    return os.WIFSIGNALED(status)


@contextmanager
def cut_short(store: type[CheckpointStore], moment: int) -> Iterator[Callable[[], bool]]:
    """Interrupt the inner work before or after one of its writes and moves; yield whether an interrupt came.

    Args:
        store: the class whose writes and moves count.
        moment: index of the moment, two for each write or move; a later moment interrupts nothing.
    """
    left = moment

    def cutting(step: Callable[..., None]) -> Callable[..., None]:
        def cut(*args: str) -> None:
            nonlocal left
            for done in (False, True):
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                if not done:
                    step(*args)

        return cut

    with pytest.MonkeyPatch.context() as patched, suppress(KeyboardInterrupt):
        for step in ("write", "move"):
            patched.setattr(store, step, cutting(getattr(store, step)))
        yield lambda: left < 0


def startable(root: Path) -> int | None:
    """Return the number of sources with which Spark would start on the checkpoint; None if it would not start."""
    counts = set()
    for batch in (2, 1):
        version, *_ = text = (root / "offsets" / str(batch)).read_text().split("\n")
        counts.add(len(text) - 2 if version == "v1" else None)
    return counts.pop() if len(counts) == 1 else None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("then", ["again", "undo"])
def test_a_kill_at_any_step_leaves_the_old_the_new_or_nothing_that_starts(tmp_path: Path, then: str) -> None:
    old = written(tmp_path / "old", {n: [f'{{"a":{n}}}', f'{{"b":{n}}}'] for n in range(3)})
    new = shutil.copytree(old, tmp_path / "new")
    adopt(new, ["one", "two"])
    before, after = contents(old), contents(new)
    seen, step, killed = set(), 0, True
    while killed:
        root = shutil.copytree(old, tmp_path / f"{step}")
        killed = killed_at(step, lambda root=root: adopt(root, ["one", "two"]))  # type: ignore[misc]
        found = startable(root)
        seen.add(found)
        if found is not None:
            assert contents(root) == (before if found == 2 else after), f"killed at step {step}"
        if then == "again":
            adopt(root, ["one", "two"])
            assert contents(root) == after, f"killed at step {step}, and again"
        elif (root / "lowmark/changes/1.json").exists():
            killed_at(step, lambda root=root: adopt(root, undo=True))  # type: ignore[misc]
            if contents(root) != before:
                adopt(root, undo=True)
            assert contents(root) == before, f"killed at step {step}, and undone"
        step += 1
    assert step > 15, "there are more steps than that"
    assert seen == {2, 4, None}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_another_command_in_the_middle_of_one_says_what_to_run(native: Path) -> None:
    for step in range(100):
        assert killed_at(step, lambda: adopt(native, "orders")), "never stopped in the middle"
        if "lowmark is changing" in (native / "offsets/4").read_text():
            break
    with pytest.raises(
        AdoptionRefused, match=r"a `lowmark adopt` was stopped.*run `lowmark adopt` again, or `lowmark ad"
    ):
        leave(native)
    adopt(native, "orders")
    leave(native)


def test_a_second_command_at_the_same_time_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would move the same folders of sources, and no later command could end or undo that."""
    old = written(tmp_path / "old", {n: [f'{{"a":{n}}}', f'{{"b":{n}}}', f'{{"c":{n}}}'] for n in range(3)})
    names, root = ["one", "two", "three"], shutil.copytree(old, tmp_path / "new")
    adopt(root, names)
    after, before = contents(root), contents(old)
    move, refused = LocalStore.move, list[str]()

    def second(store: LocalStore, source: str, target: str) -> None:
        for command in (partial(adopt, old, names), partial(leave, old), partial(adopt, old, undo=True)):
            with pytest.raises(AdoptionRefused) as failed:
                command(stopped=True)
            refused.append(str(failed.value))
        move(store, source, target)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "move", second)
        adopt(old, names)
    assert len(refused) == 6
    assert all("another `lowmark adopt` or `lowmark leave` works on it. Hint: wait until" in each for each in refused)
    assert contents(old) == after
    leave(old)
    assert contents(old) == before


def test_a_change_that_never_began_does_not_touch_what_came_after_it(native: Path) -> None:
    """The command was killed after it had written down its plan only; then the query ran on, and was stopped."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adoption._Checkpoint, "_at_work", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt(native, "orders")
    assert (native / "lowmark/changes/1.json").exists()
    (native / "offsets/5").write_text((native / "offsets/4").read_text().replace(":4}", ":5}"))
    (native / "commits/5").write_text("v1\n{}")
    adopt(native, "orders", stopped=True)
    assert [len(lines(native, batch)) for batch in (3, 4, 5)] == [1, 2, 2]
    assert (native / "lowmark/changes/2.json").exists()


def test_a_change_that_never_began_looks_for_a_running_query_once_more(native: Path) -> None:
    """The command was killed after it had written down its plan only; then the query was started again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adoption._Checkpoint, "_at_work", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt(native, "orders")
    before = contents(native)
    os.utime(native / "commits/4")
    runs = r"its log was written 0 seconds ago, so a query may still run on it"
    with pytest.raises(AdoptionRefused, match=runs):
        adopt(native, "orders")
    with pytest.raises(AdoptionRefused, match=runs):
        leave(native)
    assert contents(native) == before


@pytest.mark.parametrize("undo", [False, True])
def test_an_entry_that_was_being_written_is_one_of_the_change(native: Path, undo: bool) -> None:
    """On ABFS an overwritten file is empty until the write is complete."""
    before = contents(native)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adoption._Checkpoint, "_at_work", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt(native, "orders")
    (native / "offsets/4").write_text("")
    if undo:
        adopt(native, undo=True)
        assert contents(native) == before
    else:
        adopt(native, "orders")
        assert [len(lines(native, batch)) for batch in (3, 4)] == [2, 2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_query_that_runs_on_while_its_checkpoint_is_changed_is_told(native: Path) -> None:
    for step in range(100):
        killed_at(step, lambda: adopt(native, "orders"))
        if "lowmark is changing" in (native / "offsets/4").read_text():
            break
    before = (native / "offsets/3").read_text()
    (native / "offsets/5").write_text(before)
    with pytest.raises(AdoptionRefused, match=r"offsets/5 was written while offsets/4 was being changed.*by hand: lo"):
        adopt(native, "orders")


# -- the commands


def test_the_commands(native: Path) -> None:
    code, out, _ = call("adopt", str(native), "--stream", "orders", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, 'would add the heartbeat of "orders", in offsets/4, offsets/3')
    code, out, _ = call("adopt", str(native), "--stream", "orders", "--json")
    assert code == 0
    assert json.loads(out)["backup"] == "lowmark/changes/1.json"
    assert json.loads(out)["entries"][0]["batch"] == 4
    assert call("adopt", str(native), "--undo")[0] == 0
    code, out, _ = call("leave", str(native))
    assert (code, out.splitlines()[0]) == (
        0,
        "nothing to do: no heartbeat is in it, so it is of a query without lowmark",
    )
    code, _, err = call("adopt", str(native))
    assert (code, "it is not said what the stream is called" in err) == (2, True)


def test_the_numbers_of_sources_on_the_command_line(tmp_path: Path) -> None:
    root = written(tmp_path, {0: ["1", "2", "3"]})
    code, out, _ = call("adopt", str(root), "--stream", "a=b=0,1", "--stream", "pay=2")
    assert (code, out.splitlines()[0]) == (0, 'added the heartbeat of "a=b", "pay", in offsets/0')
    assert [bool(HeartbeatOffset.find(line)) for line in lines(root, 0)] == [False, False, True, False, True]


def test_what_the_pages_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the functions of adopt.md, with other paths and without a session."""
    one, two = written(tmp_path / "one", {0: ["1"]}), written(tmp_path / "two", {0: ["1", "2"]})
    untouched = contents(one), contents(two)
    code = block("adopt.md", "from lowmark import adopt, leave")
    for path in (one, two, two):
        code = code.replace("s3a://bucket/checkpoints/orders", str(path), 1)
    exec(code, {"spark": None})  # the page's code; a local file system needs no session
    assert (contents(one), contents(two)) == untouched, "one was only asked for, the other adopted and left"
    assert capsys.readouterr().out.startswith('would add the heartbeat of "orders"')

    words = shlex.split(block("adopt.md", "lowmark adopt").replace("/path/of/checkpoint", str(two)))
    status, out, err = call(*words[1:])
    assert (status, out.splitlines()[:1]) == (0, ['added the heartbeat of "orders", "payments", in offsets/0']), err


@pytest.mark.parametrize(
    ("kind", "behind", "renames"),
    [
        ("Hdfs", None, True),
        ("ViewFs", "Hdfs", True),
        ("ViewFs", "GoogleHadoopFS", False),
        ("GoogleHadoopFS", None, False),
    ],
)
def test_an_entry_is_renamed_over_only_where_no_file_system_deletes_it_first(
    monkeypatch: pytest.MonkeyPatch, kind: str, behind: str | None, renames: bool
) -> None:
    """`AbstractFileSystem` deletes before it renames, and all kinds but HDFS's inherit that, not only those of S3."""

    def context(uri: str, _: object) -> Any:
        here = behind if uri == "behind" else kind
        resolved = SimpleNamespace(toUri=lambda: "path" if behind is None else "behind")
        return SimpleNamespace(getDefaultFileSystem=lambda: here, resolvePath=lambda _: resolved)

    monkeypatch.setattr(
        "py4j.java_gateway.is_instance_of", lambda _, found, name: name == f"org.apache.hadoop.fs.{found}"
    )
    store: Any = object.__new__(HadoopStore)
    hadoop = SimpleNamespace(fs=SimpleNamespace(FileContext=SimpleNamespace(getFileContext=context)))
    store._jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    store._files = SimpleNamespace(makeQualified=lambda _: SimpleNamespace(toUri=lambda: "path"))
    store._conf = store._gateway = None
    assert (store._find_context(None) is not None) == renames
