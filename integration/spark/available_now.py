"""`Trigger.AvailableNow` on Spark 4.0 and 4.1, which do not know it for sources in Python.

Spark would run a single batch, and the low watermark of its rows would be in force two runs later, so the query would
emit nothing without a message. This module does instead what Spark 4.2 does for such sources, while Spark's own thread
waits in its listener, before the first batch: other sources are told to end at the data that are there now, the
heartbeat (and a planner of ours, through the service) is asked before each batch as with every other trigger, and
batches follow each other until no source has new data.

Source: `MicroBatchExecution.logicalPlan`, `.getTrigger`; listeners hear of a start in the query's own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lowmark.sources.spark.versions import PASSES_LIMITS
from lowmark.watermark.printable import first_line

from .logical_plan import items

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

log = logging.getLogger("lowmark")

HearOfEnding = Callable[[Sequence[str], str | None], None]
"""Hears of a query with AvailableNow before its first batch where Spark does not tell its readers: the ids of its
streams, and the fault if lowmark cannot make the query end by itself."""

_READING = "org.apache.spark.sql.connector.read.streaming"
_OURS = "lowmark_"


def let_it_end(spark: SparkSession, query: JavaObject, streams: Sequence[str], tell: HearOfEnding) -> None:
    """Make `Trigger.AvailableNow` work for a query that starts on wrapped or read streams, and warn of `Trigger.Once`.

    Called in the thread in which Spark starts the query.
    """
    execution = query.streamingQuery()
    trigger = execution.trigger().getClass().getSimpleName().rstrip("$")
    if trigger == "OneTimeTrigger":
        log.warning(
            "query %s: Trigger.Once runs one batch, and a low watermark is in force two batches after its rows, so "
            "windows that these rows close come out two runs later; never in a job at a coordinator, because the job's "
            "low watermark comes after the only batch. Hint: use availableNow=True.",
            query.id().toString(),
        )
    if PASSES_LIMITS or trigger != "AvailableNowTrigger":
        return
    try:
        _keep_going(spark, execution)
    except Exception as failed:  # noqa: BLE001  # py4j and the JVM have no common base class
        tell(streams, f"{type(failed).__name__}: {first_line(failed)}")
    else:
        tell(streams, None)


def _keep_going(spark: SparkSession, execution: JavaObject) -> None:
    from py4j.java_gateway import is_instance_of

    jvm: Any = spark._jvm
    gateway = spark.sparkContext._gateway
    readers = getattr(jvm, execution.getClass().getPackage().getName())
    ours = _sources_of_ours(execution.logicalPlan())  # makes the lazy plan, which fixes sources and trigger
    limits = jvm.java.util.LinkedHashMap()
    for source in items(execution.uniqueSources().keySet().toSeq()):
        if any(source.equals(known) for known in ours):
            limits.put(source, getattr(jvm, _READING).ReadLimit.allAvailable())
            continue
        if not is_instance_of(gateway, source, f"{_READING}.SupportsTriggerAvailableNow"):
            # As Spark does with other sources: it ends at the current data.
            if is_instance_of(gateway, source, f"{_READING}.MicroBatchStream"):
                source = readers.AvailableNowMicroBatchStreamWrapper(source)
            else:
                source = readers.AvailableNowSourceWrapper(source)
        source.prepareForTriggerAvailableNow()
        limits.put(source, source.getDefaultReadLimit())
    getattr(execution, "uniqueSources_$eq")(jvm.PythonUtils.toScalaMap(limits))
    getattr(execution, "triggerExecutor_$eq")(readers.MultiBatchExecutor())


def _sources_of_ours(plan: JavaObject) -> list[JavaObject]:
    return [
        leaf.stream()
        for leaf in items(plan.collectLeaves())
        if leaf.nodeName().startswith("StreamingDataSourceV2") and leaf.relation().table().name().startswith(_OURS)
    ]
