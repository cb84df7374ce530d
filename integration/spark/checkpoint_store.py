"""The files of a checkpoint: on this machine without a JVM, or on any of Hadoop's file systems.

Files that Spark reads must be whole at any moment, so each is written aside and renamed. On this machine Hadoop keeps a
checksum beside each file (``.5.crc`` beside ``5``) and refuses a file with a wrong checksum, so the checksum is removed
before its file changes; Hadoop reads a file without a checksum as it is.

Other users may be able to write in a checkpoint, so its content is not trusted: below the root no link is followed,
only regular files are read, and no file of more than 256 MiB.

One file, because both stores make the same promises, and a reader compares them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lowmark.integration.errors import CheckpointUnreadable, CheckpointUnwritable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_BATCH = re.compile(r"[0-9]{1,19}")
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK, because opening a pipe would wait for its other end
MOST_BYTES = 1 << 28  # an entry of the offset log has the states of all streams, a backup has four entries


CheckpointStore: TypeAlias = "LocalStore | HadoopStore"
"""The files of one checkpoint, to be read and changed."""


class CheckpointFiles(Protocol):
    """The files of one checkpoint, to be read; paths are relative to its root. Failures are `CheckpointUnreadable`."""

    @property
    def root(self) -> str: ...

    def names(self, folder: str) -> list[str]:
        """Names in a folder; empty if the folder does not exist."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if the file does not exist. Raises `UnicodeDecodeError` if the file is no text."""

    def age_seconds(self, path: str) -> float | None:
        """Seconds since a file was written, by its file system's clock and this machine's; None without the file."""


def batches(store: CheckpointFiles, log: str) -> list[int]:
    """The batches in one of a checkpoint's logs, the newest first."""
    return sorted((int(name) for name in store.names(log) if _BATCH.fullmatch(name)), reverse=True)


def all_planned(store: CheckpointFiles) -> list[int]:
    """The planned batches, the newest first. Raises `CheckpointUnreadable` if there is none."""
    if planned := batches(store, "offsets"):
        return planned
    raise CheckpointUnreadable(
        store.root,
        "it has no planned batch (no file in offsets/)",
        "pass the folder given as checkpointLocation, not one above or below it.",
    )


def local_store(checkpoint: str | os.PathLike[str]) -> LocalStore:
    """Return the files of a checkpoint that must be on this machine. Raises `CheckpointUnreadable`."""
    place, folder = os.fspath(checkpoint), local_path(checkpoint)
    if is_elsewhere(place):
        hint = "copy its folders offsets, commits and sources into a folder on this machine, and pass this folder."
        raise CheckpointUnreadable(place, "it is not on this machine", hint)
    store = LocalStore(folder)
    if not store.exists(""):
        hint = "pass the folder given as checkpointLocation."
        raise CheckpointUnreadable(store.root, "there is no such folder", hint)
    return store


def is_elsewhere(checkpoint: str) -> bool:
    """Whether the path of a checkpoint names a file system other than this machine's.

    >>> is_elsewhere("s3a://bucket/orders"), is_elsewhere("file:/tmp/orders"), is_elsewhere("/tmp/orders")
    (True, False, False)
    """
    return _SCHEME.match(checkpoint) is not None and not checkpoint.startswith("file:/")


