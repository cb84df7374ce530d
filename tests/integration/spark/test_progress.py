"""Progress as it comes out of the JVM, and what is refused."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import UnreadableReport
from lowmark.integration.spark import progress
from lowmark.integration.spark.progress import Progress, java_text
from pyspark.errors import StreamingQueryException

from tests.integration.driver.reported import SOURCE, report_of, report_text
from tests.integration.feed import Feed

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

PART = 7_000


def java(spark: SparkSession, text: str) -> JavaObject:
    """An object of the JVM with this `toString`."""
    assert spark._jvm is not None
    holder: JavaObject = spark._jvm.java.util.concurrent.atomic.AtomicReference(text)
    return holder


@pytest.mark.parametrize("length", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
def test_a_text_comes_whole_however_long(spark: SparkSession, length: int) -> None:
    text = ("0123456789\n\r\\\"'" * length)[:length]

    assert java_text(java(spark, text)) == text


@pytest.mark.parametrize("before", range(PART - 3, PART + 2))
def test_a_character_of_two_halves_at_the_end_of_a_part_stays_whole(spark: SparkSession, before: int) -> None:
    text = "x" * before + "\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}" * 10 + "y" * PART

    assert java_text(java(spark, text)) == text


def test_a_long_text_waits_for_no_acknowledgement(spark: SparkSession) -> None:
    """One request for 30,000 characters takes 44 ms on every machine, because the kernel delays the acknowledgement."""
    long = java(spark, "x" * 30_000)

    def median_ms(read: object) -> float:
        spent = []
        for _ in range(9):
            began = time.perf_counter()
            assert len(read(long)) == 30_000  # type: ignore[operator]
            spent.append(1_000 * (time.perf_counter() - began))
        return statistics.median(spent)

    assert median_ms(java_text) < median_ms(lambda holder: holder.toString())


def test_a_field_that_spark_calls_otherwise_ends_the_query_and_is_named(
    service: LowWatermarkService, feed: Feed, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "java_text", lambda value: java_text(value).replace('"endOffset"', '"offsetAtEnd"'))
    events = service.wrap(feed.df, name="orders", event_time="ts", split="split")
    feed.put(("a", 1, 100))
    query = events.writeStream.format("noop").option("checkpointLocation", checkpoint).start()

    with pytest.raises(StreamingQueryException, match=r"as Spark 4\..* missing required field `endOffset`"):
        query.processAllAvailable()


def test_progress_is_what_sparks_json_says(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    feed.put(("a", 1, 100))
    query = feed.df.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    last = query._jsq.lastProgress()

    assert Progress.from_java(last) == Progress.from_json(last.json())
    assert Progress.from_java(last).num_input_rows == 1


# -- what cannot be read


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "q"}', '{"id": 7, "runId": "r", "batchId": 3}', "[" * 100_000])
def test_what_is_no_progress_event_is_refused(text: str) -> None:
    with pytest.raises(
        UnreadableReport, match=r"a batch's progress, as Spark .* writes it: Spark's JSON cannot be read"
    ):
        Progress.from_json(text)


REPORT = json.loads(report_text(3, [{}], stateOperators=[{"numRowsDroppedByWatermark": 0}]))
NEEDED = [
    *[(name, REPORT) for name in ("id", "runId", "batchId", "numInputRows", "sources", "stateOperators")],
    *[(name, REPORT["sources"][0]) for name in SOURCE],
    ("numRowsDroppedByWatermark", REPORT["stateOperators"][0]),
]


@pytest.mark.parametrize(("name", "of"), NEEDED, ids=[name for name, _ in NEEDED])
def test_a_report_without_a_field_that_is_needed_is_refused_by_name(
    name: str, of: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Progress.from_json(json.dumps(REPORT))
    monkeypatch.setitem(of, f"{name}Renamed", of[name])
    monkeypatch.delitem(of, name)

    with pytest.raises(UnreadableReport, match=rf"Spark 4\..* missing required field `{name}`.* tried with Spark 4"):
        Progress.from_json(json.dumps(REPORT))


def test_a_report_with_a_heartbeat_says_which_watermark_spark_used() -> None:
    heartbeat = {
        "endOffset": {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "split": "split", "state": ""}
    }

    assert report_of(3, [{}], eventTime={}).watermark_us is None, "a query without a watermark may be audited"
    with pytest.raises(UnreadableReport, match=r"missing required field `watermark` - at `\$.eventTime`"):
        report_of(3, [heartbeat], eventTime={"watermarkMs": "0"}).heartbeats()


@pytest.mark.parametrize("watermark", ["", "yesterday", "2026-01-01T00:00:00"])
def test_a_watermark_that_is_no_time_in_utc_is_refused(watermark: str) -> None:
    progress = report_of(3, [], eventTime={"watermark": watermark})

    with pytest.raises(UnreadableReport, match="batch 3: expected a time in UTC"):
        _ = progress.watermark_us
