"""Queries in which a lost or half-handled report loses a row: a world for injected faults.

Two splits advance all the time. In every fourth step a new split has a row with an old time, is silent for two steps
while the others run ahead, and has a row with a slightly newer time. If a service forgets the new split, the low
watermark passes the split, and its second row is dropped. As an operator would, the world restarts an ended query from
its checkpoint, and replaces a dead service.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration import LowWatermarkService
from lowmark.integration.cli import main
from lowmark.sources.worker import WorkerDied
from lowmark.watermark import LowmarkError, WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from typer.testing import CliRunner

from tests.failpoints.failing_source import FailingSource
from tests.integration.coordinator.serving import private_folder
from tests.integration.feed import Feed, Row, start, us, windows
from tests.servers.coordinator import served
from tests.servers.kafka import Record
from tests.servers.local import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.failpoints.inject import Failpoint
    from tests.integration.feed import Ran
    from tests.servers.kafka import Broker

KINDS = ("job", "planner", "python", "read", "serve", "sketch")
"""`wrap` by sketch; `wrap` through Python; `read` on a Kafka broker; two applications of one job at `lowmark serve`."""
ELSEWHERE = ("planner", "serve")
"""As `read` with an error in the planner's process, as `job` with an error in `lowmark serve`; others in the driver."""
STEPS = 9
STEP_SECONDS = 100
BEHIND_SECONDS = 60
END_SECONDS = 100_000
GRACE_SECONDS = 30.0  # longer than two steps, so that a split first seen in a lost report has another row in time
STANDS_AFTER_SECONDS = 45.0  # every action of the world is faster, even on a busy machine
HOLDS_AFTER_ROUNDS = 4  # rounds of rows that let the low watermark rise to the end; two are enough
ENDS_AFTER_SECONDS = 2 * GRACE_SECONDS
LOST = "was lost"  # the message about a report lost by a kill, or by an end without a last report
_ALARMS = ("lowmark_loop_failed", "lowmark_query_failed", "lowmark_query_refused", "lowmark_lost_reports_total")
_WAIT = threading.Event()  # never set


def rows_of(step: int) -> list[Row]:
    """The rows of a step: of the advancing splits, and of a split that is in turn new, silent and back."""
    now = step * STEP_SECONDS
    rows: list[Row] = [("a", 1, now), ("b", 1, now + 1)]
    if step % 4 == 0:
        rows.append((f"n{step}", 1, now - BEHIND_SECONDS))
    if step % 4 == 3:
        rows.append((f"n{step - 3}", 1, now - 3 * STEP_SECONDS - BEHIND_SECONDS + 12))  # in the next window
    return [*rows, *((f"n{before}", 1, now) for before in range(0, step - 3, 4))]


def _as_it_is(row: Any, own_us: int | None) -> int:
    """Return a row's own event time; the call makes the rows pass through Python."""
    del row
    assert own_us is not None
    return own_us


class Application:
    """A query, its rows, and its service.

    Args:
        spark: the session.
        folder: an empty folder for the rows and the checkpoint.
        grace_seconds: how long the low watermark holds after a lost report.

    Attributes:
        emitted: the output by batch, so that a repeated batch counts once.
    """

    finds_splits_first = False  # True if a new split is discovered after a delay, so its rows come first, alone

    def __init__(self, spark: SparkSession, folder: Path, grace_seconds: float) -> None:
        self.spark, self._folder = spark, folder
        self.strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_grace(
            f"{grace_seconds:g} seconds"
        )
        self.emitted: dict[int, list[Row]] = {}
        self.service: LowWatermarkService | None = None
        self.ran: Ran | None = None
        self.begin_to_feed()

    def begin_to_feed(self) -> None:
        self.feed = Feed(self.spark, self._folder / "feed")

    def put(self, rows: Sequence[Row]) -> None:
        self.feed.put(*rows)

    def has_read_all(self, ends: Sequence[dict[str, Any]]) -> bool:
        """Whether a batch with these end offsets has read all rows put so far."""
        return any(end.get("logOffset") == self.feed.files - 1 for end in ends)

    def make_service(self) -> LowWatermarkService:
        return LowWatermarkService(self.spark, metrics_port=0)

    def stream(self, service: LowWatermarkService) -> DataFrame:
        return service.wrap(self.feed.df, name="orders", event_time="ts", split="split", strategy=self.strategy)

    def begin(self) -> Ran:
        if self.service is None:
            self.service = self.make_service()
        counted = windows(self.stream(self.service), "split").where(F.col("start") < END_SECONDS - 1_000)
        return start(counted, str(self._folder / "checkpoint"), emitted=self.emitted)

    def stop_service(self) -> None:
        """Stop the service, which may have failed."""
        if self.service is not None:
            try:
                self.service.stop()
            except Exception as failed:
                if not isinstance(failed, LowmarkError) and "injected:" not in str(failed):
                    raise
            self.service = None

    def said(self) -> dict[str, str]:
        """Return the texts of status, check and metrics on the stream."""
        assert self.service is not None
        try:
            status = str(self.service.explain("orders"))
        except (LowmarkError, TimeoutError) as failed:
            status = f"{type(failed).__name__}: {failed}"
        command = ["check", "--connect", self.service.address, "--patience", "1 second"]
        with urllib.request.urlopen(f"http://127.0.0.1:{self.service.metrics_port}/metrics", timeout=20) as scraped:
            samples = re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", scraped.read().decode(), re.MULTILINE)
        alarms = [name for name, value in samples if name in _ALARMS and float(value) > 0]
        return {"status": status, "check": CliRunner().invoke(main.app, command).output, "metrics": " ".join(alarms)}


