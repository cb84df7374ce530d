"""SIGKILLs of clients of Spark Connect and of their server, at random moments of a query; then its windows are checked.

python -m tests.live.connect_kills [KILLS] [SEED]

Kills the client and the server KILLS times each, in a random order; a killed server takes its client along. Each time
rows come before the kill and after it, and a new client goes on from the checkpoint. In the end every window of every
row must be there, once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.live.servers import Process, free_ports, wait_until
from tests.live.test_connect import Client, Orders, jvm_of
from tests.live.torture import PAUSE

KILLS, SEED = 10, 11


def server_on(port: int, folder: Path, number: int) -> Process:
    """Start a server, with a folder of its own for its own query."""
    place = folder / f"server-{number}"
    place.mkdir()
    log = place / "log"
    command = [sys.executable, "-m", "tests.live.connect_app", "server", str(place), str(port)]
    server = Process("Connect's server", command, log)
    server.start(lambda: "ready" in log.read_text())
    return server


def planned_batches(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoint" / "offsets").glob("*")}


def has_planned_another(folder: Path, before: set[str]) -> bool:
    return not planned_batches(folder) <= before


def play(folder: Path, kills: int, seed: int) -> None:
    """Kill, and check the windows.

    Raises:
        AssertionError: a window is missing, wrong or came twice.
    """
    chance, orders, [port] = random.Random(seed), Orders(folder), free_ports(1)
    victims = ["client", "server"] * kills
    chance.shuffle(victims)
    server, known = server_on(port, folder, 0), chance.choice([(), ("unknown",)])
    try:
        for number, victim in enumerate(victims, 1):
            client = Client(folder, port, *known)
            client.starts()
            orders.put(chance.randrange(2, 6))
            planned = planned_batches(folder)
            wait_until(partial(has_planned_another, folder, planned), "a batch")
            PAUSE.wait(chance.random())  # the moment of the kill
            if victim == "server":
                os.kill(jvm_of(server), signal.SIGKILL)
                server.kill()
            client.kill()
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
    windows = len(orders.expected)
    print(f"{kills} SIGKILLs of the client, {kills} of the server, seed {seed}: {windows} windows, each once")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lowmark-kills-") as place:
        play(Path(place), *map(int, sys.argv[1:2] or [str(KILLS)]), *map(int, sys.argv[2:3] or [str(SEED)]))
