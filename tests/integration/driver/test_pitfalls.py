"""Spark's pitfalls that concern wrapping, by their numbers in the list that guided the design of this library."""

from __future__ import annotations

import json
import logging
import pickle
import time
from functools import partial
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.driver.listener_events import ListenerEvents
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.classic import JavaEvent, QueryEvents, RunningQuery
from lowmark.integration.spark.versions import observes_splits
from lowmark.integration.transport.accumulated import BatchTrack, TrackParam
from lowmark.integration.transport.heartbeat import HeartbeatOffset, HeartbeatReader
from lowmark.watermark import WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, Ran, Row, run, run_at_once, seconds, start, us, windows
from tests.sparks import settings

TEN_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")


def orders(service: LowWatermarkService, feed: Feed, strategy: WatermarkStrategy | None = None) -> DataFrame:
    """The feed, wrapped, with splits a and b declared."""
    return service.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=strategy, splits=["a", "b"])


def both(*times: float, v: int = 9) -> list[list[Row]]:
    """Batches in which both splits have the same time."""
    return [[("a", v, at), ("b", v, at)] for at in times]


@pytest.mark.parametrize("prune", ["false", "true"])
def test_pitfall_01_and_02_user_filters_do_not_freeze_the_watermark(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str, prune: str
) -> None:
    """Filters that the heartbeat row cannot pass: on a data column, on a literal, and on both."""
    conf = "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan"
    with settings(spark, {conf: prune}):
        df = (
            orders(service, feed)
            .withColumn("kind", F.lit("order"))
            .filter("v > 5")
            .filter("kind = 'order' and v < 100")
        )
        ran = run_at_once(windows(df, "split"), feed, both(100, 200, 300), checkpoint)

    assert ran.watermark == ran.low == 300 - 0.001
    assert sorted(ran.rows) == [(100, "a", 1), (100, "b", 1), (200, "a", 1), (200, "b", 1)]


