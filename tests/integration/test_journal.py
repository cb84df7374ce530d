"""The journal: one writer, whole states, and an error instead of an empty state."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from lowmark.integration.coordinator.journal import Journal, default_journal, patience_seconds
from lowmark.integration.coordinator.server import restore
from lowmark.integration.errors import JournalRefused
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator

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


def test_what_was_written_is_read_also_by_the_next_process(path: Path) -> None:
    journal = Journal(path)
    assert journal.read() is None
    journal.write(b"one")
    journal.write(b"two")
    assert journal.read() == b"two"
    journal.close()
    again = Journal(path)
    assert again.read() == b"two"
    again.close()
    assert path.stat().st_mode & 0o077 == 0
    assert sorted(each.name for each in path.parent.iterdir()) == ["journal", "journal.lock"]


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


def test_a_killed_writer_leaves_its_lock_to_the_next_and_a_whole_state(path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom lowmark.integration.coordinator.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "journal.write(bytes([0]) * 300_000)\nprint('writing', flush=True)\n"
        "for number in range(1, 1_000_000):\n    journal.write(bytes([number % 256]) * 300_000)\n"
    )
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        journal = Journal(path)
        state = journal.read()
        journal.close()
        assert state is not None
        assert len(state) == 300_000
        assert len(set(state)) == 1


def test_a_write_that_fails_keeps_the_old_state_and_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.write(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(JournalRefused, match=r"No space left on device.*the disk has room"):
            journal.write(b"new")
    assert journal.read() == b"old"
    journal.write(b"new")
    assert journal.read() == b"new"
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
            journal.write(bytes([number]))
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert journal.read() == b"\2"
    journal.close()


def test_what_may_pass_is_tried_again() -> None:
    def refused(number: int) -> JournalRefused:
        error = JournalRefused("j", "it cannot be used", "look.")
        error.__cause__ = OSError(number, os.strerror(number))
        return error

    assert patience_seconds(refused(errno.EMFILE)) == patience_seconds(refused(errno.ENFILE)) == float("inf")
    assert patience_seconds(refused(errno.ENOSPC)) == patience_seconds(refused(errno.EDQUOT)) == 60
    assert patience_seconds(refused(errno.EIO)) == patience_seconds(JournalRefused("j", "others", "look.")) == 0


def put_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def put_pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("put", [put_link, put_pipe])
@pytest.mark.parametrize("name", ["journal", "journal.lock"])
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


@pytest.mark.parametrize("put", [put_link, put_pipe, os.link])
def test_a_new_file_is_ours_and_never_one_that_was_there(
    path: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    journal = Journal(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    new = path.with_name("journal.new")
    if put is os.link:
        os.link(elsewhere, new)
    else:
        put(new, elsewhere)
    journal.write(b"state")
    assert (journal.read(), elsewhere.read_bytes(), path.is_symlink()) == (b"state", b"kept", False)
    journal.close()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(JournalRefused, match=f"others may write in its folder.*{mode:04o}.*chmod go-w"):
        Journal(folder / "j")
    assert list(folder.iterdir()) == []
    Journal(folder / "own" / "j").close()


def test_a_folder_that_was_replaced_is_not_written_behind_the_back_of_the_next_start(path: Path) -> None:
    journal = Journal(path)
    journal.write(b"old")
    path.parent.rename(path.parent.with_name("gone"))
    path.parent.mkdir()
    with pytest.raises(JournalRefused, match="its folder was replaced"):
        journal.write(b"new")
    journal.close()


def test_a_coordinator_comes_back_from_it(path: Path) -> None:
    journal = Journal(path)
    journal.write(told().snapshot())
    assert restore(journal, 2_000_000).low_watermark_us("job", "orders") == 42
    journal.close()


def test_without_a_file_a_coordinator_is_new(path: Path) -> None:
    journal = Journal(path)
    assert restore(journal, 0, lease_us=7).status(0).sources == ()
    journal.close()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "noise"])
def test_a_damaged_one_is_an_error_and_never_an_empty_one(path: Path, damage: str) -> None:
    whole = told().snapshot()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    bad = {"empty": b"", "cut": whole[:-7], "flipped": bytes(flipped), "noise": b"\0" * 64}[damage]
    journal = Journal(path)
    journal.write(bad)
    with pytest.raises(JournalRefused, match="put a good copy in its place, or move it away") as refused:
        restore(journal, 0)
    assert str(path) in str(refused.value)
    assert journal.read() == bad
    journal.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalRefused, match="cannot be used"):
        Journal(tmp_path / "file" / "journal")


def test_the_default_one_is_named_after_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_journal("host:7") == Path("/state/lowmark/host%3A7.journal")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert default_journal("host:7") == Path("/me/.local/state/lowmark/host%3A7.journal")
    assert len(os.fsencode(default_journal(f"unix:{'/long' * 100}").name)) < 255
