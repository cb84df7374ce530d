"""What the service keeps of a planner: its plans until their batches were reported, and events for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lowmark.sources.planning.peer import Planned

__all__ = ["KnownPlanner"]
_PLANS_KEPT = 8


@dataclass
class KnownPlanner:
    """A planner, as the service knows it.

    Attributes:
        stream_id: what it reads.
        run: token of the heartbeat of the same query; None until a batch showed the two together.
        plans: what it planned last, by checkpoint, the newest last.
        events: what its readers sent to the enumerator, not taken yet.
        heard_us: when it last asked or told something, on the service's clock.
        available_now: its query ends when nothing is new, which Spark did not tell it.
    """

    stream_id: str
    run: str | None = None
    plans: dict[int, Planned] = field(default_factory=dict)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)
    available_now: bool = False
    heard_us: int = 0

    @property
    def missing(self) -> str | None:
        """What it waits for while it has found no split."""
        return list(self.plans.values())[-1].missing if self.plans else None

    @property
    def trouble(self) -> str | None:
        """Which splits it cannot read at present, and why."""
        return list(self.plans.values())[-1].trouble if self.plans else None

    def keep(self, planned: Planned) -> bool:
        """Remember a plan until its batch was reported; the newest few.

        Returns:
            Whether it is news. A planner that got no answer says it again, also after it has said a newer one.
        """
        newest = not self.plans or planned.checkpoint >= next(reversed(self.plans))
        news = newest and self.plans.get(planned.checkpoint) != planned
        self.plans = dict(sorted({**self.plans, planned.checkpoint: planned}.items())[-_PLANS_KEPT:])
        return news

    def take_events(self) -> list[tuple[int, int, bytes]]:
        taken, self.events = self.events, []
        return taken
