"""Places for the sockets of services, where the command line finds them.

    $XDG_RUNTIME_DIR/lowmark-<uid>/<pid>-<random>.sock

$TMPDIR or /tmp takes the place of $XDG_RUNTIME_DIR where that is not set, or is a folder of logins.

The folder is 0700 and belongs to the user. Its permissions are the only access control, so a folder with other
permissions or another owner is refused. A socket's path may have at most 107 bytes; a folder with a longer path is
skipped for the next place. A folder that another user has made is skipped, too, because every user can make one in the
temporary folder; the last place is in the user's home.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from lowmark.integration.errors import SocketsRefused

UNIX = "unix:"
"""How the address of a socket begins; its path follows."""
LONGEST_PATH_BYTES = 107
_PID = re.compile("[0-9]{1,9}")
_LOGINS = "/run/user"  # where systemd makes the $XDG_RUNTIME_DIR of a user at the first login


def folders() -> list[Path]:
    """The folders in which this user's sockets may lie, best first; they need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    logins = Path(os.path.realpath(_LOGINS))
    own = [runtime] if runtime and _is_folder(runtime) and logins not in Path(os.path.realpath(runtime)).parents else []
    # Python's name for the temporary folder changes while a disk is full, and `status` would look elsewhere then.
    # /tmp is a candidate, too, because $TMPDIR may have a path too long for a socket.
    shared = os.environ.get("TMPDIR", ""), "/tmp"  # noqa: S108
    # The folder of logins comes late, because systemd removes it at the last logout, and a service may run on.
    bases = [*own, *shared, f"{_LOGINS}/{os.geteuid()}", _home()]
    found: dict[str, Path] = {}  # by its real path, because one folder may have two, as /var/run and /run
    for base in bases:
        if Path(base).is_absolute():
            found.setdefault(os.path.realpath(base), Path(base) / f"lowmark-{os.geteuid()}")
    return list(found.values())


def _home() -> str:
    """The last place, which no other user can take; not absolute if the user has no home."""
    return os.path.expanduser("~/.cache")  # noqa: PTH111  # does not raise without a home


def new_address(name: str | None = None) -> str:
    """Return the address for a socket of this name, else for the socket of a new service. Raises SocketsRefused."""
    name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.sock" if name is None else name
    places = folders()
    fitting = [folder for folder in places if len(os.fsencode(folder / name)) <= LONGEST_PATH_BYTES]
    if not fitting:
        raise SocketsRefused(
            str(places[0]),
            f"a socket in it would have a path longer than {LONGEST_PATH_BYTES} bytes",
            "set XDG_RUNTIME_DIR to a folder with a shorter path.",
        )
    for folder in fitting:
        try:
            folder.mkdir(mode=0o700, parents=str(folder.parent) == _home())
        except FileExistsError:
            if _somebody_elses(folder) and folder != fitting[-1]:
                continue
        except OSError as failed:
            if folder != fitting[-1]:
                continue
            raise SocketsRefused(
                str(folder), f"it cannot be made ({failed.strerror})", "set XDG_RUNTIME_DIR to a folder of yours."
            ) from failed
        check_private(folder)
        return f"{UNIX}{folder / name}"
    raise AssertionError("the last folder is taken or refused")


def find_addresses() -> list[str]:
    """Return the addresses with a listener, sorted; remove sockets of processes that are gone.

    Folders of other users and folders out of this user's reach are skipped: no service of this user is there.

    Raises:
        SocketsRefused: other users may enter a folder of this user, and could answer instead of a service.
    """
    found = []
    for folder in folders():
        if _is_folder(folder) and not _somebody_elses(folder):
            check_private(folder)
            found += [f"{UNIX}{path}" for path in _listening(folder)]
    return sorted(found)


def is_service(address: str) -> bool:
    """Whether the name of a socket begins with a process, as `new_address` names that of a service, no coordinator's.

    >>> is_service("unix:/run/lowmark-0/17-1a2b3c4d.sock"), is_service("unix:/run/lowmark-0/coordinator.sock")
    (True, False)
    """
    return _PID.fullmatch(Path(address).name.partition("-")[0]) is not None


def remove(address: str) -> None:
    """Remove a socket that its server has left."""
    Path(address.removeprefix(UNIX)).unlink(missing_ok=True)


def target(address: str) -> str:
    """Return an address for gRPC, which decodes % sequences in a socket's path.

    >>> target("unix:/run/50%41/c.sock"), target("localhost:7461")
    ('unix:/run/50%2541/c.sock', 'localhost:7461')
    """
    if not address.startswith(UNIX):
        return address
    return f"{UNIX}{quote(os.fsencode(address.removeprefix(UNIX)))}"


def check_private(folder: Path) -> None:
    """Raise SocketsRefused for a path that is no folder, belongs to another user, or that others may enter."""
    found = folder.lstat()
    all_may_write = stat.S_ISVTX | stat.S_IWOTH
    if stat.S_ISDIR(found.st_mode) and found.st_mode & all_may_write == all_may_write:  # for root, too
        raise SocketsRefused(str(folder), "it is for all users, as /tmp is", "name one that only you can enter.")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SocketsRefused(
            str(folder),
            f"expected a folder of user {os.geteuid()}, found one of user {found.st_uid}"
            if stat.S_ISDIR(found.st_mode)
            else "it is not a folder",
            "have it removed, or set XDG_RUNTIME_DIR to a folder that only you can enter.",
        )
    if found.st_mode & 0o077:
        raise SocketsRefused(
            str(folder),
            f"its permissions are {stat.S_IMODE(found.st_mode):04o}, expected 0700",
            f"look who else uses it. If nobody should, run: chmod 700 {shlex.quote(str(folder))}; if others need it, "
            "as they need /run, name a folder that only you can enter.",
        )


def _is_folder(path: str | Path) -> bool:
    """Whether a folder is there; no also if this user cannot reach it, as after `su` with another's XDG_RUNTIME_DIR."""
    return os.path.isdir(path)  # noqa: PTH112  # before Python 3.14, `Path.is_dir` raises then


def _somebody_elses(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def _listening(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("*.sock")):
        if answers(path):
            yield path
        elif not _alive(path):
            path.unlink(missing_ok=True)


def answers(path: Path) -> bool:
    """Whether a process listens at a socket."""
    refused = _refusal(path)
    return refused is None or isinstance(refused, BlockingIOError)


def is_full(address: str) -> bool:
    """Whether a process listens at an address, and its queue is full: it was stopped, and then asked for long."""
    return isinstance(_refusal(Path(address.removeprefix(UNIX))), BlockingIOError)


def _refusal(path: Path) -> OSError | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as refused:
            return refused
        return None


def _alive(path: Path) -> bool:
    """Whether the process in a socket's name runs: between bind and listen it does not answer yet."""
    pid = path.name.partition("-")[0]
    if not _PID.fullmatch(pid):
        return True  # not made by lowmark, so leave it
    try:
        os.kill(int(pid), 0)
    except OSError as failed:
        return not isinstance(failed, ProcessLookupError)
    return True