def local_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the folder that a path of this machine means, with or without ``file:``.

    >>> str(local_path("file:///tmp/orders"))
    '/tmp/orders'

    Raises `CheckpointUnreadable` for an empty path, because a variable that a shell does not know is no current folder.
    """
    path = os.fspath(checkpoint)
    if not path:
        hint = "pass the folder given as checkpointLocation, or . for the current one."
        raise CheckpointUnreadable(path, "its path is empty", hint)
    return Path(re.sub("^file:/+", "/", path))


@contextmanager
def alone_in(store: CheckpointStore) -> Iterator[bool]:
    """Lock a checkpoint of this machine during the block; yield False if another command has the lock.

    The lock ends with its process. A checkpoint elsewhere, or on a file system without locks, is not locked.
    """
    if not isinstance(store, LocalStore):
        yield True
        return
    import fcntl  # not at the top, because Windows has no such module, and every query imports this file

    folder, alone = os.open(store.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), True
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:  # another error says that the file system has no locks
            alone = not isinstance(refused, BlockingIOError)
        yield alone
    finally:
        os.close(folder)


@contextmanager
def reading(
    root: str, what: str, kinds: tuple[type[Exception], ...], why: Callable[[Any], str], hint: str
) -> Iterator[None]:
    """Turn errors of these kinds into a `CheckpointUnreadable`; a `UnicodeDecodeError` passes unchanged."""
    try:
        yield
    except UnicodeDecodeError:
        raise
    except kinds as failed:
        raise CheckpointUnreadable(root, f"{what} cannot be read ({why(failed)})", hint) from failed


class LocalStore:
    """A checkpoint on this machine. Failures of a change are `CheckpointUnwritable`."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)

    def names(self, folder: str) -> list[str]:
        with self._reading(folder), suppress(FileNotFoundError), self._inside(PurePosixPath(folder)) as opened:
            return sorted(os.listdir(opened))  # noqa: PTH208  # a descriptor
        return []

    def read(self, path: str) -> str | None:
        file = PurePosixPath(path)
        with self._reading(path), suppress(FileNotFoundError), self._inside(file.parent) as folder:
            with os.fdopen(_open(file.name, os.O_RDONLY, folder), "rb") as found:
                read = found.read(MOST_BYTES + 1)
            check_size(len(read))
            return read.decode()
        return None

    def write(self, path: str, text: str) -> None:
        """Write or replace a file, as a whole or not at all."""
        target = PurePosixPath(path)
        part = f".{target.name}.lowmark"
        with self._writing(path), self._inside(target.parent, make=True) as folder:
            _unlink(part, folder)  # left by a killed command, or made by someone else
            try:
                with os.fdopen(_open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder), "wb") as file:
                    _give(file.fileno(), folder)
                    file.write(text.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                _unlink(part, folder)  # a full disk needs its room, and the next file may have another name
                raise
            _unlink(f".{target.name}.crc", folder)
            os.rename(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)  # a new name is durable only after a sync of its folder

    def remove(self, path: str) -> None:
        """Delete a file, if there is one."""
        file = PurePosixPath(path)
        with self._writing(path), suppress(FileNotFoundError), self._inside(file.parent) as folder:
            _unlink(f".{file.name}.crc", folder)
            _unlink(file.name, folder)

    def exists(self, path: str) -> bool:
        return self._look_at(path) is not None

    def move(self, source: str, target: str) -> None:
        """Rename a folder, possibly onto an empty folder; may be repeated after an interruption."""
        old, new = PurePosixPath(source), PurePosixPath(target)
        with self._writing(target), self._inside(old.parent) as there, self._inside(new.parent) as here:
            os.rename(old.name, new.name, src_dir_fd=there, dst_dir_fd=here)
            os.fsync(here)

    def age_seconds(self, path: str) -> float | None:
        found = self._look_at(path)
        return None if found is None else time.time() - found.st_mtime

    def _look_at(self, path: str) -> os.stat_result | None:
        named = PurePosixPath(path)
        with self._reading(path), suppress(FileNotFoundError), self._inside(named.parent) as folder:
            return os.stat(named.name or ".", dir_fd=folder, follow_symlinks=False)
        return None

    @contextmanager
    def _inside(self, folder: PurePosixPath, *, make: bool = False) -> Iterator[int]:
        """Open a folder of the checkpoint name by name, so that a link is refused wherever it stands."""
        opened = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folder.parts:
                _check_name(name)
                made = False
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=opened)
                        os.fsync(opened)  # as for a file: without it a lost power would take the whole folder
                        made = True
                inner = _open(name, os.O_RDONLY, opened, stat.S_ISDIR)
                if made:
                    _give(inner, opened)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def _reading(self, path: str) -> AbstractContextManager[None]:
        hint = "check that the folder is whole and yours to read."
        return reading(self.root, path or "the folder", (OSError,), _why, hint)

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as failed:
            raise CheckpointUnwritable(self.root, path, _why(failed)) from failed


