"""The files of a checkpoint, on this machine without a JVM, or wherever Hadoop's file systems reach.

What Spark reads must be whole at any moment: a file is written aside and renamed. On this machine Hadoop keeps a
checksum beside each file (``.5.crc`` beside ``5``) and refuses a file that does not fit it, so it goes before the file
changes; a file without one is read as it is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lowmark.integration.errors import CheckpointUnreadable, CheckpointUnwritable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

__all__ = ["CheckpointStore", "HadoopStore", "LocalStore", "is_elsewhere", "local_path"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class CheckpointStore(Protocol):
    """The files of one checkpoint; paths are relative to it.

    All that fails is a `CheckpointUnreadable`, or a `CheckpointUnwritable`.
    """

    @property
    def root(self) -> str:
        """Where it lies, as text for a person."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of what is in a folder; none if there is no such folder."""
        ...

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is no such file.

        Raises:
            UnicodeDecodeError: it is no text.
        """
        ...

    def write(self, path: str, text: str) -> None:
        """Write a file, or another text into it: whole or not at all."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a folder another name, also that of an empty one; may be repeated where it was cut short."""
        ...

    def age_seconds(self, path: str) -> float | None:
        """How long ago a file was written, by the clocks of its file system and of this machine; None without it."""
        ...


def is_elsewhere(checkpoint: str) -> bool:
    """Whether a checkpoint's path names another file system than this machine's.

    >>> is_elsewhere("s3a://bucket/orders"), is_elsewhere("file:/tmp/orders"), is_elsewhere("/tmp/orders")
    (True, False, False)
    """
    return _SCHEME.match(checkpoint) is not None and not checkpoint.startswith("file:/")


