"""Two applications of one job are redeployed in every order: are their rows out again, all of them?

    python -m tests.live.redeploys            prints the table: rows in, rows out, late
    python -m tests.live.redeploys --long     with the pauses of a minute and two, too

Each application is a Spark driver of its own at a real `lowmark serve`, and counts its rows by windows of ten seconds.
The first is far ahead of the second in event time; while they are away, both get rows between the two.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lowmark.integration.coordinator.client import ask_status, forget_task
from lowmark.integration.errors import CoordinatorUnreachable
from lowmark.watermark.tasks.status import SourceStatus

from tests.integration.feed import Feed, us
from tests.integration.serving import private_folder
from tests.live.servers import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_SECONDS = 2.0
SECONDS = 90  # for what takes ten, on a machine with more to do
END = 1_000_000  # the event time after all rows
_WIDTH = 10  # rows of a file, a second apart: one window


@dataclass
class Application:
    """One of the two: its driver, its feed and what it put out."""

    folder: Path
    coordinator: str
    process: subprocess.Popen[str] | None = None
    rows: int = 0

    def __post_init__(self) -> None:
        self.feed = Feed(cast("SparkSession", None), self.folder / "feed")

    def put(self, files: int) -> None:
        for number in range(self.feed.files, self.feed.files + files):
            self.feed.put(*(("a", 1, number * _WIDTH + n) for n in range(_WIDTH)))
            self.rows += _WIDTH

    @property
    def low_us(self) -> int:
        """Its own low watermark once all was read."""
        return us(self.feed.files * _WIDTH - 1) - 1_000

    def do(self, command: str) -> None:
        """Have the driver do something, which is begun for it if it does not run."""
        if self.process is None:
            self._begin()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        self._expect(f"did {command.split(maxsplit=1)[0]}")

    def go(self, *, killed: bool) -> None:
        if killed:
            self.kill()
        else:
            self.do("stop")

    def kill(self) -> None:
        """Python and its JVM at once, as with a machine that is gone."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                stream.close()
            self.process = None

    @property
    def out(self) -> int:
        """Rows in windows that it put out."""
        files = (self.folder / "out").glob("[0-9]*.json")
        return sum(n for file in files for _, _, n in json.loads(file.read_text()))

    @property
    def query(self) -> str:
        return str(json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"])

    def _begin(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.redeploy_driver", str(self.folder), self.coordinator],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._expect("ready")

    def _expect(self, answer: str) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip() == answer, f"{line!r}, expected {answer!r}: {(self.folder / 'log').read_text()[-4_000:]}"


@dataclass
class Scene:
    """A job of two applications at a coordinator."""

    folder: Path
    ahead: Application
    behind: Application
    serving: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        command = [
            *(sys.executable, "-c", "from lowmark.integration.cli.main import main; main()", "serve", "--json"),
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
            sources = ask_status(self.ahead.coordinator).coordinator.sources
        except CoordinatorUnreachable:
            return None
        return sources[0] if sources else None

    def has_come(self, one: Application, low_us: int) -> bool:
        """Whether an application has said that it is so far."""
        source = self.source()
        said = [] if source is None else [each for each in source.tasks if each.task.task_id == one.query]
        return any((each.low_watermark_us or 0) >= low_us for each in said)

    def has_read_all(self, *applications: Application) -> None:
        for one in applications:
            wait_until(lambda: self.has_come(one, one.low_us), f"{one.folder.name} has read all", seconds=SECONDS)  # noqa: B023

    def begin(self) -> None:
        """Both run; the one ahead has read ten windows, the other five."""
        self.serve()
        for one, files in zip(self.both, (10, 5), strict=True):
            one.put(files)
            one.do("start 2")
        self.has_read_all(*self.both)
        wait_until(lambda: self.low_us == self.behind.low_us, "the low watermark of both", seconds=SECONDS)

    @property
    def low_us(self) -> int | None:
        source = self.source()
        return None if source is None else source.low_watermark_us

    def grow(self) -> None:
        """Rows come of which those of the one behind are below those that the one ahead has read."""
        self.ahead.put(10)
        self.behind.put(4)

    def end(self, *applications: Application) -> None:
        """Let every window close of those that run, and wait until nothing more comes out."""
        for one in applications:
            one.feed.put(("a", 1, END), ("a", 1, END + 1))
        wait_until(lambda: (self.low_us or 0) >= us(END), "the end of time", seconds=SECONDS)
        seen: dict[str, tuple[int, float]] = {}

        def still() -> bool:
            for one in applications:
                if one.out != seen.get(one.folder.name, (-1, 0))[0]:
                    seen[one.folder.name] = one.out, time.monotonic()
            # What is late never comes out. A window that is to close does so in the next batch.
            return all(one.out == one.rows or time.monotonic() - seen[one.folder.name][1] > 12 for one in applications)

        wait_until(still, "the last windows", seconds=SECONDS)


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


@contextmanager
def scene() -> Iterator[Scene]:
    with private_folder() as sockets, tempfile.TemporaryDirectory() as files, ExitStack() as last:
        apart = [Path(files) / name for name in ("ahead", "behind")]
        for folder in apart:
            folder.mkdir()
        ahead, behind = (Application(folder, f"unix:{sockets}/c.sock") for folder in apart)
        made = Scene(Path(files), ahead, behind)
        last.callback(made.kill_serve)
        for one in made.both:
            last.callback(one.kill)
        yield made


def redeployed(
    away: Sequence[str], back: Sequence[str], between: float, *, killed: bool = False, serve_killed: bool = False
) -> Result:
    """Some go away in one order and come back in another, each so long after the one before."""
    with scene() as job:
        of = {"ahead": job.ahead, "behind": job.behind}
        job.begin()
        for name in away:
            of[name].go(killed=killed)
        if killed:
            time.sleep(LEASE_SECONDS + 0.5)
        if serve_killed:
            job.kill_serve()
        job.grow()
        time.sleep(between)
        if serve_killed:
            job.serve()
        here = [one for name, one in of.items() if name not in away]
        for name in back:
            job.has_read_all(*here)
            of[name].do("start 2")
            time.sleep(between)
            here.append(of[name])
        job.has_read_all(*here)
        job.end(*job.both)
        together = sum(one.rows for one in job.both), sum(one.out for one in job.both)
    order = f"{' and '.join(away)} away, {' then '.join(back)} back"
    return Result(order, f"{between:g}", "killed" if killed else "ended", serve_killed, *together)


def one_after_the_other(*, serve_killed: bool = False) -> Result:
    """Two queries with AvailableNow, each of which ends before the other begins, three times."""
    with scene() as job:
        job.serve()
        for _ in range(3):
            for one, files in zip(job.both, (10, 4), strict=True):
                one.put(files)
                one.do("run 2")
                if serve_killed:
                    job.kill_serve()
                    job.serve()
        for one in job.both:
            one.feed.put(("a", 1, END), ("a", 1, END + 1))
        for _ in range(2):  # a query hears of what the other has published when it runs the next time
            for one in job.both:
                one.do("run 2")
        together = sum(one.rows for one in job.both), sum(one.out for one in job.both)
    return Result("AvailableNow, ahead then behind, again and again", "0", "ended", serve_killed, *together)


def scaled_down(how: str, *, serve_killed: bool = False) -> Result:
    """The one behind is gone for good; the other goes on alone, once it was said so."""
    with scene() as job:
        job.begin()
        job.behind.go(killed=False)
        job.ahead.put(10)
        job.has_read_all(job.ahead)
        stands_us = job.low_us
        assert stands_us == job.behind.low_us, "it waits for the one that is away"
        if serve_killed:
            job.kill_serve()
            job.serve()
            job.has_read_all(job.ahead)
        if how == "forget":
            task = next(each.task for each in job.source().tasks if each.task.task_id == job.behind.query)  # type: ignore[union-attr]
            forget_task(job.ahead.coordinator, task)
        else:
            job.ahead.do("stop")
            job.ahead.do("start 1")
        job.end(job.ahead)
        return Result(f"behind gone for good, {how}", "0", "ended", serve_killed, job.ahead.rows, job.ahead.out)


BOTH = ("ahead", "behind")


def cases(*, long: bool) -> Iterator[Callable[[], Result]]:
    """All lines of the table."""
    for serve_killed in (False, True):
        for between in (0, 2, 20, *((60, 120) if long else ())):
            for back in (BOTH, BOTH[::-1]):
                yield lambda s=serve_killed, t=between, b=back: redeployed(BOTH, b, t, serve_killed=s)  # type: ignore[misc]
            for one in BOTH:
                yield lambda s=serve_killed, t=between, o=one: redeployed((o,), (o,), t, serve_killed=s)  # type: ignore[misc]
        for back in (BOTH, BOTH[::-1]):
            yield lambda s=serve_killed, b=back: redeployed(BOTH, b, 2, killed=True, serve_killed=s)  # type: ignore[misc]
        for one in BOTH:
            yield lambda s=serve_killed, o=one: redeployed((o,), (o,), 2, killed=True, serve_killed=s)  # type: ignore[misc]
        yield lambda s=serve_killed: one_after_the_other(serve_killed=s)  # type: ignore[misc]
        for how in ("forget", "job_queries=1"):
            yield lambda s=serve_killed, h=how: scaled_down(h, serve_killed=s)  # type: ignore[misc]


def main() -> int:
    parser = argparse.ArgumentParser(description="Redeploy two applications of one job in every order.")
    parser.add_argument("--long", action="store_true", help="with the pauses of a minute and two, too")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the lines to play, from 0")
    options = parser.parse_args()
    print(HEAD, flush=True)
    late = 0
    for number, play in enumerate(cases(long=options.long)):
        if options.only is None or number in options.only:
            result = play()
            print(result, flush=True)
            late += result.late
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
