"""The conversations of a service over the same runs: one desk each for heartbeats, plans and Spark's events."""

from __future__ import annotations

from collections.abc import Mapping

from .aside import Beside
from .by_hand import ByHand
from .heartbeats import Heartbeats
from .listener_events import ListenerEvents
from .plans import Plans
from .reports import Reports
from .runs import Runs


class Desks:
    """All desks of a service. Belongs to the loop of the service, which calls them."""

    def __init__(self, runs: Runs, beside: Beside[Mapping[str, str]]) -> None:
        self.runs, self.plans, self.by_hand = runs, Plans(runs), ByHand(runs)
        self.reports = Reports(runs, self.plans)
        self.heartbeats = Heartbeats(runs, self.reports)
        self.events = ListenerEvents(runs, self.reports, beside)
