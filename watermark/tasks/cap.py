"""The cap of an alignment group: the announced value, and the only comparison with it.

A cap is a watermark on every wire. Only a planner of reading needs the time of rows, and
``WatermarkStrategy.first_time_beyond`` converts a cap to such a time: with a bound of 10 s, a cap of 12:00:00 lets rows
from before 12:00:10.002 be read. If each split has a bound of its own, the bound of the stream's holder counts for all
splits of the stream, so that the holder is not stopped by its own cap.

Caps have three kinds instead of two magic numbers, because in Flink "nobody takes part" is Long.MAX_VALUE, and adding
a drift to that number was a bug (FLINK-31632).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from lowmark.watermark.errors import InvalidMessage, shown
from lowmark.watermark.moment import format_time_us
from lowmark.watermark.protocol import TaskId


class CapKind(IntEnum):
    """The kind of a cap, the tightest first.

    HOLD: the group waits for a member, and no member with a watermark goes on. UP_TO: the cap has a number. FREE: no
        member takes part, so all members may go on.
    """

    HOLD = 0
    UP_TO = 1
    FREE = 2


@dataclass(frozen=True, slots=True, order=True)
class Cap:
    """The watermark up to which members may go on, inclusive; a tighter cap is smaller.

    >>> Cap.up_to(10).allows(10), Cap.up_to(10).allows(11), Cap.hold().allows(None)
    (True, False, True)
    >>> min(Cap.free(), Cap.up_to(0), Cap.hold()) == Cap.hold()
    True

    Raises:
        InvalidMessage: the number is missing for UP_TO, or given for another kind.
    """

    kind: CapKind
    us: int | None = None  # of event time; None unless the kind is UP_TO

    def __post_init__(self) -> None:
        if (self.us is not None) != (self.kind is CapKind.UP_TO):
            expected = "a number" if self.us is None else "None"
            raise InvalidMessage("Cap", "us", shown(self.us), f"{expected}, since its kind is {self.kind.name}")

    @classmethod
    def hold(cls) -> Cap:
        return cls(CapKind.HOLD)

    @classmethod
    def up_to(cls, us: int) -> Cap:
        return cls(CapKind.UP_TO, us)

    @classmethod
    def free(cls) -> Cap:
        return cls(CapKind.FREE)

    def allows(self, watermark_us: int | None) -> bool:
        """Whether a reader at this watermark may go on. Readers without a watermark always may go on."""
        if watermark_us is None or self.us is None:
            return watermark_us is None or self.kind is CapKind.FREE
        return watermark_us <= self.us

    def __str__(self) -> str:
        return {CapKind.HOLD: "hold", CapKind.UP_TO: format_time_us(self.us), CapKind.FREE: "no limit"}[self.kind]


@dataclass(frozen=True, slots=True)
class CapAnnounced:
    """The group tells a member how far to read.

    Attributes:
        version: grows with every announcement of the group; a receiver ignores announcements that are not newer than
            its last on the same connection. The version is at least the time of the announcement, so it also grows over
            a restart from an older snapshot, unless the clock went back.
        cap: the whole cap, so that the next announcement makes good a lost announcement.
    """

    group: str
    task: TaskId
    version: int
    cap: Cap
