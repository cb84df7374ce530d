"""`late_to=`: the rows that Spark drops are in the folder, once each, and no other row is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.offset_log import EVOLUTION
from lowmark.integration.transport.late_files import file_name
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.moment import us_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, Ran, Row, lose_commit, run_at_once, start, us
from tests.integration.log import Log, LogSource
from tests.integration.transport.test_late import (
    LATE,
    SPLITS,
    before_1970,
    check_windows_and_dropped,
    random_batches,
    same_time,
)
from tests.sparks import settings, since

WINDOW = "window(ts, '10 seconds').end"
COLUMNS = ["split", "v", "ts", "until", "watermark", "late_by_us"]


def late_rows(folder: Path) -> list[dict[str, Any]]:
    """Every row of the files in a folder, times in microseconds."""
    found = []
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        assert table.schema.names == COLUMNS
        assert table.num_rows, f"{file.name} has no row"
        for at, column in enumerate(table.schema.names):
            if pa.types.is_timestamp(table.schema.field(column).type):
                table = table.set_column(at, column, table.column(column).cast(pa.int64()))
        found += [{**row, "file": file.name} for row in table.to_pylist()]
    return found


def check_files(folder: Path, batches: list[list[Row]], watermarks_us: dict[int, int], query: str, note: str) -> None:
    """Compare each row of the files with the input and with the watermark of the batch in the file's name."""
    fed = {v: (split, us(at)) for batch in batches for split, v, at in batch if at is not None}
    for row in late_rows(folder):
        batch = int(row["file"].removesuffix(".parquet")[-10:])
        assert row["file"] == file_name("orders", query, batch), note
        assert (row["split"], row["ts"]) == fed[row["v"]], note
        assert row["watermark"] == watermarks_us.get(batch - 1, 0), f"{note}, batch {batch}: {row}"
        assert row["late_by_us"] == row["watermark"] - row["ts"], note
        assert row["until"] <= row["watermark"], note


def counted(df: DataFrame, width: str = "window(ts, '10 seconds')") -> DataFrame:
    windows = df.groupBy(F.expr(width).alias("w"), "split").count()
    return windows.select(F.lit(False), F.unix_micros("w.start").alias("start"), "split", "count")


def as_dropped(folder: Path, width_us: int = 10_000_000) -> list[Row]:
    """The rows of the files in the form of `test_late.windows_and_dropped`."""
    return [(True, row["until"] - width_us, row["split"], 1) for row in late_rows(folder)]


