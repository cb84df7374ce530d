"""The boundary to Spark: the few things that a service needs of a session, a query, an event and a checkpoint.

`classic.py` describes them, and has them for a driver with a JVM beside it; `connect.py` has them for a client of Spark
Connect. `session_of` chooses, and nothing else of a service asks which kind a session is. `adopt` and `ship`, which
need no service, ask by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lowmark.sources.spark.source import is_connect

from .classic import ClassicSession, JavaEvent, RunningQuery
from .connect import ConnectSession
from .connect_query import ClientEvent, ConnectQuery
from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session: TypeAlias = ClassicSession | ConnectSession
Query: TypeAlias = RunningQuery | ConnectQuery
QueryEvent: TypeAlias = "JavaEvent | ClientEvent | UnheardEnd"


def session_of(spark: SparkSession) -> Session:
    """Return a session of Spark as the service sees it."""
    return ConnectSession(spark) if is_connect(spark) else ClassicSession(spark)


class UnheardEnd:
    """The end of a query, in place of Spark's event, which did not come."""

    batch_id = -1

    def __init__(self, query: Query) -> None:
        self.query_id, self.run_id, self.failure = query.query_id, query.run_id, query.failure

    def progress(self) -> Progress:
        raise AssertionError("an end has no progress")


def called(query: Query) -> str:
    """Return the name of a query, else its id."""
    return query.name or query.query_id
