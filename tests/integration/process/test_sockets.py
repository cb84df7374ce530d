"""How services choose their sockets, and how other processes find them; no service, no Spark."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lowmark.integration.errors import SocketsRefused
from lowmark.integration.process import sockets

from tests.rights import without_rights_of_root


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder for one test, and no other place to look in; its short name leaves room for a socket's path."""
    place = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    only = place / f"lowmark-{os.geteuid()}"
    monkeypatch.setattr(sockets, "folders", lambda: [only])
    return only


@contextmanager
def listening(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(address.removeprefix("unix:"))
        server.listen()
        yield


def gone() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_every_service_gets_an_address_of_its_own_in_a_private_folder(runtime: Path) -> None:
    first, second = sockets.new_address(), sockets.new_address()
    assert first != second
    assert first.startswith(f"unix:{runtime}/{os.getpid()}-")
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_all_that_listen_are_found_and_no_others(runtime: Path) -> None:
    one, two, silent = (sockets.new_address() for _ in range(3))
    with listening(one), listening(two):
        assert sockets.find_addresses() == sorted([one, two])
    assert silent not in sockets.find_addresses()


def test_a_socket_of_a_dead_process_is_removed_and_one_of_a_live_process_is_left(runtime: Path) -> None:
    live, dead = sockets.new_address(), f"unix:{runtime}/{gone()}-0.sock"
    for address in (live, dead):
        with listening(address):
            pass  # bound, and then without a listener
    assert sockets.find_addresses() == []
    assert sorted(runtime.iterdir()) == [Path(live.removeprefix("unix:"))]


@pytest.mark.parametrize("name", ["x-0.sock", "2²-0.sock", f"{10**12}-0.sock"])
def test_a_socket_whose_name_is_no_process_is_left(runtime: Path, name: str) -> None:
    sockets.new_address()
    with listening(f"unix:{runtime}/{name}"):
        pass
    assert sockets.find_addresses() == []
    assert (runtime / name).exists()


def test_a_socket_that_answers_is_kept_though_its_process_cannot_be_seen(runtime: Path) -> None:
    sockets.new_address()
    elsewhere = f"unix:{runtime}/{gone()}-0.sock"  # as from another container that shares the folder
    with listening(elsewhere):
        assert sockets.find_addresses() == [elsewhere]


def test_no_folder_no_service() -> None:
    assert sockets.find_addresses() == []


def test_wide_permissions_are_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    runtime.chmod(0o750)
    for use in (sockets.new_address, sockets.find_addresses):
        with pytest.raises(SocketsRefused) as refused:
            use()
        assert str(refused.value) == (
            f"socket folder {runtime}: its permissions are 0750, expected 0700. "
            f"Hint: look who else uses it. If nobody should, run: chmod 700 {runtime}; if others need it, as they need "
            "/run, name a folder that only you can enter."
        )


def test_nobody_is_told_to_close_a_folder_of_all_users(runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o1777)
    with pytest.raises(SocketsRefused, match=r"it is for all users, as /tmp is\. Hint: name one that only you"):
        sockets.check_private(runtime)


def test_somebody_elses_folder_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.mkdir(mode=0o700)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(SocketsRefused, match=f"expected a folder of user {mine + 1}, found one of user {mine}"):
        sockets.new_address()


def test_a_process_that_has_become_another_user_makes_and_finds_that_users_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        with without_rights_of_root():
            user, address = os.geteuid(), sockets.new_address()
            assert address.startswith(f"unix:{place}/lowmark-{user}/")
            with listening(address):
                assert address in sockets.find_addresses()


def test_a_link_to_a_private_folder_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "private")
    with pytest.raises(SocketsRefused, match="it is not a folder"):
        sockets.new_address()


