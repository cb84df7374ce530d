"""Queries that end without new rows (AvailableNow) on Spark before 4.2, which does not tell a source in Python so.

The service hears of the trigger when the query begins (`spark/available_now.py`), and takes the next reader of each of
its streams for a reader of that query. Belongs to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence


class EndingQueries:
    """AvailableNow queries that have begun, by stream id: the first question of a reader takes its entry away."""

    def __init__(self) -> None:
        self.of_heartbeats: dict[str, str | None] = {}  # why lowmark cannot make the query end, None if it can
        self.of_planners: set[str] = set()

    def expect(self, streams: Sequence[str], fault: str | None) -> None:
        """Expect the readers of a query that begins, by the ids of its streams; `fault` says why it cannot end."""
        self.of_heartbeats |= dict.fromkeys(streams, fault)
        self.of_planners |= {*streams}

    def forget(self, streams: Sequence[str]) -> None:
        """Drop the expectation of a query that ended before its readers asked: the next reader is another query's."""
        for stream_id in streams:
            self.of_heartbeats.pop(stream_id, None)
            self.of_planners.discard(stream_id)
