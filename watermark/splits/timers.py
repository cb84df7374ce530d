"""The timers of one stream's splits: when a silence is too long.

Two timers run for a split. The idle timer measures its silence (``idleness.py``). The grace limits how long a new split
without a watermark is waited for, if the strategy sets a grace or the split is known to be empty. A child of a
reshard is not timed while a parent may still deliver.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.watermark.duration import format_duration_us, rough_duration_us
from lowmark.watermark.state import LEFT_OUT, IdleClock, SplitId, SplitState
from lowmark.watermark.strategy import WatermarkStrategy

from .idleness import Idleness, NeverIdle
from .lineage import Lineage
from .snapshot import StreamSnapshot
from .split_reports import SplitReports

KNOWN_EMPTY_GRACE_US = 60_000_000
"""How long a silent new split that is known to be empty may hold, unless the strategy sets a grace: 1 minute."""


@dataclass(slots=True)
class SplitRecord:
    """Notes on a split; the coalescer has the state and the watermark."""

    pending_since_us: int
    why: str  # the reason for its state
    waits: bool = False  # whether it is a silent child whose parents may still deliver, so that it is not timed
    by_grace: bool = False  # whether a grace that the strategy sets left it out the last time, not its idle timeout
    held_back: bool = False  # whether it was paused and not resumed since, also while it is left out
    # The low watermark when waiting rows or a claim brought it in; None: not so, or its rows were reported since.
    came_in_at_us: int | None = None


class Timers:
    """Times the splits of a stream, and the silence of the stream. ``saved`` has its age."""

    def __init__(
        self, strategy: WatermarkStrategy, lineage: Lineage, reports: SplitReports, saved: StreamSnapshot
    ) -> None:
        self._strategy, self._lineage, self._reports = strategy, lineage, reports
        self.records: dict[SplitId, SplitRecord] = {}
        """A record of every split, in the order of discovery."""
        self.idle = _idle_timers(strategy, saved)
        """Measures the silence of each split."""
        clock = strategy.silence_clock
        self._by_time = clock is IdleClock.TIME
        # A grace set by the user limits time itself; the default grace limits silence.
        self.grace_us = KNOWN_EMPTY_GRACE_US if strategy.grace_us is None else strategy.grace_us
        self.grace_clock = clock if strategy.grace_us is None else IdleClock.TIME
        self.grace = Idleness(self.grace_us, self.grace_clock)
        """Measures the silence of each split with a grace."""
        self.last_sign_us: int | None = None
        """See `SplitWatermarks.heard_us`."""

    # -- queries

    @property
    def patience_us(self) -> int | None:
        """See `SplitWatermarks.patience_us`."""
        states = self._lineage.states
        pending, active = states[SplitState.PENDING], states[SplitState.ACTIVE]
        if self._by_time or states[SplitState.PAUSED] or not pending + active:
            return None
        if self.idle.timeout_us is not None:
            return self.idle.timeout_us
        # If all live splits are new and known to be empty, the stream waits for them for their grace at most.
        return self.grace_us if len(self.grace) == pending and not active else None

    @property
    def silent_since_us(self) -> int | None:
        """See `SplitWatermarks.silent_since_us`."""
        patience_us, sign_us, read_us = self.patience_us, self.last_sign_us, self._reports.read_until_us
        if patience_us is None or sign_us is None or read_us is None or read_us - sign_us <= patience_us:
            return None
        waiting = (split for split, rows in self._reports.backlog_rows.items() if rows > 0)
        if any(self._lineage.state(split) in (SplitState.PENDING, SplitState.ACTIVE) for split in waiting):
            return None
        return sign_us

    def grace_left_us(self, split: SplitId, now_us: int) -> int | None:
        """The rest of a split's grace, by the clock of the grace; None: the split has no grace."""
        if self._strategy.grace_us is not None:
            return self.records[split].pending_since_us + self.grace_us - now_us
        read_us = self._reports.read_until_us
        return self.grace.left_us(split, now_us if read_us is None else read_us)

    def next_us(self) -> int | None:
        """The next moment at which a silence may be too long; None: only an event makes one too long."""
        cohort, patience_us, read_us = self._reports.cohort, self.patience_us, self._reports.read_until_us
        moments = [self.idle.next_deadline_us(), self.grace.next_deadline_us()]
        if cohort is not None and self._by_time:
            moments.append(self.idle.deadline_us(cohort.earliest_heard_us))
        if patience_us is not None and self.last_sign_us is not None:
            silent_us = self.last_sign_us + patience_us + 1
            moments.append(silent_us if read_us is None or silent_us > read_us else None)
        return min((us for us in moments if us is not None), default=None)

    def set_idleness(self, strategy: WatermarkStrategy) -> bool:
        """Forget every silence if the strategy has another idleness; the caller starts the timers of all splits.

        A timeout that grows is at its end at once, because the age of the stream is not kept beside another timeout.
        """
        before, self._strategy = self._strategy, strategy
        same = (before.idle_timeout_us, before.progressive) == (strategy.idle_timeout_us, strategy.progressive)
        if not same:
            self.time_each()
            timeout_us = strategy.idle_timeout_us
            self.idle = NeverIdle() if timeout_us is None else Idleness(timeout_us, strategy.silence_clock)
        return not same

    # -- the stream was read

    def read(self, until_us: int) -> None:
        self._reports.read(until_us)
        self.idle.read(until_us)

    def delivered(self, at_us: int) -> None:
        """Note a delivery: time up to this moment counts as silence of the splits that did not deliver."""
        self.grace.delivered(at_us)
        self.idle.delivered(at_us)

    def sign_of_life(self, at_us: int) -> None:
        self.last_sign_us = at_us if self.last_sign_us is None else max(self.last_sign_us, at_us)

    # -- of one split

    def start(self, split: SplitId, at_us: int) -> None:
        """Time a split from ``at_us`` on, unless it is left out."""
        if self._lineage.state(split) not in LEFT_OUT:
            self.idle.heard(split, at_us)
            self.limit_grace(split)

    def stop(self, split: SplitId) -> None:
        self.grace.forget(split)
        self.idle.forget(split)

    def pause(self, split: SplitId, at_us: int) -> None:
        """Count no silence of a split that is not read from now on."""
        self.grace.forget(split)
        self.idle.pause(split, at_us)

    def limit_grace(self, split: SplitId) -> None:
        """Time the grace of a silent new split if the split is known to be empty, or if the strategy sets a grace."""
        record = self.records[split]
        bounded = self._strategy.grace_us is not None or self._reports.backlog_rows.get(split) == 0
        if bounded and self._lineage.state(split) is SplitState.PENDING and not record.waits:
            self.grace.heard(split, record.pending_since_us)
        else:
            self.grace.forget(split)

    def time_each(self) -> None:
        """Dissolve the cohort, and time its splits one by one, before an event of single splits."""
        cohort = self._reports.dissolve()
        if cohort is not None:
            self.idle.heard_all((split, cohort.heard_us(split)) for split in cohort)

    # -- the time is up

    def too_long(self, now_us: int) -> dict[SplitId, str]:
        """Name the splits whose silence is too long, each with the reason; they are not timed any more."""
        named: dict[SplitId, str] = {}
        read_us, backlog_rows, cohort = self._reports.read_until_us, self._reports.backlog_rows, self._reports.cohort
        timeout_us = self.idle.timeout_us
        if read_us is not None and timeout_us is not None:
            if cohort is not None and self.idle.runs_out(cohort.earliest_heard_us, read_us):
                self.time_each()
            for split in self.idle.quiet(read_us, backlog_rows):
                known = "no backlog" if split in backlog_rows else "backlog unknown"
                named[split] = f"silent for more than {self._shown(timeout_us)}, {known}"
                self.grace.forget(split)
                self.records[split].by_grace = False
        # During a long batch nothing else is read: an empty split whose first rows arrive meanwhile must not be passed
        # before these rows can be read.
        until_us = now_us if self._strategy.grace_us is not None else read_us
        for split in () if until_us is None else self.grace.quiet(until_us, {}):
            named[split] = f"new, and silent for more than its grace of {format_duration_us(self.grace_us)}"
            self.idle.forget(split)
            self.records[split].by_grace = self._strategy.grace_us is not None
        return named

    def _shown(self, timeout_us: int) -> str:
        grows = self._strategy.progressive is not None
        timeout = rough_duration_us(timeout_us) if grows else format_duration_us(timeout_us)
        return timeout if self._by_time else f"{timeout} while others delivered"


def _idle_timers(strategy: WatermarkStrategy, saved: StreamSnapshot) -> Idleness | NeverIdle:
    """The idle timers of a new stream, or of a saved stream with its age: a saved stream without an age is old."""
    if strategy.idle_timeout_us is None:
        return NeverIdle()
    young = not saved.splits or saved.young_since_us is not None
    return Idleness(
        strategy.idle_timeout_us,
        strategy.silence_clock,
        grows=strategy.progressive if young else None,
        began_us=saved.young_since_us if saved.splits else None,
    )
