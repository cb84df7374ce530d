"""`late=`: a row is marked exactly if Spark drops it, batch by batch, on random streams.

Spark's own judgement is `dropDuplicates` with the event time among its columns: it passes on every row with an id of
its own, except for rows at or below the watermark. The query observes which rows are marked before that operator.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import WrapRefused
from lowmark.watermark import WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import ZERO, ZERO_US, Feed, Ran, Row, lose_commit, run, run_at_once, start, us
from tests.integration.log import Log, LogSource
from tests.snippets import blocks_of, path_of
from tests.sparks import settings

SPLITS = ["a", "b", "c"]


def random_batches(seed: int, count: int) -> list[list[Row]]:
    """Batches in which the splits' times grow, with rows that come too late, from before 1970, or without time."""
    draw = random.Random(seed)
    at = dict.fromkeys(SPLITS, 0.0)
    made: list[list[Row]] = []
    v = 0
    for _ in range(count):
        batch: list[Row] = []
        for _ in range(draw.randint(1, 12)):
            split = draw.choice(SPLITS)
            at[split] += draw.choice([0, 0.001, 1, 10])
            behind = draw.choice([0, 0, 0, 0.001, 0.0005, 5, 30])
            batch.append((split, v, draw.choice([at[split] - behind] * 12 + [None, -1_800_000_000])))
            v += 1
        made.append(batch)
    return made


def before_1970(batches: list[list[Row]]) -> int:
    """The number of rows that are late for every watermark."""
    return sum(at == -1_800_000_000 for batch in batches for *_, at in batch)


def judged(df: DataFrame) -> DataFrame:
    marked = F.collect_set(F.when(F.col("is_late"), F.col("v"))).alias("late")
    return df.observe("judged", marked).dropDuplicates(["v", "ts"]).select("v", "is_late")


class Judgement:
    """What Spark made of each batch: ids of the rows it was given, passed on, and marked."""

    def __init__(self) -> None:
        self.emitted: dict[int, list[Row]] = {}
        self.marked: dict[int, set[int]] = {}
        self.dropped: dict[int, int] = {}
        self.watermark_us: dict[int, int] = {}

    def take(self, ran: Ran) -> None:
        for progress in ran.progress:
            self.marked[progress.batch_id] = set(progress.observed_metrics.get("judged", {}).get("late", []))
            self.dropped[progress.batch_id] = progress.dropped_rows
            self.watermark_us[progress.batch_id] = progress.watermark_us or 0

    def check(self, batches: list[list[Row]], note: str) -> int:
        """Compare with Spark's drops and with the definition; return the number of late rows."""
        marked = set().union(*self.marked.values())
        passed = {v for rows in self.emitted.values() for v, _ in rows}
        assert not any(is_late for rows in self.emitted.values() for _, is_late in rows), note
        assert marked | passed == {v for batch in batches for _, v, _ in batch}, note
        assert not marked & passed, note
        for batch_id, late in self.marked.items():
            assert len(late) == self.dropped[batch_id], f"{note}, batch {batch_id}"
        times = {v: None if ts is None else ZERO_US + round(ts * 1e6) for batch in batches for _, v, ts in batch}
        for batch_id, rows in self.emitted.items():
            limit_us = self.watermark_us.get(batch_id - 1, 0)
            mine = {v for v, _ in rows} | self.marked[batch_id]
            late = {v for v in mine if (at_us := times[v]) is not None and at_us <= limit_us}
            assert late == self.marked[batch_id], f"{note}, batch {batch_id}"
        return len(marked)


# This row is late for every watermark. The row moves no watermark, so no batch follows its batch, which runs again.
LATE: Row = ("a", 1_000, -100)


@pytest.mark.parametrize("seed", [311, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (20, 148))])
def test_a_row_is_marked_if_spark_drops_it_also_when_a_batch_runs_again(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    batches, seen = random_batches(seed, 6), Judgement()
    feed, checkpoint = Feed(spark, tmp_path / "feed"), str(tmp_path / "checkpoint")
    for part in (batches[:4], batches[4:]):
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=SPLITS, late="is_late")
        ran = run_at_once(judged(df), feed, part, checkpoint, emitted=seen.emitted)
        if part[0] is batches[0]:
            feed.put(LATE)
            ran.settle()
        seen.take(ran)
        ran.query.stop()
        if part[0] is batches[0]:
            assert seen.marked[lose_commit(checkpoint)] == {1_000}
    late = seen.check([*batches, [LATE]], f"seed {seed}")
    assert late > before_1970(batches) + 1, "no other row was late, so the test shows nothing"


