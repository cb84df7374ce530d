"""JSON orders from Kafka to parquet: revenue per minute and partition, however far behind a partition is.

    python examples/orders_to_parquet.py --bootstrap localhost:9092 --topic orders --out /tmp/revenue

Needs Spark's Kafka connector, such as by
`export PYSPARK_SUBMIT_ARGS="--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 pyspark-shell"`.
An order is {"at": milliseconds, "item": ..., "cents": ...}. The program reads all rows and ends;
the next run, from cron say, goes on from there.
"""

from __future__ import annotations

import argparse

from lowmark import LowWatermarkService, WatermarkStrategy
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.appName("revenue").getOrCreate()

    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .load()
        .withColumn("order", F.from_json(F.col("value").cast("string"), "at long, item string, cents long"))
        .select("topic", "partition", F.timestamp_millis("order.at").alias("ts"), "order.item", "order.cents")
    )
    # A partition that is silent for a minute, while others deliver, does not hold them; its next rows may be late.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("1 minute")
    with LowWatermarkService(spark) as service:
        events = service.wrap(orders, name="orders", event_time="ts", split=["topic", "partition"], strategy=strategy)
        revenue = (
            events.groupBy(F.window("ts", "1 minute").alias("minute"), "partition")
            .agg(F.sum("cents").alias("cents"), F.count("item").alias("orders"))
            .select(F.col("minute.start").alias("minute"), "partition", "cents", "orders")
        )
        query = (
            revenue.writeStream.format("parquet")
            .option("path", f"{options.out}/revenue")
            .option("checkpointLocation", f"{options.out}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(service.explain("orders"))
    spark.stop()


if __name__ == "__main__":
    main()
