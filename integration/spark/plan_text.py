"""Reads Spark's plan from the text of `explain`, because a client of Spark Connect gets only this text.

    == Analyzed Logical Plan ==
    split: bigint, ts: timestamp
    ~Project [(value#2L % cast(3 as bigint)) AS split#3L, timestamp#1 AS ts#4]
    +- ~StreamingRelationV2 org.apache...RateStreamProvider@750b418d, rate, org...@6e2d164a, [], [timestamp#1, value#2L]

Each level is indented by three characters. `~` marks what is streaming.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lowmark.integration.transport.heartbeat import FORMAT

from .sessions import InputPlan

__all__ = ["Node", "input_plan", "nested_watermarks", "nodes", "watermarks"]

_NODE = re.compile(r"(?P<indent>[ :+-]*)(?P<streams>~?)(?P<name>[A-Za-z]\w*)(?P<rest>.*)")
_SOURCE = re.compile(r" \S+, (?P<source>\S+), ")
_ROW_BY_ROW = frozenset({"Project", "SubqueryAlias"})


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a plan.

    Attributes:
        depth: number of its parents.
        name: Spark's class of it.
        rest: the text behind the name.
        streams: whether it is streaming.
    """

    depth: int
    name: str
    rest: str
    streams: bool

    @property
    def source(self) -> str | None:
        """The format of a streaming source; None for a node of another kind."""
        if not self.name.startswith("StreamingRelation"):
            return None
        found = _SOURCE.match(self.rest)
        return "" if found is None else found["source"]


def nodes(explained: str) -> list[Node]:
    r"""Return the nodes of the analyzed plan in a text of `explain(extended=True)`, parents first.

    >>> text = "== Analyzed Logical Plan ==\na: int\n~Project [a#1]\n+- ~Union false, false\n== Optimized"
    >>> [(node.depth, node.name) for node in nodes(text)]
    [(0, 'Project'), (1, 'Union')]
    """
    _, _, behind = explained.partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = behind.partition("\n== ")
    found = []
    for line in plan.splitlines()[1:]:
        matched = _NODE.fullmatch(line)
        if matched is not None:
            depth = len(matched["indent"]) // 3
            found.append(Node(depth, matched["name"], matched["rest"], bool(matched["streams"])))
    return found


def input_plan(plan: Sequence[Node]) -> InputPlan:
    """Return the facts in a plan without a Kafka source."""
    sources = [node for node in plan if node.source is not None]
    return InputPlan(
        has_heartbeat=any(node.source == FORMAT for node in sources),
        has_watermark=watermarks(plan) > 0,
        sources=len({node.rest for node in sources}),
        kafka_columns=frozenset(),
        withholds_rows=True,  # no poll of an idle query reaches a client
        keeps_rows=all(
            node.name in _ROW_BY_ROW or node.source is not None or not _has_child(plan, place)
            for place, node in enumerate(plan)
        ),
    )


def watermarks(plan: Sequence[Node]) -> int:
    """Return the number of watermark nodes in a plan."""
    return sum(node.name == "EventTimeWatermark" for node in plan)


def nested_watermarks(plan: Sequence[Node]) -> bool:
    """Return whether a watermark node stands above another."""
    above: int | None = None
    for node in plan:
        if above is not None and node.depth <= above:
            above = None
        if node.name == "EventTimeWatermark":
            if above is not None:
                return True
            above = node.depth
    return False


def _has_child(plan: Sequence[Node], place: int) -> bool:
    return place + 1 < len(plan) and plan[place + 1].depth > plan[place].depth
