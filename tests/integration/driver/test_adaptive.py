"""An adaptive bound in queries: by batches for a wrapped stream, by rows for a stream that a source of ours reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.watermark import WatermarkStrategy

from tests.integration.feed import Feed, run, start, windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND_US = 1_000_000
STRATEGY = WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.9, at_least="1 second", at_most="1 minute")


def test_a_wrapped_stream_finds_its_bounds_by_batches(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    feed = Feed(spark, tmp_path / "rows")
    batches = [
        [("a", 0, 100.0 + 10 * batch), ("b", 0, 100.0 + 10 * batch), ("b", 1, 100.0 + 10 * batch - 25)]
        for batch in range(24)
    ]
    with LowWatermarkService(spark) as service:
        events = service.wrap(feed.df, name="orders", event_time="ts", split="split", strategy=STRATEGY)
        for batch in batches:
            feed.put(*batch)
        ran = run(windows(events, "split"), feed, [], checkpoint)
        ran.settle()
        splits = service.status("orders").splits
        told = service.explain("orders")
        ran.query.stop()
    # The earliest row of b lies 15 seconds behind earlier batches, the earliest of a behind none.
    assert splits["a"].bound_us == SECOND_US
    assert splits["b"].bound_us is not None
    assert 15 * SECOND_US <= splits["b"].bound_us <= 16 * SECOND_US
    assert "bound 1s" in told
    assert ran.dropped == 0


def test_a_stream_that_is_read_finds_its_bounds_by_rows(spark: SparkSession, checkpoint: str) -> None:
    splits = SplitScript("calm", 40), SplitScript("late", 40, last_us=0)
    start_us = 1_700_000_000 * SECOND_US
    script = StreamScript(splits, start_us=start_us, ticks=40, tick_us=10 * SECOND_US, shuffle_us=8 * SECOND_US)
    with LowWatermarkService(spark) as service:
        source = GeneratorSource(script, seed=3, ticks_per_batch=5)
        events = service.read(source, name="orders", strategy=STRATEGY, tasks=1)
        ran = start(events.groupBy("split_id").count(), checkpoint, mode="update")
        ran.settle()
        found = service.status("orders").splits
        ran.query.stop()
    # Rows are shuffled within 8 seconds: nine of ten are less late.
    for split in found.values():
        assert split.bound_us is not None
        assert 2 * SECOND_US <= split.bound_us <= 9 * SECOND_US
        assert split.rows is not None
        assert split.rows > 1_500
