"""The options for cutting the batches of a source."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.coordinator import FailoverPolicy

from .rate import RateLimiterStrategy


@dataclass(frozen=True)
class PlanOptions:
    """A user's options for the batches of a source.

    Attributes:
        slots: number of readers, and so the largest number of tasks of a batch.
        max_rows: the rough largest number of rows of a batch; None: all rows.
        max_bytes: the rough largest size of a batch, bytes; None: no limit.
        max_slice_us: the longest span of event time of a batch; None: no limit.
        by_time: whether to take every split up to one event time, if the source can search by time.
        future_guard_us: rows further ahead of the clock than this come from bad clocks; None: no guard.
        rate: the largest rate of reading; None: no limit.
        start_seconds: how long the search for the first splits may take.
        failover: how often a failed enumerator is restored; None: the coordinator's default.
        timeout_seconds: how long one action of the enumerator may take, how long a source's own reader may bring
            nothing, and how long a run that ends waits for a split that does not answer.
    """

    slots: int = 1
    max_rows: int | None = None
    max_bytes: int | None = None
    max_slice_us: int | None = None
    by_time: bool = True
    future_guard_us: int | None = None
    rate: RateLimiterStrategy | None = None
    start_seconds: float = 60.0
    failover: FailoverPolicy | None = None
    timeout_seconds: float = 60.0
