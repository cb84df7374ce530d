"""SIGKILLs of clients of Spark Connect and of their server, at random moments of a query; then its windows are checked.

python -m tests.commands.connect_kills [KILLS] [SEED]

Kills the client and the server KILLS times each, in a random order; a killed server takes its client along. Each time
rows come before the kill and after it, and a new client goes on from the checkpoint. In the end the sink must have
every window of every row, once and with its number of rows; no batch may have planned with an older watermark than the
batch before; and the watermark must have moved with the rows. Twenty kills take seven minutes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

from lowmark.integration.spark.offset_log import OffsetEntry
from lowmark.integration.transport.heartbeat import HeartbeatOffset

from tests.live.test_connect import Client, Orders, jvm_of
from tests.servers.local import Process, free_ports, wait_until
from tests.worlds.torture import PAUSE

KILLS, SEED = 10, 11


def server_on(port: int, folder: Path, number: int) -> Process:
    """Start a server, with a folder of its own."""
    place = folder / f"server-{number}"
    place.mkdir()
    log = place / "log"
    command = [sys.executable, "-m", "tests.drivers.connect_app", "server", str(place), str(port)]
    server = Process("Connect's server", command, log)
    server.start(lambda: "ready" in log.read_text())
    return server


def planned_batches(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoint" / "offsets").glob("*")}


def has_planned_another(folder: Path, before: set[str]) -> bool:
    return not planned_batches(folder) <= before


class Planned:
    """The watermarks that each batch of a query was planned with, kept because Spark removes old entries."""

    def __init__(self, folder: Path) -> None:
        self._offsets = folder / "checkpoint" / "offsets"
        self._by_batch: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Read the entries.

        Raises:
            AssertionError: a batch that was seen before has another watermark now.
        """
        for path in self._offsets.glob("*"):
            if path.name.isdigit():
                found = _watermarks_of(OffsetEntry.parse(path.read_text()))
                known = self._by_batch.setdefault(int(path.name), found)
                assert known == found, f"batch {path.name} was planned anew: {known} before, {found} now"

    def check(self, *, at_least: int) -> int:
        """Return the number of different watermarks of Spark.

        Raises:
            AssertionError: a watermark goes back, a batch was never seen, or the watermark moved too seldom.
        """
        batches = sorted(self._by_batch)
        assert batches == [*range(len(batches))], f"batches were never seen: {batches}"
        for before, after in pairwise(batches):
            was, now = self._by_batch[before], self._by_batch[after]
            assert all(old <= new for old, new in zip(was, now, strict=True)), (
                f"batch {after} goes back behind batch {before}: {was}, {now} (ms of Spark, us of the heartbeat)"
            )
        moved = len({spark_ms for spark_ms, _ in self._by_batch.values()})
        assert moved >= at_least, f"the watermark had {moved} values, expected {at_least} or more"
        return moved


def _watermarks_of(entry: OffsetEntry) -> tuple[int, int]:
    """Spark's watermark in milliseconds, and the heartbeat's in microseconds; 0 without."""
    heartbeats = (HeartbeatOffset.find(offset) for _, offset in entry.sources if offset is not None)
    return entry.watermark_ms or 0, max((each.low_us or 0 for each in heartbeats if each is not None), default=0)


def play(folder: Path, kills: int, seed: int) -> None:
    """Kill, and check the windows.

    Raises:
        AssertionError: a window is missing, wrong or came twice, or a watermark went back or stood still.
    """
    chance, orders, planned, [port] = random.Random(seed), Orders(folder), Planned(folder), free_ports(1)
    victims = ["client", "server"] * kills
    chance.shuffle(victims)
    server, known = server_on(port, folder, 0), chance.choice([(), ("unknown",)])
    try:
        for number, victim in enumerate(victims, 1):
            client = Client(folder, port, *known)
            client.starts()
            orders.put(chance.randrange(2, 6))
            wait_until(partial(has_planned_another, folder, planned_batches(folder)), "a batch")
            PAUSE.wait(chance.random())  # the moment of the kill
            if victim == "server":
                os.kill(jvm_of(server), signal.SIGKILL)
                server.kill()
            client.kill()
            planned.look()
            orders.put(2)
            if victim == "server":
                server = server_on(port, folder, number)
            print(f"{number:2} of {len(victims)}: {victim} killed, {orders.files} files", flush=True)
        client = Client(folder, port, *known)
        client.starts()
        orders.end()
        orders.check(client.ends())
    finally:
        server.stop()
    planned.look()
    moved = planned.check(at_least=kills)
    windows, rows = len(orders.expected), orders.expected.total()
    print(f"{kills} SIGKILLs of the client, {kills} of the server, seed {seed}:")
    print(f"{windows} windows of {rows} rows, each once; the watermark had {moved} values and never went back")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lowmark-kills-") as place:
        play(Path(place), *map(int, sys.argv[1:2] or [str(KILLS)]), *map(int, sys.argv[2:3] or [str(SEED)]))