def local_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the folder that a path of this machine means, with or without ``file:``.

    >>> str(local_path("file:///tmp/orders"))
    '/tmp/orders'
    """
    path = os.fspath(checkpoint)
    return Path(re.sub("^file:/+", "/", path))


class LocalStore:
    """A checkpoint on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def root(self) -> str:
        return str(self._folder)

    def names(self, folder: str) -> list[str]:
        with self._reading(folder):
            try:
                return sorted(each.name for each in (self._folder / folder).iterdir())
            except FileNotFoundError:
                return []

    def read(self, path: str) -> str | None:
        with self._reading(path):
            try:
                return (self._folder / path).read_bytes().decode()
            except FileNotFoundError:
                return None

    def write(self, path: str, text: str) -> None:
        target = self._folder / path
        part = target.with_name(f".{target.name}.lowmark")
        with self._writing(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
            part.rename(target)
            _sync(target.parent)

    def exists(self, path: str) -> bool:
        with self._reading(path):
            return (self._folder / path).exists()

    def move(self, source: str, target: str) -> None:
        with self._writing(target):
            (self._folder / source).rename(self._folder / target)
            _sync((self._folder / target).parent)

    def age_seconds(self, path: str) -> float | None:
        with self._reading(path):
            try:
                return time.time() - (self._folder / path).stat().st_mtime
            except FileNotFoundError:
                return None

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as failed:
            hint = "check that the folder is whole and yours to read."
            fact = f"{path or 'the folder'} cannot be read ({failed.strerror})"
            raise CheckpointUnreadable(self.root, fact, hint) from failed

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as failed:
            raise CheckpointUnwritable(self.root, path, str(failed.strerror)) from failed


def _sync(folder: Path) -> None:
    """A new name is only safe once its folder is."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _cause(failed: Any) -> str:
    """What a file system of Hadoop's says, in one line."""
    java = getattr(failed, "java_exception", failed)
    return str(java if java is failed else java.toString()).partition("\n")[0][:300]


class HadoopStore:
    """A checkpoint on a file system of Hadoop's: HDFS, S3, ABFS, or this machine's.

    What Spark reads is replaced in one step wherever there is one. On HDFS that is a rename. Hadoop's object stores
    would delete the old file for it and copy the new one there, and a checkpoint without its newest entry is one that
    starts, a batch too early. There a stream writes in the file's place: on S3 and Google's storage the old file stays
    until the stream is closed; on ABFS it is empty until then, and Spark starts on no empty entry. On this machine
    Hadoop deletes the old file, too, and its checksum is a second one, so there `LocalStore` writes.

    Args:
        spark: a session, for its file systems and its settings.
        checkpoint: the path, as given to `checkpointLocation`.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._conf: JavaObject = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = checkpoint  # until it is known
        with self._reading(""):
            path = jvm.org.apache.hadoop.fs.Path(checkpoint)
            self._files: Any = path.getFileSystem(self._conf)
            qualified = self._files.makeQualified(path)
            self._root = str(qualified.toString()).rstrip("/")
            is_local = self._files.getUri().getScheme() == "file"
            self._local = LocalStore(Path(qualified.toUri().getPath())) if is_local else None
            self._renames_over: JavaObject | None = self._find_context(path)

    @property
    def root(self) -> str:
        return self._root

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with self._reading(folder):
            if not self._files.exists(path):
                return []
            return sorted(status.getPath().getName() for status in self._files.listStatus(path))

    def read(self, path: str) -> str | None:
        file = self._path(path)
        with self._reading(path):
            if not self._files.exists(file):
                return None
            stream = self._files.open(file)
            try:
                text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
            return text

    def write(self, path: str, text: str) -> None:
        if self._local is not None:
            self._local.write(path, text)
            return
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
        out.write(bytearray(text.encode()))  # where this fails, it stays open: a stream that is closed is a file
        if out.hasCapability("hsync"):
            out.hsync()
        out.close()

    def exists(self, path: str) -> bool:
        with self._reading(path):
            return bool(self._files.exists(self._path(path)))

    def move(self, source: str, target: str) -> None:
        if self._local is not None:
            self._local.move(source, target)
            return
        with self._writing(target):
            self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        is_there = self._files.exists(new)
        if is_there and not self._files.listStatus(new):
            is_there = not self._files.delete(new, False)
        if not is_there:
            if not self._files.rename(old, new):
                raise OSError(f"could not rename {old} to {new}")
            return
        if self._renames_over is not None:  # where a rename is one step, what is there is another's
            raise OSError(f"{new} is there already")
        # Where a rename is a copy, it may have been cut short: what is left follows.
        for status in self._files.listStatus(old):
            name = status.getPath().getName()
            self._files.delete(self._path(f"{target}/{name}"), True)
            if not self._files.rename(status.getPath(), self._path(f"{target}/{name}")):
                raise OSError(f"could not rename {status.getPath()} to {new}")
        self._files.delete(old, True)

    def age_seconds(self, path: str) -> float | None:
        file = self._path(path)
        with self._reading(path):
            if not self._files.exists(file):
                return None
            written_ms: int = self._files.getFileStatus(file).getModificationTime()
            return time.time() - written_ms / 1_000

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except (Py4JJavaError, OSError) as failed:
            fact = f"{path or 'it'} cannot be read ({_cause(failed)})"
            hint = "call it in a session that reaches the place as the query does: its packages, settings, user."
            raise CheckpointUnreadable(self._root, fact, hint) from failed

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except (Py4JJavaError, OSError) as failed:
            raise CheckpointUnwritable(self._root, path, _cause(failed)) from failed

    def _path(self, path: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}")

    def _find_context(self, path: JavaObject) -> JavaObject | None:
        """The `FileContext` whose `rename(OVERWRITE)` is one step; None: there is none here.

        A `DelegateToFileSystem` inherits it from `AbstractFileSystem`, as a delete and a rename.
        """
        from py4j.java_gateway import is_instance_of
        from py4j.protocol import Py4JJavaError

        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(self._files.makeQualified(path).toUri(), self._conf)
        except Py4JJavaError:  # its kind of file system has none
            return None
        delegates = "org.apache.hadoop.fs.DelegateToFileSystem"
        return None if is_instance_of(self._gateway, context.getDefaultFileSystem(), delegates) else context
