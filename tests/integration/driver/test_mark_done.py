"""`mark_done`, `wait_until` and `when_passed` beside real queries: never early, in order, again after a crash."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import logging
import re
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.driver import insist as insisting
from lowmark.integration.driver.done_partition import DonePartition, poster, success_files_in
from lowmark.integration.driver.marking import Marking
from lowmark.integration.driver.partitions import Kept
from lowmark.integration.errors import NotComplete, SuccessFileNotWritten, UnknownStream, WrapRefused
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.errors import InvalidTime
from lowmark.watermark.moment import us_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.feed import ZERO, Feed, lose_commit
from tests.servers.local import wait_until
from tests.snippets import block

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 minute")
HOUR = 3_600
FIRST = dt.datetime(2023, 11, 15, 0, tzinfo=dt.timezone.utc)


def hour(n: float) -> float:
    """The nth hour of 2023-11-15, on the feed's axis."""
    return (FIRST - ZERO).total_seconds() + n * HOUR


def name(n: int) -> str:
    return f"dt=2023-11-15/hour={n:02}"


def wrapped(service: LowWatermarkService, feed: Feed) -> DataFrame:
    return service.wrap(
        feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
    )


def hourly(df: DataFrame) -> DataFrame:
    return df.withColumn("dt", F.date_format("ts", "yyyy-MM-dd")).withColumn("hour", F.date_format("ts", "HH"))


def write(df: DataFrame, folder: Path) -> StreamingQuery:
    writer = hourly(df).writeStream.partitionBy("dt", "hour").format("parquet")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table"))


class Marks:
    """Takes marks; raises for as many as it shall."""

    def __init__(self, table: Path | None = None, raises: int = 0) -> None:
        self.marks: list[DonePartition] = []
        self.rows: list[int] = []
        self._table, self.raises = table, raises

    def __call__(self, mark: DonePartition) -> None:
        if self.raises:
            self.raises -= 1
            raise ZeroDivisionError("on purpose")
        if self._table is not None:  # what a reader of the table sees at this moment
            self.rows.append(ds.dataset(self._table / mark.name).count_rows())
        self.marks.append(mark)  # last, because a test waits for it

    @property
    def names(self) -> list[str]:
        return [mark.name for mark in self.marks]

    def await_names(self, *hours: int) -> None:
        wait_until(lambda: self.names == [name(n) for n in hours], f"the marks {hours}, not {self.names}", seconds=20)


def put(feed: Feed, query: StreamingQuery, *rows: tuple[str, int, float]) -> None:
    feed.put(*rows)
    query.processAllAvailable()


def success_files(table: Path) -> set[str]:
    return {str(file.parent.relative_to(table)) for file in table.rglob("_SUCCESS")}


def test_what_the_page_runs(service: LowWatermarkService, spark: SparkSession, tmp_path: Path) -> None:
    code = block("complete.md", "orders = service.wrap(")
    assert code.count("s3a://bucket/") == 3
    feed = Feed(spark, tmp_path / "feed", "topic string, partition string, v int, ts timestamp")
    names = {"service": service, "orders": feed.df, "strategy": STRATEGY, "F": F}
    exec(code.replace("s3a://bucket/", f"{tmp_path}/"), names)
    [query] = spark.streams.active
    for fast, slow in ((1.5, 0.5), (2.5, 1.05), (3.5, 1.2)):
        assert success_files(tmp_path / "table") == set()
        feed.put(("orders", "0", 1, hour(fast)), ("orders", "1", 1, hour(slow)))
        query.processAllAvailable()
    wait_until(lambda: success_files(tmp_path / "table") == {name(0)}, "the mark of hour 0", seconds=20)
    assert (tmp_path / "orders" / "commits").exists()


