"""Everything this package raises on purpose.

    LowmarkError
    ├── InvalidDuration   (ValueError)    a text or object that is no length of time
    ├── InvalidStrategy   (ValueError)    settings of a WatermarkStrategy that make no sense
    ├── InvalidSplitId    (ValueError)    an id that is neither a 64-bit number nor a name, or both in one stream
    ├── InvalidWatermark  (ValueError)    a watermark that does not fit 64 bits
    ├── InvalidReshard    (ValueError)    a split that would descend from itself, or from nobody
    ├── DuplicateSplit    (ValueError)    a split assigned twice
    ├── UnknownSplit      (LookupError)   a report about a split nobody assigned
    ├── FinishedSplit     (RuntimeError)  a report after the split said it was done
    ├── CorruptSnapshot   (ValueError)    a snapshot that cannot be restored
    ├── DisagreeingGroup  (ValueError)    two members of one alignment group with different parameters
    ├── UnknownTask       (LookupError)   a report of a task that never joined, or left
    ├── StaleRun          (RuntimeError)  a message of a run of a task that was replaced, or is over
    ├── TooManyTasks      (RuntimeError)  a registration beyond what one coordinator takes
    └── InvalidMessage    (ValueError)    a message with a field that cannot be

Spark carries only the *text* of an error from a Python worker to the driver, so every message stands on its
own: what is wrong, what was expected, and a hint. Every error survives pickling, whatever its constructor takes.
"""
# An error is named after the fact it states; LowmarkError is the one to catch.

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice
from typing import Any

# Looking for a similar name is a courtesy; among this many it stays instant.
_NAMES_COMPARED = 1_000
_LONGEST_SHOWN = 80  # characters of a bad value in an error


def shown(value: object) -> str:
    """A bad value as an error shows it: its ``repr``, cut. Of a number that is too long to be written only the type.

    >>> shown("7 parsecs"), shown(10**5_000), len(shown("x" * 1_000_000))
    ("'7 parsecs'", 'a very long int', 83)
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # it must not hide what is wrong with the value
        return f"a very long {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class LowmarkError(Exception):
    """Base of this library's errors: catch this one to catch them all."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the constructor: what it takes is not what `args` holds where it composes a text, has arguments by
        # name, or an OSError, which cuts `args` short.
        return _unpickled, (type(self), self.args), vars(self)


def _unpickled(kind: type[LowmarkError], args: tuple[Any, ...]) -> LowmarkError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidDuration(LowmarkError, ValueError):
    """A value that is no length of time.

    Attributes:
        what: the setting it was given for, such as "max drift".
        got: the value as the caller wrote it (``repr``).
        reason: what is wrong with it.
        hint: what to write instead.
    """

    def __init__(self, what: str, got: str, reason: str, hint: str) -> None:
        super().__init__(what, got, reason, hint)
        self.what, self.got, self.reason, self.hint = what, got, reason, hint

    def __str__(self) -> str:
        return f"{self.what}: {self.got} is not a duration: {self.reason}. Hint: {self.hint}"


class InvalidStrategy(LowmarkError, ValueError):
    """Settings of a strategy that cannot work together, or at all.

    Attributes:
        setting: the method or field concerned.
        got: the value as the caller wrote it.
        expected: what would have been accepted.
        hint: what to do.
    """

    def __init__(self, setting: str, got: str, expected: str, hint: str) -> None:
        super().__init__(setting, got, expected, hint)
        self.setting, self.got, self.expected, self.hint = setting, got, expected, hint

    def __str__(self) -> str:
        return f"{self.setting}: expected {self.expected}, got {self.got}. Hint: {self.hint}"


class InvalidSplitId(LowmarkError, ValueError):
    """A split id of the wrong kind.

    Attributes:
        split: the id (``repr``).
        expected: what ids this stream takes.
    """

    def __init__(self, split: str, expected: str) -> None:
        super().__init__(split, expected)
        self.split, self.expected = split, expected

    def __str__(self) -> str:
        return (
            f"split id {self.split}: expected {self.expected}. Hint: use either names (str) or hashes (int) "
            "for all the splits of one stream."
        )


class InvalidWatermark(LowmarkError, ValueError):
    """A watermark outside the range of a Spark timestamp.

    Attributes:
        split: the split that reported it.
        watermark_us: the value, microseconds since the epoch.
    """

    def __init__(self, split: int | str, watermark_us: int) -> None:
        super().__init__(split, watermark_us)
        self.split, self.watermark_us = split, watermark_us

    def __str__(self) -> str:
        return (
            f"watermark of split {self.split!r}: expected microseconds since the epoch in 64 bits, "
            f"got {self.watermark_us}. Hint: is the event time in nanoseconds?"
        )


class DuplicateSplit(LowmarkError, ValueError):
    """A split was assigned although it is known already.

    Attributes:
        split: its id.
    """

    def __init__(self, split: int | str) -> None:
        super().__init__(split)
        self.split = split

    def __str__(self) -> str:
        return f"split {self.split!r} is assigned already. Hint: remove() it first if its id is used again."


