"""A client of Spark Connect that wraps a stream of files; a test or a measurement drives it.

python -m tests.drivers.connect_wrapped FOLDER PORT UNTIL [TRIGGER]

Reads FOLDER/feed, writes windows to FOLDER/out with the checkpoint FOLDER/checkpoint, and prints "started". As soon as
everything until UNTIL (seconds on the axis of `feed.py`) is in the sink, it prints the rows as JSON, and ends. TRIGGER:
"unknown" does not name the splits; "shipped" brings lowmark along, and ends with the rows that are there.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowmark import LowWatermarkService, WatermarkStrategy, ship
from pyspark.sql import SparkSession

from tests.integration.feed import SCHEMA, us, windows

SPLITS = ["fast", "slow"]


def wrapped(spark: SparkSession, service: LowWatermarkService, folder: Path, **arguments: Any) -> Any:
    """Return the wrapped stream of a folder's feed."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "feed"))
    return service.wrap(stream, name="orders", event_time="ts", split="split", **arguments)


def use(folder: Path, port: int, until: float, trigger: str | None) -> None:
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    passed = threading.Event()
    if trigger == "shipped":
        ship(spark)
    with LowWatermarkService(spark, metrics_port=0, page_port=0) as service:
        known = {} if trigger == "unknown" else {"splits": SPLITS}
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_grace("1 second")
        counted = windows(wrapped(spark, service, folder, strategy=strategy, **known), "split")
        writer = counted.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.trigger(availableNow=True) if trigger == "shipped" else writer
        query = writer.outputMode("append").start(str(folder / "out"))
        print("started", flush=True)
        if trigger == "shipped":
            query.awaitTermination(90)
        else:
            service.when_passed("orders", _text(until), lambda _: passed.set())
            service.wait_until("orders", _text(until), timeout="150 seconds")
        said: dict[str, Any] = {"explain": str(service.explain("orders"))}
        if trigger != "shipped":
            said |= {"passed": passed.wait(30), "states": [*_marked(service)], "served": [*_served(service)]}
        query.stop()
        rows = spark.read.schema("start double, split string, n long").json(str(folder / "out")).collect()
        print(json.dumps({**said, "rows": sorted(map(list, rows))}), flush=True)
    spark.stop()


def _marked(service: LowWatermarkService) -> Iterator[str]:
    """Yield the state of a split: as it is, marked idle by hand, and with the mark taken back; then what is set."""
    yield service.status("orders").splits["slow"].state.value
    service.mark_idle("orders", "slow", until="1 hour")
    yield service.status("orders").splits["slow"].state.value
    service.mark_active("orders", "slow")
    yield service.status("orders").splits["slow"].state.value
    service.set_strategy("orders", delay="59 minutes")
    yield str(service.status("orders").set_by_hand[0])


def _served(service: LowWatermarkService) -> Iterator[str]:
    """Yield lines that metrics and page have of the stream."""
    metrics = f"http://127.0.0.1:{service.metrics_port}/metrics"
    for address in (metrics, f"{service.page_address}state"):
        with urllib.request.urlopen(address, timeout=30) as answer:
            yield next(line for line in answer.read().decode().splitlines() if "orders" in line)


def _text(at_seconds: float) -> str:
    from lowmark.watermark.moment import datetime_of

    return datetime_of(us(at_seconds)).isoformat()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    use(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
