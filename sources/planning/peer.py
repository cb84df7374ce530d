"""Who is asked before a batch is planned, and told afterwards: both ways of the talk, and who it is with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Guidance", "PlanPeer", "Planned"]


@dataclass(frozen=True, slots=True)
class Guidance:
    """What others say before a batch is planned.

    Attributes:
        cap_us: event time that no row may reach, None where all may be read; what
            `WatermarkStrategy.first_time_beyond` makes of the cap of an alignment group, which is a watermark.
        hold: nothing may be read: somebody is waited for. What the next row is may be told all the same.
        paused: splits that may not be read now, because they are ahead of their group.
        observed_us: largest event time seen so far, by split.
        events: (subtask, serializer's version, event) that readers sent since.
        available_now: plan nothing beyond what is there when this is said first.
    """

    cap_us: int | None = None
    hold: bool = False
    paused: frozenset[str] = frozenset()
    observed_us: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[tuple[int, int, bytes]] = ()
    available_now: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known once a batch is planned, and before it is read.

    Attributes:
        checkpoint: which batch.
        splits: all live splits, and their parents.
        claims_us: by split, event time that it has passed when the batch is over: its next row is known to be there, or
            its system promises it.
        rows: rows in the batch by split, upper bounds.
        backlog_rows: rows unread after it, by split; missing means not known.
        finished: splits that end with this batch.
        paused: splits of which alignment lets nothing be read.
        next_us: event time of the next row, where a cap alone keeps the source from reading it; where several rows
            have to be read at once, of the last of them.
        metrics: the source's own.
        missing: what is waited for where no split was ever found, and since when; completes "no split is known yet: ".
        trouble: which splits cannot be read at present, since when and why; completes "waiting for the source: ".
        complete: no other splits will come.
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
    """Others who have a say: alignment, and those who measure what was read."""

    def ask(self, run: str) -> Guidance:
        """Return what holds for the next batch of the planner with this token."""
        ...

    def tell(self, run: str, planned: Planned) -> None:
        """Hear of a plan, before the batch is read. Repeated where nothing new was planned but something is known."""
        ...
