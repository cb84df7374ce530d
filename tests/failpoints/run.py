"""Faults in running queries, one after the other: `make failpoints` prints the table.

    python -m tests.failpoints.run --minutes 10 --seed 7

Each fault is raised once in a function that a small query calls: of the driver, of the planner's process, or of
`lowmark serve`. A seed draws the function, the call, the error, and the step after which the queries are stopped and
restarted, if any.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.failpoints.inject import Failpoint, Fault, Injector, draw
from tests.failpoints.queried import ELSEWHERE, KINDS, STEPS, Outcome, World
from tests.servers.kafka import kafka_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.kafka import Broker

_OF_THE_DRIVER = (
    "watermark",
    "integration/coordinator",
    "integration/driver",
    "integration/process",
    "integration/spark",
    "integration/transport",
    "integration/metrics",
    "sources/worker.py",
    "sources/planning",
)


_PLACES = {
    "planner": ("watermark", "sources", "integration/process", "integration/transport"),
    "serve": ("watermark", "integration/cli/serve.py", "integration/coordinator", "integration/process"),
}


def _played(
    kind: str, spark: SparkSession, broker: Broker | None, fault: Fault | None, cut_after: int | None, steps: int
) -> tuple[Counter[str], bool, Outcome]:
    causes = [] if fault is None else [fault.error]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside, ExitStack() as on:
        failpoint = Failpoint(_PLACES[kind], fault, beside) if kind in ELSEWHERE else None
        seen = failpoint or on.enter_context(Injector(_OF_THE_DRIVER, fault))
        outcome = World(
            kind, spark, Path(folder), broker, cut_after=cut_after, causes=causes, failpoint=failpoint, steps=steps
        ).play()
        return seen.calls, seen.raised, outcome


def _calls_of(kind: str, spark: SparkSession, broker: Broker | None) -> Counter[str]:
    """Count the calls of each function that may raise, during a query from its start to its end."""
    calls, _, outcome = _played(kind, spark, broker, None, STEPS // 2, STEPS)
    assert outcome.kind == "exact", outcome
    return calls


def play(
    kind: str, spark: SparkSession, broker: Broker | None, calls: Counter[str], seed: int, steps: int = STEPS
) -> tuple[Fault, bool, Outcome]:
    """Play the world with a fault that a seed draws.

    Returns:
        (the fault, whether it was raised, the outcome of the query).
    """
    chance = random.Random(seed)
    fault = draw(calls, chance)
    cut_after = chance.choice([None, *range(steps - 1)])
    _, raised, outcome = _played(kind, spark, broker, fault, cut_after, steps)
    return fault, raised, outcome


def main() -> int:
    """Play for a while, and print the outcomes of the queries."""
    from lowmark.integration.spark.session import local_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    given = parser.parse_args()
    logging.getLogger("lowmark").setLevel(logging.CRITICAL)
    kinds = given.kind or sorted(KINDS)
    table: Counter[tuple[str, str]] = Counter()
    with (
        local_session("failpoints", settings={"spark.sql.shuffle.partitions": "1"}) as (spark, place),
        ExitStack() as on,
    ):
        broker = on.enter_context(kafka_broker(place / "kafka")) if {"read", "planner"} & {*kinds} else None
        calls = {kind: _calls_of(kind, spark, broker) for kind in kinds}
        for kind in kinds:
            print(f"{kind}: {len(calls[kind])} functions, {sum(calls[kind].values())} calls", flush=True)
        seed, until = given.seed, time.monotonic() + 60 * given.minutes
        while time.monotonic() < until:
            kind = kinds[seed % len(kinds)]
            fault, raised, outcome = play(kind, spark, broker, calls[kind], seed)
            became = outcome.kind if raised else "not reached"
            table[kind, became] += 1
            if became in ("wrong", "stood and said so") or outcome.ended or outcome.said:
                print(f"seed {seed} {kind}: {became}: {fault}\n    {outcome}", flush=True)
            seed += 1
    for (kind, became), count in sorted(table.items()):
        print(f"{kind:8} {became:42} {count:5}")
    return 1 if any(became == "wrong" for _, became in table) else 0


if __name__ == "__main__":
    sys.exit(main())
