"""The journal of `lowmark serve` compared with SQLite: the time to write each kind of change, and the time of a start.

    python -m tests.bench.journal [--tasks 1000 200000] [--writes 2000] [--seconds 60] [--folder /var/tmp]

    journal     the coordinator's snapshot, written whole; only the changed tasks are encoded anew
    SQLite      a row per task, run and source by an integer key, WAL, synchronous=FULL; one transaction for all changes

Both write the same changes, in a random order of the two, so that another load of the machine meets both:

    N replies     N random tasks of all sources report a low watermark
    a round       all tasks of one source report a low watermark
    100 leave     100 random tasks leave, as lost tasks do
    all register  every task begins a new run

A write is the time from the change in memory to its sync on the disk. `loop` is the part of a write that makes the
bytes or the rows: it runs in the server's event loop. The longest write has the checkpoint of the WAL. A large journal
takes seconds per write, so after three quarters of the seconds `alone` writes with SQLite only, for an honest p99.

A start copies the files as a killed process leaves them (the WAL is not in the database yet), reads them, and makes a
coordinator. The folder must be on the disk to measure, because a sync costs nothing on a file system in memory.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from lowmark.integration.coordinator.journal import Journal
from lowmark.watermark import TaskId
from lowmark.watermark.protocol import ReplyLowWatermark, TaskDeregistered, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator
from lowmark.watermark.tasks.snapshot import EncodedParts, encode, to_json

TASKS_OF_A_SOURCE = 100
START_US = 1_767_268_800_000_000
SCHEMA = "CREATE TABLE part (number INTEGER PRIMARY KEY, kind TEXT, job TEXT, source TEXT, state TEXT)"
PUT = "REPLACE INTO part VALUES (?, ?, ?, ?, ?)"
GONE = "DELETE FROM part WHERE number = ?"
Key = tuple[Any, ...]
Changes = list[tuple[Key, str | None]]


class Tasks:
    """A coordinator whose tasks have all reported a low watermark, and the changes that are measured."""

    def __init__(self, number: int) -> None:
        self.coordinator = LowWatermarkCoordinator(lease_us=7 * 24 * 3_600_000_000)
        self.ids = [TaskId("job", f"s-{n // TASKS_OF_A_SOURCE}", str(n)) for n in range(number)]
        self._now_us, self._runs, self._random = START_US, dict.fromkeys(self.ids, 0), Random(number)
        self.register(self.ids)
        self.tick()
        self.reply(self.ids)

    def tick(self) -> None:
        self._now_us += 2_000_000
        self.coordinator.handle(Tick(), self._now_us)

    def register(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self._runs[task] += 1
            self.coordinator.handle(TaskRegistered(task, self._token(task)), self._now_us)

    def reply(self, tasks: Iterable[TaskId]) -> None:
        self._now_us += 1
        for task in tasks:
            said = ReplyLowWatermark(*task.parts, self._now_us, self._now_us, self._token(task))
            self.coordinator.handle(said, self._now_us)

    def leave(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self.coordinator.handle(TaskDeregistered(task, self._token(task)), self._now_us)

    def some(self, number: int) -> list[TaskId]:
        return self._random.sample(self.ids, number)

    def of_a_source(self) -> list[TaskId]:
        first = self._random.randrange(0, len(self.ids), TASKS_OF_A_SOURCE)
        return self.ids[first : first + TASKS_OF_A_SOURCE]

    def _token(self, task: TaskId) -> str:
        return f"run-{self._runs[task]:06}-{task.task_id}-of-36-characters"[:36]


class InSqlite:
    """The state in SQLite: each part of a coordinator (a task, a run, a source) in a row, by a number of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers: dict[Key, int] = {}
        self._retired = OrderedDict[Any, None]()  # a dict would search longer for each oldest run
        self._last = 0
        self._base = opened(path)
        self._base.execute(SCHEMA)

    def changed(self, coordinator: LowWatermarkCoordinator) -> Callable[[], Changes]:
        """Note the changed parts; the result encodes them, None for a part that has gone."""
        sources, leases = list(coordinator._encoded_sources._changed), coordinator._leases
        runs = list(leases._encoded_runs._changed)
        tasks = [(key, list(coordinator._sources[key]._encoded_tasks._changed)) for key in sources]

        def encoded() -> Changes:
            made: Changes = []
            for key, names in tasks:
                rounds = coordinator._sources[key]
                made.append((("source", *key), to_json(rounds._own_snapshot())))
                made += [(("task", *key, name), rounds._encoded_task(name)) for name in names]
            made += [(("run", *run.parts), leases._encoded_run(run)) for run in runs]
            while (gone := next(iter(self._retired), None)) is not None and gone not in leases._retired:
                del self._retired[gone]
                made.append((("retired", "", "", gone), None))
            ended = list(takewhile(lambda each: each not in self._retired, reversed(leases._retired)))
            for each in reversed(ended):
                self._retired[each] = None
                made.append((("retired", "", "", each), leases._retired[each]))
            return made

        return encoded

    def write(self, changes: Changes) -> None:
        rows, gone = list[tuple[Any, ...]](), list[tuple[int]]()
        for key, text in changes:
            if text is None:
                gone.append((self._numbers.pop(key),))
                continue
            number = self._numbers.get(key)
            if number is None:
                self._last = number = self._numbers[key] = self._last + 1
            rows.append((number, *key[:3], text))
        rows.sort()  # in the order of the database's pages
        self._base.execute("BEGIN IMMEDIATE")
        self._base.executemany(PUT, rows)
        self._base.executemany(GONE, gone)
        self._base.execute("COMMIT")


def opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("PRAGMA cache_size=-65536")
    return base


def read_sqlite(path: Path) -> bytes:
    """The rows as a snapshot of the coordinator."""
    base = opened(path)
    parts: dict[str, list[str]] = {"source": [], "run": [], "retired": []}
    tasks: dict[tuple[str, str], list[str]] = {}
    sources = list[tuple[str, str, str]]()
    for kind, job, source, text in base.execute("SELECT kind, job, source, state FROM part ORDER BY number"):
        if kind == "task":
            tasks.setdefault((job, source), []).append(text)
        elif kind == "source":
            sources.append((job, source, text))
        else:
            parts[kind].append(text)
    base.close()
    whole = [f'{text[:-1]},"tasks":[{",".join(tasks[job, source])}]}}' for job, source, text in sources]
    return encode(
        f'{{"lost":0,"runs":[{",".join(parts["run"])}],"retired":[{",".join(parts["retired"])}],'
        f'"sources":[{",".join(whole)}],"groups":[],"group_of":[],"spoke_us":[]}}'
    )


def read_journal(path: Path) -> bytes:
    journal = Journal(path)
    try:
        state = journal.read()
        assert state is not None, "it was written"
        return state
    finally:
        journal.close()


def drain(coordinator: LowWatermarkCoordinator) -> None:
    """Encode all changes, as a snapshot does, without the bytes of a snapshot."""
    parts: list[EncodedParts[Any]] = [coordinator._leases._encoded_runs, coordinator._encoded_sources]
    while coordinator.encode(len(coordinator._leases)):
        pass
    for part in parts:
        part.encode(len(part._changed))


