"""A checkpoint that other users may write to: files of these users lead no command to another place.

Changes that neither command has written, links, pipes and devices, names that are paths. The last tests of
`test_adopted_queries.py` do the same through a session.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration.errors import AdoptionRefused, CheckpointUnreadable, CheckpointUnwritable
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.beside import reach_back
from lowmark.integration.spark.checkpoint import Farewell, FarewellFiles, kafka_starting_offsets
from lowmark.integration.spark.checkpoint_store import LocalStore

from tests.integration.spark.test_adoption import HEARTBEAT, written

Crafted = dict[str, Any]


@pytest.fixture
def adopted(tmp_path: Path) -> Path:
    """An adopted checkpoint of three sources and two streams; sources/2 has moved to sources/3."""
    root = written(tmp_path, {n: [f'{{"a":{n}}}', f'{{"b":{n}}}', f'{{"c":{n}}}'] for n in range(3)})
    adopt(root, {"orders": [0, 1], "payments": [2]})
    return root


def everything(folder: Path) -> dict[str, str]:
    """Map each name below a folder to its content; links are not followed."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_text("latin-1")
        if path.is_file()
        else ""
        for path in sorted(folder.rglob("*"))
    }


def craft(root: Path, change: Callable[[Crafted], object]) -> None:
    """Change the file of the last change."""
    file = root / "lowmark/changes/1.json"
    crafted = json.loads(file.read_text())
    change(crafted)
    file.write_text(json.dumps(crafted))


def entry(crafted: Crafted, **fields: object) -> None:
    crafted["entries"][0].update(fields)


def unfinished(crafted: Crafted, **fields: object) -> None:
    crafted.update({"done": False, **fields})


CRAFTED: dict[str, Callable[[Crafted], object]] = {
    "a name that climbs": lambda c: entry(c, name="../../x"),
    "an absolute name": lambda c: entry(c, name="/tmp/x"),
    "a name with a zero in front": lambda c: entry(c, name="02"),
    "a name that ends a line": lambda c: entry(c, name="2\n"),
    "a digit of another script": lambda c: entry(c, name="\u0662"),
    "a huge number": lambda c: entry(c, name="9" * 20),
    "a name that is a number": lambda c: entry(c, name=2),
    "an entry twice": lambda c: c.update(entries=[c["entries"][0]] * 2),
    "entries in another order": lambda c: c["entries"].reverse(),
    "three entries": lambda c: c["entries"].append({**c["entries"][0], "name": "0"}),
    "no entry": lambda c: c.update(entries=[]),
    "entries that are no list": lambda c: c.update(entries={"name": "2"}),
    "another text": lambda c: entry(c, after="x"),
    "another source": lambda c: entry(c, after=c["entries"][0]["after"].replace('{"a":2}', '{"a":0}')),
    "other settings": lambda c: entry(c, after=c["entries"][0]["after"].replace('"min"', '"max"')),
    "an offset nested without end": lambda c: entry(c, after=c["entries"][0]["after"] + "\n" + "[" * 100_000),
    "a heartbeat that cannot be": lambda c: entry(c, after=c["entries"][0]["after"] + '\n{"lowmark":"x"}'),
    "a move out of it": lambda c: unfinished(c, moved=0, moves=[["2", "../../../x"]]),
    "a move into it": lambda c: unfinished(c, moved=0, moves=[["../../outside", "3"]]),
    "an absolute move": lambda c: unfinished(c, moved=0, moves=[["2", "/tmp/x"]]),
    "a move to a huge number": lambda c: unfinished(c, moved=0, moves=[["2", "9" * 30]]),
    "a move that no entry asks for": lambda c: unfinished(c, moved=0, moves=[["0", "7"]]),
    "a move twice": lambda c: unfinished(c, moved=0, moves=[["2", "3"]] * 2),
    "a move of three": lambda c: unfinished(c, moved=0, moves=[["2", "3", "4"]]),
    "a move that is a text": lambda c: unfinished(c, moved=0, moves=["23"]),
    "more moved than there are": lambda c: c.update(moved=2),
    "less moved than none": lambda c: c.update(moved=-1),
    "moved that is no number": lambda c: c.update(moved="1"),
    "moved beyond 64 bits": lambda c: c.update(moved=2**70),
    "it undoes itself": lambda c: c.update(undoes=1),
    "it undoes what is no number": lambda c: c.update(undoes="../1"),
    "another action": lambda c: c.update(action="rm"),
    "a name of a stream that a terminal obeys": lambda c: c.update(streams=["\x1b[2J"]),
    "a field nested without end": lambda c: c.update(more=None),
}


OBEYING: dict[str, Callable[[Path], object]] = {
    "adopt": lambda root: adopt(root, "orders", stopped=True),
    "leave": lambda root: leave(root, stopped=True),
    "undo": lambda root: adopt(root, undo=True, stopped=True),
    "dry run": lambda root: adopt(root, "orders", stopped=True, dry_run=True),
}


