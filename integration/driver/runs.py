"""All runs of all streams of a service, and the only way by which a change of a run reaches others.

Each desk (`desks.py`) changes a run and then calls `Runs.after`. Belongs to the loop of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.spark.queries import Queries
from lowmark.integration.spark.sessions import called
from lowmark.watermark import LowmarkError, NotifyNewLowWatermark

from .cooperation import Cooperation
from .known_planner import Planners
from .marking import Marking
from .passing import Passing
from .stream import Streams
from .stream_run import StreamRun

Run = TypeVar("Run", bound=StreamRun)

_ENDED_RUNS_KEPT = 100


class KeptRuns(Generic[Run]):
    """Runs in the order in which they began, without old ended ones, because a driver may start queries for months."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}  # by token

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._runs.values()))

    def get(self, token: str | None) -> Run | None:
        return None if token is None else self._runs.get(token)

    def of_query(self, run_id: str) -> list[Run]:
        return [run for run in self if run.run_id == run_id]

    def keep(self, run: Run) -> None:
        self._runs[run.token] = run
        newest = {(each.stream.name, each.query): token for token, each in self._runs.items()}
        ended = [token for token, each in self._runs.items() if each.ended]
        ended.sort(key=set(newest.values()).__contains__)  # a sink stays as the newest run of its query has left it
        for token in ended[: max(0, len(ended) - _ENDED_RUNS_KEPT)]:
            del self._runs[token]


class EndingQueries:
    """AvailableNow queries on Spark before 4.2, which does not tell a source in Python that its query ends by itself.

    The service hears of the trigger when the query begins (`spark/available_now.py`), and takes the next reader of each
    of its streams for a reader of that query: its first question takes the entry away.
    """

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


class Runs(KeptRuns[StreamRun]):
    """The runs of a service.

    Args:
        notify: called with every new low watermark; must not block.
    """

    def __init__(
        self,
        queries: Queries,
        clock: SteadyClock,
        cooperation: Cooperation,
        notify: Callable[[NotifyNewLowWatermark], None],
    ) -> None:
        super().__init__()
        self.queries, self.clock, self.cooperation = queries, clock, cooperation
        self.streams, self.planners, self.ending = Streams(), Planners(), EndingQueries()
        self.passing = Passing()
        self.markings: dict[str, Marking] = {}  # by the name of the stream
        self.could_not_begin: dict[str, str] = {}  # by the name of the stream, why; until a query begins
        self._notify = notify

    def tie(self, run: StreamRun, query_id: str, run_id: str, query_name: str | None) -> None:
        """Tie a run to its query, and give earlier runs of the query its present name, because others look by name."""
        run.tie(query_id, run_id, query_name)
        for each in self:
            if each.query_id == query_id:
                each.query_name = query_name

    def readers(self, name: str) -> tuple[str, ...]:
        """Names, or else ids, of the queries that read a stream now."""
        stream = self.streams.named(name)
        if stream is None:
            return ()
        self.queries.find()
        reading = [query for query in self.queries if query.active and stream.stream_id in query.streams()]
        return tuple(map(called, reading))

    def known(self) -> Iterator[StreamRun]:
        """The runs of streams that are not released, without ended runs of an unknown query."""
        return (run for run in self if run.stream.stream_id in self.streams and not run.of_nobody)

    def after(self, run: StreamRun, now_us: int) -> None:
        """Tell listeners, group and job of a run about a change of the run.

        A refused query says nothing more to others, because the next answer to its heartbeat ends the query.
        """
        self.passing.look(self.known(), run.stream.name)
        for new_low in run.take_news():
            if not run.shares:
                self._notify(new_low)
        if run.refusal is None and self.cooperation.report(run) and (low_us := run.low_watermark_us) is not None:
            self._notify(NotifyNewLowWatermark(run.stream.stream_id, run.stream.name, run.token, now_us, low_us))

    def refuse(self, token: str, refused: LowmarkError) -> None:
        """End the query of a run that the coordinator refused; otherwise its low watermark would hold for ever."""
        run = self.get(token)
        if run is not None and not run.ended:
            run.refusal = f'stream "{run.stream.name}": {refused}'
