"""Lists files: folders, patterns and single files, on any file system that Arrow or fsspec knows.

    "data"                        the files of a folder; with recursive=True also of the folders below it
    "data/2026-*/part-?.parquet"  a pattern: * ? [ab] {x,y} within a name, ** across folders
    "s3://bucket/data"            a URI of Arrow's file systems, else of fsspec's, if that is installed; its parameters
                                  come last, as in "s3://bucket/data?region=eu-central-1"

As in Spark, names that begin with "." or "_" or end with "._COPYING_" (Hadoop's copies) or "_$folder$" (Hadoop's
empty objects for folders of a bucket) are left out, and files in folders of such names, because these are files still
being written, or markers. "_" is fine in a partition's folder ("_day=1").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import commonpath

import pyarrow as pa
from lowmark.sources.api import SourceSplit
from lowmark.sources.kit.options import PATTERN_ERRORS
from lowmark.watermark.errors import shown
from pyarrow import fs

from .errors import InvalidFileOption

_WILD = re.compile(r"[*?\[{]")
_PARAMETERS = re.compile(r"\?[a-z_]+=[^*?\[{]*$")
_ANY = re.compile(".*", re.DOTALL)
_BUCKETS = frozenset({"s3", "gcs", "abfs"})  # where a folder without a file is not there
_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]|\{[^}]*\}|.", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit(SourceSplit):
    """A file as it was found; its id is its path below the listing's root.

    Attributes:
        size_bytes: its size.
        modified_us: when it was last modified, microseconds since the epoch; 0 if the file system has no such time.
    """

    size_bytes: int = 0
    modified_us: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    folder: str
    pattern: re.Pattern[str]
    deep: bool


@dataclass(frozen=True)
class FileListing:
    """Lists files; their names are relative to one root. A file system that cannot be asked raises an `OSError`."""

    filesystem: fs.FileSystem
    root: str
    places: tuple[_Place, ...]

    def path(self, name: str) -> str:
        return f"{beginning(self.root)}{name}"

    def find(self, name: str) -> FileSplit | None:
        info = self.filesystem.get_file_info(self.path(name))
        return _split(info, name) if info.type == fs.FileType.File else None

    def files(self, *, deleted: bool = False) -> list[FileSplit]:
        """Return all files, the oldest first, each once.

        Args:
            deleted: whether files were there before. A bucket that lost all files of a folder has no such folder.
        """
        if isinstance(self.filesystem, fs.PyFileSystem) and isinstance(self.filesystem.handler, fs.FSSpecHandler):
            # Many of fsspec's keep a listing for ever. The stubs take them for Arrow's.
            self.filesystem.handler.fs.invalidate_cache()  # type: ignore[union-attr]
        found: dict[str, FileSplit] = {}
        gone = deleted and self.filesystem.type_name in _BUCKETS
        for place in self.places:
            chosen = fs.FileSelector(place.folder, recursive=place.deep, allow_not_found=gone)
            for info in self.filesystem.get_file_info(chosen):
                path = _path(info)
                below = _below(path, place.folder)
                if info.type == fs.FileType.File and not _hidden(below) and place.pattern.fullmatch(below):
                    name = _below(path, self.root)
                    found[name] = _split(info, name)
        return sorted(found.values(), key=lambda file: (file.modified_us, file.split_id))


def resolve_paths(
    paths: Sequence[str], *, recursive: bool = False, filesystem: fs.FileSystem | None = None, beside: str = ""
) -> FileListing:
    """Return the listing for folders, patterns and files, at least one, all on one file system.

    Args:
        recursive: whether a folder stands for the folders below it too.
        filesystem: by default taken from the paths: a URI, or else this machine.
        beside: the folder of this machine that relative paths begin at; by default the present one.
    """
    if not paths:
        raise InvalidFileOption("paths", "none", "at least one folder, pattern or file", "say what to read.")
    for path in paths:
        if "\0" in path or any("\ud800" <= character <= "\udfff" for character in path):
            raise InvalidFileOption("paths", shown(path), "paths in UTF-8 without a NUL", "no file has such a name.")
    resolved = [_resolve(path, filesystem, beside) for path in paths]
    system = resolved[0][0]
    for path, (other, _, _) in zip(paths, resolved, strict=True):
        if not other.equals(system):
            raise InvalidFileOption("paths", f"{paths[0]!r} and {path!r}", "one file system", "use two sources.")
    places = []
    for _, folder, pattern in resolved:
        if pattern is None and system.get_file_info(folder).type == fs.FileType.File:
            folder, _, name = folder.rpartition("/")
            places.append(_Place(folder or "/", re.compile(re.escape(name)), deep=False))
        elif pattern is None:
            places.append(_Place(folder, _ANY, deep=recursive))
        else:
            inside = "/.*" if recursive else "/[^/]*"
            try:
                compiled = re.compile(f"{pattern}(?:{inside})?")  # a folder that matches stands for its files
            except PATTERN_ERRORS as wrong:
                raise InvalidFileOption("paths", shown(list(paths)), "patterns as of a shell", f"{wrong}.") from wrong
            places.append(_Place(folder, compiled, deep=True))
    root = places[0].folder if len(places) == 1 else commonpath([place.folder for place in places])
    return FileListing(system, root, tuple(places))


def _resolve(path: str, filesystem: fs.FileSystem | None, beside: str) -> tuple[fs.FileSystem, str, str | None]:
    """(file system, folder, regular expression of the rest or None)."""
    parameters = ""
    if "://" in path and (found := _PARAMETERS.search(path)) is not None:
        path, parameters = path[: found.start()], found[0]
    wild = _WILD.search(path, path.find("://") + 3 if "://" in path else 0)
    base, pattern = path, None
    if wild is not None:
        cut = path.rfind("/", 0, wild.start()) + 1
        base, pattern = path[:cut] or ".", _expression(path[cut:].rstrip("/"))
    if filesystem is not None:
        return filesystem, base.rstrip("/") or "/", pattern
    if "://" not in base:
        return fs.LocalFileSystem(), Path(beside, base).absolute().as_posix(), pattern
    try:
        system, folder = fs.FileSystem.from_uri(base + parameters)
    except pa.ArrowInvalid as unknown:
        system, folder = _fsspec(base + parameters, unknown)
    return system, folder.rstrip("/") or "/", pattern


def _fsspec(uri: str, unknown: pa.ArrowInvalid) -> tuple[fs.FileSystem, str]:
    """Ask fsspec for a file system that Arrow does not know, or whose address it cannot read."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-not-found]  # optional
    except ImportError as missing:
        hint = f"install fsspec and its driver, or correct the address: {unknown}."
        raise InvalidFileOption("paths", repr(uri), "a file system that Arrow knows", hint) from missing
    system, folder = url_to_fs(uri)
    return fs.PyFileSystem(fs.FSSpecHandler(system)), str(folder)  # type: ignore[abstract]  # the stubs miss its methods


