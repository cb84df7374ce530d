"""The options for cutting the batches of a source."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.coordinator import FailoverPolicy

from .rate import RateLimiterStrategy


@dataclass(frozen=True)
class PlanOptions:
    """A user's options for the batches of a source; None: no limit."""

    slots: int = 1  # number of readers, and so the largest number of tasks of a batch
    max_rows: int | None = None  # of a batch, roughly
    max_bytes: int | None = None  # of a batch, roughly
    max_slice_us: int | None = None  # the longest span of event time of a batch
    by_time: bool = True  # whether to take every split up to one event time, if the source can search by time
    future_guard_us: int | None = None  # rows further ahead of the clock than this come from bad clocks
    rate: RateLimiterStrategy | None = None
    # How long the search for the first splits may take: longer than a connector tries (`give_up_after`), because its
    # error has the cause.
    start_seconds: float = 90.0
    failover: FailoverPolicy | None = None  # None: the coordinator's default
    # How long one action of the enumerator may take, how long a source's own reader may bring nothing, and how long a
    # run that ends waits for a split that does not answer.
    timeout_seconds: float = 60.0
