"""A coordinator's state in a SQLite database: a row for each part, and one transaction for all rows that changed.

Rule 1: a write is one transaction, synced (WAL, synchronous=FULL). So the database holds the old state or the new
        state, whenever the process or the machine dies.
Rule 2: one writer: the process that has the database open. SQLite's lock ends with the process in any case. The folder
        belongs to this user, no other user may write in it, and no link in it is followed.
Rule 3: an unreadable database is an error, and never counts as empty: low watermarks would go back. Each row has a
        checksum, because SQLite has one in its WAL only. A database that is not at its path any more, or was cut
        short, is an error, too.

The lock is taken before WAL begins, so SQLite needs no memory that processes share (no file ``-shm``), and no further
descriptor for a write: a coordinator writes while all descriptors are taken.

SQLite and not a file of our own, because a write of SQLite costs as much as its changes: `tests/bench/journal.py`.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import stat
import zlib
from collections.abc import Mapping
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from lowmark.integration.errors import JournalRefused
from lowmark.watermark.tasks.snapshot import VERSION, Key, Rows, to_json

_LONGEST_NAME_BYTES = 200  # file systems allow 255; a suffix follows
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK, because opening a pipe would wait for its other end
_FILES = ("-wal", "-journal", "-shm", "")  # which SQLite may open; the first three are there only beside the last
_ROOM_WITHIN_SECONDS = 60.0
_FULL = "database or disk is full"  # SQLite's words for ENOSPC; Python 3.10 has no number of the error
_SCHEMA = (
    "CREATE TABLE part (number INTEGER PRIMARY KEY, key TEXT NOT NULL, state TEXT NOT NULL, checksum INTEGER NOT NULL)"
)


def default_journal(address: str) -> Path:
    """The default journal of the coordinator at an address. Raises JournalRefused: the user has no home.

    >>> default_journal("unix:/run/lowmark.sock").name
    'unix%3A%2Frun%2Flowmark.sock.journal'
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # a relative one, which the standard ignores, would depend on where the process began
        folder = Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111  # does not raise without a home
    journal = folder / "lowmark" / f"{quote(os.fsencode(address), safe='')[-_LONGEST_NAME_BYTES:]}.journal"
    if not journal.is_absolute():
        raise JournalRefused(str(journal), "this user has no home for it", "name a file of yours with --journal.")
    return journal


def patience_seconds(refused: JournalRefused) -> float:
    """Seconds to retry after a failed write: 60 if the disk is full, else 0."""
    cause = refused.__cause__
    return _ROOM_WITHIN_SECONDS if isinstance(cause, sqlite3.Error) and str(cause) == _FULL else 0.0


