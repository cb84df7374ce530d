"""Reads Spark's plan from the text of `explain`, because a client of Spark Connect gets only this text.

    == Analyzed Logical Plan ==
    split: bigint, ts: timestamp
    ~Project [(value#2L % cast(3 as bigint)) AS split#3L, timestamp#1 AS ts#4]
    +- ~StreamingRelationV2 org.apache...RateStreamProvider@750b418d, rate, org...@6e2d164a, [], [timestamp#1, value#2L]

Each level is indented by three characters. `~` marks what is streaming.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lowmark.integration.transport.heartbeat import COLUMNS, FORMAT

from .logical_plan import ROW_BY_ROW, InputPlan

SPLIT_COLUMNS = ("topic", "partition")  # of Spark's Kafka source

_WATERMARK = "EventTimeWatermark"
_NODE = re.compile(r"(?P<indent>[ :+-]*)(?P<streams>~?)(?P<name>[A-Za-z]\w*)(?P<rest>.*)")
_SOURCE = re.compile(r" \S+, (?P<source>\S+), ")
_ATTRIBUTE = re.compile(r"(?P<name>\w+)#\d+")


@dataclass(slots=True, eq=False)
class Node:
    """One line of a plan, and the nodes right below it."""

    depth: int  # number of its parents
    name: str  # Spark's class of it
    rest: str  # the text behind the name
    streams: bool
    children: list[Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        """Yield the node and all below it, parents first."""
        waiting = [self]
        while waiting:
            yield (node := waiting.pop())
            waiting += reversed(node.children)

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
    found: list[Node] = []
    parents: list[Node] = []
    for line in plan.splitlines()[1:]:
        if (matched := _NODE.fullmatch(line)) is not None:
            node = Node(len(matched["indent"]) // 3, matched["name"], matched["rest"], bool(matched["streams"]))
            parents = [each for each in parents if each.depth < node.depth]
            if parents:
                parents[-1].children.append(node)
            parents.append(node)
            found.append(node)
    for node in found:  # Spark writes files without the mark, so the mark of their only parent counts
        if len(node.children) == 1 and not node.children[0].children:
            node.children[0].streams |= node.streams
    return found


def input_plan(plan: Sequence[Node]) -> InputPlan:
    """Return the facts in a plan; a DataFrame with columns of `SPLIT_COLUMNS` is given as a `select` of these."""
    sources = [node for node in plan if node.source is not None]
    return InputPlan(
        has_heartbeat=any(node.source == FORMAT for node in sources),
        has_watermark=watermarks(plan) > 0,
        sources=len({node.rest for node in sources}),
        kafka_columns=_kafka_columns(plan),
        withholds_rows=True,  # no poll of an idle query reaches a client
        keeps_rows=all(node.name in ROW_BY_ROW or node.source is not None or not node.children for node in plan),
    )


def _kafka_columns(plan: Sequence[Node]) -> frozenset[str]:
    """The columns of the topmost `select` that are a Kafka source's own, by Spark's numbers of them."""
    leaves = (node.rest.partition("[")[2] for node in plan if node.source == "kafka")
    kafka = {found[0] for leaf in leaves for found in _ATTRIBUTE.finditer(leaf)}
    found = _ATTRIBUTE.finditer(plan[0].rest) if plan and plan[0].name == "Project" else iter(())
    return frozenset(each["name"] for each in found if each[0] in kafka and each["name"] in SPLIT_COLUMNS)


def stream_sources(plan: Sequence[Node]) -> tuple[dict[int, list[int]], int]:
    r"""Return the same as `logical_plan.stream_sources`, and the number of sources, heartbeats included.

    The plan is that of a running query's batch. A source is a leaf with a text of its own, however often it is used.

    >>> lines = ["Write", "+- ~Union false, false", "   :- ~Project [a#1]", "   :  +- Relation [a#1] json"]
    >>> lines += ["   +- ~Project [a#2]", "      +- ~LocalRelation <empty>, [lowmark_time#3, lowmark_heartbeat#4]"]
    >>> stream_sources(nodes("\n".join(["== Analyzed Logical Plan ==", *lines])))
    ({1: [0]}, 2)
    """
    leaves = [node for node in plan if node.streams and not node.children]
    numbers: dict[tuple[str, str], int] = {}
    number = {leaf: numbers.setdefault((leaf.name, leaf.rest), len(numbers)) for leaf in leaves}
    found: dict[int, list[int]] = {}
    for union in (node for node in plan if node.name == "Union"):
        below = [[leaf for leaf in child if leaf in number] for child in union.children]
        if len(below) == 2 and len(below[1]) == 1 and f"[{COLUMNS[0]}#" in below[1][0].rest:
            found[number[below[1][0]]] = sorted({number[leaf] for leaf in below[0]})
    return found, len(numbers)


def watermarks(plan: Iterable[Node]) -> int:
    """Return the number of `withWatermark` in a plan."""
    return sum(node.name == _WATERMARK for node in plan)


def nested_watermarks(plan: Iterable[Node]) -> bool:
    """Return whether one `withWatermark` stands above another."""
    return any(watermarks(node) > 1 for node in plan if node.name == _WATERMARK)
