"""Kills at any moment of a query whose partitions are marked: no mark is early, none is missing, the order stays.

Split "slow" is 25 minutes behind split "fast", split "idle" has a single row, and a row has a time in another century.
Each mark keeps what a reader of the output sees at that moment, which has to be what the partition has in the end, and
comes within ten batches after the partition's last windows. `marking_driver` is the killed process.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

from tests.live import torture
from tests.live.marking_driver import FILES_A_BATCH, PARTITION_US, Config
from tests.live.torture import Torture, newest

pytestmark = torture.MARKS

ZERO_US = int(dt.datetime(2023, 11, 15, tzinfo=dt.timezone.utc).timestamp()) * 1_000_000
MINUTE_US = 60_000_000
BEHIND_US = 25 * MINUTE_US
AHEAD = 20  # batches; a feed without this bound grows while drivers start, and the last driver reads for minutes
BAD_US = int(dt.datetime(2123, 11, 15, tzinfo=dt.timezone.utc).timestamp()) * 1_000_000


class Feeder(torture.Feeder):
    """A file each round: two rows of each split, minutes further; at most `AHEAD` batches before the query."""

    def __init__(self, config: Config) -> None:
        super().__init__(every_seconds=0.3)
        self._folder, self._commits, self._round = config.feed, config.checkpoint / "commits", 0
        self.us = ZERO_US

    def put(self, rows: list[tuple[str, int]]) -> None:
        part = self._folder / ".part"
        part.write_text("".join(f"{json.dumps({'split': split, 'us': us})}\n" for split, us in rows))
        part.rename(self._folder / f"{self._round:06}.json")
        self._round += 1

    def feed(self) -> None:
        if self._round > FILES_A_BATCH * (newest(self._commits) + AHEAD):
            return
        # Every third partition has no row.
        if (self.us - ZERO_US) // PARTITION_US % 3 == 2:
            self.us += PARTITION_US
        if self._round == 1:
            self.put([("idle", self.us), ("slow", BAD_US)])
        self.put([("fast", self.us + BEHIND_US), ("slow", self.us), ("slow", self.us + 7_000_000)])
        self.us += MINUTE_US


def test_kills_at_random_moments_mark_no_partition_early_and_forget_none(tmp_path: Path) -> None:
    config = Config(str(tmp_path))
    config.feed.mkdir()
    with Torture("marking_driver", tmp_path) as killer, Feeder(config) as feeder:
        for _ in range(int(os.environ.get("LOWMARK_KILLS", "3"))):
            killer.start(config)
            killer.strike(config, workers=False)
        feeder.stop()
        end_us = (feeder.us // PARTITION_US + 6) * PARTITION_US
        feeder.put([("fast", end_us), ("slow", end_us)])
        feeder.put([("fast", end_us + 2 * PARTITION_US), ("slow", end_us + 2 * PARTITION_US)])
        last = dt.datetime.fromtimestamp(end_us / 1_000_000, dt.timezone.utc)
        emitted = killer.drain(config.but(last=f"{last:%d-%H%M}"))
        marks = [json.loads(file.read_text()) for file in sorted(config.marks.glob("*.json"))]
        for mark in marks:
            start_us = mark["start_us"]
            there = sorted([[*window] for window in emitted if start_us <= window[0][1] < start_us + PARTITION_US])
            assert sorted([[tuple(key), n] for key, n in mark["seen"]]) == there, f"early: {mark['partition']}"
            assert there or not mark["has_rows"]
            assert mark["batches"] < 10, f"late: {mark}"
        starts = [mark["start_us"] for mark in marks]
        assert {us // PARTITION_US for (_, us), _ in emitted} <= {us // PARTITION_US for us in starts}, (
            "none is missing"
        )
        first = list(dict.fromkeys(starts))
        assert first == sorted(first), "in order, each for the first time"
        assert len(first) >= 5