@pytest.mark.parametrize("seed", [116, pytest.param(392, marks=pytest.mark.torture)])
def test_the_input_is_the_windows_and_the_rows_that_they_dropped(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    batches = [*random_batches(seed, 6), [(split, -1, 100_000) for split in SPLITS]]
    feed, checkpoint = Feed(spark, tmp_path / "feed"), str(tmp_path / "checkpoint")
    emitted: dict[int, list[Row]] = {}
    for part in (batches[:4], batches[4:]):
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=SPLITS, watermark="passed")
        ran = run_at_once(windows_and_dropped(df), feed, part, checkpoint, emitted=emitted)
        if part[0] is batches[0]:
            feed.put(LATE)
            ran.settle()
        ran.query.stop()
        if part[0] is batches[0]:
            assert [row[0] for row in emitted[lose_commit(checkpoint)]] == [True]
    rows = [row for rows in emitted.values() for row in rows]
    check_windows_and_dropped(rows, [*batches, [LATE]], f"seed {seed}")
    dropped = sum(n for is_dropped, _, _, n in rows if is_dropped)
    assert dropped > before_1970(batches) + 1, f"seed {seed}: no other row was dropped, so the test shows nothing"


def windows_and_dropped(df: DataFrame) -> DataFrame:
    """Windows of ten seconds, and in the same batches the rows that they drop: (dropped, start, split, rows)."""
    window = F.window("ts", "10 seconds")
    counted = df.groupBy(window.alias("w"), "split").count().withColumn("dropped", F.lit(False))
    dropped = df.withColumn("w", window).filter("w.end <= passed").select("w", "split", F.lit(1).alias("count"))
    both = counted.unionByName(dropped.withColumn("dropped", F.lit(True)))
    return both.select("dropped", F.unix_micros("w.start").alias("start"), "split", "count")


