"""Files of a skewed stream, for the drivers `marking` and `kafka_sink`: a slow split, a silent one, a wrong clock."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter

from tests.drivers.driven import Windows
from tests.drivers.marking import FILES_A_BATCH, PARTITION_US, Config
from tests.worlds import torture
from tests.worlds.torture import newest

ZERO_US = int(dt.datetime(2023, 11, 15, tzinfo=dt.timezone.utc).timestamp()) * 1_000_000
MINUTE_US = 60_000_000
BEHIND_US = 25 * MINUTE_US
AHEAD = 8  # batches; a feed without this bound grows while drivers start, and the last driver has to read all of it
BAD_US = int(dt.datetime(2123, 11, 15, tzinfo=dt.timezone.utc).timestamp()) * 1_000_000


class Feeder(torture.Feeder):
    """A file each round: two rows of each split, minutes further; at most `AHEAD` batches before the slowest query."""

    def __init__(self, *configs: Config) -> None:
        super().__init__(every_seconds=0.3)
        self._commits, self._round = [config.checkpoint / "commits" for config in configs], 0
        self._folder = configs[0].feed
        self._folder.mkdir()
        self.us = ZERO_US
        self.fed: Counter[tuple[str, int]] = Counter()
        """Rows by split and start of the window, without the bad clock's."""

    def put(self, rows: list[tuple[str, int]]) -> None:
        part = self._folder / ".part"
        part.write_text("".join(f"{json.dumps({'split': split, 'us': us})}\n" for split, us in rows))
        part.rename(self._folder / f"{self._round:06}.json")
        self._round += 1
        self.fed.update((split, us // MINUTE_US * MINUTE_US) for split, us in rows if us != BAD_US)

    def sums(self, begin_us: int, end_us: int) -> Windows:
        """The windows of a range of time, as a batch job over all fed rows counts them."""
        return sorted(window for window in self.fed.items() if begin_us <= window[0][1] < end_us)

    def feed(self) -> None:
        if self._round > FILES_A_BATCH * (min(map(newest, self._commits)) + AHEAD):
            return
        # Every third partition has no row.
        if (self.us - ZERO_US) // PARTITION_US % 3 == 2:
            self.us += PARTITION_US
        if self._round == 1:
            self.put([("idle", self.us), ("slow", BAD_US)])
        self.put([("fast", self.us + BEHIND_US), ("slow", self.us), ("slow", self.us + 7_000_000)])
        self.us += MINUTE_US