def _open(name: str, how: int, folder: int, is_kind: Callable[[int], bool] = stat.S_ISREG) -> int:
    """Open a file or folder in a folder. Raises OSError for a link or another kind of file."""
    descriptor = os.open(name, how | _OPEN, 0o666, dir_fd=folder)
    mode = os.fstat(descriptor).st_mode
    if is_kind(mode):
        return descriptor
    os.close(descriptor)
    if is_kind is stat.S_ISDIR:
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EPERM, "it is a pipe, a socket or a device, and no file")


def _give(new: int, folder: int) -> None:
    """Give a new file or folder to those who may write in the folder around it, because its query must write there.

    Root gives it to the owner of the folder. Everyone else gives the folder's group the same rights as in the folder.
    """
    around, made = os.fstat(folder), os.fstat(new)
    with suppress(OSError):  # some file systems and containers let nobody give files away
        if os.geteuid() == 0:
            os.fchown(new, around.st_uid, around.st_gid)
        elif made.st_gid == around.st_gid:
            group = around.st_mode & (stat.S_IRWXG if stat.S_ISDIR(made.st_mode) else stat.S_IRGRP | stat.S_IWGRP)
            os.fchmod(new, stat.S_IMODE(made.st_mode) | group)


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _check_name(name: str) -> None:
    if name in ("/", "..", ".", ""):
        raise OSError(errno.EPERM, "it is outside of the checkpoint")


def check_size(size_bytes: int) -> None:
    """Raise OSError for a file that is larger than any file of a checkpoint."""
    if size_bytes > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")


def _why(failed: OSError) -> str:
    return "it is a link to another place" if failed.errno == errno.ELOOP else str(failed.strerror)


