"""A stream-stream join with an idle side and a bad clock: which views were clicked within ten minutes, which were not.

    python examples/clicks_of_views.py --bootstrap localhost:9092 --views views --clicks clicks --out /tmp/clicks

The outer join emits a view without a click when no click can come any more, because the watermark of both streams has
passed the view. Under Spark's own watermark a single row from the future drops all rows after it. Under lowmark that
row moves nothing, a slow partition loses nothing, and a partition without clicks is left out while the others deliver.
Records are {"at": milliseconds, "page": ...}, for clicks {"at": ..., "of": page}. The program reads all rows and ends.
"""

from __future__ import annotations

import argparse

from lowmark import LowWatermarkService, WatermarkStrategy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def topic(spark: SparkSession, bootstrap: str, name: str, schema: str) -> DataFrame:
    """The records of a topic, with their partition."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    raw = reader.option("subscribe", name).option("startingOffsets", "earliest").load()
    parsed = raw.withColumn("record", F.from_json(F.col("value").cast("string"), schema))
    return parsed.select("topic", "partition", F.timestamp_millis("record.at").alias("ts"), "record.*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--bootstrap", "--views", "--clicks", "--out"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.appName("clicks").getOrCreate()
    # An empty partition is left out after a second, so that the example ends soon; minutes are usual. In the end all
    # topics fall silent: the low watermark then rises to the newest event time. By default it would wait for rows.
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
        .with_idleness("1 second")
        .with_all_idle("max")
        .with_future_guard("5 minutes")
    )
    with LowWatermarkService(spark) as service:
        split = ["topic", "partition"]
        raw_views = topic(spark, options.bootstrap, options.views, "at long, page string")
        raw_clicks = topic(spark, options.bootstrap, options.clicks, "at long, of string")
        views = service.wrap(raw_views, name="views", event_time="ts", split=split, strategy=strategy)
        clicks = service.wrap(raw_clicks, name="clicks", event_time="ts", split=split, strategy=strategy)
        viewed = views.select("page", F.col("ts").alias("viewed_at"))
        clicked = clicks.select("of", F.col("ts").alias("clicked_at"))
        within = F.expr("page = of AND clicked_at BETWEEN viewed_at AND viewed_at + INTERVAL 10 MINUTES")
        query = (
            viewed.join(clicked, within, "leftOuter")
            .writeStream.format("parquet")
            .option("path", f"{options.out}/views")
            .option("checkpointLocation", f"{options.out}/checkpoint")
            .start()
        )
        query.processAllAvailable()
        for _ in range(60):  # silence counts by time: the empty partition is left out a moment later
            if query.lastProgress and query.lastProgress["eventTime"].get("watermark", "1970") > "1971":
                break
            query.awaitTermination(1)
        query.processAllAvailable()
        query.stop()
        print(service.explain("clicks"))
    spark.stop()


if __name__ == "__main__":
    main()
