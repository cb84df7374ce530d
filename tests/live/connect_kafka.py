"""An application on Spark's Kafka source, as a client of Spark Connect or in a driver; a test compares its rows.

python -m tests.live.connect_kafka FOLDER SERVER BOOTSTRAP ORDERS PAYMENTS UNTIL

SERVER is the port of a Connect server, or "driver". Counts the rows of topic ORDERS in windows per partition, and joins
both topics on their values. Prints both results as JSON as soon as everything until UNTIL (an ISO time) is in the
sinks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark import LowWatermarkService, WatermarkStrategy
from lowmark.integration.spark.session import local_session
from pyspark.sql import functions as F

from tests.live.servers import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT = ["topic", "partition"]


@contextmanager
def session(server: str) -> Iterator[SparkSession]:
    if server == "driver":
        with local_session("kafka", settings={"spark.jars": ",".join(map(str, jars("spark-kafka")))}) as (spark, _):
            yield spark
        return
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server}").getOrCreate()
    yield spark
    spark.stop()


def use(spark: SparkSession, folder: Path, bootstrap: str, orders: str, payments: str, until: str) -> dict[str, Any]:
    spark.conf.set("spark.sql.shuffle.partitions", "1")

    def rows(topic: str) -> Any:
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "40",
        }
        source = spark.readStream.format("kafka").options(**options).load()
        return source.select(
            *SPLIT, F.col("timestamp").alias("ts"), F.expr("cast(cast(value as string) as int)").alias("v")
        )

    def start(df: Any, name: str) -> Any:
        writer = df.writeStream.format("json").option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        return writer.outputMode("append").queryName(name).start(str(folder / name))

    strategy = WatermarkStrategy.for_monotonous_timestamps()
    with LowWatermarkService(spark) as service:
        arguments: dict[str, Any] = {"event_time": "ts", "split": SPLIT, "strategy": strategy}
        counted = service.wrap(rows(orders), name="counted", **arguments)
        windows = counted.groupBy(F.window("ts", "10 seconds").alias("w"), "partition").count()
        windows = windows.select(F.unix_seconds("w.start").alias("start"), "partition", "count")
        left = service.wrap(rows(orders), name="orders", **arguments).select("v", "ts")
        right = service.wrap(rows(payments), name="payments", **arguments)
        right = right.select(F.col("v").alias("paid"), F.col("ts").alias("paid_at"))
        soon = F.expr("v = paid and paid_at between ts and ts + interval 2 seconds")
        queries = [start(windows, "windows"), start(left.join(right, soon, "leftOuter").select("v", "paid"), "joined")]
        for name in ("counted", "orders", "payments"):
            service.wait_until(name, until, timeout="120 seconds")
        known = {name: sorted(service.status(name).splits) for name in ("counted", "orders", "payments")}
        for query in queries:
            query.stop()
    read = {"windows": "start long, partition int, count long", "joined": "v int, paid int"}
    came = {name: spark.read.schema(schema).json(str(folder / name)).collect() for name, schema in read.items()}
    return {"splits": known, **{name: sorted(map(list, rows), key=str) for name, rows in came.items()}}


if __name__ == "__main__":
    with session(sys.argv[2]) as spark:
        print(json.dumps(use(spark, Path(sys.argv[1]), *sys.argv[3:])))
