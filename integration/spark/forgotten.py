"""Warns of a native query on a wrapped query's checkpoint with version 2 of the offset log, which Spark accepts.

Version 1 has a line for each source, and Spark refuses another number of sources; `driver/failures.py` explains this.
Version 2 has ids, and Spark ignores the line of the missing heartbeat. The query then goes by native Spark's watermark
without a message from Spark.

Source: listeners hear of a start in the query's own thread, which waits, so no batch is planned yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import logical_plan
from .checkpoint import FarewellFiles
from .conflict import conflict

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")


def warn_of_forgotten_heartbeat(spark: SparkSession, query: JavaObject) -> None:
    """Warn if a query starts without the heartbeat that its checkpoint has."""
    try:
        execution = query.streamingQuery()
        if logical_plan.has_heartbeat(execution.analyzedPlan()):
            return
        files = FarewellFiles(spark, execution.resolvedCheckpointRoot())
        entry = files.newest_entry()
        if entry is None or entry.version == 1 or entry.named or not entry.heartbeats:
            return
        offsets = [offset or "" for _, offset in entry.sources]
        why = conflict(offsets, [], [], checkpoint=files.checkpoint)
    except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class
        log.debug("the checkpoint of a query that starts could not be looked at: %s", failed)
        return
    log.warning(
        "query %s: %s Spark does not notice it, because the checkpoint has version 2 of the offset log: the query goes "
        "on by native Spark's watermark, and rows of slow splits may be dropped.",
        query.id().toString(),
        why,
    )
