"""Dataclasses on a wire: a codec, a table of the classes, and the methods of both wires.

A message is a map of its fields, in msgpack, with the tag of its class under ``type`` if the table gives it one. The
reader checks the values against the types of the fields, and an unknown field is an error. A field with its default
value is not written, so an older end understands a message that does not use a new field. A class of the protocol is
a message without change, and a new class takes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from operator import attrgetter
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from lowmark.integration.errors import MalformedMessage
from lowmark.watermark import LowmarkError

MessageT = TypeVar("MessageT")
Question = TypeVar("Question")
Answer = TypeVar("Answer")
_Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """The form of a class on the wire."""

    message: type
    tag: str | None = None  # the name of the class there; None: its place alone tells the class
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
        self._changes: dict[type, _Change] = {}  # a class into its struct, and a struct into its class
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
        hints = get_type_hints(row.message, include_extras=True)
        struct = msgspec.defstruct(
            row.message.__name__ if row.tag is None else row.tag,
            [(each.name, self._type_of(hints[each.name], row.whole), *_default(each)) for each in fields(row.message)],
            frozen=True,
            forbid_unknown_fields=True,
            omit_defaults=True,
            tag=row.tag,
        )
        names = [each.name for each in fields(row.message)]
        inside: dict[str, _Change] = {name: self._changed for name in names if self._holds_messages(hints[name])}
        or_errors: dict[str, _Change] = {name: self._or_error for name in inside if _holds_errors(hints[name])}
        self._structs[row.message] = struct
        self._changes |= {
            row.message: _change(names, struct, inside),
            struct: _change(names, row.message, inside | or_errors),
        }

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


def _change(names: list[str], into: Callable[..., Any], inside: Mapping[str, _Change]) -> _Change:
    """Return a function that makes an object of another class with the same fields, and changes some values."""
    values_of = attrgetter(*names)
    changes = [(names.index(name), of) for name, of in inside.items()]

    def change(value: Any) -> Any:
        values = [*values_of(value)] if len(names) > 1 else [values_of(value)]
        for at, of in changes:
            values[at] = of(values[at])
        return into(*values)

    return change


def _holds_errors(kind: Any) -> bool:
    return get_origin(kind) is list and LowmarkError in get_args(get_args(kind)[0])


def _default(each: Field[Any]) -> tuple[Any, ...]:
    if each.default_factory is not MISSING:
        return (msgspec.field(default_factory=each.default_factory),)
    return () if each.default is MISSING else (each.default,)
