"""The errors that this package raises on purpose.

Spark carries only the *text* of an error from a Python worker to the driver, so every message is complete: the fault,
the expected value, and a hint. Every error survives pickling, for any constructor. An error is named after the fact
that it states; users catch `LowmarkError`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Stand in for the decorator of `typing`, which Python 3.10 has not."""
        return lambda kind: kind


_LONGEST_SHOWN = 80  # characters of a bad value in an error
_LONGEST_LOOKED_THROUGH = 4_096
# User and password of an address, with a scheme or with a port. A number between a colon and a slash is a port.
_LOGIN = re.compile(
    r"""(?<=://)[^\s/@:'"]*:(?:[^\s/'"]*@|(?!\d{1,5}[/?])[^\s'"]*@)"""
    r"""|(?<![^\s'"=,;(])[^\s/@:'",;=(]+:[^\s/'",]+@(?=[\w.-]+:\d)"""
)


def without_login(text: str) -> str:
    """Remove users and passwords from the addresses in a text.

    >>> without_login("cannot read s3://AKIA:s3/cr3t@bucket/orders, nor https://me:p@ss@host:443")
    'cannot read s3://bucket/orders, nor https://host:443'
    >>> without_login("me:hunter2@broker:9092"), without_login("hdfs://node:8020/a@b")
    ('broker:9092', 'hdfs://node:8020/a@b')
    """
    return _LOGIN.sub("", text) if "@" in text else text


def shown(value: object) -> str:
    """Format a bad value for an error: its ``repr``, without a password, cut; for a very long number, its type.

    >>> shown("7 parsecs"), shown(10**5_000), len(shown("x" * 1_000_000))
    ("'7 parsecs'", 'a very long int', 83)
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a failing ``repr`` must not hide the error about the value
        return f"a very long {type(value).__name__}"
    text = without_login(text[:_LONGEST_LOOKED_THROUGH])  # before the cut, because half a password is secret too
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


@dataclass_transform(eq_default=False)
class LowmarkError(Exception):
    """The base of all errors of this library.

    An error is declared like a dataclass, by its fields and its text. The fields, in their order, are the arguments of
    its constructor and its `args`. `_fact` says what happened, where, and what was expected; `_hint` says what to do.
    Both are templates of `str.format`, filled with the error's attributes. A class with its own constructor handles its
    arguments itself. Users and passwords are removed from addresses in the fields and the text.

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
    _hint: ClassVar[str] = "{hint}"  # the field "hint"; "" for no hint
    # Whether the text ends with the hint of the cause that it mentions, because the cause has the better hint.
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
        if self._cause_knows_best and "Hint: " in fact:
            return fact
        if not hint:
            return fact
        end = "" if fact.endswith(".") and not fact.endswith("...") else "."  # a cause may end with a point, or be cut
        return f"{fact}{end} Hint: {hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle without the constructor, because its arguments differ from `args` if it composes a text, has keyword
        # arguments, or is of an OSError, which shortens `args`.
        return _unpickled, (type(self), self.args), vars(self)


class _Attributes:
    """The attributes of an error by name, for its templates: fields, and properties with parts of the text."""

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

    what: str  # the setting, such as "max drift"
    got: str  # the value as the caller wrote it (``repr``)
    reason: str
    hint: str  # a correct value
    _fact = "{what}: {got} is not a duration: {reason}"


class InvalidTime(LowmarkError, ValueError):
    """A value that is no time on the time line."""

    what: str  # the setting, such as "--past"
    got: str  # the value as the caller wrote it (``repr``)
    reason: str
    _fact = "{what}: {got} is not a time: {reason}"
    _hint = 'write the zone behind the time, as "2026-11-23T10:00Z" or "2026-11-23T11:00+01:00".'


class InvalidStrategy(LowmarkError, ValueError):
    """Settings of a strategy that cannot work together, or at all."""

    setting: str  # the method or field concerned
    got: str  # the value as the caller wrote it
    expected: str
    hint: str
    _fact = "{setting}: expected {expected}, got {got}"


class InvalidSplitId(LowmarkError, ValueError):
    """A split id of the wrong kind."""

    split: str  # the id (``repr``)
    expected: str  # the ids that the stream takes
    _fact = "split id {split}: expected {expected}"
    _hint = "use either names (str) or hashes (int) for all the splits of one stream."


class InvalidWatermark(LowmarkError, ValueError):
    """A watermark outside the range of a Spark timestamp."""

    split: int | str  # the split that reported it
    watermark_us: int  # the value, microseconds since the epoch
    _fact = "watermark of split {split!r}: expected microseconds since the epoch in 64 bits, got {watermark_us}"
    _hint = "is the event time in nanoseconds?"


class CorruptSnapshot(LowmarkError, ValueError):
    """Bytes that are no snapshot for this version."""

    reason: str  # the fault of the bytes
    size: int  # number of bytes
    _fact = "cannot restore a state from {size} bytes: {reason}"
    _hint = "pass the bytes of snapshot() unchanged, to the version of lowmark that wrote them."


class DisagreeingGroup(LowmarkError, ValueError):
    """A task asked for other alignment parameters than its group has."""

    group: str  # the group's name
    task: str  # the task that asked
    wanted: str  # the parameters that the task asked for
    member: str  # a task that is in the group already
    present: str  # the parameters of that member
    _fact = "alignment group {group!r}: task {task} asks for {wanted}, but task {member} joined with {present}"
    _hint = "give every stream of the group the same parameters, or this one another group."


class UnknownTask(LowmarkError, LookupError):
    """A message of an unknown task: the task never joined, or left."""

    task: str  # the task that sent the message
    where: str  # who does not know the task
    known: int  # number of tasks known there
    _fact = "task {task} is not known to {where} ({known} tasks are)"
    _hint = "a task joins before it reports, and joins again after its lease ran out."


class InvalidReshard(LowmarkError, ValueError):
    """A reshard that cannot have happened."""

    parents: str  # the splits that should end (``repr``)
    children: str  # the splits that should go on (``repr``)
    expected: str  # the accepted splits
    _fact = "reshard of {parents} into {children}: expected {expected}"
    _hint = "name the ids as the source does; the id of a split that ended is not used again."


class StaleRun(LowmarkError, RuntimeError):
    """A message of an older run than the registered run of a task, or of a run that is over."""

    task: str  # the task that sent the message
    token: str  # of the run in the message
    what: str  # the kind of the token, completing "run r of task t <what>"
    _fact = "run {token!r} of task {task} {what}; its message was not counted"
    _hint = "if this process is the one that should run, start its query again, else stop it."


class TaskNotAway(LowmarkError, RuntimeError):
    """A task that shall be forgotten is not away."""

    task: str  # the task
    fact: str  # the state of the task, one sentence without its full stop
    _fact = "task {task} is not away: {fact}"
    _hint = "`lowmark status --coordinator` shows who is away; a query that runs is stopped first."


class TooManyTasks(LowmarkError, RuntimeError):
    """A task cannot register, because the coordinator is full."""

    task: str  # the task
    most: int  # the largest number of tasks of a coordinator
    _fact = "task {task} was not registered: the coordinator has {most:,} tasks, which is all it takes"
    _hint = "look in its status for tasks that nobody needs; else serve some of the jobs by another coordinator."


class InvalidMessage(LowmarkError, ValueError):
    """A message with an invalid field."""

    message: str  # the type of the message
    field: str  # the invalid field
    got: str  # the value of the field (``repr``, cut)
    expected: str  # the accepted values
    _fact = "{message}.{field}: expected {expected}, got {got}; the message was not counted"
    _hint = "times are integers, microseconds since the epoch, and names are not empty."
