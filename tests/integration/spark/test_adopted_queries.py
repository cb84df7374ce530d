"""Real queries over one checkpoint: native, adopted, left, adopted again; each query continues the previous one.

Together they emit the same as a batch query on all rows except the rows that native Spark dropped.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import AdoptionRefused, CheckpointUnreadable
from lowmark.integration.spark import logical_plan
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.checkpoint_store import HadoopStore, LocalStore, open_store
from lowmark.integration.spark.offset_log import EVOLUTION
from lowmark.sources.spark.versions import major_minor
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.moment import format_time_us
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.driver.test_stateful import alarms
from tests.integration.feed import Feed, Row, lose_commit, rows_read, run, run_at_once, start, us, windows
from tests.integration.spark.test_adoption import contents, cut_short, startable, written
from tests.integration.spark.test_checkpoint_doors import CRAFTED, KINDS, craft, everything
from tests.servers.local import wait_until
from tests.sparks import CHECKSUMS, IN_ROCKSDB_HERE, settings, since

Query = Callable[[DataFrame], DataFrame]
TEN_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
SPARK_59662 = major_minor(pyspark.__version__) == (4, 2)
OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"

# Native first, then wrapped and native in turns. In every wrapped phase "slow" is minutes behind "fast".
LATE = ("slow", 0, 20)  # native Spark drops it: its watermark is 100 by then
PHASES: list[list[list[Row]]] = [
    [[("fast", 1, 101), ("slow", 2, 102)], [("fast", 3, 111), ("slow", 4, 106)], [LATE, ("slow", 5, 112)]],
    [[("fast", 6, 301), ("slow", 7, 121)], [("fast", 8, 311), ("slow", 9, 131), ("slow", 9, 131)]],
    [[("fast", 10, 321), ("slow", 11, 315)], [("fast", 12, 333), ("slow", 13, 331)]],
    [[("fast", 14, 601), ("slow", 15, 341)], [("fast", 16, 611), ("slow", 17, 351)]],
]
END: list[Row] = [("fast", 98, 1_000), ("slow", 99, 1_000)]
COUNTED = [row for phase in PHASES for batch in phase for row in batch if row != LATE]


def counted_windows(df: DataFrame) -> DataFrame:
    return windows(df, "split")


def distinct_for_ever(df: DataFrame) -> DataFrame:
    return df.dropDuplicates(["split", "v", "ts"]).select("split", "v")


def windows_of_distinct(df: DataFrame) -> DataFrame:
    """Two stateful operators above each other."""
    return windows(df.dropDuplicatesWithinWatermark(["split", "v"]), "split")


# `make torture` runs the whole matrix; `make test` runs what has two operators, timers or two streams.
MATRIX = pytest.mark.torture
IN_ROCKS = pytest.mark.parametrize("store", [pytest.param("hdfs", marks=MATRIX), "rocksdb"], indirect=True)
IN_FILES = pytest.mark.parametrize("store", ["hdfs", pytest.param("rocksdb", marks=MATRIX)], indirect=True)


@pytest.fixture
def checksums(spark: SparkSession) -> Iterator[None]:
    """A wrong checksum beside an entry that lowmark wrote ends the query."""
    with settings(spark, CHECKSUMS):
        yield


@pytest.fixture
def store(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    with settings(spark, IN_ROCKSDB_HERE if request.param == "rocksdb" else {}):
        yield request.param


def native(df: DataFrame) -> DataFrame:
    return df.withWatermark("ts", "10 seconds")


def wrapped(service: LowWatermarkService, df: DataFrame, name: str = "orders") -> DataFrame:
    return service.wrap(df, name=name, event_time="ts", split="split", strategy=TEN_SECONDS, splits=["fast", "slow"])


def in_turns(
    spark: SparkSession,
    feed: Feed,
    query: Query,
    checkpoint: str,
    *,
    phases: Sequence[list[list[Row]]] = (*PHASES, [END]),
    through: SparkSession | None = None,
    at_once: bool = False,
) -> tuple[list[Row], list[int]]:
    """Run the phases, each from the checkpoint of the previous one; return all rows, and the drops of each phase.

    A native and a wrapped query take turns; a phase of the end alone restarts the query before it. The checkpoint is
    changed `through` a session, or without one. A phase finds its batches `at_once`, or one by one.
    """
    rows: list[Row] = []
    dropped: list[int] = []
    read, wraps = 0, False
    for n, phase in enumerate(phases):
        with LowWatermarkService(spark) as service:
            if n and phase != [END]:
                wraps = not wraps
                if wraps:
                    assert adopt(checkpoint, "orders", spark=through, stopped=True).done
                else:
                    assert leave(checkpoint, spark=through, stopped=True).done
            through_all = run_at_once if at_once else run
            ran = through_all(query(wrapped(service, feed.df) if wraps else native(feed.df)), feed, phase, checkpoint)
            rows += ran.rows
            dropped.append(ran.dropped)
            read += rows_read(ran.progress)
            ran.query.stop()
    assert read == sum(len(batch) for phase in phases for batch in phase), "each row was read once"
    return rows, dropped


def expected_windows(rows: list[Row]) -> list[Row]:
    counts: dict[tuple[float, str], int] = {}
    for split, _, at in rows:
        counts[at // 10 * 10.0, split] = counts.get((at // 10 * 10.0, split), 0) + 1
    return sorted((start_, split, n) for (start_, split), n in counts.items())


@pytest.mark.torture  # in `make test`, live/test_adopt_elsewhere has windows in files, and the next but one in RocksDB
@IN_ROCKS
def test_windows_in_turns(spark: SparkSession, feed: Feed, checkpoint: str, store: str) -> None:
    rows, dropped = in_turns(spark, feed, counted_windows, checkpoint)
    assert sorted(rows) == expected_windows(COUNTED)
    assert dropped == [1, 0, 0, 0, 0]


@pytest.mark.torture
@IN_FILES
def test_distinct_rows_in_turns(spark: SparkSession, feed: Feed, checkpoint: str, store: str) -> None:
    rows, dropped = in_turns(spark, feed, distinct_for_ever, checkpoint)
    assert sorted(rows) == sorted({(split, v) for split, v, _ in [*COUNTED, *END]})
    assert dropped[1:] == [0, 0, 0, 0]


@pytest.mark.usefixtures("checksums")
@IN_ROCKS
def test_windows_of_distinct_rows_in_turns(spark: SparkSession, feed: Feed, checkpoint: str, store: str) -> None:
    rows, dropped = in_turns(spark, feed, windows_of_distinct, checkpoint)
    assert sorted(rows) == expected_windows(sorted(set(COUNTED)))
    assert dropped[1:] == [0, 0, 0, 0]


@pytest.mark.parametrize("store", ["rocksdb"], indirect=True)
def test_timers_in_turns(spark: SparkSession, feed: Feed, checkpoint: str, store: str) -> None:
    """transformWithState: timers that a native query set fire in a wrapped one, and the other way round."""
    rows, _ = in_turns(spark, feed, alarms, checkpoint, at_once=True)
    assert sorted(rows) == sorted({(split, us(at + 10) // 1_000) for split, _, at in COUNTED})


@IN_FILES
def test_a_join_in_turns(spark: SparkSession, tmp_path: Path, checkpoint: str, store: str) -> None:
    """Two heartbeats: the second stream's source becomes number 2, with its folder.

    The first query of each kind starts too soon, and leaves an empty folder of that number.
    """
    feeds = [Feed(spark, tmp_path / name) for name in ("left", "right")]
    rows: list[Row] = []
    read = 0
    for n, phase in enumerate([*PHASES, [END]]):
        with LowWatermarkService(spark) as service:
            wraps = n % 2 == 1 or n == len(PHASES)
            one, two = (
                wrapped(service, feed.df, name) if wraps else native(feed.df)
                for feed, name in zip(feeds, ("a", "b"), strict=True)
            )
            # Native Spark knows that the first side's event time is never null, and writes this into the checkpoint.
            # The second side is renamed, which hides the same from native Spark.
            two = two.selectExpr("split AS s2", "v AS v2", "ts AS t2")
            near = F.expr("split = s2 AND t2 BETWEEN ts AND ts + INTERVAL 5 SECONDS")
            joined = one.join(two, near).select("v", "v2")
            if n in (1, 2):
                with pytest.raises(
                    StreamingQueryException, match=r"in the checkpoint offsets and now there are|lacks the heartb"
                ):
                    start(joined, checkpoint).query.awaitTermination(60)
            if n and n < len(PHASES):
                done = adopt(checkpoint, ["a", "b"], stopped=True) if wraps else leave(checkpoint, stopped=True)
                assert done.change.moves == ((("1", "2"),) if wraps else (("2", "1"),))
            for batch in phase:
                for feed in feeds:
                    feed.put(*[row for row in batch if row != LATE])
            ran = start(joined, checkpoint)
            ran.settle()
            rows += ran.rows
            read += rows_read(ran.progress)
            ran.query.stop()
    pairs = [(a, b) for a in [*COUNTED, *END] for b in [*COUNTED, *END] if a[0] == b[0] and 0 <= b[2] - a[2] <= 5]
    assert sorted(rows) == sorted((a[1], b[1]) for a, b in pairs)
    assert read == 2 * (len(COUNTED) + len(END))


def test_a_key_that_is_never_null_is_taken_over(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    """Beside the heartbeat it may be null, and Spark refused the state: STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE."""

    def never_null() -> DataFrame:
        return feed.df.withColumn("split", F.coalesce("split", F.lit("none")))

    ran = run(counted_windows(native(never_null())), feed, [[("fast", 1, 101), ("slow", 2, 102)]], checkpoint)
    ran.query.stop()
    adopt(checkpoint, "orders", stopped=True)
    with LowWatermarkService(spark) as service:
        batches: list[list[Row]] = [[("fast", v, at), ("slow", v, at)] for v, at in ((3, 103), (4, 300), (5, 400))]
        ran = run(counted_windows(wrapped(service, never_null())), feed, batches, checkpoint)
        ran.query.stop()
        others = service.wrap(feed.df, name="others", event_time="ts", split="split", late="is_late")
        plan = counted_windows(others)._jdf.queryExecution().analyzed()
        assert not logical_plan.may_be_null_only_here(plan), "Spark compares the state of all others"
    assert sorted(row for row in ran.rows if row[0] == 100) == [(100.0, "fast", 2), (100.0, "slow", 2)]


def test_a_file_that_is_no_text_is_none_for_hadoop_either(spark: SparkSession, tmp_path: Path) -> None:
    store = HadoopStore(spark, str(tmp_path))
    text = 'v1\n{"gr\u00fc\u00df \u20ac \U0001f600":{"0":1}}'
    (tmp_path / "whole").write_text(text, encoding="utf-8")
    (tmp_path / "damaged").write_bytes(b'v1\n{"gr\xff":{"0":1}}')

    assert store.read("whole") == text
    with pytest.raises(UnicodeDecodeError):
        store.read("damaged")


@pytest.mark.parametrize("then", ["adopted", "left"])
def test_a_batch_that_was_planned_and_not_committed_runs_again_in_the_other_kind(
    service: LowWatermarkService, feed: Feed, checkpoint: str, then: str
) -> None:
    """The session's function does the same: it reads and writes the files by Hadoop, as on HDFS."""
    spark = feed.spark
    ran = start(counted_windows(native(feed.df) if then == "adopted" else wrapped(service, feed.df)), checkpoint)
    for batch in PHASES[0][:2]:
        feed.put(*batch)
        ran.settle()
    with pytest.raises(AdoptionRefused, match=r"query .* runs on it. Hint: stop it first"):
        adopt(checkpoint, "orders", spark=spark)
    ran.settle()
    rows = ran.rows
    ran.query.stop()
    newest = lose_commit(checkpoint)
    with pytest.raises(AdoptionRefused, match=f"batch {newest} is planned and not committed"):
        adopt(checkpoint, "orders", spark=spark)
    if then == "adopted":
        adopt(f"file:{checkpoint}", "orders", spark=spark, stopped=True)
    else:
        leave(f"file:{checkpoint}", spark=spark, stopped=True)
    with LowWatermarkService(spark, beside=True) as other:
        after = wrapped(other, feed.df) if then == "adopted" else native(feed.df)
        ran = start(counted_windows(after), checkpoint)
        feed.put(("fast", 1, 115), ("slow", 1, 113))
        ran.settle()
        feed.put(*END)
        ran.settle()
        ran.settle()
        ran.query.stop()
    fed = [row for batch in PHASES[0][:2] for row in batch] + [("fast", 1, 115), ("slow", 1, 113)]
    assert sorted({*rows, *ran.rows}) == expected_windows(fed), "the batch that ran again may emit again"
    assert ran.dropped == 0


