"""Queries that end when nothing is new (AvailableNow), where Spark does not tell their readers so.

Before Spark 4.2 a source in Python is not told of the trigger. The service hears of it when the query begins
(`spark/available_now.py`), and whichever reader asks next for one of its streams is that query's. Belongs to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ending", "EndingQueries"]


@dataclass(frozen=True, slots=True)
class Ending:
    """A query that will end when nothing is new.

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
    """Queries that have begun, and whose heartbeat or planner has yet to ask."""

    def __init__(self) -> None:
        self._heartbeats: dict[str, Ending] = {}  # by stream id
        self._planners: dict[str, Ending] = {}

    def expect(self, streams: Sequence[str], fault: str | None) -> None:
        """A query begins.

        Args:
            streams: ids of its streams.
            fault: see `Ending`.
        """
        for stream_id in streams:
            self._heartbeats[stream_id] = self._planners[stream_id] = Ending(fault)

    def forget(self, streams: Sequence[str]) -> None:
        """A query ended in whose place no reader has asked: those that ask next are another's."""
        for stream_id in streams:
            self._heartbeats.pop(stream_id, None)
            self._planners.pop(stream_id, None)

    def of_heartbeat(self, stream_id: str) -> Ending | None:
        """A heartbeat asks for the first time. Return what is known of its query, once; None if it goes on."""
        return self._heartbeats.pop(stream_id, None)

    def of_planner(self, stream_id: str) -> Ending | None:
        """Likewise for a planner."""
        return self._planners.pop(stream_id, None)
