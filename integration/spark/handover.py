"""A query that starts on a checkpoint of the other kind: wrapped on a native query's, or native on a wrapped query's.

Listeners hear of a start in the query's own thread, which waits, so no batch is planned yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import logical_plan
from .conflict import conflict

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

    from .checkpoint import FarewellFiles

log = logging.getLogger("lowmark")

_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"


def take_over_state(query: JavaObject, files: FarewellFiles) -> None:
    """Switch off the comparison of state schemas if a heartbeat lets more columns be null on an adopted checkpoint.

    A checkpoint records which columns of the state may be null, and Spark refuses a query in which more columns may be
    null. Above the union with the heartbeat every column may be null. In a native join the event time is never null
    either, because the join puts `ts IS NOT NULL` above the watermark. In a wrapped query the same filter goes below
    the union, so above the union the optimizer loses this fact. Both store rows of state alike. Spark still compares
    all other queries, because this keeps a changed query off unreadable state. The way back needs nothing: a column may
    be null in the state although it never is in the query.

    Source: `StateSchemaCompatibilityChecker`.
    """
    execution = query.streamingQuery()
    if logical_plan.may_be_null_only_here(execution.analyzedPlan()) and files.may_be_native():
        # This session belongs to the query alone, and plans its batches.
        execution.sparkSessionForStream().conf().set(_CHECK, "false")
        log.debug("query %s: its state may be a native query's, so Spark does not compare schemas", query.id())


def warn_of_forgotten_heartbeat(query: JavaObject, files: FarewellFiles) -> None:
    """Warn that a query, which has no heartbeat, starts on a wrapped query's checkpoint, which Spark may accept.

    Version 1 of the offset log has a line for each source, and Spark refuses another number of sources;
    `driver/failures.py` explains this. Version 2 has ids, and Spark ignores the line of the missing heartbeat. The
    query then goes by native Spark's watermark without a message from Spark.
    """
    try:
        entry = files.newest_entry()
        if entry is None or entry.version == 1 or entry.named or not entry.heartbeats:
            return
        why = conflict([offset for _, offset in entry.sources], [], [], {}, checkpoint=files.checkpoint)
    except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class
        log.debug("the checkpoint of a query that starts could not be looked at: %s", failed)
        return
    log.warning(
        "query %s: %s Spark does not notice it, because the checkpoint has version 2 of the offset log: the query goes "
        "on by native Spark's watermark, and rows of slow splits may be dropped.",
        query.id().toString(),
        why,
    )
