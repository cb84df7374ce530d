"""A coordinator's state in a file: written whole, replaced at once, by one process alone.

Rule 1: a write is a new file, synced, then renamed over the old one, then the folder synced. So the file holds the
        old state or the new one, whenever the process or the machine dies.
Rule 2: one writer: whoever has the lock file beside it. The lock goes with the process, however that ends.
Rule 3: a file that cannot be read is an error. It is never taken for an empty one: low watermarks would go back.

The bytes are the coordinator's own snapshot, which carries a version and a checksum.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote

from .errors import JournalRefused

__all__ = ["Journal", "default_journal"]

_LONGEST_NAME_BYTES = 200  # file systems take 255; a suffix follows


def default_journal(address: str) -> Path:
    """Where the journal of the coordinator at an address is kept, unless told otherwise.

    >>> default_journal("unix:/run/lowmark.sock").name
    'unix%3A%2Frun%2Flowmark.sock.journal'
    """
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return folder / "lowmark" / f"{quote(address, safe='')[-_LONGEST_NAME_BYTES:]}.journal"


class Journal:
    """The file, and the lock on it until ``close``.

    Args:
        path: the file; its folder is made if it is not there.

    Raises:
        JournalRefused: another process has it, or the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failed:
            raise self._unusable(failed) from failed
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            os.close(self._lock)
            if not isinstance(failed, BlockingIOError):
                raise self._unusable(failed) from failed
            raise JournalRefused(
                str(path),
                "another coordinator writes it",
                "one coordinator is enough for all applications; stop that one, or give this one another --journal.",
            ) from None

    def read(self) -> bytes | None:
        """The state written last; None: there is none yet.

        Raises:
            JournalRefused: it is there and cannot be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def write(self, state: bytes) -> None:
        """Replace the state. When this returns, the new one survives whatever happens.

        Raises:
            JournalRefused: it could not be written; the old one is still there.
        """
        try:
            descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, for the permissions
                file.write(state)
                file.flush()
                os.fsync(descriptor)
            self._new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as failed:
            raise self._unusable(failed) from failed

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def _unusable(self, failed: OSError) -> JournalRefused:
        return JournalRefused(
            str(self.path),
            f"it cannot be used ({failed.strerror})",
            "see that its folder is writable and the disk has room, or name another file with --journal.",
        )
