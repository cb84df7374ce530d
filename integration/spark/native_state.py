"""State that a native query began, and a wrapped one goes on with.

Spark keeps in a checkpoint which columns of its state may be null, and refuses a query in which more of them may. A
native join knows that its event time is never null, because it puts `ts IS NOT NULL` above the watermark; in a wrapped
query the same filter goes below the union with the heartbeat, above which the optimizer does not know it any more. Rows
of state are stored alike in both. So where a native query may have begun the state of a join, the wrapped one is not
compared; all other queries are, since that is what keeps a changed query off a state that it cannot read.

The other way round nothing is to do: a column may be null in the state that never is in the query.

Source: `StateSchemaCompatibilityChecker`; listeners hear of a start in the thread of the query, which waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import logical_plan
from .checkpoint import FarewellFiles

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

__all__ = ["take_over"]

log = logging.getLogger("lowmark")

_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"


def take_over(spark: SparkSession, event: JavaObject) -> None:
    """Let a query that starts go on with a native one's state, if it is a wrapped join on an adopted checkpoint.

    Args:
        spark: the session of the query.
        event: says that it starts.
    """
    query = spark._jsparkSession.streams().get(event.id())
    if query is None:
        return  # it has ended already
    execution = query.streamingQuery()
    plan = execution.analyzedPlan()
    if not logical_plan.stream_ids(plan) or not logical_plan.joins_streams(plan):
        return
    if FarewellFiles(spark, execution.resolvedCheckpointRoot()).may_be_native():
        # A session of this query's own, which its batches are planned in.
        execution.sparkSessionForStream().conf().set(_CHECK, "false")
        log.debug("query %s: its state may be a native query's, so Spark does not compare schemas", event.id())
