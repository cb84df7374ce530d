"""The conversations of a service over the same runs: one desk each for heartbeats, plans and Spark's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.spark.queries import Queries
from lowmark.watermark import NotifyNewLowWatermark

from .aside import Beside
from .by_hand import ByHand
from .cooperation import Cooperation
from .ending_queries import EndingQueries
from .heartbeats import Heartbeats
from .listener_events import ListenerEvents
from .plans import Plans
from .reports import Reports
from .runs import Runs

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import CoordinatorClient


class Desks:
    """All desks of a service. Belongs to the loop of the service, which calls them; `notify` as in `Runs`."""

    def __init__(
        self,
        queries: Queries,
        notify: Callable[[NotifyNewLowWatermark], None],
        client: CoordinatorClient | None = None,
        job: str | None = None,
        job_queries: int = 1,
        job_away_us: int | None = None,
        *,
        beside: Beside[Mapping[str, str]],
    ) -> None:
        clock = SteadyClock()
        cooperation = Cooperation(clock.now_us, client, job, job_queries, job_away_us)
        self.runs, self.ending = Runs(queries, clock, cooperation, notify), EndingQueries()
        self.plans = Plans(self.runs, self.ending)
        self.reports = Reports(self.runs, self.plans)
        self.heartbeats = Heartbeats(self.runs, self.reports, self.ending)
        self.events = ListenerEvents(self.runs, self.reports, self.ending, beside)
        self.by_hand = ByHand(self.runs)
