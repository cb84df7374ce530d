"""Dataclasses on a wire: a codec, a table with the form of each class, and the methods of both wires.

A message is a map of its fields, in msgpack, with the tag of its class under ``type`` if the table gives it one. The
reader checks the values against the types of the fields, and an unknown field is an error. A field with its default
value is not written, so an older end understands a message that does not use a new field. A class of the protocol is
a message without change, and a new class takes a row. Worked example:

    Row(RetrieveLowWatermark, "Asked", together={"task": TaskId})

puts the fields of the class that `TaskId` also has into a map of their own:

    {"type": "Asked", "task": {"job_id": "job", "source_id": "orders", "task_id": "0"}, "timestamp": 7}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from operator import attrgetter
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from lowmark.integration.errors import MalformedMessage
from lowmark.watermark import LowmarkError

MessageT = TypeVar("MessageT")
Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Row:
    """The form of a class on the wire."""

    message: type
    tag: str | None = None  # the name of the class there; None: its place alone tells the class
    # Name -> dataclass: the fields that it shares with the class stand in a map, which a property of the class makes.
    together: Mapping[str, type] = field(default_factory=dict)
    apart: Mapping[str, type] = field(default_factory=dict)  # the fields of this field's value stand beside the others
    whole: Any = int  # what stands for `int` in the types of the fields


class Codec:
    """Writes and reads the messages of a table.

    A value of the right types may still be impossible, such as a negative drift. Then its class raises a
    `LowmarkError`, and reading raises it, too. In a list whose elements may be a `LowmarkError`, the error takes the
    value's place. In the table, a class comes after the classes that it holds.

    >>> @dataclass(frozen=True)
    ... class Renewed:
    ...     task: str
    ...     heard_low_us: int | None = None
    >>> codec = Codec(Row(Renewed, "Renew"))
    >>> msgspec.msgpack.decode(codec.encode(Renewed("orders")))
    {'type': 'Renew', 'task': 'orders'}
    >>> codec.decoder(Renewed)(codec.encode(Renewed("orders", 7)))
    Renewed(task='orders', heard_low_us=7)
    """

    def __init__(self, *rows: Row) -> None:
        self._structs: dict[type, type[msgspec.Struct]] = {}
        self._changes: dict[type, Callable[[Any], Any]] = {}  # a class into its struct, and a struct into its class
        for row in rows:
            self._add(row)

    def encode(self, message: object) -> bytes:
        """Encode a message of the table, or a value of a type that msgspec knows."""
        return msgspec.msgpack.encode(self._changed(message))

    def decoder(self, message: type[MessageT]) -> Callable[[bytes], MessageT]:
        """Return a reader of messages of one class, which need not be in the table.

        Raises (from the reader):
            MalformedMessage: the bytes are no such message; names the field.
            LowmarkError: a value is impossible.

        >>> class Ask(msgspec.Struct):
        ...     limit: int
        >>> asked = msgspec.msgpack.encode({"limit": "1"})
        >>> Codec().decoder(Ask)(asked)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lowmark.integration.errors.MalformedMessage: Ask: Expected `int`, got `str` - at `$.limit`; nothing ...
        """
        decode = msgspec.msgpack.Decoder(self._type_of(message, int)).decode

        def read(data: bytes) -> MessageT:
            try:
                read: MessageT = self._changed(decode(data))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                # The text may show a name of any length.
                raise MalformedMessage(message.__name__, f"{error!s:.300}") from None
            return read

        return read

    def _changed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._changed(each) for each in value]
        change = self._changes.get(type(value))
        return value if change is None else change(value)

    def _or_error(self, values: list[Any]) -> list[Any]:
        read = []
        for value in values:
            try:
                read.append(self._changed(value))
            except LowmarkError as error:
                read.append(error)
        return read

    # -- the table

    def _add(self, row: Row) -> None:
        places = sorted(_places(row), key=lambda place: bool(place.default))  # required fields first, as msgspec wants
        struct = msgspec.defstruct(
            row.message.__name__ if row.tag is None else row.tag,
            [(each.name, self._type_of(each.kind, row.whole), *each.default) for each in places],
            frozen=True,
            forbid_unknown_fields=True,
            omit_defaults=True,
            tag=row.tag,
        )
        self._structs[row.message] = struct
        self._changes |= {row.message: self._writer(struct, places), struct: self._reader(row)}

    def _writer(self, struct: type[msgspec.Struct], places: list[_Place]) -> Callable[[Any], msgspec.Struct]:
        values_of = _values(each.path for each in places)
        nested = [at for at, each in enumerate(places) if self._holds_messages(each.kind)]

        def write(message: Any) -> msgspec.Struct:
            values = [*values_of(message)]
            for at in nested:
                values[at] = self._changed(values[at])
            return struct(*values)

        return write

    def _reader(self, row: Row) -> Callable[[Any], Any]:
        hints = _hints(row.message)
        paths = list[str]()
        changes = list[tuple[slice, Callable[..., Any]]]()  # values that become one, and the function for it
        for name, kind in hints.items():
            first = len(paths)
            if name in row.apart:
                paths += _hints(row.apart[name])
                changes.append((slice(first, len(paths)), row.apart[name]))
                continue
            inside = (f"{at}.{name}" for at, part in row.together.items() if name in _hints(part))
            paths.append(next(inside, name))
            if get_origin(kind) is list and LowmarkError in get_args(get_args(kind)[0]):
                changes.append((slice(first, len(paths)), self._or_error))
            elif self._holds_messages(kind):
                changes.append((slice(first, len(paths)), self._changed))
        changes.reverse()  # backwards, so that earlier places stay valid
        values_of = _values(paths)

        def read(wire: Any) -> Any:
            values = [*values_of(wire)]
            for at, change in changes:
                values[at] = [change(*values[at])]
            return row.message(*values)

        return read

    def _holds_messages(self, kind: Any) -> bool:
        return kind in self._structs or any(map(self._holds_messages, get_args(kind)))

    def _type_of(self, kind: Any, whole: Any) -> Any:
        """The type that msgspec checks for the type of a field."""
        if kind is int:
            return whole
        if kind in self._structs:
            return self._structs[kind]
        if get_origin(kind) is list:
            return list[self._type_of(get_args(kind)[0], whole)]  # type: ignore[misc]
        if get_origin(kind) in (Union, UnionType):
            kinds = [self._type_of(each, whole) for each in get_args(kind) if each is not LowmarkError]
            return Union[tuple(kinds)]  # noqa: UP007  # of a number that is known here only
        return kind


class Method(Generic[Question, Answer]):
    """A method of a service of ours: its name, and the readers of its two messages, for both ends of both wires.

    Both ends read the bytes themselves, because the error of gRPC for such bytes names no field.
    """

    def __init__(self, service: str, name: str, question: type[Question], answer: type[Answer], codec: Codec) -> None:
        self.name, self.path = name, f"/{service}/{name}"
        self.decode_question, self.decode_answer = codec.decoder(question), codec.decoder(answer)


class _Place(NamedTuple):
    """A field on the wire, and the path to its value in a message."""

    name: str
    kind: Any
    default: tuple[Any, ...]  # holds the default if the field has one
    path: str


def _values(paths: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of the values at some paths, always as a tuple."""
    paths = [*paths]
    find = attrgetter(*paths)
    return find if len(paths) > 1 else lambda value: (find(value),)


def _places(row: Row) -> Iterator[_Place]:
    inside = set[str]()
    for name, kind in row.together.items():
        yield _Place(name, kind, (), name)
        inside |= _hints(kind).keys()
    hints = _hints(row.message)
    for each in fields(row.message):
        if each.name in row.apart:
            part = row.apart[each.name]
            for sub in fields(part):
                yield _Place(sub.name, _hints(part)[sub.name], _default(sub), f"{each.name}.{sub.name}")
        elif each.name not in inside:
            yield _Place(each.name, hints[each.name], _default(each), each.name)


def _default(each: Field[Any]) -> tuple[Any, ...]:
    if each.default_factory is not MISSING:
        return (msgspec.field(default_factory=each.default_factory),)
    return () if each.default is MISSING else (each.default,)


def _hints(kind: type) -> dict[str, Any]:
    """The fields of a dataclass, in order, and their types."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}
