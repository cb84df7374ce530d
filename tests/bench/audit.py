"""`lowmark audit kafka` over a million records: wall time, processor time, and the growth of memory.

    python -m tests.bench.audit [--rows 1000000] [--partitions 8] [--rounds 3] [--bootstrap HOST:PORT --topic NAME]

Without `--bootstrap` it starts a broker and fills a topic with JSON of 130 bytes, which has the event time. A row of
the table is one command, from its start to its last line, alternately by the record's timestamp and by the payload's
time; the broker is another process on the same cores. Twice the rows must not take twice the memory: try
`--rows 2000000`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.kafka import Record, kafka_broker
from tests.servers.local import LOWMARK

ASKED_SECONDS = 20.0


def records(rows: int, partitions: int) -> Iterator[Record]:
    """Yield a record per millisecond, up to five seconds out of order; the second partition is ten minutes behind."""
    start_ms = (int(time.time()) - 7_200) * 1_000
    for n in range(rows):
        partition = n % partitions
        at_ms = start_ms + n - n * 7_919 % 5_000 - (600_000 if partition == 1 else 0)
        value = (
            f'{{"paid_at": {at_ms}, "order": "{n:012}", "user": {n * 31 % 1_000_003}, '
            f'"amount": {n * 31 % 10_000 / 100}, "status": "accepted", "article": "article-{n * 7919 % 100_000:06}"}}'
        )
        yield Record(value, partition, timestamp_ms=start_ms + n)


def audited(bootstrap: str, topic: str, rows: int, *more: str) -> tuple[float, float, int]:
    """Run a command; return its seconds, its processor seconds, and its peak of memory in bytes."""
    command = [*LOWMARK, "audit", "kafka", "--bootstrap-servers", bootstrap, "--topic", topic, "--json", "--all", *more]
    with tempfile.TemporaryFile() as told:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=told)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        told.seek(0)
        answer = json.load(told)
    assert (process.returncode, answer["rows"], answer["complete"]) == (0, rows, True), answer
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1_024


def run(bootstrap: str, topic: str, rows: int, rounds: int) -> list[float]:
    """Audit a topic `rounds` times in both ways, and print the cost."""
    heads = ("rows", 12), ("seconds", 10), ("processor s", 12), ("rows/s", 12), ("MB memory", 10)
    print(*(f"{head:>{width}}" for head, width in heads))
    taken = []
    for _ in range(rounds):
        for what, more in (("timestamp", ()), ("$.paid_at", ("--event-time", "$.paid_at", "--window", "1 minute"))):
            seconds, processor, memory = audited(bootstrap, topic, rows, *more)
            taken.append(seconds)
            shown = f"{rows:>12,} {seconds:>10.1f} {processor:>12.1f} {rows / seconds:>12,.0f} {memory / 1e6:>10,.0f}"
            print(f"{shown}  {what}", flush=True)
    return taken


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", help="audit a topic of this broker instead of an own one")
    parser.add_argument("--topic", help="this topic, which has its records already")
    given = parser.parse_args(arguments)
    if given.bootstrap and given.topic:
        taken = run(given.bootstrap, given.topic, given.rows, given.rounds)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="lowmark-bench-") as folder,
            kafka_broker(Path(folder) / "kafka", optimized=True) as broker,
        ):
            topic = broker.create_topic(partitions=given.partitions)
            broker.produce(topic, records(given.rows, given.partitions))
            taken = run(broker.bootstrap, topic, given.rows, given.rounds)
    asked = ASKED_SECONDS * given.rows / 1_000_000
    print(f"slowest {max(taken):.1f} s, asked {asked:.0f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
