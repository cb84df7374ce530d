"""`kafka_starting_offsets` on real checkpoints: a wrapped query continues where a native query stopped.

A checkpoint cannot gain a source in Spark, so a wrapped query needs a new checkpoint and the positions of the old one.
"""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import CheckpointUnreadable
from lowmark.integration.spark.beside import reach_back
from lowmark.integration.spark.checkpoint import kafka_starting_offsets
from lowmark.integration.spark.checkpoint_store import all_planned, local_store
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.cli.test_cli import call
from tests.servers.kafka import Broker
from tests.snippets import block
from tests.worlds.kafka_scenarios import MINUTE_US, T0_US, Log, bounded, source

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("kafka_jars")]


class Rows:
    """A foreachBatch sink that keeps (partition, offset) of every row, by batch; a repeated batch replaces itself."""

    def __init__(self, fail_in: int | None = None) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self._fail_in = fail_in

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [(r.partition, r.offset) for r in frame.select("partition", "offset").collect()]
        if batch_id == self._fail_in:
            raise ZeroDivisionError("on purpose")
        self.batches[batch_id] = rows

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def wrapped(service: LowWatermarkService, frame: DataFrame) -> DataFrame:
    return service.wrap(frame, name="orders", event_time="ts", split=["topic", "partition"], strategy=bounded())


def run(frame: DataFrame, checkpoint: str, sink: Rows) -> None:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def unbroken(text: str) -> str:
    """Remove all white space, because lines may be broken anywhere."""
    return "".join(text.split())


def positions(log: Log) -> list[tuple[int, int]]:
    """(partition, offset) of every record of the topic."""
    return sorted((p, offset) for p, times in log.times_us.items() for offset in range(len(times)))


def test_a_wrapped_query_continues_where_a_native_one_stopped(
    spark: SparkSession, kafka: Broker, checkpoint: str, tmp_path: Path
) -> None:
    log = Log.create(kafka, 3)
    log.produce({p: [T0_US + i * MINUTE_US for i in range(5 + p)] for p in range(2)})  # partition 2 is empty
    native, sink = Rows(), Rows()
    run(source(spark, log, maxOffsetsPerTrigger=4), checkpoint, native)
    assert native.rows == positions(log)
    starting = kafka_starting_offsets(checkpoint)
    assert starting == {log.topic: {"0": 5, "1": 6, "2": 0}}

    log.produce({p: [T0_US + (10 + i) * MINUTE_US for i in range(3)] for p in range(3)})
    new = str(tmp_path / "new")
    with LowWatermarkService(spark) as service:
        run(wrapped(service, source(spark, log, startingOffsets=json.dumps(starting))), new, sink)
    assert sorted(native.rows + sink.rows) == positions(log), "neither a gap nor a repetition"
    assert kafka_starting_offsets(new) == {log.topic: {"0": 8, "1": 9, "2": 3}}


def test_a_new_query_beside_an_old_one_tears_no_window(
    spark: SparkSession, kafka: Broker, checkpoint: str, tmp_path: Path
) -> None:
    """The new query reads the rows of open windows again, and leaves out the windows that the old query emitted."""
    log = Log.create(kafka, 1)
    base = (T0_US // (10 * MINUTE_US) + 1) * 10 * MINUTE_US
    times = [base + i * MINUTE_US for i in range(40)]
    rows: dict[str, list[tuple[int, int]]] = {"old": [], "new": []}

    def windows(frame: DataFrame, which: str, only: str | None, at: str) -> None:
        counted = frame.groupBy(F.window("ts", "10 minutes")).count()
        counted = counted if only is None else counted.filter(only)
        told = counted.select(F.unix_micros("window.start").alias("start"), "count")
        sink = lambda batch, _: rows[which].extend(tuple(row) for row in batch.collect())  # noqa: E731
        writer = told.writeStream.foreachBatch(sink).outputMode("append").option("checkpointLocation", at)
        writer.trigger(availableNow=True).start().awaitTermination()

    log.produce({0: times[:25]})
    windows(source(spark, log, maxOffsetsPerTrigger=4).withWatermark("ts", "10 seconds"), "old", None, checkpoint)
    found = reach_back(checkpoint, window_us=10 * MINUTE_US, delay_us=10_000_000)
    assert found.starting[log.topic]["0"] > 0, "the beginning is passed"
    # The command in adopt.md prints the page's output, but for the name of the topic.
    words = shlex.split(block("adopt.md", "lowmark offsets").replace("/path/of/old/checkpoint", checkpoint))
    status, out, err = call(*words[1:])
    printed = (out + err).replace(log.topic, "orders")
    assert (status, unbroken(printed)) == (0, unbroken(block("adopt.md", '{"orders": {"0": 12}}')))
    log.produce({0: [*times[25:], times[-1] + 60 * MINUTE_US]})
    beginning = source(spark, log, startingOffsets=json.dumps(found.starting))
    with LowWatermarkService(spark) as service:
        windows(wrapped(service, beginning), "new", found.filter, str(tmp_path / "new"))

    assert rows["old"] == [(times[0], 10), (times[10], 10)]
    assert rows["new"] == [(times[20], 10), (times[30], 10)]
    assert (
        found.read_again == sum(kafka_starting_offsets(checkpoint)[log.topic].values()) - found.starting[log.topic]["0"]
    )
    assert 5 <= found.read_again < 25


def test_a_batch_that_was_planned_but_not_committed_is_read_again_unless_asked_otherwise(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    log = Log.create(kafka, 1)
    log.produce({0: [T0_US + i * MINUTE_US for i in range(10)]})
    sink = Rows(fail_in=1)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        run(source(spark, log, maxOffsetsPerTrigger=4), checkpoint, sink)
    assert all_planned(local_store(checkpoint))[0] == 1
    assert len(sink.rows) == 4
    assert kafka_starting_offsets(checkpoint) == {log.topic: {"0": 4}}
    assert kafka_starting_offsets(checkpoint, committed=False) == {log.topic: {"0": 8}}


def test_before_the_first_commit_there_is_nothing_to_continue_from(
    spark: SparkSession, kafka: Broker, checkpoint: str
) -> None:
    log = Log.create(kafka, 1)
    log.produce({0: [T0_US]})
    with pytest.raises(StreamingQueryException, match="on purpose"):
        run(source(spark, log), checkpoint, Rows(fail_in=0))
    with pytest.raises(CheckpointUnreadable, match=r"no batch was committed yet\. Hint: there is nothing to continue"):
        kafka_starting_offsets(checkpoint)


def test_a_wrapped_query_on_a_native_checkpoint_is_refused_and_the_log_says_what_to_do(
    spark: SparkSession, kafka: Broker, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log.create(kafka, 1)
    log.produce({0: [T0_US]})
    native = source(spark, log).withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).count()
    writer = native.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    with caplog.at_level(logging.ERROR, "lowmark"), LowWatermarkService(spark) as service:
        frame = wrapped(service, source(spark, log)).groupBy(F.window("ts", "1 minute")).count()
        writer = frame.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        with pytest.raises(StreamingQueryException, match="lacks the heartbeat, which is a source to Spark"):
            writer.start().awaitTermination(60)
            # The end of the service handles its queued events.
    [said] = [r.getMessage() for r in caplog.records if r.name == "lowmark" and "checkpoint" in r.getMessage()]
    assert f"lowmark adopt {checkpoint} --stream orders" in said
    assert f"lowmark offsets {checkpoint}" in said
