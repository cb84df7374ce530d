"""docs/audit.md shows the output of the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import functions as F

from tests.commands.audit_example import write
from tests.integration.feed import Feed, start
from tests.servers.local import LOWMARK, wait_until
from tests.sparks import OBSERVES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
COMMAND = ["audit", "files", "orders", "--window", "1 minute"]
COMMAND += ["--delay", "10 seconds", "--delay", "10 minutes", "--delay", "1 hour"]
BLOCK = re.compile(r"<!-- printed by: lowmark audit files -->\n```\n(.*?)```", re.DOTALL)


def printed(folder: Path) -> str:
    """Return the output, whose days are yesterday's; the lead of a bad clock depends on the hour."""
    write(folder / "orders")
    run = subprocess.run(
        [*LOWMARK, *COMMAND],
        cwd=folder,
        env={**os.environ, "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in run.stdout.splitlines())


def settled(text: str) -> str:
    return re.sub(r"36\dd( \d+h)? ahead", "DAYS ahead", re.sub(r"\d{4}-\d\d-\d\d", "DAY", text)).strip()


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    shown = BLOCK.search((ROOT / "docs" / "audit.md").read_text(encoding="utf-8"))
    assert shown
    assert settled(shown[1]) == settled(printed(tmp_path))


def snippet(number: int) -> dict[str, Any]:
    """Run one of the page's programs with free ports; return the names that it defines."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "audit.md").read_text("utf-8"), flags=re.DOTALL)[number]
    names: dict[str, Any] = {}
    exec(compile(code.replace("9464", "0"), "audit.md", "exec"), names)
    return names


def test_the_page_s_audit_of_a_table_runs(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.read.parquet(str(write(tmp_path / "orders")))
    numbered = rows.withColumn("offset", F.monotonically_increasing_id())
    spark.sql("CREATE DATABASE bronze")
    try:
        numbered.limit(5_000).write.saveAsTable("bronze.orders")
        strategy = snippet(0)["audit"](spark)
    finally:
        spark.sql("DROP DATABASE bronze CASCADE")
    assert isinstance(strategy, WatermarkStrategy)


@OBSERVES
def test_the_page_s_watched_query_runs(spark: SparkSession, feed: Feed, checkpoint: str) -> None:
    orders = feed.df.withColumn("topic", F.lit("orders")).withColumnRenamed("split", "partition")
    watched = snippet(1)["watched"]
    feed.put(("0", 1, 100), ("1", 1, 20))
    ran = start(watched(spark, orders).groupBy(F.window("ts", "1 minute")).count(), checkpoint)
    ran.settle()
    service = LowWatermarkService(spark, metrics_port=0)  # the service that runs already
    try:
        wait_until(lambda: service.status("orders").states["active"] == 2, "both splits known")
    finally:
        ran.query.stop()
        service.stop()


if __name__ == "__main__":  # writes the page: python -m tests.integration.audit.test_audit_docs FOLDER
    page = ROOT / "docs" / "audit.md"
    text = printed(Path(sys.argv[1]))
    page.write_text(
        BLOCK.sub(lambda _: f"<!-- printed by: lowmark audit files -->\n```\n{text}\n```", page.read_text("utf-8")),
        encoding="utf-8",
    )
