"""The facts that a client of Spark Connect reads off the text of a plan; no Spark here."""

from __future__ import annotations

import pytest
from lowmark.integration.spark.plan_text import input_plan, nodes, stream_sources

KAFKA = (
    "~StreamingRelationV2 org.apache.spark.sql.kafka010.KafkaSourceProvider@1f, kafka, org.apache.Table@2e, "
    "[subscribe=orders], [key#1, value#2, topic#3, partition#4, offset#5L, timestamp#6, timestampType#7]"
)
BEAT = "~LocalRelation <empty>, [lowmark_time#{0}, lowmark_heartbeat#{0}1, lowmark_row#{0}2]"


def plan(*lines: str) -> str:
    """An analyzed plan; its first line is the schema."""
    return "\n".join(["== Analyzed Logical Plan ==", "schema", *lines, "", "== Optimized Logical Plan =="])


@pytest.mark.parametrize(
    ("top", "own"),
    [
        ("~Project [topic#3, partition#4]", {"topic", "partition"}),
        ("~Project [topic#3, partition#9]", {"topic"}),
        ("~Project [topic#13, partition#41]", set()),
    ],
    ids=["both", "a column of the same name", "both computed"],
)
def test_columns_of_kafka_are_told_by_their_numbers(top: str, own: set[str]) -> None:
    explained = plan(top, "+- ~Project [topic#3, (partition#4 % 2) AS partition#9]", f"   +- {KAFKA}")
    found = input_plan(nodes(explained))
    assert ({*found.kafka_columns}, found.sources, found.keeps_rows) == (own, 1, True)


def wrapped(indent: str, branch: str, rows: list[str], beat: int) -> list[str]:
    """The lines of a wrapped stream."""
    below = indent + (":  " if branch == ":" else "   ")
    return [
        f"{indent}{branch}- ~Union false, false",
        f"{below}:- ~CollectMetrics lowmark:a, [count(1) AS rows#1L]",
        *(f"{below}:  {row}" for row in rows),
        f"{below}+- ~EventTimeWatermark b, ts#2: timestamp, 0 seconds",
        f"{below}   +- {BEAT.format(beat)}",
    ]


def test_a_heartbeat_has_the_sources_under_its_own_union() -> None:
    """A native stream stands before, both wrapped streams read one source, and a table is no source."""
    one, two = "~LocalRelation <empty>, [a#51]", "~Project [a#61 AS a#62]"
    explained = plan(
        "+- ~Join Inner",
        "   :- ~Union false, false",
        "   :  :- ~Project [a#41 AS a#42]",
        "   :  :  +- Relation [a#41] json",
        *wrapped("   :  ", "+", [f"+- {one}"], 7),
        "   +- ~Join Inner",
        "      :- Relation [a#71] parquet",
        *wrapped(
            "      ",
            "+",
            ["+- ~Union false, false", f"   :- {one}", f"   +- {two}", "      +- Relation [a#61] json"],
            8,
        ),
    )
    assert stream_sources(nodes(explained)) == ({2: [1], 4: [1, 3]}, 5)
