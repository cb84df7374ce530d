"""An application as users write it, without a setting for Python; prints its results as JSON.

Usage: python tests/integration/spark/plain_app.py FOLDER PYTHON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import WorkersUnfit
from lowmark.integration.spark.session import SHORT_LIVED_JVM
from lowmark.watermark import WatermarkStrategy
from pyspark.sql import SparkSession


def main(folder: Path, other: str) -> None:
    """Run the README's snippet on a folder of files, without its windows; then again under another Python."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    (folder / "orders").mkdir()
    (folder / "orders" / "0.json").write_text('{"partition": 0, "ts": "2023-11-14T22:13:20Z"}\n')
    orders = spark.readStream.schema("partition int, ts timestamp").json(str(folder / "orders"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds").with_idleness("1 minute")
    refused = ""
    with LowWatermarkService(spark) as service:
        events = service.wrap(orders, name="orders", event_time="ts", split="partition", strategy=strategy)
        writer = events.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        status = service.run_statuses()[0].status
        spark.sparkContext.pythonExec = other
        try:
            service.wrap(orders, name="again", event_time="ts", split="partition")
        except WorkersUnfit as unfit:
            refused = str(unfit)
    print(json.dumps({"rows": status.counts.rows, "low_us": status.low_watermark_us, "refused": refused}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
