"""Writes docs/audit.md's bronze table, with the demo's rows: `python -m tests.commands.audit_example FOLDER`."""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from lowmark.integration.demo.feed import TICKS_PER_BATCH, demo_script, yesterday_noon_us
from pyarrow import parquet

SEED = 42


def write(folder: Path, now: dt.datetime | None = None) -> Path:
    """Write a file for each batch of the demo, with the file time of the batch."""
    now = dt.datetime.now(dt.timezone.utc) if now is None else now
    script = demo_script(SEED, start_us=yesterday_noon_us(now))
    folder.mkdir(parents=True)
    for batch, tick in enumerate(range(0, script.end, TICKS_PER_BATCH)):
        until = min(tick + TICKS_PER_BATCH, script.end)
        times = [script.times_us(split.name, tick, until, seed=SEED) for split in script.splits]
        partition = np.repeat(np.arange(len(times)), [len(of) for of in times])
        columns = {
            "topic": ["orders"] * len(partition),
            "partition": pa.array(partition, pa.int32()),
            "event_time": pa.array(np.concatenate(times), pa.timestamp("us", "UTC")),
        }
        file = folder / f"{batch:03}.parquet"
        parquet.write_table(pa.table(columns), file)
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
