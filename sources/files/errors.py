"""The errors of the source of files."""

from __future__ import annotations

from lowmark.sources.kit.options import InvalidSourceOption
from lowmark.watermark import LowmarkError


class InvalidFileOption(InvalidSourceOption):
    """An invalid option of `FileSource`. The error never has values of secrets."""

    _source = "FileSource"


class FileUnreadable(LowmarkError, RuntimeError):
    """A file exists but cannot be read: it is damaged, cut off, of another format, or not permitted."""

    source: str  # the source
    path: str  # of the file
    split: str  # its split
    action: str  # the attempted action
    cause: str  # type and text of the error
    _fact = "{source}: cannot {action} of file {path} (split {split!r}): {cause}"
    _hint = (
        "give the right to read it if that is missing, or pass a schema= that fits all files if a value does not fit "
        'the type that the first file has; else pass on_unreadable="skip" to go on without the rows that '
        "were not read, and write them into a new file."
    )


class FileChanged(LowmarkError, RuntimeError):
    """A file has changed since its split was found, so planned rows cannot be read."""

    source: str  # the source
    path: str  # of the file
    split: str  # its split
    was: str  # its size and time when it was found
    now: str  # its present size and time, or "gone"
    _fact = "{source}: file {path} (split {split!r}) was {was} when it was found, and is {now}"
    _hint = (
        'put the file back as it was, with its time, and write new rows into new files; or pass on_vanished="skip" to '
        "go on without the rows that were not read."
    )


class NoSchema(LowmarkError, ValueError):
    """The columns of a source are unknown, or differ from the wanted columns."""

    source: str  # the source
    fact: str  # the fault
    hint: str  # what to do
    _fact = "{source}: {fact}"
