"""One audit while it runs: rows of splits go in, in any order across splits, and a report comes out at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.replay.profile import SplitProfile
from lowmark.watermark.replay.replay import Replay
from lowmark.watermark.replay.report import AuditReport, report
from lowmark.watermark.strategy import FUTURE_GUARD_US

from .cuts import Cut
from .event_time import EventTimes

__all__ = ["DELAYS_US", "IDLE_TIMEOUT_US", "Audit", "Question"]

Numbers = npt.NDArray[np.int64]

_SECOND_US = 1_000_000
DELAYS_US = tuple(seconds * _SECOND_US for seconds in (0, 10, 60, 600, 3_600))
"""The delays that are tried where none is named."""
FEW_BATCHES = 10
"""So few batches say little: it is told."""
IDLE_TIMEOUT_US = 60 * _SECOND_US
"""How long a split is silent before lowmark leaves it out in the replay, where time is known."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a user asks of rows.

    Attributes:
        delays_us: the delays to try.
        window_us: length of the query's windows, None without.
        rows_per_batch: or None.
        trigger_us: or None.
    """

    delays_us: tuple[int, ...] = DELAYS_US
    window_us: int | None = None
    rows_per_batch: int | None = None
    trigger_us: int | None = None


@dataclass
class Audit:
    """Rows in, report out.

    Args:
        names: of the splits, by number.
        cut: makes the batches.
        question: what is asked.
        now_us: now, microseconds since the epoch.
        timed: whether batches have a time of their own, so that silence can be told.
        stamped: whether it is known, if only by the producers' clocks, when rows were written.
        empty: numbers of splits that are there and have no row.
    """

    names: Sequence[str]
    cut: Cut
    question: Question
    now_us: int
    timed: bool
    stamped: bool = False
    empty: Iterable[int] = ()
    profiles: list[SplitProfile] = field(init=False)
    replay: Replay = field(init=False)
    rows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.profiles = [SplitProfile() for _ in self.names]
        strategy = WatermarkStrategy()
        # Where no time is known nobody becomes idle, and who has no row at all would hold for ever.
        if self.timed:
            strategy = strategy.with_idleness(f"{IDLE_TIMEOUT_US // _SECOND_US} seconds")
        self.replay = Replay(
            self.names,
            delays_us=self.question.delays_us,
            window_us=self.question.window_us,
            strategy=strategy,
            now_us=0 if self.timed else self.now_us,
            empty=self.empty,
        )

    def discover(self, names: Sequence[str]) -> None:
        """More splits; their numbers go on."""
        self.profiles.extend(SplitProfile() for _ in names)
        self.replay.discover(names)

    def add(
        self, split: int, keys: Numbers, times: EventTimes, *, written_us: Numbers | None, appended: bool = False
    ) -> None:
        """Rows of one split, in the order in which they are read.

        Args:
            split: its number.
            keys: what the cut orders by, shape (n,).
            times: their event times.
            written_us: when each was written, as far as the source says, shape (n,).
            appended: whether that is the broker's word, and so the clock that event times are held against.
        """
        count = len(keys)
        clock_us = written_us if appended and written_us is not None else np.full(count, self.now_us, np.int64)
        profile = self.profiles[split]
        profile.add(times.times_us, times.timed, latest_us=clock_us + FUTURE_GUARD_US, written_us=written_us)
        profile.null_rows += times.null_rows
        profile.unreadable_rows += times.unreadable_rows
        self.cut.add(split, keys, times.times_us, times.timed)
        self.rows += count

    def advance(self) -> None:
        """Judge the batches that are whole."""
        batches = self.cut.drain()
        if batches is not None:
            self.replay.take(batches)

    def _caveats(self) -> list[str]:
        made = []
        if not self.timed:
            made.append(
                "when rows were appended is not known, so no split becomes idle in the replay: a silent one lets "
                "lowmark keep more rows than it would with_idleness"
            )
        count = self.replay.batches
        if count >= FEW_BATCHES:
            return made
        told = f"there were {count} batches only, and in the first two no row can be late"
        return [*made, f"{told}: a shorter --trigger or fewer --rows-per-batch say more"]

    def report(self, *, what: str, order: str, event_time: str, complete: bool, notes: Sequence[str]) -> AuditReport:
        """Judge what is left, and say what was found; nothing can be added any more."""
        self.cut.end_all()
        self.advance()
        self.replay.finish()
        return report(
            self.replay,
            self.profiles,
            what=what,
            order=order,
            event_time=event_time,
            complete=complete,
            window_us=self.question.window_us,
            idle_timeout_us=IDLE_TIMEOUT_US,
            appended=self.timed or self.stamped,
            notes=[*notes, *self._caveats()],
        )
