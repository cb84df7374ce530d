"""Count and tell the splits that a planner gets no answer for, by one rule for all systems."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import ClassVar

from lowmark.sources.coordinator import SuppressRestarts
from lowmark.sources.metric_group import MetricGroup
from lowmark.watermark import format_time_us
from lowmark.watermark.errors import without_login
from lowmark.watermark.printable import counted

log = logging.getLogger("lowmark")

SAY_AGAIN_SECONDS = 10.0
"""How long the log is quiet about splits that still do not answer: they are asked about every second or two."""
LONGEST_GAP_SECONDS = 10.0
"""The most that counts as silence between two questions, because nobody asks between two triggers of a query."""


class SourceUnavailable(SuppressRestarts, RuntimeError):
    """The system of a source did not answer in time: the base of each connector's error.

    A query that ends with it shows its text in Spark's error; only direct calls, such as `check_source`, raise the
    class itself.
    """

    place: str  # address of the system
    action: str  # what was asked
    after_seconds: float  # for how long it was tried
    cause: str  # the last error
    _fact = (
        "{_system} at {place}: cannot {action}, tried for {after_seconds:.0f} s: {cause:.300}. Nothing was lost: the "
        "query goes on from its checkpoint"
    )
    _hint = "check that it runs and can be reached from here."
    _system: ClassVar[str] = "the source"  # which system it is


class Unanswered:
    """Counts the splits that a planner gets no answer for; the log names some now and then, and `text` says since when.

    `splits` is what the system's splits are called; the counter is called after them.
    """

    def __init__(
        self, system: str, splits: str, metrics: MetricGroup, *, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._system, self._splits = without_login(system), splits
        self._now_seconds = now_seconds
        self._counter = metrics.counter(f"unanswered_{splits}")
        self._since_us = 0
        self._all_silent_at: float | None = None  # when a question without any answer was asked last
        self._said_seconds: float | None = None
        self.text: str | None = None  # what `SplitPlanner.trouble` says; None: nothing is amiss
        self.all_silent_seconds = 0.0  # how long no split has been answered for, though it was asked

    def see(self, silent: int, asked: int, example: str = "", cause: str = "") -> None:
        """Take the outcome of a question about all splits; the cause has no secrets."""
        before, self._all_silent_at = self._all_silent_at, None
        if asked and silent == asked:
            self._all_silent_at = self._now_seconds()
        if before is None or self._all_silent_at is None:
            self.all_silent_seconds = 0.0
        else:
            self.all_silent_seconds += min(self._all_silent_at - before, LONGEST_GAP_SECONDS)
        if not silent:
            self.text = None
            return
        if self.text is None:
            self._since_us = time.time_ns() // 1_000
        self.text = (
            f"{self._system} gives no answer for {silent} of {asked} {self._splits} since "
            f"{format_time_us(self._since_us)}, such as {example}: {without_login(cause):.300}"
        )
        self.tell(silent, example, cause)

    def tell(self, silent: int, example: str, cause: str) -> None:
        """Count and log the silent splits of a question about some splits."""
        if not silent:
            return
        self._counter.inc(silent)
        now = self._now_seconds()
        if self._said_seconds is None or now >= self._said_seconds + SAY_AGAIN_SECONDS:
            self._said_seconds = now
            log.warning(
                "%s: %s cannot be read at present and will be asked about again, such as %s: %s",
                self._system, counted(silent, self._splits.removesuffix("s")), example, without_login(cause)[:300],
            )  # fmt: skip
