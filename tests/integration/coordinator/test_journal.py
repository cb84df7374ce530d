"""The journal: one writer, whole writes, and an error instead of an empty state."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.coordinator.journal import Journal, default_journal, patience_seconds
from lowmark.integration.coordinator.server import restore
from lowmark.integration.errors import JournalRefused
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.snapshot import ChangedRows, Rows

from tests.rights import without_rights_of_root

TASK = TaskId("job", "orders", "0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


def told() -> LowWatermarkCoordinator:
    """A coordinator that has published 42."""
    coordinator = LowWatermarkCoordinator()
    coordinator.handle(TaskRegistered(TASK, "run-1"), 0)
    coordinator.handle(Tick(), 1_000_000)
    coordinator.handle(ReplyLowWatermark("job", "orders", "0", 1_000_000, 42, "run-1"), 1_000_001)
    return coordinator


def rows(**states: str) -> Rows:
    return {(name,): state for name, state in states.items()}


def test_what_was_written_is_read_also_by_the_next_process(path: Path) -> None:
    journal = Journal(path)
    assert journal.read() == {}
    journal.write(rows(a="1", b="2"))
    journal.write({("a",): "3", ("b",): None, ("c", "two", "parts"): "4", ("never there",): None})
    expected = {("a",): "3", ("c", "two", "parts"): "4"}
    assert journal.read() == expected
    journal.close()
    again = Journal(path)
    assert again.read() == expected
    again.write(rows(c="5", d="\x00 \U0001f600"))
    assert again.read() == expected | rows(c="5", d="\x00 \U0001f600")
    assert all(each.stat().st_mode & 0o077 == 0 for each in path.parent.iterdir())
    again.close()
    assert [each.name for each in path.parent.iterdir()] == ["journal"]


def test_there_is_one_writer(path: Path) -> None:
    first = Journal(path)
    with pytest.raises(JournalRefused) as refused:
        Journal(path)
    assert str(refused.value) == (
        f"journal {path}: another coordinator writes it. Hint: one coordinator is enough for all applications; stop "
        "that one, or give this one another --journal."
    )
    first.close()
    Journal(path).close()


def test_a_killed_writer_leaves_its_lock_to_the_next_and_whole_writes(path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom lowmark.integration.coordinator.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\njournal.read()\n"
        "for number in range(1_000_000):\n    rows = {(str(n),): str(number) * 100 for n in range(1_000)}\n"
        "    journal.write({**rows, ('gone', str(number)): 'x', ('gone', str(number - 1)): None})\n"
        "    print('written', flush=True)\n"
    )
    for kill in range(5):
        with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(1 + 3 * kill):
                assert writer.stdout.readline() == "written\n"
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        journal = Journal(path)
        found = journal.read()
        journal.close()
        states = {state for key, state in found.items() if key[0] != "gone"}
        assert len(states) == 1, f"kill {kill}: half a write"


def test_a_wal_that_is_cut_off_anywhere_has_whole_writes(path: Path, tmp_path: Path) -> None:
    journal = Journal(path)
    assert journal._base.execute("PRAGMA synchronous").fetchall() == [(2,)], "a write is synced"
    for number in range(4):
        changes: ChangedRows = {(str(n),): str(number) for n in range(number, 200)}  # updates, in two pages and more
        changes |= {("new", str(number)): str(number), ("new", str(number - 1)): None}
        journal.write(changes | {("last",): str(number)})
    copy, wal, found = tmp_path / "copy", path.with_name("journal-wal").read_bytes(), set[str]()
    copy.mkdir(mode=0o700)
    for size in (*range(0, len(wal), 500), len(wal)):
        shutil.copy(path, copy / "journal")
        (copy / "journal-wal").write_bytes(wal[:size])
        with closing(Journal(copy / "journal")) as cut:
            states = cut.read()
        last = states.pop(("last",), "none")
        found.add(last)
        assert [key for key in states if key[0] == "new"] == ([("new", last)] if states else []), f"cut at {size}"
        assert {state for key, state in states.items() if key[0] == "199"} <= {last}, f"cut at {size}"
    assert found == {"none", "0", "1", "2", "3"}
    journal.close()


def test_a_process_that_is_killed_while_it_makes_the_database_leaves_no_empty_one(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.with_name("0a.new").write_bytes(b"half a data")
    journal = Journal(path)
    assert journal.read() == {}
    journal.close()
    assert {each.name for each in path.parent.iterdir()} == {"journal", "0a.new"}


def test_of_two_that_make_the_database_at_once_one_has_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes had no journal, because each process removed the file of the other process."""
    connect, other = sqlite3.connect, list[Journal]()

    def late(database: Path, **options: Any) -> sqlite3.Connection:
        monkeypatch.undo()
        base: sqlite3.Connection = connect(database, **options)
        base.execute("PRAGMA user_version").fetchall()  # opens the file
        other.append(Journal(path))
        return base

    monkeypatch.setattr(sqlite3, "connect", late)
    with pytest.raises(JournalRefused, match="another coordinator writes it"):
        Journal(path)
    other[0].write(rows(a="1"))
    assert other[0].read() == rows(a="1")
    other[0].close()
    assert [each.name for each in path.parent.iterdir()] == ["journal"]