class ThroughPython(Application):
    """An application whose rows are measured in Python."""

    def stream(self, service: LowWatermarkService) -> DataFrame:
        self.strategy = self.strategy.with_timestamp_assigner(_as_it_is)
        return super().stream(service)


class OfAJob(Application):
    """One of two applications that share a low watermark."""

    def __init__(self, spark: SparkSession, folder: Path, grace_seconds: float, coordinator: str) -> None:
        self._coordinator = coordinator
        folder.mkdir()
        super().__init__(spark, folder, grace_seconds)

    def make_service(self) -> LowWatermarkService:
        job: dict[str, Any] = {"coordinator": self._coordinator, "job": "billing", "job_queries": 2}
        return LowWatermarkService(self.spark, metrics_port=0, beside=True, **job)


class Reading(Application):
    """An application whose splits are partitions of a topic; a new split is a new partition."""

    finds_splits_first = True

    def __init__(
        self, spark: SparkSession, folder: Path, grace_seconds: float, broker: Broker, failpoint: Failpoint | None
    ) -> None:
        self._broker, self._failpoint = broker, failpoint
        super().__init__(spark, folder, grace_seconds)

    def begin_to_feed(self) -> None:
        self._topic, self._rows = self._broker.create_topic(partitions=2), {"a": 0, "b": 0}

    def put(self, rows: Sequence[Row]) -> None:
        for split, *_ in rows:
            if split not in self._rows:
                self._rows[split] = 0
                self._broker.add_partitions(self._topic, len(self._rows))
        number = [*self._rows].index
        records = [Record("", number(split), key=split, timestamp_ms=us(at) // 1_000) for split, _, at in rows]
        self._broker.produce(self._topic, records)
        for split, *_ in rows:
            self._rows[split] += 1

    def has_read_all(self, ends: Sequence[dict[str, Any]]) -> bool:
        read = {f"{self._topic}/{number}": rows for number, rows in enumerate(self._rows.values())}
        return any(end["positions"] == read for end in ends if "positions" in end)

    def stream(self, service: LowWatermarkService) -> DataFrame:
        source = FailingSource(
            bootstrap_servers=self._broker.bootstrap, topics=[self._topic], columns=["key", "timestamp"],
            discover_every="200 milliseconds",
        )  # fmt: skip
        source.failpoint = self._failpoint
        read = service.read(source, name="orders", strategy=self.strategy)
        return read.select(F.col("timestamp").alias("ts"), F.col("key").cast("string").alias("split"))


class Serving:
    """A process of `lowmark serve` with a failpoint; like a supervisor, the world starts the next one after its end.

    Args:
        folder: a private folder for its socket, journal and log.
        failpoint: of the process.
    """

    def __init__(self, folder: Path, failpoint: Failpoint) -> None:
        self.address = f"unix:{folder}/c.sock"
        self._journal, self._log, self._failpoint = folder / "state" / "journal", folder / "log", failpoint
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "tests.failpoints.inject", "serve", "--address", self.address,
                    "--journal", str(self._journal), "--interval", "50 milliseconds",
                ],
                cwd=ROOT, env={**os.environ, **self._failpoint.variable}, stdout=log, stderr=log,
            )  # fmt: skip

    def ended(self) -> str | None:
        """If the process has ended, return its output, and start the next one."""
        if self._process.poll() is None:
            return None
        said = f"lowmark serve ended with {self._process.returncode}: {self._log.read_text()}"
        self._process = self._begun()
        return said

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


