"""A segment of a stream as a split, and its lost bytes."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.api import SourceSplit
from lowmark.sources.kit.data_loss import KnownLosses

from .errors import PravegaDataLost

_EPOCH_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PravegaSplit(SourceSplit):
    """A segment of a stream; positions are its bytes, and lie between events.

    Pravega never uses a segment's number twice, even if a stream is deleted and made again.

    Attributes:
        segment: Pravega's 64 bits: the epoch in the upper half, the number in the lower.
        noted_from: the place, in the stream of marks, of the mark in force at its start, or of an earlier mark; used if
            the noted time is read.
        lost_before: the byte before which all lost bytes were counted by the planner, so no reader counts them again;
            0: none.
    """

    stream: str
    segment: int
    noted_from: int = 0
    lost_before: int = 0


def segment_name(segment: int) -> str:
    """Return a segment's name, in Pravega's form.

    >>> segment_name(3 << 32 | 17)
    '17.#epoch.3'
    """
    return f"{segment & (1 << _EPOCH_BITS) - 1}.#epoch.{segment >> _EPOCH_BITS}"


def segment_epoch(segment: int) -> int:
    """Return the number of scalings before a segment was made."""
    return segment >> _EPOCH_BITS


def split_of(
    stream: str, segment: int, start: int = 0, stop: int | None = None, parents: tuple[int, ...] = ()
) -> PravegaSplit:
    """Return the split of a segment.

    >>> split = split_of("orders", 1 << 32 | 2, parents=(0,))
    >>> split.split_id, split.parents
    ('orders/2.#epoch.1', ('orders/0.#epoch.0',))
    """
    return PravegaSplit(
        split_id=f"{stream}/{segment_name(segment)}",
        start=start,
        stop=stop,
        parents=tuple(f"{stream}/{segment_name(parent)}" for parent in sorted(parents)),
        stream=stream,
        segment=segment,
    )


def segment_of(split_id: str) -> tuple[str, int]:
    """Return stream and segment of a split's id.

    >>> segment_of("orders/2.#epoch.1")
    ('orders', 4294967298)
    """
    stream, _, name = split_id.rpartition("/")
    number, _, epoch = name.partition(".#epoch.")
    return stream, int(epoch) << _EPOCH_BITS | int(number)


def parent_segments(split: PravegaSplit) -> tuple[int, ...]:
    """Return the numbers of a split's predecessors.

    >>> parent_segments(split_of("orders", 1 << 32 | 2, parents=(0,)))
    (0,)
    """
    return tuple(segment_of(parent)[1] for parent in split.parents)


class PravegaLosses(KnownLosses):
    """The bytes of segments that are gone before they were read, counted as `lost_bytes`."""

    amount = "lost_bytes"

    def found(self, split: PravegaSplit, position: int, head: int | None, tail: int | None = None) -> None:
        """Raise PravegaDataLost for bytes from `position` up to `head` (None: all later ones), or count them once.

        Args:
            tail: where the segment ends, if that is before `position`.
        """
        until = min((each for each in (split.stop, head) if each is not None), default=None)
        lost = PravegaDataLost(split.split_id, position, head, tail)
        self.take_range(lost, split.split_id, position, until, told_to=split.lost_before)
