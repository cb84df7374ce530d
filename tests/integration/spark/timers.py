"""One stay of two queries with a user's timers, on some version of Spark (`version_app`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowmark.integration import LowWatermarkService
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.driver.test_stateful import AlarmsInPandas, tallied
from tests.integration.feed import SCHEMA, start
from tests.sparks import IN_ROCKSDB, settings

TEN_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")


def alarmed(df: DataFrame) -> DataFrame:
    """Timers of transformWithState: split, at_ms."""
    keyed = df.withColumn("at_ms", F.unix_millis("ts")).groupBy("split")
    return keyed.transformWithStateInPandas(AlarmsInPandas(), "split string, at_ms bigint", "append", "EventTime")


def timed_out(df: DataFrame) -> DataFrame:
    """Timeouts of applyInPandasWithState: v, n."""
    keyed = df.withColumn("at_ms", F.unix_millis("ts")).groupBy("v")
    of_key = "n int, last_ms bigint"
    return keyed.applyInPandasWithState(tallied, "v int, n int", of_key, "append", "EventTimeTimeout")


QUERIES = {"alarmed": alarmed, "timed_out": timed_out}


def stay(spark: SparkSession, folder: Path, *, wraps: bool) -> dict[str, Any]:
    """Continue from the present checkpoints; read the available files of FOLDER/feed, a file a batch."""
    came: dict[str, Any] = {"dropped": 0}
    for name, query in QUERIES.items():
        checkpoint = str(folder / f"{name}-cp")
        if (folder / f"{name}-cp").exists():
            assert adopt(checkpoint, name, stopped=True).done if wraps else leave(checkpoint, stopped=True).done
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "feed"))
        with LowWatermarkService(spark) as service, settings(spark, IN_ROCKSDB):
            df = (
                service.wrap(
                    df, name=name, event_time="ts", split="split", splits=["fast", "slow"], strategy=TEN_SECONDS
                )
                if wraps
                else df.withWatermark("ts", "10 seconds")
            )
            ran = start(query(df), checkpoint)
            ran.settle()
            ran.query.stop()
        came[name] = sorted(ran.rows)
        came["dropped"] += ran.dropped
    return came
