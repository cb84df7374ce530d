"""A wrapped query on a cluster of two executors, one of which is killed on the way. Prints its windows as JSON.

Usage: python -m tests.live.cluster_driver FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyspark
from lowmark.integration import LowWatermarkService, ship
from lowmark.integration.errors import WorkersUnfit
from lowmark.integration.spark import workers
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from pyspark.sql import SparkSession

from tests.integration.feed import Feed, start, windows


def executors(port: str) -> list[int]:
    """The executors of the driver that listens on a port."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and f"127.0.0.1:{port}".encode() in command:
            found.append(int(folder.name))
    return sorted(found)


def main(folder: Path) -> None:
    """Six batches; after the third, one executor dies."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
    port = spark.sparkContext.getConf().get("spark.driver.port", "")
    ship(spark)  # looks at the executors' Python
    lacks = ""
    try:
        workers.check(spark, ["lowmark.integration.transport.heartbeat", "confluent_kafka.no_such_part"])
    except WorkersUnfit as unfit:
        lacks = str(unfit)
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
        ran = start(windows(df, "split"), str(folder / "checkpoint"))
        killed: list[int] = []
        for n in range(6):
            feed.put(("fast", 1, 1000 + 100 * n), ("slow", 1, 100 * n))
            ran.settle()
            if n == 2:
                killed = executors(port)[:1]
                os.kill(killed[0], signal.SIGKILL)
        said = {"killed": len(killed), "low": ran.low, "dropped": ran.dropped, "windows": sorted(ran.rows)}
        print(json.dumps({**said, "lacks": lacks}))
        ran.query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
