"""A running audit: takes rows, in any order across splits, and makes a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from lowmark.integration.errors import AuditImpossible
from lowmark.watermark import WatermarkStrategy, duration_us
from lowmark.watermark.errors import shown
from lowmark.watermark.moment import MILLISECOND_US
from lowmark.watermark.printable import counted
from lowmark.watermark.replay.advice import advise
from lowmark.watermark.replay.profile import SplitProfile
from lowmark.watermark.replay.replay import Numbers, Replay
from lowmark.watermark.replay.report import AuditReport, outcomes, split_reports
from lowmark.watermark.strategy import FUTURE_GUARD_US, Duration

from . import ROWS
from .cuts import Cut
from .event_time import EventTimes

_SECOND_US = 1_000_000
_DELAYS_US = tuple(seconds * _SECOND_US for seconds in (0, 10, 60, 600, 3_600))
_FEW_BATCHES = 10  # with fewer batches, the report says that they show little
_IDLE_TIMEOUT_US = 60 * _SECOND_US  # of silence, until the replay leaves a split out, if batches have times


@dataclass(frozen=True, slots=True)
class Question:
    """The delays to try, the length of the query's windows, how batches are cut, and what is read."""

    delays_us: tuple[int, ...] = _DELAYS_US
    window_us: int | None = None  # None: no windows
    rows_per_batch: int | None = None
    trigger_us: int | None = None
    rows: int | None = ROWS  # approximate number of the newest rows; None: no limit
    last_us: int | None = None  # span before now in which rows were written, by their timestamps; None: no limit

    @classmethod
    def of(
        cls,
        delays: Sequence[Duration],
        window: Duration | None,
        rows_per_batch: int | None,
        trigger: Duration | None,
        *,
        rows: int | None,
        last: Duration | None = None,
        prefix: str = "",
    ) -> Question:
        """Make the question of a user; in an error, `prefix` stands before the name of the argument.

        Raises AuditImpossible, InvalidDuration.
        """
        _check_rows(rows_per_batch, f"{prefix}rows_per_batch")
        _check_rows(rows, f"{prefix}rows")
        if rows_per_batch is not None and trigger is not None:
            raise AuditImpossible(f"{prefix}trigger: a number of rows cuts batches already", "leave one of them out.")
        return cls(
            tuple(duration_us(delay, what=f"{prefix}delay") for delay in delays) if delays else _DELAYS_US,
            None if window is None else _length_us(window, f"{prefix}window"),
            rows_per_batch,
            None if trigger is None else _length_us(trigger, f"{prefix}trigger"),
            rows,
            None if last is None else duration_us(last, what=f"{prefix}last"),
        )


def _check_rows(rows: object, what: str) -> None:
    """Refuse a number of rows that is none, or below 1."""
    if rows is not None and not (isinstance(rows, int) and rows > 0):
        raise AuditImpossible(f"{what}: expected 1 or more, got {shown(rows)}", "leave it out, or pass more.")


def _length_us(value: Duration, what: str) -> int:
    us = duration_us(value, what=what)
    if us < MILLISECOND_US:
        raise AuditImpossible(f"{what}: expected a millisecond or more, got {value}", "leave it out, or pass more.")
    return us


@dataclass
class Audit:
    """The splits so far, their profiles and their replay."""

    names: Sequence[str]
    cut: Cut
    question: Question
    now_us: int
    timed: bool  # whether batches have times, so that silence can be seen
    stamped: bool = False  # whether the times of writing are known, if only by the producers' clocks
    empty: Iterable[int] = ()
    _profiles: list[SplitProfile] = field(init=False)
    _replay: Replay = field(init=False)
    rows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._profiles = [SplitProfile() for _ in self.names]
        strategy = WatermarkStrategy()
        # Without times no split becomes idle, and a split without a row would hold for ever.
        if self.timed:
            strategy = strategy.with_idleness(f"{_IDLE_TIMEOUT_US // _SECOND_US} seconds")
        self._replay = Replay(
            self.names,
            delays_us=self.question.delays_us,
            window_us=self.question.window_us,
            strategy=strategy,
            now_us=0 if self.timed else self.now_us,
            empty=self.empty,
        )

    def discover(self, names: Sequence[str]) -> None:
        """Add splits; their numbers continue those of the known splits."""
        self._profiles.extend(SplitProfile() for _ in names)
        self._replay.discover(names)

    def add(self, split: int, keys: Numbers, times: EventTimes, *, written_us: Numbers | None) -> None:
        """Add rows of one split, in the order in which they are read.

        Args:
            keys: the cut's ordering keys, shape (n,).
            written_us: when each row was written, microseconds, if the source tells, shape (n,). If batches have times,
                it is the clock of the future guard.
        """
        count = len(keys)
        clock_us = written_us if self.timed and written_us is not None else np.full(count, self.now_us, np.int64)
        profile = self._profiles[split]
        profile.add(times.times_us, times.timed, latest_us=clock_us + FUTURE_GUARD_US, written_us=written_us)
        profile.null_rows += times.null_rows
        profile.unreadable_rows += times.unreadable_rows
        self.cut.add(split, keys, times.times_us, times.timed)
        self.rows += count

    def end(self, split: int) -> None:
        """Take in that no further row of a split comes. Without a row, the split must not hold the watermark."""
        self.cut.end(split)
        if not self._profiles[split].rows:
            self._replay.leave_out(split)

    def advance(self) -> None:
        """Judge the complete batches."""
        batches = self.cut.drain()
        if batches is not None:
            self._replay.take(batches)

    def why_no_times(self) -> str | None:
        """Count the rows without an event time, and with an unusable one of each kind; None: a row has a usable one."""
        if any(profile.first_us is not None for profile in self._profiles):
            return None
        nulls = sum(profile.null_rows for profile in self._profiles)
        broken = sum(profile.unreadable_rows for profile in self._profiles)
        far = self.rows - nulls - broken
        return (
            f"{nulls:,} have none, {broken:,} one that cannot be read, {far:,} one from before 1970 or from the future"
        )

    def _caveats(self) -> list[str]:
        made = []
        if not self.timed:
            made.append(
                "there are no append times, so no split becomes idle in this replay. With with_idleness, lowmark keeps "
                "fewer rows than shown"
            )
        count = self._replay.batches
        if count >= _FEW_BATCHES:
            return made
        were = "was" if count == 1 else "were"
        told = f"there {were} {counted(count, 'batch')} only, and in the first two no row can be late"
        return [*made, f"{told}: a shorter --trigger or fewer --rows-per-batch say more"]

    def report(self, *, what: str, order: str, event_time: str, complete: bool, notes: Sequence[str]) -> AuditReport:
        """Judge the remaining rows and make the report; no row can be added afterwards."""
        self.cut.end_all()
        self.advance()
        replay = self._replay
        replay.finish()
        splits = split_reports(replay, self._profiles, appended=self.timed or self.stamped)
        smallest_us = replay.native.smallest_delay_us
        return AuditReport(
            what=what,
            order=order,
            event_time=event_time,
            complete=complete,
            window_us=self.question.window_us,
            rows=replay.rows,
            batches=replay.batches,
            splits=splits,
            native=outcomes(replay.native, replay.names),
            lowmark=outcomes(replay.lowmark, replay.names),
            smallest_delay_us=smallest_us,
            smallest_kept_rows=replay.native.kept_at(smallest_us),
            before_epoch_rows=replay.before_epoch_rows,
            advice=advise({split.name: (split.profile, split.empty_for_us) for split in splits}, _IDLE_TIMEOUT_US),
            notes=(*notes, *self._caveats()),
            moments=tuple(replay.moments),
        )