def test_a_success_file_stands_once_the_hour_is_whole(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> None:
    table = tmp_path / "table"
    df = service.mark_done(wrapped(service, feed), name="orders", time="ts", success_files=table)
    query = write(df, tmp_path)

    put(feed, query, ("fast", 1, hour(1.5)), ("slow", 1, hour(0.5)))
    put(feed, query, ("fast", 1, hour(2.5)), ("slow", 1, hour(0.9)))
    assert success_files(table) == set(), "native Spark's watermark would be at 02:29"
    put(feed, query, ("slow", 1, hour(1.1)))
    wait_until(lambda: success_files(table) == {name(0)}, "the mark of hour 0", seconds=20)
    assert sum(ds.dataset(table / name(0)).to_table().to_pydict()["v"]) == 2
    put(feed, query, ("slow", 1, hour(2.1)))
    wait_until(lambda: success_files(table) == {name(0), name(1)}, "the mark of hour 1", seconds=20)
    assert success_files(table) == {name(0), name(1)}


def test_a_jump_over_seven_hours_marks_each_that_has_rows_in_order(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    marks = Marks(tmp_path / "table")
    query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=marks), tmp_path)
    put(feed, query, *(("fast", 1, hour(n + 0.5)) for n in (0, 1, 3, 6)), ("slow", 1, hour(0.1)))
    assert marks.names == []
    put(feed, query, ("slow", 1, hour(7.1)), ("fast", 1, hour(7.2)))
    marks.await_names(0, 1, 3, 6)
    assert [mark.empty_before for mark in marks.marks] == [(), (), (name(2),), (name(4), name(5))]
    assert marks.rows == [2, 1, 1, 1], "rows that a reader sees at the mark"
    assert all(mark.complete_until >= mark.end for mark in marks.marks)
    assert all(mark.has_rows for mark in marks.marks)
    assert json.loads(json.dumps(marks.marks[2].to_json()))["empty_before"] == [name(2)]


def test_an_hour_with_rows_of_two_streams_is_marked_when_the_slower_stream_has_passed_it(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, spark: SparkSession
) -> None:
    """A union has no state, so no watermark in force shows that the other stream is behind."""
    other, marks = Feed(spark, tmp_path / "other"), Marks(tmp_path / "table")
    returns = service.wrap(
        other.df, name="returns", event_time="ts", split="split", strategy=STRATEGY, splits=["behind"]
    )
    rows = service.mark_done(wrapped(service, feed).unionByName(returns), name="orders", time="ts", call=marks)
    query = write(rows, tmp_path)
    for n, behind in ((0.5, 0.1), (1.5, 0.2), (1.6, 0.8), (1.7, 1.5)):
        other.put(("behind", 1, hour(behind)))
        put(feed, query, ("fast", 1, hour(n)), ("slow", 1, hour(n)))
    marks.await_names(0)
    assert marks.rows == [5], "rows that a reader sees at the mark"
    assert service.rows_after_mark("orders") == {}


def test_windows_are_marked_after_they_are_emitted(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, spark: SparkSession
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    counted = wrapped(service, feed).groupBy(F.window("ts", "30 minutes").alias("w"), "split").count()
    rows = counted.select(F.col("w.start").alias("ts"), "split", "count")
    marks = Marks(tmp_path / "table")
    for n in (0.1, 0.6, 1.2, 2.2, 3.2):
        feed.put(("fast", 1, hour(n)), ("slow", 1, hour(n)))
    write(service.mark_done(rows, name="orders", time="ts", call=marks), tmp_path).processAllAvailable()
    marks.await_names(0, 1, 2)
    assert marks.rows == [4, 2, 2]


def test_names_with_quotes_are_marked(service: LowWatermarkService, feed: Feed, tmp_path: Path) -> None:
    stream, column = 'or"d`e\\rs 2', "t`s\"'"
    events = service.wrap(
        feed.df, name=stream, event_time="ts", split="split", strategy=STRATEGY, splits=["fast", "slow"]
    )
    marks = Marks()
    rows = service.mark_done(events.withColumn(column, F.col("ts")), name=stream, time=column, call=marks)
    query = write(rows.drop(column), tmp_path)
    put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(0.5)))
    put(feed, query, ("fast", 1, hour(1.5)), ("slow", 1, hour(1.5)))
    marks.await_names(0)
    assert [mark.stream for mark in marks.marks] == [stream]


