"""The conversations of a service over the same runs: one desk each for reports, heartbeats and Spark's events."""

from __future__ import annotations

from collections.abc import Mapping

from .aside import Beside
from .heartbeats import Heartbeats
from .listener_events import ListenerEvents
from .reports import Reports
from .runs import Runs


class Desks:
    """All desks of a service. Belongs to the loop of the service, which calls them."""

    def __init__(self, runs: Runs, beside: Beside[Mapping[str, str]]) -> None:
        self.runs, self.reports = runs, Reports(runs)
        self.heartbeats = Heartbeats(runs, self.reports)
        self.events = ListenerEvents(runs, self.reports, beside)
