"""An application of a job that is redeployed often: counts rows by window, and obeys commands on stdin.

Usage: python -m tests.drivers.redeploy SCRATCH

    start FOLDER COORDINATOR QUERIES [AWAY]
                                         starts the query as one of QUERIES; the others wait for it for AWAY. It
                                         reads FOLDER/feed, keeps FOLDER/checkpoint, writes FOLDER/out/<batch>.json
    run FOLDER COORDINATOR QUERIES       runs the query with AvailableNow to its end
    stop                                 stops the query
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lowmark.integration import LowWatermarkService
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.drivers.session import driver_session
from tests.integration.feed import SCHEMA, windows


def begin(
    spark: SparkSession, folder: Path, coordinator: str, queries: int, job_away: str | None, *, ends: bool
) -> tuple[LowWatermarkService, StreamingQuery]:
    out = folder / "out"
    out.mkdir(exist_ok=True)

    def keep(batch: DataFrame, batch_id: int) -> None:  # a repeated batch replaces its file
        rows = [tuple(row) for row in batch.collect()]
        (out / f".{batch_id}").write_text(json.dumps(rows))
        (out / f".{batch_id}").rename(out / f"{batch_id}.json")

    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 10).json(str(folder / "feed"))
    service = LowWatermarkService(
        spark, coordinator=coordinator, job="billing", job_queries=queries, job_away=job_away, beside=True
    )
    events = service.wrap(rows, name="orders", event_time="ts", split="split")
    writer = windows(events, "split").writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return service, (writer.trigger(availableNow=True) if ends else writer).start()


def main(scratch: Path) -> None:
    spark = driver_session(scratch, {}, master="local[1]")
    running: tuple[LowWatermarkService, StreamingQuery] | None = None
    print("ready", flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command in ("start", "run"):
            folder, coordinator, queries, *away = rest
            job_away = away[0] if away else None
            running = begin(spark, Path(folder), coordinator, int(queries), job_away, ends=command == "run")
        if command in ("run", "stop"):
            assert running is not None
            service, query = running
            if command == "run":
                query.awaitTermination()
            query.stop()
            service.stop()
        print(f"did {command}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