def check_windows_and_dropped(rows: list[Row], batches: list[list[Row]], note: str) -> None:
    """Compare with the input: every row with a time is counted in its window or dropped, once."""
    width_us = 10_000_000
    rows_in = [row for batch in batches for row in batch]
    fed = Counter((split, us(at) // width_us * width_us) for split, v, at in rows_in if at is not None and v >= 0)
    found: Counter[tuple[str, int]] = Counter()
    for _, start_us, split, n in rows:
        found[split, start_us] += n
    assert found == fed, note
    assert len({(split, at) for dropped, at, split, _ in rows if not dropped}) == sum(not row[0] for row in rows), note
    assert any(row[0] for row in rows), f"{note}: no row was dropped, so the test shows nothing"


def test_a_row_at_the_watermark_is_late_and_a_row_a_microsecond_later_is_not(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a"], late="is_late")
    fed = [[("a", n, n)] for n in (10, 31)]
    ran = run(judged(df), feed, [*fed, [("a", 1, 30.999), ("a", 2, 30.999001)]], checkpoint)
    marked = [set(progress.observed_metrics["judged"]["late"]) for progress in ran.progress]
    assert set().union(*marked) == {1}, [(p.watermark_us, p.num_input_rows) for p in ran.progress]
    assert ran.dropped == 1


def test_available_now_marks_every_batch(service: LowWatermarkService, spark: SparkSession, tmp_path: Path) -> None:
    batches, seen, feed = random_batches(7, 6), Judgement(), Feed(spark, tmp_path / "feed")
    for part in (batches[:4], batches[4:]):
        for batch in part:
            feed.put(*batch)
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=SPLITS, late="is_late")
        ran = start(judged(df), str(tmp_path / "checkpoint"), emitted=seen.emitted, trigger={"availableNow": True})
        ran.query.awaitTermination()
        seen.take(ran)
    assert seen.check(batches, "seed 7") > 0


@pytest.mark.parametrize("used", [True, False])
def test_a_query_that_does_not_use_the_column_does_not_ask_for_it(
    service: LowWatermarkService, feed: Feed, checkpoint: str, used: bool
) -> None:
    df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a"], late="is_late")
    ran = run(df if used else df.drop("is_late"), feed, [[("a", 1, 1)]], checkpoint)
    plan = ran.query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert ("lowmark_late" in plan) == used


@pytest.mark.parametrize("keep", ["is_late", "not is_late"])
def test_a_filter_on_the_column_leaves_the_watermark_alone(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str, keep: str
) -> None:
    with settings(spark, {"spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true"}):
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a"], late="is_late")
        batches = [[("a", n, n)] for n in (10, 20, 30, 25, 5)]
        ran = run_at_once(df.filter(keep).select("v"), feed, batches, checkpoint)
    late = keep == "is_late"
    assert ran.rows == ([(5,)] if late else [(10,), (20,), (30,), (25,)]), ran.progress
    assert ran.low == 29.999


def counted(service: LowWatermarkService, batches: list[list[Row]], marked: set[int]) -> None:
    """Compare the counts by split with the marked rows."""
    late = Counter(split for batch in batches for split, v, _ in batch if v in marked)
    assert late, "no row was late, so the test shows nothing"
    status = service.status("orders")
    assert {name: split.late_rows for name, split in status.splits.items()} == {s: late[s] for s in status.splits}


@pytest.mark.parametrize("of", ["assigner", "generator"])
def test_rows_measured_in_python_are_marked_and_counted_by_split(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, of: str
) -> None:
    batches, feed, seen = random_batches(243, 6), Feed(spark, tmp_path / "feed"), Judgement()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(same_time)
    if of == "generator":
        strategy = WatermarkStrategy.for_generator(Latest)
    df = service.wrap(
        feed.df, name="orders", event_time="ts", split="split", splits=SPLITS, strategy=strategy, late="is_late"
    )
    seen.take(run_at_once(judged(df), feed, batches, str(tmp_path / "checkpoint"), emitted=seen.emitted))
    assert seen.check(batches, "seed 243") > before_1970(batches), "no other row was late, so the test shows nothing"
    counted(service, batches, set().union(*seen.marked.values()))


def test_rows_of_a_source_are_marked_and_counted_by_split(service: LowWatermarkService, tmp_path: Path) -> None:
    log, draw, strategy = Log(tmp_path / "log"), random.Random(5), WatermarkStrategy.for_monotonous_timestamps()
    marked = F.collect_list(F.when(F.col("late"), F.col("split_id"))).alias("late")
    found: Counter[str] = Counter()
    at, watermark_us = 0.0, 0
    for _ in range(3):
        for split in "ab":
            at += 1
            behind = [draw.choice([0, 0, 7.5, 30]) for _ in range(3)]
            log.append(split, *(at - each + n / 1_000 for n, each in enumerate(behind)))
        if watermark_us:
            log.append("a", (watermark_us - ZERO_US) / 1e6)  # exactly at the watermark
        df = service.read(LogSource(log.folder), name="log", strategy=strategy, tasks=2, late="late")
        judged = df.observe("judged", marked).dropDuplicates(["split_id", "ts"])
        ran = start(judged, str(tmp_path / "checkpoint"), trigger={"availableNow": True})
        ran.query.awaitTermination()
        watermark_us = ran.progress[-1].watermark_us or 0
        late: Counter[str] = Counter()
        for progress in ran.progress:
            mine = progress.observed_metrics["judged"]["late"]
            assert len(mine) == progress.dropped_rows, f"batch {progress.batch_id}"
            late.update(mine)
        assert {name: each.late_rows for name, each in service.run_statuses()[-1].status.splits.items()} == {
            "a": late["a"], "b": late["b"],
        }  # fmt: skip
        found += late
    assert found, "no row was late, so the test shows nothing"


def test_a_foreachbatch_writes_the_late_rows_of_a_source_apart(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    log, folders = Log(tmp_path / "log"), {"late": tmp_path / "late", "orders": tmp_path / "orders"}

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.filter("is_late").write.mode("overwrite").parquet(f"{folders['late']}/batch={batch_id}")
        batch.filter("not is_late").write.mode("overwrite").parquet(f"{folders['orders']}/batch={batch_id}")

    for at in (100, 200, 50):  # the second run brings the first one's watermark into force
        log.append("a", at)
        df = service.read(LogSource(log.folder), name="log", tasks=1, late="is_late", watermark="passed")
        writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    found = {name: spark.read.parquet(str(folder)).collect() for name, folder in folders.items()}
    times = {
        name: sorted((row.ts - ZERO.replace(tzinfo=None)).total_seconds() for row in found[name]) for name in found
    }
    assert times == {"late": [50], "orders": [100, 200]}
    assert all((row.ts <= row.passed) == row.is_late for rows in found.values() for row in rows)


class Latest:
    """Emits the largest event time."""

    def on_event(self, event: object, timestamp_us: int, output: object) -> None:
        output.emit_watermark(timestamp_us)  # type: ignore[attr-defined]

    def on_periodic_emit(self, output: object) -> None: ...


@pytest.mark.parametrize(("n", "folders"), [(0, ("late", "orders")), (1, ("dropped", "windows"))])
def test_what_the_page_runs(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, n: int, folders: tuple[str, str]
) -> None:
    blocks = blocks_of(path_of("wrap.md").read_text())
    code = [each.text for each in blocks if each.begins == "events = service.wrap("][n]
    code = code.replace("/tmp/", f"{tmp_path}/checkpoint-").replace('"/data/', f'"{tmp_path}/data/')
    feed = Feed(spark, tmp_path / "feed", "topic string, partition string, v int, ts timestamp")
    names = {"orders": feed.df, "service": service, "strategy": WatermarkStrategy.for_monotonous_timestamps(), "F": F}
    exec(code, names)
    [query] = spark.streams.active
    for at in (100, 300, 500, 50, 501):
        feed.put(("orders", "0", at, at))
        query.processAllAvailable()
    late, rest = (spark.read.parquet(f"{tmp_path}/data/{folder}") for folder in folders)
    assert [(row.ts - ZERO.replace(tzinfo=None)).total_seconds() for row in late.select("ts").collect()] == [50]
    assert rest.count() == (2 if n else 4)


def same_time(_row: object, row_us: Any) -> Any:
    return row_us


@pytest.mark.parametrize(
    ("late", "told"), [("v", "exists already"), ("V", "exists already"), ("", "expected the name"), (True, "expected")]
)
def test_a_column_that_cannot_be_added_is_refused(
    service: LowWatermarkService, feed: Feed, late: object, told: str
) -> None:
    with pytest.raises(WrapRefused, match=told):
        service.wrap(feed.df, name="orders", event_time="ts", split="split", late=late)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"late": "is_late"}, {"late_to": "/late"}], ids=lambda given: next(iter(given)))
def test_without_the_watermark_of_the_batch_before_it_is_refused(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, arguments: dict[str, Any]
) -> None:
    with (
        settings(spark, {"spark.sql.streaming.statefulOperator.allowMultiple": "false"}),
        pytest.raises(WrapRefused, match="late rows cannot be told apart exactly"),
    ):
        service.wrap(feed.df, name="orders", event_time="ts", split="split", **arguments)


def test_a_query_whose_log_lacks_batches_is_refused(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a"], late="is_late")
    options = {"checkpointLocation": checkpoint, "asyncProgressTrackingEnabled": "true"}
    for v in range(1, 4):
        feed.put(("a", v, v))
    query = df.select("is_late").writeStream.format("noop").options(**options).start()
    with pytest.raises(StreamingQueryException, match="leave this option out, or late="):
        query.processAllAvailable()


def test_a_query_that_outlives_its_service_ends_in_words(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    with LowWatermarkService(spark) as service:
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["a"], late="is_late")
        ran = run(df.select("is_late"), feed, [[("a", 1, 1)]], checkpoint)
    for v in range(2, 4):
        feed.put(("a", v, v))
    with pytest.raises(StreamingQueryException, match="late rows cannot be told apart"):
        ran.settle()