def _failures() -> tuple[type[Exception], ...]:
    """The errors of Hadoop's file systems; pyspark raises an unknown host, for example, as a PySparkException."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return Py4JJavaError, PySparkException, OSError


def _cause(failed: Any) -> str:
    java = getattr(failed, "java_exception", failed)
    return str(java if java is failed else java.toString()).partition("\n")[0][:300]


class HadoopStore:
    """A checkpoint on one of Hadoop's file systems: HDFS, S3, ABFS, or this machine's.

    Files that Spark reads are replaced in one step where the file system can. HDFS can rename over a file. Hadoop's
    object stores would instead delete the old file and copy the new one, and a checkpoint without its newest entry
    would start a batch too early. So there a stream overwrites the file: on S3 and Google's storage the old file stays
    until the stream is closed; on ABFS the file is empty until then, and Spark starts on no empty entry.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._conf: JavaObject = spark._jsparkSession.sessionState().newHadoopConf()
        self.root = checkpoint  # until the path is resolved
        with self._reading(""):
            path = jvm.org.apache.hadoop.fs.Path(checkpoint)
            self._files: Any = path.getFileSystem(self._conf)
            qualified = self._files.makeQualified(path)
            self.root = str(qualified.toString()).rstrip("/")
            self.local = Path(qualified.toUri().getPath()) if self._files.getUri().getScheme() == "file" else None
            self._renames_over: JavaObject | None = self._find_context(path)

    def names(self, folder: str) -> list[str]:
        with self._reading(folder):
            path = self._path(folder)
            if not self._files.exists(path):
                return []
            return sorted(status.getPath().getName() for status in self._files.listStatus(path))

    def read(self, path: str) -> str | None:
        with self._reading(path):
            file = self._path(path)
            if not self._files.exists(file):
                return None
            check_size(self._files.getFileStatus(file).getLen())
            stream = self._files.open(file)
            try:
                # As bytes, because Java would put a character of its own in place of what is no UTF-8.
                text: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
            return text.decode()

    def write(self, path: str, text: str) -> None:
        file = self._path(path)
        with self._writing(path):
            self._files.mkdirs(file.getParent())
            if self._renames_over is None:
                self._create(file, text)
                return
            hadoop = self._jvm.org.apache.hadoop.fs
            part = hadoop.Path(file.getParent(), f".{file.getName()}.lowmark")
            self._create(part, text)
            kind = getattr(hadoop, "Options$Rename")
            options = self._gateway.new_array(kind, 1)
            options[0] = kind.OVERWRITE
            self._renames_over.rename(part, file, options)

    def _create(self, file: JavaObject, text: str) -> None:
        out = self._files.create(file, True)
        out.write(bytearray(text.encode()))  # not closed after a failure: closing would publish the partial file
        if out.hasCapability("hsync"):
            out.hsync()
        out.close()

    def remove(self, path: str) -> None:
        with self._writing(path):
            self._files.delete(self._path(path), False)

    def exists(self, path: str) -> bool:
        with self._reading(path):
            return bool(self._files.exists(self._path(path)))

    def move(self, source: str, target: str) -> None:
        with self._writing(target):
            old, new = self._path(source), self._path(target)
            is_there = self._files.exists(new)
            if is_there and not self._files.listStatus(new):
                is_there = not self._files.delete(new, False)
            if not is_there:
                if not self._files.rename(old, new):
                    raise OSError(f"could not rename {old} to {new}")
                return
            if self._renames_over is not None:  # an atomic rename leaves no half, so the target is someone else's
                raise OSError(f"{new} is there already")
            # Here a rename is a copy that may have been cut short, so move the files that are left, in folders, too.
            for status in self._files.listStatus(old):
                name = status.getPath().getName()
                if status.isFile():
                    self._files.delete(self._path(f"{target}/{name}"), True)
                self.move(f"{source}/{name}", f"{target}/{name}")
            self._files.delete(old, True)

    def age_seconds(self, path: str) -> float | None:
        with self._reading(path):
            file = self._path(path)
            if not self._files.exists(file):
                return None
            written_ms: int = self._files.getFileStatus(file).getModificationTime()
            return time.time() - written_ms / 1_000

    def _reading(self, path: str) -> AbstractContextManager[None]:
        hint = "call it in a session that reaches the place as the query does: its packages, settings, user."
        return reading(self.root, path or "it", _failures(), _cause, hint)

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except _failures() as failed:
            raise CheckpointUnwritable(self.root, path, _cause(failed)) from failed

    def _path(self, path: str) -> JavaObject:
        for name in PurePosixPath(path).parts:
            _check_name(name)
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}")

    def _find_context(self, path: JavaObject) -> JavaObject | None:
        """The `FileContext` with an atomic `rename(OVERWRITE)`; None if this file system has none.

        Only `Hdfs` has one for sure, and a `ViewFs` whose mount leads to an `Hdfs`. Google's storage and others inherit
        the `rename` of `AbstractFileSystem`, which deletes first.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        hadoop = self._jvm.org.apache.hadoop.fs
        path = self._files.makeQualified(path)  # resolvePath refuses a relative one
        try:
            context = hadoop.FileContext.getFileContext(path.toUri(), self._conf)
            if self._is_hdfs(context):
                return context
            behind = hadoop.FileContext.getFileContext(context.resolvePath(path).toUri(), self._conf)
            return context if self._is_hdfs(behind) else None
        except (Py4JError, PySparkException):  # this kind of file system has no context, or the path does not exist
            return None

    def _is_hdfs(self, context: JavaObject) -> bool:
        from py4j.java_gateway import is_instance_of

        return bool(is_instance_of(self._gateway, context.getDefaultFileSystem(), "org.apache.hadoop.fs.Hdfs"))


def open_store(spark: SparkSession, checkpoint: str) -> CheckpointStore:
    """Return the files of a checkpoint on any file system that a session reaches.

    On this machine a `LocalStore`, because Hadoop deletes a file there before it renames another over it, keeps the
    checksum in a second file, and follows links.
    """
    store = HadoopStore(spark, checkpoint)
    return store if store.local is None else LocalStore(store.local)