@pytest.mark.parametrize("command", OBEYING)
@pytest.mark.parametrize("what", CRAFTED)
def test_a_change_that_neither_command_has_written_is_refused_and_nothing_is_touched(
    tmp_path: Path, adopted: Path, what: str, command: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("of somebody else")
    craft(adopted, CRAFTED[what])
    if what == "a field nested without end":
        file = adopted / "lowmark/changes/1.json"
        file.write_text(file.read_text().replace('"more": null', '"more": ' + "[" * 100_000))
    before = everything(tmp_path)
    with pytest.raises(AdoptionRefused, match=r"lowmark/changes/1\.json (cannot be read|is not one that lowmark)"):
        OBEYING[command](adopted)
    assert everything(tmp_path) == before


def test_a_change_of_other_entries_than_the_newest_two_is_refused(adopted: Path, tmp_path: Path) -> None:
    craft(adopted, unfinished)
    craft(adopted, lambda crafted: crafted["entries"][1].update(name="0"))
    before = everything(tmp_path)
    for undo in (False, True):
        with pytest.raises(AdoptionRefused, match=r"changes offsets/2 and offsets/0, and the newest are offsets/2 and"):
            adopt(adopted, "orders", stopped=True, undo=undo)
    assert everything(tmp_path) == before


def test_a_change_that_was_done_is_no_hindrance_when_its_entries_are_gone(adopted: Path) -> None:
    newest = (adopted / "offsets/2").read_text()
    for batch in (3, 4):
        (adopted / f"offsets/{batch}").write_text(newest)
        (adopted / f"commits/{batch}").write_text("v1\n{}")
    for batch in (0, 1, 2):
        (adopted / f"offsets/{batch}").unlink()
    assert leave(adopted, stopped=True).done


# -- links, pipes and devices


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    """A native checkpoint on one topic, with a watermark, so that no command leaves out a file."""
    lines = {n: [f'{{"orders":{{"0":{n}}}}}'] for n in range(3)}
    return written(tmp_path, lines, batchWatermarkMs=1_700_000_000_000)


def without_end(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (lambda path: path.symlink_to(path.parents[2] / "there"), "it is a link to another place"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a link to another place"),
    "a pipe": (os.mkfifo, "it is a pipe, a socket or a device, and no file"),
    "a file without end": (without_end, "it has more than 256 MiB"),
}
COMMANDS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "adopt": (lambda root: adopt(root, "orders", stopped=True), ("offsets/2", "offsets/1", "commits/2")),
    "leave": (lambda root: leave(root, stopped=True), ("offsets/2", "offsets/1")),
    "offsets": (kafka_starting_offsets, ("offsets/2",)),
    "offsets of windows": (lambda root: reach_back(root, window_us=1, delay_us=0), ("offsets/2", "sources/0/0")),
}


@pytest.mark.timeout(60)  # a pipe that waits for its other end hangs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, (_, names) in COMMANDS.items() for name in names]
)
def test_what_is_no_file_of_the_checkpoint_is_refused_by_name(
    tmp_path: Path, kafka: Path, command: str, name: str, kind: str
) -> None:
    (tmp_path / "checkpoint" / name).rename(tmp_path / "there")
    make, why = KINDS[kind]
    make(kafka / name)
    with pytest.raises(CheckpointUnreadable, match=re.escape(f"{name} cannot be read ({why})")):
        COMMANDS[command][0](kafka)
    assert not (kafka / "lowmark").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_that_is_no_file_is_refused_by_name(tmp_path: Path, kafka: Path, kind: str) -> None:
    adopt(kafka, "orders")
    file = kafka / "lowmark/changes/1.json"
    file.rename(tmp_path / "1.json")
    make, why = KINDS[kind]
    make(file)
    for undo in (False, True):
        with pytest.raises(CheckpointUnreadable, match=re.escape(f"changes/1.json cannot be read ({why})")):
            leave(kafka, stopped=True, undo=undo)


@pytest.mark.parametrize("name", ["lowmark/changes/.1.json.lowmark", "offsets/.2.lowmark"])
@pytest.mark.parametrize("kind", ["a link", "a link to a device", "a pipe"])
@pytest.mark.timeout(60)
def test_what_waits_where_a_file_is_written_aside_is_not_written_to(
    tmp_path: Path, kafka: Path, name: str, kind: str
) -> None:
    """Others can predict the name of a temporary file."""
    (tmp_path / "there").write_text("of somebody else")
    (kafka / name).parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind][0](kafka / name)
    assert adopt(kafka, "orders").done
    assert (tmp_path / "there").read_text() == "of somebody else"
    assert HEARTBEAT in (kafka / "offsets/2").read_text()


