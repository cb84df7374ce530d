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
    ├── TaskNotAway       (RuntimeError)  a task that is to be forgotten, and is not away
    └── InvalidMessage    (ValueError)    a message with a field that cannot be

Spark carries only the *text* of an error from a Python worker to the driver, so every message stands on its
own: what is wrong, what was expected, and a hint. Every error survives pickling, whatever its constructor takes.
"""
# An error is named after the fact it states; LowmarkError is the one to catch.

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tell type checkers what is made of a class, which `typing` has from Python 3.11 on."""
        return lambda kind: kind


# Looking for a similar name is a courtesy; among this many it stays instant.
_NAMES_COMPARED = 1_000
_LONGEST_SHOWN = 80  # characters of a bad value in an error
_LONGEST_LOOKED_THROUGH = 4_096
# User and password of an address, with a scheme or with a port. A number between a colon and a slash is a port.
_LOGIN = re.compile(
    r"""(?<=://)[^\s/@:'"]*:(?:[^\s/'"]*@|(?!\d{1,5}[/?])[^\s'"]*@)"""
    r"""|(?<![^\s'"=,;(])[^\s/@:'",;=(]+:[^\s/'",]+@(?=[\w.-]+:\d)"""
)


def without_login(text: str) -> str:
    """A text without users and passwords in addresses.

    >>> without_login("cannot read s3://AKIA:s3/cr3t@bucket/orders, nor https://me:p@ss@host:443")
    'cannot read s3://bucket/orders, nor https://host:443'
    >>> without_login("me:hunter2@broker:9092"), without_login("hdfs://node:8020/a@b")
    ('broker:9092', 'hdfs://node:8020/a@b')
    """
    return _LOGIN.sub("", text) if "@" in text else text


