"""Reads Spark's plan from the text of `explain`, because a client of Spark Connect gets only this text.

    == Analyzed Logical Plan ==
    split: bigint, ts: timestamp
    ~Project [(value#2L % cast(3 as bigint)) AS split#3L, timestamp#1 AS ts#4]
    +- ~StreamingRelationV2 org.apache...RateStreamProvider@750b418d, rate, org...@6e2d164a, [], [timestamp#1, value#2L]

Each level is indented by three characters. `~` marks what is streaming.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowmark.integration.transport.heartbeat import COLUMNS, FORMAT

from .logical_plan import ROW_BY_ROW
from .sessions import InputPlan

SPLIT_COLUMNS = ("topic", "partition")  # of Spark's Kafka source

_WATERMARK = "EventTimeWatermark"
_NODE = re.compile(r"(?P<indent>[ :+-]*)(?P<streams>~?)(?P<name>[A-Za-z]\w*)(?P<rest>.*)")
_SOURCE = re.compile(r" \S+, (?P<source>\S+), ")
_ATTRIBUTE = re.compile(r"(?P<name>\w+)#\d+")


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a plan."""

    depth: int  # number of its parents
    name: str  # Spark's class of it
    rest: str  # the text behind the name
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
    """Return the facts in a plan; a DataFrame with columns of `SPLIT_COLUMNS` is given as a `select` of these."""
    sources = [node for node in plan if node.source is not None]
    return InputPlan(
        has_heartbeat=any(node.source == FORMAT for node in sources),
        has_watermark=watermarks(plan) > 0,
        sources=len({node.rest for node in sources}),
        kafka_columns=_kafka_columns(plan),
        withholds_rows=True,  # no poll of an idle query reaches a client
        keeps_rows=all(
            node.name in ROW_BY_ROW or node.source is not None or not _has_child(plan, place)
            for place, node in enumerate(plan)
        ),
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
    leaves = [place for place, _ in enumerate(plan) if not _has_child(plan, place) and _streams(plan, place)]
    numbers: dict[tuple[str, str], int] = {}
    number = {place: numbers.setdefault((plan[place].name, plan[place].rest), len(numbers)) for place in leaves}
    found: dict[int, list[int]] = {}
    for place, node in enumerate(plan):
        if node.name != "Union":
            continue
        children = list(_children(plan, place))
        below = [[leaf for leaf in leaves if leaf in child] for child in children]
        if len(below) == 2 and len(below[1]) == 1 and f"[{COLUMNS[0]}#" in plan[below[1][0]].rest:
            found[number[below[1][0]]] = sorted({number[leaf] for leaf in below[0]})
    return found, len(numbers)


def watermarks(plan: Sequence[Node]) -> int:
    """Return the number of `withWatermark` in a plan."""
    return sum(node.name == _WATERMARK for node in plan)


def nested_watermarks(plan: Sequence[Node]) -> bool:
    """Return whether one `withWatermark` stands above another."""
    places = [place for place, node in enumerate(plan) if node.name == _WATERMARK]
    return any(place < other < _end(plan, place) for place in places for other in places)


def _streams(plan: Sequence[Node], leaf: int) -> bool:
    """Whether a leaf is a stream's. Spark writes files without the mark, so the mark of their only parent counts."""
    parent = leaf - 1
    only = parent >= 0 and plan[parent].depth == plan[leaf].depth - 1 and len([*_children(plan, parent)]) == 1
    return plan[leaf].streams or (only and plan[parent].streams)


def _children(plan: Sequence[Node], place: int) -> Iterator[range]:
    """Yield the places of each child of a node, the child's own first."""
    end = _end(plan, place)
    begins = [at for at in range(place + 1, end) if plan[at].depth == plan[place].depth + 1]
    for begin, until in zip(begins, [*begins[1:], end], strict=True):
        yield range(begin, until)


def _has_child(plan: Sequence[Node], place: int) -> bool:
    return place + 1 < len(plan) and plan[place + 1].depth > plan[place].depth


def _end(plan: Sequence[Node], place: int) -> int:
    """The place behind a node and all below it."""
    return next((at for at in range(place + 1, len(plan)) if plan[at].depth <= plan[place].depth), len(plan))
