"""Runs `lowmark serve`: one event loop, from the start of the process to a signal."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from pathlib import Path

from lowmark.integration.process.clock import SteadyClock
from lowmark.watermark.tasks.coordinator import Settings

from .access import Door
from .journal import Journal, default_journal
from .server import CoordinatorServer, restore, serve


def run_coordinator(
    door: Door,
    settings: Settings,
    *,
    journal: Path | None,
    ready: Callable[[str, Path], None],
) -> signal.Signals:
    """Serve until SIGINT or SIGTERM comes, and return the signal. Call it in the main thread.

    Args:
        journal: the file that keeps the state; None: the default for this address.
        ready: called with address and journal once calls are answered.

    Raises as `serve`, and:
        JournalRefused: the journal cannot be read, or another coordinator has it.
    """
    door.check()  # before any file is made
    path = default_journal(door.address) if journal is None else journal.absolute()
    kept = Journal(path)
    came: list[signal.Signals] = []

    async def run() -> None:
        clock, loop, stop = SteadyClock(), asyncio.get_running_loop(), asyncio.Event()

        def end(number: signal.Signals) -> None:
            came.append(number)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        rules = restore(kept, clock.now_us(), settings)
        kept.write(rules.take_changes())  # fails early if the journal cannot be written
        coordinator = CoordinatorServer(rules, clock.now_us, journal=kept)
        await serve(coordinator, door, stop=stop, ready=lambda address: ready(address, path))

    # A write makes many objects at once, and searching them and all modules for garbage would make calls wait.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        asyncio.run(run())
    finally:
        kept.close()
    return came[0]