def test_a_mark_that_fails_is_repeated_and_the_next_one_waits(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(insisting, "_FIRST_SECONDS", 0.01)
    marks = Marks(raises=3)
    query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=marks), tmp_path)
    put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(1.5)))
    with caplog.at_level(logging.ERROR, "lowmark"):
        put(feed, query, ("fast", 1, hour(2.5)), ("slow", 1, hour(2.5)))
        marks.await_names(0, 1)
    assert caplog.text.count("ZeroDivisionError: on purpose") == 3
    assert f"marking partition {name(0)}" in caplog.text


def test_a_table_that_cannot_be_written_is_told_and_marked_once_it_can(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(insisting, "_FIRST_SECONDS", 0.01)
    table, rows = tmp_path / "table", wrapped(service, feed)
    table.write_text("a file stands here")
    df = service.mark_done(rows, name="orders", time="ts", success_files=table)
    query = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with caplog.at_level(logging.ERROR, "lowmark"):
        for n in (0.5, 1.5, 2.5):
            put(feed, query, ("fast", 1, hour(n)), ("slow", 1, hour(n)))
        told = f'stream "orders": _SUCCESS of partition {name(0)} cannot be written into "{table}"'
        wait_until(lambda: told in caplog.text, "the failure is told", seconds=20)
    table.unlink()
    table.mkdir()
    wait_until((table / name(1) / "_SUCCESS").exists, "the mark of hour 1", seconds=20)
    assert (table / name(0) / "_SUCCESS").exists()


def test_a_session_west_of_greenwich_is_warned_because_its_folders_would_be_marked_hours_early(
    service: LowWatermarkService, feed: Feed, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At 07:10 UTC the folder of hour 6 gets its file, and the folder's rows come from 11:00 UTC on."""
    rows, said = wrapped(service, feed), 'are named in UTC, and spark.sql.session.timeZone is "America/New_York"'
    service.mark_done(rows, name="orders", time="ts", success_files=tmp_path / "table")
    assert said not in caplog.text, "the session of the tests is in UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        query = write(service.mark_done(rows, name="orders", time="ts", success_files=tmp_path / "table"), tmp_path)
        put(feed, query, ("fast", 1, hour(6.5)), ("slow", 1, hour(6.5)))
        put(feed, query, ("fast", 1, hour(7.2)), ("slow", 1, hour(7.2)))
        put(feed, query, ("fast", 1, hour(7.3)))
        wait_until(lambda: success_files(tmp_path / "table") == {name(6)}, "the mark", seconds=20)
        put(feed, query, ("fast", 1, hour(11.5)), ("slow", 1, hour(11.5)))
        assert ds.dataset(tmp_path / "table" / name(6)).count_rows() == 2, "they came after the mark"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert said in caplog.text


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_table_that_spark_does_not_reach_is_told_as_a_table(spark: SparkSession, has_rows: bool) -> None:
    mark = DonePartition("orders", "q", name(0), FIRST, FIRST + dt.timedelta(hours=1), FIRST, has_rows, (), 0)
    said = rf'"orders": _SUCCESS of partition {name(0)} cannot be written into "s4://bucket/table" \(.* scheme "s4"'
    with pytest.raises(SuccessFileNotWritten, match=said) as failed:
        success_files_in(spark, "s4://bucket/table", HOUR * 1_000_000)(mark)
    assert "checkpoint" not in str(failed.value)


def test_a_mark_that_hangs_is_told_and_the_query_goes_on(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(insisting, "_HANGS_SECONDS", 0.05)
    free, marked = threading.Event(), Marks()

    def call(mark: DonePartition) -> None:
        assert free.wait(60)
        marked(mark)

    query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=call), tmp_path)
    with caplog.at_level(logging.ERROR, "lowmark"):
        for n in (0.5, 1.5, 2.5):
            put(feed, query, ("fast", 1, hour(n)), ("slow", 1, hour(n)))
        wait_until(lambda: "has not returned" in caplog.text, "the hanging is told", seconds=20)
    assert service.status("orders").low_watermark_us is not None
    free.set()
    marked.await_names(0, 1)


def test_mark_done_again_is_refused_while_its_query_runs_and_goes_on_when_it_has_ended(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    """A cell of a notebook that runs again must not end the marks of the query without a word."""
    marks, rows = Marks(), wrapped(service, feed)
    query = write(service.mark_done(rows, name="orders", time="ts", call=marks), tmp_path)
    put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(1.5)))
    with pytest.raises(WrapRefused, match=r"runs with an earlier mark_done, .* Hint: stop it first: query.stop\(\)"):
        service.mark_done(rows, name="orders", time="ts", call=print)
    put(feed, query, ("fast", 1, hour(1.5)))
    marks.await_names(0)
    query.stop()
    query = write(service.mark_done(rows, name="orders", time="ts", call=marks), tmp_path)
    for n in (2.5, 2.6):
        put(feed, query, ("fast", 1, hour(n)), ("slow", 1, hour(n)))
    marks.await_names(0, 1)
    query.stop()
    assert all(mark.has_rows for mark in marks.marks)
    service.release("orders")
    assert service.rows_after_mark("orders") == {}


