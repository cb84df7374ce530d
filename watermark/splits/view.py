"""Makes the status of a stream from the watermarks of its splits; changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lowmark.watermark.state import IdleClock, SplitId, SplitState, split_order
from lowmark.watermark.strategy import WatermarkStrategy

from .adaptive import AdaptiveBounds
from .by_hand import Mark
from .cause import cause_of, unusable_times
from .coalescer import Coalescer
from .cohort import Cohort
from .history import History
from .idleness import Idleness
from .lineage import Lineage
from .status import Hold, HolderSpell, SplitStatus, StreamStatus, WrongClock, need, utc
from .tally import FutureTally, SplitTally, Tally

_CLOCKS_SHOWN = 10


@dataclass(slots=True)
class SplitRecord:
    """Notes on a split; the coalescer has the state and the watermark."""

    pending_since_us: int
    why: str  # the reason for its state
    heard_us: int | None = None  # when the last batch with rows of the split was planned
    waits: bool = False  # whether it is a silent child whose parents may still deliver, so that it is not timed


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The parts of `SplitWatermarks` from which a status is made.

    Attributes:
        name: name of the stream.
        strategy: the strategy of its watermark.
        coalescer: the low watermark and its holder.
        lineage: states and watermarks of the splits, and the inherited watermarks.
        tally: the counts.
        records: the record of every split, in the order of discovery.
        backlog_rows: unread rows of each split, as far as known.
        grace: the timers of silent new splits with a grace.
        read_until_us: up to when the sources were read; None: not known yet.
        silent_since_us: since when no split delivered; None: the stream is not silent.
        planned_us: when the newest batch was planned.
        filled_us: when the newest batch was planned that had rows of a split.
        moved_at_us: when the low watermark rose last, or began.
        history: who held it.
        cohort: has the numbers of its splits while it is there.
        by_hand: the splits that a person left out.
        bounds: the bounds of the splits, where each has its own.
        idle_timeout_us: the idle timeout of the moment, None where there is none.
    """

    name: str
    strategy: WatermarkStrategy
    coalescer: Coalescer
    lineage: Lineage
    tally: Tally
    records: Mapping[SplitId, SplitRecord]
    backlog_rows: Mapping[SplitId, int]
    grace: Idleness
    read_until_us: int | None
    silent_since_us: int | None
    planned_us: int | None
    filled_us: int | None
    moved_at_us: int | None
    history: History[SplitId]
    cohort: Cohort | None
    by_hand: Mapping[SplitId, Mark]
    bounds: AdaptiveBounds | None = None
    idle_timeout_us: int | None = None

    def status(self, now_us: int, name_of: Callable[[SplitId], str], limit: int | None) -> StreamStatus:
        """The status with all splits, sorted by id, O(n log n); or with the ``limit`` neediest splits, O(n)."""
        coalescer, tally = self.coalescer, self.tally
        holder, stripped = coalescer.holder, sorted(coalescer.stripped, key=split_order)[:limit]
        shown, idle = self._shown(limit), self._idle(limit)
        marked = sorted(self.by_hand, key=split_order)
        names = names_of({*shown, *idle, *marked, *stripped, *(() if holder is None else (holder,))}, name_of)
        hold = self._hold(holder, names, now_us)
        cause, why, what_next = cause_of(hold, unusable_times(tally.counts, tally.newest_us, coalescer.low_us))
        return StreamStatus(
            name=self.name,
            low_watermark_us=coalescer.low_us,
            holder=None if holder is None else names[holder],
            why=why,
            since=utc(self.moved_at_us),
            next=what_next,
            left_out=tuple((names[split], self.records[split].why) for split in idle),
            splits={names[split]: self._split(split) for split in shown},
            states={state.value: count for state, count in self.lineage.states.items()},
            counts=tally.counts,
            regressions=coalescer.regressions,
            returned_late=tally.returned_late,
            native_watermark_us=tally.native_us,
            native_late_rows=tally.native_late_rows,
            batches=tally.batches,
            last_batch_id=tally.last_batch_id,
            passed_over=tuple(names[split] for split in stripped),
            held=tuple(
                HolderSpell(
                    None if spell.holder is None else names.get(spell.holder, name_of(spell.holder)),
                    utc(spell.since_us),
                    utc(spell.until_us),
                )
                for spell in self.history.held(now_us)
            ),
            silent_since=utc(self.silent_since_us),
            cause=cause,
            by_hand=tuple((names[split], str(self.by_hand[split])) for split in marked),
            newest_us=tally.newest_us,
            fastest_us=tally.fastest_us,
            wrong_clocks=tuple(
                _wrong_clock(names.get(split, name_of(split)), tally.future[split])
                for split in heapq.nsmallest(_CLOCKS_SHOWN, tally.future, key=lambda split: -tally.future[split].rows)
            ),
        )

    def _shown(self, limit: int | None) -> list[SplitId]:
        if limit is None:
            return sorted(self.records, key=split_order)
        needs = ((need(state, at_us), split_order(split), split) for split, state, at_us in self.lineage.standings())
        return [split for _, _, split in heapq.nsmallest(limit, needs)]

    def _idle(self, limit: int | None) -> list[SplitId]:
        if self.lineage.states[SplitState.IDLE] == 0:
            return []
        idle = (split for split, state, _ in self.lineage.standings() if state is SplitState.IDLE)
        return sorted(idle, key=lambda split: (split not in self.by_hand, split_order(split)))[:limit]

    def _split(self, split: SplitId) -> SplitStatus:
        state, record = self.lineage.state(split), self.records[split]
        backlog_rows = self.backlog_rows.get(split)
        tally, heard_us = self._counted(split)
        missed = self.planned_us is not None and (heard_us is None or heard_us < self.planned_us)
        readable = state in (SplitState.PENDING, SplitState.ACTIVE)
        return SplitStatus(
            state=state,
            watermark_us=self.lineage.watermark_us(split),
            rows=tally.rows,
            backlog_rows=backlog_rows,
            first_us=tally.first_us,
            last_report=utc(tally.last_report_us),
            lagging=readable and missed and backlog_rows is not None and backlog_rows > 0,
            late_reports=tally.late_reports,
            pending_since=utc(record.pending_since_us) if state is SplitState.PENDING else None,
            why=record.why,
            native_late_rows=tally.native_late_rows,
            bound_us=None if self.bounds is None else self.bounds.bound_us(split),
            beyond_bound=0 if self.bounds is None else self.bounds.beyond(split),
        )

    def _hold(self, holder: SplitId | None, names: Mapping[SplitId, str], now_us: int) -> Hold:
        states, policy = self.lineage.states, self.strategy.all_idle
        known, idle = sum(states.values()), states[SplitState.IDLE]
        live = known - idle - states[SplitState.FINISHED]
        if holder is None:
            return Hold(None, known=known, idle=idle, all_idle=policy)
        backlog_rows = self.backlog_rows.get(holder)
        return Hold(
            self.lineage.state(holder),
            names[holder],
            watermark_us=self.lineage.watermark_us(holder),
            low_us=self.coalescer.low_us,
            live=live,
            silent=len(self.lineage.pending),
            known=known,
            idle=idle,
            backlog_rows=backlog_rows,
            idle_timeout_us=self.idle_timeout_us,
            timeout_grows=self.strategy.progressive is not None,
            clock=self.strategy.silence_clock,
            grace_clock=self.strategy.silence_clock if self.strategy.grace_us is None else IdleClock.TIME,
            grace_left_us=self._grace_left_us(holder, now_us),
            all_idle=policy,
            inherited_us=self.lineage.inherited_us(holder),
            waits=self.records[holder].waits,
            silent_us=None if self.silent_since_us is None else now_us - self.silent_since_us,
            unreported_us=self._unreported_us(holder, now_us),
            wrong_clock=self._clock_of(holder, names[holder]),
        )

    def _grace_left_us(self, holder: SplitId, now_us: int) -> int | None:
        """The rest of the holder's grace, by the clock of the grace; None: the holder has no grace."""
        if self.strategy.grace_us is not None:
            return self.records[holder].pending_since_us + self.grace.timeout_us - now_us
        return self.grace.left_us(holder, now_us if self.read_until_us is None else self.read_until_us)

    def _unreported_us(self, holder: SplitId, now_us: int) -> int | None:
        """How long no row of the holder was reported; None: the newest batch with rows had some of the holder."""
        record = self.records[holder]
        tally, heard_us = self._counted(holder)
        state = self.lineage.state(holder)
        if state is SplitState.PAUSED or record.waits or self.filled_us is None:
            return None
        if heard_us is not None and heard_us >= self.filled_us:
            return None
        last_us = tally.last_report_us
        return now_us - (record.pending_since_us if last_us is None else last_us)

    def _clock_of(self, holder: SplitId, name: str) -> WrongClock | None:
        """The holder's rows beyond the future guard, if some came since the low watermark rose last; else None."""
        future, stands_us = self.tally.future.get(holder), self.moved_at_us
        if future is None or (stands_us is not None and future.last_us < stands_us):
            return None
        return _wrong_clock(name, future)

    def _counted(self, split: SplitId) -> tuple[SplitTally, int | None]:
        """The tally of a split, and the time at which the newest batch with rows of the split was planned."""
        tally, heard_us = self.tally.splits.get(split, SplitTally()), self.records[split].heard_us
        if self.cohort is not None and split in self.cohort:
            return self.cohort.tally(split, tally), self.cohort.heard_us(split)
        return tally, heard_us


def _wrong_clock(name: str, future: FutureTally) -> WrongClock:
    return WrongClock(name, future.rows, utc(future.since_us), utc(future.last_us))


def names_of(splits: Iterable[SplitId], name_of: Callable[[SplitId], str]) -> dict[SplitId, str]:
    """The name of every split; two splits of one name are told apart by their ids."""
    names: dict[SplitId, str] = {}
    taken: set[str] = set()
    for split in sorted(splits, key=split_order):
        name = name_of(split)
        names[split] = f"{name} ({split})" if name in taken else name
        taken.add(names[split])
    return names
