"""A driver that serves Spark Connect, and clients of it.

python -m tests.drivers.connect_app server FOLDER PORT [NAME=VALUE ...]    prints "ready", and runs until SIGTERM
python -m tests.drivers.connect_app driver FOLDER PORT [NAME=VALUE ...]    the same, with a service and a query
python -m tests.drivers.connect_app client FOLDER PORT                     prints what a client can do as JSON
python -m tests.drivers.connect_app foreign FOLDER PORT SEAL TOKEN         tells another client's reader a low watermark

NAME=VALUE is a further setting of Spark.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lowmark.sources.spark
from lowmark import LowWatermarkService, WatermarkStrategy, adopt, completion, leave
from lowmark.integration.transport.driver_rpc import HeartbeatReply
from lowmark.integration.transport.told import FORMAT, TellSource, Told
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.spark.source import register_class
from lowmark.sources.spark.versions import major_minor
from pyspark.sql import SparkSession

from tests.drivers.session import driver_session
from tests.integration.feed import Feed, run, us, windows
from tests.servers.local import jars


@contextmanager
def serving(port: int, *further: str) -> Iterator[SparkSession]:
    """Serve clients until SIGTERM, which comes after the body of the `with`."""
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # After a report of progress the process of a client's foreachBatch may wait for ever (docs/wrap.md).
        "spark.connect.progress.reportInterval": "-1",
        "spark.jars": ",".join(map(str, jars("spark-kafka"))),
        **dict(each.split("=", 1) for each in further),
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with tempfile.TemporaryDirectory(prefix="lowmark-connect-", ignore_cleanup_errors=True) as place:
        spark = driver_session(Path(place), settings)
        yield spark
        print("ready", flush=True)
        signal.sigwait([signal.SIGTERM])
        spark.stop()


def serve(_: Path, port: int, *further: str) -> None:
    """Only serve clients."""
    with serving(port, *further):
        pass


def serve_and_wrap(folder: Path, port: int, *further: str) -> None:
    """Run a wrapped query in the server's driver, as a long-lived application that serves clients does."""
    with serving(port, *further) as spark:
        feed, service = Feed(spark, folder / "feed"), LowWatermarkService(spark)
        df = service.wrap(feed.df, name="orders", event_time="ts", split="split", splits=["fast", "slow"])
        run(windows(df, "split"), feed, [[("fast", 1, 500), ("slow", 1, 100)]], str(folder / "checkpoint"))


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as refused:  # noqa: BLE001  # whatever it is, the test looks at it
        return f"{type(refused).__name__}: {refused}"
    return "nothing was refused"


def use(folder: Path, port: int) -> None:
    """Print which calls are refused, and the rows that a stream of a source gives."""
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    calls: dict[str, Callable[[], object]] = {
        "adopt": lambda: adopt(folder / "checkpoint", "orders", spark=spark),
        "leave": lambda: leave(folder / "checkpoint", spark=spark),
        "completion": lambda: completion(folder / "checkpoint", spark=spark),
    }
    if major_minor(spark.version) < (4, 2):
        calls["service"] = lambda: LowWatermarkService(spark)
        service = None
    else:
        service = LowWatermarkService(spark)
        calls |= of_service(service, spark)
    came: dict[str, Any] = {"refused": {name: refusal(call) for name, call in calls.items()}}

    lowmark.sources.spark.register(spark)
    splits = (SplitScript("a", 4), SplitScript("b", 1, behind_us=3_000_000))
    script = StreamScript(splits, us(0), ticks=10, tick_us=1_000_000, shuffle_us=1)
    options = {"script": json.dumps(script.to_plain()), "seed": "7", "splitColumn": "split_id"}
    df = spark.readStream.format("lowmark_generator").options(**options).load()
    if service is not None:
        df = service.wrap(df, name="generated", event_time="event_time", split="split_id")
    writer = df.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "read")).start().awaitTermination(120)
    rows = spark.table("rows").groupBy("split_id").count().collect()
    low_us = None if service is None else service.status("generated").low_watermark_us
    print(json.dumps({**came, "read": {row["split_id"]: row["count"] for row in rows}, "low_us": low_us}))
    if service is not None:
        service.stop()
    spark.stop()


def of_service(service: LowWatermarkService, spark: SparkSession) -> dict[str, Callable[[], object]]:
    """Return the calls of a service that are refused."""
    source = GeneratorSource(StreamScript((SplitScript("a", 1),), us(0), ticks=1, tick_us=1, shuffle_us=1), seed=1)
    rate = spark.readStream.format("rate").load()
    by_python = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: int(row["value"]))
    return {
        "read": lambda: service.read(source, name="orders"),
        "audit": lambda: service.audit(rate, name="orders", event_time="timestamp", split="value"),
        "mark_done": lambda: service.mark_done(rate, name="orders", time="timestamp"),
        "assigner": lambda: service.wrap(rate, name="o", event_time="timestamp", split="value", strategy=by_python),
        "late": lambda: service.wrap(rate, name="o", event_time="timestamp", split="value", late="is_late"),
    }


def tell_as_a_stranger(_: Path, port: int, seal: str, token: str) -> None:
    """Tell a reader of another client's stream a low watermark of the year 2100, with all that a stranger can know."""
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    register_class(spark, TellSource)
    reply = Told(HeartbeatReply(4_102_444_800_000_000, 1_000_000, ""), 1_000_000).to_json()
    for secret in (seal, token, "0" * 64):
        spark.read.format(FORMAT).options(secret=secret, token=token, reply=reply).load().schema  # noqa: B018  # tells
    spark.stop()


COMMANDS: dict[str, Callable[..., None]] = {
    "server": serve,
    "driver": serve_and_wrap,
    "client": use,
    "foreign": tell_as_a_stranger,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
