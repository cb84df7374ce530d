"""Lets a wrapped query continue with the state of a native query.

A checkpoint records which columns of the state may be null, and Spark refuses a query in which more columns may be
null. In a native join the event time is never null, because the join puts `ts IS NOT NULL` above the watermark. In a
wrapped query the same filter goes below the union with the heartbeat, so above the union the optimizer loses this fact.
Both store rows of state alike. So Spark's comparison is switched off for a wrapped join whose state a native query may
have begun. Spark still compares all other queries, because this keeps a changed query off unreadable state.

The way back needs nothing: a column may be null in the state although it never is in the query.

Source: `StateSchemaCompatibilityChecker`; listeners hear of a start in the query's own thread, which waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import logical_plan
from .checkpoint import FarewellFiles

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")

_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"


def take_over(spark: SparkSession, query: JavaObject) -> None:
    """Switch off the comparison of state schemas for a wrapped join that starts on an adopted checkpoint."""
    execution = query.streamingQuery()
    plan = execution.analyzedPlan()
    if not logical_plan.stream_ids(plan) or not logical_plan.joins_streams(plan):
        return
    if FarewellFiles(spark, execution.resolvedCheckpointRoot()).may_be_native():
        # This session belongs to the query alone, and plans its batches.
        execution.sparkSessionForStream().conf().set(_CHECK, "false")
        log.debug("query %s: its state may be a native query's, so Spark does not compare schemas", query.id())
