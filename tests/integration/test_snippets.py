"""The pages' changes of a query, run on a real query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.feed import Feed, start, windows
from tests.snippets import block
from tests.sparks import since

DIFF = "-events = orders.withWatermark("
PAGES = ("README.md", "wrap.md", "adopt.md")


def test_one_line_is_all_that_changes(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Run the page's lines before and after the change: the wrapped query counts the rows that native Spark drops."""
    [shown] = {block(page, DIFF) for page in PAGES}
    before, after = (line[1:] for line in shown.splitlines())
    orders = feed.df.withColumn("topic", F.lit("orders")).withColumnRenamed("split", "partition")
    counts: list[dict[str, int]] = []
    for n in range(3):
        feed.put(("fast", n, 1_000 + n), ("slow", n, 100 + n))
    feed.put(("fast", 3, 2_000), ("slow", 3, 2_000))
    feed.put(("fast", 4, 2_001), ("slow", 4, 2_001))
    for line in (before, after):
        with LowWatermarkService(spark) as service:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
            names: dict[str, Any] = {"orders": orders, "service": service, "strategy": strategy}
            exec(line, names)  # the page's line
            ran = start(windows(names["events"], "partition"), str(tmp_path / str(len(counts))))
            ran.settle()
            counts.append({partition: n for _, partition, n in ran.rows})
            ran.query.stop()
    assert counts == [{"fast": 3, "slow": 2}, {"fast": 3, "slow": 3}]


@since("4.2", "named sources")
def test_sources_are_named_in_sparks_own_way(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """The lines of adopt.md with another source, in a query that then continues wrapped."""
    code = block("adopt.md", "spark.conf.set(")
    there = '.format("kafka").option("subscribe", "orders").load()'
    assert there in code
    folder = Feed(spark, tmp_path / "named")
    folder.put(("fast", 1, 100), ("slow", 1, 90))

    def orders() -> DataFrame:
        names: dict[str, Any] = {"spark": spark, "schema": folder.schema, "folder": str(folder.folder)}
        exec(code.replace(there, ".schema(schema).json(folder)"), names)
        frame: DataFrame = names["orders"]
        return frame

    try:
        native = start(windows(orders().withWatermark("ts", "10 seconds"), "split"), checkpoint)
        native.settle()
        native.query.stop()
        folder.put(("fast", 1, 101), ("slow", 1, 91))
        with LowWatermarkService(spark) as service:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
            wrapped = service.wrap(orders(), name="orders", event_time="ts", split="split", strategy=strategy)
            ran = start(windows(wrapped, "split"), checkpoint)
            ran.settle()
            assert service.status("orders").counts.rows == 2
            ran.query.stop()
    finally:
        for setting in ("queryEvolution.enableSourceEvolution", "offsetLog.formatVersion"):
            spark.conf.unset(f"spark.sql.streaming.{setting}")
