"""Kinesis: our reader compared with boto3's plain client, eight parallel shards with one; without Spark and with it.

All read the same records from the same server (moto's, corrected, another process). "a core" counts the processor time
of all threads of this process; through Spark, that of the JVM and the Python workers, from which a second stream of an
eighth of the size removes the cost of the start. The server has no limits, so ours are switched off. For answers of
200 ms, a proxy in another process delays bytes for 100 ms in each direction.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.kinesis.split import KinesisSplit
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner

from tests.servers.kinesis import KINESIS_ACCESS, Kinesis, kinesis_server
from tests.servers.tcp_proxy import tcp_proxied

from .measure import Row
from .slice_reading import PLAIN, SIX_TIMES, measured, ours_read
from .through_spark import per_row_us, read_batch_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTION = "Kinesis"
SHARDS = 8
ROUND_TRIP_MS = 200
FEW_RECORDS = 100


def run(spark: SparkSession, folder: Path, *, rows: int, few: int, pairs: int) -> list[Row]:
    """Measure with `rows` in all shards for the throughput, and with `few` per shard for slow answers."""
    with kinesis_server(folder / "kinesis") as server:
        return [*throughput(spark, server, folder, rows, pairs), *side_by_side(spark, server, folder, few, pairs)]


def give_access() -> None:
    """Let boto3 find credentials in this process, and in Spark's processes if Spark starts later."""
    os.environ["AWS_ACCESS_KEY_ID"] = KINESIS_ACCESS["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = KINESIS_ACCESS["aws_secret_access_key"]


def throughput(spark: SparkSession, server: Kinesis, folder: Path, rows: int, pairs: int) -> list[Row]:
    streams = {}
    for count in (rows, rows // 8):
        streams[count] = server.create_stream(SHARDS)
        server.put(streams[count], [(f"{n}", b"%0100d" % n) for n in range(count)])
    stream = streams[rows]
    source = source_of(server.url, stream)
    slices = whole(source)
    plain, ours, plain_wall, ours_wall, through = [list[float]() for _ in range(5)]
    measured(lambda: ours_read(source, slices), rows)
    sources = {count: source_of(server.url, each) for count, each in streams.items()}
    per_row_us(spark, sources, folder)
    for _ in range(pairs):
        for read, cores, walls in (
            (lambda: plain_read(server, stream), plain, plain_wall),
            (lambda: ours_read(source, slices), ours, ours_wall),
        ):
            wall, processor = measured(read, rows)
            cores.append(processor * 1e6 / rows)
            walls.append(wall * 1e6 / rows)
        through.append(per_row_us(spark, sources, folder))
    note = f"{1e6 / min(plain):,.0f} and {1e6 / min(ours):,.0f} records a second and core at best"
    what = f"{rows:,} records of 100 bytes, {SHARDS} shards; the plain client beside ours: a core's time"
    spark_note = f"{1e6 / statistics.median(through):,.0f} records a second and core; planned, read and counted"
    return [
        Row.pairs(SECTION, what, "us a record", plain, ours, bound=PLAIN, note=note),
        Row.pairs(SECTION, "the same, from start to end", "us a record", plain_wall, ours_wall),
        Row.pairs(SECTION, "the plain client beside ours through Spark: a core's time", "us a record", plain, through,
                  bound=PLAIN, note=spark_note),
    ]  # fmt: skip


def side_by_side(spark: SparkSession, server: Kinesis, folder: Path, few: int, pairs: int) -> list[Row]:
    eight_shards, one_shard = server.create_stream(SHARDS), server.create_stream(1)
    for stream in (eight_shards, one_shard):
        for number, shard in enumerate(server.described(stream)):
            key = shard["HashKeyRange"]["StartingHashKey"]
            for begin in range(0, few, 500):
                records = [
                    {"PartitionKey": f"{number}", "ExplicitHashKey": key, "Data": b"%0100d" % n}
                    for n in range(begin, min(begin + 500, few))
                ]
                server.client.put_records(StreamName=stream, Records=records)
    slices = whole(source_of(server.url, eight_shards))
    one, eight, one_ms, eight_ms = [list[float]() for _ in range(4)]
    port = int(server.url.rpartition(":")[2])
    with tcp_proxied(port, folder, delay_ms=ROUND_TRIP_MS / 2) as proxy:
        # The small reads make as many requests as a shard with a hundred times the records.
        through = {name: source_of(proxy.url, name, FEW_RECORDS) for name in (one_shard, eight_shards)}
        source = through[eight_shards]
        measured(lambda: ours_read(source, slices[:1]), few)
        for _ in range(pairs):
            one.append(measured(lambda: ours_read(source, slices[:1]), few)[0] * 1e6 / few)
            eight.append(measured(lambda: ours_read(source, slices), few * SHARDS)[0] * 1e6 / few / SHARDS)
            one_ms.append(read_batch_ms(spark, through[one_shard], folder, few) * 1e3 / few)
            eight_ms.append(read_batch_ms(spark, through[eight_shards], folder, few * SHARDS) * 1e3 / few / SHARDS)
    what = f"an answer takes {ROUND_TRIP_MS} ms: one shard beside {SHARDS} in one task"
    note = "1/6: six times as fast"
    return [
        Row.pairs(SECTION, what, "us a record", one, eight, bound=SIX_TIMES, note=note),
        Row.pairs(SECTION, f"{what}, through Spark", "us a record", one_ms, eight_ms, bound=SIX_TIMES, note=note),
    ]


def source_of(url: str, stream: str, records_per_read: int = 10_000) -> KinesisSource:
    return KinesisSource(
        streams=[stream], region="eu-west-1", endpoint_url=url, reads_per_second=None, bytes_per_second=None,
        records_per_read=records_per_read,
    )  # fmt: skip


def whole(source: KinesisSource) -> list[KinesisSplit]:
    """Return the slices of one batch with all present records."""
    options = PlanOptions(slots=1, future_guard_us=None)
    with closing(
        BatchPlanner(source, name="bench", options=options, now_us=lambda: time.time_ns() // 1_000)
    ) as planner:
        start: BatchOffset = planner.initial()
        [task] = planner.tasks(start, planner.plan(start, None))
        return list(task.splits)


def plain_read(server: Kinesis, stream: str) -> int:
    rows = 0
    for shard in server.shards(stream):
        place = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = server.client.get_shard_iterator(**place)["ShardIterator"]
        while True:
            answer = server.client.get_records(ShardIterator=iterator, Limit=10_000)
            rows += len(answer["Records"])
            if answer["MillisBehindLatest"] == 0:
                break
            iterator = answer["NextShardIterator"]
    return rows