class UnknownSplit(LowmarkError, LookupError):
    """A report named a split that was never assigned.

    Attributes:
        split: the id in the report.
        known: how many splits are assigned.
        nearest: the most similar name that is assigned, if any.
    """

    def __init__(self, split: int | str, known: int, nearest: str | None = None) -> None:
        super().__init__(split, known, nearest)
        self.split, self.known, self.nearest = split, known, nearest

    @classmethod
    def among(cls, split: int | str, known: Collection[int | str]) -> UnknownSplit:
        """The error for ``split``, with the most similar of the ``known`` names in its hint."""
        names = [name for name in islice(known, _NAMES_COMPARED) if isinstance(name, str)]
        near = get_close_matches(split, names, n=1) if isinstance(split, str) else []
        return cls(split, len(known), near[0] if near else None)

    def __str__(self) -> str:
        hint = "call assign() before the first report." if self.nearest is None else f"did you mean {self.nearest!r}?"
        return f"split {self.split!r} was never assigned ({self.known} splits are). Hint: {hint}"


class FinishedSplit(LowmarkError, RuntimeError):
    """A split reported after it finished.

    Attributes:
        split: its id.
    """

    def __init__(self, split: int | str) -> None:
        super().__init__(split)
        self.split = split

    def __str__(self) -> str:
        return (
            f"split {self.split!r} reported after it finished. Hint: a source must call a split finished "
            "only when it can never deliver another row."
        )


class CorruptSnapshot(LowmarkError, ValueError):
    """Bytes that are not a snapshot this version can restore.

    Attributes:
        reason: what is wrong with them.
        size: how many bytes there were.
    """

    def __init__(self, reason: str, size: int) -> None:
        super().__init__(reason, size)
        self.reason, self.size = reason, size

    def __str__(self) -> str:
        return (
            f"cannot restore a coordinator from {self.size} bytes: {self.reason}. Hint: pass the bytes of "
            "snapshot() unchanged; a snapshot of a newer version needs that version."
        )


class DisagreeingGroup(LowmarkError, ValueError):
    """A task asked for other alignment parameters than its group has.

    Attributes:
        group: the group's name.
        task: who asked.
        wanted: for what.
        member: who is in the group already.
        present: with what.
    """

    def __init__(self, group: str, task: str, wanted: str, member: str, present: str) -> None:
        super().__init__(group, task, wanted, member, present)
        self.group, self.task, self.wanted, self.member, self.present = group, task, wanted, member, present

    def __str__(self) -> str:
        return (
            f"alignment group {self.group!r}: task {self.task} asks for {self.wanted}, but task {self.member} "
            f"joined with {self.present}. Hint: give every stream of the group the same parameters, or this one "
            "another group."
        )


class UnknownTask(LowmarkError, LookupError):
    """A message of a task that is not known here: it never joined, or it left.

    Attributes:
        task: who sent it.
        where: the group or coordinator that does not know it.
        known: how many tasks it does know.
    """

    def __init__(self, task: str, where: str, known: int) -> None:
        super().__init__(task, where, known)
        self.task, self.where, self.known = task, where, known

    def __str__(self) -> str:
        return (
            f"task {self.task} is not known to {self.where} ({self.known} tasks are). Hint: a task joins before "
            "it reports, and joins again after its lease ran out."
        )


class InvalidReshard(LowmarkError, ValueError):
    """A reshard that cannot have happened.

    Attributes:
        parents: the splits that were said to end (``repr``).
        children: the splits that were said to go on (``repr``).
        expected: what would have been accepted.
    """

    def __init__(self, parents: str, children: str, expected: str) -> None:
        super().__init__(parents, children, expected)
        self.parents, self.children, self.expected = parents, children, expected

    def __str__(self) -> str:
        return (
            f"reshard of {self.parents} into {self.children}: expected {self.expected}. Hint: name the ids as the "
            "source does; the id of a split that ended is not used again."
        )


class StaleRun(LowmarkError, RuntimeError):
    """A message of an older run of a task than the one that is registered, or of one that is over.

    Attributes:
        task: who sent it.
        run: the token in the message.
        what: what the token is, completing "run r of task t <what>".
    """

    def __init__(self, task: str, run: str, what: str) -> None:
        super().__init__(task, run, what)
        self.task, self.run, self.what = task, run, what

    def __str__(self) -> str:
        return (
            f"run {self.run!r} of task {self.task} {self.what}; its message was not counted. Hint: if this process "
            "is the one that should run, let it register with a new run token; else stop it."
        )


class TooManyTasks(LowmarkError, RuntimeError):
    """A task wants to register, and there is no room for another.

    Attributes:
        task: who.
        most: how many a coordinator takes.
    """

    def __init__(self, task: str, most: int) -> None:
        super().__init__(task, most)
        self.task, self.most = task, most

    def __str__(self) -> str:
        return (
            f"task {self.task} was not registered: the coordinator has {self.most:,} tasks, which is all it takes. "
            "Hint: look in its status for tasks that nobody needs; else serve some of the jobs by another coordinator."
        )


class InvalidMessage(LowmarkError, ValueError):
    """A message that cannot have been meant.

    Attributes:
        message: its type.
        field: the field at fault.
        got: what it held (``repr``, cut).
        expected: what would have been accepted.
    """

    def __init__(self, message: str, field: str, got: str, expected: str) -> None:
        super().__init__(message, field, got, expected)
        self.message, self.field, self.got, self.expected = message, field, got, expected

    def __str__(self) -> str:
        return (
            f"{self.message}.{self.field}: expected {self.expected}, got {self.got}; the message was not counted. "
            "Hint: times are integers, microseconds since the epoch, and names are not empty."
        )
