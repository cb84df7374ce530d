"""The offset of a source in Spark's checkpoint. It fixes the rows of its batch, and restores the source.

    {"checkpoint": 17, "lowmark_source": "orders", "positions": {"orders/0": 1200, ...}, "state": "...", "token": "..."}

`positions` is for people: where each live split goes on. `state` restores the source, compressed: the enumerator's
snapshot, the live splits, and the slices of the batch that ends at this offset. So the offset at the end of a batch
alone fixes its rows, also of splits that were new in it or are gone after it; FLIP-27's coordinator and readers
are restored from one place, together with the data.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic

import msgspec
from lowmark.sources.api import SourceSplit, SplitT, VersionedSerializer
from lowmark.sources.serializer import UnreadableState, blames_bytes, told_briefly
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown
from lowmark.watermark.packed import pack, unpack

_FORMAT = 1


class UnreadableOffset(LowmarkError, ValueError):
    """An offset in a checkpoint is not one of this source, or was cut short."""

    source: str  # the source's name
    why: str  # the fault of the offset
    _fact = (
        'source "{source:.200}": its offset in the checkpoint cannot be read as one that lowmark wrote for this '
        "source: {why}"
    )
    _hint = "is this the checkpoint of another query? Else start with a new one."
    _cause_knows_best = True


class UnwritableSplit(LowmarkError, TypeError):
    """A split cannot be read back from an offset, so no offset with it may be written."""

    split: str  # id of the split
    value: str  # the split, as text
    cause: str  # type and text of the error
    _fact = "split {split!r} cannot be written into the checkpoint and read back: {cause}; the split is {value}"
    _hint = "its fields must have the types that its class declares, and int() and str() make Python's of numpy's."


def check_readable(split: SplitT, serializer: VersionedSerializer[SplitT]) -> None:
    """Raise UnwritableSplit if the serializer cannot write a split and read it back."""
    try:
        version = serializer.version
        read: object = serializer.deserialize(version, serializer.serialize(split))
    except Exception as cause:  # a connector's serializer may raise any error
        # The hint of an UnreadableState is about old checkpoints.
        why = cause.fact if isinstance(cause, UnreadableState) else described(cause)
        raise UnwritableSplit(split.split_id, shown(split), why) from cause
    if not isinstance(read, SourceSplit) or read.split_id != split.split_id:
        raise UnwritableSplit(split.split_id, shown(split), f"{shown(read)} was read")


@dataclass(frozen=True, slots=True)
class Placed(Generic[SplitT]):
    """A split, or a slice of a split, and the reader slot that reads it."""

    subtask: int
    split: SplitT


@dataclass(frozen=True, slots=True)
class BatchState(Generic[SplitT]):
    """The state in an offset."""

    coordinator: bytes
    live: tuple[Placed[SplitT], ...] = ()  # unfinished splits, each with `start` where it goes on after the batch
    slices: tuple[Placed[SplitT], ...] = ()
    time_us: int | None = None  # the event time up to which the batch takes every split; None: it is not cut by time


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    format: int
    split_version: int
    coordinator: bytes
    live: list[tuple[int, bytes]]
    slices: list[tuple[int, bytes]]
    time_us: int | None


class BatchOffset(msgspec.Struct, frozen=True):
    """One offset. The very first has neither token nor state.

    >>> BatchOffset.find(BatchOffset("orders").to_json()) == BatchOffset("orders")
    True
    """

    source: str = msgspec.field(name="lowmark_source")
    checkpoint: Annotated[int, msgspec.Meta(ge=0)] = 0  # number of batches planned so far, with this batch
    token: str | None = None  # of the planner that planned the batch; no run of Spark's
    positions: Mapping[str, int] = msgspec.field(default_factory=dict)  # where each live split goes on
    state: str = ""  # compressed; see `decode`

    @classmethod
    def encode(
        cls,
        source: str,
        checkpoint: int,
        token: str,
        state: BatchState[SplitT],
        serializer: VersionedSerializer[SplitT],
    ) -> BatchOffset:
        wire = _Wire(
            _FORMAT,
            serializer.version,
            state.coordinator,
            [(placed.subtask, serializer.serialize(placed.split)) for placed in state.live],
            [(placed.subtask, serializer.serialize(placed.split)) for placed in state.slices],
            state.time_us,
        )
        packed = base64.b64encode(pack(msgspec.msgpack.encode(wire), 1)).decode()
        positions = {placed.split.split_id: placed.split.start for placed in state.live}
        return cls(source, checkpoint, token, positions, packed)

    def decode(self, serializer: VersionedSerializer[SplitT]) -> BatchState[SplitT]:
        """Return the state. Raises `UnreadableOffset` if its bytes are not ours, or of a later version.

        An error of the serializer that is not about the bytes (`blames_bytes`) is passed on.
        """
        if not self.state:
            return BatchState(b"")
        try:
            wire = msgspec.msgpack.decode(unpack(base64.b64decode(self.state, validate=True)), type=_Wire)
            if wire.format != _FORMAT:
                raise ValueError(f"it has format {wire.format}, and this version of lowmark knows {_FORMAT}")
            return BatchState(
                wire.coordinator,
                self._splits(wire.live, wire.split_version, serializer),
                self._splits(wire.slices, wire.split_version, serializer),
                wire.time_us,
            )
        except Exception as broken:  # a connector's serializer may raise any error
            if not blames_bytes(broken):
                raise
            raise UnreadableOffset(self.source, told_briefly(broken)) from broken

    @staticmethod
    def _splits(
        packed: Sequence[tuple[int, bytes]], version: int, serializer: VersionedSerializer[SplitT]
    ) -> tuple[Placed[SplitT], ...]:
        return tuple(Placed(subtask, serializer.deserialize(version, data)) for subtask, data in packed)

    def to_json(self) -> dict[str, Any]:
        """Return the offset with sorted keys, because Spark compares offsets as text."""
        plain: dict[str, Any] = msgspec.to_builtins(self, order="sorted")
        return plain

    @classmethod
    def find(cls, offset: object) -> BatchOffset | None:
        """Read a source's offset, as a mapping or as JSON text; None if it is not ours.

        Raises `UnreadableOffset` if the offset is ours, but a field is missing or invalid.
        """
        if isinstance(offset, str) and '"lowmark_source"' in offset:
            try:
                offset = json.loads(offset)
            except (ValueError, RecursionError):
                return None
        if not isinstance(offset, Mapping) or not isinstance(source := offset.get("lowmark_source"), str):
            return None  # a topic may have that name, but then its partitions are no text
        for name in cls.__struct_encode_fields__:
            if name not in offset:
                raise UnreadableOffset(source, f"missing required field `{name}`")
        try:
            return msgspec.convert(offset, cls)
        except (ValueError, RecursionError) as wrong:
            raise UnreadableOffset(source, told_briefly(wrong)) from wrong
