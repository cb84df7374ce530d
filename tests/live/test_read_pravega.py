"""`LowWatermarkService.read` and the format `lowmark_pravega` on a real Pravega, through scalings and a restart."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.spark import register
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers.pravega_group import set_to
from tests.servers.local import wait_until
from tests.servers.pravega import JARS, Pravega, Writer
from tests.snippets import block, read_all
from tests.sparks import run_to_the_end

START_MS = 1_700_000_000_000
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
SHUFFLE_MS = 8_000
Windows = Counter[tuple[str, int]]


def rows(rng: random.Random, begin: int, end: int, behind_ms: int = 0) -> list[dict[str, object]]:
    """Return rows of 40 keys by number, half a second apart, shuffled within the strategy's bound."""
    return [
        {"key": f"k{rng.randrange(40)}", "at": START_MS + n * 500 - behind_ms - rng.randrange(SHUFFLE_MS), "n": n}
        for n in range(begin, end)
    ]


def last(number: int) -> list[dict[str, object]]:
    """Return rows that close every earlier window; their many keys reach every segment."""
    return [{"key": f"last{n}", "at": START_MS + number * 500 + 600_000, "n": -1} for n in range(150)]


def windows(df: DataFrame) -> DataFrame:
    counted = df.groupBy("stream", F.window("event_time", "1 minute").alias("w")).count()
    return counted.select("stream", F.unix_millis("w.start").alias("start_ms"), "count")


