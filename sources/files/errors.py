"""What the source of files raises on purpose.

LowmarkError
├── FileUnreadable (RuntimeError)    a file that is there and cannot be read
├── FileChanged    (RuntimeError)    a file that is gone, or not what it was when it was found
├── InvalidFileOption (ValueError) an option or a path that cannot be
└── NoSchema       (ValueError)      columns that are not known, or are not what was asked for
"""

from __future__ import annotations

from lowmark.watermark import LowmarkError

__all__ = ["FileChanged", "FileUnreadable", "InvalidFileOption", "NoSchema"]


class InvalidFileOption(LowmarkError, ValueError):
    """An option of `FileSource` that makes no sense.

    Attributes:
        option: its name.
        got: what was given, as text.
        expected: what would have been accepted.
        hint: what to do.
    """

    def __init__(self, option: str, got: str, expected: str, hint: str) -> None:
        super().__init__(option, got, expected, hint)
        self.option, self.got, self.expected, self.hint = option, got, expected, hint

    def __str__(self) -> str:
        return f"FileSource, option {self.option}: expected {self.expected}, got {self.got}. Hint: {self.hint}"


class FileUnreadable(LowmarkError, RuntimeError):
    """A file that is there and cannot be read: damaged, cut off, of another format, or not permitted.

    Attributes:
        source: the source.
        path: of the file.
        split: its split.
        action: what was attempted.
        cause: type and text of the error.
    """

    def __init__(self, source: str, path: str, split: str, action: str, cause: str) -> None:
        super().__init__(source, path, split, action, cause)
        self.source, self.path, self.split, self.action, self.cause = source, path, split, action, cause

    def __str__(self) -> str:
        return (
            f"{self.source}: cannot {self.action} of file {self.path} (split {self.split!r}): {self.cause}. Hint: give "
            'the right to read it if that is missing; else pass on_unreadable="skip" to go on without the rows that '
            "were not read, and write them into a new file."
        )


class FileChanged(LowmarkError, RuntimeError):
    """A file is not what it was when its split was found, so rows that were planned cannot be read.

    Attributes:
        source: the source.
        path: of the file.
        split: its split.
        was: its size and time when it was found.
        now: what they are now, or "gone".
    """

    def __init__(self, source: str, path: str, split: str, was: str, now: str) -> None:
        super().__init__(source, path, split, was, now)
        self.source, self.path, self.split, self.was, self.now = source, path, split, was, now

    def __str__(self) -> str:
        return (
            f"{self.source}: file {self.path} (split {self.split!r}) was {self.was} when it was found, and is "
            f"{self.now}. Hint: put the file back as it was, with its time, and write new rows into new files; or pass "
            'on_vanished="skip" to go on without the rows that were not read.'
        )


class NoSchema(LowmarkError, ValueError):
    """The columns of a source are not known, or are not what was asked for.

    Attributes:
        source: the source.
        fact: what is wrong.
        hint: what to do.
    """

    def __init__(self, source: str, fact: str, hint: str) -> None:
        super().__init__(source, fact, hint)
        self.source, self.fact, self.hint = source, fact, hint

    def __str__(self) -> str:
        return f"{self.source}: {self.fact}. Hint: {self.hint}"