@dataclass
class Spent:
    """Seconds of the writes of one way."""

    whole: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)

    def add(self, began: float, made: float, over: float) -> None:
        self.loop.append(made - began)
        self.whole.append(over - began)

    def line(self) -> str:
        whole, loop = sorted(self.whole), sorted(self.loop)
        last = len(whole) - 1
        shown = [whole[len(whole) // 2], whole[min(last, int(0.99 * len(whole)))], whole[-1]]
        shown += [loop[len(loop) // 2], loop[min(last, int(0.99 * len(loop)))]]
        return f"{len(whole):6}  " + "  ".join(f"{1e3 * each:9.2f}" for each in shown)


class Pair:
    """A journal and a database, both with the state of the same coordinator."""

    def __init__(self, tasks: Tasks, folder: Path) -> None:
        self._tasks, self._random = tasks, Random(7)
        self._journal, self._base = Journal(folder / "journal" / "j"), InSqlite(folder / "of.sqlite")
        self._base.write(self._base.changed(tasks.coordinator)())
        self._journal.write(tasks.coordinator.snapshot())

    def measure(
        self, change: Callable[[], None], after: Callable[[], None] | None, writes: int, seconds: float
    ) -> list[Spent]:
        spent = [Spent(), Spent(), Spent()]
        began = time.perf_counter()
        while (done := sum(len(each.whole) for each in spent[1:])) < writes:
            passed = time.perf_counter() - began
            if done >= 3 and passed > seconds:
                break
            change()
            self._write(spent, paired=done < 3 or passed < 0.75 * seconds)
            if after is not None:
                after()
                self._write([Spent(), Spent(), Spent()], paired=False)
        return spent

    def _write(self, spent: list[Spent], paired: bool) -> None:
        coordinator, base = self._tasks.coordinator, self._base
        rows = base.changed(coordinator)

        def in_journal() -> None:
            began = time.perf_counter()
            state = coordinator.snapshot()
            made = time.perf_counter()
            self._journal.write(state)
            spent[0].add(began, made, time.perf_counter())

        def in_sqlite() -> None:
            began = time.perf_counter()
            encoded = rows()
            made = time.perf_counter()
            base.write(encoded)
            spent[1 if paired else 2].add(began, made, time.perf_counter())

        ways = [in_journal, in_sqlite] if paired else [in_sqlite]
        self._random.shuffle(ways)
        for way in ways:
            way()
        drain(coordinator)

    def starts(self, folder: Path) -> Iterator[str]:
        """Start from a copy of the files as they are: nothing was closed, and the WAL has the last writes."""
        self._journal.write(self._tasks.coordinator.snapshot())
        whole = self._tasks.coordinator.snapshot()
        for name, read, files in (
            ("journal", read_journal, [self._journal.path]),
            ("SQLite", read_sqlite, list(self._base.path.parent.glob("of.sqlite*"))),
        ):
            again = folder / f"again-{name}"
            again.mkdir(mode=0o700)
            for file in files:
                shutil.copy(file, again)
            size = sum(file.stat().st_size for file in again.iterdir())
            began = time.perf_counter()
            state = read(again / files[0].name.removesuffix("-wal").removesuffix("-shm"))
            got = time.perf_counter()
            found = LowWatermarkCoordinator.restore(state, now_us=START_US + 10**12)
            over = time.perf_counter()
            assert found.snapshot() == whole, f"{name} does not have the whole state"
            yield f"{name:8}  {got - began:8.3f}  {over - began:8.2f}  {size:14,}"

    def close(self) -> None:
        self._journal.close()
        self._base._base.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.journal", description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 200_000])
    parser.add_argument("--writes", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each kind of change, at most")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    for number in given.tasks:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measured(number, given.writes, given.seconds, Path(folder))
    return 0


def measured(number: int, writes: int, seconds: float, folder: Path) -> None:
    tasks = Tasks(number)
    pair = Pair(tasks, folder)

    def reply(some: int) -> None:
        tasks.reply(tasks.some(some))

    def leave() -> None:
        left[:] = tasks.some(100)
        tasks.leave(left)

    def come_back() -> None:
        tasks.register(left)
        tasks.reply(left)

    def a_round() -> None:
        tasks.reply(tasks.of_a_source())

    left: list[TaskId] = []
    kinds: dict[str, tuple[Callable[[], None], Callable[[], None] | None]] = {
        f"{some:,} replies": (partial(reply, some), None) for some in sorted({1, 100, 1_000, number}) if some <= number
    }
    kinds |= {
        "a round": (a_round, None),
        "100 leave": (leave, come_back),
        "all register": (lambda: tasks.register(tasks.ids), None),
    }
    print(f"{number:,} tasks        writes    p50 ms     p99 ms    longest   loop p50   loop p99", flush=True)
    for kind, (change, after) in kinds.items():
        for name, spent in zip(
            ("journal", "SQLite", "alone"), pair.measure(change, after, writes, seconds), strict=True
        ):
            if spent.whole:
                print(f"{kind:16}  {name:8}  {spent.line()}", flush=True)
    print("start              read s   start s   bytes on the disk", flush=True)
    for line in pair.starts(folder):
        print(line, flush=True)
    pair.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
