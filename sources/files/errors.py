"""What the source of files raises on purpose.

LowmarkError
├── FileUnreadable (RuntimeError)    a file that is there and cannot be read
├── FileChanged    (RuntimeError)    a file that is gone, or not what it was when it was found
├── InvalidFileOption (ValueError) an option or a path that cannot be
└── NoSchema       (ValueError)      columns that are not known, or are not what was asked for
"""

from __future__ import annotations

from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.watermark import LowmarkError

__all__ = ["FileChanged", "FileUnreadable", "InvalidFileOption", "NoSchema"]


class InvalidFileOption(InvalidSourceOption):
    """An option of `FileSource` that makes no sense. Values of secrets are never in it."""

    _source = "FileSource"


class FileUnreadable(LowmarkError, RuntimeError):
    """A file that is there and cannot be read: damaged, cut off, of another format, or not permitted."""

    source: str  # the source
    path: str  # of the file
    split: str  # its split
    action: str  # what was attempted
    cause: str  # type and text of the error
    _fact = "{source}: cannot {action} of file {path} (split {split!r}): {cause}"
    _hint = (
        'give the right to read it if that is missing; else pass on_unreadable="skip" to go on without the rows that '
        "were not read, and write them into a new file."
    )


class FileChanged(LowmarkError, RuntimeError):
    """A file is not what it was when its split was found, so rows that were planned cannot be read."""

    source: str  # the source
    path: str  # of the file
    split: str  # its split
    was: str  # its size and time when it was found
    now: str  # what they are now, or "gone"
    _fact = "{source}: file {path} (split {split!r}) was {was} when it was found, and is {now}"
    _hint = (
        'put the file back as it was, with its time, and write new rows into new files; or pass on_vanished="skip" to '
        "go on without the rows that were not read."
    )


class NoSchema(LowmarkError, ValueError):
    """The columns of a source are not known, or are not what was asked for."""

    source: str  # the source
    fact: str  # what is wrong
    hint: str  # what to do
    _fact = "{source}: {fact}"
