"""The Pravega source's reader alone, without Spark: events a second and a core, beside the plain Java client by JPype.

    python -m tests.bench.pravega_reader [--rows 500000] [--bytes 100] [--segments 8] [--rounds 3] [--plain-rows 100000]

It starts a Pravega, in memory, and fills a stream. Rounds take turns: the plain client (`BatchClientFactory`, one call
for every event, with nothing done with what it returns), and ours, with all columns, written away as Arrow's stream, as
Spark's worker does; ours also with other numbers of fetchers, and with one segment alone. "per core" counts the
processor time of all threads of this process, Java's included; Pravega is another process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from lowmark.sources.pravega import PravegaSource, PravegaSplit
from lowmark.sources.pravega.jvm import java_class
from lowmark.sources.reading.slices import read_slices

from tests.live.pravega_server import Pravega, pravega_server

START_MS = 1_700_000_000_000
Rate = tuple[float, float]
"""Events a second, and a second of processor time."""


def events(rows: int, size: int) -> Iterator[tuple[str, bytes]]:
    padding = b" " * max(0, size - 32)
    for n in range(rows):
        yield f"k{n % 1_000}", b'{"at": %d%s, "n": %6d}' % (START_MS + n, padding, n % 1_000_000)


def ours(source: PravegaSource, splits: Sequence[PravegaSplit]) -> Rate:
    """Read splits once, and write the rows away as Spark's worker does."""
    wall, processor, rows = time.perf_counter(), time.process_time(), 0
    with pa.OSFile(os.devnull, "wb") as sink, pa.ipc.new_stream(sink, source.schema) as stream:
        for part in read_slices(source, splits):
            stream.write_batch(part.rows)
            rows += part.rows.num_rows
    return rows / (time.perf_counter() - wall), rows / (time.process_time() - processor)


def plain(pravega: Pravega, stream: str, most: int) -> Rate:
    """Let the client hand out events, and drop them."""
    factory = java_class("io.pravega.client.BatchClientFactory").withScope(pravega.scope, pravega.client._config)
    serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
    unbounded = java_class("io.pravega.client.stream.StreamCut").UNBOUNDED
    ranges = factory.getSegments(pravega.client._java_stream(stream), unbounded, unbounded).getIterator()
    wall, processor, rows = time.perf_counter(), time.process_time(), 0
    while ranges.hasNext() and rows < most:
        iterator = factory.readSegment(ranges.next(), serializer)
        while iterator.hasNext() and rows < most:
            iterator.next()
            rows += 1
        iterator.close()
    return rows / (time.perf_counter() - wall), rows / (time.process_time() - processor)


def run(pravega: Pravega, rows: int, size: int, segments: int, rounds: int, plain_rows: int) -> None:
    stream, alone = pravega.create_stream(segments), pravega.create_stream(1)
    began = time.perf_counter()
    pravega.write(stream, events(rows, size))
    pravega.write(alone, events(max(rows // segments, 1), size))
    print(f"{rows:,} events of {size} bytes in {segments} segments, written in {time.perf_counter() - began:.0f} s")
    measured: dict[str, list[Rate]] = {}
    for _ in range(rounds):
        measured.setdefault("the plain client by JPype", []).append(plain(pravega, stream, plain_rows))
        for what, name, fetchers in (
            (f"ours, {segments} segments, one by one", stream, 1),
            (f"ours, {segments} segments, 2 fetchers", stream, 2),
            (f"ours, {segments} segments, {segments} fetchers", stream, segments),
            ("ours, one segment", alone, 1),
        ):
            source = pravega.source(name, fetchers=fetchers)
            found = list(source.discover())
            ends = source.create_planner().latest(found)
            splits = [replace(split, stop=ends[split.split_id].position) for split in found]
            measured.setdefault(what, []).append(ours(source, splits))
    plainly = measured["the plain client by JPype"]
    print(f"{'':44}{'events/s':>12}{'per core':>12}   of the plain client, per core (pairs)")
    for what, rates in measured.items():
        ratios = [mine[1] / other[1] for mine, other in zip(rates, plainly, strict=True)]
        wall, core = (statistics.median(rate[n] for rate in rates) for n in (0, 1))
        print(f"{what:44}{wall:>12,.0f}{core:>12,.0f}   {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f}..{max(ratios):.2f})")  # fmt: skip
    single = measured["ours, one segment"]
    for what in (f"ours, {segments} segments, {segments} fetchers", f"ours, {segments} segments, 2 fetchers"):
        gains = [many[0] / one[0] for many, one in zip(measured[what], single, strict=True)]
        print(f"{what} in one task, of one segment: {statistics.median(gains):.2f} x")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pravega_reader", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--bytes", type=int, default=100, help="of an event")
    parser.add_argument("--segments", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain-rows", type=int, default=100_000, help="how many the plain client reads of them")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lowmark-bench-") as folder, pravega_server(Path(folder)) as pravega:
        run(pravega, given.rows, given.bytes, given.segments, given.rounds, given.plain_rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
