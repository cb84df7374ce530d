"""The features of every version of Spark, in one short application; prints the results as JSON.

Usage: python -m tests.integration.spark.version_app FOLDER [TIMERS native|wrapped]

The folder TIMERS outlives the application: queries with timers stay on several versions (`timers`).
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
from lowmark.integration import LowWatermarkService
from lowmark.integration.errors import WrapRefused
from lowmark.integration.spark.adoption import adopt, leave
from lowmark.integration.spark.progress import RAN
from lowmark.integration.spark.session import local_session
from lowmark.watermark import WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.feed import Feed, Row, lose_commit, rows_read, run, start, windows
from tests.integration.log import Log, LogSource
from tests.integration.spark import timers
from tests.servers.local import wait_until
from tests.sparks import LIGHT

TEN_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("10 seconds")
# "slow" is eight minutes behind "fast"; each batch holds both.
SKEWED: list[list[Row]] = [[("fast", 1, 500 + at), ("slow", 1, 20 + at)] for at in (0, 10)]
END: list[list[Row]] = [[("fast", 1, 1000), ("slow", 1, 1000)]]


class Told(logging.Handler):
    """Keeps lowmark's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def wrapped(service: LowWatermarkService, feed: Feed, **options: Any) -> DataFrame:
    """The feed under the low watermark of its two splits."""
    strategy = options.pop("strategy", TEN_SECONDS)
    return service.wrap(
        feed.df, name=feed.folder.name, event_time="ts", split="split", strategy=strategy, splits=["fast", "slow"],
        **options,
    )  # fmt: skip


def lacks(query: StreamingQuery) -> list[str]:
    """Return the fields that the last progress event lacks, of those that a `Progress` does without."""
    event = json.loads(query._jsq.lastProgress().json())
    given = {
        "name": event, "timestamp": event, "eventTime": event, "watermark": event.get("eventTime", {}),
        "observedMetrics": event, "durationMs": event, RAN: event.get("durationMs", {}),
        "triggerExecution": event.get("durationMs", {}), "description": event.get("sink", {}),
    }  # fmt: skip
    return [name for name, within in given.items() if name not in within]