def test_a_second_query_on_marked_rows_is_refused_because_its_sink_would_mark_the_table_of_the_first(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    marks = Marks(tmp_path / "first/table")
    rows = service.mark_done(wrapped(service, feed), name="orders", time="ts", call=marks)
    first = write(rows, tmp_path / "first")
    put(feed, first, ("fast", 1, hour(0.5)), ("slow", 1, hour(0.5)))
    second = write(rows, tmp_path / "second")
    with pytest.raises(StreamingQueryException, match=r"query .* writes the rows of this mark_done, .*Hint: wrap the"):
        second.processAllAvailable()
    put(feed, first, ("fast", 1, hour(1.5)), ("slow", 1, hour(1.5)))
    marks.await_names(0)
    first.stop()
    put(feed, write(rows, tmp_path / "second"), ("fast", 1, hour(2.5)), ("slow", 1, hour(2.5)))


@contextmanager
def receiver(failures: int, status: int = 500) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An HTTP server that refuses its first requests; a redirect leads to the server itself, which answers a GET."""
    got: list[dict[str, Any]] = []
    left = [failures]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            left[0] -= 1
            if left[0] < 0:
                got.append(json.loads(body))
            self.send_response(status if left[0] >= 0 else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/done", got
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_no_answer_because_it_takes_no_json(status: int) -> None:
    partition = DonePartition("orders", "q", name(0), FIRST, FIRST, FIRST, True, (), 0)
    with receiver(failures=1, status=status) as (address, got):
        with pytest.raises(urllib.error.HTTPError, match=f"HTTP Error {status}"):
            poster(address)(partition)
        assert got == []
        poster(address)(partition)
    assert [each["partition"] for each in got] == [name(0)]


def test_a_post_is_repeated_until_it_is_taken(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insisting, "_FIRST_SECONDS", 0.01)
    with receiver(failures=2) as (address, got):
        query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", post=address), tmp_path)
        put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(1.5)))
        put(feed, query, ("fast", 1, hour(1.5)))
        wait_until(lambda: len(got) == 1, "the post", seconds=20)
    assert got[0]["partition"] == name(0)
    assert got[0]["start"] == "2023-11-15T00:00:00+00:00"


def test_late_rows_of_a_marked_partition_are_counted_and_named(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = Marks()
    query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=marks), tmp_path)
    put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(1.5)))
    put(feed, query, ("fast", 1, hour(1.6)))
    marks.await_names(0)
    with caplog.at_level(logging.WARNING, "lowmark"):
        put(feed, query, ("fast", 1, hour(0.2)), ("fast", 1, hour(0.3)), ("slow", 1, hour(1.7)))
    assert service.rows_after_mark("orders") == {name(0): 2}
    assert re.search(rf": 2 rows in batch \d came to partition {name(0)} after it was marked done", caplog.text)
    assert marks.names == [name(0)]


@pytest.mark.parametrize("kind", ["string", "date"])
def test_partitions_have_the_names_that_spark_gives_their_folders(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Also before the year 1000, where Python's names depend on the C library."""
    days = [(1, 1, 1), (87, 3, 9), (999, 12, 31), (1582, 10, 10), (1969, 12, 31), (9999, 12, 30)]
    hours = [dt.datetime(year, month, day, 23, tzinfo=dt.timezone.utc) for year, month, day in days]
    numbers = [us_of(at) // (HOUR * 1_000_000) for at in hours]
    marking = Marking("orders", "ts", HOUR * 1_000_000, 0, "dt=%Y-%m-%d/hour=%H", print)
    times = spark.createDataFrame([(n * HOUR,) for n in numbers], "s long").select(F.timestamp_seconds("s").alias("ts"))
    hourly(times).withColumn("dt", F.col("dt").cast(kind)).write.partitionBy("dt", "hour").parquet(str(tmp_path / "t"))
    folders = sorted(str(each.relative_to(tmp_path / "t")) for each in (tmp_path / "t").glob("*/*") if each.is_dir())
    assert [marking.name(number) for number in numbers] == folders


def test_partitions_of_a_timestamp_have_the_names_that_spark_gives_their_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark escapes characters that a path or a name of a column's folder may not have."""
    layout = "at=%Y-%m-%d %H:%M:%S/text=a:b#c%%d'e*f?g\\h{i}[j]^k=l\tm n\"o"
    marking = Marking("orders", "ts", HOUR * 1_000_000, 0, layout, print)
    numbers = [0, 470_000]
    text = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc).strftime(layout.partition("text=")[2])
    times = spark.createDataFrame([(n * HOUR, n) for n in numbers], "s long, n long")
    rows = times.select(F.timestamp_seconds("s").alias("at"), F.lit(text).alias("text"), "n")
    rows.write.partitionBy("at", "text").parquet(str(tmp_path / "t"))
    folders = sorted(str(each.relative_to(tmp_path / "t")) for each in (tmp_path / "t").glob("*/*") if each.is_dir())
    assert [marking.name(number) for number in numbers] == folders


def kept(folder: Path) -> Kept:
    [file] = (folder / "checkpoint/lowmark").glob("done-*")
    return msgspec.json.decode(file.read_bytes(), type=Kept)


@pytest.mark.parametrize("crash", ["before the mark returned", "before the file was written", "before the commit"])
def test_after_a_crash_what_was_not_marked_is_marked(
    spark: SparkSession, feed: Feed, tmp_path: Path, crash: str
) -> None:
    dead, marks = threading.Event(), Marks()

    def call(mark: DonePartition) -> None:
        assert dead.wait(60)  # the driver is dead before it returns
        raise SystemExit

    with LowWatermarkService(spark) as service:
        query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=call), tmp_path)
        put(feed, query, ("fast", 1, hour(0.5)), ("slow", 1, hour(1.5)))
        put(feed, query, ("fast", 1, hour(1.5)), ("slow", 1, hour(1.6)))
        wait_until(lambda: kept(tmp_path).batch_id >= 1, "the file", seconds=20)
        early = kept(tmp_path)
        put(feed, query, ("fast", 1, hour(3.5)), ("slow", 1, hour(2.6)))
        query.stop()
        dead.set()
    [file] = (tmp_path / "checkpoint/lowmark").glob("done-*")
    if crash == "before the file was written":
        file.write_bytes(msgspec.json.encode(early))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    if crash == "before the commit":
        lose_commit(tmp_path / "checkpoint")
    with LowWatermarkService(spark) as service:
        query = write(service.mark_done(wrapped(service, feed), name="orders", time="ts", call=marks), tmp_path)
        put(feed, query, ("fast", 1, hour(4.5)), ("slow", 1, hour(4.5)))
        put(feed, query, ("fast", 1, hour(4.6)), ("slow", 1, hour(4.6)))
        wait_until(lambda: name(3) in marks.names, f"the mark of hour 3, not {marks.names}", seconds=20)
        query.stop()
    assert marks.names[:4] == [name(n) for n in range(4)]
    if crash != "before the file was written":
        assert all(mark.has_rows for mark in marks.marks)


