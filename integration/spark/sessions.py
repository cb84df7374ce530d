"""The boundary to Spark: the few things that a service needs of a session, a query, an event and a checkpoint.

`classic.py` has them for a driver with a JVM beside it, `connect.py` for a client of Spark Connect. `kinds.session_of`
chooses, and nothing else of a service asks which kind a session is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lowmark.integration.transport.driver_rpc import HeartbeatReply, HeartbeatRequest
    from lowmark.sources import Source
    from lowmark.watermark import WatermarkStrategy
    from pyspark.sql import DataFrame, SparkSession

    from .checkpoint import FarewellFiles
    from .client_checkpoint import ClientCheckpoint
    from .progress import Progress

WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True, slots=True)
class InputPlan:
    """The facts in Spark's plan of a DataFrame that is about to be wrapped."""

    has_heartbeat: bool
    has_watermark: bool
    sources: int
    kafka_columns: frozenset[str]  # output columns that are a Kafka source's own, unchanged
    withholds_rows: bool  # nothing shows that an idle query's source has no rows
    keeps_rows: bool  # every row of its sources comes out of it


class QueryEvent(Protocol):
    """An event of Spark's listener; its fields are read when they are asked for."""

    @property
    def query_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    @property
    def batch_id(self) -> int: ...

    @property
    def failure(self) -> str | None:
        """Spark's text of the error that ended a query; None: the query ended without an error."""

    def progress(self) -> Progress:
        """Return the progress of a batch. Raises `UnreadableReport` if a field is missing, or is not what it can be."""


class Query(Protocol):
    """One run of one query."""

    @property
    def run_id(self) -> str: ...

    @property
    def query_id(self) -> str:
        """Spark's id of the query, the same over restarts from one checkpoint."""

    @property
    def farewells(self) -> FarewellFiles | ClientCheckpoint: ...

    @property
    def name(self) -> str | None: ...

    @property
    def active(self) -> bool:
        """False once the query has ended; the event of its end comes a little later."""

    def newest(self, after: int | None = None) -> Progress | None:
        """Return the newest finished batch; None before the first, and if it is batch `after`."""

    def history(self) -> list[Progress]:
        """Return the batches that are still remembered, 100 by default, the oldest first."""

    def streams(self) -> list[str]:
        """Return the ids of the streams of any service whose heartbeat is in the query."""

    @property
    def heartbeats(self) -> list[tuple[str, list[int]]]:
        """(id of the stream, numbers of its sources, heartbeats not counted) of each heartbeat, in order."""

    def source_kinds(self) -> list[bool]:
        """Whether each place where the query uses a source is a heartbeat."""

    def source_numbers(self) -> frozenset[int]:
        """Return the number of each source in version 2 of the offset log."""

    def stream_sources(self) -> Mapping[int, Sequence[int]]:
        """Return the number of each heartbeat among the query's sources -> numbers of its stream's sources."""

    def observed(self) -> set[str]:
        """Return the names of the metrics that are observed in the query."""

    def tell_late(self) -> None:
        """Tell the tasks of the newest batch and of the next the watermarks by which Spark drops rows there."""

    def fault(self) -> str | None:
        """Say what was built on a wrapped DataFrame, as only a running query shows, and breaks the low watermark."""

    @property
    def failure(self) -> str | None:
        """Spark's text of the error that has ended the query; None without a known error."""

    @property
    def trouble(self) -> str | None:
        """A sentence on what keeps a query from its service; None: nothing does."""


def called(query: Query) -> str:
    """Return the name of a query, else its id."""
    return query.name or query.query_id


def fault_of(*, stacked: bool, watermarks: int, policy: str | None) -> str | None:
    """Say what breaks the low watermark of a running query; None: nothing does.

    Args:
        stacked: a watermark stands on top of another.
    """
    if stacked:
        return (
            "withWatermark stands on top of a wrapped stream, where it would replace the low watermark by the "
            "largest event time again. Hint: remove it; the strategy's bound takes its place."
        )
    if watermarks > 1 and policy == "max":
        return (
            f"{WATERMARK_POLICY} is max, so the stream that is ahead would decide, and rows of the other would be "
            "dropped. Hint: set it to min; it is kept in the checkpoint, so the query needs a new one."
        )
    return None


Enqueue = Callable[[str, QueryEvent], None]
"""Takes an event with its kind, "started", "progress", "idle" or "terminated", and returns at once."""
Answer = Callable[["HeartbeatRequest"], "HeartbeatReply"]
"""Answers a heartbeat reader."""
HearOfEnding = Callable[[Sequence[str], "str | None"], None]
"""Hears of a query with AvailableNow before its first batch where Spark does not tell its readers: the ids of its
streams, and the fault if lowmark cannot make the query end by itself."""


class Session(Protocol):
    """A session of Spark whose queries a service serves."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def application(self) -> str:
        """Spark's id of the application; for a client, the id of its session."""

    @property
    def ended(self) -> bool: ...

    def is_of(self, spark: object) -> bool:
        """Whether an object is this session, also under another Python object."""

    def require_driver(self, action: str) -> None:
        """Refuse an action that needs the driver's JVM or file systems. Raises `SessionUnfit`."""

    def check_workers(self, strategy: WatermarkStrategy, source: Source[Any, Any] | None = None) -> None:
        """Refuse a stream whose code Spark's workers cannot run. Raises `WorkersUnfit` or `SessionUnfit`."""

    def input_plan(self, df: DataFrame) -> InputPlan: ...

    def heartbeat_address(self, stream_id: str, name: str, service: str) -> str:
        """Return where the heartbeat reader of a stream asks, for a service that listens at `service`."""

    def listen(self, enqueue: Enqueue, keep: Callable[[Query], None], ending: HearOfEnding, answer: Answer) -> None:
        """Make the heartbeat's source known to the session, and hear of its queries from now on.

        Args:
            keep: called with each query that begins, before the query may end.
            answer: answers the heartbeat readers that cannot ask the service themselves.
        """

    def running(self) -> Iterable[Query]: ...

    def any_active(self) -> bool:
        """Whether a query runs; may be called from any thread. False if Spark is gone."""

    def stop_listening(self) -> None:
        """Stop to hear of queries. Spark may be gone already."""