def shown(value: object) -> str:
    """A bad value as an error shows it: its ``repr``, without a password, cut. Of a number too long to write, the type.

    >>> shown("7 parsecs"), shown(10**5_000), len(shown("x" * 1_000_000))
    ("'7 parsecs'", 'a very long int', 83)
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # it must not hide what is wrong with the value
        return f"a very long {type(value).__name__}"
    text = without_login(text[:_LONGEST_LOOKED_THROUGH])  # before it is cut: half a password is one, too
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


@dataclass_transform(eq_default=False)
class LowmarkError(Exception):
    """Base of this library's errors: catch this one to catch them all.

    An error is declared like a dataclass: its fields, in the order of its constructor's arguments, which are its `args`
    too, and its text. `_fact` says what happened, where, and what was expected; `_hint` what to do. Both are templates
    of `str.format`, filled with the error's attributes. A class with a constructor of its own gets nothing from here.
    Addresses in it, in its fields and in its text, are without users and passwords.

    >>> class DoorLocked(LowmarkError, OSError):
    ...     door: str
    ...     tried: int = 1
    ...     _fact = "door {door!r} is locked, tried {tried} times"
    ...     _hint = "ring the bell."
    >>> DoorLocked("front", tried=3)
    DoorLocked('front', 3)
    >>> print(DoorLocked("front"))
    door 'front' is locked, tried 1 times. Hint: ring the bell.
    """

    _fact: ClassVar[str | None] = None
    _hint: ClassVar[str] = "{hint}"  # a field of that name; "" for none
    # Whether the text ends with the hint of a cause that is told in it: the cause knows best what to do.
    _cause_knows_best: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if inspect.get_annotations(cls) and "__init__" not in vars(cls):
            dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # it is one
            if isinstance(value := getattr(self, field.name), str):
                setattr(self, field.name, without_login(value))
        super().__init__(*(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]  # it is one

    def __str__(self) -> str:
        if self._fact is None:
            return without_login(super().__str__())
        attributes = _Attributes(self)
        fact, hint = self._fact.format_map(attributes), self._hint.format_map(attributes)
        if self._cause_knows_best:
            if "Hint: " in fact:
                return fact
            fact = fact.removesuffix(".")
        return f"{fact}. Hint: {hint}" if hint else fact

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the constructor: what it takes is not what `args` holds where it composes a text, has arguments by
        # name, or an OSError, which cuts `args` short.
        return _unpickled, (type(self), self.args), vars(self)


class _Attributes:
    """The attributes of an error by name, for its templates: fields, and properties that make a part of the text."""

    def __init__(self, error: LowmarkError) -> None:
        self._error = error

    def __getitem__(self, name: str) -> Any:
        return getattr(self._error, name)


def _unpickled(kind: type[LowmarkError], args: tuple[Any, ...]) -> LowmarkError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidDuration(LowmarkError, ValueError):
    """A value that is no length of time."""

    what: str  # the setting it was given for, such as "max drift"
    got: str  # the value as the caller wrote it (``repr``)
    reason: str  # what is wrong with it
    hint: str  # what to write instead
    _fact = "{what}: {got} is not a duration: {reason}"


class InvalidStrategy(LowmarkError, ValueError):
    """Settings of a strategy that cannot work together, or at all."""

    setting: str  # the method or field concerned
    got: str  # the value as the caller wrote it
    expected: str  # what would have been accepted
    hint: str  # what to do
    _fact = "{setting}: expected {expected}, got {got}"


class InvalidSplitId(LowmarkError, ValueError):
    """A split id of the wrong kind."""

    split: str  # the id (``repr``)
    expected: str  # what ids this stream takes
    _fact = "split id {split}: expected {expected}"
    _hint = "use either names (str) or hashes (int) for all the splits of one stream."


class InvalidWatermark(LowmarkError, ValueError):
    """A watermark outside the range of a Spark timestamp."""

    split: int | str  # the split that reported it
    watermark_us: int  # the value, microseconds since the epoch
    _fact = "watermark of split {split!r}: expected microseconds since the epoch in 64 bits, got {watermark_us}"
    _hint = "is the event time in nanoseconds?"


class DuplicateSplit(LowmarkError, ValueError):
    """A split was assigned although it is known already."""

    split: int | str  # its id
    _fact = "split {split!r} is assigned already"
    _hint = "remove() it first if its id is used again."


class UnknownSplit(LowmarkError, LookupError):
    """A report named a split that was never assigned."""

    split: int | str  # the id in the report
    known: int  # how many splits are assigned
    nearest: str | None = None  # the most similar name that is assigned, if any
    _fact = "split {split!r} was never assigned ({known} splits are)"
    _hint = "{_next}"

    @classmethod
    def among(cls, split: int | str, known: Collection[int | str]) -> UnknownSplit:
        """The error for ``split``, with the most similar of the ``known`` names in its hint."""
        names = [name for name in islice(known, _NAMES_COMPARED) if isinstance(name, str)]
        near = get_close_matches(split, names, n=1) if isinstance(split, str) else []
        return cls(split, len(known), near[0] if near else None)

    @property
    def _next(self) -> str:
        return "call assign() before the first report." if self.nearest is None else f"did you mean {self.nearest!r}?"


class FinishedSplit(LowmarkError, RuntimeError):
    """A split reported after it finished."""

    split: int | str  # its id
    _fact = "split {split!r} reported after it finished"
    _hint = "a source must call a split finished only when it can never deliver another row."


class CorruptSnapshot(LowmarkError, ValueError):
    """Bytes that are not a snapshot this version can restore."""

    reason: str  # what is wrong with them
    size: int  # how many bytes there were
    _fact = "cannot restore a coordinator from {size} bytes: {reason}"
    _hint = "pass the bytes of snapshot() unchanged, to the version of lowmark that wrote them."


class DisagreeingGroup(LowmarkError, ValueError):
    """A task asked for other alignment parameters than its group has."""

    group: str  # the group's name
    task: str  # who asked
    wanted: str  # for what
    member: str  # who is in the group already
    present: str  # with what
    _fact = "alignment group {group!r}: task {task} asks for {wanted}, but task {member} joined with {present}"
    _hint = "give every stream of the group the same parameters, or this one another group."


class UnknownTask(LowmarkError, LookupError):
    """A message of a task that is not known here: it never joined, or it left."""

    task: str  # who sent it
    where: str  # the group or coordinator that does not know it
    known: int  # how many tasks it does know
    _fact = "task {task} is not known to {where} ({known} tasks are)"
    _hint = "a task joins before it reports, and joins again after its lease ran out."


class InvalidReshard(LowmarkError, ValueError):
    """A reshard that cannot have happened."""

    parents: str  # the splits that were said to end (``repr``)
    children: str  # the splits that were said to go on (``repr``)
    expected: str  # what would have been accepted
    _fact = "reshard of {parents} into {children}: expected {expected}"
    _hint = "name the ids as the source does; the id of a split that ended is not used again."


class StaleRun(LowmarkError, RuntimeError):
    """A message of an older run of a task than the one that is registered, or of one that is over."""

    task: str  # who sent it
    run: str  # the token in the message
    what: str  # what the token is, completing "run r of task t <what>"
    _fact = "run {run!r} of task {task} {what}; its message was not counted"
    _hint = "if this process is the one that should run, let it register with a new run token; else stop it."


class TaskNotAway(LowmarkError, RuntimeError):
    """A task is to be forgotten because it is away for good, and it is not away."""

    task: str  # who
    fact: str  # what it is instead, one sentence without its full stop
    _fact = "task {task} is not away: {fact}"
    _hint = "`lowmark status --coordinator` shows who is away; a query that runs is stopped first."


class TooManyTasks(LowmarkError, RuntimeError):
    """A task wants to register, and there is no room for another."""

    task: str  # who
    most: int  # how many a coordinator takes
    _fact = "task {task} was not registered: the coordinator has {most:,} tasks, which is all it takes"
    _hint = "look in its status for tasks that nobody needs; else serve some of the jobs by another coordinator."


class InvalidMessage(LowmarkError, ValueError):
    """A message that cannot have been meant."""

    message: str  # its type
    field: str  # the field at fault
    got: str  # what it held (``repr``, cut)
    expected: str  # what would have been accepted
    _fact = "{message}.{field}: expected {expected}, got {got}; the message was not counted"
    _hint = "times are integers, microseconds since the epoch, and names are not empty."
