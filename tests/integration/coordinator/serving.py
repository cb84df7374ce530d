"""A coordinator in a thread of the test's process, and helpers for its tests."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from lowmark.integration.coordinator.access import Door
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.server import CoordinatorServer, restore, serve
from lowmark.integration.process.clock import SteadyClock
from lowmark.watermark import NotifyNewLowWatermark, TaskId
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, RetrieveLowWatermark, TaskRegistered
from lowmark.watermark.tasks.coordinator import Settings

INTERVAL_US = 20_000
LEASE_US = 30_000_000
TOKEN = "0123456789abcdef0123"


def task(number: int, source: str = "orders", job: str = "job") -> TaskId:
    return TaskId(job, source, str(number))


def beginning(who: TaskId, token: str | None = None, **more: Any) -> TaskRegistered:
    """The registration of a new run of a task."""
    return TaskRegistered(who, uuid.uuid4().hex if token is None else token, **more)


def report(client: CoordinatorClient, who: TaskId, low_us: int | None, **more: Any) -> None:
    client.report(ReplyLowWatermark(*who.parts, 0, low_us, **more))


def reply(
    who: TaskId,
    run: str,
    timestamp: int,
    low_us: int | None,
    left_out: LeftOut | None = None,
    next_wanted_us: int | None = None,
    sequence: int = 0,
    silent_us: int | None = None,
    patience_us: int | None = None,
) -> ReplyLowWatermark:
    return ReplyLowWatermark(
        *who.parts, timestamp, low_us, run, left_out, next_wanted_us, sequence, silent_us, patience_us
    )


def asked(who: TaskId, timestamp: int) -> RetrieveLowWatermark:
    return RetrieveLowWatermark(*who.parts, timestamp)


def rose(who: TaskId, timestamp: int, low_us: int) -> NotifyNewLowWatermark:
    return NotifyNewLowWatermark(*who.parts, timestamp, low_us)


@contextmanager
def serving(
    door: Door,
    *,
    journal: Path | None = None,
    now_us: Callable[[], int] | None = None,
    interval_us: int = INTERVAL_US,
    lease_us: int = LEASE_US,
    over: threading.Event | None = None,
) -> Iterator[str]:
    """Serve a coordinator and yield its address. Raises the errors of its start and end; its end sets ``over``."""
    clock = SteadyClock().now_us if now_us is None else now_us
    ready = threading.Event()
    failure: list[BaseException] = []
    address: list[str] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    settings = Settings(interval_us, lease_us)

    async def run() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        with tempfile.TemporaryDirectory() as folder, closing(Journal(journal or Path(folder) / "j")) as kept:
            coordinator = restore(kept, clock(), settings)
            await serve(CoordinatorServer(coordinator, clock, journal=kept), door, stop=stop, ready=listens)

    def listens(at: str) -> None:
        address.append(at)
        ready.set()

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as failed:  # noqa: BLE001  # raised again in the test's thread
            failure.append(failed)
        ready.set()
        if over is not None:
            over.set()

    running = threading.Thread(target=thread, daemon=True)
    running.start()
    assert ready.wait(20)
    try:
        if failure:
            raise failure[0]
        yield address[0]
    finally:
        if running.is_alive():
            loop, stop = loops[0]
            with suppress(RuntimeError):  # after a failure its loop is closed and the thread about to end
                loop.call_soon_threadsafe(stop.set)
        running.join(20)
    assert not running.is_alive()
    if failure:
        raise failure[0]


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(key), "-out", str(cert),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


def token_file(folder: Path, text: str = TOKEN, name: str = "token") -> Path:
    file = folder / name
    file.touch(mode=0o600)
    file.write_text(f"{text}\n")
    return file


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="lm") as folder:
        yield Path(folder)
