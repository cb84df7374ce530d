"""Devices as splits, through foreachBatch into Delta Lake: each device's minutes, merged into one table.

    python examples/devices_to_delta.py --bootstrap localhost:9092 --topic readings --out /tmp/minutes

Needs Spark's Kafka connector and Delta Lake, such as, for Spark 4.2, by
`export PYSPARK_SUBMIT_ARGS="--packages $KAFKA,$DELTA pyspark-shell"` with
KAFKA=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 and DELTA=io.delta:delta-spark_4.2_2.13:4.4.0.

Each device has a watermark of its own: a device that was offline for less than a day sends its stored readings and
loses none, although the other devices went on. The program merges a minute into the table with its first reading, and
again with each batch that changes the minute. A batch that runs again after a crash merges the same values. A reading
is {"device": ..., "at": milliseconds, "celsius": ...}. The program reads all rows and ends; the next run goes on from
there.
"""

from __future__ import annotations

import argparse

from lowmark import LowWatermarkService, WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MERGE = """
    MERGE INTO delta.`{table}` AS kept USING minutes
    ON kept.device = minutes.device AND kept.minute = minutes.minute
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--bootstrap", "--topic", "--out"):
        parser.add_argument(option, required=True)
    parser.add_argument("--rows-per-batch", default="100000", help="about how many readings a batch has at most")
    options = parser.parse_args()
    delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = SparkSession.builder.appName("minutes").config(map=delta).getOrCreate()
    table = f"{options.out}/table"
    columns = "device string, minute timestamp, readings bigint, celsius double"
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({columns}) USING delta")

    readings = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.rows_per_batch)
        .load()
        .withColumn("reading", F.from_json(F.col("value").cast("string"), "device string, at long, celsius double"))
        .select("reading.device", F.timestamp_millis("reading.at").alias("ts"), "reading.celsius")
    )

    def merge(batch: DataFrame, _batch_id: int) -> None:
        batch.createOrReplaceTempView("minutes")
        batch.sparkSession.sql(MERGE.format(table=table))

    # lowmark does not wait for a device that was silent for a day; later readings of the device may be late.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("1 day")
    with LowWatermarkService(spark) as service:
        events = service.wrap(
            readings, name="readings", event_time="ts", split="device", strategy=strategy, max_splits=100_000
        )
        minutes = (
            events.groupBy("device", F.window("ts", "1 minute").alias("minute"))
            .agg(F.count("celsius").alias("readings"), F.avg("celsius").alias("celsius"))
            .select("device", F.col("minute.start").alias("minute"), "readings", "celsius")
        )
        query = (
            minutes.writeStream.foreachBatch(merge)
            .outputMode("update")
            .option("checkpointLocation", f"{options.out}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(service.explain("readings"))
    spark.stop()


if __name__ == "__main__":
    main()