def expected(sent: list[tuple[str, dict[str, object]]], before_ms: int) -> Windows:
    counts: Windows = Counter()
    for stream, row in sent:
        at = row["at"]
        assert isinstance(at, int)
        if (start_ms := at // 60_000 * 60_000) + 60_000 <= before_ms:
            counts[stream, start_ms] += 1
    return counts


class Sink:
    """Keeps the emitted windows."""

    def __init__(self) -> None:
        self.windows: Windows = Counter()
        self.rows = 0

    def take(self, batch: DataFrame, _batch_id: int) -> None:
        for stream, start_ms, count in batch.collect():
            assert (stream, start_ms) not in self.windows, "a window came twice"
            self.windows[stream, start_ms] = count


@pytest.fixture
def service(spark: SparkSession) -> Iterator[LowWatermarkService]:
    with LowWatermarkService(spark) as service:
        yield service
        for query in spark.streams.active:
            query.stop()


def late(query: Any) -> int:
    return sum(op["numRowsDroppedByWatermark"] for p in query.recentProgress for op in dict(p)["stateOperators"])


def test_five_scalings_while_it_runs_and_two_while_it_is_down_lose_nothing(
    spark: SparkSession, pravega: Pravega, tmp_path: Path
) -> None:
    seed = 7
    rng, sent, number = random.Random(seed), list[tuple[str, dict[str, object]]](), 0
    fast, slow = pravega.create_stream(2), pravega.create_stream(2)  # slow: ten minutes behind
    source = pravega.source(fast, slow, event_time="$.at")
    sink = Sink()

    def write(count: int) -> None:
        nonlocal number
        for stream, behind_ms in ((fast, 0), (slow, 600_000)):
            some = rows(rng, number, number + count, behind_ms)
            pravega.write_json(stream, some)
            sent.extend((stream, row) for row in some)
        number += count

    def start(service: LowWatermarkService) -> Any:
        df = service.read(source, name="orders", strategy=STRATEGY, max_rows_per_batch=400)
        writer = windows(df).writeStream.outputMode("append").foreachBatch(sink.take)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    write(150)
    with LowWatermarkService(spark) as service:
        query = start(service)
        split, merge = pravega.split_one, pravega.merge_two
        for change, stream in ((split, fast), (split, slow), (merge, fast), (merge, slow), (split, fast)):
            change(stream)
            write(100)
        query.processAllAvailable()
        dropped = late(query)
        query.stop()
    for of_fast, of_slow in ((merge, split), (split, merge)):
        of_fast(fast)
        of_slow(slow)
        write(75)
    ends = last(number)
    for stream in (fast, slow):
        pravega.write_json(stream, ends)
    with LowWatermarkService(spark) as service:
        query = start(service)
        wanted = expected(sent, START_MS + number * 500 + 590_000 - 60_000)
        wait_until(
            lambda: not query.exception() and sum(sink.windows.values()) >= len(sent), "every window", seconds=90
        )
        status = service.status("orders")
        assert (dropped, late(query), status.returned_late) == (0, 0, 0), f"seed {seed}"
        query.stop()
    got = Counter({window: count for window, count in sink.windows.items() if window in wanted})
    assert got == wanted, f"seed {seed}"
    assert sum(wanted.values()) == len(sent)


def test_time_in_a_payload_that_the_source_does_not_know(
    spark: SparkSession, service: LowWatermarkService, pravega: Pravega, tmp_path: Path
) -> None:
    rng = random.Random(3)
    stream, sink = pravega.create_stream(3), Sink()
    sent = rows(rng, 0, 450)
    pravega.write_json(stream, sent)
    pravega.write_json(stream, last(450))

    def prepare(df: DataFrame) -> DataFrame:
        return df.selectExpr(
            "split_id", "stream",
            "timestamp_millis(get_json_object(cast(event as string), '$.at')::bigint) as event_time",
        )  # fmt: skip

    df = service.read(
        pravega.source(stream), name="orders", strategy=STRATEGY, event_time="event_time", prepare=prepare,
        max_rows_per_batch=150,
    )  # fmt: skip
    writer = windows(df).writeStream.outputMode("append").foreachBatch(sink.take)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    wait_until(lambda: not query.exception() and sum(sink.windows.values()) >= 450, "every window", seconds=90)
    assert sink.windows == expected([(stream, row) for row in sent], START_MS + 1_000_000)
    assert late(query) == 0


def test_what_the_page_shows(service: LowWatermarkService, pravega: Pravega, tmp_path: Path) -> None:
    """The program of pravega.md, changed only in the addresses."""
    stream = pravega.create_stream(2)
    pravega.write_json(stream, rows(random.Random(7), 0, 100))
    code = block("pravega.md", "from lowmark.sources.pravega import")
    instead = {
        "tcp://pravega:9090": pravega.controller,
        '"shop"': f'"{pravega.scope}", jars="{JARS}"',
        '["orders"]': f'["{stream}"]',
    }
    read_all(code, instead, {"service": service, "strategy": STRATEGY}, tmp_path / "checkpoint")
    assert service.status("orders").counts.rows == 100


def test_a_plain_stream_reads_the_format_and_goes_on_after_a_restart(
    spark: SparkSession, pravega: Pravega, tmp_path: Path
) -> None:
    stream = pravega.create_stream(2)
    register(spark)
    reader = spark.readStream.format("lowmark_pravega").option("controller", pravega.controller)
    reader = reader.option("scope", pravega.scope).option("streams", stream).option("jars", JARS)
    reader = reader.option("splitColumn", "split_id").option("maxRowsPerBatch", "60")
    seen: list[tuple[str, bytes]] = []

    def run() -> None:
        writer = reader.load().writeStream.trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, _: seen.extend((r["split_id"], r["event"]) for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
        assert query.awaitTermination(120)

    pravega.write_json(stream, rows(random.Random(1), 0, 100))
    run_to_the_end(run, seen)
    assert {split for split, _ in seen} == {f"{stream}/0.#epoch.0", f"{stream}/1.#epoch.0"}
    pravega.write_json(stream, rows(random.Random(2), 100, 140))
    pravega.split_one(stream)
    pravega.write_json(stream, rows(random.Random(3), 140, 200))
    # A run ends with the segments known at its start: a sealed segment in this run, its successors in the next.
    for _ in range(2):
        run_to_the_end(run, seen)
    assert sorted(json.loads(event)["n"] for _, event in seen) == list(range(200)), "each event once"
    assert len({split for split, _ in seen}) == 4


def test_in_one_group_with_another_stream_neither_runs_ahead_of_the_drift(
    spark: SparkSession, service: LowWatermarkService, pravega: Pravega, tmp_path: Path
) -> None:
    stream = pravega.create_stream(2)
    pravega.write_json(stream, rows(random.Random(5), 0, 1_200))  # ten minutes
    drift = "2 minutes"
    strategy = STRATEGY.with_watermark_alignment(group="g", max_drift=drift)
    script = StreamScript((SplitScript("a", 5),), START_MS * 1_000, 60, 10_000_000, 1)
    generated = GeneratorSource(script, seed=1, ticks_per_batch=4)  # forty seconds a batch
    queries = []
    for name, source in (("pravega", pravega.source(stream, event_time="$.at")), ("generated", generated)):
        df = service.read(source, name=name, strategy=strategy)
        writer = df.writeStream.format("noop")
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
    drift_us, batch_us = 120_000_000, 40_000_000
    beyond: dict[str, list[int]] = {"pravega": [], "generated": []}
    free_us: list[int] = []  # how far the generator came alone, and two batches that were planned by then

    def over() -> bool:
        # Each is compared with a later look at the other, because both go on between two looks.
        names = ("generated", "pravega", "generated")
        before, marked, after = (service.status(name).low_watermark_us for name in names)
        if before is not None and marked is not None and after is not None:
            free_us.append(after + 2 * batch_us)  # a group does not wait for a stream that has not spoken
            beyond["pravega"].append(marked - after - drift_us)
            beyond["generated"].append(before - max(free_us[0], marked + drift_us))
        return any(query.exception() for query in queries) or (marked or 0) > (START_MS + 540_000) * 1_000

    wait_until(over, "Pravega read to its end", seconds=120)
    assert not any(query.exception() for query in queries)
    for name, by_us in beyond.items():
        assert max(by_us) <= 1_000, f"{name} ran {max(by_us) / 1e6} s beyond the drift"


def all_out(query: StreamingQuery, sink: Sink, rows: int) -> bool:
    assert query.exception() is None
    return sum(sink.windows.values()) >= rows


def test_batches_of_a_reader_group_go_on_after_a_restart_and_a_scaling(
    spark: SparkSession, pravega: Pravega, tmp_path: Path
) -> None:
    stream, group, sink = pravega.create_stream(2), f"g{uuid.uuid4().hex[:8]}", Sink()
    source = pravega.source(stream, event_time="$.at", reader_group=group)
    sent = rows(random.Random(9), 0, 600)
    set_before = 0
    for part, more in ((sent[:300], []), (sent[300:], last(600))):
        pravega.write_json(stream, [*part, *more])
        with LowWatermarkService(spark) as service:
            df = service.read(source, name="orders", strategy=STRATEGY)
            writer = windows(df).writeStream.outputMode("append").foreachBatch(sink.take)
            query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
            if not more:
                pravega.split_one(stream)
                query.processAllAvailable()
            else:
                wait_until(partial(all_out, query, sink, 600), "every window", seconds=90)
            assert (query.exception(), late(query)) == (None, 0)
            query.stop()
        times, _ = set_to(pravega, group)
        assert times > set_before, "a start sets the group to Spark's offset"
        set_before = times
    assert sink.windows == expected([(stream, row) for row in sent], START_MS + 700_000)


def test_the_low_watermark_reaches_the_newest_time_that_writers_noted(
    service: LowWatermarkService, pravega: Pravega, tmp_path: Path
) -> None:
    stream = pravega.create_stream(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("0 seconds")
    df = service.read(pravega.source(stream, noted_time=True), name="orders", strategy=strategy)
    query = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()

    def low_ms() -> int:
        assert query.exception() is None
        return (service.status("orders").low_watermark_us or 0) // 1_000

    def noted(writer: Writer, time_ms: int) -> bool:
        writer.note_time(time_ms)
        return low_ms() >= time_ms - 2

    noted_ms = 0
    with pravega.writer(stream) as writer:
        for noted_ms in (START_MS + 90_000, START_MS + 100_000):
            writer.write(("k", b"%d" % n) for n in range(20))
            wait_until(partial(noted, writer, noted_ms), f"{noted_ms} reached", seconds=60)
    assert low_ms() <= noted_ms
    query.stop()


def test_a_stream_that_is_deleted_while_it_is_read_ends_the_query_with_its_name(
    service: LowWatermarkService, pravega: Pravega, tmp_path: Path
) -> None:
    stream = pravega.create_stream(1)
    pravega.write_json(stream, rows(random.Random(1), 0, 50))
    df = service.read(pravega.source(stream, event_time="$.at"), name="orders", strategy=STRATEGY)
    query = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    query.processAllAvailable()
    pravega.delete_stream(stream)
    failed = wait_until(query.exception, "the query ended", seconds=60)
    assert f"stream shop/{stream} is not there" in str(failed)
    assert "it was deleted" in str(failed) or re.search("look up the (segments|successors)", str(failed))
