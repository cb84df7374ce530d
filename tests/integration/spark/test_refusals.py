"""Bad input: every refusal names the fault, the place and the remedy."""

from __future__ import annotations

import json
import logging
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import (
    ServiceDiffers,
    ServiceRefused,
    ServiceStopped,
    StreamNameTaken,
    StreamRunning,
    UnknownStream,
    WrapRefused,
)
from lowmark.integration.spark.conflict import adopt_command, conflict, leave_command
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.generator import GeneratorSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.watermark import WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, start, windows
from tests.integration.log import Log, LogSource
from tests.servers.local import wait_until
from tests.sparks import settings

GOOD: dict[str, Any] = {"name": "orders", "event_time": "ts", "split": "split"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"event_time": "time"},
            'event time column "time" does not exist; there are: split, ts, v. Hint: check the spelling',
        ),
        ({"event_time": "v"}, 'event time column "v" is int, expected timestamp. Hint: convert it first'),
        ({"event_time": "a.b"}, "nested fields must be a column of their own"),
        ({"split": "part"}, 'split column "part" does not exist; there are: split, ts, v'),
        ({"split": []}, "split names no column"),
        ({"split": ["split", "split"]}, "split names a column twice"),
        ({"splits": [1]}, "splits= holds 1, which is no value of (split string)"),
        ({"splits": [("a", "b")]}, "splits= holds ('a', 'b')"),
        ({"splits": ["a", "\ud800"]}, r"splits= holds '\ud800', which is no value of (split string)"),
        ({"max_splits": 0}, "max_splits is 0"),
        ({"name": ""}, "the name is empty"),
        ({"name": "orders\n"}, r"""stream "orders\n": the name holds '\n', which would break log lines"""),
        ({"name": "a\x1b[2J"}, r"""stream "a\x1b[2J": the name holds '\x1b'"""),
        ({"name": None}, "the name is None, expected a text"),
        (
            {"strategy": "10 seconds"},
            "the strategy is '10 seconds', expected a WatermarkStrategy. Hint: pass one, such",
        ),
        ({"event_time": None}, 'event_time is None, expected the name of a column. Hint: pass event_time="ts".'),
        ({"split": 3}, "split is 3, expected the name of a column"),
        ({"split": ["split", None]}, "split is None, expected the name of a column"),
        ({"splits": "abc"}, "splits is 'abc', expected several ids"),
        ({"splits": b"abc"}, "splits is b'abc', expected several ids. Hint: pass a list"),
        ({"splits": 3}, "splits is 3, expected several ids"),
        ({"max_splits": "9"}, "max_splits is '9'"),
        ({"max_splits": True}, "max_splits is True. Hint: pass a number from 1"),
    ],
    ids=str,
)
def test_wrong_arguments(service: LowWatermarkService, feed: Feed, change: dict[str, Any], text: str) -> None:
    with pytest.raises(WrapRefused) as refused:
        service.wrap(feed.df, **(GOOD | change))

    assert text in str(refused.value)
    assert "Hint: " in str(refused.value)


@pytest.mark.parametrize(
    ("column", "kind", "text"),
    [
        ("ts", "timestamp_ntz", "is TIMESTAMP_NTZ, which has no place on the time line"),
        ("ts", "timestamp_ntz", 'or cast it to "timestamp_ltz"'),
        ("split", "double", 'split column "split" is double, which cannot name a split'),
        ("split", "array<int>", "cannot name a split. Hint: cast it to string"),
    ],
)
def test_wrong_types(service: LowWatermarkService, feed: Feed, column: str, kind: str, text: str) -> None:
    df = feed.df.withColumn(column, F.lit(None).cast(kind))
    with pytest.raises(WrapRefused) as refused:
        service.wrap(df, **GOOD)

    assert text in str(refused.value)


def test_a_batch_dataframe(service: LowWatermarkService, spark: SparkSession) -> None:
    df = spark.createDataFrame([], "split string, v int, ts timestamp")
    with pytest.raises(WrapRefused, match="is not a stream"):
        service.wrap(df, **GOOD)


def test_columns_that_exist_twice(service: LowWatermarkService, feed: Feed) -> None:
    with pytest.raises(WrapRefused, match="these columns exist twice: v"):
        service.wrap(feed.df.select("*", F.col("v")), **GOOD)


