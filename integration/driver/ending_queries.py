"""Queries that end without new rows (AvailableNow) on Spark before 4.2, which does not tell a source in Python so.

The service hears of the trigger when the query begins (`spark/available_now.py`), and takes the next reader of each of
its streams for a reader of that query. Belongs to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ending:
    """A query that will end without new rows."""

    fault: str | None  # why lowmark cannot make it end, None if it can

    def refusal(self, stream: str) -> str | None:
        """Say why the query must not run, None if it may."""
        if self.fault is None:
            return None
        return (
            f'stream "{stream}": Trigger.AvailableNow would run one batch and emit nothing, because Spark '
            f"before 4.2 does not let a source in Python take part, and lowmark could not mend it ({self.fault}). "
            "Hint: use a processing-time trigger, and end the query with processAllAvailable() and stop()."
        )


class EndingQueries:
    """AvailableNow queries that have begun, by stream id: the first question of a reader takes its entry away."""

    def __init__(self) -> None:
        self.of_heartbeats: dict[str, Ending] = {}
        self.of_planners: dict[str, Ending] = {}

    def expect(self, streams: Sequence[str], fault: str | None) -> None:
        """Expect the readers of a query that begins, by the ids of its streams; `fault` as in `Ending`."""
        for stream_id in streams:
            self.of_heartbeats[stream_id] = self.of_planners[stream_id] = Ending(fault)

    def forget(self, streams: Sequence[str]) -> None:
        """Drop the expectation of a query that ended before its readers asked: the next reader is another query's."""
        for stream_id in streams:
            self.of_heartbeats.pop(stream_id, None)
            self.of_planners.pop(stream_id, None)
