"""Tells the tasks of a query the watermark by which Spark drops rows in their batch: see `transport/late.py`.

    before the first batch of a run   from the offset log, in the query's own thread, which waits for its listeners
    before each next batch            from the plan of the batch before, while a heartbeat reader waits for its answer

Stateful operators drop rows by the watermark of the batch before, and remove state by that of the batch itself. With
the setting `ALLOWS_MULTIPLE` off they use the latter for both. Spark decides the latter after Spark has asked
the heartbeat, so `wrap` refuses `late=`, `watermark=` and `late_to=` with that setting off.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from lowmark.integration.transport.late import PROPERTY
from lowmark.sources.spark.settings import is_true
from lowmark.watermark.moment import MILLISECOND_US

from .checkpoint import FarewellFiles

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

log = logging.getLogger("lowmark")

ALLOWS_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


def tell(query: JavaObject, files: FarewellFiles) -> None:
    """Tell a query's tasks the watermarks by which Spark drops rows in its newest batch and in the next one.

    Nothing is told if Spark drops by others, or if they cannot be read; the tasks that need them then fail in words.
    """
    try:
        execution = query.streamingQuery()
        conf = execution.sparkSessionForStream().conf()
        if is_true(conf.get(ALLOWS_MULTIPLE)):
            last = execution.lastExecution()
            told_ms = _of_log(files) if last is None else _of_plan(last)
            conf.set(PROPERTY, json.dumps({batch_id: ms * MILLISECOND_US for batch_id, ms in told_ms.items()}))
    except Exception as failed:  # noqa: BLE001  # py4j and file systems have no common base class
        log.warning("query %s: late rows cannot be told apart (%s)", query.id().toString(), failed)


def _of_plan(last: JavaObject) -> dict[int, int]:
    """The watermarks, in milliseconds, for the batch of a plan and for the next one."""
    batch_id, before = last.currentBatchId(), last.prevOffsetSeqMetadata()
    before_ms = 0 if before.isEmpty() else before.get().batchWatermarkMs()
    return {batch_id: before_ms, batch_id + 1: last.offsetSeqMetadata().batchWatermarkMs()}


def _of_log(files: FarewellFiles) -> dict[int, int]:
    """The same for the newest planned batch, which runs again if it was not committed, and for the next one."""
    batch_id = files.newest_batch()
    if batch_id is None:
        return {0: 0}
    entries = {each: files.entry(each) for each in (batch_id - 1, batch_id)}
    found = {each + 1: entry.watermark_ms or 0 for each, entry in entries.items() if entry is not None}
    return found if batch_id else {0: 0, **found}
