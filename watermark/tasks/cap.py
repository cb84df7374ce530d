"""The cap of an alignment group: what is announced, and the one comparison with it that there is.

A cap is a watermark, and stays one on every wire. Only a planner of reading needs a time of rows, and
``WatermarkStrategy.first_time_beyond`` makes it of the cap: with a bound of 10 s, a cap of 12:00:00 lets rows be read
from before 12:00:10.002.

Three kinds instead of two magic numbers: in Flink "nobody takes part" is Long.MAX_VALUE, and adding a drift to it
was a bug (FLINK-31632).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lowmark.watermark.errors import InvalidMessage, shown
from lowmark.watermark.protocol import TaskId


class CapKind(IntEnum):
    """What a cap is, the tightest first.

    HOLD: somebody is waited for, and nobody who has a watermark goes on. UP_TO: there is a number. FREE: nobody
        takes part, so everybody may go on.
    """

    HOLD = 0
    UP_TO = 1
    FREE = 2


@dataclass(frozen=True, slots=True, order=True)
class Cap:
    """The watermark up to which one may go on, inclusive; the tighter cap is the smaller one.

    >>> Cap.up_to(10).allows(10), Cap.up_to(10).allows(11), Cap.hold().allows(None)
    (True, False, True)
    >>> min(Cap.free(), Cap.up_to(0), Cap.hold()) == Cap.hold()
    True

    Attributes:
        kind: whether there is a number.
        us: the watermark, microseconds of event time; None unless the kind is UP_TO.

    Raises:
        InvalidMessage: the number is missing, or one too many.
    """

    kind: CapKind
    us: int | None = None

    def __post_init__(self) -> None:
        if (self.us is not None) != (self.kind is CapKind.UP_TO):
            expected = "a number" if self.us is None else "None"
            raise InvalidMessage("Cap", "us", shown(self.us), f"{expected}, since its kind is {self.kind.name}")

    @classmethod
    def hold(cls) -> Cap:
        """Wait: somebody has not spoken yet."""
        return cls(CapKind.HOLD)

    @classmethod
    def up_to(cls, us: int) -> Cap:
        """Read while the watermark is at most this one, microseconds."""
        return cls(CapKind.UP_TO, us)

    @classmethod
    def free(cls) -> Cap:
        """Read as far as you like."""
        return cls(CapKind.FREE)

    def allows(self, watermark_us: int | None) -> bool:
        """Whether a reader at this watermark may go on. One without may always: how else would it speak?"""
        if watermark_us is None or self.us is None:
            return watermark_us is None or self.kind is CapKind.FREE
        return watermark_us <= self.us

    def __str__(self) -> str:
        return {CapKind.HOLD: "hold", CapKind.UP_TO: f"{self.us} us", CapKind.FREE: "no limit"}[self.kind]


@dataclass(frozen=True, slots=True)
class CapAnnounced:
    """The group tells a member how far it may read.

    Attributes:
        group: the group's name.
        task: who is told.
        epoch: grows with every announcement of the group; a receiver ignores one that is not newer than what it
            has. It is no smaller than the time of the announcement, so it also grows over a restart from an older
            snapshot.
        cap: how far; all of it, so that a lost announcement is made good by the next.
    """

    group: str
    task: TaskId
    epoch: int
    cap: Cap
