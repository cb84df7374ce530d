"""`Trigger.AvailableNow` on Spark 4.0 and 4.1, which do not know that a source in Python may take part in it.

There Spark runs a single batch, and the low watermark of its rows would be in force two runs later: a query that emits
nothing and says nothing. What Spark 4.2 does for such sources is done here instead, while Spark's own thread waits in
its listener, before its first batch: other sources are told to end at what is there now, the heartbeat (and a planner
of ours, through the service) is asked before each batch as with every other trigger, and batches follow each other
until nobody has anything new.

Source: `MicroBatchExecution.logicalPlan`, `.getTrigger`; listeners hear of a start in the thread of the query.
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

__all__ = ["AvailableNow", "Told"]

Told = Callable[[Sequence[str], "str | None"], None]

log = logging.getLogger("lowmark")

_READING = "org.apache.spark.sql.connector.read.streaming"
_OURS = "lowmark_"


class AvailableNow:
    """Makes queries of wrapped and read streams work with `Trigger.AvailableNow`, where Spark does not by itself.

    Args:
        spark: the session whose queries these are.
        tell: called with the ids of a query's streams, before its first batch: they are read until nothing is new;
            and with the reason, if that cannot be.
    """

    def __init__(self, spark: SparkSession, tell: Told) -> None:
        self._spark, self._tell = spark, tell

    def begin(self, event: JavaObject) -> None:
        """Take a query that starts, in Spark's own thread for it."""
        query = self._spark._jsparkSession.streams().get(event.id())
        if query is None:
            return  # it has ended already
        execution = query.streamingQuery()
        trigger = execution.trigger().getClass().getSimpleName().rstrip("$")
        if trigger == "OneTimeTrigger" and logical_plan.stream_ids(execution.analyzedPlan()):
            log.warning(
                "query %s: Trigger.Once runs one batch, and a low watermark is in force two batches after its rows, so "
                "windows that these rows close come out two runs later. Hint: use availableNow=True.",
                event.id().toString(),
            )
        if PASSES_LIMITS or trigger != "AvailableNowTrigger":
            return
        streams = logical_plan.stream_ids(execution.analyzedPlan())
        if not streams:
            return
        try:
            self._keep_going(execution)
        except Exception as failed:  # noqa: BLE001  # py4j's and the JVM's errors have no common base
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
        ours = _sources_of_ours(execution.logicalPlan())  # made now: sources and trigger are what it decides
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
    """What Spark puts around sources that know nothing of AvailableNow, where it is told to: they end at once."""
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
