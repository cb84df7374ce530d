"""`lowmark serve` as a process with an injected error: it continues from its journal or ends with the error at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient
from lowmark.integration.coordinator.journal import Journal
from lowmark.integration.coordinator.server import restore
from lowmark.watermark import TaskId
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.rounds import SourceRounds

from tests.failpoints.inject import Failpoint, Fault, name_of
from tests.integration.coordinator.serving import beginning, private_folder, report, task
from tests.servers.local import ROOT, wait_until

SECONDS = 10  # the limit for its recovery or its end
PLACES = ("watermark/tasks", "integration/coordinator")


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as made:
        yield made


@contextmanager
def served(folder: Path, fault: Fault) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tests.failpoints.inject", "serve", "--json", "--address", f"unix:{folder}/c.sock",
            "--journal", str(folder / "state" / "journal"), "--interval", "50 milliseconds",
        ],
        cwd=ROOT,
        env={**os.environ, **Failpoint(PLACES, fault, str(folder)).variable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("function", [SourceRounds.begin, LowWatermarkCoordinator.take_changes])
def test_an_error_in_a_message_costs_no_low_watermark(folder: Path, function: Callable[..., object]) -> None:
    lows: list[int] = []

    def hear(_task: TaskId, low_us: int) -> None:
        lows.append(low_us)

    with served(folder, Fault(name_of(function), 2, "MemoryError", after=True)) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        with CoordinatorClient(Caller(address), on_low=hear) as client:
            for number in range(2):
                client.register(beginning(task(number), expected_tasks=2))
            for low_us in (1, 2, 3):
                for number in range(2):
                    report(client, task(number), low_us)
                wait_until(lambda low_us=low_us: lows[-1:] == [low_us], "it is heard", seconds=SECONDS)  # type: ignore[misc]
        status = ask_status(Caller(address))
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=SECONDS)[1]
    assert lows == sorted(lows)
    assert status.begun_again is not None
    assert status.begun_again.why.startswith("MemoryError: injected")
    assert "began again from its journal" in log
    assert "Traceback" in log
    journal = Journal(folder / "state" / "journal")
    assert restore(journal, 0).low_watermark_us("job", "orders") == 3
    journal.close()


@pytest.mark.slow
def test_an_error_before_it_listens_ends_it_with_the_error(folder: Path) -> None:
    with served(folder, Fault(name_of(Journal.write), 1, "KeyError", after=True)) as process:
        _, log = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "KeyError" in log
    assert "injected" in log
