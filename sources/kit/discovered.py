"""The state of a `DiscoveringEnumerator`, and its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from lowmark.sources.api import SplitT
from lowmark.sources.serializer import DataclassSerializer, UnreadableState
from lowmark.watermark.packed import pack, unpack


@dataclass(frozen=True)  # no slots: a frozen generic with slots cannot be made as DiscoveredSplits[MySplit](...)
class DiscoveredSplits(Generic[SplitT]):
    """The state of a `DiscoveringEnumerator`.

    Attributes:
        discovered: whether the first discovery is done; splits found afterwards are late splits.
        assigned: ids that were given to a reader at some time, sorted.
        stamps: their stamps, in the same order; empty where the source has none.
        newest_stamp: the largest ever seen, None if there was none.
        pending: splits that no reader has yet, in the order in which they were found.
        oldest_stamp: `assigned` has all ids with this stamp or a larger one; those with a smaller one were assigned
            too, and are forgotten. None: nothing was forgotten by number.
        forgotten: how many of those there were at most, when splits were listed last.
        root: what the ids are relative to, for a source whose ids change with it, such as a folder; else "".
    """

    discovered: bool = False
    assigned: tuple[str, ...] = ()
    stamps: tuple[int, ...] = ()
    newest_stamp: int | None = None
    pending: tuple[SplitT, ...] = ()
    oldest_stamp: int | None = None
    forgotten: int = 0
    root: str = ""


class DiscoveredSerializer(Generic[SplitT]):
    """The format of `DiscoveredSplits`: msgpack, deflated, because ids resemble each other."""

    def __init__(self, split_type: type[SplitT]) -> None:
        self._plain = DataclassSerializer(DiscoveredSplits[split_type])  # type: ignore[valid-type]

    @property
    def version(self) -> int:
        return self._plain.version

    def serialize(self, value: DiscoveredSplits[SplitT]) -> bytes:
        return pack(self._plain.serialize(value), 6)

    def deserialize(self, version: int, data: bytes) -> DiscoveredSplits[SplitT]:
        if version > self.version:
            return self._plain.deserialize(version, data)  # raises with the reason
        try:
            plain = unpack(data)
        except ValueError as invalid:
            raise UnreadableState.broken("DiscoveredSplits", version, invalid) from invalid
        return self._plain.deserialize(version, plain)
