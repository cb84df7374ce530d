"""The service's knowledge of planners: their plans until the batches are reported, and events for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowmark.sources.planning.peer import Planned

_PLANS_KEPT = 8
_UNTIED_KEPT = 100
_LIVES_US = 30_000_000  # after its last question; a planner that waits for its first splits asks every 10 seconds


@dataclass
class KnownPlanner:
    """A planner, as the service knows it."""

    stream_id: str
    run_token: str | None = None  # of the heartbeat of the same query; None until a batch showed both together
    plans: dict[int, Planned] = field(default_factory=dict)  # the newest ones, by checkpoint
    events: list[tuple[int, int, bytes]] = field(default_factory=list)  # of its readers, not taken by it yet
    available_now: bool = False  # its query ends when nothing is new, and Spark has not told the planner so
    heard_us: int = 0  # its last question or plan, on the service's clock
    planned_us: int = 0  # its newest plan
    reported: int | None = None  # the checkpoint of its newest reported batch

    @property
    def newest(self) -> Planned | None:
        return next(reversed(self.plans.values()), None)

    @property
    def unreported(self) -> Planned | None:
        """The newest plan, if its batch was not reported yet; else None."""
        newest = self.newest
        return None if newest is None or (self.reported is not None and newest.checkpoint <= self.reported) else newest

    @property
    def being_read(self) -> Planned | None:
        """The plan whose rows are being read, because a batch follows its plan at once; None: none is known."""
        unreported = self.unreported
        return None if unreported is None or not any(rows > 0 for rows in unreported.rows.values()) else unreported

    def is_news(self, planned: Planned) -> bool:
        """Whether a plan is new. A planner without an answer repeats its plan, possibly after a newer one."""
        newest = self.newest
        latest = newest is None or planned.checkpoint >= newest.checkpoint
        return latest and self.plans.get(planned.checkpoint) != planned

    def keep(self, planned: Planned) -> None:
        if self.is_news(planned):
            self.planned_us = self.heard_us
        self.plans = dict(sorted({**self.plans, planned.checkpoint: planned}.items())[-_PLANS_KEPT:])

    def take_events(self) -> list[tuple[int, int, bytes]]:
        taken, self.events = self.events, []
        return taken


class Planners:
    """The planners that have asked a service. Belongs to its loop."""

    def __init__(self) -> None:
        self._planners: dict[str, KnownPlanner] = {}  # by token

    def get(self, token: str | None) -> KnownPlanner | None:
        return None if token is None else self._planners.get(token)

    def add(self, token: str, planner: KnownPlanner, is_over: Callable[[str], bool]) -> None:
        """Add a planner, and forget those of ended queries; `is_over` tells the end of a query by its run's token."""
        live = {
            each: known
            for each, known in self._planners.items()
            if known.run_token is None or not is_over(known.run_token)
        }
        # Most planners without a run are of queries that failed at once.
        untied = [each for each, known in live.items() if known.run_token is None]
        for each in untied[: max(0, len(untied) - _UNTIED_KEPT)]:
            del live[each]
        self._planners = {**live, token: planner}

    def newest(self, stream_id: str, run_token: str | None, now_us: int) -> KnownPlanner | None:
        """Return the planner that was heard last, among that of a run and those that no batch has tied to a run yet.

        None: there is none, or it was heard too long ago.
        """
        mine = [each for each in self._planners.values() if each.stream_id == stream_id]
        found = [each for each in mine if each.run_token in (None, run_token)]
        newest = max(found, key=lambda planner: planner.heard_us, default=None)
        if newest is None or newest.being_read is not None:  # a planner asks nothing while a batch runs
            return newest
        return None if now_us - newest.heard_us > _LIVES_US else newest