def test_a_folder_that_somebody_else_has_made_is_passed_over(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, own = tmp_path / "taken", runtime
    taken.mkdir(mode=0o700)
    (taken / "1-0.sock").touch()
    monkeypatch.setattr(sockets, "folders", lambda: [taken, own])
    lstat = Path.lstat

    def as_of_another(path: Path) -> os.stat_result:
        found = lstat(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == taken else found

    monkeypatch.setattr(Path, "lstat", as_of_another)
    address = sockets.new_address()
    assert address.startswith(f"unix:{own}/")
    with listening(address):
        assert sockets.find_addresses() == [address]
    assert (taken / "1-0.sock").exists()


def test_a_folder_that_cannot_be_reached_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    of_root = tmp_path / "of_root"
    (of_root / "run").mkdir(parents=True)
    of_root.chmod(0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(of_root / "run"))
    found = sockets.folders
    with without_rights_of_root():
        assert all(of_root not in folder.parents for folder in found())
        monkeypatch.setattr(sockets, "folders", lambda: [of_root / "run"])
        assert sockets.find_addresses() == []
    of_root.chmod(0o700)


def test_the_last_place_is_in_the_users_home_where_nobody_else_can_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "shared"))
    assert sockets.folders()[-1] == tmp_path / ".cache" / f"lowmark-{os.geteuid()}"
    monkeypatch.setattr(sockets, "folders", lambda: [tmp_path / ".cache" / "own"])
    assert sockets.new_address().startswith(f"unix:{tmp_path}/.cache/own/")
    monkeypatch.setenv("HOME", "relative")
    assert all(each.is_absolute() for each in sockets.folders())


@pytest.mark.parametrize("usable", [True, False], ids=["another folder has room", "no folder has room"])
def test_a_service_is_found_although_the_disk_of_its_folder_is_full(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, usable: bool
) -> None:
    def with_room() -> str:
        if usable:
            return "/var/tmp"
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.undo()
    runtime.mkdir(mode=0o700)
    with listening(f"unix:{runtime}/{os.getpid()}-0.sock"):
        monkeypatch.setenv("TMPDIR", str(runtime.parent))
        monkeypatch.setattr(tempfile, "gettempdir", with_room)
        assert f"unix:{runtime}/{os.getpid()}-0.sock" in sockets.find_addresses()


def test_a_folder_with_two_paths_is_one_and_a_folder_of_logins_by_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `/var/run` is a link to `/run`."""
    monkeypatch.undo()
    (tmp_path / "run" / "1").mkdir(parents=True)
    (tmp_path / "var").symlink_to("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "var"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run"))
    assert [each for each in sockets.folders() if tmp_path in each.parents] == [
        tmp_path / "var" / f"lowmark-{os.geteuid()}"
    ]
    monkeypatch.setattr(sockets, "_LOGINS", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "var" / "1"))
    assert tmp_path / "var" / "1" / f"lowmark-{os.geteuid()}" not in sockets.folders()


def test_a_service_outlives_the_login_of_its_user_and_is_found_by_cron(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last logout systemd removes the runtime folder, and a query that begins later found no service."""
    monkeypatch.undo()
    runtime = tmp_path / str(os.geteuid())
    runtime.mkdir(mode=0o700)
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(sockets, "_LOGINS", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with listening(address := sockets.new_address()):
        runtime.rmdir()
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert address in sockets.find_addresses()


def test_a_path_too_long_for_a_socket_gives_way_to_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, short = tmp_path / ("x" * 120), tmp_path / "y"
    monkeypatch.setattr(sockets, "folders", lambda: [long, short])
    assert sockets.new_address().startswith(f"unix:{short}/")
    monkeypatch.setattr(sockets, "folders", lambda: [long])
    with pytest.raises(SocketsRefused, match=r"a path longer than 107 bytes\. Hint: set XDG_RUNTIME_DIR"):
        sockets.new_address()
    assert not long.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "folders", lambda: [tmp_path / "no" / "such"])
    with pytest.raises(SocketsRefused, match=r"it cannot be made \(No such file or directory\)"):
        sockets.new_address()


def test_the_runtime_folder_comes_first_and_a_missing_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    name = f"lowmark-{os.geteuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert sockets.folders()[0] == tmp_path / name
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert tmp_path / "gone" / name not in sockets.folders()
