"""The replay agrees with Spark itself: on the same batches, both count the same number of drops for each rule."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from lowmark.integration import LowWatermarkService
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.replay.replay import Batches, Replay
from pyarrow import parquet
from pyspark.sql import functions as F

from tests.integration.feed import Ran, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000
WINDOW_US = 7 * SECOND_US
SPLITS = ("a", "b", "c", "d")
KINDS = ("skew", "idle", "bad clock", "out of order", "all of it")

Rows = list[tuple[int, int]]  # split, event time in microseconds


def topic(kind: str, seed: int, batches: int) -> list[Rows]:
    """Batches of four splits; times are an hour old, so that a bad clock is ahead of the present."""
    chance, begin_us = random.Random(seed), (int(time.time()) - 3_600) * SECOND_US
    behind_s = {1: 90} if kind in ("skew", "all of it") else {}
    made = []
    for batch in range(batches):
        rows: Rows = []
        for split in range(len(SPLITS)):
            if split == 2 and kind in ("idle", "all of it") and 3 <= batch < batches - 2:
                continue
            for row in range(chance.randint(3, 12)):
                at_us = begin_us + (batch * 10 + row) * SECOND_US - behind_s.get(split, 0) * SECOND_US
                if kind in ("out of order", "all of it") and chance.random() < 0.3:
                    at_us -= chance.randrange(40 * SECOND_US)
                rows.append((split, at_us))
        if kind in ("bad clock", "all of it") and batch == batches // 2:
            rows.append((3, begin_us + 365 * 86_400 * SECOND_US))
        chance.shuffle(rows)
        made.append(rows)
    return made


def predicted(batches: list[Rows], delay_us: int) -> tuple[int, int]:
    """Number of rows that native Spark and lowmark drop, by the replay."""
    replay = Replay(
        SPLITS,
        delays_us=[delay_us],
        window_us=WINDOW_US,
        strategy=WatermarkStrategy(),
        now_us=time.time_ns() // 1_000,
    )
    rows = [row for batch in batches for row in batch]
    replay.take(
        Batches(
            np.array([split for split, _ in rows]),
            np.array([time_us for _, time_us in rows]),
            np.ones(len(rows), np.bool_),
            np.cumsum([len(batch) for batch in batches]),
            time.time_ns() // 1_000 + np.arange(len(batches)),
            np.zeros(len(batches), np.int64),
        )
    )
    return int(replay.native.dropped.sum()), int(replay.lowmark.dropped.sum())


def written(batches: list[Rows], folder: Path) -> Path:
    """Write a file for each batch; every row has its own number."""
    folder.mkdir()
    number = 0
    for batch, rows in enumerate(batches):
        table = pa.table(
            {
                "split": [SPLITS[split] for split, _ in rows],
                "id": range(number, number + len(rows)),
                "ts": pa.array([time_us for _, time_us in rows], pa.timestamp("us", "UTC")),
            }
        )
        number += len(rows)
        file = folder / f"{batch:03}.parquet"
        parquet.write_table(table, file)
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return folder


def rows_of_files(spark: SparkSession, folder: Path) -> DataFrame:
    stream = spark.readStream.schema("split string, id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder))


def dropped(df: DataFrame, checkpoint: str) -> int:
    """Count dropped rows. Every row has its own group, so the state counts drops by rows."""
    query = df.groupBy(F.window("ts", f"{WINDOW_US // SECOND_US} seconds"), "id").count()
    ran: Ran = start(query, checkpoint)
    ran.settle()
    ran.query.stop()
    return ran.dropped


def by_spark(spark: SparkSession, batches: list[Rows], delay_s: int, folder: Path) -> tuple[int, int]:
    """Number of rows that native Spark and lowmark drop, by Spark."""
    files = written(batches, folder / "rows")
    native = dropped(rows_of_files(spark, files).withWatermark("ts", f"{delay_s} seconds"), str(folder / "native"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{delay_s} seconds")
    with LowWatermarkService(spark) as service:
        events = service.wrap(
            rows_of_files(spark, files),
            name="audited",
            event_time="ts",
            split="split",
            strategy=strategy,
            splits=SPLITS,
        )
        low = dropped(events, str(folder / "lowmark"))
    return native, low


def cases() -> Iterator[object]:
    for at, kind in enumerate(KINDS):
        yield pytest.param(kind, at, 12, id=kind, marks=() if kind == "all of it" else pytest.mark.torture)
    for seed in range(100, 105):
        yield pytest.param("all of it", seed, 30, id=f"seed {seed}", marks=pytest.mark.torture)


@pytest.mark.parametrize(("kind", "seed", "batches"), list(cases()))
def test_the_replay_drops_what_spark_drops(
    spark: SparkSession, tmp_path: Path, kind: str, seed: int, batches: int
) -> None:
    rows, delay_s = topic(kind, seed, batches), 5
    native, low = by_spark(spark, rows, delay_s, tmp_path)
    told = f"{kind}, seed {seed}"
    assert predicted(rows, delay_s * SECOND_US) == (native, low), told
    if kind != "idle":
        assert native > 0, f"{told}: nothing is compared"
    if kind in ("out of order", "all of it"):
        assert native > low > 0, f"{told}: nothing is compared"
