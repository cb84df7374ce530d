"""The Kafka source's reader alone, without Spark: rows per second and core, and the growth of memory.

    python -m tests.bench.kafka_reader [--rows 2000000] [--bytes 100] [--partitions 8] [--rounds 3]
                                       [--columns value,offset] [--bootstrap HOST:PORT --topic NAME] [--ahead 1]

Without `--bootstrap` it starts a broker and fills a topic. A row of the table is a round: one reader reads all columns
of Spark's source, or the named columns, of all partitions, as a task would. "per core" counts the processor time of all
threads of this process, including librdkafka's; the broker is another process. The memory is measured at the end of the
round, and must not grow with the rows: try `--rows 10000000`. With `--ahead 1` rounds with a thread that reads ahead of
the task (`Fetching(threads=1)`) alternate with rounds without; in all rounds rows are written as an Arrow stream, as in
Spark's worker. The last round only calls the client's `consume` and drops the records: no reader on top of the client
can be faster.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from lowmark.sources import Fetching
from lowmark.sources.kafka import KafkaSource, KafkaSplit
from lowmark.sources.kafka.columns import DEFAULT_COLUMNS
from lowmark.sources.kafka.consumers import range_properties
from lowmark.sources.kafka.reader import CHUNK, GUESSED_RECORD_BYTES
from lowmark.sources.kafka.settings import KafkaSettings
from lowmark.sources.reading.slices import read_slices

from tests.servers.kafka import Broker, Record, kafka_broker

START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of one round."""

    rows: int
    bytes: int
    batches: int
    wall_seconds: float
    processor_seconds: float
    resident_bytes: int


def records(rows: int, size: int, partitions: int) -> Iterator[Record]:
    """Yield records of `size` bytes, one per millisecond, over the partitions in turn."""
    padding = "x" * max(0, size - 12)
    for n in range(rows):
        yield Record(f"{n:012}{padding}", n % partitions, timestamp_ms=START_MS + n)


def measure(source: KafkaSource, splits: list[KafkaSplit]) -> Round:
    """Read all splits once, and write the rows as Spark's worker does."""
    wall, processor = time.perf_counter(), time.process_time()
    rows = size = batches = 0
    with pa.OSFile(os.devnull, "wb") as sink, pa.ipc.new_stream(sink, source.schema) as stream:
        for part in read_slices(source, splits):
            stream.write_batch(part.rows)
            rows, size, batches = rows + part.rows.num_rows, size + part.rows.nbytes, batches + 1
    return Round(rows, size, batches, time.perf_counter() - wall, time.process_time() - processor, resident_bytes())


def measure_client(bootstrap: str, splits: list[KafkaSplit]) -> Round:
    """Fetch all splits once with the client and our settings, and drop the records."""
    from confluent_kafka import Consumer, TopicPartition

    rows = sum(split.stop or 0 for split in splits)
    wall, processor = time.perf_counter(), time.process_time()
    settings = KafkaSettings(bootstrap, {}, 60.0, read_committed=True)
    properties = range_properties(settings, [split.stop or 0 for split in splits], GUESSED_RECORD_BYTES)
    consumer = Consumer(settings.properties({**properties, "enable.partition.eof": False}))
    consumer.assign([TopicPartition(split.topic, split.partition, split.start) for split in splits])
    seen = chunks = 0
    gc.disable()  # as in the reader, which disables it while making records
    while seen < rows:
        seen, chunks = seen + len(consumer.consume(CHUNK, 1.0)), chunks + 1
    gc.enable()
    spent = time.perf_counter() - wall, time.process_time() - processor
    consumer.close()
    return Round(seen, 0, chunks, *spent, resident_bytes())


def resident_bytes() -> int:
    """Return this process's present memory, or its peak if the system does not tell the present value."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def run(bootstrap: str, topic: str, columns: list[str], rounds: int, ahead: int = 0) -> list[Round]:
    """Read a topic from beginning to end `rounds` times, alternately with and without threads that read ahead."""
    source = KafkaSource(bootstrap_servers=bootstrap, topics=[topic], columns=columns)
    ends = Broker(bootstrap, None).end_offsets(topic)  # type: ignore[arg-type]  # another's: never stopped by us
    splits = [
        KafkaSplit(split_id=f"{topic}/{partition}", topic=topic, partition=partition, stop=end)
        for partition, end in ends.items()
    ]
    heads = ("rows", 12), ("MB", 8), ("batches", 8), ("rows/s", 12), ("rows/s per core", 16), ("MB/s per core", 14)
    print(*(f"{head:>{width}}" for head, width in (*heads, ("MB memory", 10))))
    done = []
    for _ in range(rounds):
        for threads in sorted({0, ahead}):
            source.fetching = Fetching(threads=threads)
            done.append(show(measure(source, splits), f" {threads} ahead" if ahead else ""))
    print("the client alone")
    show(measure_client(bootstrap, splits))
    return done


def show(each: Round, what: str = "") -> Round:
    print(
        f"{each.rows:>12,} {each.bytes / 1e6:>8,.0f} {each.batches:>8,} {each.rows / each.wall_seconds:>12,.0f} "
        f"{each.rows / each.processor_seconds:>16,.0f} {each.bytes / 1e6 / each.processor_seconds:>14,.0f} "
        f"{each.resident_bytes / 1e6:>10,.0f}{what}",
        flush=True,
    )
    return each


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kafka_reader", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--columns", default=",".join(DEFAULT_COLUMNS))
    parser.add_argument("--bootstrap", help="read from this broker instead of an own one")
    parser.add_argument("--topic", help="read this topic, which has its records already")
    parser.add_argument("--ahead", type=int, default=0, help="threads that read ahead, in every other round")
    given = parser.parse_args(arguments)
    columns = given.columns.split(",")
    if given.bootstrap and given.topic:
        run(given.bootstrap, given.topic, columns, given.rounds, given.ahead)
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="lowmark-bench-") as folder,
        kafka_broker(Path(folder) / "kafka", optimized=True) as broker,
    ):
        topic = broker.create_topic(partitions=given.partitions)
        broker.produce(topic, records(given.rows, given.bytes, given.partitions))
        run(broker.bootstrap, topic, columns, given.rounds, given.ahead)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
