"""What the service keeps of planners: their plans until the batches were reported, and events for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowmark.sources.planning.peer import Planned

__all__ = ["KnownPlanner", "Planners"]

_PLANS_KEPT = 8
_UNTIED_KEPT = 100
_LIVES_US = 30_000_000  # since it was heard; while it waits for its first splits it says so every 10 seconds


@dataclass
class KnownPlanner:
    """A planner, as the service knows it.

    Attributes:
        stream_id: what it reads.
        run: token of the heartbeat of the same query; None until a batch showed the two together.
        plans: what it planned last, by checkpoint, the newest last.
        events: what its readers sent to the enumerator, not taken yet.
        heard_us: when it last asked or told something, on the service's clock.
        planned_us: when it told the newest plan.
        reported: the checkpoint whose batch was reported last; None: of none of its own.
        available_now: its query ends when nothing is new, which Spark did not tell it.
    """

    stream_id: str
    run: str | None = None
    plans: dict[int, Planned] = field(default_factory=dict)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)
    available_now: bool = False
    heard_us: int = 0
    planned_us: int = 0
    reported: int | None = None

    @property
    def being_read(self) -> Planned | None:
        """The plan whose rows are being read, as far as is known: a batch follows its plan at once."""
        newest = next(reversed(self.plans.values()), None)
        if newest is None or not any(rows > 0 for rows in newest.rows.values()):
            return None
        return None if self.reported is not None and newest.checkpoint <= self.reported else newest

    @property
    def missing(self) -> str | None:
        """What it waits for while it has found no split."""
        return list(self.plans.values())[-1].missing if self.plans else None

    @property
    def trouble(self) -> str | None:
        """Which splits it cannot read at present, and why."""
        return list(self.plans.values())[-1].trouble if self.plans else None

    @property
    def complete(self) -> bool:
        """Whether it has said that no other splits will come."""
        return bool(self.plans) and list(self.plans.values())[-1].complete

    def is_news(self, planned: Planned) -> bool:
        """Whether a plan was not said before: a planner that got no answer says it again, also after a newer one."""
        newest = not self.plans or planned.checkpoint >= next(reversed(self.plans))
        return newest and self.plans.get(planned.checkpoint) != planned

    def keep(self, planned: Planned) -> bool:
        """Remember a plan until its batch was reported; the newest few. Returns whether it was news."""
        news = self.is_news(planned)
        if news:
            self.planned_us = self.heard_us
        self.plans = dict(sorted({**self.plans, planned.checkpoint: planned}.items())[-_PLANS_KEPT:])
        return news

    def take_events(self) -> list[tuple[int, int, bytes]]:
        taken, self.events = self.events, []
        return taken


class Planners:
    """The planners that a service has heard of. Belongs to its loop."""

    def __init__(self) -> None:
        self._planners: dict[str, KnownPlanner] = {}  # by token

    def get(self, token: str | None) -> KnownPlanner | None:
        return None if token is None else self._planners.get(token)

    def add(self, token: str, planner: KnownPlanner, is_over: Callable[[str], bool]) -> None:
        """Know a planner that asks for the first time, and forget those of queries that are over.

        Args:
            token: of the planner.
            planner: what is known of it.
            is_over: says of the token of a run whether its query has ended.
        """
        live = {each: known for each, known in self._planners.items() if known.run is None or not is_over(known.run)}
        untied = [each for each, known in live.items() if known.run is None]  # most of queries that failed at once
        for each in untied[: max(0, len(untied) - _UNTIED_KEPT)]:
            del live[each]
        self._planners = {**live, token: planner}

    def newest(self, stream_id: str, run: str | None, now_us: int) -> KnownPlanner | None:
        """Return the planner of a stream that was heard last; None if it was too long ago.

        Args:
            stream_id: the stream.
            run: token of the run that asks. The planner may not have been seen in a batch yet, and so be of no run.
            now_us: now, on the service's clock.
        """
        found = [each for each in self._planners.values() if each.stream_id == stream_id and each.run in (None, run)]
        newest = max(found, key=lambda planner: planner.heard_us, default=None)
        if newest is None or newest.being_read is not None:  # it is not asked for anything while a batch runs
            return newest
        return None if now_us - newest.heard_us > _LIVES_US else newest
