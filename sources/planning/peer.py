"""The peer of a planner, and what the two say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Guidance:
    """The answer of a peer before a batch is planned.

    Attributes:
        read_before_us: event time that no row may reach; None: no limit. `WatermarkStrategy.first_time_beyond` makes it
            from the cap of an alignment group, because a cap is a watermark.
        hold: nothing may be read, because the group waits for a member. The next row's time may be told all the same.
        paused: splits that may not be read now, because they are ahead of their group.
        observed_us: largest event time seen so far, by split.
        events: (subtask, serializer's version, event) that readers sent since the last answer.
        available_now: whether to plan only rows that are present at the first answer with this flag.
    """

    read_before_us: int | None = None
    hold: bool = False
    paused: frozenset[str] = frozenset()
    observed_us: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[tuple[int, int, bytes]] = ()
    available_now: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """The facts about a batch that is planned but not read.

    Attributes:
        splits: all live splits, and their parents.
        claims_us: by split, the event time that the split has passed after the batch, because its next row is known, or
            because its system promises the time.
        rows: rows in the batch by split, upper bounds.
        backlog_rows: unread rows after the batch, by split; missing means unknown.
        paused: splits that alignment keeps from being read.
        next_us: event time of the next row, if only a cap keeps the source from reading it; of the last row, if
            several rows have to be read at once.
        missing: the reason for having no plan, and since when; completes "no split is known yet: ".
        trouble: the splits that cannot be read at present, since when and why; completes "waiting for the source: ".
        complete: whether no other splits will come.
    """

    checkpoint: int
    splits: Mapping[str, tuple[str, ...]]
    claims_us: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    backlog_rows: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    paused: frozenset[str] = frozenset()
    next_us: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    missing: str | None = None
    trouble: str | None = None
    complete: bool = False


class PlanPeer(Protocol):
    """The other end of a planner: alignment, and the measurement of read rows. `token` names the planner."""

    def ask(self, token: str) -> Guidance:
        """Guide the planner's next batch."""

    def tell(self, token: str, planned: Planned) -> None:
        """Take a plan before its batch is read. Called again without a new plan when new facts are known."""