def test_what_was_half_done_starts_neither_kind_and_says_so(
    service: LowWatermarkService, feed: Feed, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = start(counted_windows(native(feed.df)), checkpoint)
    feed.put(*PHASES[0][0])
    ran.settle()
    ran.query.stop()
    write = LocalStore.write
    with monkeypatch.context() as patched:

        def stopped(self: LocalStore, path: str, text: str) -> None:
            write(self, path, text)
            if "lowmark is changing" in text:
                raise KeyboardInterrupt

        patched.setattr(LocalStore, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            adopt(checkpoint, "orders", stopped=True)
    for df in (native(feed.df), wrapped(service, feed.df)):
        with pytest.raises(StreamingQueryException, match="lowmark is changing this checkpoint and was stopped; run"):
            start(counted_windows(df), checkpoint).query.awaitTermination(60)


@pytest.mark.usefixtures("checksums")
@since("4.2", "named sources, and version 2 of the offset log,")
@pytest.mark.parametrize("named", [pytest.param(False, marks=MATRIX), True])
def test_version_2_of_the_offset_log_and_named_sources(
    spark: SparkSession, tmp_path: Path, checkpoint: str, named: bool
) -> None:
    """With source evolution a query is wrapped and unwrapped without a command, otherwise adopted as with version 1."""
    feed = Feed(spark, tmp_path / "feed")

    def df() -> DataFrame:
        reader: Any = spark.readStream
        reader = reader.name("orders_files") if named else reader
        frame: DataFrame = reader.schema(feed.schema).option("maxFilesPerTrigger", 1).json(str(feed.folder))
        return frame

    rows: list[Row] = []
    with settings(spark, {OFFSET_LOG: "2", EVOLUTION: str(named).lower()}):
        for n, phase in enumerate([*PHASES, [END]]):
            with LowWatermarkService(spark) as service:
                wraps = n % 2 == 1 or n == len(PHASES)
                if n and n < len(PHASES):
                    done = adopt(checkpoint, "orders", stopped=True) if wraps else leave(checkpoint, stopped=True)
                    assert (done.why_nothing is not None) == named
                ran = run(counted_windows(wrapped(service, df()) if wraps else native(df())), feed, phase, checkpoint)
                rows += ran.rows
                ran.query.stop()
    assert sorted(rows) == expected_windows(COUNTED)


def test_what_a_timestamp_of_the_future_left_behind_is_told(
    service: LowWatermarkService, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Native Spark's watermark is decades ahead; the wrapped query drops all rows, and logs the reason once."""
    there = f"stands at {format_time_us(us(4_102_444_800))}, "
    ran = start(counted_windows(native(feed.df)), checkpoint)
    for batch in ([("fast", 1, 4_102_444_810)], [("slow", 1, 100)]):
        feed.put(*batch)
        ran.settle()
    ran.query.stop()
    assert f"mind: Spark's watermark in it {there}" in str(adopt(checkpoint, "orders", stopped=True))

    ran = start(counted_windows(wrapped(service, feed.df)), checkpoint)
    for v in (2, 3):
        feed.put(("fast", v, 200), ("slow", v, 200))
        ran.settle()
    ran.query.stop()
    assert ran.dropped > 0
    said = [record.getMessage() for record in caplog.records if "ahead of the clock" in record.getMessage()]
    assert len(said) == 1, said
    assert said[0].startswith(f'stream "orders": Spark\'s watermark {there}')


def test_through_a_session_a_relative_path_is_read_from_the_working_folder(spark: SparkSession, tmp_path: Path) -> None:
    """`FileContext.resolvePath` refuses a relative path, so `adopt` and `mark_done` failed with "Path is relative"."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/5").write_text("v1")
    store = open_store(spark, os.path.relpath(tmp_path))
    assert (store.root, store.read("offsets/5")) == (str(tmp_path), "v1")


@pytest.mark.usefixtures("checksums")
def test_through_a_session_an_entry_is_replaced_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    """Without its newest entry, a checkpoint starts a batch too early."""
    store, entry, texts = open_store(spark, str(tmp_path)), tmp_path / "offsets/5", {"old" * 50, "new" * 50}
    store.write("offsets/5", "old" * 50)
    seen, over = set[str | None](), threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                seen.add(entry.read_text())
            except FileNotFoundError:
                seen.add(None)

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(look)
        for _ in range(25):
            for text in texts:
                store.write("offsets/5", text)
        over.set()
        looks.result()
    assert seen == texts
    assert not entry.with_name(".5.crc").exists(), "Hadoop would refuse the file beside its old checksum"


def test_where_a_rename_is_a_copy_a_move_that_was_cut_short_loses_no_file_of_a_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The log of a schema, or of shards, is a folder inside the folder of its source."""
    there = {"0": "offsets", "shards/1": "one", "shards/2": "two", "schema/0/a": "a"}
    for half, names in {"1": ["0", "shards/2", "schema/0/a"], "2": ["0", "shards/1", "shards/2"]}.items():
        for name in names:
            file = tmp_path / "sources" / half / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(there[name])
    HadoopStore(spark, str(tmp_path)).move("sources/1", "sources/2")
    found = (file for file in (tmp_path / "sources").rglob("*") if file.is_file())
    assert {str(file.relative_to(tmp_path / "sources/2")): file.read_text() for file in found} == there


@pytest.mark.timeout(60)  # a pipe that waits for its other end hangs
@pytest.mark.parametrize("kind", KINDS)
def test_through_a_session_a_link_or_a_pipe_in_a_checkpoint_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    root = written(tmp_path, {0: ["1"]})
    make, why = KINDS[kind]
    for name in ("offsets/0", "lowmark/changes/1.json"):
        if name != "offsets/0":
            adopt(root, "orders", spark=spark)
        (root / name).rename(tmp_path / "there")
        make(root / name)
        with pytest.raises(CheckpointUnreadable, match=re.escape(f"{name} cannot be read ({why})")):
            adopt(root, "orders", spark=spark, stopped=True)
        (root / name).unlink()
        (tmp_path / "there").rename(root / name)


@pytest.mark.parametrize("what", ["a name that climbs", "an absolute move", "a move that no entry asks for"])
def test_through_a_session_a_change_that_neither_command_has_written_is_refused(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    root = written(tmp_path, {n: [f'{{"a":{n}}}', f'{{"b":{n}}}'] for n in range(3)})
    adopt(root, ["one", "two"], spark=spark)
    craft(root, CRAFTED[what])
    before = everything(tmp_path)
    for undo in (False, True):
        with pytest.raises(AdoptionRefused, match=r"lowmark/changes/1\.json (cannot be read|is not one that lowmark)"):
            adopt(root, ["one", "two"], spark=spark, stopped=True, undo=undo)
    assert everything(tmp_path) == before


@pytest.mark.usefixtures("checksums")
@pytest.mark.parametrize("then", ["again", "undo"])
def test_through_a_session_it_may_be_cut_short_before_and_after_each_step(
    spark: SparkSession, tmp_path: Path, then: str
) -> None:
    old = written(tmp_path / "old", {n: [f'{{"a":{n}}}', f'{{"b":{n}}}'] for n in range(3)})
    for sums in old.rglob(".*.crc"):
        sums.unlink()  # the test made them, so they are no checksums
    new = shutil.copytree(old, tmp_path / "new")
    adopt(new, ["one", "two"], spark=spark)
    before, after = contents(old), contents(new)
    seen = set()
    for cut in range(100):
        root = shutil.copytree(old, tmp_path / f"{cut}")
        with cut_short(LocalStore, cut) as was_cut:
            adopt(root, ["one", "two"], spark=spark)
        if not was_cut():
            break
        found = startable(root)
        seen.add(found)
        if found is not None:
            assert contents(root) == (before if found == 2 else after), f"cut at {cut}"
        if then == "again":
            adopt(root, ["one", "two"], spark=spark)
            assert contents(root) == after, f"cut at {cut}, and again"
        elif (root / "lowmark/changes/1.json").exists():
            adopt(root, undo=True, spark=spark)
            assert contents(root) == before, f"cut at {cut}, and undone"
    assert cut > 10, "there are more steps than that"
    assert seen == {2, 4, None}


@pytest.mark.parametrize("version", ["1", pytest.param("2", marks=since("4.2", "version 2 of the offset log"))])
def test_version_2_may_write_its_lines_in_any_order_and_one_for_a_source_used_twice(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str, version: str
) -> None:
    """Version 1 has lines in the order of the query, and a line for each use of a source."""
    feeds = [Feed(spark, tmp_path / name) for name in "abc"]
    a, b, c = (wrapped(service, feed.df, feed.folder.name) for feed in feeds)
    with settings(spark, {OFFSET_LOG: version}):
        for n in range(2):
            ran = start(a.union(a).union(b).union(c).select("split", "v"), checkpoint)
            for feed in feeds:
                feed.put(("fast", n, 100))
            ran.settle()
            assert sorted(ran.rows) == [("fast", n)] * 4
            ran.query.stop()
    assert (Path(checkpoint) / "offsets/0").read_text().startswith(f"v{version}")


def test_a_heartbeat_behind_other_sources_than_the_stream_has_is_told_with_the_commands(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Adopted for one source while the stream has two: Spark takes a heartbeat's offset for a file source's."""
    feeds = [Feed(spark, tmp_path / name) for name in "ab"]
    both = feeds[0].df.union(feeds[1].df)
    ran = start(counted_windows(native(both)), checkpoint)
    for n, feed in enumerate(feeds):
        feed.put(("fast", n, 100))
    ran.settle()
    ran.query.stop()
    adopt(checkpoint, {"orders": [0]}, stopped=True)

    commands = f"run `lowmark leave {checkpoint}`, then `lowmark adopt {checkpoint} --stream orders=0,1`, and start it"
    with pytest.raises(StreamingQueryException, match=f"over other sources than this query.*{commands}"):
        start(counted_windows(wrapped(service, both)), checkpoint).query.awaitTermination(60)

    leave(checkpoint, stopped=True)
    adopt(checkpoint, {"orders": [0, 1]}, stopped=True)
    ran = start(counted_windows(wrapped(service, both)), checkpoint)
    for n in range(2):
        feeds[n].put(("fast", 2, 300), ("slow", 2, 300))
        ran.settle()
    assert ran.rows == [(100.0, "fast", 2)]
    assert rows_read(ran.progress) == 4
    ran.query.stop()


@pytest.mark.usefixtures("checksums")
def test_late_to_that_comes_or_goes_is_told_and_a_query_that_had_it_can_be_left(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, checkpoint: str
) -> None:
    """`late_to` reads the source once more, and version 1 of the offset log has a line for each use of a source."""

    def df(**late_to: Any) -> DataFrame:
        splits = ["fast", "slow"]
        return counted_windows(
            service.wrap(
                feed.df, name="orders", event_time="ts", split="split", strategy=TEN_SECONDS, splits=splits, **late_to
            )
        )

    def run(query: DataFrame, *batches: list[Row]) -> None:
        ran = start(query, checkpoint)
        for batch in batches:
            feed.put(*batch)
            ran.settle()
        rows.extend(ran.rows)
        ran.query.stop()

    def refused(query: DataFrame, text: str) -> None:
        with pytest.raises(StreamingQueryException, match=text):
            start(query, checkpoint).query.awaitTermination(60)

    rows: list[Row] = []
    late = {"late_to": tmp_path / "late"}
    run(df(**late), [("fast", 1, 101), ("slow", 2, 102)], [("fast", 3, 104), ("slow", 4, 103)])
    counted = "sources, heartbeats counted, and this query has"
    refused(df(), f"has 3 {counted} 2 sources: late_to reads .* Hint: pass late_to, or leave it out, as before")
    assert "mind: the line of a source that late_to read once more" in str(leave(checkpoint, stopped=True))
    run(counted_windows(native(feed.df)), [("fast", 5, 105), ("slow", 6, 106)])
    refused(df(**late), f"Hint: leave late_to out, run `lowmark adopt {checkpoint} --stream orders` and start it again")
    adopt(checkpoint, "orders", stopped=True)
    run(df(), *[[("fast", n, 300), ("slow", n, 300)] for n in (7, 8)])
    refused(df(**late), f"has 2 {counted} 3 sources")
    assert sorted(rows) == [(100.0, "fast", 3), (100.0, "slow", 3)]


@pytest.fixture
def version_2(spark: SparkSession) -> Iterator[None]:
    with settings(spark, {OFFSET_LOG: "2"}):
        yield


@since("4.2", "version 2 of the offset log")
@pytest.mark.usefixtures("version_2")
@pytest.mark.parametrize("before", [True, False])
def test_version_2_numbers_a_source_by_its_last_use_so_late_to_that_comes_or_goes_is_refused(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, checkpoint: str, before: bool
) -> None:
    """Spark itself would read all rows a second time, and say nothing."""

    def df(*, late: bool) -> DataFrame:
        late_to: dict[str, Any] = {"late_to": tmp_path / "late"} if late else {}
        return service.wrap(
            feed.df, name="orders", event_time="ts", split="split", strategy=TEN_SECONDS, splits=["fast"], **late_to
        ).select("v")

    def run(*values: int) -> list[Row]:
        ran = start(df(late=before), checkpoint)
        for value in values:
            feed.put(("fast", value, 100 + value))
            ran.settle()
        ran.query.stop()
        return ran.rows

    assert run(0, 1) == [(0,), (1,)]
    why = "does not number its sources as this query does, so Spark would .* Hint: pass late_to, or leave it out, as"
    with pytest.raises(StreamingQueryException, match=why):
        start(df(late=not before), checkpoint).query.awaitTermination(60)
    assert run(2) == [(2,)]


@since("4.2", "version 2 of the offset log")
@pytest.mark.usefixtures("version_2")
def test_version_2_leaves_out_a_source_that_has_read_nothing_and_that_is_told(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    feeds = [Feed(spark, tmp_path / name) for name in "ab"]
    both = feeds[0].df.union(feeds[1].df)
    feeds[0].put(("fast", 0, 100))
    ran = start(counted_windows(native(both)), checkpoint)
    ran.settle()
    ran.query.stop()
    assert adopt(checkpoint, "orders", stopped=True).done, "it looks like a query with one source"
    with pytest.raises(StreamingQueryException, match=r"over other sources than this query.* --stream orders=0,1`"):
        start(counted_windows(wrapped(service, both)), checkpoint).query.awaitTermination(60)
    leave(checkpoint, stopped=True)
    with pytest.raises(
        AdoptionRefused, match=r"it has 0 to 0.* Version 2 .* leaves out a source that has read nothing"
    ):
        adopt(checkpoint, {"orders": [0, 1]}, stopped=True)

    ran = start(counted_windows(native(both)), checkpoint)
    feeds[1].put(("slow", 1, 100))
    ran.settle()
    ran.query.stop()
    with pytest.raises(AdoptionRefused, match=r"another number of sources each. Hint: version 2 .* until two batches"):
        adopt(checkpoint, {"orders": [0, 1]}, stopped=True)
    ran = start(counted_windows(native(both)), checkpoint)
    feeds[1].put(("slow", 3, 101))
    ran.settle()
    ran.query.stop()
    adopt(checkpoint, {"orders": [0, 1]}, stopped=True)
    ran = start(counted_windows(wrapped(service, both)), checkpoint)
    for _ in range(2):
        feeds[1].put(("fast", 2, 300), ("slow", 2, 300))
        ran.settle()
    ran.query.stop()
    assert sorted(ran.rows) == [(100.0, "fast", 1), (100.0, "slow", 2)]


@since("4.2", "version 2 of the offset log")
@pytest.mark.usefixtures("version_2")
def test_a_native_query_on_a_wrapped_checkpoint_of_version_2_is_told_what_is_in_its_way(
    service: LowWatermarkService, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark refuses such a query with version 1, and starts it silently with version 2."""
    ran = start(counted_windows(wrapped(service, feed.df)), checkpoint)
    feed.put(("fast", 0, 100), ("slow", 0, 100))
    ran.settle()
    ran.query.stop()
    with caplog.at_level(logging.WARNING, "lowmark"):
        native_again = start(counted_windows(native(feed.df)), checkpoint)
        native_again.query.stop()
    said = [record.getMessage() for record in caplog.records if "version 2 of the offset log" in record.getMessage()]

    assert len(said) == 1, caplog.messages
    assert 'its checkpoint is of a query with lowmark (stream "orders"), and this one is without' in said[0]
    assert f"run `lowmark leave {checkpoint}`" in said[0]


@pytest.mark.skipif(not SPARK_59662, reason="a fault of Spark 4.2 alone")
@pytest.mark.usefixtures("version_2")
def test_version_2_on_spark_4_2_does_not_run_a_batch_again_and_the_way_out_is_said(
    service: LowWatermarkService, feed: Feed, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    df = counted_windows(wrapped(service, feed.df))
    ran = start(df, checkpoint)
    feed.put(("fast", 1, 101), ("slow", 2, 102))
    ran.settle()
    ran.query.stop()
    newest = lose_commit(checkpoint)
    with pytest.raises(StreamingQueryException, match=r"None\.get"):
        start(df, checkpoint).query.awaitTermination(60)
    wait_until(lambda: "SPARK-59662, with lowmark or without" in caplog.text, "it was said")

    Path(checkpoint, "offsets", f"{newest}").unlink()
    ran = start(df, checkpoint)
    for _ in range(2):
        feed.put(*END)
        ran.settle()
    ran.query.stop()
    assert ran.rows == [(100.0, "fast", 1), (100.0, "slow", 1)]


# Not s3a: Hadoop remembers for the life of the JVM that a class was missing, and other tests bring that class later.
@pytest.mark.parametrize("there", ["hdfs://127.0.0.1:1/orders", "nosuch:/orders", "abfss://a@b"])
def test_a_file_system_that_is_not_set_up_is_said_in_a_sentence(spark: SparkSession, there: str) -> None:
    with pytest.raises(
        CheckpointUnreadable, match=r"(it|offsets) cannot be read \(.*(Exception|Error).*\). Hint: call it in a"
    ) as told:
        adopt(there, "orders", spark=spark)
    assert "\n" not in str(told.value)
    assert there in str(told.value)


def test_another_name_bound_and_strategy_carry_over(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    """Between two runs of a wrapped query they may change; state, low watermark and splits stay."""
    rows: list[Row] = []
    with LowWatermarkService(spark) as service:
        ran = start(counted_windows(wrapped(service, feed.df)), checkpoint)
        for batch in ([("fast", 1, 300), ("slow", 1, 102)], [("fast", 2, 310), ("slow", 2, 111)]):
            feed.put(*batch)
            ran.settle()
        low = ran.low
        rows += ran.rows
        ran.query.stop()
    with LowWatermarkService(spark) as service:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("30 seconds").with_idleness("1 hour")
        names = ["fast", "slow"]
        df = service.wrap(feed.df, name="renamed", event_time="ts", split="split", strategy=strategy, splits=names)
        ran = start(counted_windows(df), checkpoint)
        feed.put(("fast", 3, 320))
        ran.settle()
        status = service.status("renamed")
        assert (ran.low, status.holder) == (low, "slow"), "it has not spoken in this run, and is known from before"
        feed.put(("slow", 3, 1_000), ("fast", 4, 1_000))
        ran.settle()
        rows += ran.rows
        assert ran.dropped == 0
        ran.query.stop()
    fed = [("fast", 1, 300), ("slow", 1, 102), ("fast", 2, 310), ("slow", 2, 111), ("fast", 3, 320)]
    assert sorted(rows) == expected_windows(fed)