def restarted(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A query that stops between two batches, and continues from its checkpoint under another service."""
    feed = Feed(spark, folder / "restarted")
    checkpoint = str(folder / "restarted-cp")
    with LowWatermarkService(spark) as service:
        before = run(windows(wrapped(service, feed), "split"), feed, SKEWED, checkpoint)
        lacked = lacks(before.query)
        before.query.stop()
    with LowWatermarkService(spark) as service:
        after = run(windows(wrapped(service, feed), "split"), feed, END, checkpoint)
        counts = service.status(feed.folder.name).counts
        after.query.stop()
    emitted, dropped = sorted(before.rows + after.rows), before.dropped + after.dropped
    return {"rows": emitted, "dropped": dropped, "low": after.low, "measured": counts.rows, "lacks": lacked}


def available_now(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Several batches that end by themselves, event time found in Python, and a bad clock among the rows."""
    feed = Feed(spark, folder / "now")
    for batch in [*SKEWED, [("fast", 1, None), (None, 1, 2000), ("fast", 1, 4_000_000_000)], *END]:
        feed.put(*batch)
    strategy = TEN_SECONDS.with_timestamp_assigner(lambda _, own_us: own_us)  # type: ignore[arg-type,return-value]  # None is none
    with LowWatermarkService(spark) as service:
        df = wrapped(service, feed, strategy=strategy)
        ran = start(windows(df.dropna(), "split"), str(folder / "now-cp"), trigger={"availableNow": True})
        ended = ran.query.awaitTermination(120)
        counts = service.status("now").counts
    batches = sum(p.num_input_rows > 1 for p in ran.progress)
    kept = {"rows_measured": counts.rows, "bad": [counts.null_time_rows, counts.null_split_rows, counts.future_rows]}
    return {"ended": ended, "rows": sorted(ran.rows), "batches": batches, "low": ran.low, **kept}


def adopted(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """One checkpoint: native, adopted in its second batch with a window open, and left."""
    feed, checkpoint = Feed(spark, folder / "adopted"), str(folder / "adopted-cp")
    phases: list[list[list[Row]]] = [
        [[("fast", 1, 20), ("slow", 1, 21)], [("fast", 1, 31), ("slow", 1, 33)]],
        [[("fast", 1, 301), ("slow", 1, 41)], [("fast", 1, 310), ("slow", 1, 50)]],
        [[("fast", 1, 320), ("slow", 1, 315)], *END],
    ]
    rows: list[Row] = []
    dropped, read, refused = 0, 0, ""
    for n, phase in enumerate(phases):
        wraps = n == 1
        if wraps:
            with LowWatermarkService(spark) as service:
                try:
                    start(windows(wrapped(service, feed), "split"), checkpoint).query.awaitTermination(120)
                except StreamingQueryException as said:
                    refused = str(said).splitlines()[0]
        if n:
            assert adopt(checkpoint, "adopted", stopped=True).done if wraps else leave(checkpoint, stopped=True).done
        with LowWatermarkService(spark) as service:
            df = wrapped(service, feed) if wraps else feed.df.withWatermark("ts", "10 seconds")
            ran = run(windows(df, "split"), feed, phase, checkpoint)
            ran.query.stop()
        rows += ran.rows
        dropped += ran.dropped
        read += rows_read(ran.progress)
    fed = sum(len(batch) for phase in phases for batch in phase)
    told = f"lowmark adopt {checkpoint} --stream adopted" in refused
    return {"rows": sorted(rows), "dropped": dropped, "read_again": read - fed, "told_how": told}


def read(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Our own source, cut into batches by event time; stopped, and continued."""
    log = Log(folder / "log")
    for split, begin in (("a", 0), ("b", 500)):
        log.append(split, *range(begin, 1_000, 20))
    rans = []
    for _ in range(2):
        with LowWatermarkService(spark) as service:
            df = service.read(LogSource(log.folder), name="log", strategy=TEN_SECONDS, tasks=2, max_rows_per_batch=40)
            ran = start(windows(df, "split_id"), str(folder / "read-cp"), trigger={"availableNow": True})
            assert ran.query.awaitTermination(120), "it ends by itself"
        rans.append(ran)
        for split in ("a", "b"):
            log.append(split, 1_000, 1_010, 1_200)
    largest = max(p.num_input_rows for ran in rans for p in ran.progress)
    emitted = {split: rans[0].by_split().get(split, 0) + rans[1].by_split().get(split, 0) for split in ("a", "b")}
    return {"emitted": emitted, "dropped": sum(ran.dropped for ran in rans), "largest": largest, "low": rans[1].low}


def watched(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A query with its own watermark, watched while it runs, on versions that can."""
    feed = Feed(spark, folder / "watched")
    with LowWatermarkService(spark) as service:
        try:
            df = service.audit(feed.df, name="watched", event_time="ts", split="split", splits=["fast", "slow"])
        except WrapRefused as refused:
            return {"refused": str(refused), "late": None}
        ran = run(
            windows(df.withWatermark("ts", "10 seconds"), "split"), feed, SKEWED + END, str(folder / "watched-cp")
        )
        wait_until(lambda: service.status("watched").counts.rows == 6, "reports of three batches")
        late = {name: split.native_late_rows for name, split in service.status("watched").splits.items()}
        ran.query.stop()
    return {"refused": None, "late": late}


def late(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The row that a window drops, in a folder, and a column that marks late rows; the last batch runs again."""
    feed, checkpoint, emitted = Feed(spark, folder / "late"), str(folder / "late-cp"), dict[int, list[Row]]()
    batches: list[list[Row]] = [[("fast", at, at), ("slow", at + 1, at + 1)] for at in (12, 41, 60)]
    marked: set[int] = set()
    for part in ([*batches, [("slow", 15, 15), ("slow", 45, 45)]], [[("fast", 100, 100), ("slow", 101, 101)]]):
        with LowWatermarkService(spark) as service:
            df = wrapped(
                service, feed, late="is_late", late_to=folder / "late-rows", late_until="window(ts, '10 seconds').end"
            )
            df = df.observe("judged", F.collect_set(F.when(F.col("is_late"), F.col("v"))).alias("late"))
            ran = run(windows(df, "split"), feed, part, checkpoint, emitted=emitted)
            ran.query.stop()
        marked.update(*(progress.observed_metrics.get("judged", {}).get("late", []) for progress in ran.progress))
        if part[0] is batches[0]:
            lose_commit(checkpoint)
    files = [pq.read_table(file) for file in (folder / "late-rows").glob("*.parquet")]
    rows = sorted(row for rows in emitted.values() for row in rows)
    return {"rows": rows, "dropped": [v for file in files for v in file["v"].to_pylist()], "marked": sorted(marked)}


def main(folder: Path, *stay: str) -> None:
    told = Told()
    logging.getLogger("lowmark").addHandler(told)
    # `test_newcomer` has Spark's own manager of checkpoints, on the oldest and the newest version.
    with local_session("lowmark-versions", settings={**LIGHT, "spark.sql.shuffle.partitions": "1"}) as (spark, _):
        came = {}
        for what in (restarted, available_now, adopted, read, watched, late):
            sys.stderr.write(f"{what.__name__}\n")  # the last line names a run that hangs
            came[what.__name__] = what(spark, folder)
        if stay:
            sys.stderr.write("timers\n")
            came["timers"] = timers.stay(spark, Path(stay[0]), wraps=stay[1] == "wrapped")
    print(json.dumps({"pyspark": pyspark.__version__, "told": told.said, **came}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
