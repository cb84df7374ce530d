"""What Spark's plan says about a DataFrame before and after it is wrapped. Reads plans, changes none.

Plans are walked through Py4J node by node. Node names are Spark's class names (`LogicalPlan.nodeName`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lowmark.integration.transport.heartbeat import FORMAT

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame

__all__ = [
    "analyzed",
    "count_sources",
    "count_watermarks",
    "has_heartbeat",
    "has_watermark",
    "heartbeats",
    "joins_streams",
    "kafka_columns",
    "stream_ids",
    "withholds_rows",
]


def analyzed(df: DataFrame) -> JavaObject:
    """Return the analyzed logical plan of a DataFrame."""
    return df._jdf.queryExecution().analyzed()


def nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield every node of a plan, parents first."""
    yield plan
    for child in _items(plan.children()):
        yield from nodes(child)


def has_watermark(plan: JavaObject) -> bool:
    """True if `withWatermark` stands anywhere in the plan."""
    return count_watermarks(plan) > 0


def has_heartbeat(plan: JavaObject) -> bool:
    """True if a heartbeat of a wrapped stream is among the plan's sources, of whichever service."""
    return any(
        leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == FORMAT
        for leaf in _items(plan.collectLeaves())
    )


def heartbeats(plan: JavaObject) -> list[tuple[str, list[int]]]:
    """(id of the stream, numbers of the sources before it) of each heartbeat in a plan, in the order of its leaves.

    The numbers are those of the sources in the same query without heartbeats.
    """
    found: list[tuple[str, list[int]]] = []
    native, own = 0, list[int]()
    for leaf in _items(plan.collectLeaves()):
        if not leaf.isStreaming():
            continue
        if leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == FORMAT:
            found.append((leaf.extraOptions().get("stream_id"), own))
            own = []
        else:
            own.append(native)
            native += 1
    return found


def count_watermarks(plan: JavaObject) -> int:
    """How many watermark nodes the plan has."""
    return sum(node.nodeName() == "EventTimeWatermark" for node in nodes(plan))


def count_sources(plan: JavaObject) -> int:
    """How many different streaming sources the plan reads: a source used twice is one source to Spark."""
    distinct: list[JavaObject] = []
    for leaf in _items(plan.collectLeaves()):
        if leaf.isStreaming() and not any(leaf.equals(known) for known in distinct):
            distinct.append(leaf)
    return len(distinct)


def joins_streams(plan: JavaObject) -> bool:
    """True if two streams are joined somewhere in the plan."""
    return any(
        node.nodeName() == "Join" and all(child.isStreaming() for child in _items(node.children()))
        for node in nodes(plan)
    )


def kafka_columns(plan: JavaObject) -> frozenset[str]:
    """Return those of the plan's output columns that are a Kafka source's own, unchanged and under their own name.

    A column that merely has the name "partition" must not be taken for Kafka's: its splits would be waited for.
    """
    kafka = {
        attribute.exprId().toString()
        for leaf in _items(plan.collectLeaves())
        if leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == "kafka"
        for attribute in _items(leaf.output())
    }
    return frozenset(a.name() for a in _items(plan.output()) if a.exprId().toString() in kafka)


def stream_ids(plan: JavaObject) -> list[str]:
    """Return the ids of the streams whose heartbeat is in a query's plan, of whichever service."""
    names = [node.name() for node in nodes(plan) if node.nodeName() == "CollectMetrics"]
    return [name.split(":")[1] for name in names if name.startswith("lowmark:") and name.endswith(":heartbeat")]


def withholds_rows(plan: JavaObject) -> bool:
    """True if a source may keep rows back that it has: Kafka with `minOffsetsPerTrigger` waits for more."""
    return any(
        leaf.nodeName().startswith("StreamingRelationV2")
        and leaf.sourceName() == "kafka"
        and leaf.extraOptions().containsKey("minOffsetsPerTrigger")
        for leaf in _items(plan.collectLeaves())
    )


def _items(seq: Any) -> list[JavaObject]:
    return [seq.apply(i) for i in range(seq.size())]
