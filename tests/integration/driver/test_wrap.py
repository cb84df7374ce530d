"""The purpose of wrapping: a slow split loses no row, an idle split stops no other, one bad time spoils nothing."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import NotifyNewLowWatermark, WatermarkStrategy
from prometheus_client.parser import text_string_to_metric_families
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, run, run_at_once, seconds, start, us, windows

TEN_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")

# "slow" is eight minutes behind "fast"; each batch holds both.
SKEWED = [
    [("fast", 1, 500), ("slow", 1, 20)],
    [("fast", 1, 510), ("slow", 1, 30)],
    [("fast", 1, 520), ("slow", 1, 40)],
    [("fast", 1, 530), ("slow", 1, 50)],
]
END = [[("fast", 1, 1000), ("slow", 1, 1000)]]
CLOSED = {
    (at, split): 1 for split, times in (("fast", range(500, 540, 10)), ("slow", range(20, 60, 10))) for at in times
}


def wrapped(service: LowWatermarkService, feed: Feed, strategy: WatermarkStrategy = TEN_SECONDS) -> DataFrame:
    return service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=strategy, splits=["fast", "slow"]
    )


def test_a_slow_split_loses_nothing_and_spark_and_listeners_have_every_low_watermark(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    heard: list[int] = []

    class Listener:
        def on_new_low_watermark(self, message: NotifyNewLowWatermark) -> None:
            heard.append(message.new_low_watermark)

    service.add_listener(Listener())
    ran = run_at_once(windows(wrapped(service, feed), "split"), feed, SKEWED + END, checkpoint)

    assert sorted(ran.rows) == sorted((*window, n) for window, n in CLOSED.items())
    assert ran.dropped == 0
    assert ran.low == 1000 - 10 - 0.001

    in_heartbeat = [offset.low_us for offset in ran.heartbeats]
    used = [progress.watermark_us for progress in ran.progress]
    assert used[0] == 0
    assert used[1:] == [0 if low is None else low for low in in_heartbeat[:-1]], "that of the batch before"
    assert used[-1] == service.status("orders").low_watermark_us

    ran.query.stop()
    service.stop()  # it waits for its listeners
    assert [seconds(low) for low in heard] == [n - 0.001 for n in (10, 20, 30, 40, 990)]


def test_native_spark_loses_the_slow_split(feed: Feed, checkpoint: str) -> None:
    """The test above could not fail on data that Spark itself does not drop."""
    native = feed.df.withWatermark("ts", "10 seconds")
    ran = run_at_once(windows(native, "split"), feed, SKEWED + END, checkpoint)

    assert ran.by_split() == {"fast": 4, "slow": 2}
    assert ran.dropped == 2


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_every_other_output_mode(service: LowWatermarkService, feed: Feed, checkpoint: str, mode: str) -> None:
    ran = run_at_once(windows(wrapped(service, feed), "split"), feed, SKEWED + END, checkpoint, mode=mode)

    last = {(start_, split): n for start_, split, n in ran.rows if start_ < 900}
    assert last == CLOSED
    assert ran.dropped == 0


def test_the_report_of_a_batch_is_in_the_next_heartbeat(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """The files exist beforehand, so batches follow each other without a pause; live/test_kafka_lossless has 100."""
    for n in range(12):
        feed.put(("fast", 1, 500 + n), ("slow", 1, n))
    ran = start(windows(wrapped(service, feed), "split"), checkpoint)
    ran.settle()

    reported = [p for p in ran.progress if p.sources[0].num_input_rows > 0]
    assert len(reported) == 12
    heartbeats = {p.batch_id: p.heartbeats()[0][1].low_us for p in ran.progress}
    lows = [seconds(heartbeats[p.batch_id + 1]) for p in reported]
    assert lows == [n - 10 - 0.001 for n in range(12)]


def test_an_idle_split_stops_nobody(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    ran = run_at_once(
        windows(wrapped(service, feed, TEN_SECONDS.with_idleness("50 milliseconds")), "split"),
        feed,
        # Gaps between batches that are longer than half the timeout count for a quarter: five make the slow split idle.
        [[("fast", 1, 100), ("slow", 1, 90)], *([("fast", 1, at)] for at in range(200, 900, 100))],
        checkpoint,
    )

    assert (200, "fast", 1) in ran.rows
    assert service.status("orders").splits["slow"].state.value == "idle"


def test_without_idleness_a_declared_split_is_waited_for_before_its_first_row_and_when_it_is_silent(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    ran = run_at_once(
        windows(wrapped(service, feed), "split"), feed, [[("fast", 1, 490)], [("fast", 1, 500)]], checkpoint
    )
    assert (ran.low, service.status("orders").holder) == (None, "slow")

    for batch in (SKEWED[0], [("fast", 1, 900)]):
        feed.put(*batch)
    ran.settle()
    status = service.status("orders")
    assert ran.rows == []
    assert (status.holder, seconds(status.low_watermark_us)) == ("slow", 20 - 10 - 0.001)
    assert "slow" in service.explain("orders")


def test_a_restart_goes_on_where_the_checkpoint_stands(
    spark: SparkSession, feed: Feed, checkpoint: str, tmp_path: Path
) -> None:
    """The first batch after the restart holds only the fast split; the run must still wait for the slow split."""
    lows, rans = [], []
    for half in (SKEWED[:2], [[("fast", 1, 700)], *SKEWED[2:], *END]):
        with LowWatermarkService(spark) as service:
            ran = run(windows(wrapped(service, feed), "split"), feed, half, checkpoint)
            lows += [low for low in (offset.low_us for offset in ran.heartbeats) if low is not None]
            rans.append((ran, ran.rows))
            ran.query.stop()

    ran, rows = rans[-1]
    assert lows == sorted(lows)
    assert sorted(row for row in rows if row[0] < 900) == [
        (20, "slow", 1), (30, "slow", 1), (40, "slow", 1), (50, "slow", 1),
        (500, "fast", 1), (510, "fast", 1), (520, "fast", 1), (530, "fast", 1), (700, "fast", 1),
    ]  # fmt: skip
    assert ran.dropped == 0


def test_a_checkpoint_of_before_the_last_report_loses_no_row(
    spark: SparkSession, feed: Feed, checkpoint: str, tmp_path: Path
) -> None:
    """A copy of a running query's checkpoint may have Spark's files of an earlier batch than the last report."""
    with LowWatermarkService(spark) as service:
        ran = run(windows(wrapped(service, feed), "split"), feed, SKEWED[:1], checkpoint)
        shutil.copytree(checkpoint, tmp_path / "copy", ignore=shutil.ignore_patterns("lowmark"))
        for batch in (*SKEWED[1:], *END):
            feed.put(*batch)
            ran.settle()
        ran.query.stop()
    Path(checkpoint, "lowmark").rename(tmp_path / "copy/lowmark")
    with LowWatermarkService(spark) as service:
        ran = start(windows(wrapped(service, feed), "split"), str(tmp_path / "copy"))
        ran.settle()
        ran.query.stop()
    assert ran.dropped == 0
    assert sorted(ran.rows) == sorted((*window, n) for window, n in CLOSED.items())


def test_a_join_of_two_wrapped_streams_follows_the_slower(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    left, right = Feed(spark, tmp_path / "left"), Feed(spark, tmp_path / "right")
    sides = [
        service.wrap(side.df, name=name, event_time="ts", split="split", splits=["a"]).select(
            F.col("v").alias(f"{name}_v"), F.col("ts").alias(f"{name}_ts")
        )
        for name, side in (("left", left), ("right", right))
    ]
    near = F.expr("left_v = right_v and right_ts between left_ts and left_ts + interval 30 seconds")
    ran = start(sides[0].join(sides[1], near, "leftOuter").select("left_v", "right_v"), checkpoint)
    left.put(("a", 1, 100), ("a", 2, 110), ("a", 3, 5000))
    ran.settle()
    right.put(("a", 1, 105))
    ran.settle()
    assert ran.rows == [(1, 1)], "the right side is far behind, so the left row 2 must wait"
    right.put(("a", 2, 120), ("a", 9, 5000))
    ran.settle()

    assert ran.rows == [(1, 1), (2, 2)]
    assert ran.dropped == 0


def in_python() -> WatermarkStrategy:
    """A strategy whose rows pass through Python, on every Spark; each event emits a watermark 5 seconds behind."""

    class Behind:
        def on_event(self, event: object, timestamp_us: int, output: object) -> None:
            output.emit_watermark(timestamp_us - 5_000_000)  # type: ignore[attr-defined]

        def on_periodic_emit(self, output: object) -> None: ...

    return WatermarkStrategy.for_generator(Behind)


def test_a_timestamp_assigner_and_a_generator_in_python(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """Event time is v seconds after 0; each event emits a watermark 5 seconds behind."""

    strategy = in_python().with_timestamp_assigner(lambda row, _: us(row["v"]))
    ran = run_at_once(
        windows(wrapped(service, feed, strategy), "split"),
        feed,
        [[("fast", 500, None), ("slow", 20, None)], [("fast", 600, None), ("slow", 100, None)]],
        checkpoint,
    )

    assert ran.rows == [(20, "slow", 1)]
    assert ran.low == 95
    assert service.status("orders").counts.rows == 4


@pytest.mark.parametrize("by_batches", [False, True])
def test_values_that_python_does_not_have_end_no_query(
    service: LowWatermarkService, feed: Feed, checkpoint: str, by_batches: bool
) -> None:
    """A device sends milliseconds as seconds; Spark casts a key that is no UTF-8 to string as it is."""
    far, broken = F.timestamp_seconds(F.lit(1_764_000_000_000)), F.expr("cast(X'636166E9' as string)")
    strategy = WatermarkStrategy.for_monotonous_timestamps() if by_batches else in_python()
    strategy = strategy.with_timestamp_assigner(
        lambda row, _: us(row["v"]) if (row["far"], row["broken"]) == (None, "caf\ufffd") else 0
    )
    df = service.wrap(
        feed.df.withColumn("far", far).withColumn("broken", broken),
        name="orders", event_time="ts", split=["split", "broken"], strategy=strategy,
    )  # fmt: skip
    rows = df.select("split", F.unix_seconds("far"), F.hex("broken"), "ts")
    ran = run_at_once(rows.selectExpr("* except (ts)", "unix_micros(ts)"), feed, [[("a", 20, None)]], checkpoint)
    assert ran.rows == [("a", 1_764_000_000_000, "636166E9", us(20))]
    assert list(service.status("orders").splits) == ["a/caf\\udce9"]


def test_a_batch_of_heartbeats_alone_is_not_one_that_was_not_measured(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query has several heartbeat rows, one for each stream, and a batch of one stream has no row of the other."""
    feeds = [Feed(spark, tmp_path / name) for name in "ab"]
    a, b = (
        service.wrap(feed.df, name=feed.folder.name, event_time="ts", split="split", strategy=in_python())
        for feed in feeds
    )
    ran = start(a.join(b.select("v", F.col("ts").alias("t2")), "v"), checkpoint)
    for n in range(3):
        feeds[0].put(("x", n, 100 + n), ("x", n, 100 + n))
        if n:
            feeds[1].put(("x", n, 100 + n))
        ran.settle()
    rows = [[source.num_input_rows for source in progress.sources] for progress in ran.progress]
    assert [0, 1, 0, 1] in rows, f"a batch of heartbeats alone: {rows}"
    assert [2, 0, 0, 0] in rows, f"a batch of one stream alone: {rows}"
    assert "not measured" not in caplog.text


