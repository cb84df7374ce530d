"""Queries that end without new rows (AvailableNow), on versions of Spark that do not tell the readers.

Spark before 4.2 does not tell a source in Python of the trigger. The service hears of the trigger when the query
begins (`spark/available_now.py`), and takes the next reader of each of its streams for a reader of that query. Belongs
to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ending:
    """A query that will end without new rows.

    Attributes:
        fault: why lowmark cannot make it end, None if it can.
    """

    fault: str | None

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
    """AvailableNow queries that have begun and whose heartbeat or planner has not asked yet."""

    def __init__(self) -> None:
        self._heartbeats: dict[str, Ending] = {}  # by stream id
        self._planners: dict[str, Ending] = {}

    def expect(self, streams: Sequence[str], fault: str | None) -> None:
        """Expect the readers of a query that begins.

        Args:
            streams: ids of its streams.
            fault: see `Ending`.
        """
        for stream_id in streams:
            self._heartbeats[stream_id] = self._planners[stream_id] = Ending(fault)

    def forget(self, streams: Sequence[str]) -> None:
        """Drop the expectation of a query that ended before its readers asked: the next reader is another query's."""
        for stream_id in streams:
            self._heartbeats.pop(stream_id, None)
            self._planners.pop(stream_id, None)

    def of_heartbeat(self, stream_id: str) -> Ending | None:
        """Return the ending of a heartbeat's query at the heartbeat's first question, once; None: the query goes on."""
        return self._heartbeats.pop(stream_id, None)

    def of_planner(self, stream_id: str) -> Ending | None:
        """Return the ending of a planner's query at the planner's first question, once; None: the query goes on."""
        return self._planners.pop(stream_id, None)
