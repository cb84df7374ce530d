"""The journal of `lowmark serve` compared with SQLite: the time to write one changed task, and the time of a start.

    python -m tests.bench.journal [--tasks 1000 200000] [--writes 300] [--folder /var/tmp]

    journal     the coordinator's snapshot, written whole; only the changed task is encoded anew
    SQLite      a row per task and per source, WAL, synchronous=FULL; writes the rows of the changed task and its source

Both write the changes by a reply of one task, and both starts make a coordinator from the content of the disk. The
folder must be on the disk to measure, because a sync costs nothing on a file system in memory.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from lowmark.integration.coordinator.journal import Journal
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.snapshot import decode, encode

TASKS_OF_A_SOURCE = 100
START_US = 1_767_268_800_000_000
LEAST_SECONDS = 20.0  # no new writes start later, because a large journal takes seconds per write


def watermarks_of(tasks: int) -> tuple[LowWatermarkCoordinator, list[TaskId]]:
    """A coordinator whose tasks have all reported a low watermark."""
    made = LowWatermarkCoordinator(lease_us=24 * 3_600_000_000)
    ids = [TaskId("job", f"s-{n // TASKS_OF_A_SOURCE}", str(n)) for n in range(tasks)]
    for task in ids:
        made.handle(TaskRegistered(task, f"run-{task.task_id}"), START_US)
    made.handle(Tick(), START_US + 2_000_000)
    for task in ids:
        made.handle(said(task, 0), START_US + 2_000_000)
    return made, ids


def said(task: TaskId, number: int) -> ReplyLowWatermark:
    return ReplyLowWatermark(*task.parts, START_US + 2_000_000 + number, START_US + number, f"run-{task.task_id}")


class InSqlite:
    """The state in SQLite: a row per task, a row per source, and a row for the rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self._base.executescript("""
            CREATE TABLE task (source TEXT, task TEXT, state TEXT, PRIMARY KEY (source, task)) WITHOUT ROWID;
            CREATE TABLE source (source TEXT PRIMARY KEY, state TEXT) WITHOUT ROWID;
            CREATE TABLE rest (state TEXT);
        """)

    def _open(self) -> None:
        self._base = sqlite3.connect(self._path, isolation_level=None)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")

    def fill(self, state: bytes) -> None:
        saved = decode(state)
        with closing(self._base.cursor()) as cursor:
            cursor.execute("BEGIN")
            for source in saved.pop("sources"):
                tasks = source.pop("tasks")
                cursor.execute("INSERT INTO source VALUES (?, ?)", (source["source_id"], json.dumps(source)))
                rows = ((source["source_id"], task["task_id"], json.dumps(task)) for task in tasks)
                cursor.executemany("INSERT INTO task VALUES (?, ?, ?)", rows)
            cursor.execute("INSERT INTO rest VALUES (?)", (json.dumps(saved),))
            cursor.execute("COMMIT")

    def write(self, coordinator: LowWatermarkCoordinator, task: TaskId) -> None:
        rounds = coordinator._sources[task.job_id, task.source_id]
        self._base.execute("BEGIN")
        row = (task.source_id, task.task_id, rounds._encoded_task(task.task_id))
        self._base.execute("REPLACE INTO task VALUES (?, ?, ?)", row)
        self._base.execute("REPLACE INTO source VALUES (?, ?)", (task.source_id, json.dumps(rounds._own_snapshot())))
        self._base.execute("COMMIT")

    def start(self) -> LowWatermarkCoordinator:
        self._base.close()
        self._open()
        [(rest,)] = self._base.execute("SELECT state FROM rest")
        tasks: dict[str, list[str]] = {}
        for source, text in self._base.execute("SELECT source, state FROM task"):
            tasks.setdefault(source, []).append(text)
        sources = [
            f'{text[:-1]},"tasks":[{",".join(tasks[source])}]}}'
            for source, text in self._base.execute("SELECT source, state FROM source")
        ]
        whole = f'{rest[:-1]},"sources":[{",".join(sources)}]}}'
        return LowWatermarkCoordinator.restore(encode(whole), now_us=START_US + 9_000_000)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.journal", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--writes", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    print("tasks     what      writes   p50 ms    p99 ms   start s   bytes on the disk", flush=True)
    for tasks in given.tasks:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            for line in measured(tasks, given.writes, Path(folder)):
                print(line, flush=True)
    return 0


def measured(tasks: int, writes: int, folder: Path) -> Iterator[str]:
    coordinator, ids = watermarks_of(tasks)
    journal = Journal(folder / "journal" / "of.journal")
    base = InSqlite(folder / "of.sqlite")
    first = coordinator.snapshot()
    journal.write(first)
    base.fill(first)
    lows = {task: coordinator.low_watermark_us(task.job_id, task.source_id) for task in ids[::TASKS_OF_A_SOURCE]}

    def from_journal() -> LowWatermarkCoordinator:
        state = journal.read()
        assert state is not None, "it was written"
        return LowWatermarkCoordinator.restore(state, now_us=START_US + 9_000_000)

    def in_journal(_: TaskId) -> None:
        journal.write(coordinator.snapshot())

    ways: list[tuple[str, Callable[[TaskId], None], Callable[[], LowWatermarkCoordinator], str]] = [
        ("journal", in_journal, from_journal, "journal"),
        ("SQLite", lambda task: base.write(coordinator, task), base.start, "of.sqlite"),
    ]
    for seed, (name, write, start, place) in enumerate(ways):
        chance, spent, number = Random(seed), list[float](), 0
        began = time.perf_counter()
        while number < writes and (number < 5 or time.perf_counter() - began < LEAST_SECONDS):
            number += 1
            task = chance.choice(ids)
            coordinator.handle(said(task, number), START_US + 2_000_000 + number)
            at = time.perf_counter()
            write(task)
            spent.append(time.perf_counter() - at)
        spent.sort()
        at = time.perf_counter()
        again = start()
        took = time.perf_counter() - at
        for task, low_us in lows.items():
            found = again.low_watermark_us(task.job_id, task.source_id)
            assert found is not None, "it goes on"
            assert low_us is None or found >= low_us, "and not back"
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and place in str(file))
        p50, p99 = (1e3 * spent[min(len(spent) - 1, int(share * len(spent)))] for share in (0.5, 0.99))
        yield f"{tasks:8,}  {name:8}  {len(spent):6}  {p50:8.2f}  {p99:8.2f}  {took:8.2f}  {size:18,}"
    journal.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