@pytest.mark.parametrize("name", ["offsets", "lowmark", "lowmark/changes", "sources", "sources/1"])
def test_a_folder_that_is_a_link_is_not_gone_into(tmp_path: Path, name: str) -> None:
    root, there = written(tmp_path, {0: ["1", "2"]}), tmp_path / "there"
    (root / "lowmark/changes").mkdir(parents=True)
    (root / name).rename(there)
    (root / name).symlink_to(there)
    before = everything(tmp_path)
    with pytest.raises((CheckpointUnreadable, CheckpointUnwritable), match=r"\(it is a link to another place\)"):
        adopt(root, ["a", "b"])
    assert everything(tmp_path) == before


@pytest.mark.parametrize("path", ["../x", "offsets/../../x", "/etc/passwd", "sources/../../x/0"])
def test_a_path_out_of_a_checkpoint_is_none(tmp_path: Path, path: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "checkpoint/offsets").mkdir(parents=True)
    (tmp_path / "checkpoint/sources").mkdir()
    store = LocalStore(tmp_path / "checkpoint")
    for ask in (store.read, store.age_seconds, store.exists):
        with pytest.raises(CheckpointUnreadable, match=r"cannot be read \(it is outside of the checkpoint\)"):
            ask(path)
    for change in (store.remove, lambda path: store.write(path, "")):
        with pytest.raises(CheckpointUnwritable, match=r"cannot be written \(it is outside of the checkpoint\)"):
            change(path)


def test_the_root_itself_may_be_a_link(tmp_path: Path, kafka: Path) -> None:
    (tmp_path / "link").symlink_to(kafka)
    assert adopt(tmp_path / "link", "orders").done
    assert HEARTBEAT in (kafka / "offsets/2").read_text()


# -- files that a run leaves behind


def test_a_file_in_a_new_folder_is_durable_with_the_folder(kafka: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    LocalStore(kafka).write("lowmark/changes/1.json", "{}")
    new = [kafka, kafka / "lowmark", kafka / "lowmark/changes/1.json", kafka / "lowmark/changes"]

    assert synced == [path.stat().st_ino for path in new], "each before what relies on it"
    synced.clear()
    LocalStore(kafka).write("lowmark/changes/1.json", "{}")
    assert synced == [path.stat().st_ino for path in new[2:]], "a folder that is there needs no sync"


@pytest.mark.parametrize("token", ["../offsets/2", "/etc/passwd", "", ".", "a/b", "a" * 65, "a\n"])
def test_a_token_that_is_a_path_names_no_farewell(kafka: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """The token is part of an offset; its file is read at the start of a query and deleted after its end."""
    before = everything(kafka)
    files = FarewellFiles(None, str(kafka))  # type: ignore[arg-type]  # a session, which the store below does not need
    monkeypatch.setitem(vars(files), "_opened", LocalStore(kafka))
    assert files.read(token) is None
    files.forget(token)
    assert everything(kafka) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(60)
def test_a_farewell_is_a_file_of_the_checkpoint(tmp_path: Path, kafka: Path, kind: str) -> None:
    farewell = Farewell("ab12", 3, 2, "state")
    (kafka / "commits").mkdir(exist_ok=True)
    (kafka / "commits/2").touch()
    files = FarewellFiles(None, str(kafka))  # type: ignore[arg-type]
    vars(files)["_opened"] = LocalStore(kafka)
    files.write(farewell)
    assert files.read("ab12") == farewell
    (kafka / "lowmark/ab12").rename(tmp_path / "there")
    make, why = KINDS[kind]
    make(kafka / "lowmark/ab12")
    with pytest.raises(CheckpointUnreadable, match=re.escape(f"lowmark/ab12 cannot be read ({why})")):
        files.read("ab12")
    files.write(farewell)  # replaces a link, without following it
    assert files.read("ab12") == farewell
    files.forget("ab12")
    files.forget("ab12")
    assert not list((kafka / "lowmark").iterdir())


def test_a_file_that_a_full_disk_cuts_short_is_removed_and_the_error_holds_for_queries_and_commands(
    kafka: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part would keep its room on the disk, because the next run writes a file of another name."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    (kafka / "lowmark").mkdir()
    with pytest.raises(CheckpointUnwritable, match=r"Hint: see that .* the disk has room\. `lowmark adopt` and .*"):
        LocalStore(kafka).write("lowmark/ab12", "report")
    assert not list((kafka / "lowmark").iterdir())


def test_a_farewell_is_no_error_if_its_checkpoint_is_gone(tmp_path: Path, kafka: Path) -> None:
    files = FarewellFiles(None, str(tmp_path / "gone"))  # type: ignore[arg-type]
    vars(files)["_opened"] = LocalStore(tmp_path / "gone")
    files.write(Farewell("ab12", 3, 7, "state"))
    files.forget("ab12")
    assert not (tmp_path / "gone").exists()

    vars(files)["_opened"] = LocalStore(kafka)
    (kafka / "lowmark").write_text("a file stands here")
    with pytest.raises(CheckpointUnwritable, match="lowmark/ab12 cannot be written"):
        files.write(Farewell("ab12", 3, 7, "state"))
