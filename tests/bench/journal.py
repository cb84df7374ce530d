"""The journal of `lowmark serve`: the time to write each kind of change, and the time of a start.

    python -m tests.bench.journal [--tasks 1000 200000] [--writes 2000] [--seconds 40] [--folder /var/tmp]

    N replies     N random tasks of all sources report a low watermark
    a round       all tasks of one source report a low watermark
    100 leave     100 random tasks leave, as lost tasks do
    all register  every task begins a new run

A write is the time from the change in memory to its sync on the disk. `loop` is the part of a write that encodes the
rows: it runs in the server's event loop. The longest write has the checkpoint of the WAL.

A start copies the files as a killed process leaves them (the WAL is not in the database yet), reads them, and makes a
coordinator. The folder must be on the disk to measure, because a sync costs nothing on a file system in memory.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from lowmark.integration.coordinator.journal import Journal
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskDeregistered, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings

from tests.watermark.tasks.coordinator_world import snapshot_of

TASKS_OF_A_SOURCE = 100
START_US = 1_767_268_800_000_000


class Tasks:
    """A coordinator whose tasks have all reported a low watermark, and the changes that are measured."""

    def __init__(self, number: int) -> None:
        self.coordinator = LowWatermarkCoordinator(Settings(lease_us=7 * 24 * 3_600_000_000))
        self.ids = [TaskId("job", f"s-{n // TASKS_OF_A_SOURCE}", str(n)) for n in range(number)]
        self._left: list[TaskId] = []
        self._now_us, self._runs, self._random = START_US, dict.fromkeys(self.ids, 0), Random(number)
        self.register(self.ids)
        self._now_us += 2_000_000
        self.coordinator.handle(Tick(), self._now_us)
        self.reply(self.ids)

    def register(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self._runs[task] += 1
            self.coordinator.handle(TaskRegistered(task, self._token(task)), self._now_us)

    def reply(self, tasks: Iterable[TaskId]) -> None:
        self._now_us += 1
        for task in tasks:
            said = ReplyLowWatermark(*task.parts, self._now_us, self._now_us, self._token(task))
            self.coordinator.handle(said, self._now_us)

    def reply_some(self, number: int) -> None:
        self.reply(self._random.sample(self.ids, number))

    def reply_of_a_source(self) -> None:
        first = self._random.randrange(0, len(self.ids), TASKS_OF_A_SOURCE)
        self.reply(self.ids[first : first + TASKS_OF_A_SOURCE])

    def register_all(self) -> None:
        self.register(self.ids)

    def leave_some(self) -> None:
        """Let 100 tasks leave, until ``come_back``."""
        for task in self._random.sample(self.ids, 100):
            self.coordinator.handle(TaskDeregistered(task, self._token(task)), self._now_us)
            self._left.append(task)

    def come_back(self) -> None:
        self.register(self._left)
        self.reply(self._left)
        self._left.clear()

    def _token(self, task: TaskId) -> str:
        return f"run-{self._runs[task]:06}-{task.task_id}-of-36-characters"[:36]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.journal", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--writes", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each kind of change, at most")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    for number in given.tasks:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measured(number, given.writes, given.seconds, Path(folder))
    return 0


def measured(number: int, writes: int, seconds: float, folder: Path) -> None:
    tasks, journal = Tasks(number), Journal(folder / "journal" / "j")
    journal.write(tasks.coordinator.take_changes())
    kinds: dict[str, Callable[[], None]] = {
        f"{some:,} replies": partial(tasks.reply_some, some)
        for some in sorted({1, 100, 1_000, number})
        if some <= number
    }
    kinds |= {
        "a round": tasks.reply_of_a_source,
        "100 leave": tasks.leave_some,
        "all register": tasks.register_all,
    }
    print(f"{number:,} tasks  writes    p50 ms     p99 ms    longest   loop p50   loop p99", flush=True)
    for kind, change in kinds.items():
        whole, loop, began = list[float](), list[float](), time.perf_counter()
        while len(whole) < writes and (len(whole) < 3 or time.perf_counter() - began < seconds):
            change()
            at = time.perf_counter()
            rows = tasks.coordinator.take_changes()
            made = time.perf_counter()
            journal.write(rows)
            loop.append(made - at)
            whole.append(time.perf_counter() - at)
            tasks.come_back()
            journal.write(tasks.coordinator.take_changes())
        print(f"{kind:16}  {len(whole):6}  {line(whole, loop)}", flush=True)
    again = folder / "again"
    shutil.copytree(folder / "journal", again)
    size = sum(file.stat().st_size for file in again.iterdir())
    began = time.perf_counter()
    copy = Journal(again / "j")
    kept = copy.read()
    read = time.perf_counter() - began
    found = LowWatermarkCoordinator.restore(kept, now_us=START_US + 10**12)
    took = time.perf_counter() - began
    assert snapshot_of(found) == snapshot_of(tasks.coordinator), "the journal does not have the whole state"
    print(f"a start: read {read:.3f} s, whole {took:.2f} s, {size:,} bytes on the disk", flush=True)
    copy.close()
    journal.close()


def line(whole: list[float], loop: list[float]) -> str:
    shown = [at(whole, 0.5), at(whole, 0.99), max(whole), at(loop, 0.5), at(loop, 0.99)]
    return "  ".join(f"{1e3 * each:9.2f}" for each in shown)


def at(spent: list[float], share: float) -> float:
    return sorted(spent)[min(len(spent) - 1, int(share * len(spent)))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
