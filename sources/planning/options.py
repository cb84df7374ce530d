"""How the batches of a source are cut."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.sources.coordinator import FailoverPolicy

from .rate import RateLimiterStrategy

__all__ = ["PlanOptions"]


@dataclass(frozen=True)
class PlanOptions:
    """What a user may say of the batches of a source.

    Attributes:
        slots: how many readers there are, which is how many tasks a batch has at most.
        max_rows: rows in a batch, about; None: all there are.
        max_bytes: bytes in a batch, about; None: no limit.
        max_slice_us: event time that a batch spans at most; None: no limit.
        by_time: take every split up to one event time, where the source can search by time.
        future_guard_us: rows further ahead of the clock than this are bad clocks; None: there are no such rows.
        rate: how fast it is read at most; None: as fast as can be.
        start_seconds: how long the first splits may take to be found.
        failover: how often a failed enumerator is restored; None: as its coordinator does by default.
        timeout_seconds: how long the enumerator may take over one thing, and a source's own reader bring nothing.
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