@dataclass
class Outcome:
    """The result of a world.

    Attributes:
        ended: the errors that ended queries, in order.
        stood: whether a query stopped running batches.
        said: the texts of status, check and metrics during each standstill.
        missing: the number of input rows without output, by split.
        wrong: violated rules.
    """

    ended: list[str] = field(default_factory=list)
    stood: bool = False
    said: list[dict[str, str]] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The row of the table for this result."""
        if self.wrong or (self.missing and not self.stood):
            return "wrong"
        if self.stood:
            return "stood and said so"
        return "ended loudly, exact after a restart" if self.ended else "exact"


class World:
    """Some steps of one or two applications, with restarts.

    Args:
        kind: one of `KINDS`.
        spark: the session.
        folder: an empty folder for the rows and the checkpoints.
        broker: for the kinds that read Kafka.
        cut_after: the step after which all queries are stopped and restarted; None: never.
        causes: words; each error that ends a query and each text on a standstill must contain a word.
        grace_seconds: how long the low watermark holds after a lost report.
        failpoint: of a kind `ELSEWHERE`.
        steps: number of steps; with 5, one split is new, silent and back, and another is new in the end.
    """

    def __init__(
        self,
        kind: str,
        spark: SparkSession,
        folder: Path,
        broker: Broker | None = None,
        *,
        cut_after: int | None = None,
        causes: Sequence[str] = (),
        grace_seconds: float = GRACE_SECONDS,
        failpoint: Failpoint | None = None,
        steps: int = STEPS,
    ) -> None:
        self._failpoint, self._steps = failpoint, steps
        self._serving: Serving | None = None
        self._newest: dict[str, int] = {}  # times put so far, by split
        self._kind, self._spark, self._folder, self._broker = kind, spark, folder, broker
        self._cut_after, self._causes, self._grace_seconds = cut_after, causes, grace_seconds
        self._fed: Counter[str] = Counter()
        self.outcome = Outcome()

    def play(self) -> Outcome:
        """Feed all steps, end the stream, and compare."""
        with self._made() as self._all:
            try:
                self._play()
            finally:
                for one in self._all:
                    self._stop(one)
        return self.outcome

    @contextmanager
    def _made(self) -> Iterator[list[Application]]:
        """Create the applications; the last has split b."""
        of: tuple[SparkSession, Path, float] = self._spark, self._folder, self._grace_seconds
        match self._kind:
            case "job":
                with private_folder() as at, served(at) as coordinator:
                    yield self._two(coordinator.address)
            case "python":
                yield [ThroughPython(*of)]
            case "read" | "planner":
                assert self._broker is not None
                yield [Reading(*of, self._broker, self._failpoint)]
            case "serve":
                assert self._failpoint is not None
                with private_folder() as at:
                    self._serving = Serving(at, self._failpoint)
                    try:
                        yield self._two(self._serving.address)
                    finally:
                        self._serving.stop()
            case _:
                yield [Application(*of)]

    def _two(self, coordinator: str) -> list[Application]:
        folders = [self._folder / name for name in ("first", "second")]
        return [OfAJob(self._spark, folder, self._grace_seconds, coordinator) for folder in folders]

    def _play(self) -> None:
        for step in range(self._steps):
            rows = rows_of(step)
            new = [row for row in rows if row[0] not in self._fed]
            first = self._all[0].finds_splits_first and step > 0
            for part in [new, [row for row in rows if row not in new]] if first and new else [rows]:
                self._put(part)
                if not self._settle():
                    return
                self._fed.update(split for split, _, _ in part)
            if step == self._cut_after:
                for one in self._all:
                    self._stop(one)
        deadline, rounds = time.monotonic() + ENDS_AFTER_SECONDS, 0
        while not self.outcome.wrong and time.monotonic() < deadline:
            # The low watermark of a batch closes windows one batch later; after a lost report it holds for a grace.
            self._put([(split, 1, END_SECONDS + rounds) for split in self._fed])
            if not self._settle():
                return
            self._compare()
            if not self.outcome.missing:
                return
            rounds += 1
            if rounds == HOLDS_AFTER_ROUNDS:
                self._hear([LOST, *self._causes])
            _WAIT.wait(0.5)

    # -- actions of an operator

    def _settle(self) -> bool:
        """Wait until all rows are read, with restarts where needed. Returns whether all were read."""
        for one in self._all:
            ends, deadline = len(self.outcome.ended), time.monotonic() + STANDS_AFTER_SECONDS
            while not self._has_settled(one):
                if len(self.outcome.ended) > ends:
                    ends, deadline = len(self.outcome.ended), time.monotonic() + STANDS_AFTER_SECONDS
                if time.monotonic() > deadline:
                    self.outcome.stood = True
                    self._hear(self._causes)
                if self.outcome.wrong or self.outcome.stood:
                    return False
                self._supervise()
                _WAIT.wait(0.05)  # each look costs the JVM a millisecond or two
            if one.ran is not None:
                self._check_lows(one.ran)
        return True

    def _supervise(self) -> None:
        ended = None if self._serving is None else self._serving.ended()
        if ended is not None:
            self._note_text(ended)

    def _has_settled(self, one: Application) -> bool:
        try:
            if one.ran is None:
                one.ran = one.begin()
            return self._is_over(one)
        except Exception as ended:
            if not isinstance(ended, LowmarkError | StreamingQueryException) and "injected:" not in str(ended):
                raise
            self._note_end(one, ended)
        return False

    def _is_over(self, one: Application) -> bool:
        assert one.ran is not None
        query = one.ran.query
        if not query.isActive:
            self._check_lows(one.ran)
            error = query.exception()
            one.ran = None
            if error is not None:
                raise error
            return False
        progress = query.lastProgress
        if progress is None:
            return False
        return one.has_read_all([json.loads(source.endOffset) for source in progress.sources if source.endOffset])

    def _note_end(self, one: Application, ended: Exception) -> None:
        text = str(ended).strip()
        self._note_text(text)
        one.ran = None
        if isinstance(ended, WorkerDied) or "WorkerDied" in text:
            one.stop_service()

    def _note_text(self, text: str) -> None:
        named = [line for line in text.splitlines() if any(cause in line for cause in self._causes)]
        self.outcome.ended.append((named or text.splitlines())[0].strip()[:300])
        if not named:
            self.outcome.wrong.append(f"none of {self._causes} is named: {text}")
        if len(self.outcome.ended) > 5:
            self.outcome.wrong.append("it ends again and again")

    def _stop(self, one: Application) -> None:
        if one.ran is not None:
            with suppress(StreamingQueryException):
                one.ran.query.stop()
            self._check_lows(one.ran)
            one.ran = None
        one.stop_service()

    # -- checks

    def _put(self, rows: Sequence[Row]) -> None:
        self._newest.update((split, at) for split, _, at in rows)
        behind = [row for row in rows if row[0] == "b"]
        if len(self._all) == 1:
            self._all[0].put(rows)
            return
        for one, part in zip(self._all, ([row for row in rows if row not in behind], behind), strict=True):
            one.put(part)

    def _check_lows(self, ran: Ran) -> None:
        """Check that the low watermarks of a run never fall, and never pass the times of the advancing splits."""
        lows = [offset.low_us for offset in ran.heartbeats if offset.low_us is not None]
        most_us = us(min(self._newest["a"], self._newest["b"]))
        if lows != sorted(lows):
            self.outcome.wrong.append(f"the low watermark went back: {lows}")
        if lows and max(lows) > most_us:
            self.outcome.wrong.append(f"the low watermark rose to {max(lows)}, and the splits are at {most_us}")

    def _hear(self, causes: Sequence[str]) -> None:
        """Check during a standstill that status, check and metrics name the true cause.

        A metric names a cause by being the metric for this kind of cause.
        """
        for one in self._all:
            said = one.said()
            self.outcome.said.append(said)
        for where in ("status", "check"):
            if not any(cause in said[where] for said in self.outcome.said for cause in causes):
                self.outcome.wrong.append(f"{where} names none of {causes}: {self.outcome.said}")
        if not any(said["metrics"] for said in self.outcome.said):
            self.outcome.wrong.append(f"no metric tells that something is wrong: {self.outcome.said}")

    def _compare(self) -> None:
        came: Counter[str] = Counter()
        for one in self._all:
            for batch in one.emitted.values():
                for _, split, rows in batch:
                    came[split] += rows
        self.outcome.missing = self._fed - came
        if more := came - self._fed:
            self.outcome.wrong.append(f"came out more often than it went in: {dict(more)}")