def test_a_column_of_lowmarks_own_name(service: LowWatermarkService, feed: Feed) -> None:
    with pytest.raises(WrapRefused, match="lowmark_heartbeat has a name that lowmark uses itself"):
        service.wrap(feed.df.withColumn("lowmark_heartbeat", F.lit(1)), **GOOD)


def test_a_name_is_taken_while_a_query_reads_it_and_free_again_when_it_ended(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    first = service.wrap(feed.df, **GOOD)
    second = service.wrap(feed.df, **GOOD).select("v")  # no query reads the first
    ran = start(second, checkpoint, name="reader")
    with pytest.raises(
        StreamNameTaken, match=r'"orders": this service already has a stream of that name, which reader'
    ):
        service.wrap(feed.df, **GOOD)
    with pytest.raises(StreamRunning, match=r'stream "orders": query reader runs on it. Hint: stop them first'):
        service.release("orders")
    feed.put(("a", 1, 100))
    ran.settle()
    ran.query.stop()
    again = start(service.wrap(feed.df, **GOOD).select("v"), checkpoint)
    feed.put(("a", 2, 200))
    again.settle()
    again.query.stop()
    assert (ran.rows, again.rows) == ([(1,)], [(2,)])
    with pytest.raises(StreamingQueryException, match=r"this DataFrame was released, or its name was given to another"):
        start(first.select("v"), checkpoint).query.awaitTermination(60)
    service.release("orders")
    with pytest.raises(UnknownStream):
        service.release("orders")


def test_a_cell_that_is_run_again_gets_the_service_that_it_made(spark: SparkSession) -> None:
    with LowWatermarkService(spark, metrics_port=0) as service:
        assert LowWatermarkService(spark, metrics_port=0) is service
        with LowWatermarkService(spark, metrics_port=0) as same:
            assert same is service
        assert service.statuses() == [], "the inner block did not stop it"
        with pytest.raises(ServiceDiffers, match=r"with metrics_port=0 \(here None\)\. Hint: stop it first"):
            LowWatermarkService(spark)
        with pytest.raises(TypeError, match="unexpected keyword argument 'metric_port'"):
            LowWatermarkService(spark, metric_port=0)  # type: ignore[call-arg]  # this is the fault
        with LowWatermarkService(spark, beside=True) as other:
            assert other is not service
        service.stop()
        with LowWatermarkService(spark) as after:
            assert after is not service


def test_pitfall_08_a_watermark_on_the_input(service: LowWatermarkService, feed: Feed) -> None:
    with pytest.raises(WrapRefused, match="withWatermark already stands on this DataFrame"):
        service.wrap(feed.df.withWatermark("ts", "1 minute").filter("v > 1"), **GOOD)


def test_wrapping_what_is_wrapped(service: LowWatermarkService, feed: Feed) -> None:
    """The user wrote no withWatermark: the one in the plan is lowmark's own."""
    wrapped = service.wrap(feed.df, **GOOD)
    with pytest.raises(WrapRefused, match=r"this DataFrame is wrapped already, or comes from one that is\. Hint: wrap"):
        service.wrap(wrapped.filter("v > 1"), **(GOOD | {"name": "again"}))


@pytest.mark.parametrize("argument", ["event_time", "split"])
def test_a_column_instead_of_its_name(service: LowWatermarkService, feed: Feed, argument: str) -> None:
    with pytest.raises(WrapRefused, match=rf"{argument} is Column<'v'>, expected the name of a column.*withColumn"):
        service.wrap(feed.df, **(GOOD | {argument: F.col("v")}))


def test_what_is_no_dataframe(service: LowWatermarkService) -> None:
    with pytest.raises(WrapRefused, match=r'stream "orders": expected a DataFrame to wrap, got None\. Hint: wrap what'):
        service.wrap(None, **GOOD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"source": GeneratorSource}, "expected a source to read, got <class 'lowmark.sources.generator"),
        ({"source": "orders"}, "expected a source to read, got 'orders'. Hint: pass one that is made with its options"),
        ({"event_time": 3}, "event_time is 3, expected the name of a column"),
        ({"split_column": None}, "split_column is None, expected the name of a column"),
        ({"split_column": ""}, "split_column is '', expected the name of a column"),
        ({"by_time": "no"}, "by_time is 'no', expected True or False. Hint: leave by_time out"),
        ({"prepare": "x"}, "prepare is 'x', expected a function"),
        ({"prepare": lambda _: None}, "prepare returned None, expected a DataFrame"),
        ({"strategy": 5}, "the strategy is 5, expected a WatermarkStrategy"),
        ({"tasks": 0}, "tasks is 0, expected a whole number, 1 or more. Hint: leave tasks out"),
        ({"tasks": "2"}, "tasks is '2', expected a whole number, 1 or more"),
        ({"tasks": 2.0}, "tasks is 2.0, expected a whole number, 1 or more"),
        ({"max_rows_per_batch": "10"}, "max_rows_per_batch is '10', expected 1 or more"),
        ({"max_rows_per_batch": True}, "max_rows_per_batch is True, expected 1 or more"),
        ({"max_bytes_per_batch": 0}, "max_bytes_per_batch is 0, expected 1 or more"),
        ({"max_slice": "0 seconds"}, "max_slice is '0 us', expected 1 millisecond or more"),
        ({"timeout": "0 seconds"}, "timeout is '0.0 s', expected more than 0"),
        ({"rate": 5}, "rate is 5, expected a RateLimiterStrategy. Hint: leave rate out"),
        ({"failover": 3}, "failover is 3, expected a FailoverPolicy"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each[:20],
)
def test_wrong_arguments_of_read(
    service: LowWatermarkService, tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(WrapRefused) as refused:
        service.read(**{"source": LogSource(tmp_path), "name": "orders", **change})

    assert text in str(refused.value)


def test_what_is_no_listener(service: LowWatermarkService) -> None:
    """Each new low watermark would log a stack, and nobody would be told."""
    with pytest.raises(ServiceRefused, match=r"print> has no method on_new_low_watermark\. Hint: pass an object with"):
        service.add_listener(print)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"coordinator": Path("/run/c.sock")}, {"job": 3, "coordinator": "unix:/run/c.sock"}])
