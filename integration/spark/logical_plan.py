"""Reads Spark's plan of a DataFrame before and after it is wrapped; changes no plan.

Plans are walked through Py4J node by node. Node names are Spark's class names (`LogicalPlan.nodeName`)
without the package: a class that moves keeps its node name, and a renamed class is not found, without an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowmark.integration.transport.heartbeat import FORMAT

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_MEASURES = frozenset({"CollectMetrics", "MapInArrow"})
"""The nodes that measure the rows of a wrapped stream: in the JVM, in Python."""
ROW_BY_ROW = frozenset({"Project", "SubqueryAlias"})
"""The nodes out of which every row of their children comes."""


@dataclass(frozen=True, slots=True)
class InputPlan:
    """The facts in Spark's plan of a DataFrame that is about to be wrapped."""

    has_heartbeat: bool
    has_watermark: bool
    sources: int
    kafka_columns: frozenset[str]  # output columns that are a Kafka source's own, unchanged
    withholds_rows: bool  # nothing shows that an idle query's source has no rows
    keeps_rows: bool  # every row of its sources comes out of it


def nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield every node of a plan, parents first."""
    yield plan
    for child in items(plan.children()):
        yield from nodes(child)


def input_plan(plan: JavaObject) -> InputPlan:
    """Return the facts in the analyzed plan of a DataFrame."""
    leaves = items(plan.collectLeaves())
    kafka = [leaf for leaf in leaves if _reads(leaf, "kafka")]
    return InputPlan(
        has_heartbeat=any(_reads(leaf, FORMAT) for leaf in leaves),
        has_watermark=has_watermark(plan),
        sources=len(_sources(plan)),
        kafka_columns=_columns_of(kafka, plan),
        withholds_rows=any(leaf.extraOptions().containsKey("minOffsetsPerTrigger") for leaf in kafka),
        keeps_rows=all(node.nodeName() in ROW_BY_ROW or not items(node.children()) for node in nodes(plan)),
    )


def has_watermark(plan: JavaObject) -> bool:
    """Whether `withWatermark` stands anywhere in the plan."""
    return any(node.nodeName() == "EventTimeWatermark" for node in nodes(plan))


def may_be_null_only_here(plan: JavaObject) -> bool:
    """Whether columns of the state may be null beside a heartbeat that are never null in the native query.

    These are columns that are never null before `wrap`, and the event time of two streams that are joined.
    """
    for rows, _ in _wrapped(plan):  # above the measurement stand the columns that lowmark adds
        measured = next((node for node in nodes(rows) if node.nodeName() in _MEASURES), None)
        if measured is not None and any(map(_has_non_nullable, nodes(measured))):
            return True
    joins = (node for node in nodes(plan) if node.nodeName() == "Join")
    return any(all(child.isStreaming() for child in items(node.children())) for node in joins)


def heartbeats(plan: JavaObject) -> list[tuple[str, list[int]]]:
    """(id of the stream, numbers of the sources before it) of each heartbeat in a plan, in the order of its leaves.

    The numbers count the sources of the same query without heartbeats.
    """
    found: list[tuple[str, list[int]]] = []
    native, own = 0, list[int]()
    for leaf in _streaming_leaves(plan):
        if _reads(leaf, FORMAT):
            found.append((leaf.extraOptions().get("stream_id"), own))
            own = []
        else:
            own.append(native)
            native += 1
    return found


def source_kinds(plan: JavaObject) -> list[bool]:
    """Whether each place where a plan uses a source is a heartbeat, in the order of the leaves."""
    return [_reads(leaf, FORMAT) for leaf in _streaming_leaves(plan)]


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


def stream_sources(plan: JavaObject) -> dict[int, list[int]]:
    """Number of each heartbeat in a query -> numbers of its stream's sources, both as in the query's progress events.

    The sources stand beside the heartbeat, under one union. Their numbers need not precede the heartbeat's, because a
    source that is used again keeps the number of its first place.
    """
    sources = _sources(plan)
    return {
        _place(heartbeat, sources): sorted({_place(leaf, sources) for leaf in _streaming_leaves(rows)})
        for rows, heartbeat in _wrapped(plan)
    }


def is_max(policy: object) -> bool:
    """Whether the value of `WATERMARK_POLICY` means max: Spark takes the word in any case."""
    return str(policy).lower() == "max"


def fault_of(*, stacked: bool, watermarks: int, policy: str | None) -> str | None:
    """Say what breaks the low watermark of a running query; None: nothing does.

    Args:
        stacked: a watermark stands on top of another.
    """
    if stacked:
        return (
            "withWatermark stands on top of a wrapped stream, where it would replace the low watermark by the "
            "largest event time again. Hint: remove it; the strategy's bound takes its place."
        )
    if watermarks > 1 and is_max(policy):
        return (
            f"{WATERMARK_POLICY} is max, so the stream that is ahead would decide, and rows of the other would be "
            "dropped. Hint: set it to min; it is kept in the checkpoint, so the query needs a new one."
        )
    return None


def items(seq: Any) -> list[JavaObject]:
    """Return the elements of a Scala sequence."""
    return [seq.apply(i) for i in range(seq.size())]


def _wrapped(plan: JavaObject) -> Iterator[tuple[JavaObject, JavaObject]]:
    """Yield the rows of each wrapped stream, and its heartbeat: the only two children of one union."""
    for node in nodes(plan):
        if node.nodeName() == "Union":
            rows, *others = items(node.children())
            leaves = _streaming_leaves(others[0]) if len(others) == 1 else []
            if len(leaves) == 1 and _reads(leaves[0], FORMAT):
                yield rows, leaves[0]


def _has_non_nullable(node: JavaObject) -> bool:
    """Whether a column of a node is never null."""
    return any(not field["nullable"] for field in json.loads(node.schema().json())["fields"])


def _reads(leaf: JavaObject, source: str) -> bool:
    return bool(leaf.nodeName().startswith("StreamingRelationV2") and leaf.sourceName() == source)


def _columns_of(sources: Sequence[JavaObject], plan: JavaObject) -> frozenset[str]:
    """The output columns of a plan that are these sources' own: another "partition" must not be taken for Kafka's."""
    own = {attribute.exprId().toString() for source in sources for attribute in items(source.output())}
    return frozenset(a.name() for a in items(plan.output()) if a.exprId().toString() in own)


def _streaming_leaves(plan: JavaObject) -> list[JavaObject]:
    return [leaf for leaf in items(plan.collectLeaves()) if leaf.isStreaming()]


def _sources(plan: JavaObject) -> list[JavaObject]:
    """The streaming leaves in the order in which Spark numbers its sources: one that is used twice counts once."""
    distinct: list[JavaObject] = []
    for leaf in _streaming_leaves(plan):
        if _place(leaf, distinct) == len(distinct):
            distinct.append(leaf)
    return distinct


def _place(leaf: JavaObject, leaves: list[JavaObject]) -> int:
    return next((place for place, known in enumerate(leaves) if leaf.equals(known)), len(leaves))
