"""Kinesis: our reader beside boto3's plain client, and eight shards side by side beside one.

Both read the same records from the same server (moto's, mended, another process), without Spark. "a core" counts the
processor time of all threads of this process. The server has no limits, so ours are switched off for this; and where
an answer takes 200 ms, a proxy in front of it waits for so long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from lowmark.sources.kinesis import KinesisSource
from lowmark.sources.kinesis.split import KinesisSplit
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.sources.reading.slices import read_slices

from tests.live.servers import KINESIS_ACCESS, Kinesis, kinesis_server, proxied

from .measure import Bound, Row

SECTION = "Kinesis: our reader without Spark"
SHARDS = 8
LATENCY_SECONDS = 0.2


def run(folder: Path, *, rows: int, few: int, pairs: int) -> list[Row]:
    """Measure. `rows`: for the throughput, in all shards; `few`: of each shard, where an answer takes long."""
    os.environ["AWS_ACCESS_KEY_ID"] = KINESIS_ACCESS["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = KINESIS_ACCESS["aws_secret_access_key"]
    with kinesis_server(folder / "kinesis") as server:
        return [*throughput(server, rows, pairs), *side_by_side(server, few, pairs)]


def throughput(server: Kinesis, rows: int, pairs: int) -> list[Row]:
    stream = server.create_stream(SHARDS)
    server.put(stream, [(f"{n}", b"%0100d" % n) for n in range(rows)])
    source = source_of(server.url, stream)
    slices = whole(source)
    plain, ours, plain_wall, ours_wall = [list[float]() for _ in range(4)]
    measured(lambda: ours_read(source, slices), rows)
    for _ in range(pairs):
        for read, cores, walls in (
            (lambda: plain_read(server, stream), plain, plain_wall),
            (lambda: ours_read(source, slices), ours, ours_wall),
        ):
            wall, processor = measured(read, rows)
            cores.append(processor * 1e6 / rows)
            walls.append(wall * 1e6 / rows)
    note = f"{1e6 / min(plain):,.0f} and {1e6 / min(ours):,.0f} records a second and core at best"
    return [
        Row.pairs(
            SECTION, f"{rows:,} records of 100 bytes, {SHARDS} shards; the plain client beside ours: a core's time",
            "us a record", plain, ours, bound=Bound(1 / 0.7, "ratio"), note=note,
        ),
        Row.pairs(SECTION, "the same, from start to end", "us a record", plain_wall, ours_wall),
    ]  # fmt: skip


def side_by_side(server: Kinesis, few: int, pairs: int) -> list[Row]:
    stream = server.create_stream(SHARDS)
    for number, shard in enumerate(server.client.list_shards(StreamName=stream)["Shards"]):
        key = shard["HashKeyRange"]["StartingHashKey"]
        for begin in range(0, few, 500):
            records = [
                {"PartitionKey": f"{number}", "ExplicitHashKey": key, "Data": b"%0100d" % n}
                for n in range(begin, min(begin + 500, few))
            ]
            server.client.put_records(StreamName=stream, Records=records)
    # As many reads as a shard with a thousand times as much: so little is asked for at once.
    slices = [replace(split, records=1) for split in whole(source_of(server.url, stream))]
    one, eight = list[float](), list[float]()
    with proxied(server.url) as proxy:
        source = source_of(proxy.url, stream)
        proxy.latency_seconds = LATENCY_SECONDS
        for _ in range(pairs):
            one.append(measured(lambda: ours_read(source, slices[:1]), few)[0] * 1e6 / few)
            eight.append(measured(lambda: ours_read(source, slices), few * SHARDS)[0] * 1e6 / few / SHARDS)
    return [
        Row.pairs(
            SECTION, f"an answer takes {LATENCY_SECONDS * 1e3:g} ms: one shard beside {SHARDS} in one task",
            "us a record", one, eight, bound=Bound(1 / 6, "ratio"), note="1/6: six times as fast",
        )
    ]  # fmt: skip


def source_of(url: str, stream: str) -> KinesisSource:
    return KinesisSource(
        streams=[stream], region="eu-west-1", endpoint_url=url, reads_per_second=None, bytes_per_second=None
    )


def whole(source: KinesisSource) -> list[KinesisSplit]:
    """All that is there, as one batch."""
    options = PlanOptions(slots=1, future_guard_us=None)
    with closing(
        BatchPlanner(source, name="bench", options=options, now_us=lambda: time.time_ns() // 1_000)
    ) as planner:
        start: BatchOffset = planner.initial()
        [task] = planner.tasks(start, planner.plan(start, None))
        return list(task.splits)


def measured(read: Callable[[], int], rows: int) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    came = read()
    spent = time.perf_counter() - wall, time.process_time() - processor
    assert came == rows, f"{came} of {rows} records"
    return spent


def ours_read(source: KinesisSource, slices: list[KinesisSplit]) -> int:
    return sum(part.rows.num_rows for part in read_slices(source, slices))


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
