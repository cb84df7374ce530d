"""The conversations of a service over the same runs: one desk each for heartbeats, plans and Spark's events."""

from __future__ import annotations

from collections.abc import Mapping

from .aside import Beside
from .by_hand import ByHand
from .ending_queries import EndingQueries
from .heartbeats import Heartbeats
from .listener_events import ListenerEvents
from .plans import Plans
from .reports import Reports
from .runs import Runs


class Desks:
    """All desks of a service. Belongs to the loop of the service, which calls them."""

    def __init__(self, runs: Runs, beside: Beside[Mapping[str, str]]) -> None:
        self.runs, self.ending = runs, EndingQueries()
        self.plans = Plans(self.runs, self.ending)
        self.reports = Reports(self.runs, self.plans)
        self.heartbeats = Heartbeats(self.runs, self.reports, self.ending)
        self.events = ListenerEvents(self.runs, self.reports, self.ending, beside)
        self.by_hand = ByHand(self.runs)
