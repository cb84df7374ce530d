"""Runs a notebook's cells twice in a real IPython; prints the output that a front end would show, as JSON.

Usage: python -m tests.integration.notebook_app FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from lowmark import LowWatermarkService
from pyspark.sql import SparkSession

from tests.drivers.session import driver_session
from tests.integration.feed import Feed
from tests.servers import class_archive
from tests.sparks import WITHOUT_CODEGEN

SERVICE = """
from lowmark import LowWatermarkService, WatermarkStrategy, ship
from pyspark.sql import functions as F
ship(spark)
service = LowWatermarkService(spark)
id(service)
"""
QUERY = """
for running in spark.streams.active:
    running.stop()
events = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
counted = events.groupBy(F.window("ts", "10 seconds"), "split").count()
query = counted.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
feed.put(("fast", 1, 500), ("slow", 1, 100))
query.processAllAvailable()
"""
CELLS = [SERVICE, QUERY, 'service.status("orders")', 'service.explain("orders")', "service"]
OTHERWISE = "LowWatermarkService(spark, metrics_port=0)"


def shown(shell: Any, cell: str) -> dict[str, Any]:
    """Run a cell and return its displayed output."""
    ran = shell.run_cell(cell)
    ran.raise_error()
    bundle, _ = shell.display_formatter.format(ran.result)
    return {kind: text for kind, text in bundle.items() if kind in {"text/plain", "text/html"}}


def main(folder: Path) -> None:
    spark = driver_session(folder, {**WITHOUT_CODEGEN, **class_archive.local_files(checksums=False)})
    shell: Any = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.push({"spark": spark, "feed": Feed(spark, folder / "feed"), "checkpoint": str(folder / "checkpoint")})
    twice = [[shown(shell, cell) for cell in CELLS] for _ in range(2)]
    differs = shell.run_cell(OTHERWISE)
    shell.run_cell("service.stop()").raise_error()
    port = LowWatermarkService(spark, metrics_port=0).metrics_port  # left running while Spark is stopped
    spark.stop()
    again = SparkSession.builder.master("local[1]").getOrCreate()
    with LowWatermarkService(again, metrics_port=port) as service:
        restarted = service.metrics_port == port
    again.stop()
    print(json.dumps({"twice": twice, "differs": str(differs.error_in_exec), "restarted": restarted}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
