"""A query in which a lost or half-handled report costs a row: a world to put faults into.

Each batch is one file. Two splits move on all the time. With every fourth batch a new split says an old time, falls
silent for two batches while the others run ahead, and says a slightly newer one. A service that forgets the new split
lets the low watermark pass it, and its second row is dropped. A query that ends is started again from its checkpoint,
and its service is made anew if it is dead, as an operator would do it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.integration import LowWatermarkService
from lowmark.sources.worker import WorkerDied
from lowmark.watermark import LowmarkError, WatermarkStrategy
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.integration.feed import Feed, Row, start, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.integration.feed import Ran

__all__ = ["KINDS", "Outcome", "World"]

STEPS = 9
STEP_SECONDS = 100
BEHIND_SECONDS = 60
END_SECONDS = 100_000
GRACE_SECONDS = 30.0  # longer than two steps, so that whoever was new in a lost report speaks again within it
STANDS_AFTER_SECONDS = 45.0  # nothing of what the world does takes so long, on a busy machine either
ENDS_AFTER_SECONDS = 2 * GRACE_SECONDS
_WAIT = threading.Event()  # never set

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_grace(f"{GRACE_SECONDS:g} seconds")
Wrap = Callable[[LowWatermarkService, "DataFrame"], "DataFrame"]


def _sketched(service: LowWatermarkService, df: DataFrame) -> DataFrame:
    return service.wrap(df, name="orders", event_time="ts", split="split", strategy=STRATEGY)


def _as_it_is(row: Any, own_us: int | None) -> int:
    """Find the event time of a row where it is, which makes the rows pass through Python."""
    del row
    assert own_us is not None
    return own_us


def _through_python(service: LowWatermarkService, df: DataFrame) -> DataFrame:
    strategy = STRATEGY.with_timestamp_assigner(_as_it_is)
    return service.wrap(df, name="orders", event_time="ts", split="split", strategy=strategy)


KINDS: dict[str, Wrap] = {"sketch": _sketched, "python": _through_python}


def rows_of(step: int) -> list[Row]:
    """The rows of a batch: of splits that move on, and of one that is new, silent or speaks again, by turns."""
    now = step * STEP_SECONDS
    rows: list[Row] = [("a", 1, now), ("b", 1, now + 1)]
    if step % 4 == 0:
        rows.append((f"n{step}", 1, now - BEHIND_SECONDS))
    if step % 4 == 3:
        rows.append((f"n{step - 3}", 1, now - 3 * STEP_SECONDS - BEHIND_SECONDS + 12))  # in the next window
    return [*rows, *((f"n{before}", 1, now) for before in range(0, step - 3, 4))]


@dataclass
class Outcome:
    """What became of a world.

    Attributes:
        ended: the errors with which queries ended, in order.
        stood: what the service said of the stream while nothing moved; None: all moved.
        missing: rows that went in and did not come out, by split.
        wrong: rules that were broken.
    """

    ended: list[str] = field(default_factory=list)
    stood: str | None = None
    missing: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Which row of the table it belongs to."""
        if self.wrong or (self.missing and self.stood is None):
            return "wrong"
        if self.stood is not None:
            return "stood and said so" if self.stood else "wrong"
        return "ended loudly, exact after a restart" if self.ended else "exact"


