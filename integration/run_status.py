"""One query on a stream, as metrics and the command line see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowmark.watermark import StreamStatus

__all__ = ["RunStatus"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run as metrics see it: the stream's status, and what only the run knows. Times are on the service's clock.

    Attributes:
        token: names the run; two runs of one query have two.
        query: the query's name, or its id where it has none; None until the first batch tied them.
        status: where the stream stands in this query.
        emits: the stream has a watermark at all.
        unmeasured_batches: batches with rows but without a measurement.
        refused: the service ends the query, for a reason in the log.
        failed: the query ended with an error.
        ended: the query has ended; nothing of this will change any more.
        asked_at_us: when the heartbeat asked last.
        reported_at_us: when the last batch was reported, None before the first.
        seen_at_us: when Spark last said that the query lives: it finished a batch, or found nothing to do.
        source_metrics: of its source, where that is one of ours, by name.
    """

    token: str
    query: str | None
    status: StreamStatus
    emits: bool
    unmeasured_batches: int
    refused: bool
    failed: bool
    ended: bool
    asked_at_us: int
    reported_at_us: int | None
    seen_at_us: int
    source_metrics: Mapping[str, float] = field(default_factory=dict)