def test_wait_until_and_when_passed_speak_once_the_sink_has_the_rows(
    service: LowWatermarkService, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insisting, "_FIRST_SECONDS", 0.01)
    query = write(wrapped(service, feed), tmp_path)
    called: list[dt.datetime] = []
    tries: list[int] = []

    def call(until: dt.datetime) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ZeroDivisionError("on purpose")
        called.append(until)

    at = FIRST + dt.timedelta(hours=1)
    service.when_passed("orders", at, call)
    put(feed, query, ("fast", 1, hour(2.5)), ("slow", 1, hour(0.5)))
    with pytest.raises(
        NotComplete, match=r'"orders" has not passed 2023-11-15 01:00:00.000 UTC.*(?s:.*)why    split slow'
    ):
        service.wait_until("orders", at, timeout="10ms")
    assert called == []
    put(feed, query, ("slow", 1, hour(1.5)))
    service.wait_until("orders", at.isoformat(), timeout="20s")
    wait_until(lambda: len(called) == 1, "the call", seconds=20)
    assert called[0] >= at
    assert len(tries) == 3
    query.stop()
    service.wait_until("orders", at, timeout="0s")

    def why_not() -> str:
        with pytest.raises(NotComplete) as failed:
            service.wait_until("orders", at + dt.timedelta(hours=1), timeout="0s")
        return str(failed.value)

    wait_until(lambda: "its queries have ended" in why_not(), "the news of the end", seconds=20)


