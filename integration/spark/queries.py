"""Spark's running queries, as the service sees them: their runs, reports and checkpoints.

Belongs to the service's loop, except for the listener's callback, which enqueues events and adds queries. Spark puts a
progress event into a query's buffer before it asks any source for new offsets, so the newest event is there when a
heartbeat asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .available_now import HearOfEnding
from .relay import Answer
from .sessions import Query, QueryEvent, Session


class Queries:
    """The queries of all sessions the service listens to.

    See `ClassicSession.listen` for the arguments.
    """

    def __init__(self, enqueue: Callable[[str, QueryEvent], None], ending: HearOfEnding, answer: Answer) -> None:
        self._enqueue, self._ending, self._answer = enqueue, ending, answer
        self._sessions: list[Session] = []
        self._running: dict[str, Query] = {}
        self._late: set[str] = set()  # ids of the streams with a column of late rows

    def listen_to(self, session: Session) -> Session:
        """Listen to a session's queries, and return the session as it is known.

        Every session has its own listener bus and its own registry of sources.
        """
        for known in self._sessions:
            if known.is_of(session.spark):
                return known
        session.listen(self._enqueue, self._begin, self._ending, self._answer)
        self._sessions.append(session)
        return session

    def find(self) -> None:
        """Take hold of started queries while they run, because Spark does not return an ended query."""
        for session in self._sessions:
            for query in session.running():
                self._keep(query)

    def tell_late_of(self, stream_id: str) -> None:
        """From now on tell queries on a stream, as soon as they start, which rows are late."""
        self._late = self._late | {stream_id}  # a new set, because Spark's thread may go through the old one

    def _begin(self, query: Query) -> None:
        """Take a query that begins, in Spark's thread, which starts the first batch after the return."""
        self._keep(query)
        if (streams := self._late) and not streams.isdisjoint(query.streams()):
            query.tell_late()

    def _keep(self, query: Query) -> None:
        self._running.setdefault(query.run_id, query)

    def get(self, run_id: str | None) -> Query | None:
        return None if run_id is None else self._running.get(run_id)

    def forget(self, run_id: str) -> None:
        self._running.pop(run_id, None)

    def __iter__(self) -> Iterator[Query]:
        return iter(tuple(self._running.values()))

    def close(self) -> None:
        """Stop listening. Spark may be gone already."""
        for session in self._sessions:
            session.stop_listening()
        self._sessions.clear()
