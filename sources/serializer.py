"""The format that most connectors need: msgpack of a dataclass, with a version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError

ValueT = TypeVar("ValueT")


class UnreadableState(LowmarkError, ValueError):
    """Bytes of a checkpoint that are not the split or state they should be."""

    kind: str  # the expected type
    fact: str  # the fault
    hint: str = "is this the checkpoint of another source? Else start with a new one."  # what to do
    _fact = "{kind}: {fact}"


class UnknownFieldType(LowmarkError, TypeError):
    """A field's type is a name that this process does not have, so that no value could be read back."""

    kind: str  # the type with the field
    cause: str  # the text of Python's error
    _fact = "{kind}: the type of a field is not known in this process: {cause}"
    _hint = "define the class in a module that imports the name, because a process of Spark's has no names of a script."


def blames_bytes(error: Exception) -> bool:
    """Whether an error of a deserializer means that its bytes are damaged.

    Every error does, except a `LowmarkError` that is no ValueError: a deferred source that cannot be made raises one,
    and its checkpoint is whole.

    >>> blames_bytes(UnreadableState("split", "cut short")), blames_bytes(KeyError("a"))
    (True, True)
    """
    return isinstance(error, ValueError) or not isinstance(error, LowmarkError)


def told_briefly(error: Exception) -> str:
    """Describe an error of reading: the text of a ValueError, because it is clear, otherwise also the type."""
    return str(error) if isinstance(error, ValueError) else described(error)


class DataclassSerializer(Generic[ValueT]):
    """Serializes values of a type that `msgspec` knows, usually a frozen dataclass of plain fields.

    `version`, 1 or more, is written. A new field with a default needs no new version, because older data are read with
    the default. Errors have `name`, by default that of the type.

    >>> from lowmark.sources import SourceSplit
    >>> serializer = DataclassSerializer(SourceSplit)
    >>> serializer.deserialize(1, serializer.serialize(SourceSplit(split_id="a", start=3)))
    SourceSplit(split_id='a', start=3, stop=None, parents=())
    """

    def __init__(self, kind: type[ValueT], *, version: int = 1, name: str = "") -> None:
        self._kind, self._name, self.version = kind, name or getattr(kind, "__name__", str(kind)), version
        try:
            hashable: Any = kind
            self._of_script = _of_script(hashable)
            msgspec.msgpack.Decoder(kind)  # looks up the types of all fields
        except NameError as unknown:
            raise UnknownFieldType(self._name, str(unknown)) from unknown
        self._take_notes_off()

    def serialize(self, value: ValueT) -> bytes:
        return msgspec.msgpack.encode(value, order="sorted")

    def deserialize(self, version: int, data: bytes) -> ValueT:
        """Read a value back. Raises UnreadableState."""
        if version > self.version:
            fact = f"the data are of version {version}, and this version of lowmark knows up to {self.version}"
            raise UnreadableState(self._name, fact, "go on with the version that wrote them, or a later one.")
        try:
            value: Any = msgspec.msgpack.decode(self._unpacked(data), type=self._kind)
        except (ValueError, RecursionError) as invalid:  # msgspec's errors are ValueErrors
            fact = f"these are no data of version {version}: {told_briefly(invalid)}"
            raise UnreadableState(self._name, fact) from invalid
        finally:
            self._take_notes_off()
        return value  # type: ignore[no-any-return]

    def _unpacked(self, data: bytes) -> bytes:
        """Undo what a subclass does in `serialize` after this class. Raises ValueError."""
        return data

    def _take_notes_off(self) -> None:
        """Take the notes of msgspec off the classes of a script, because Spark pickles these classes, and no notes."""
        for each in self._of_script:
            with suppress(AttributeError):  # the class has no notes, or another thread took the notes off
                delattr(each, _NOTES)


_NOTES = "__msgspec_cache__"


@lru_cache(64)  # a serializer is made for each split of a hybrid source
def _of_script(kind: Any) -> tuple[type, ...]:
    return tuple(_classes_of_script(kind, set()))


def _classes_of_script(kind: Any, seen: set[Any]) -> Iterator[type]:
    """Yield the dataclasses within a type that no other process can import: those of a script or a notebook."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and is_dataclass(each) and each not in seen:
            seen.add(each)
            module = sys.modules.get(each.__module__)
            if each.__module__ == "__main__" or getattr(module, each.__qualname__, None) is not each:
                yield each
            for hint in get_type_hints(each).values():
                yield from _classes_of_script(hint, seen)
        elif each is not kind:
            yield from _classes_of_script(each, seen)
