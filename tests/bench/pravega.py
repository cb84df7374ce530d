"""Pravega: our reader compared with the plain Java client, eight parallel segments with one; with Spark and without.

All read the same events from the same Pravega (in memory, another process). The plain client runs in the Java of this
process: a Java stream runs the iterators of `BatchClientFactory` to their ends and only counts, so its cost includes no
calls from Python. Our reader gives all columns. "a core" counts the processor time of all threads of this process,
including Java's; through Spark, that of the JVM and of the Python workers with their Java, from which a second stream
of an eighth of the size removes the cost of the start.

For slow answers (200 ms, as with Kinesis), a proxy is in front of the segment store. Shorter answers would not do: with
50 ms, the megabyte of an answer costs the machine as long in the proxy, in Pravega and in both Javas, which share its
two cores, so parallel reads would wait for a core instead of an answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.pravega import PravegaSource, PravegaSplit
from lowmark.sources.pravega.jvm import java_class
from lowmark.sources.spark import Binding, load

from tests.servers.pravega import Pravega, pravega_server

from .measure import Bound, Row
from .slice_reading import PLAIN, SIX_TIMES, measured, ours_read
from .through_spark import per_row_us, read_batch_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTION = "Pravega"
SEGMENTS = 8
ROUND_TRIP_MS = 200
EVENT_BYTES = 100
START_MS = 1_700_000_000_000


def run(spark: SparkSession, folder: Path, *, rows: int, few: int, pairs: int) -> list[Row]:
    """Measure with `rows` in all segments for the throughput, and with `few` per segment for slow answers."""
    with pravega_server(folder / "near") as near:
        table = throughput(spark, near, folder, rows, pairs)
    with pravega_server(folder / "far", delay_ms=ROUND_TRIP_MS / 2) as far:
        return [*table, *side_by_side(spark, far, folder, few, pairs)]


def run_segments(spark: SparkSession, folder: Path, *, segments: int, batches: int) -> list[Row]:
    """Measure Spark's time per batch on a stream of many small segments, with the first batch separately."""
    with pravega_server(folder / "segments") as pravega:
        stream, took_ms = pravega.create_stream(segments), list[float]()
        source = pravega.source(stream, jvm_options=["-Xmx256m"])
        df = load(spark, Binding(source, "segments", PlanOptions(slots=2)))
        query = df.writeStream.format("noop").option("checkpointLocation", str(folder / "segments-checkpoint")).start()
        for _ in range(batches + 1):
            pravega.write(stream, events(20 * segments))
            query.processAllAvailable()
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                took_ms.append(progress["durationMs"]["triggerExecution"])
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        query.stop()
    assert read == 20 * segments * (batches + 1), f"{read} rows"
    what = f"{segments} segments, {20 * segments:,} events a batch: a batch, from its plan to its commit"
    note = f"the first batch {took_ms[0]:,.0f} ms; {len(took_ms) - 1} others, {max(took_ms[1:]):,.0f} ms at most"
    return [Row(SECTION, what, "ms", None, statistics.median(took_ms[1:]), bound=Bound(2_000, "at most"), note=note)]


def throughput(spark: SparkSession, pravega: Pravega, folder: Path, rows: int, pairs: int) -> list[Row]:
    streams = {}
    for count in (rows, rows // 8):
        streams[count] = pravega.create_stream(SEGMENTS)
        pravega.write(streams[count], events(count))
    stream = streams[rows]
    sources = {count: pravega.source(each) for count, each in streams.items()}
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "plain": lambda: measured(lambda: plain_read(pravega, stream), rows),
        "one by one": lambda: measured(lambda: ours_read(sources[rows], whole(sources[rows])), rows),
        "side by side": lambda: measured(lambda: ours_read(beside, whole(beside)), rows),
    }
    beside = pravega.source(stream, fetchers=SEGMENTS)
    per_row_us(spark, sources, folder)
    for read in sides.values():
        read()
    walls: dict[str, list[float]] = {side: [] for side in sides}
    cores: dict[str, list[float]] = {side: [] for side in sides}
    through: list[float] = []
    for _ in range(pairs):
        for side, read in sides.items():
            wall, processor = read()
            walls[side].append(wall * 1e6 / rows)
            cores[side].append(processor * 1e6 / rows)
        through.append(per_row_us(spark, sources, folder))
    table = []
    for side in list(sides)[1:]:
        note = f"{1e6 / min(cores['plain']):,.0f} and {1e6 / min(cores[side]):,.0f} events a second and core at best"
        what = f"{rows:,} events of {EVENT_BYTES} bytes, {SEGMENTS} segments; the plain client beside ours, {side}"
        table += [
            Row.pairs(SECTION, f"{what}: a core's time", "us an event", cores["plain"], cores[side], bound=PLAIN,
                      note=note),
            Row.pairs(SECTION, "the same, from start to end", "us an event", walls["plain"], walls[side]),
        ]  # fmt: skip
    note = f"{1e6 / statistics.median(through):,.0f} events a second and core; planned, read and counted"
    what = "the plain client beside ours through Spark: a core's time"
    return [*table, Row.pairs(SECTION, what, "us an event", cores["plain"], through, bound=PLAIN, note=note)]


