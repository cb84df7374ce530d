"""A coordinator's state in a file, which a single process writes whole and replaces in one step.

Rule 1: a write is a new file, synced, then renamed over the old one, then the folder synced. So the file holds the
        old state or the new one, whenever the process or the machine dies.
Rule 2: one writer: the process that has the lock file beside it. The lock ends with the process in any case. The folder
        belongs to this user, no other user may write in it, and no link in it is followed.
Rule 3: an unreadable file is an error, and never counts as empty: low watermarks would go back.

The bytes are the coordinator's own snapshot, which carries a version and a checksum. They are not read back before they
replace the old bytes, because the coordinator encodes only a state that no error has touched, and reading a state costs
more than making it. A snapshot of 10,000 tasks takes 0.28 s, its restore 0.36 s and its write 0.004 s; with 100,000
tasks 3.3 s, 5.4 s and 0.15 s. Each low watermark would rise so much later.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from lowmark.integration.errors import JournalRefused

__all__ = ["Journal", "default_journal", "patience_seconds"]

_LONGEST_NAME_BYTES = 200  # file systems allow 255; a suffix follows
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK, because opening a pipe would wait for its other end
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ROOM_WITHIN_SECONDS = 60.0


def default_journal(address: str) -> Path:
    """The default journal of the coordinator at an address.

    >>> default_journal("unix:/run/lowmark.sock").name
    'unix%3A%2Frun%2Flowmark.sock.journal'
    """
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return folder / "lowmark" / f"{quote(address, safe='')[-_LONGEST_NAME_BYTES:]}.journal"


def patience_seconds(refused: JournalRefused) -> float:
    """Seconds to retry after a failed write: no limit if all descriptors are taken, 60 if the disk is full, else 0."""
    cause = refused.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in _NO_DESCRIPTORS:
        return math.inf
    return _ROOM_WITHIN_SECONDS if number in _NO_ROOM else 0.0


class Journal:
    """The journal's file, locked until ``close``.

    Args:
        path: the file; a missing folder is made.

    Raises:
        JournalRefused: another process has the lock, the folder cannot be used, or other users may write in it.
        JournalRefused: another process has it, or the folder cannot be used, or others may write in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new = f"{path.name}.new"
        self._folder = self._open_folder()
        self._spare: int | None = None  # a descriptor to release when there is no other
        try:
            self._lock = self._open(f"{path.name}.lock", os.O_RDWR | os.O_CREAT)
        except OSError as failed:
            os.close(self._folder)
            raise self._unusable(failed) from failed
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            self.close()
            if not isinstance(failed, BlockingIOError):
                raise self._unusable(failed) from failed
            raise JournalRefused(
                str(path),
                "another coordinator writes it",
                "one coordinator is enough for all applications; stop that one, or give this one another --journal.",
            ) from None
        self._keep_spare()

    def read(self) -> bytes | None:
        """The state written last; None: there is none yet.

        Raises:
            JournalRefused: the file cannot be read.
        """
        try:
            with open(self._open(self.path.name, os.O_RDONLY), "rb") as file:  # noqa: PTH123  # a descriptor
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def write(self, state: bytes) -> None:
        """Replace the state; after the return, the new state survives a crash of the machine.

        Raises:
            JournalRefused: the state could not be written; the old state is unchanged.
        """
        try:
            self._replace(state)
        except OSError as failed:
            raise self._unusable(failed) from failed
        finally:
            self._keep_spare()

    def close(self) -> None:
        """Release the lock for other processes."""
        for descriptor in (self._lock, self._folder, self._spare):
            if descriptor is not None:
                os.close(descriptor)
        self._spare = None

    def _replace(self, state: bytes) -> None:
        if not os.path.samestat(self.path.parent.stat(), os.fstat(self._folder)):
            raise OSError(errno.ESTALE, "its folder was replaced by another, where the next start would look for it")
        with suppress(FileNotFoundError):  # left by a killed process, or made by someone else
            os.unlink(self._new, dir_fd=self._folder)
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = self._open(self._new, how)
        except OSError as failed:
            if failed.errno not in _NO_DESCRIPTORS or self._spare is None:
                raise
            os.close(self._spare)
            self._spare = None
            descriptor = self._open(self._new, how)
        with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, for the permissions
            file.write(state)
            file.flush()
            os.fsync(descriptor)
        os.rename(self._new, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.dup(self._folder)

    def _open_folder(self) -> int:
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as failed:
            raise self._unusable(failed) from failed
        found = os.fstat(opened)
        if found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return opened
        os.close(opened)
        raise JournalRefused(
            str(self.path),
            f"others may write in its folder (it is user {found.st_uid}'s, its permissions are "
            f"{stat.S_IMODE(found.st_mode):04o}), and could put another state in its place",
            "name a file in a folder of your own with --journal, one that is made for it, or run: chmod go-w FOLDER.",
        )

    def _open(self, name: str, how: int) -> int:
        """Open a file of the folder. Raises OSError, also if the file is not a regular file of this user."""
        descriptor = os.open(name, how | _OPEN, 0o600, dir_fd=self._folder)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            os.close(descriptor)
            raise OSError(errno.EPERM, f"{name} is not a file of this user")
        return descriptor

    def _unusable(self, failed: OSError) -> JournalRefused:
        why = "it is a link to another place" if failed.errno == errno.ELOOP else failed.strerror
        return JournalRefused(
            str(self.path),
            f"it cannot be used ({why})",
            "see that its folder is writable and the disk has room, or name another file with --journal.",
        )
