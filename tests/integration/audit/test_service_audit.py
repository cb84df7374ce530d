"""`service.audit` watches a query that keeps its own watermark, and changes no part of it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import StreamNameTaken, UnknownStream, WrapRefused
from lowmark.integration.spark import versions

from tests.integration.feed import Feed, Ran, Row, start, us, windows
from tests.servers.local import wait_until
from tests.sparks import OBSERVES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# b is 50 seconds behind. From the third batch on Spark's watermark has passed b, and b's windows are closed.
BATCHES: list[list[Row]] = [
    [("a", 0, 100.0 + 10 * batch), ("b", 1, 50.0 + 10 * batch), ("a", 2, 101.0 + 10 * batch)] for batch in range(9)
]


def native(df: DataFrame, checkpoint: Path, watched: LowWatermarkService | None) -> Ran:
    if watched is not None:
        df = watched.audit(df, name="orders", event_time="ts", split="split", splits=["a", "b"])
    return start(windows(df.withWatermark("ts", "5 seconds"), "split"), str(checkpoint))


def fed(ran: Ran, feed: Feed, batches: list[list[Row]]) -> Ran:
    """Give the query three batches at once, again and again, so that one query has the batches of three in turns."""
    for number, batch in enumerate(batches):
        feed.put(*batch)
        if number % 3 == 2:
            ran.settle()
    ran.query.stop()
    return ran


@OBSERVES
def test_a_watched_query_goes_on_from_its_checkpoint_and_again_without(spark: SparkSession, tmp_path: Path) -> None:
    never, sometimes = Feed(spark, tmp_path / "never"), Feed(spark, tmp_path / "sometimes")
    expected = fed(native(never.df, tmp_path / "c1", None), never, BATCHES)
    rows = fed(native(sometimes.df, tmp_path / "c2", None), sometimes, BATCHES[:3]).rows
    with LowWatermarkService(spark, metrics_port=0) as service:
        ran = native(sometimes.df, tmp_path / "c2", service)
        for batch in BATCHES[3:6]:
            sometimes.put(*batch)
        ran.settle()
        wait_until(lambda: service.status("orders").counts.rows == 9, "reports of three batches")
        status = service.status("orders")
        port = service.metrics_port
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        told = service.explain("orders")
        with pytest.raises(StreamNameTaken):
            service.audit(never.df, name="orders", event_time="ts", split="split")
        ran.query.stop()
        rows += ran.rows
    last = fed(native(sometimes.df, tmp_path / "c2", None), sometimes, BATCHES[6:])
    assert rows + last.rows == expected.rows
    assert last.watermark == expected.watermark
    offsets = [(tmp_path / name / "offsets" / "4").read_text().splitlines() for name in ("c1", "c2")]
    assert len(offsets[0]) == len(offsets[1]), "the same number of sources"
    assert json.loads(offsets[0][1])["batchWatermarkMs"] == json.loads(offsets[1][1])["batchWatermarkMs"]
    # The watcher saw all rows of b behind the watermark that judged them, and no row of a.
    assert {name: split.rows for name, split in status.splits.items()} == {"a": 6, "b": 3}
    assert status.splits["a"].native_late_rows == 0
    assert 1 <= status.splits["b"].native_late_rows <= 3
    assert status.holder == "b"
    assert status.low_watermark_us == us(99.999)
    assert status.native_watermark_us is not None
    assert status.native_watermark_us > us(140)
    assert status.counts.dropped_rows == ran.dropped > 0
    assert "audited only" in told
    assert "lowmark_split_native_late_rows_total{" in metrics


@OBSERVES
def test_what_cannot_be_watched_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "rows")
    with LowWatermarkService(spark) as service:
        with pytest.raises(WrapRefused, match="audit_table"):
            service.audit(spark.range(3), name="orders", event_time="ts", split="split")
        with pytest.raises(WrapRefused, match="does not exist"):
            service.audit(feed.df, name="orders", event_time="when", split="split")
        wrapped = service.wrap(feed.df, name="wrapped", event_time="ts", split="split")
        with pytest.raises(WrapRefused, match="wrapped already"):
            service.audit(wrapped, name="orders", event_time="ts", split="split")
        service.audit(feed.df, name="orders", event_time="ts", split="split")
        service.audit(
            feed.df, name="orders", event_time="ts", split="split"
        )  # a cell that is run again: no query reads it
        assert service.status("orders").states["active"] == 0


@OBSERVES
def test_who_waits_for_a_watched_stream_is_told_to_wrap_one(spark: SparkSession, tmp_path: Path) -> None:
    """The error said: no stream "orders"; there is "orders"."""
    with LowWatermarkService(spark) as service:
        df = service.audit(Feed(spark, tmp_path / "rows").df, name="orders", event_time="ts", split="split")
        for ask in (
            lambda: service.complete_until("orders"),
            lambda: service.mark_done(df, name="orders", time="ts", call=print),
        ):
            with pytest.raises(UnknownStream, match=r'no stream "orders"; there is none yet\. Hint: wrap or read'):
                ask()


def test_a_spark_that_cannot_observe_splits_is_told_what_can_be_audited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "observes_splits", lambda _: False)
    with LowWatermarkService(spark) as service, pytest.raises(WrapRefused, match=r"cannot observe splits.*audit_table"):
        service.audit(Feed(spark, tmp_path / "rows").df, name="orders", event_time="ts", split="split")