def side_by_side(spark: SparkSession, pravega: Pravega, folder: Path, few: int, pairs: int) -> list[Row]:
    eight_segments, one_segment = pravega.create_stream(SEGMENTS), pravega.create_stream(1)
    pravega.write(eight_segments, events(few * SEGMENTS))
    pravega.write(one_segment, events(few))
    one_source = pravega.source(one_segment, fetchers=SEGMENTS)
    eight_source = pravega.source(eight_segments, fetchers=SEGMENTS)
    one_whole, eight_whole = whole(one_source), whole(eight_source)
    measured(lambda: ours_read(eight_source, eight_whole), few * SEGMENTS)
    one, eight, one_ms, eight_ms = [list[float]() for _ in range(4)]
    for _ in range(pairs):
        one.append(measured(lambda: ours_read(one_source, one_whole), few)[0] * 1e6 / few)
        eight.append(measured(lambda: ours_read(eight_source, eight_whole), few * SEGMENTS)[0] * 1e6 / few / SEGMENTS)
        one_ms.append(read_batch_ms(spark, one_source, folder, few) * 1e3 / few)
        eight_ms.append(read_batch_ms(spark, eight_source, folder, few * SEGMENTS) * 1e3 / few / SEGMENTS)
    megabytes = few * (EVENT_BYTES + 8) / 1e6
    what = f"an answer takes {ROUND_TRIP_MS} ms: one segment of {megabytes:.1f} MB beside {SEGMENTS} in one task"
    note = "1/6: six times as fast"
    return [
        Row.pairs(SECTION, what, "us an event", one, eight, bound=SIX_TIMES, note=note),
        Row.pairs(SECTION, f"{what}, through Spark", "us an event", one_ms, eight_ms, bound=SIX_TIMES, note=note),
    ]


def events(rows: int) -> Iterator[tuple[str, bytes]]:
    padding = b" " * max(0, EVENT_BYTES - 32)
    for n in range(rows):
        yield f"k{n % 1_000}", b'{"at": %d%s, "n": %6d}' % (START_MS + n, padding, n % 1_000_000)


def whole(source: PravegaSource) -> list[PravegaSplit]:
    """Return all splits, bounded at their present ends."""
    found = list(source.discover())
    ends = source.create_planner().latest(found)
    return [replace(split, stop=ends[split.split_id].position) for split in found]


def plain_read(pravega: Pravega, stream: str) -> int:
    """Let Java count the events that the client gives."""
    factory = java_class("io.pravega.client.BatchClientFactory").withScope(pravega.scope, pravega.client.java_config)
    serializer = java_class("io.pravega.client.stream.impl.ByteArraySerializer")()
    unbounded = java_class("io.pravega.client.stream.StreamCut").UNBOUNDED
    spliterators, streams = java_class("java.util.Spliterators"), java_class("java.util.stream.StreamSupport")
    ranges = factory.getSegments(pravega.client.java_stream(stream), unbounded, unbounded).getIterator()
    rows = 0
    while ranges.hasNext():
        iterator = factory.readSegment(ranges.next(), serializer)
        rows += int(streams.stream(spliterators.spliteratorUnknownSize(iterator, 0), False).count())  # Java's
        iterator.close()
    factory.close()
    return rows