def beginning(folder: str) -> str:
    """Return what the paths below a folder begin with; "" if the folder is that of all buckets."""
    return f"{folder.rstrip('/')}/" if folder else ""


def _expression(pattern: str) -> str:
    return _TOKEN.sub(_translated, pattern)


def _translated(found: re.Match[str]) -> str:
    token, plain = found[0], {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in plain:
        return plain[token]
    if len(token) > 1 and token[0] == "[":
        return "[^" + _in_class(token[2:]) if token[1] == "!" else "[" + _in_class(token[1:])
    if len(token) > 1 and token[0] == "{":
        return "(?:" + "|".join(_expression(choice) for choice in token[1:-1].split(",")) + ")"
    return re.escape(token)


def _in_class(characters: str) -> str:
    """The inside of [...] for Python, escaped because Python knows more than ranges there, or warns."""
    return re.sub(r"[\\\[&~|]", r"\\\g<0>", characters).replace("--", "-\\-")


def _hidden(below: str) -> bool:
    return any(
        name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith(("._COPYING_", "_$folder$"))
        for name in below.split("/")
    )


def _below(path: str, folder: str) -> str:
    """Return the path of a file below a folder; a file system of fsspec may add or drop the first slash of a path.

    >>> _below("/in/a.csv", "in"), _below("bucket/in/a.csv", "/bucket")
    ('a.csv', 'in/a.csv')
    """
    begins, there = folder.strip("/"), path.lstrip("/")
    if not there.startswith(begins):
        raise InvalidFileOption(
            "paths", shown(folder), f"the folder of the listed path {shown(path)}", "leave out the scheme."
        )
    return there[len(begins) :].lstrip("/")


def _path(info: fs.FileInfo) -> str:
    try:
        return info.path
    except UnicodeDecodeError as wrong:
        raise InvalidFileOption(
            "paths", shown(wrong.object.rpartition(b"/")[2]), "files whose names are UTF-8",
            "rename the file, or keep it in another folder.",
        ) from wrong  # fmt: skip


def _split(info: fs.FileInfo, name: str) -> FileSplit:
    return FileSplit(split_id=name, size_bytes=info.size or 0, modified_us=(info.mtime_ns or 0) // 1_000)
