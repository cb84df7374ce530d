"""Three queries on a cluster of two executors: a wrapped query during which one executor is killed, a query on a
source, and a query with a slow task that Spark runs twice at once (speculative execution).

The executors' Python has pyspark, pyarrow and numpy, and nothing else; `ship` brings the rest. Prints windows as JSON.

Usage: spark-submit --master spark://... tests/drivers/cluster.py FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowmark.integration import LowWatermarkService, ship
from lowmark.integration.errors import WorkersUnfit
from lowmark.integration.spark import workers
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession

from tests.installed import link_packages
from tests.integration.feed import Feed, start, us, windows
from tests.sparks import WITHOUT_CODEGEN


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


WORKER = "worker-python"


def worker_program(folder: Path, python: Path) -> Path:
    """Make a folder with a program that starts this Python by its path; Spark finds the program's name in PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / WORKER
    program.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    program.chmod(0o755)
    return folder


def bare_python(folder: Path) -> Path:
    """Make an environment like a cluster's, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    link_packages(("pyspark", "py4j", "pyarrow", "numpy"), packages)
    return folder / "bin" / "python"


def slow_at_first(folder: str) -> Callable[[Any, int | None], int | None]:
    """Return a function from a row to its event time; the second task's first attempt waits until Spark cancels it.

    The other attempt goes on once the first has begun.
    """

    def assign(_row: Any, own_us: int | None) -> int | None:
        from pathlib import Path
        from threading import Event

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        Path(folder, f"{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            Event().wait(60)
        elif context.partitionId() == 1:
            while not Path(folder, "1-0").exists():  # which Spark has started
                Event().wait(0.05)
        return own_us

    return assign


def speculated(spark: SparkSession, service: LowWatermarkService, folder: Path) -> dict[str, Any]:
    """One batch of four files in two tasks."""
    feed, attempts = Feed(spark, folder / "speculated"), folder / "attempts"
    attempts.mkdir()
    for n in range(4):
        feed.put(("fast", 1, 1000 + 10 * n), ("slow", 1, 10 * n))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(slow_at_first(str(attempts)))  # type: ignore[arg-type]
    files = spark.readStream.schema(feed.schema).json(str(feed.folder))
    df = service.wrap(files, name="speculated", event_time="ts", split="split", strategy=strategy)
    ran = start(windows(df, "split"), str(folder / "speculated-cp"), trigger={"availableNow": True})
    assert ran.query.awaitTermination(120)
    counts = service.status("speculated").counts
    tried = sorted(each.name for each in attempts.iterdir())
    return {"tried": tried, "measured": counts.rows, "low": ran.low, "windows": sorted(ran.rows)}


class Abroad(GeneratorSource):
    """A source of a user, whose client the driver has and the executors lack."""

    requires = ("confluent_kafka", "tests.installed")  # the first one is shipped


def orders() -> StreamScript:
    """Fifty rows of two splits."""
    return StreamScript((SplitScript("a", 4), SplitScript("b", 1)), us(0), ticks=10, tick_us=1_000_000, shuffle_us=1)


def main(folder: Path) -> None:
    """Four batches; after the second, one executor dies."""
    # With the archive of Spark's classes, because executors have the class path of the driver; no settings of Spark.
    jvm = [each for each in os.environ.get("SPARK_SUBMIT_OPTS", SHORT_LIVED_JVM).split() if "-Dspark." not in each]
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.executor.extraJavaOptions": " ".join(jvm),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.PATH": f"{worker_program(folder / 'there', bare_python(folder / 'bare'))}:/usr/bin:/bin",
        "spark.executorEnv.PYTHONPATH": "",
        **WITHOUT_CODEGEN,
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "2s",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    port = spark.sparkContext.getConf().get("spark.driver.port", "")
    lacks = before = ""
    try:
        workers.check(spark)
    except WorkersUnfit as unfit:
        before = str(unfit)
    ship(spark)  # inspects the executors' Python
    feed = Feed(spark, folder / "feed")
    with LowWatermarkService(spark) as service:
        try:
            service.read(Abroad(orders(), seed=7), name="abroad", tasks=4)
        except WorkersUnfit as unfit:
            lacks = str(unfit)
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
        ran = start(windows(df, "split"), str(folder / "checkpoint"))
        killed: list[int] = []
        for n in range(4):
            feed.put(("fast", 1, 1000 + 100 * n), ("slow", 1, 100 * n))
            ran.settle()
            if n == 1:
                killed = executors(port)[:1]
                os.kill(killed[0], signal.SIGKILL)
        ran.query.stop()
        df = service.read(GeneratorSource(orders(), seed=7, ticks_per_batch=10), name="read", tasks=4)
        read = start(df.select("split"), str(folder / "read"), trigger={"availableNow": True})
        read.query.awaitTermination(120)
        said: dict[str, Any] = {
            "read": len(read.rows),
            "killed": len(killed),
            "low": ran.low,
            "dropped": ran.dropped,
            "windows": sorted(ran.rows),
        }
        said["speculated"] = speculated(spark, service, folder)
        print(json.dumps({**said, "lacks": lacks, "before": before}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
