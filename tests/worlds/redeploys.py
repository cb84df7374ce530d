"""Two applications of one job are redeployed in every order, and must emit all their rows.

    python -m tests.worlds.redeploys            prints the table: rows in, rows out, late
    python -m tests.worlds.redeploys --long     also with pauses of one and two minutes

Each application is a Spark driver of its own at a real `lowmark serve`, and counts its rows by windows of ten seconds.
The first is far ahead of the second in event time; during their absence, both get rows between the two times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lowmark.integration.coordinator.access import Caller
from lowmark.integration.coordinator.ask import ask_status, forget_task
from lowmark.integration.errors import CoordinatorUnreachable
from lowmark.watermark.tasks.status import SourceStatus

from tests.integration.coordinator.serving import private_folder
from tests.integration.feed import Feed, us
from tests.servers.local import LOWMARK, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_SECONDS = 2.0
# For waits of about ten seconds, on a busy machine; each check asks the coordinator over a connection of its own.
WAIT = {"seconds": 90, "every_seconds": 0.3}
AWAY = "20s"  # how long the other application waits if the job sets a limit
END = 1_000_000  # the event time after all rows
PAUSE = threading.Event()  # never set
_WIDTH = 10  # rows of a file, a second apart: one window


class Driver:
    """A Spark driver that plays an application; it is kept for the next scene unless it is killed."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir()
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None

    def do(self, *command: str) -> None:
        """Send the driver a command; start the driver if it does not run."""
        if self._process is None:
            with (self._scratch / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.drivers.redeploy", str(self._scratch)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            self._expect("ready")
        assert self._process.stdin is not None
        self._process.stdin.write(f"{' '.join(command)}\n")
        self._process.stdin.flush()
        self._expect(f"did {command[0]}")

    def kill(self) -> None:
        """Kill Python and its JVM at once, like a lost machine."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None

    def _expect(self, answer: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip() == answer, f"{line!r}, expected {answer!r}: {self.log}"

    @property
    def log(self) -> str:
        return (self._scratch / "log").read_text()[-4_000:]


@dataclass
class Application:
    """An application of the job: its driver, feed and output."""

    folder: Path
    coordinator: str
    driver: Driver
    rows: int = 0
    running: bool = False

    def __post_init__(self) -> None:
        self.feed = Feed(cast("SparkSession", None), self.folder / "feed")

    def put(self, files: int) -> None:
        for number in range(self.feed.files, self.feed.files + files):
            self.feed.put(*(("a", 1, number * _WIDTH + n) for n in range(_WIDTH)))
            self.rows += _WIDTH

    @property
    def low_us(self) -> int:
        """Its own low watermark after all its rows."""
        return us(self.feed.files * _WIDTH - 1) - 1_000

    def start(self, queries: int = 2, job_away: str = "") -> None:
        self.driver.do("start", str(self.folder), self.coordinator, str(queries), *([job_away] if job_away else []))
        self.running = True

    def run(self) -> None:
        """Run with AvailableNow, to its end."""
        self.driver.do("run", str(self.folder), self.coordinator, "2")

    def go(self, *, killed: bool = False) -> None:
        if killed:
            self.driver.kill()
        elif self.running:
            self.driver.do("stop")
        self.running = False

    @property
    def out(self) -> int:
        """The number of rows in its emitted windows."""
        files = (self.folder / "out").glob("[0-9]*.json")
        return sum(n for file in files for _, _, n in json.loads(file.read_text()))

    @property
    def query(self) -> str:
        return str(json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"])


@dataclass
class Scene:
    """A job of two applications at a coordinator."""

    folder: Path
    ahead: Application
    behind: Application
    serving: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        command = [
            *(*LOWMARK, "serve", "--json"),
            *("--address", self.ahead.coordinator, "--journal", str(self.folder / "journal")),
            *("--lease", f"{LEASE_SECONDS:g} seconds", "--interval", "50 milliseconds"),
        ]
        with (self.folder / "serve.log").open("ab") as log:
            self.serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.serving.stdout is not None
        assert self.serving.stdout.readline()

    def kill_serve(self) -> None:
        if self.serving is not None:
            self.serving.kill()
            self.serving.wait()
            assert self.serving.stdout is not None
            self.serving.stdout.close()
            self.serving = None

    @property
    def both(self) -> tuple[Application, Application]:
        return self.ahead, self.behind

    def source(self) -> SourceStatus | None:
        try:
            sources = ask_status(Caller(self.ahead.coordinator)).coordinator.sources
        except CoordinatorUnreachable:
            return None
        return sources[0] if sources else None

    def has_come(self, one: Application, low_us: int) -> bool:
        """Whether an application has reported at least this low watermark."""
        source = self.source()
        said = [] if source is None else [each for each in source.tasks if each.task.task_id == one.query]
        return any((each.low_watermark_us or 0) >= low_us for each in said)

    def has_read_all(self, *applications: Application) -> None:
        for one in applications:
            wait_until(lambda: self.has_come(one, one.low_us), f"{one.folder.name} has read all", **WAIT)  # noqa: B023

    def begin(self, job_away: str = "") -> None:
        """Start both; the application ahead reads ten windows, the other five."""
        self.serve()
        for one, files in zip(self.both, (10, 5), strict=True):
            one.put(files)
            one.start(job_away=job_away)
        self.has_read_all(*self.both)
        wait_until(lambda: self.low_us == self.behind.low_us, "the low watermark of both", **WAIT)

    @property
    def low_us(self) -> int | None:
        source = self.source()
        return None if source is None else source.low_watermark_us

    @property
    def away(self) -> int:
        """The number of absent tasks that the others wait for."""
        source = self.source()
        return 0 if source is None else source.away

    def forget(self, one: Application) -> None:
        """Order the others to wait no more for an application that is away."""
        source = self.source()
        assert source is not None
        forget_task(Caller(one.coordinator), next(each.task for each in source.tasks if each.task.task_id == one.query))

    def grow(self) -> None:
        """Add rows; those for the application behind are older than those that the application ahead has read."""
        self.ahead.put(10)
        self.behind.put(4)

    def end(self, *applications: Application) -> None:
        """Close every window of the running applications, and wait until their output stops growing."""
        for one in applications:
            one.feed.put(("a", 1, END), ("a", 1, END + 1))
        wait_until(lambda: (self.low_us or 0) >= us(END), "the end of time", **WAIT)
        seen: dict[str, tuple[int, float]] = {}

        def still() -> bool:
            for one in applications:
                if one.out != seen.get(one.folder.name, (-1, 0))[0]:
                    seen[one.folder.name] = one.out, time.monotonic()
            # Late rows are never emitted. A window that can close does so in the next batch; a busy machine delays it.
            return all(one.out == one.rows or time.monotonic() - seen[one.folder.name][1] > 45 for one in applications)

        wait_until(still, "the last windows", **WAIT)


@dataclass(frozen=True)
class Result:
    """A line of the table."""

    order: str
    between: str
    how: str
    serve_killed: bool
    rows: int
    out: int

    @property
    def late(self) -> int:
        return self.rows - self.out

    def __str__(self) -> str:
        serve = "killed" if self.serve_killed else "runs"
        return (
            f"| {self.order:<46} | {self.between:>9} | {self.how:<6} | {serve:<6} | {self.rows:>5} | {self.out:>5} "
            f"| {self.late:>4} |"
        )


HEAD = (
    f"| {'order':<46} | {'s between':>9} | {'how':<6} | {'serve':<6} | {'in':>5} | {'out':>5} | {'late':>4} |\n"
    f"|{'-' * 48}|{'-' * 11}|{'-' * 8}|{'-' * 8}|{'-' * 7}|{'-' * 7}|{'-' * 6}|"
)


Drivers = tuple[Driver, Driver]


@contextmanager
def two_drivers() -> Iterator[Drivers]:
    with tempfile.TemporaryDirectory() as files:
        made = Driver(Path(files) / "ahead"), Driver(Path(files) / "behind")
        try:
            yield made
        finally:
            for driver in made:
                driver.kill()


@contextmanager
def scene(drivers: Drivers) -> Iterator[Scene]:
    with private_folder() as sockets, tempfile.TemporaryDirectory() as files, ExitStack() as last:
        apart = [Path(files) / name for name in ("ahead", "behind")]
        for folder in apart:
            folder.mkdir()
        applications = [
            Application(folder, f"unix:{sockets}/c.sock", driver) for folder, driver in zip(apart, drivers, strict=True)
        ]
        made = Scene(Path(files), applications[0], applications[1])
        last.callback(made.kill_serve)
        for one in made.both:
            last.callback(one.go)
        try:
            yield made
        except TimeoutError as late:
            raise AssertionError(f"{late}; {made.source()}; {[one.driver.log for one in made.both]}") from late


def redeployed(
    drivers: Drivers,
    away: Sequence[str],
    back: Sequence[str],
    between: float,
    *,
    killed: bool = False,
    serve_killed: bool = False,
) -> Result:
    """Stop applications in one order and start them in another order, `between` seconds apart."""
    with scene(drivers) as job:
        of = {"ahead": job.ahead, "behind": job.behind}
        job.begin()
        for name in away:
            of[name].go(killed=killed)
        wait_until(lambda: job.away == len(away), "the others are waited for", **WAIT)
        if serve_killed:
            job.kill_serve()
        job.grow()
        PAUSE.wait(between)
        if serve_killed:
            job.serve()
        here = [one for name, one in of.items() if name not in away]
        for name in back:
            job.has_read_all(*here)
            of[name].start()
            PAUSE.wait(between)
            here.append(of[name])
        job.has_read_all(*here)
        job.end(*job.both)
        together = sum(one.rows for one in job.both), sum(one.out for one in job.both)
    order = f"{' and '.join(away)} away, {' then '.join(back)} back"
    return Result(order, f"{between:g}", "killed" if killed else "ended", serve_killed, *together)


def one_after_the_other(drivers: Drivers, *, serve_killed: bool = False) -> Result:
    """Run two queries with AvailableNow alternately, three times, each to its end.

    The first time, the other query is expected and was never there; later it is away. Two times are too few: a
    coordinator that waits for no query that is away makes no row late before the third.
    """
    with scene(drivers) as job:
        job.serve()
        for _ in range(3):
            for one, files in zip(job.both, (10, 4), strict=True):
                one.put(files)
                one.run()
                if serve_killed:
                    job.kill_serve()
                    job.serve()
        for one in job.both:
            one.feed.put(("a", 1, END), ("a", 1, END + 1))
        for _ in range(2):  # a query learns the other's low watermark in its next run
            for one in job.both:
                one.run()
        together = sum(one.rows for one in job.both), sum(one.out for one in job.both)
    return Result("AvailableNow, ahead then behind, again and again", "0", "ended", serve_killed, *together)


def scaled_down(drivers: Drivers, how: str, *, serve_killed: bool = False) -> Result:
    """The application behind never returns; the other continues alone after an order or after the time limit."""
    with scene(drivers) as job:
        job.begin(AWAY if how == "job_away" else "")
        job.behind.go()
        job.ahead.put(10)
        job.has_read_all(job.ahead)
        stands_us = job.low_us
        assert stands_us == job.behind.low_us, "it waits for the one that is away"
        if serve_killed:
            job.kill_serve()
            job.serve()
            job.has_read_all(job.ahead)
        if how == "forget":
            job.forget(job.behind)
        elif how == "job_queries=1":
            job.ahead.go()
            job.ahead.start(queries=1)
        job.end(job.ahead)
        return Result(f"behind gone for good, {how}", "0", "ended", serve_killed, job.ahead.rows, job.ahead.out)


def back_and_gone(drivers: Drivers, between: float) -> Result:
    """The application behind is away and comes back, then goes for good; the other goes on alone after an order.

    Both scenes of `redeployed` and `scaled_down` in one, because the start of a scene is most of its cost.
    """
    with scene(drivers) as job:
        job.begin()
        job.behind.go()
        wait_until(lambda: job.away == 1, "the one that is away is waited for", **WAIT)
        job.grow()
        PAUSE.wait(between)
        job.has_read_all(job.ahead)
        job.behind.start()
        job.has_read_all(*job.both)
        job.behind.feed.put(("a", 1, 150), ("a", 1, 151))  # closes the windows of its rows, and is never out itself
        wait_until(lambda: job.behind.out == job.behind.rows, "the windows of the one that came back", **WAIT)
        job.behind.go()
        job.ahead.put(10)
        job.has_read_all(job.ahead)
        assert job.low_us == us(151) - 1_000, "it waits for the one that is away"
        job.forget(job.behind)
        job.end(job.ahead)
        together = sum(one.rows for one in job.both), sum(one.out for one in job.both)
    return Result("behind away and back, then gone for good, forget", f"{between:g}", "ended", False, *together)


BOTH = ("ahead", "behind")


def cases(*, long: bool) -> Iterator[Callable[[Drivers], Result]]:
    """All lines of the table."""
    for serve_killed in (False, True):
        for between in (0, 2, 20, *((60, 120) if long else ())):
            for back in (BOTH, BOTH[::-1]):
                yield partial(redeployed, away=BOTH, back=back, between=between, serve_killed=serve_killed)
            for one in BOTH:
                yield partial(redeployed, away=(one,), back=(one,), between=between, serve_killed=serve_killed)
        for between in (2, *((20, 60, 120) if long else ())):
            for back in (BOTH, BOTH[::-1]):
                yield partial(redeployed, away=BOTH, back=back, between=between, killed=True, serve_killed=serve_killed)
        for one in BOTH:
            yield partial(redeployed, away=(one,), back=(one,), between=2, killed=True, serve_killed=serve_killed)
        yield partial(one_after_the_other, serve_killed=serve_killed)
        yield partial(scaled_down, how="forget", serve_killed=serve_killed)
        yield partial(scaled_down, how="job_queries=1", serve_killed=serve_killed)
        yield partial(scaled_down, how="job_away", serve_killed=serve_killed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Redeploy two applications of one job in every order.")
    parser.add_argument("--long", action="store_true", help="with the pauses of a minute and two, too")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the lines to play, from 0")
    options = parser.parse_args()
    print(HEAD, flush=True)
    late = 0
    with two_drivers() as drivers:
        for number, play in enumerate(cases(long=options.long)):
            if options.only is None or number in options.only:
                result = play(drivers)
                print(result, flush=True)
                late += result.late
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