def test_a_batch_that_is_read_in_part_is_not_measured_and_that_is_told(
    service: LowWatermarkService, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    def take(batch: DataFrame, _batch_id: int) -> None:
        batch.take(1)

    df = wrapped(service, feed, in_python())
    query = df.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
    feed.put(*[("x", n, 100 + n) for n in range(50_000)])
    query.processAllAvailable()
    assert service.status("orders").counts.rows == 0
    assert "the batch was not measured, so the watermark holds" in caplog.text


@pytest.mark.parametrize("inherits", [False, True])
def test_a_batch_that_the_users_own_threads_read_is_measured_if_they_know_it(
    service: LowWatermarkService,
    spark: SparkSession,
    feed: Feed,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    inherits: bool,
) -> None:
    def in_pool(batch: DataFrame, _batch_id: int) -> None:
        count: Callable[[], int] = inheritable_thread_target(spark)(batch.count) if inherits else batch.count
        counted.append(pool.submit(count).result())

    counted: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        df = wrapped(service, feed, in_python())
        query = df.writeStream.foreachBatch(in_pool).option("checkpointLocation", checkpoint).start()
        for n in range(2):
            feed.put(("fast", n, 100 + n), ("slow", n, 200 + n))
            query.processAllAvailable()
        query.stop()
    assert sum(counted) == 4
    assert service.run_statuses()[-1].status.counts.rows == (4 if inherits else 0)
    assert ("pyspark.inheritable_thread_target(spark)(function)" in caplog.text) == (not inherits)


def test_a_task_that_computes_several_partitions_counts_the_rows_of_all(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    for n in range(4):  # a batch of several partitions
        feed.put(("fast", n, 100 + n), ("slow", n, 200 + n))
    ran = start(wrapped(service, feed, in_python()).coalesce(1), checkpoint)
    ran.settle()
    status = service.status("orders")
    assert (len(ran.rows), status.counts.rows) == (8, 8)


def test_rows_and_earliest_times_per_split_on_demand(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    df = service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=TEN_SECONDS, splits=["a", "b"], detail=True
    )
    run_at_once(windows(df), feed, [[("a", 1, 100), ("a", 1, 130), ("b", 1, 120)]], checkpoint)
    splits = service.status("orders").splits

    assert {name: (s.rows, seconds(s.first_us)) for name, s in splits.items()} == {"a": (2, 100), "b": (1, 120)}


def test_a_name_with_quotes_comes_through_spark_checkpoint_status_and_metrics(
    spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    stream, split = 'or"d`e\\rs 2', "a'b\"c`d\\e"
    with LowWatermarkService(spark, metrics_port=0) as service:

        def wrapped_again() -> DataFrame:
            name = stream if feed.files == 0 else f"{stream} again"
            return service.wrap(feed.df, name=name, event_time="ts", split="split")

        ran = run_at_once(windows(wrapped_again(), "split"), feed, [[(split, 1, 100)], [(split, 1, 200)]], checkpoint)
        status = service.status(stream)
        assert status.holder == split
        assert [offset.stream for offset in ran.heartbeats] == [stream] * len(ran.heartbeats)
        scraped = scrape(service)
        ran.query.stop()
        again = run_at_once(windows(wrapped_again(), "split"), feed, [[(split, 1, 300)]], checkpoint)
        again.query.stop()

    assert ran.by_split() == {split: 1}
    assert again.by_split() == {split: 1}
    [low] = [labels for name, labels in scraped if name == "lowmark_low_watermark_timestamp_seconds"]
    assert low["stream"] == stream


def test_the_event_time_column_may_have_a_name_that_sql_has_to_quote(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    column = "paid `at` ü.1"
    df = service.wrap(
        feed.df.withColumnRenamed("ts", column), name="orders", event_time=column, split="split", splits=["a"]
    )
    ran = run_at_once(
        windows(df.withColumnRenamed(column, "ts"), "split"), feed, [[("a", 1, 100)], [("a", 1, 200)]], checkpoint
    )

    assert ran.by_split() == {"a": 1}
    assert ran.low == 200 - 0.001


def test_the_event_time_of_an_earlier_query_is_a_column_like_others(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """Spark writes the mark of an event time into Parquet files, and a schema that is read from the files has it."""
    arrived = F.col("ts").alias("arrived.at", metadata={"spark.watermarkDelayMs": 5_000})
    df = service.wrap(feed.df.select("*", arrived), name="orders", event_time="ts", split="split", splits=["a"])
    ran = run_at_once(
        windows(df, "split", "`arrived.at`").drop("arrived.at"), feed, [[("a", 1, 100)], [("a", 1, 200)]], checkpoint
    )

    assert ran.by_split() == {"a": 1}
    assert df.schema["arrived.at"].metadata == {}


def scrape(service: LowWatermarkService) -> list[tuple[str, dict[str, str]]]:
    """Name and labels of every sample of a scrape, read by Prometheus' own parser."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [(sample.name, sample.labels) for family in families for sample in family.samples]