def test_a_sink_that_is_complete_until_before_the_year_1_fails_no_function_that_asks(
    service: LowWatermarkService, feed: Feed, tmp_path: Path
) -> None:
    """The smallest time of .NET stands for an unset one; the bound leads below the first of Python's times."""
    unset = (dt.datetime(1, 1, 1, 0, 0, 30, tzinfo=dt.timezone.utc) - ZERO).total_seconds()
    asked = list[dt.datetime | None]()

    def ask(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("append").save()
        asked.append(service.complete_until("orders"))

    writer = wrapped(service, feed).writeStream.foreachBatch(ask)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    for n in (1, 2, 3):
        put(feed, query, ("fast", 1, hour(n)), ("slow", 1, unset))
    assert service.status("orders").low_watermark_us is not None
    assert asked
    assert set(asked) == {None}


def test_arguments_that_do_not_fit_are_refused(service: LowWatermarkService, feed: Feed) -> None:
    df = wrapped(service, feed)
    for time in ("2026-11-23T10:00", dt.datetime(2026, 11, 23)):  # noqa: DTZ001  # this is the fault
        with pytest.raises(InvalidTime, match="no time zone"):
            service.wait_until("orders", time)
    with pytest.raises(UnknownStream):
        service.when_passed("clicks", FIRST, print)
    refused = r"when_passed: call is None, expected a function\. Hint: pass the function itself, not its result\."
    with pytest.raises(WrapRefused, match=refused):
        service.when_passed("orders", FIRST, None)  # type: ignore[arg-type]  # the result of a function
    with pytest.raises(WrapRefused, match=r"mark_done: call is 3, expected a function"):
        service.mark_done(df, name="orders", time="ts", call=3)  # type: ignore[arg-type]  # this is the fault
    with pytest.raises(WrapRefused, match=r"mark_done: success_files is '', expected the path of a folder"):
        service.mark_done(df, name="orders", time="ts", success_files="")
    with pytest.raises(WrapRefused, match="0 ways"):
        service.mark_done(df, name="orders", time="ts")
    with pytest.raises(WrapRefused, match='"at" is no column'):
        service.mark_done(df, name="orders", time="at", call=print)
    with pytest.raises(
        WrapRefused, match=r"time is Column<'ts'>, expected the name of a column\. Hint: pass time=\"ts\""
    ):
        service.mark_done(df, name="orders", time=F.col("ts"), call=print)  # type: ignore[arg-type]  # this is the fault
    with pytest.raises(WrapRefused, match='"split" is string'):
        service.mark_done(df, name="orders", time="split", call=print)
    for post in (
        "localhost:8080/done",
        "localhost",
        "http:///done",
        "http://localhost:80800/done",
        "http://me:secret@localhost/done",
        "http://localhost/the hour",
        "file:///tmp/done",
    ):
        with pytest.raises(WrapRefused, match=r"post is '.*', expected http:.* without a login or a blank") as wrong:
            service.mark_done(df, name="orders", time="ts", post=post)
        assert "secret" not in str(wrong.value)
    with pytest.raises(UnknownStream):
        service.mark_done(df, name="clicks", time="ts", call=print)
