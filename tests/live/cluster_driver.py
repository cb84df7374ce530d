"""A wrapped query on a cluster of two executors, one of which is killed on the way, and one that reads by a source.

The executors' Python has pyspark, pyarrow and numpy, and nothing else; `ship` brings the rest. Prints windows as JSON.

Usage: python -m tests.live.cluster_driver FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
from lowmark.integration import LowWatermarkService, ship
from lowmark.integration.errors import WorkersUnfit
from lowmark.integration.spark import workers
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from pyspark.sql import SparkSession

from tests.integration.feed import Feed, start, us, windows


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
    """A folder with the program that starts this Python, by its path: told by its name it is looked for in PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / WORKER
    program.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    program.chmod(0o755)
    return folder


def bare_python(folder: Path) -> Path:
    """The Python of an environment such as a cluster has it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in ("pyspark", "py4j", "pyarrow", "numpy"):
        for installed in Path(sysconfig.get_path("purelib")).glob(f"{name}*"):
            (packages / installed.name).symlink_to(installed)
    return folder / "bin" / "python"


def main(folder: Path) -> None:
    """Six batches; after the third, one executor dies."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    # Here as there it has one name, and each host finds its own under it.
    os.environ["PYSPARK_PYTHON"] = WORKER
    os.environ["PATH"] = f"{worker_program(folder / 'here', Path(sys.executable))}:{os.environ['PATH']}"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.PATH": f"{worker_program(folder / 'there', bare_python(folder / 'bare'))}:/usr/bin:/bin",
        "spark.executorEnv.PYTHONPATH": "",
    }
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
    port = spark.sparkContext.getConf().get("spark.driver.port", "")
    lacks = before = ""
    try:
        workers.check(spark)
    except WorkersUnfit as unfit:
        before = str(unfit)
    ship(spark)  # looks at the executors' Python
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
        ran.query.stop()
        script = StreamScript(
            (SplitScript("a", 4), SplitScript("b", 1)), us(0), ticks=10, tick_us=1_000_000, shuffle_us=1
        )
        df = service.read(GeneratorSource(script, seed=7, ticks_per_batch=10), name="read", tasks=4)
        read = start(df.select("split"), str(folder / "read"), trigger={"availableNow": True})
        read.query.awaitTermination(120)
        said = {
            "read": len(read.rows),
            "killed": len(killed),
            "low": ran.low,
            "dropped": ran.dropped,
            "windows": sorted(ran.rows),
        }
        print(json.dumps({**said, "lacks": lacks, "before": before}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