@pytest.mark.parametrize("seed", [324, pytest.param(27, marks=pytest.mark.torture)])
def test_the_input_is_the_windows_and_the_files_also_when_a_batch_runs_again(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    batches, late = [*random_batches(seed, 6), [(split, -1, 100_000) for split in SPLITS]], tmp_path / "late"
    feed, checkpoint = Feed(spark, tmp_path / "feed"), str(tmp_path / "checkpoint")
    emitted: dict[int, list[Row]] = {}
    watermarks_us, query = dict[int, int](), ""
    for part in (batches[:4], batches[4:]):
        df = counted(wrapped(service, feed, late, splits=SPLITS, late_until=WINDOW))
        ran = run_at_once(df, feed, part, checkpoint, emitted=emitted)
        if part[0] is batches[0]:
            feed.put(LATE)
            ran.settle()
        ran.query.stop()
        watermarks_us |= marks(ran)
        query = str(ran.query.id)
        if part[0] is batches[0]:
            again = lose_commit(checkpoint)
            assert [row["v"] for row in late_rows(late) if row["file"] == file_name("orders", query, again)] == [1_000]
    note = f"seed {seed}"
    rows = [row for rows in emitted.values() for row in rows]
    check_windows_and_dropped(rows + as_dropped(late), [*batches, [LATE]], note)
    check_files(late, [*batches, [LATE]], watermarks_us, query, note)
    dropped = len(late_rows(late))
    assert dropped > before_1970(batches) + 1, f"{note}: no other row was dropped, so the test shows nothing"


def test_by_default_a_row_counts_until_its_event_time(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    batches, late, feed = random_batches(306, 6), tmp_path / "late", Feed(spark, tmp_path / "feed")
    batches += [[(split, 900 + n, 1_000) for n, split in enumerate(SPLITS)]]
    df = wrapped(service, feed, late, splits=SPLITS).dropDuplicates(["v", "ts"]).select("v")
    ran = run_at_once(df, feed, batches, str(tmp_path / "cp"))
    batches += [[("a", 910, 999.999), ("a", 911, 999.999001)]]  # at the watermark, and a microsecond later
    feed.put(*batches[-1])
    ran.settle()
    found = [row["v"] for row in late_rows(late)]
    assert len(found) == ran.dropped
    assert (910 in found, 911 in found) == (True, False)
    assert Counter([*found, *(v for (v,) in ran.rows)]) == Counter(v for batch in batches for _, v, _ in batch)
    check_files(late, batches, marks(ran), str(ran.query.id), "seed 306")


def test_in_a_session_that_means_timestamp_ntz_by_timestamp_the_columns_and_files_are_the_same(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    batches, late = random_batches(306, 6), tmp_path / "late"
    feed = Feed(spark, tmp_path / "feed", schema="split string, v int, ts timestamp_ltz")
    with settings(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        df = wrapped(service, feed, late, splits=SPLITS, late="is_late", watermark="passed")
        assert dict(df.dtypes)["ts"] == dict(df.dtypes)["passed"] == "timestamp"
        ran = run_at_once(df.dropDuplicates(["v", "ts"]).select("v", "is_late"), feed, batches, str(tmp_path / "cp"))
    found = [row["v"] for row in late_rows(late)]
    assert len(found) == ran.dropped > before_1970(batches), "no other row was dropped, so the test shows nothing"
    assert not any(is_late for _, is_late in ran.rows)
    assert Counter([*found, *(v for v, _ in ran.rows)]) == Counter(v for batch in batches for _, v, _ in batch)
    check_files(late, batches, marks(ran), str(ran.query.id), "seed 306")


def test_a_row_of_several_windows_is_written_for_each_that_drops_it(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    sliding, late, feed = "window(ts, '10 seconds', '5 seconds')", tmp_path / "late", Feed(spark, tmp_path / "feed")
    df = counted(wrapped(service, feed, late, late_until=f"{sliding}.end"), sliding)
    batches: list[list[Row]] = [[("a", n, at)] for n, at in enumerate((12, 23, 23, 14, 1, 18, 100, 100))]
    ran = run_at_once(df, feed, batches, str(tmp_path / "checkpoint"))
    found = Counter((split, start_us) for _, start_us, split, n in ran.rows + as_dropped(late) for _ in range(n))
    fed = Counter((s, us(at) // 5_000_000 * 5_000_000 - back) for [(s, _, at)] in batches for back in (0, 5_000_000))
    still_open = {("a", us(at)) for at in (100, 95)}
    assert found == Counter({key: n for key, n in fed.items() if key not in still_open})
    assert {(row["v"], row["until"]) for row in late_rows(late)} >= {(4, us(5)), (4, us(10))}
    assert {row["until"] for row in late_rows(late) if row["v"] == 5} == {us(20)}, "its other window was open"


def test_a_join_marks_and_writes_the_rows_of_both_sides_by_the_smaller_watermark(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    """In one folder; also rows of the side that is ahead, as Spark drops."""
    feeds, late = {name: Feed(spark, tmp_path / name) for name in ("left", "right")}, tmp_path / "late"
    for left_at, right_at in ((100, 50), (300, 52), (301, 53), (302, 54), (49, 49), (51, 48), (250, 60)):
        for feed, at in ((feeds["left"], left_at), (feeds["right"], right_at)):
            feed.put(("a", at, at))
    left, right = (
        service.wrap(
            feed.df, name=name, event_time="ts", split="split", splits=["a"], late=f"{name}_late", late_to=late
        ).observe(name, F.collect_set(F.when(F.col(f"{name}_late"), F.col("v"))).alias("late"))
        for name, feed in feeds.items()
    )
    right = right.select("v", F.col("ts").alias("other"), "right_late")
    near = "left.v = right.v and other between ts and ts + interval 30 seconds"
    ran = start(left.alias("left").join(right.alias("right"), F.expr(near)).select("ts"), str(tmp_path / "checkpoint"))
    ran.settle()
    marked: dict[str, set[int]] = {name: set() for name in feeds}
    for progress in ran.progress:
        mine = {name: set(progress.observed_metrics[name]["late"]) for name in feeds}
        assert sum(map(len, mine.values())) == progress.dropped_rows, f"batch {progress.batch_id}"
        marked = {name: marked[name] | mine[name] for name in feeds}
    assert marked == {"left": {49, 51}, "right": {49, 48}}
    assert ran.dropped == 4
    assert sorted((row["file"].split("-")[0], row["v"]) for row in late_rows(late)) == [
        ("left", 49), ("left", 51), ("right", 48), ("right", 49),
    ]  # fmt: skip


@pytest.mark.parametrize("keep", ["v < 0", "is_late", "not is_late", "ts > passed"])
def test_a_filter_behind_it_takes_no_row_out_of_the_folder(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, tmp_path: Path, keep: str
) -> None:
    with settings(spark, {"spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true"}):
        df = wrapped(service, feed, tmp_path / "late", late="is_late", watermark="passed").filter(keep).select("v")
        ran = run_at_once(df, feed, [[("a", n, n)] for n in (10, 20, 30, 25, 5)], str(tmp_path / "checkpoint"))
    assert [row["v"] for row in late_rows(tmp_path / "late")] == [5], ran.progress
    assert ran.low == 29.999


def test_one_task_and_two_actions_write_each_row_once(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> None:
    def twice(batch: DataFrame, _: int) -> None:
        batch.count()
        batch.collect()

    df = wrapped(service, feed, tmp_path / "late").coalesce(1)
    for v in (10, 20, 30, 5, 6):
        feed.put(("a", v, v))
    query = df.writeStream.foreachBatch(twice).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    assert [row["v"] for row in late_rows(tmp_path / "late")] == [5, 6]


@pytest.mark.parametrize("name", ["or\"d`e\\rs ' 2 größe/\U0001f600", "long" * 100], ids=["characters", "long"])
def test_every_name_of_a_stream_names_files(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, name: str
) -> None:
    df = service.wrap(feed.df, name=name, event_time="ts", split="split", splits=["a"], late_to=tmp_path / "late")
    ran = run_at_once(df, feed, [[("a", v, v)] for v in (10, 20, 30, 5)], str(tmp_path / "cp"))
    [row] = late_rows(tmp_path / "late")
    assert (row["v"], row["file"]) == (5, file_name(name, str(ran.query.id), ran.progress[-1].batch_id))
    assert not list((tmp_path / "late/.parts").iterdir())


def test_a_batch_that_runs_again_leaves_no_file_of_before(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    """Also if the code was changed in between, so that the batch drops no row any more."""
    late, checkpoint = tmp_path / "late", str(tmp_path / "checkpoint")
    ran = run_at_once(wrapped(service, feed, late), feed, [[("a", v, v)] for v in (10, 20, 30, 5)], checkpoint)
    ran.query.stop()
    [file] = late.glob("*.parquet")
    assert lose_commit(checkpoint) == int(file.stem[-10:])
    start(wrapped(service, feed, late, late_until="ts + interval 1 hour"), checkpoint).settle()
    assert not list(late.glob("*.parquet"))


def test_a_folder_that_cannot_be_written_fails_the_batch_and_no_row_is_lost(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    late, checkpoint = tmp_path / "late", str(tmp_path / "checkpoint")
    late.write_text("a file stands here")
    ran = start(wrapped(service, feed, late), checkpoint)
    for v in (10, 20, 30, 5):
        feed.put(("a", v, v))
    with pytest.raises(StreamingQueryException) as told:
        ran.settle()
    assert f'stream "orders": batch 3 could not write its late rows to "{late}"' in str(told.value)
    late.unlink()
    start(wrapped(service, feed, late), checkpoint).settle()
    assert [row["v"] for row in late_rows(late)] == [5]


@pytest.mark.parametrize("asked", [True, False])
def test_the_source_is_read_once_where_it_is_not_asked_for(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, asked: bool
) -> None:
    df = wrapped(service, feed, tmp_path / "late" if asked else None)
    ran = run_at_once(df, feed, [[("a", 1, 1)]], str(tmp_path / "cp"))
    read = sum(source.num_input_rows for progress in ran.progress for source in progress.sources[:1])
    assert read == (2 if asked else 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"late_until": "ts"}, "late_until has no meaning without late_to"),
        ({"late_to": ""}, "expected the path of a folder"),
        ({"late_to": 7}, "expected the path of a folder"),
        ({"late_to": "dbfs:/late"}, r'late_to "dbfs:/late" cannot be reached'),
        ({"late_to": "/late", "late_until": 7}, "expected an SQL expression or a Column"),
        ({"late_to": "/late", "late_until": "nowhere + 1"}, "late_until cannot be computed"),
        ({"late_to": "/late", "late_until": "window(ts,"}, "late_until cannot be computed"),
        ({"late_to": "/late", "late_until": "v"}, "late_until is int, expected timestamp"),
        ({"late_to": "/late", "late_until": "window(ts, '1 minute')"}, "late_until is struct<.*expected timestamp"),
        (
            {
                "late_to": "/late",
                "strategy": WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(same_time),
            },
            "does not know the assigned times",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    service: LowWatermarkService, feed: Feed, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(WrapRefused, match=told):
        service.wrap(feed.df, name="orders", event_time="ts", split="split", **arguments)


def test_a_column_of_the_files_that_exists_already_is_refused(service: LowWatermarkService, feed: Feed) -> None:
    df = feed.df.withColumn("Until", F.lit(1))
    with pytest.raises(WrapRefused, match='late_to adds a column "until" to its files, and the rows have one'):
        service.wrap(df, name="orders", event_time="ts", split="split", late_to="/late")


def test_a_column_that_arrow_itself_refuses_is_named(service: LowWatermarkService, feed: Feed) -> None:
    df = feed.df.withColumn("nothing", F.array())
    with pytest.raises(WrapRefused, match=r'column "nothing" is array<void>, and rows of this stream .* Hint: drop it'):
        service.wrap(df, name="orders", event_time="ts", split="split", late_to="/late")


def test_a_column_that_parquet_does_not_take_is_named(service: LowWatermarkService, feed: Feed) -> None:
    """The query would end with its first late row, and again at each start."""
    df = feed.df.withColumn("details", F.struct())
    with pytest.raises(WrapRefused, match=r"late_to writes Parquet, .* \(.*'details'.*\)\. Hint: drop it or cast it"):
        service.wrap(df, name="orders", event_time="ts", split="split", late_to="/late")


@since("4.2", "named sources")
def test_named_sources_are_refused_because_spark_takes_each_once(service: LowWatermarkService, feed: Feed) -> None:
    """The query ended with DUPLICATE_SOURCE_NAMES, though its user had named one source."""
    reader: Any = feed.spark.readStream
    with settings(feed.spark, {EVOLUTION: "True"}):
        df = reader.name("orders").schema(feed.schema).json(str(feed.folder))
        with pytest.raises(WrapRefused, match=r"reads the source of its stream twice, .*enableSourceEvolution Spark"):
            service.wrap(df, name="orders", event_time="ts", split="split", late_to="/late")


def wrapped(service: LowWatermarkService, feed: Feed, folder: Path | None, **arguments: Any) -> DataFrame:
    arguments = {"splits": ["a"], **arguments}
    return service.wrap(feed.df, name="orders", event_time="ts", split="split", late_to=folder, **arguments)


def marks(ran: Ran) -> dict[int, int]:
    """The watermark of each batch, microseconds."""
    return {progress.batch_id: progress.watermark_us or 0 for progress in ran.progress}


def test_a_session_window_drops_the_rows_of_the_folder(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    session, late = "session_window(ts, '5 seconds')", tmp_path / "late"
    df = counted(wrapped(service, feed, late, late_until=f"{session}.end"), session)
    batches: list[list[Row]] = [[("a", n, at)] for n, at in enumerate((10, 12, 30, 31, 24, 25.999, 26, 8, 100, 100))]
    ran = run_at_once(df, feed, batches[:4], str(tmp_path / "cp"))
    for batch in batches[4:]:
        feed.put(*batch)
    ran.settle()
    assert [row["v"] for row in late_rows(late)] == [4, 5, 7]
    assert sum(n for *_, n in ran.rows) == 5, "10, 12, 26 and the session of 30 and 31; 100 is still open"
    assert ran.dropped == 3


@pytest.mark.parametrize("prepared", [False, True])
def test_the_rows_of_a_source_are_in_the_windows_or_in_the_folder(
    service: LowWatermarkService, tmp_path: Path, prepared: bool
) -> None:
    """Each batch is planned once and read twice, and each row is measured once; the last batch runs again."""
    log, late, checkpoint = Log(tmp_path / "log"), tmp_path / "late", str(tmp_path / "checkpoint")
    batches: list[list[Row]] = []
    emitted: dict[int, list[Row]] = {}
    for times in ((12, 15, 41), (60, 14, 55, 23, 7), (100_000,)):
        batches.append([(split, -1 if at == 100_000 else at, at) for split in "ab" for at in times])
        for split in "ab":
            log.append(split, *times)
        df = service.read(
            LogSource(log.folder), name="orders", tasks=2, max_rows_per_batch=3, late="is_late", late_to=late,
            late_until=WINDOW, prepare=(lambda df: df.where("true")) if prepared else None,
        )  # fmt: skip
        df = df.observe("judged", F.count_if("is_late").alias("late"))
        df = counted(df.withColumnRenamed("split_id", "split"))
        ran = start(df, checkpoint, emitted=emitted, trigger={"availableNow": True})
        ran.query.awaitTermination()
        known = service.run_statuses()[-1].status
        read = sum(source.num_input_rows for progress in ran.progress for source in progress.sources[:1])
        assert read == 2 * known.counts.rows
        marked = sum(progress.observed_metrics["judged"]["late"] for progress in ran.progress)
        assert prepared or sum(split.late_rows or 0 for split in known.splits.values()) == marked
        lose_commit(checkpoint)
    rows = [row for rows in emitted.values() for row in rows]
    dropped = [row for file in late.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    rows += [(True, us_of(row["until"]) - 10_000_000, row["split_id"], 1) for row in dropped]
    check_windows_and_dropped(rows, batches, "read")
    assert all(row["until"] <= row["watermark"] for row in dropped)
