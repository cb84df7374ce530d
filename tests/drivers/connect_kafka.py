"""An application on Spark's Kafka source, as a client of Spark Connect or in a driver; a test compares its rows.

python -m tests.drivers.connect_kafka FOLDER SERVER BOOTSTRAP ORDERS PAYMENTS UNTIL
python -m tests.drivers.connect_kafka

SERVER is the port of a Connect server, or "driver". Counts the rows of topic ORDERS in windows per partition, and joins
both topics on their values. Prints both results as JSON as soon as everything until UNTIL (an ISO time) is in the
sinks. Without arguments it starts a broker and a server, runs the application both ways, and compares: a minute.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark import LowWatermarkService, WatermarkStrategy
from pyspark.sql import functions as F

from tests.drivers.session import driver_session
from tests.servers.connect import connect_server
from tests.servers.kafka import Broker, Record, kafka_broker
from tests.servers.local import ROOT, jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLIT = ["topic", "partition"]
BEGIN, NUMBER, SKEW_SECONDS = 1_700_000_000, 120, 120
SECONDS = 180


class Shop:
    """Two topics: partition 1 of each is two minutes behind partition 0; every other order is paid, a second later."""

    def __init__(self, broker: Broker) -> None:
        self._bootstrap = broker.bootstrap
        self._placed = [(v, v % 2, BEGIN + v + SKEW_SECONDS * (1 - v % 2)) for v in range(NUMBER)]
        self._paid = [(v, partition, at + 1) for v, partition, at in self._placed if v % 4 < 2]
        self._topics = [broker.create_topic(partitions=2) for _ in range(2)]
        for topic, end, rows in zip(self._topics, (-1, -2), (self._placed, self._paid), strict=True):
            ends = [(end, partition, BEGIN + 10_000) for partition in (0, 1)]  # no payment of an order
            records = [Record(str(v), partition, timestamp_ms=at * 1_000) for v, partition, at in [*rows, *ends]]
            broker.produce(topic, records)

    def served(self, folder: Path, server: str) -> dict[str, Any]:
        """Run the application, and return its results."""
        until = dt.datetime.fromtimestamp(BEGIN + 5_000, dt.timezone.utc).isoformat()
        command = [sys.executable, "-m", "tests.drivers.connect_kafka", str(folder), server, self._bootstrap]
        ran = subprocess.run(
            [*command, *self._topics, until], cwd=ROOT, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3_000:]
        came: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return came

    def check(self, came: dict[str, Any]) -> None:
        """Compare results with the rows of the topics."""
        orders, payments = self._topics
        topics = {"counted": orders, "orders": orders, "payments": payments}
        assert came["splits"] == {name: [f"{topic}/0", f"{topic}/1"] for name, topic in topics.items()}
        windows = Counter((at // 10 * 10, partition) for _, partition, at in self._placed)
        assert came["windows"] == sorted(([*window, rows] for window, rows in windows.items()), key=str)
        matched = {v for v, _, _ in self._paid}
        assert came["joined"] == sorted(([v, v if v in matched else None] for v, _, _ in self._placed), key=str)


@contextmanager
def session(server: str, folder: Path) -> Iterator[SparkSession]:
    if server == "driver":
        spark = driver_session(folder, {"spark.jars": ",".join(map(str, jars("spark-kafka")))})
    else:
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


def compare(folder: Path) -> None:
    """Run the application in a client and in a driver, on the same topics.

    Raises:
        AssertionError: a result is not that of the topics' rows, or both differ.
    """
    for name in ("server", "kafka", "client", "driver"):
        (folder / name).mkdir()
    with connect_server(folder / "server") as (_, port), kafka_broker(folder / "kafka") as broker:
        shop = Shop(broker)
        client, driver = shop.served(folder / "client", str(port)), shop.served(folder / "driver", "driver")
    for came in (client, driver):
        shop.check(came)
    for name, result in client.items():
        assert result == driver[name], f"{name} differ: {result} in the client, {driver[name]} in the driver"
        print(f"{name}: {len(result)}, equal in client and driver")


def main(*arguments: str) -> None:
    if not arguments:
        with tempfile.TemporaryDirectory(prefix="lowmark-connect-") as place:
            compare(Path(place))
        return
    folder, server, *others = arguments
    with session(server, Path(folder)) as spark:
        print(json.dumps(use(spark, Path(folder), *others)))


if __name__ == "__main__":
    main(*sys.argv[1:])
