"""The listener for queries leaves nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lowmark.integration import LowWatermarkService

from tests.servers.local import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_that_has_ended_leaves_no_thread_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A driver may start a query each minute, for months, and a thread of Py4J has a socket."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    with LowWatermarkService(spark):
        started: list[threading.Thread] = []
        for number in range(3):
            before = set(threading.enumerate())
            sink = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(number)))
            sink.trigger(availableNow=True).start().awaitTermination()
            started += set(threading.enumerate()) - before
        # One serves the thread of Spark's listeners, which goes on.
        wait_until(lambda: sum(thread.is_alive() for thread in started) <= 1, f"they have ended: {started}")