def test_a_coordinator_or_a_job_that_is_no_text(spark: SparkSession, given: dict[str, Any]) -> None:
    with pytest.raises(ServiceRefused, match=r"(coordinator|job) is .*, expected a text\. Hint: pass .*, or leave it"):
        LowWatermarkService(spark, **given)


def test_a_service_for_what_is_no_session() -> None:
    with pytest.raises(TypeError, match=r"needs a SparkSession, got None\. Hint: pass spark"):
        LowWatermarkService(None)  # type: ignore[arg-type]


def test_pitfall_07_a_watermark_on_the_result(service: LowWatermarkService, feed: Feed) -> None:
    with pytest.raises(WrapRefused, match="withWatermark on a wrapped stream would replace the low watermark"):
        service.wrap(feed.df, **GOOD).withWatermark("ts", "1 minute")


def test_pitfall_07_a_watermark_further_on_ends_the_query_with_the_reason(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    df = service.wrap(feed.df, **GOOD).filter("v > 0").withWatermark("ts", "1 minute")
    ran = start(windows(df), checkpoint)
    feed.put(("a", 1, 100))

    with pytest.raises(Exception, match=r'stream "orders": withWatermark stands on top of a wrapped stream.*Hint: '):
        ran.settle()


def test_pitfall_11_the_policy_max_with_two_streams(
    service: LowWatermarkService, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    policy = "spark.sql.streaming.multipleWatermarkPolicy"
    with settings(spark, {policy: "Max"}):
        feeds = [Feed(spark, tmp_path / name) for name in ("one", "two")]
        one, two = (service.wrap(f.df, name=f.folder.name, event_time="ts", split="split") for f in feeds)
        ran = start(windows(one.union(two)), checkpoint)
        for feed in feeds:
            feed.put(("a", 1, 100))
        with pytest.raises(Exception, match=rf"{policy} is max.*Hint: set it to min"):
            ran.settle()
    again = start(windows(one.union(two)), checkpoint)
    feeds[0].put(("a", 2, 200))
    with pytest.raises(Exception, match=rf"{policy} is max.*kept in the checkpoint, so the query needs a new one"):
        again.settle()


def test_pitfall_48_a_checkpoint_of_another_kind_of_query_is_said_once_as_it_is(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Native, wrapped and read, each on the checkpoint of another; a second service listens, too."""
    feed.put(("a", 1, 100))
    log = Log(tmp_path / "log")
    log.append("a", 100)
    wrapped = service.wrap(feed.df, **GOOD).select("v")
    read = service.read(LogSource(log.folder), name="read", timeout="20 seconds").select("v")
    queries = {"native": feed.df.select("v"), "wrapped": wrapped, "read": read}
    for name, df in queries.items():
        assert start(df, str(tmp_path / name), trigger={"availableNow": True}).query.awaitTermination(60)

    def errors() -> list[str]:
        return [r.getMessage().split(": ", 1)[1] for r in caplog.records if r.levelno == logging.ERROR]

    said: dict[tuple[str, str], str] = {}
    raised: dict[tuple[str, str], str] = {}
    with LowWatermarkService(spark, beside=True) as other:
        for name, of in (("wrapped", "native"), ("native", "wrapped"), ("wrapped", "read"), ("read", "wrapped")):
            ran = start(queries[name], str(tmp_path / of))
            with pytest.raises(StreamingQueryException) as failed:
                ran.query.awaitTermination(60)
            raised[name, of] = str(failed.value)
            for each in (service, other):
                wait_until(lambda each=each: not [*each._runs.queries], "its end was heard")  # type: ignore[misc]
            wait_until(lambda: len(errors()) > len(said), "the reason is in the log, a moment later")
            said[name, of] = errors()[-1]
            if name != "native":
                text = f"a query could not begin: {said[name, of]}"
                explain = partial(service.explain, "orders" if name == "wrapped" else "read")
                wait_until(lambda text=text, explain=explain: text in explain(), "the stream says it")  # type: ignore[misc]

    assert errors() == list(said.values()), "each once, though two services heard of it"
    at = {name: str(tmp_path / name) for name in queries}
    assert said == {
        ("wrapped", "native"): conflict(["{}"], ["orders"], [], {"orders": [0]}, checkpoint=at["native"]),
        ("native", "wrapped"): conflict([heartbeat_of("orders")], [], [], {}, checkpoint=at["wrapped"]),
        ("wrapped", "read"): conflict(
            [heartbeat_of("read"), PLANNED], ["orders"], [], {"orders": [0]}, checkpoint=at["read"]
        ),
        ("read", "wrapped"): conflict([heartbeat_of("orders")], [], ["read"], {}, checkpoint=at["wrapped"]),
    }
    # For a query with a heartbeat, Spark's own error has the text, too.
    assert {pair for pair, text in raised.items() if said[pair] in text} == {*said} - {("native", "wrapped")}
    service.release("orders")
    service.wrap(feed.df, **GOOD)
    assert "could not begin" not in service.explain("orders"), "it is said of the released stream only"


PLANNED = json.dumps(BatchOffset("read", 1, "token").to_json())


def heartbeat_of(stream: str) -> str:
    return json.dumps(HeartbeatOffset(stream, 5, "token", 1).to_json())


@pytest.mark.parametrize(
    ("written", "wrapped", "read", "text"),
    [
        (
            [],
            ["orders"],
            [],
            "lacks the heartbeat, which is a source to Spark. Hint: run `lowmark adopt CHECKPOINT --",
        ),
        ([], ["a", "b"], [], "Hint: run `lowmark adopt CHECKPOINT --stream a=0 --stream b=1,2` and start it again"),
        ([], [], ["orders"], "without lowmark, and this one reads with service.read"),
        (["orders"], [], [], 'is of a query with lowmark (stream "orders"), and this one is without'),
        (["orders"], [], [], "Hint: run `lowmark leave CHECKPOINT` and start it again, all state stays"),
        (["read", PLANNED], [], [], 'is of stream "read", read by service.read, and this query reads otherwise'),
        (
            ["read", PLANNED],
            ["b"],
            [],
            'is of stream "read", read by service.read, and this query wraps a source of',
        ),
        (["a"], [], ["b"], 'is of stream "a", a wrapped source of Spark\'s, and this query reads with service.read'),
        (["a", "b"], ["a"], [], 'is of streams "a", "b", and this query has stream "a"'),
        (["a", "b"], ["b", "a"], [], 'streams "a", "b", in this order, and this query has streams "b", "a", so each'),
        ([], [], [], None),
        (["a"], ["b"], [], None),
        (["a", "b"], ["c", "b"], [], None),
        (["read", PLANNED], [], ["a"], None),
    ],
)
def test_why_a_query_cannot_go_on_from_a_checkpoint(
    written: list[str], wrapped: list[str], read: list[str], text: str | None
) -> None:
    offsets = [each if each == PLANNED else heartbeat_of(each) for each in written]
    sources = {"orders": [0]} if wrapped == ["orders"] else {"a": [0], "b": [1, 2]}
    why = conflict(['{"logOffset":3}', "-", *offsets], wrapped, read, sources)

    assert (why is None) == (text is None)
    assert why is None or (text is not None and text in why and "Hint: " in why)


@pytest.mark.parametrize(
    ("kinds", "wrapped", "read", "text"),
    [
        (
            [False, False, True],
            ["a"],
            [],
            "Hint: run `lowmark leave CHECKPOINT`, then `lowmark adopt CHECKPOINT --stream ",
        ),
        ([False, False, True], [], ["a"], "should. Hint: put the sources in the order of before, or "),
        ([False, True, False], ["a"], [], None),
        ([False, True, True], ["a"], [], None),
        ([False, True], ["a"], [], None),
        ([], ["a"], [], None),
    ],
)
def test_a_heartbeat_where_the_query_has_another_source(
    kinds: list[bool], wrapped: list[str], read: list[str], text: str | None
) -> None:
    """For another number of sources Spark raises its own error; in version 2 of the log a source may lack its line."""
    offsets = [PLANNED.replace("read", "a") if read else "{}", heartbeat_of("a"), "{}"]
    why = conflict(offsets, wrapped, read, {"a": [0, 1]}, kinds=kinds)

    assert (why is None) == (text is None)
    assert why is None or (text is not None and text in why and why.startswith('its checkpoint has stream "a" over'))


@pytest.mark.parametrize(
    ("written", "uses", "text"),
    [
        (
            ["{}", "a"],
            3,
            (
                "has 2 sources, heartbeats counted, and this query has 3 sources: late_to reads the source of its "
                "stream once more, which counts as one more source, and Spark lets a checkpoint neither gain nor lose "
                "a source. Hint: pass late_to, or leave it out, as before, or start with a new checkpoint."
            ),
        ),
        (["{}", "a", "{}"], 2, "has 3 sources, heartbeats counted, and this query has 2 sources: late_to reads"),
        (
            ["{}"],
            3,
            (
                "has 1 source, and this query has 2 sources beside its heartbeats: late_to reads the source of its "
                "stream once more, which counts as one more source, and Spark lets a checkpoint neither gain nor lose "
                "a source. Hint: leave late_to out, run `lowmark adopt CHECKPOINT --stream a` and start it again"
            ),
        ),
        (["{}"], 2, "so it lacks the heartbeat, which is a source to Spark. Hint: run `lowmark adopt"),
        (["{}", "a", "{}"], 3, None),
        (["{}", "a"], None, None),
    ],
)
def test_late_to_that_came_or_went_is_told(written: list[str], uses: int | None, text: str | None) -> None:
    """Version 1 of the log has a line for each use of a source, and `late_to` uses the source of its stream again."""
    why = conflict([heartbeat_of(each) if each == "a" else each for each in written], ["a"], [], {"a": [0]}, uses=uses)
    assert (why is None) == (text is None)
    assert why is None or (text is not None and text in why)


def test_the_command_for_a_checkpoint_elsewhere_is_a_call_in_the_session() -> None:
    why = conflict(["{}", "{}"], ["a", "b"], [], {"a": [0], "b": [1]}, checkpoint="hdfs://nn/x")
    assert why is not None
    assert "`lowmark.adopt('hdfs://nn/x', {'a': [0], 'b': [1]}, spark=spark)`" in why


@pytest.mark.parametrize(
    ("name", "argument"),
    [("orders", "orders"), ("it's 5 o'clock", "it's 5 o'clock"), ('say "$HOME"', 'say "$HOME"'), ("a=1", "a=1=0")],
)
def test_a_command_that_is_pasted_into_a_shell_means_the_checkpoint_and_the_stream(name: str, argument: str) -> None:
    adopting = adopt_command("/a folder/it's", [name], {name: [0]})
    assert shlex.split(adopting.strip("`")) == ["lowmark", "adopt", "/a folder/it's", "--stream", argument]
    assert shlex.split(leave_command("/a folder/it's").strip("`")) == ["lowmark", "leave", "/a folder/it's"]


def test_a_restart_with_other_split_columns_is_refused_and_the_reason_comes_first(
    service: LowWatermarkService, feed: Feed, checkpoint: str
) -> None:
    feed.put(("a", 1, 100))
    before = start(service.wrap(feed.df, **GOOD).select("v"), checkpoint)
    before.settle()
    before.query.stop()
    other = service.wrap(feed.df, **(GOOD | {"name": "again", "split": ["split", "v"]})).select("v")
    with pytest.raises(StreamingQueryException) as refused:
        start(other, checkpoint).query.awaitTermination(60)

    said = str(refused.value)
    assert (
        'stream "again": its splits are told by (split string, v int), and in the checkpoint by (split string).' in said
    )
    assert said.index('stream "again"') < 400, "Spark's own words before it: which query, and where"
    assert "Traceback" not in said


def test_an_unknown_stream(service: LowWatermarkService, feed: Feed) -> None:
    service.wrap(feed.df, **GOOD)
    with pytest.raises(UnknownStream, match=r'no stream "order"; there is "orders". Hint: did you'):
        service.status("order")
    with pytest.raises(UnknownStream, match='no stream "3"; there is "orders"'):
        service.status(3)  # type: ignore[arg-type]  # this is the fault


def test_the_status_of_a_stream_that_no_query_reads(service: LowWatermarkService, feed: Feed) -> None:
    service.wrap(feed.df, **GOOD, splits=["a"])
    status = service.status("orders")

    assert (status.low_watermark_us, set(status.splits), status.batches) == (None, {"a"}, 0)


def test_a_stopped_service(spark: SparkSession, feed: Feed) -> None:
    service = LowWatermarkService(spark)
    service.stop()
    service.stop()  # a second call is fine

    with pytest.raises(ServiceStopped, match='cannot wrap stream "orders": this LowWatermarkService was stopped'):
        service.wrap(feed.df, **GOOD)
    with pytest.raises(ServiceStopped, match='cannot give the status of "orders"'):
        service.status("orders")


def test_a_query_started_after_its_service_was_stopped(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    with LowWatermarkService(spark) as service:
        df = service.wrap(feed.df, **GOOD)
    ran = start(df.select("v"), checkpoint)

    with pytest.raises(StreamingQueryException, match=r"no lowmark service answers at unix:.*Hint: start") as refused:
        ran.query.awaitTermination(60)
    assert "Traceback" not in str(refused.value)


def test_a_query_in_another_session_than_the_wrapped_dataframe(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, checkpoint: str
) -> None:
    service.wrap(feed.df, **GOOD).createOrReplaceGlobalTempView("orders_of_all")
    ran = start(windows(spark.newSession().table("global_temp.orders_of_all"), "split"), checkpoint)
    feed.put(("a", 1, 100))

    with pytest.raises(StreamingQueryException, match=r'stream "orders": the query runs in another session .* Hint:'):
        ran.settle()


@pytest.mark.parametrize("rows", ["0", "-1"])
def test_a_session_whose_batches_of_arrow_have_no_limit(
    service: LowWatermarkService, spark: SparkSession, feed: Feed, rows: str
) -> None:
    """Spark allows it, and then ends each query with a source in Python by an AssertionError that names no setting."""
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    with settings(spark, {setting: rows}), pytest.raises(WrapRefused, match=rf"{setting} is below 1.* Hint: set a"):
        service.wrap(feed.df, **GOOD)


def test_an_assigner_that_returns_nonsense(service: LowWatermarkService, feed: Feed, checkpoint: str) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 1.5)  # type: ignore[arg-type,return-value]
    ran = start(service.wrap(feed.df, **GOOD, strategy=strategy).select("v"), checkpoint)
    feed.put(("a", 1, 100))

    with pytest.raises(Exception, match=r'stream "orders": the timestamp assigner returned 1.5 for the row'):
        ran.settle()
