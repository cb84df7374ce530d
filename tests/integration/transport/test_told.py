"""Answers that a client of Spark Connect leaves on the server's host, and their reader; no Spark here."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lowmark.integration.process import sockets
from lowmark.integration.spark import relay
from lowmark.integration.transport import told
from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
from lowmark.integration.transport.heartbeat import HeartbeatReader
from lowmark.integration.transport.told import SCHEME, SILENT_SECONDS, TellSource, Told, seal_of

from tests.servers.local import wait_until

SECRET, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(told, "_folder", lambda: tmp_path)
    return tmp_path


def tell(secret: str, token: str, low_us: int, *, epoch: int = 1, batches: int = 1, state: str = "c3RhdGU=") -> None:
    """A client's analysis reaches the server's host."""
    reply = Told(HeartbeatReply(low_us, epoch, state), batches).to_json()
    TellSource({"secret": secret, "token": token, "reply": reply}).schema()


class Reader:
    """The heartbeat reader of a stream whose client has `SECRET`."""

    def __init__(self) -> None:
        address = f"{SCHEME}{seal_of(SECRET)}"
        self.reader = HeartbeatReader(address=address, stream_id="s", stream="orders", delay_ms=0)
        self.offset = self.reader.initialOffset()

    def poll(self) -> int | None:
        _, self.offset = self.reader.read(self.offset)
        low_us: int | None = self.offset["low_us"]
        return low_us


def test_a_reader_has_the_newest_answer_and_without_one_its_watermark_holds() -> None:
    reader = Reader()
    assert [reader.poll(), reader.poll(), reader.poll()] == [None, None, None]
    token = reader.offset["token"]
    tell(SECRET, token, 5_000)
    assert reader.poll() == 5_000
    assert (reader.offset["state"], reader.offset["token"]) == ("c3RhdGU=", token)
    assert [reader.poll(), reader.poll()] == [5_000, 5_000]
    tell(SECRET, token, 9_000, epoch=2)
    assert reader.poll() == 9_000


def test_the_first_answer_after_a_restart_is_taken_though_its_run_counts_epochs_anew() -> None:
    """With AvailableNow the query would end without the answer, in every run."""
    before, after = Reader(), Reader()
    before.poll()
    tell(SECRET, before.offset["token"], 5_000, epoch=1)
    before.poll()
    after.offset = before.offset
    assert after.poll() == 5_000
    tell(SECRET, after.offset["token"], 9_000, epoch=1, state="bmV3")
    assert (after.poll(), after.offset["state"]) == (9_000, "bmV3")


def test_an_answer_that_finds_no_room_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    tell(SECRET, "c" * 32, 5_000)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        tell(SECRET, "c" * 32, 9_000)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


@pytest.mark.parametrize("secret", [OTHER, seal_of(SECRET)], ids=["another", "the seal, which plans show"])
def test_nobody_without_the_secret_moves_a_watermark(secret: str) -> None:
    reader = Reader()
    reader.poll()
    tell(secret, reader.offset["token"], 5_000)
    assert reader.poll() is None


def test_a_silent_client_is_named_in_the_offset_until_it_speaks_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    reader = Reader()
    reader.poll()
    tell(SECRET, reader.offset["token"], 5_000)
    [answer] = folder.glob("*.told")
    os.utime(answer, (now[0], now[0]))
    assert reader.poll() == 5_000
    now[0] += SILENT_SECONDS
    reader.poll()
    assert "client_silent_since" not in reader.offset
    now[0] += 1
    assert reader.poll() == 5_000, "the watermark holds"
    assert reader.offset["client_silent_since"] == "2023-11-14T22:13:20+00:00"
    same = dict(reader.offset)
    now[0] += 1_000
    reader.poll()
    assert reader.offset == same, "no batch for each second of silence"
    os.utime(answer, (now[0], now[0]))
    reader.poll()
    assert "client_silent_since" not in reader.offset


def test_a_client_that_never_spoke_is_named_too_but_not_before_a_batch_told_it_of_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first batch of a backlog, or the one that a restart runs again, may take longer than any silence."""
    now = [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    reader = Reader()
    reader.reader.look()  # when the query begins
    for _ in range(2):  # a batch that a restart runs again, and the reader's own first
        now[0] += SILENT_SECONDS + 1
        reader.poll()
        assert "client_silent_since" not in reader.offset
    now[0] += SILENT_SECONDS + 1
    reader.poll()
    assert reader.offset["client_silent_since"] == "2023-11-14T22:14:02+00:00"


def test_an_answer_that_cannot_be_read_holds_the_watermark_and_its_state(folder: Path) -> None:
    reader = Reader()
    reader.poll()
    tell(SECRET, reader.offset["token"], 5_000)
    reader.poll()
    known = dict(reader.offset)
    [answer] = folder.glob("*.told")
    answer.write_bytes(b"{")
    for _ in range(3):
        reader.reader._retry_at_us = None  # a second is over
        reader.poll()
        assert reader.offset == known
    answer.unlink()
    reader.reader._retry_at_us = 0
    reader.poll()
    assert reader.offset == known
    tell(SECRET, reader.offset["token"], 9_000, epoch=2)
    reader.reader._retry_at_us = 0
    assert reader.poll() == 9_000


def test_answers_of_clients_that_never_came_back_and_of_killed_tellers_are_removed(folder: Path) -> None:
    old, young = ["old.told", ".old.part"], ["young.told", ".young.part"]
    for name in (*old, *young):
        (folder / name).touch()
    for name in old:
        os.utime(folder / name, (0, 0))
    tell(SECRET, "0" * 32, 5_000)
    assert {path.name for path in folder.iterdir()} == {*young, f"{seal_of(SECRET)}-{'0' * 32}.told"}


@pytest.mark.parametrize("reply", ["", "{}", '{"reply": {"low_watermark_us": "x"}, "batches": 1}'])
def test_what_is_no_answer_is_refused_before_a_reader_meets_it(folder: Path, reply: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        TellSource({"secret": SECRET, "token": "0" * 32, "reply": reply}).schema()
    assert list(folder.iterdir()) == []


def test_an_answer_arrives_while_the_answer_of_a_query_that_ends_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [folder / "removed.told"])  # seen, and removed since
    tell(SECRET, "0" * 32, 5_000)
    assert [path.suffix for path in folder.iterdir()] == [".told"]


@pytest.mark.parametrize("token", ["../../etc/passwd", "", "0" * 31, "0" * 32 + "/x"])
def test_a_token_is_no_path(folder: Path, token: str) -> None:
    with pytest.raises(ValueError, match="expected a seal and a token of 32 hexadecimal digits"):
        tell(SECRET, token, 5_000)
    assert list(folder.iterdir()) == []


def test_a_query_that_ends_by_itself_waits_for_the_answer_to_its_newest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client answers while the reader sleeps; a second wait in vain is not made."""
    reader, slept = Reader(), list[float]()
    reader.reader.prepareForTriggerAvailableNow()
    reader.poll()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            tell(SECRET, reader.offset["token"], 7_000)

    monkeypatch.setattr(time, "sleep", sleep)
    assert reader.poll() == 7_000
    assert len(slept) == 3


def test_an_answer_that_could_not_be_read_once_does_not_end_the_wait_for_the_newest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader()
    reader.reader.prepareForTriggerAvailableNow()
    reader.poll()
    tell(SECRET, reader.offset["token"], 5_000, batches=1)
    assert reader.poll() == 5_000, "and a second batch is planned"
    [answer] = folder.glob("*.told")
    whole = answer.read_bytes()
    answer.write_bytes(b"{")
    assert reader.poll() == 5_000
    answer.write_bytes(whole)
    monkeypatch.setattr(time, "sleep", lambda _: tell(SECRET, reader.offset["token"], 9_000, epoch=2, batches=2))
    reader.reader._retry_at_us = 0
    assert reader.poll() == 9_000


def test_the_files_lie_where_only_their_user_enters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    assert told._folder() == Path(sockets.new_address().removeprefix("unix:")).parent
    assert told._folder().stat().st_mode & 0o077 == 0
    client = told.ToldClient(f"{SCHEME}{'0' * 32}")
    assert client.heartbeat(HeartbeatRequest("s", "1" * 32, first=True, low_watermark_us=3)).low_watermark_us == 3


def test_a_client_with_nothing_to_tell_yet_speaks_to_its_server_and_notes_that_no_answer_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server would end a silent session with its queries, whose first rows may come days later."""
    for name, value in {"SIGN_SECONDS": 0.0, "_LONG_SECONDS": 1e-6, "_TICK_US": 10_000}.items():
        monkeypatch.setattr(relay, name, value)
    server = {"is there": True}
    spoke = threading.Event()

    def sign() -> None:
        spoke.set()
        if not server["is there"]:
            raise OSError("the server is gone")

    def unused(*_: object) -> Any:
        raise AssertionError("nothing is told, and nobody asks")

    client = relay.Relay(unused, unused, unused, lambda: None, sign, {})
    try:
        assert spoke.wait(30)
        server["is there"] = False
        wait_until(lambda: "The newest error: the server is gone" in (client.silence() or ""), "its silence is noted")
        server["is there"] = True
        wait_until(lambda: client.silence() is None, "the server is back")
    finally:
        client.close()