def test_pitfall_03_04_and_38_batches_without_a_heartbeat_and_without_data(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    ran = run_at_once(windows(orders(service, feed), "split"), feed, both(100, 500), checkpoint)
    first = ran.progress[0]
    assert first.sources[1].num_input_rows == 0, "38: the first batch has no row of 1970"
    assert "max" not in first.event_time

    newest = [p.num_input_rows for p in ran.progress][-2:]
    assert newest == [1, 0], "4: a batch of the heartbeat alone, then one without rows that emits"
    assert (100, "a", 1) in ran.rows

    feed.put(("a", 9, 101))
    ran.settle()
    late = next(p for p in ran.progress if p.sources[0].num_input_rows == 1)

    assert late.sources[1].num_input_rows == 0, "3: no heartbeat was in that batch"
    assert ran.dropped == 1
    assert sorted(ran.rows) == [(100, "a", 1), (100, "b", 1)], "no window came out twice"
    assert ran.watermark == 500 - 0.001
    assert service.status("orders").counts.dropped_rows == 1


def test_pitfall_05_nobody_downstream_sees_a_heartbeat_row(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    names = spark.createDataFrame([("a", "Anna"), ("b", "Bert")], "split string, name string")
    df = orders(service, feed).join(names, "split", "left")
    listed = df.groupBy(F.window("ts", "10 seconds")).agg(
        F.count(F.lit(1)).alias("n"), F.sort_array(F.collect_list(F.struct("name", "v"))).alias("all")
    )
    ran = run_at_once(listed.select("n", "all"), feed, both(100, 500), checkpoint)

    assert [(n, [tuple(x) for x in all_]) for n, all_ in ran.rows] == [(2, [("Anna", 9), ("Bert", 9)])]


def test_pitfall_05_a_stateless_query_sees_exactly_its_rows(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    ran = run_at_once(orders(service, feed).select("split", "v"), feed, both(100, 500), checkpoint)

    assert ran.rows == [("a", 9), ("b", 9), ("a", 9), ("b", 9)]
    assert ran.low == 500 - 0.001


def test_pitfall_06_append_mode_starts_and_columns_taken_before_still_resolve(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = feed.df
    wrapped = service.wrap(df, name="orders", event_time="ts", split="split", splits=["a", "b"])
    # If rows pass through Python (before Spark 4.2) their columns are new ones: docs/spark-versions.md says so.
    v = df.v if observes_splits(feed.spark) else F.col("v")
    ran = run_at_once(windows(wrapped.filter(v > 5), "split"), feed, both(100, 500), checkpoint)

    assert wrapped.columns == df.columns
    assert len(ran.rows) == 2


def test_pitfall_09_a_restart_with_idle_data_still_advances(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    """After the restart no row arrives: the heartbeat alone has to move Spark's watermark."""
    strategy = TEN_SECONDS.with_idleness("1 millisecond").with_all_idle("max")
    with LowWatermarkService(spark) as service:
        first = run(
            windows(orders(service, feed, TEN_SECONDS), "split"), feed, [[("a", 9, 100), ("b", 9, 700)]], checkpoint
        )
        assert first.low == 100 - 10 - 0.001
        first.query.stop()
    with LowWatermarkService(spark) as service:
        second = start(windows(orders(service, feed, strategy), "split"), checkpoint)
        until(lambda: second.watermark == 700 - 10 - 0.001, second)

    assert (100, "a", 1) in second.rows


def test_pitfall_10_joined_streams_agree_again_after_a_restart(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    left, right = Feed(spark, tmp_path / "left"), Feed(spark, tmp_path / "right")

    def joined(service: LowWatermarkService) -> DataFrame:
        sides = [
            service.wrap(side.df, name=name, event_time="ts", split="split").selectExpr(
                f"v as {name}_v", f"ts as {name}_ts"
            )
            for name, side in (("left", left), ("right", right))
        ]
        near = F.expr("left_v = right_v and right_ts between left_ts and left_ts + interval 30 seconds")
        return sides[0].join(sides[1], near, "leftOuter").select("left_v", "right_v")

    with LowWatermarkService(spark) as service:
        ran = start(joined(service), checkpoint)
        left.put(("a", 1, 100))
        right.put(("a", 7, 120))
        ran.settle()
        assert ran.watermark == 100 - 0.001
        ran.query.stop()
    with LowWatermarkService(spark) as service:
        ran = start(joined(service), checkpoint)
        left.put(("a", 2, 5000))  # the right side stays idle: the minimum is its last value, not 0
        ran.settle()
        assert ran.watermark == 120 - 0.001
        right.put(("a", 8, 5000))
        ran.settle()

    assert ran.watermark == 5000 - 0.001
    assert ran.rows == [(1, None)]


def test_pitfall_12_duplicates_within_the_bound_are_dropped(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("50 seconds")
    df = orders(service, feed, strategy).dropDuplicatesWithinWatermark(["v"]).select("split", "v")
    batches = [[("a", 1, 100), ("b", 2, 100)], [("a", 3, 155), ("b", 4, 155)], [("a", 1, 110)], [("b", 5, 300)]]
    ran = run(df, feed, batches, checkpoint)

    assert sorted(v for _, v in ran.rows) == [1, 2, 3, 4, 5]
    assert ran.dropped == 0


def test_pitfall_13_and_14_a_row_at_its_splits_maximum_or_microseconds_above_the_watermark_is_not_late(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = orders(service, feed).dropDuplicates(["split", "v", "ts"]).select("v")
    times = [100, 100, 100, 100.000_900, 100.000_001, 99.999_001, 99.999]
    ran = run(df, feed, [batch for v, at in enumerate(times) for batch in both(at, v=v)], checkpoint)

    assert ran.low == 99.999
    assert sorted(v for (v,) in ran.rows) == [v for v in range(6) for _ in "ab"], (
        "only what is at the watermark is late"
    )
    assert ran.dropped == 2


def test_pitfall_15_and_17_every_split_is_reported_whatever_foreach_batch_does(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    def twice(batch: DataFrame, _id: int) -> None:
        batch.write.format("noop").mode("append").save()
        batch.limit(1).collect()

    query = orders(service, feed).writeStream.foreachBatch(twice).option("checkpointLocation", checkpoint).start()
    feed.put(("a", 1, 100), ("b", 1, 200), ("a", 1, 300))
    query.processAllAvailable()
    status = service.status("orders")

    assert {name: seconds(s.watermark_us) for name, s in status.splits.items()} == {"a": 299.999, "b": 199.999}


def test_pitfall_16_a_batch_that_nobody_computed_holds_the_watermark(
    service: LowWatermarkService, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    acts = [True]

    def sometimes(batch: DataFrame, _id: int) -> None:
        if acts[0]:
            batch.collect()

    query = orders(service, feed).writeStream.foreachBatch(sometimes).option("checkpointLocation", checkpoint).start()
    feed.put(("a", 1, 100), ("b", 1, 100))
    query.processAllAvailable()
    acts[0] = False
    feed.put(("a", 1, 500), ("b", 1, 500))
    with caplog.at_level(logging.WARNING, "lowmark"):
        query.processAllAvailable()

    assert seconds(service.status("orders").low_watermark_us) == 99.999


def test_pitfall_18_the_wrapped_stream_used_twice_in_one_query(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = orders(service, feed)
    ran = run_at_once(windows(df.filter("v = 1").union(df.filter("v = 2")), "split"), feed, [
        [("a", 1, 100), ("b", 2, 90)], [("a", 2, 500), ("b", 1, 400)], [("a", 1, 600), ("b", 2, 600)],
    ], checkpoint)  # fmt: skip

    assert ran.low == 599.999
    assert ran.by_split() == {"a": 2, "b": 2}
    assert ran.dropped == 0


@pytest.mark.parametrize("parted", [False, True])
def test_a_stage_in_barrier_mode_needs_a_repartition_before_it(
    service: LowWatermarkService, feed: Feed, checkpoint: str, parted: bool
) -> None:
    """As `docs/limits.md` says."""
    df = orders(service, feed).select("v")
    df = (df.repartition(1) if parted else df).mapInArrow(lambda batches: batches, "v int", barrier=True)
    feed.put(("a", 1, 100), ("b", 2, 100))
    ran = start(df, checkpoint)
    if parted:
        ran.settle()
        assert sorted(ran.rows) == [(1,), (2,)]
        return
    with pytest.raises(StreamingQueryException, match="BarrierJobUnsupportedRDDChainException"):
        ran.settle()


def test_pitfall_19_two_streams_in_one_session(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    rans: list[Ran] = []
    for name in ("one", "two"):
        feed = Feed(spark, tmp_path / name)
        df = service.wrap(feed.df, name=name, event_time="ts", split="split", splits=["a", "b"])
        rans.append(run_at_once(windows(df, "split"), feed, both(100, 500), str(tmp_path / f"{name}-checkpoint")))

    assert [ran.low for ran in rans] == [499.999, 499.999]
    assert [len(ran.rows) for ran in rans] == [2, 2]


def test_pitfall_20_more_splits_than_can_be_counted_end_the_query_with_the_reason(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = service.wrap(feed.df, name="orders", event_time="ts", split="v", max_splits=8)
    ran = start(windows(df), checkpoint)
    feed.put(*(("a", n, 100) for n in range(100)))

    with pytest.raises(
        Exception, match=r'stream "orders", batch 0: about \d+ splits in one batch, but only 16.*max_splits='
    ):
        ran.settle()


def test_pitfall_20_twice_max_splits_do_not_end_the_query(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    """As docs/wrap.md says: lowmark tells at least twice as many apart."""
    df = service.wrap(feed.df, name="orders", event_time="ts", split="v", max_splits=8)
    ran = start(windows(df), checkpoint)
    feed.put(*(("a", n, 100) for n in range(16)))
    ran.settle()

    assert service.status("orders").states["active"] == 16


def test_pitfall_21_null_and_empty_splits_and_null_times_are_counted_or_shown(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    batch: list[Row] = [("a", 1, 100), ("", 1, 100), (None, 1, 100), ("a", 1, None), ("a", None, 100)]
    by_text = service.wrap(feed.df, name="text", event_time="ts", split="split", splits=["a", ""])
    by_number = service.wrap(feed.df, name="number", event_time="ts", split="v")
    for name, df in (("text", by_text), ("number", by_number)):
        ran = start(df.select("v"), str(tmp_path / name))
        if name == "text":
            feed.put(*batch)
        ran.settle()
        assert len(ran.rows) == 5, "no row is lost"
    text, number = service.status("text"), service.status("number")

    assert (text.counts.null_split_rows, text.counts.null_time_rows) == (1, 1)
    assert {"a", '""'} < set(text.splits)
    assert (number.counts.null_split_rows, number.counts.null_time_rows) == (1, 1)
    assert set(number.splits) == {"1"}


def test_pitfall_23_and_24_a_time_in_the_future_moves_nothing_and_times_before_1970_are_counted(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = orders(service, feed).select("split", "ts", "v")
    batches: list[list[Row]] = [
        [("a", 1, "1969-07-20T20:17:40Z"), ("a", 1, 100), ("b", 1, 100)],
        [("a", 1, "2099-01-01T00:00:00Z"), ("b", 1, "9999-12-31T23:59:59Z"), ("a", 1, 200), ("b", 1, 200)],
        *both(300),
    ]
    ran = run_at_once(windows(df, "split"), feed, batches, checkpoint)

    assert ran.low == 299.999
    counts = service.status("orders").counts
    assert (counts.future_rows, counts.before_epoch_rows) == (2, 1)
    assert ran.dropped == 1, "Spark's watermark starts at 1970 and drops the row of 1969"
    assert sorted(ran.rows) == [(100, "a", 1), (100, "b", 1), (200, "a", 1), (200, "b", 1)]


def test_pitfall_25_missed_progress_is_filled_in_from_the_history(
    service: LowWatermarkService, feed: Feed, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For three batches neither listener nor heartbeat gets any progress; afterwards no part of it may be missing."""
    ran = run(windows(orders(service, feed), "split"), feed, both(100), checkpoint)
    deaf = [True]
    newest = RunningQuery.newest
    monkeypatch.setattr(RunningQuery, "newest", lambda *given: None if deaf[0] else newest(*given))
    monkeypatch.setattr(ListenerEvents, "_take_progress", lambda *_: None)
    for at, split in ((200, "a"), (300, "b"), (400, "c")):
        feed.put((split, 1, at))
        ran.settle()
    assert set(service.status("orders").splits) == {"a", "b"}, "they were not heard of yet"
    deaf[0] = False
    feed.put(("a", 1, 500))
    ran.settle()
    status = service.status("orders")

    assert sorted(str(seconds(s.watermark_us)) for s in status.splits.values()) == ["299.999", "399.999", "499.999"]
    assert status.counts.rows == 6


def test_pitfall_26_the_listener_returns_at_once_whatever_the_loop_does() -> None:
    taken: list[tuple[str, JavaEvent]] = []
    events = QueryEvents(lambda kind, event: taken.append((kind, JavaEvent(kind, event))))
    for name in ("onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated"):
        getattr(events, name)(object())  # a field that is read would raise

    assert [kind for kind, _ in taken] == ["started", "progress", "idle", "terminated"]


def test_pitfall_27_a_batch_that_runs_again_changes_nothing(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    """The last batch was planned and run but not committed, as after a kill between the two logs."""
    with LowWatermarkService(spark) as service:
        first = run_at_once(windows(orders(service, feed), "split"), feed, both(100, 200), checkpoint)
        first.query.stop()
    commits = sorted((Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda f: int(f.name))
    for file in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        file.unlink(missing_ok=True)
    with LowWatermarkService(spark) as service:
        second = start(windows(orders(service, feed), "split"), checkpoint)
        second.settle()
        feed.put(("a", 1, 300), ("b", 1, 300))
        second.settle()
        status = service.status("orders")

    emitted = {row for row in first.rows if row[0] == 100} | set(second.rows)
    assert emitted == {(100, "a", 1), (100, "b", 1), (200, "a", 1), (200, "b", 1)}
    assert seconds(status.low_watermark_us) == 299.999
    assert status.counts.rows == 2


def test_pitfall_28_a_task_that_runs_twice_counts_once() -> None:
    def seen() -> BatchTrack:
        track = BatchTrack(watermarks_us={1: us(5)}, names={1: "a"})
        track.tracker.observe(1, us(15), cell=3)
        return track

    param = TrackParam()
    merged = param.addInPlace(param.addInPlace({}, {("q", 7): seen()}), {("q", 7): seen()})

    assert merged["q", 7].tracker.counts().rows == 1
    assert merged["q", 7].watermarks_us == {1: us(5)}


def test_pitfall_31_a_split_that_returns_late_is_counted(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    ran = run_at_once(
        windows(orders(service, feed, TEN_SECONDS.with_idleness("50 milliseconds", clock="time")), "split"),
        feed,
        [*both(100), [("a", 1, 400)], [("a", 1, 500)]],
        checkpoint,
    )
    until(lambda: service.status("orders").splits["b"].state.value == "idle", ran)
    feed.put(("a", 1, 600))
    ran.settle()
    feed.put(("b", 1, 120))
    ran.settle()
    status = service.status("orders")

    assert status.returned_late == 1
    assert ran.dropped == 1
    assert status.low_watermark_us is not None
    assert ran.watermark == seconds(status.low_watermark_us)


def test_pitfall_33_all_splits_idle_holds(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    strategy = TEN_SECONDS.with_idleness("1 millisecond", clock="time")
    ran = run(windows(orders(service, feed, strategy), "split"), feed, [[("a", 1, 100), ("b", 1, 700)]], checkpoint)
    until(lambda: service.status("orders").states["idle"] == 2, ran)
    ran.settle()

    assert ran.low == 100 - 10 - 0.001


def test_a_silent_stream_holds_says_so_and_nobody_in_it_is_idle(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    strategy = TEN_SECONDS.with_idleness("1 millisecond")
    ran = run(windows(orders(service, feed, strategy), "split"), feed, [[("a", 1, 100), ("b", 1, 700)]], checkpoint)
    until(lambda: service.status("orders").silent_since is not None, ran)
    ran.settle()

    assert service.status("orders").states["idle"] == 0
    assert "the stream is silent" in service.explain("orders")

    assert ran.low == 100 - 10 - 0.001


def test_pitfall_34_available_now_takes_several_batches_and_the_last_windows_come_out(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    for batch in both(100, 200, 300, 400):
        feed.put(*batch)
    ran = start(windows(orders(service, feed), "split"), checkpoint, trigger={"availableNow": True})
    assert ran.query.awaitTermination(120)

    assert sum(p.sources[0].num_input_rows > 0 for p in ran.progress) == 4
    assert sorted({row[0] for row in ran.rows}) == [100, 200, 300]
    assert ran.watermark == 400 - 0.001


def test_pitfall_35_trigger_once_moves_the_watermark_in_the_next_run(
    spark: SparkSession, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One batch a run: no heartbeat can carry its report, so the report waits in the checkpoint for the next run."""
    lows = []
    for batch in both(100, 200, 300):
        feed.put(*batch)
        with LowWatermarkService(spark) as service:
            ran = start(windows(orders(service, feed), "split"), checkpoint, trigger={"once": True})
            assert ran.query.awaitTermination(120)
            lows.append(ran.low)

    assert lows == [None, 99.999, 199.999]
    assert caplog.text.count("these rows close come out two runs later; never in a job at a coordinator") == 3


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_pitfall_36_other_execution_modes_are_refused(
    service: LowWatermarkService, feed: Feed, checkpoint: str, trigger: dict[str, str]
) -> None:
    with pytest.raises(Exception, match=r"(?i)continuous|real.?time"):
        start(orders(service, feed).select("v"), checkpoint, trigger=trigger, mode="update").query.awaitTermination(60)


@pytest.mark.parametrize("off", ["false", "FALSE"])
def test_pitfall_37_disabled_no_data_batches_are_warned_of(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, caplog: pytest.LogCaptureFixture, off: str
) -> None:
    conf = "spark.sql.streaming.noDataMicroBatches.enabled"
    with settings(spark, {conf: off}), caplog.at_level(logging.WARNING, "lowmark"):
        orders(service, feed)

    assert f'stream "orders": {conf} is false' in caplog.text


def reader() -> HeartbeatReader:
    return HeartbeatReader(address="unix:/nowhere", stream_id="s", stream="orders", delay_ms=10_000)


def test_pitfall_38_equal_offsets_have_no_row() -> None:
    offset = HeartbeatOffset("orders", us(5), "run", 3, "").to_json()

    assert list(reader().readBetweenOffsets(offset, offset)) == []
    assert list(reader().readBetweenOffsets(HeartbeatOffset("orders").to_json(), offset)) != []


def test_pitfall_40_offsets_have_one_text_whatever_the_order_of_their_keys() -> None:
    offset = HeartbeatOffset("orders", us(5), "run", 3, "state").to_json()

    assert list(offset) == sorted(offset)
    assert HeartbeatOffset.find(dict(reversed(offset.items()))) == HeartbeatOffset.find(json.dumps(offset))


def test_pitfall_41_a_reader_travels_before_it_has_asked() -> None:
    again = pickle.loads(pickle.dumps(reader()))  # noqa: TID251  # what Spark does with it

    assert vars(again) == vars(reader())


def test_pitfall_42_nothing_is_left_of_a_service(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    of_others = heartbeat_processes()  # queries of other tests that are just ending
    with LowWatermarkService(spark) as service:
        ran = run(windows(orders(service, feed), "split"), feed, both(100), checkpoint)
        socket = Path(service.address.removeprefix("unix:"))
        assert socket.exists()
        [ours] = set(heartbeat_processes()) - set(of_others)
        ran.query.stop()
        until(lambda: ours not in heartbeat_processes(), None)

    assert not socket.exists()


def test_nothing_is_left_of_the_temporary_checkpoint_of_a_query_without_a_location(
    spark: SparkSession, feed: Feed
) -> None:
    left: list[Path] = []
    for splits in ((), ("a", "b")):  # the last report is written once more at the end, or only then
        with LowWatermarkService(spark) as service:
            df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=splits)
            query = df.writeStream.format("noop").start()
            feed.put(("a", 1, 100), ("b", 1, 100))
            query.processAllAvailable()
            root = query._jsq.streamingQuery().resolvedCheckpointRoot()
            left.append(Path(root.removeprefix("file:")))
            assert left[-1].exists()
            query.stop()

    assert [folder for folder in left if folder.exists()] == []


def heartbeat_processes() -> list[int]:
    """The reader processes of this machine that are descendants of this process."""
    import os

    def parent_of(pid: int) -> int | None:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return None

    def ours(pid: int | None) -> bool:
        while pid is not None and pid > 1:
            if pid == os.getpid():
                return True
            pid = parent_of(pid)
        return False

    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"python_streaming_source_runner" in command and ours(int(folder.name)):
            found.append(int(folder.name))
    return found


def test_pitfall_44_without_the_service_the_watermark_holds_and_the_query_lives(
    spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    service = LowWatermarkService(spark)
    try:
        ran = run_at_once(windows(orders(service, feed), "split"), feed, both(100, 200), checkpoint)
        service.stop()
        feed.put(("a", 1, 300), ("b", 1, 300))
        ran.settle()
        assert ran.query.isActive
        assert ran.low == ran.watermark == 199.999
        ran.query.stop()
    finally:
        service.stop()
    with LowWatermarkService(spark) as service:
        ran = run_at_once(windows(orders(service, feed), "split"), feed, both(400), checkpoint)

    assert ran.low == 399.999
    assert ran.by_split() == {"a": 2, "b": 2}


def test_pitfall_45_the_initial_offset_is_always_the_same() -> None:
    assert json.dumps(reader().initialOffset()) == json.dumps(reader().initialOffset())


def test_pitfall_49_what_needs_a_driver_is_refused_for_connect() -> None:
    class ConnectSession:
        __module__ = "pyspark.sql.connect.session"  # the real one needs packages that the project lacks

    for command in (partial(adopt, "/there", "orders"), partial(leave, "/there")):
        with pytest.raises(
            TypeError, match=r"^(adopt|leave) needs the session of a driver, got a Spark Connect session"
        ):
            command(spark=ConnectSession())


def test_pitfall_50_a_stream_of_another_session_is_heard(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    other = spark.newSession()
    feed = Feed(other, tmp_path / "feed")
    ran = run_at_once(windows(orders(service, feed), "split"), feed, both(100, 200), str(tmp_path / "checkpoint"))
    ran.query.stop()

    assert ran.watermark == 199.999


def test_pitfall_50_two_sessions_of_a_thread_each_have_a_service_and_late_rows(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path
) -> None:
    other = spark.newSession()
    with LowWatermarkService(other) as beside:
        for at, (its, session) in enumerate(((service, spark), (service, other), (beside, other))):
            rows = Feed(session, tmp_path / str(at)).df
            wrapped = its.wrap(rows, name="orders", event_time="ts", split="split", late="is_late")
            assert wrapped.columns == [*rows.columns, "is_late"]


def test_pitfall_54_two_queries_from_one_wrapped_dataframe(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    df = orders(service, feed)
    one = start(windows(df, "split"), str(tmp_path / "one"), name="one")
    two = start(df.select("v"), str(tmp_path / "two"), name="two")
    for batch in both(100, 200):
        feed.put(*batch)
    one.settle()
    two.settle()
    statuses = dict(service.statuses())

    assert {name: seconds(s.low_watermark_us) for name, s in statuses.items()} == {"one": 199.999, "two": 199.999}
    assert one.heartbeats[-1].token != two.heartbeats[-1].token
    assert seconds(service.status("orders", query="two").low_watermark_us) == 199.999


def until(done: object, ran: Ran | None, *, within_seconds: float = 30) -> None:
    """Ask again and again, yielding to Spark's threads, until the condition holds."""
    deadline = time.monotonic() + within_seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"not within {within_seconds} s; {ran and ran.progress[-1]}"
        if ran is not None:
            ran.settle()
