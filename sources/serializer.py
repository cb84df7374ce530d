"""The format that most connectors need: msgpack of a dataclass, with a version."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["DataclassSerializer"]

ValueT = TypeVar("ValueT")


class DataclassSerializer(Generic[ValueT]):
    """Serializes values of one type, usually a frozen dataclass of plain fields.

    A field that is added with a default does not need a new version: older data are read with the default.

    Args:
        kind: their type, as `msgspec` understands it.
        version: the version that is written, 1 or more.

    >>> from lowmark.sources import SourceSplit
    >>> serializer = DataclassSerializer(SourceSplit)
    >>> serializer.deserialize(1, serializer.serialize(SourceSplit(split_id="a", start=3)))
    SourceSplit(split_id='a', start=3, stop=None, parents=())
    """

    def __init__(self, kind: type[ValueT], *, version: int = 1) -> None:
        self._kind, self._version = kind, version

    @property
    def version(self) -> int:
        return self._version

    def serialize(self, value: ValueT) -> bytes:
        return msgspec.msgpack.encode(value, order="sorted")

    def deserialize(self, version: int, data: bytes) -> ValueT:
        name = getattr(self._kind, "__name__", str(self._kind))
        if version > self._version:
            raise ValueError(
                f"{name}: the data are of version {version}, and this version of lowmark knows up to {self._version}. "
                "Hint: go on with the version that wrote them, or a later one."
            )
        try:
            value: Any = msgspec.msgpack.decode(data, type=self._kind)
        except msgspec.DecodeError as invalid:
            raise ValueError(f"{name}: these are no data of version {version}: {invalid}") from invalid
        return value  # type: ignore[no-any-return]
