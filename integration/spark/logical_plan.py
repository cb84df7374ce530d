"""Reads Spark's plan of a DataFrame before and after it is wrapped; changes no plan.

Plans are walked through Py4J node by node. Node names are Spark's class names (`LogicalPlan.nodeName`)
without the package: a class that moves keeps its node name, and a renamed class is not found, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lowmark.integration.transport.heartbeat import FORMAT

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame


_ROW_BY_ROW = frozenset({"Project", "SubqueryAlias"})


def analyzed(df: DataFrame) -> JavaObject:
    """Return the analyzed logical plan of a DataFrame."""
    return df._jdf.queryExecution().analyzed()


def nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield every node of a plan, parents first."""
    yield plan
    for child in items(plan.children()):
        yield from nodes(child)


def has_watermark(plan: JavaObject) -> bool:
    """True if `withWatermark` stands anywhere in the plan."""
    return any(node.nodeName() == "EventTimeWatermark" for node in nodes(plan))


def keeps_rows(plan: JavaObject) -> bool:
    """True if every row of the plan's sources comes out of it: it only chooses and computes columns."""
    return all(node.nodeName() in _ROW_BY_ROW or not items(node.children()) for node in nodes(plan))


def has_heartbeat(plan: JavaObject) -> bool:
    """True if a heartbeat of any service's wrapped stream is among the plan's sources."""
    return any(_is_heartbeat(leaf) for leaf in items(plan.collectLeaves()))


def _is_heartbeat(leaf: JavaObject) -> bool:
    return bool(leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == FORMAT)


def heartbeats(plan: JavaObject) -> list[tuple[str, list[int]]]:
    """(id of the stream, numbers of the sources before it) of each heartbeat in a plan, in the order of its leaves.

    The numbers count the sources of the same query without heartbeats.
    """
    found: list[tuple[str, list[int]]] = []
    native, own = 0, list[int]()
    for leaf in _streaming_leaves(plan):
        if _is_heartbeat(leaf):
            found.append((leaf.extraOptions().get("stream_id"), own))
            own = []
        else:
            own.append(native)
            native += 1
    return found


def source_kinds(plan: JavaObject) -> list[bool]:
    """Whether each place where a plan uses a source is a heartbeat, in the order of the leaves."""
    return [_is_heartbeat(leaf) for leaf in _streaming_leaves(plan)]


def source_numbers(plan: JavaObject) -> frozenset[int]:
    """The number of each source in version 2 of the offset log, which is a place of it among the leaves.

    A source that is used twice has its first place if it is of Spark's API of version 2, as Kafka's, and its last place
    if it is of the first API, as a folder's.
    """
    leaves = _streaming_leaves(plan)
    numbers = set()
    for place, leaf in enumerate(leaves):
        others = leaves[place + 1 :] if leaf.nodeName() == "StreamingRelation" else leaves[:place]
        if not any(leaf.equals(other) for other in others):
            numbers.add(place)
    return frozenset(numbers)


def count_sources(plan: JavaObject) -> int:
    """Number of different streaming sources in the plan: Spark counts a source that is used twice once."""
    return len(_sources(plan))


def stream_sources(plan: JavaObject) -> dict[int, list[int]]:
    """Number of each heartbeat in a query -> numbers of its stream's sources, both as in the query's progress events.

    The sources stand beside the heartbeat, under one union. Their numbers need not precede the heartbeat's, because a
    source that is used again keeps the number of its first place.
    """
    sources = _sources(plan)
    found: dict[int, list[int]] = {}
    for node in nodes(plan):
        if node.nodeName() == "Union":
            rows, *others = (_streaming_leaves(child) for child in items(node.children()))
            if len(others) == 1 and len(others[0]) == 1 and _is_heartbeat(others[0][0]):
                found[_place(others[0][0], sources)] = sorted({_place(leaf, sources) for leaf in rows})
    return found


def _streaming_leaves(plan: JavaObject) -> list[JavaObject]:
    return [leaf for leaf in items(plan.collectLeaves()) if leaf.isStreaming()]


def _sources(plan: JavaObject) -> list[JavaObject]:
    """The distinct streaming leaves, in the order in which Spark numbers its sources."""
    distinct: list[JavaObject] = []
    for leaf in _streaming_leaves(plan):
        if _place(leaf, distinct) == len(distinct):
            distinct.append(leaf)
    return distinct


def _place(leaf: JavaObject, leaves: list[JavaObject]) -> int:
    return next((place for place, known in enumerate(leaves) if leaf.equals(known)), len(leaves))


def joins_streams(plan: JavaObject) -> bool:
    """True if two streams are joined somewhere in the plan."""
    return any(
        node.nodeName() == "Join" and all(child.isStreaming() for child in items(node.children()))
        for node in nodes(plan)
    )


def kafka_columns(plan: JavaObject) -> frozenset[str]:
    """Return the output columns that are a Kafka source's own, unchanged and under their own names.

    A column that merely has the name "partition" must not be taken for Kafka's: its splits would be waited for.
    """
    kafka = {
        attribute.exprId().toString()
        for leaf in items(plan.collectLeaves())
        if leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == "kafka"
        for attribute in items(leaf.output())
    }
    return frozenset(a.name() for a in items(plan.output()) if a.exprId().toString() in kafka)


def withholds_rows(plan: JavaObject) -> bool:
    """True if a source may keep available rows back: Kafka with `minOffsetsPerTrigger` waits for more."""
    return any(
        leaf.nodeName().startswith("StreamingRelationV2")
        and leaf.sourceName() == "kafka"
        and leaf.extraOptions().containsKey("minOffsetsPerTrigger")
        for leaf in items(plan.collectLeaves())
    )


def items(seq: Any) -> list[JavaObject]:
    """The elements of a Scala sequence."""
    return [seq.apply(i) for i in range(seq.size())]
