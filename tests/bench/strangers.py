"""The cost of strangers at the port of `lowmark serve`: its memory, and the delay of its members' rounds.

    python -m tests.bench.strangers [--seconds 12] [--connections 40]

Each behaviour of `tests/worlds/strangers.py` is tried on a coordinator with TLS and token, and on a coordinator that
also requires certificates of callers (`--tls-client-ca`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.client import CoordinatorClient
from rich.console import Console
from rich.table import Table

from tests.integration.coordinator.serving import beginning, certificate, report, task, token_file
from tests.servers.coordinator import served
from tests.servers.local import wait_until
from tests.worlds.strangers import BEHAVIOURS, knock


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.strangers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--connections", type=int, default=40)
    given = parser.parse_args(arguments)
    table = Table(title=f"{given.connections} connections of strangers for {given.seconds:g} s each")
    for column in (
        "they send",
        "the coordinator asks for",
        "MiB before",
        "most",
        "3 s after",
        "slowest round, s",
        "ended",
    ):
        table.add_column(column)
    for name in BEHAVIOURS:
        for mutual in (False, True):
            table.add_row(name, "token and certificate" if mutual else "token", *_tried(name, mutual, given))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def _tried(name: str, mutual: bool, given: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="lm") as place:
        folder = Path(place)
        (cert, key), token = certificate(folder), token_file(folder)
        own = (cert, key) if mutual else (None, None)
        options = ["--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(token)]
        options += ["--tls-client-ca", str(cert)] if mutual else []
        with (
            served(folder, *options, address="127.0.0.1:0") as coordinator,
            CoordinatorClient(
                Caller(coordinator.address, tls_ca=cert, token_file=token, tls_cert=own[0], tls_key=own[1])
            ) as client,
        ):
            client.reach()
            client.register(beginning(task(0)))
            before, stop, slowest = coordinator.resident_mib(), threading.Event(), [0.0]

            def rounds() -> None:
                low_us = 0
                while not stop.is_set():
                    low_us, said = low_us + 1, time.monotonic()
                    report(client, task(0), low_us)
                    wait_until(lambda: client.low_us(task(0)) == low_us, "a round", seconds=120)  # noqa: B023
                    slowest[0] = max(slowest[0], time.monotonic() - said)

            inside = threading.Thread(target=rounds)
            inside.start()
            port = int(coordinator.address.rpartition(":")[2])
            ended = knock(port, BEHAVIOURS[name], connections=given.connections, seconds=given.seconds)
            over = time.monotonic()
            wait_until(lambda: time.monotonic() > over + 3, "memory that is given back")
            stop.set()
            inside.join()
            after = coordinator.resident_mib()
            how = ", ".join(f"{times} {what}" for what, times in ended.most_common(3))
            return [str(before), str(coordinator.peak_mib()), str(after), f"{slowest[0]:.1f}", how]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