class Journal:
    """The database of a journal, locked until `close`; a missing folder is made. Threads may use it in turn.

    Raises:
        JournalRefused: another process has it, or the folder cannot be used, or others may write in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Key, tuple[int, int]] = {}  # each row's number, and the checksum of its key
        self._last = 0
        self._files: list[os.stat_result] = []  # as they were after the last write
        if not path.name:
            raise JournalRefused(str(path), "it is a folder", "name a file in it with --journal.")
        self._folder = self._open_folder()
        try:
            self._base = self._open()
        except BaseException as failed:
            os.close(self._folder)
            if isinstance(failed, OSError | sqlite3.Error) and not isinstance(failed, JournalRefused):
                raise self._refused(failed) from failed
            raise

    def read(self) -> Rows:
        """All rows. Raises `JournalRefused` if the database cannot be read, or is damaged."""
        rows: Rows = {}
        self._known, self._last = {}, 0
        try:
            [(sound,)] = self._base.execute("PRAGMA quick_check(1)").fetchall()
            if sound != "ok":
                raise self.damaged(sound)
            # As bytes, because a flipped bit may make a text no UTF-8, or no text; the checksum comes before both.
            as_bytes = "SELECT number, CAST(key AS BLOB), CAST(state AS BLOB), checksum FROM part ORDER BY number"
            for number, key, state, checksum in self._base.execute(as_bytes):
                of_key = zlib.crc32(key)
                if checksum != zlib.crc32(state, of_key):
                    raise self.damaged(f"row {number} does not have its checksum")
                parts = tuple(json.loads(key))
                rows[parts], self._known[parts], self._last = state.decode(), (number, of_key), number
        except (sqlite3.Error, ValueError) as failed:
            raise self._refused(failed) from failed
        return rows

    def write(self, changes: Mapping[Key, str | None]) -> None:
        """Write changed rows to survive a crash. Raises `JournalRefused`: nothing was written."""
        new, changed, gone = list[tuple[int, str, str, int]](), list[tuple[str, int, int]](), list[tuple[int]]()
        known: dict[Key, tuple[int, int]] = {}
        for key, state in changes.items():
            row = self._known.get(key)
            if state is None:
                gone += [] if row is None else [row[:1]]
            elif row is not None:
                changed.append((state, zlib.crc32(state.encode(), row[1]), row[0]))
            else:
                text = to_json(key)
                known[key] = number, of_key = self._last + len(known) + 1, zlib.crc32(text.encode())
                new.append((number, text, state, zlib.crc32(state.encode(), of_key)))
        changed.sort(key=itemgetter(2))  # in the order of the database's pages
        if not self._is_in_place():
            raise JournalRefused(
                str(self.path),
                "it was moved, removed, replaced or cut short while a coordinator writes it, so the next start would "
                "not find what is written",
                "put the file back, with its file -wal if there is one, or begin with what is there, and start "
                "`lowmark serve` again.",
            )
        try:
            with self._base as base:  # commits, or rolls back
                base.execute("BEGIN IMMEDIATE")
                update = "UPDATE part SET state = ?, checksum = ? WHERE number = ?"
                there = base.executemany(update, changed).rowcount if changed else 0
                assert there == len(changed), f"{len(changed) - there} rows are not where they were"
                base.executemany("INSERT INTO part VALUES (?, ?, ?, ?)", new)
                base.executemany("DELETE FROM part WHERE number = ?", gone)
        except (OSError, sqlite3.Error) as failed:
            raise self._refused(failed) from failed
        with suppress(OSError):  # the next write notices a missing file, and one that was replaced meanwhile
            found = self._present()
            if all(map(os.path.samestat, found, self._files)):
                self._files = found  # both only grow
        self._last += len(known)
        self._known |= known
        for key in [key for key, state in changes.items() if state is None]:
            self._known.pop(key, None)

    def close(self) -> None:
        self._base.close()
        os.close(self._folder)

    def _open(self) -> sqlite3.Connection:
        *beside, there = [self._check(f"{self.path.name}{suffix}") for suffix in _FILES]
        if not there and any(beside):  # SQLite would take their pages into a new database
            raise self.damaged("only the files beside it are there")
        if not there:
            self._make()
        base = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
                base.execute(f"PRAGMA {pragma}").fetchall()
            base.execute("BEGIN IMMEDIATE")  # takes the lock, which SQLite keeps from now on
            [(version,)] = base.execute("PRAGMA user_version").fetchall()
            base.execute("COMMIT")
            if version != VERSION:
                raise self.damaged(f"it is of version {version}, this lowmark reads {VERSION}")
            self._files = self._present()
        except BaseException:
            base.close()
            raise
        return base

    def _is_in_place(self) -> bool:
        """Whether both paths still name the open files, whole. SQLite would go on writing files that nobody finds."""
        try:
            found = list(zip(self._present(), self._files, strict=True))
        except OSError:
            return False
        return all(os.path.samestat(now, known) and now.st_size >= known.st_size for now, known in found)

    def _present(self) -> list[os.stat_result]:
        """The database and its file ``-wal``, which is there while the database is open. Raises OSError."""
        return [self.path.with_name(f"{self.path.name}{suffix}").stat() for suffix in ("", "-wal")]

    def _make(self) -> None:
        """Make a new database in one step: a killed process leaves none, so an empty file is never a new journal."""
        new = self.path.with_name(f"{secrets.token_hex(8)}.new")  # of this process alone: others may make one, too
        os.close(os.open(new.name, os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self._folder))
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as base:
                base.executescript(f"BEGIN; {_SCHEMA}; PRAGMA user_version={VERSION}; COMMIT")
            with suppress(FileExistsError):  # another process was faster
                os.link(new.name, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            os.unlink(new.name, dir_fd=self._folder)
        os.fsync(self._folder)

    def _open_folder(self) -> int:
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as failed:
            raise self._refused(failed) from failed
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            return opened
        os.close(opened)
        raise JournalRefused(
            str(self.path),
            f"others may write in its folder (it is user {found.st_uid}'s, its permissions are "
            f"{stat.S_IMODE(found.st_mode):04o}), and could put another state in its place",
            "name a file in a folder of your own with --journal, one that is made for it, or run: chmod go-w FOLDER.",
        )

    def _check(self, name: str) -> bool:
        """Whether the folder has this file, which must be a regular file of this user. Raises OSError.

        SQLite follows links, so this comes before SQLite opens the file; nobody else may write in the folder.
        """
        try:
            descriptor = os.open(name, os.O_RDWR | _OPEN, dir_fd=self._folder)
        except FileNotFoundError:
            return False
        found = os.fstat(descriptor)
        os.close(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{name} is not a file of this user")
        return True

    def _refused(self, failed: Exception) -> JournalRefused:
        if not isinstance(failed, OSError | sqlite3.OperationalError):  # SQLite found no database, or a damaged one
            return self.damaged(str(failed))
        if isinstance(failed, sqlite3.Error) and "locked" in str(failed):
            return JournalRefused(
                str(self.path),
                "another coordinator writes it",
                "one coordinator is enough for all applications; stop that one, or give this one another --journal.",
            )
        why: object = failed
        if isinstance(failed, OSError):
            why = "it is a link to another place" if failed.errno == errno.ELOOP else failed.strerror
        return JournalRefused(
            str(self.path),
            f"it cannot be used ({why})",
            "see that its folder is writable and the disk has room, or name another file with --journal.",
        )

    def damaged(self, why: str) -> JournalRefused:
        """The error of a journal whose contents are no state."""
        return JournalRefused(
            str(self.path),
            f"it is no state that can be restored: {why}",
            "move it and its file -wal away, and put a good copy in their place, or none: then every application "
            "registers again with the low watermarks it has, and what was published before is not known here any more.",
        )