class World:
    """One query over some batches, with restarts.

    Args:
        spark: the session.
        folder: empty; for the rows and the checkpoint.
        wrap: makes the stream; one of `KINDS`.
        cut_after: the step after which the query is stopped in order and begun again; None: never.
        port: for the metrics; None: none.
    """

    def __init__(self, spark: SparkSession, folder: Path, wrap: Wrap, *, cut_after: int | None = None) -> None:
        self._spark, self._wrap, self._cut_after = spark, wrap, cut_after
        self._checkpoint = str(folder / "checkpoint")
        self._feed = Feed(spark, folder / "feed")
        self._emitted: dict[int, list[Row]] = {}  # by batch, so that one that runs again counts once
        self._service: LowWatermarkService | None = None
        self._ran: Ran | None = None
        self._fed: Counter[str] = Counter()
        self.outcome = Outcome()

    def play(self) -> Outcome:
        """Feed all batches, end the stream, and compare."""
        try:
            for step in range(STEPS):
                self._put(rows_of(step))
                self._settle()
                if self.outcome.stood is not None:
                    return self.outcome
                if step == self._cut_after:
                    self._stop()
            splits = ["a", "b", *(f"n{step}" for step in range(0, STEPS, 4))]
            deadline = time.monotonic() + ENDS_AFTER_SECONDS
            while not self.outcome.wrong and time.monotonic() < deadline:
                # The low watermark of a batch closes windows one batch later; after a lost report it holds for a grace.
                self._put([(split, 1, END_SECONDS + self._feed.files) for split in splits], counted=False)
                self._settle()
                self._compare()
                if not self.outcome.missing:
                    break
                _WAIT.wait(0.5)
        finally:
            self._stop()
        return self.outcome

    # -- what an operator does

    def _begin(self) -> Ran:
        if self._service is None:
            self._service = LowWatermarkService(self._spark, metrics_port=0)
        df = self._wrap(self._service, self._feed.df)
        counted = windows(df, "split").where(F.col("start") < END_SECONDS - 1_000)
        return start(counted, self._checkpoint, emitted=self._emitted)

    def _settle(self) -> None:
        """Wait until the batch is over, whatever has to be started again for it."""
        deadline = time.monotonic() + STANDS_AFTER_SECONDS
        while time.monotonic() < deadline:
            try:
                if self._ran is None:
                    self._ran = self._begin()
                if self._over():
                    return
            except Exception as ended:
                if not isinstance(ended, LowmarkError | StreamingQueryException) and "injected:" not in str(ended):
                    raise
                self._note_end(ended)
                deadline = time.monotonic() + STANDS_AFTER_SECONDS
                if len(self.outcome.ended) > 4:
                    self.outcome.wrong.append("it ends again and again")
                    return
            _WAIT.wait(0.02)
        self.outcome.stood = self._said()

    def _over(self) -> bool:
        assert self._ran is not None
        query = self._ran.query
        if not query.isActive:
            self._keep_lows()
            error = query.exception()
            self._ran = None
            if error is not None:
                raise error
            return False
        progress = query.lastProgress
        if progress is None:
            return False
        ends = [json.loads(source.endOffset) for source in progress.sources if source.endOffset]
        return any(end.get("logOffset") == self._feed.files - 1 for end in ends)

    def _note_end(self, ended: Exception) -> None:
        self.outcome.ended.append(str(ended).strip().splitlines()[-1][:300])
        self._ran = None
        dead = self._service
        if isinstance(ended, WorkerDied) or "WorkerDied" in str(ended):
            self._service = None
            if dead is not None:
                with suppress(LowmarkError):
                    dead.stop()

    def _stop(self) -> None:
        if self._ran is not None:
            with suppress(StreamingQueryException):
                self._ran.query.stop()
            self._keep_lows()
            self._ran = None
        if self._service is not None:
            try:
                self._service.stop()
            except Exception as failed:
                if not isinstance(failed, LowmarkError) and "injected:" not in str(failed):
                    raise
            self._service = None

    # -- what is looked at

    def _put(self, rows: list[Row], *, counted: bool = True) -> None:
        self._feed.put(*rows)
        if counted:
            self._fed.update(split for split, _, _ in rows)

    def _keep_lows(self) -> None:
        """The low watermarks of a run, in order, never fall."""
        assert self._ran is not None
        lows = [offset.low_us for offset in self._ran.heartbeats if offset.low_us is not None]
        if lows != sorted(lows):
            self.outcome.wrong.append(f"the low watermark went back: {lows}")

    def _said(self) -> str:
        assert self._service is not None
        try:
            return str(self._service.explain("orders"))
        except (LowmarkError, TimeoutError) as failed:
            return f"{type(failed).__name__}: {failed}"

    def _compare(self) -> None:
        came: Counter[str] = Counter()
        for batch in self._emitted.values():
            for _, split, rows in batch:
                came[split] += rows
        self.outcome.missing = self._fed - came
        if more := came - self._fed:
            self.outcome.wrong.append(f"came out more often than it went in: {dict(more)}")
