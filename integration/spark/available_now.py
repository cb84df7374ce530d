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

from . import logical_plan

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

Told = Callable[[Sequence[str], "str | None"], None]

log = logging.getLogger("lowmark")

_READING = "org.apache.spark.sql.connector.read.streaming"
_OURS = "lowmark_"


class AvailableNow:
    """Makes `Trigger.AvailableNow` work for queries of wrapped and read streams where Spark does not.

    Args:
        tell: called before a query's first batch with the ids of its streams, and with the fault if lowmark cannot make
            the query end by itself.
    """

    def __init__(self, spark: SparkSession, tell: Told) -> None:
        self._spark, self._tell = spark, tell

    def begin(self, query: JavaObject) -> None:
        """Prepare a query that starts, in Spark's own thread for it."""
        execution = query.streamingQuery()
        trigger = execution.trigger().getClass().getSimpleName().rstrip("$")
        if trigger == "OneTimeTrigger" and logical_plan.stream_ids(execution.analyzedPlan()):
            log.warning(
                "query %s: Trigger.Once runs one batch, and a low watermark is in force two batches after its rows, so "
                "windows that these rows close come out two runs later. Hint: use availableNow=True.",
                query.id().toString(),
            )
        if PASSES_LIMITS or trigger != "AvailableNowTrigger":
            return
        streams = logical_plan.stream_ids(execution.analyzedPlan())
        if not streams:
            return
        try:
            self._keep_going(execution)
        except Exception as failed:  # noqa: BLE001  # py4j and the JVM have no common base class
            self._tell(streams, f"{type(failed).__name__}: {str(failed).strip().splitlines()[0]}")
        else:
            self._tell(streams, None)

    def _keep_going(self, execution: JavaObject) -> None:
        from py4j.java_gateway import is_instance_of

        jvm: Any = self._spark._jvm
        gateway = self._spark.sparkContext._gateway
        place = execution.getClass().getPackage().getName()
        readers = jvm
        for part in place.split("."):
            readers = getattr(readers, part)
        ours = _sources_of_ours(execution.logicalPlan())  # makes the lazy plan, which fixes sources and trigger
        limits = jvm.java.util.LinkedHashMap()
        for source in _items(execution.uniqueSources().keySet().toSeq()):
            if any(source.equals(known) for known in ours):
                limits.put(source, getattr(jvm, _READING).ReadLimit.allAvailable())
                continue
            if not is_instance_of(gateway, source, f"{_READING}.SupportsTriggerAvailableNow"):
                source = _wrapper(readers, source, gateway)
            source.prepareForTriggerAvailableNow()
            limits.put(source, source.getDefaultReadLimit())
        getattr(execution, "uniqueSources_$eq")(jvm.PythonUtils.toScalaMap(limits))
        getattr(execution, "triggerExecutor_$eq")(readers.MultiBatchExecutor())


def _wrapper(readers: Any, source: JavaObject, gateway: Any) -> JavaObject:
    """Wrap a source that does not know AvailableNow, as Spark does with other sources: it ends at the current data."""
    from py4j.java_gateway import is_instance_of

    if is_instance_of(gateway, source, f"{_READING}.MicroBatchStream"):
        return readers.AvailableNowMicroBatchStreamWrapper(source)
    return readers.AvailableNowSourceWrapper(source)


def _sources_of_ours(plan: JavaObject) -> list[JavaObject]:
    return [
        leaf.stream()
        for leaf in _items(plan.collectLeaves())
        if leaf.nodeName().startswith("StreamingDataSourceV2") and leaf.relation().table().name().startswith(_OURS)
    ]


def _items(seq: Any) -> list[JavaObject]:
    return [seq.apply(i) for i in range(seq.size())]
