"""The peer of a planner, and the messages between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Guidance:
    """The answer of a peer before a batch is planned."""

    read_before_us: int | None = None  # the event time that no row may reach, made from the cap of an alignment group
    hold: bool = False  # nothing may be read, because the group waits for a member; the next row's time may be told
    paused: frozenset[str] = frozenset()  # splits that may not be read now, because they are ahead of their group
    observed_us: Mapping[str, int] = field(default_factory=dict)  # largest event time seen so far, by split
    events: Sequence[tuple[int, int, bytes]] = ()  # (subtask, serializer's version, event) since the last answer
    available_now: bool = False  # plan only rows that are present at the first answer with this flag


@dataclass(frozen=True, slots=True)
class Planned:
    """The facts about a batch that is planned but not read. Rows are upper bounds."""

    checkpoint: int
    splits: Mapping[str, tuple[str, ...]]  # all live splits, and their parents
    # By split, the event time that the split has passed after the batch, because its next row is known, or because its
    # system promises the time.
    claims_us: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)  # in the batch, by split
    backlog_rows: Mapping[str, int] = field(default_factory=dict)  # unread after the batch, by split; missing: unknown
    finished: tuple[str, ...] = ()
    paused: frozenset[str] = frozenset()  # splits that are not read, because of alignment or without an answer
    # Event time of the next row, if only a cap keeps the source from reading it; of the last row, if several rows have
    # to be read at once; of the largest row read before it, if it cannot be searched by time.
    next_us: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    missing: str | None = None  # why there is no plan, and since when; completes "no split is known yet: "
    # What cannot be read or found, since when and why; completes "waiting for the source: ".
    trouble: str | None = None
    complete: bool = False  # whether no other splits will come


class PlanPeer(Protocol):
    """The other end of a planner: alignment, and the measurement of read rows. `token` names the planner."""

    def ask(self, token: str) -> Guidance:
        """Guide the planner's next batch."""

    def tell(self, token: str, planned: Planned) -> None:
        """Take a plan before its batch is read. Called again without a new plan when new facts are known."""