def test_a_database_that_another_makes_meanwhile_is_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file -wal was there and itself was not, because the files were looked for in that order."""
    check, other = Journal._check, list[Journal]()

    def slow(self: Journal, name: str) -> bool:
        found = check(self, name)
        monkeypatch.undo()
        other.append(Journal(path))
        return found

    monkeypatch.setattr(Journal, "_check", slow)
    with pytest.raises(JournalRefused, match="another coordinator writes it"):
        Journal(path)
    other[0].close()


def test_the_pages_of_a_journal_that_was_moved_away_do_not_come_into_a_new_one(path: Path) -> None:
    journal = Journal(path)
    journal.write(rows(a="1"))
    wal = path.with_name("journal-wal").read_bytes()
    journal.close()
    path.unlink()
    path.with_name("journal-wal").write_bytes(wal)
    with pytest.raises(JournalRefused, match="only the files beside it are there"):
        Journal(path)


def test_a_write_that_fails_keeps_the_old_rows_and_is_tried_again(path: Path) -> None:
    journal = Journal(path)
    journal.write(rows(a="old", b="old"))
    changes: ChangedRows = {("a",): "new" * 100_000, ("b",): None, ("c",): "new"}
    [(pages,)] = journal._base.execute("PRAGMA page_count").fetchall()
    journal._base.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalRefused, match=r"is full.*the disk has room") as refused:
        journal.write(changes)
    assert patience_seconds(refused.value) == 60
    assert journal.read() == rows(a="old", b="old")
    journal._base.execute("PRAGMA max_page_count=1000000")
    journal.write(changes)
    assert journal.read() == rows(a="new" * 100_000, c="new")
    journal.close()


def test_what_a_failed_caller_does_not_know_is_read_again(path: Path) -> None:
    journal = Journal(path)
    journal.write(rows(a="1", b="1"))
    journal._base.execute("DELETE FROM part WHERE number = 1")  # as a write whose caller failed after the commit
    with pytest.raises(AssertionError):
        journal.write(rows(a="2", b="2"))
    assert journal.read() == rows(b="1")
    journal.write(rows(a="2"))
    assert journal.read() == rows(a="2", b="1")
    journal.close()


def test_it_is_written_while_all_descriptors_are_taken(path: Path) -> None:
    journal = Journal(path)
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, limits[0]), limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        for number in range(3):
            journal.write({(str(n),): str(number) * 1_000 for n in range(5_000)})  # also a checkpoint of the WAL
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(journal.read().values()) == {"2" * 1_000}
    journal.close()


def test_what_cannot_pass_is_not_tried_again() -> None:
    refused = JournalRefused("j", "it cannot be used", "look.")
    refused.__cause__ = sqlite3.OperationalError("disk I/O error")
    assert patience_seconds(refused) == patience_seconds(JournalRefused("j", "others", "look.")) == 0


def put_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def put_pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("put", [put_link, put_pipe])
@pytest.mark.parametrize("name", ["journal", "journal-wal", "journal-journal", "journal-shm"])
def test_what_is_no_file_of_ours_is_refused_and_nothing_waits_for_it(
    path: Path, tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    path.parent.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"a state of somebody else")
    put(path.with_name(name), elsewhere)
    with pytest.raises(JournalRefused, match=r"it is a link to another place|is not a file of this user"):
        Journal(path).read()
    assert elsewhere.read_bytes() == b"a state of somebody else"


@pytest.mark.parametrize("put", [put_link, put_pipe, lambda path, target: os.link(target, path)])
def test_a_new_file_is_ours_and_never_one_that_was_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    path.parent.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0a")
    put(path.with_name("0a.new"), elsewhere)
    with pytest.raises(JournalRefused, match="File exists"):
        Journal(path)
    assert (elsewhere.read_bytes(), path.exists()) == (b"kept", False)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(JournalRefused, match=f"others may write in its folder.*{mode:04o}.*chmod go-w"):
        Journal(folder / "j")
    assert list(folder.iterdir()) == []
    Journal(folder / "own" / "j").close()


@pytest.mark.parametrize(
    "away",
    ["folder moved", "folder replaced", "moved", "removed", "replaced", "cut short", "-wal removed", "-wal emptied"],
)
def test_a_file_that_the_next_start_would_not_find_is_not_written(path: Path, away: str) -> None:
    journal = Journal(path)
    journal.write(rows(a="old"))
    if away.startswith("folder"):
        path.parent.rename(path.parent.with_name("gone"))
        if away == "folder replaced":
            path.parent.mkdir()
    elif away == "moved":
        path.rename(path.with_name("gone"))
    elif away == "removed":
        path.unlink()
    elif away == "-wal removed":
        path.with_name("journal-wal").unlink()
    elif away == "-wal emptied":
        os.truncate(path.with_name("journal-wal"), 0)
    elif away == "cut short":  # as `cp` begins to write over it
        os.truncate(path, 0)
    else:  # as a restored backup replaces it
        shutil.copy(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
    with pytest.raises(JournalRefused, match="was moved, removed, replaced or cut short while a coordinator writes it"):
        journal.write(rows(a="new"))
    journal.close()


def test_a_file_that_is_replaced_during_a_write_is_not_taken_for_the_own_one(path: Path) -> None:
    journal = Journal(path)
    shutil.copy(path, path.with_name("copy"))

    def replace(statement: str) -> None:
        if statement == "COMMIT":
            path.with_name("copy").replace(path)

    journal._base.set_trace_callback(replace)
    journal.write(rows(a="old"))
    journal._base.set_trace_callback(None)
    with pytest.raises(JournalRefused, match="replaced"):
        journal.write(rows(a="new"))
    journal.close()


def test_the_hint_for_a_damaged_one_does_not_mix_a_copy_with_what_came_after_it(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.write(rows(a="old", b="old"))
    copy = path.read_bytes()
    journal = Journal(path)
    journal.read()
    journal.write(rows(a="new"))
    wal = path.with_name("journal-wal").read_bytes()
    journal.close()

    path.write_bytes(copy)
    path.with_name("journal-wal").write_bytes(wal)  # which a hint must name, because SQLite takes it into any copy
    with closing(Journal(path)) as mixed:
        assert mixed.read() == rows(a="new", b="old")
        assert "move it and its file -wal away, and put a good copy in their place" in str(mixed.damaged("torn"))


def test_a_coordinator_comes_back_from_it(path: Path) -> None:
    journal = Journal(path)
    journal.write(told().take_changes())
    assert restore(journal, 2_000_000).low_watermark_us("job", "orders") == 42
    journal.close()


def test_a_process_that_has_become_another_user_has_its_journal_in_that_users_folder() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        with without_rights_of_root():
            for _ in range(2):  # the second finds the file
                with closing(Journal(Path(place) / "own" / "journal")) as journal:
                    assert journal.read() == {}


def test_without_a_file_a_coordinator_is_new(path: Path) -> None:
    journal = Journal(path)
    assert restore(journal, 0, Settings(lease_us=7)).status(0).sources == ()
    journal.close()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "no UTF-8", "noise", "of SQLite", "of another version"])
def test_a_damaged_one_is_an_error_and_never_an_empty_one(path: Path, damage: str) -> None:
    journal = Journal(path)
    journal.write(told().take_changes())
    journal.close()
    whole = path.read_bytes()
    flipped, no_text = bytearray(whole), bytearray(whole)
    flipped[whole.index(b'"low_us":42') + 10] ^= 1
    no_text[whole.index(b'"low_us":42') + 10] ^= 0x80
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version=7")
    another = path.read_bytes()
    empty_database = b"SQLite format 3\0" + b"\0" * 4_080
    bad = {
        "empty": b"",
        "cut": whole[:-5_000],
        "flipped": bytes(flipped),
        "no UTF-8": bytes(no_text),
        "noise": b"\1" * 64,
        "of SQLite": empty_database,
        "of another version": another,
    }[damage]
    path.write_bytes(bad)

    def read() -> None:
        with closing(Journal(path)) as damaged:
            restore(damaged, 0)

    with pytest.raises(
        JournalRefused, match="move it and its file -wal away, and put a good copy in their place, or none"
    ) as refused:
        read()
    assert str(path) in str(refused.value)
    with pytest.raises(JournalRefused):
        read()


def test_a_text_that_a_flipped_bit_calls_binary_is_read_because_it_has_its_checksum(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.write({("a", "b"): "state", ("c",): "other"})
    with closing(sqlite3.connect(path)) as other:  # the lowest bit of the type in SQLite's record
        other.execute("UPDATE part SET key = CAST(key AS BLOB), state = CAST(state AS BLOB) WHERE number = 1")
        other.commit()
    with closing(Journal(path)) as journal:
        assert journal.read() == {("a", "b"): "state", ("c",): "other"}
        journal.write({("a", "b"): "new"})
        assert journal.read() == {("a", "b"): "new", ("c",): "other"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalRefused, match="cannot be used"):
        Journal(tmp_path / "file" / "journal")
    for folder in (".", "/"):
        with pytest.raises(JournalRefused, match=r"it is a folder\. Hint: name a file in it"):
            Journal(Path(folder))


def test_the_default_one_is_named_after_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_journal("host:7") == Path("/state/lowmark/host%3A7.journal")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert default_journal("host:7") == Path("/me/.local/state/lowmark/host%3A7.journal")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert default_journal("host:7") == Path("/me/.local/state/lowmark/host%3A7.journal"), "the same in every folder"
    assert len(os.fsencode(default_journal(f"unix:{'/long' * 100}").name)) < 255
    assert default_journal(os.fsdecode(b"unix:/\xc3\xbc\xff")).name == "unix%3A%2F%C3%BC%FF.journal", "not all is UTF-8"


def test_a_user_without_a_home_is_asked_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(JournalRefused, match=r"no home for it\. Hint: name a file of yours with --journal"):
        default_journal("host:7")


def test_a_place_whose_name_has_the_word_locked_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    (tmp_path / "locked").touch()
    with pytest.raises(JournalRefused, match="it cannot be used"):
        Journal(tmp_path / "locked/journal")
