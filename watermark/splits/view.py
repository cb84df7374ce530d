"""Makes the status of a stream from the watermarks of its splits; changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lowmark.watermark.moment import utc
from lowmark.watermark.state import SplitId, SplitState, split_order
from lowmark.watermark.strategy import WatermarkStrategy

from .cause import cause_of
from .low_watermark import LowWatermark
from .split_reports import SplitReports
from .split_states import SplitStates
from .status import Hold, HolderSpell, SplitStatus, StreamStatus, WrongClock, lost_reasons, need
from .tally import FutureTally

_CLOCKS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class View:
    """The parts of `SplitWatermarks`, and the late rows of each split; None: not counted."""

    name: str
    strategy: WatermarkStrategy
    reports: SplitReports
    states: SplitStates
    low: LowWatermark
    late_rows: Mapping[SplitId, int] | None

    def status(self, now_us: int, name_of: Callable[[SplitId], str], limit: int | None) -> StreamStatus:
        """The status with all splits, sorted by id, O(n log n); or with ``limit`` splits, holder and neediest, O(n)."""
        coalescer, states, tally = self.low.coalescer, self.states, self.reports.tally
        holder, stripped = coalescer.holder, sorted(coalescer.stripped, key=split_order)[:limit]
        shown, idle = self._shown(limit), self._idle(limit)
        marked = sorted(states.by_hand, key=split_order)
        names = names_of({*shown, *idle, *marked, *stripped, *(() if holder is None else (holder,))}, name_of)
        hold = self._hold(holder, names, now_us)
        cause, why, what_next = cause_of(hold, self.reports.unusable_times(coalescer.low_us))
        if states.lost is not None:
            batch_id, lost_us = states.lost
            read_us = lost_us if self.reports.read_until_us is None else self.reports.read_until_us
            lost_why, lost_next = lost_reasons(batch_id, lost_us + states.timers.grace_us - read_us)
            why, what_next = f"{lost_why} {why}", f"{lost_next} {what_next}"
        return StreamStatus(
            name=self.name,
            low_watermark_us=coalescer.low_us,
            holder=None if holder is None else names[holder],
            why=why,
            since=utc(self.low.moved_at_us),
            next=what_next,
            left_out=tuple((names[split], states.records[split].why) for split in idle),
            splits={names[split]: self._split(split) for split in shown},
            states={state.value: count for state, count in states.lineage.states.items()},
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
                for spell in self.low.history.held(now_us)
            ),
            silent_since=utc(states.timers.silent_since_us),
            cause=cause,
            by_hand=tuple((names[split], str(states.by_hand[split])) for split in marked),
            newest_us=tally.newest_us,
            fastest_us=tally.fastest_us,
            wrong_clocks=tuple(
                _wrong_clock(names.get(split, name_of(split)), tally.future[split])
                for split in heapq.nsmallest(
                    _CLOCKS_SHOWN, tally.future, key=lambda split: (-tally.future[split].rows, split_order(split))
                )
            ),
        )

    def _shown(self, limit: int | None) -> list[SplitId]:
        if limit is None:
            return sorted(self.states.records, key=split_order)
        needs = (
            (need(state, at_us), split_order(split), split) for split, state, at_us in self.states.lineage.standings()
        )
        shown = [split for _, _, split in heapq.nsmallest(limit, needs)]
        holder = self.low.coalescer.holder
        if limit and holder is not None and holder not in shown:
            shown[-1] = holder  # people ask for it first, and many splits may need more attention
        return shown

    def _idle(self, limit: int | None) -> list[SplitId]:
        if self.states.lineage.states[SplitState.IDLE] == 0:
            return []
        idle = (split for split, state, _ in self.states.lineage.standings() if state is SplitState.IDLE)
        return sorted(idle, key=lambda split: (split not in self.states.by_hand, split_order(split)))[:limit]

    def _split(self, split: SplitId) -> SplitStatus:
        reports, lineage, record = self.reports, self.states.lineage, self.states.records[split]
        state, backlog_rows = lineage.state(split), reports.backlog_rows.get(split)
        tally, heard_us = reports.counted(split), reports.heard_us(split)
        missed = reports.planned_us is not None and (heard_us is None or heard_us < reports.planned_us)
        readable = state in (SplitState.PENDING, SplitState.ACTIVE)
        return SplitStatus(
            state=state,
            watermark_us=lineage.watermark_us(split),
            rows=tally.rows if reports.tally.rows_by_split else None,
            backlog_rows=backlog_rows,
            first_us=tally.first_us,
            last_report=utc(tally.last_report_us),
            lagging=readable and missed and backlog_rows is not None and backlog_rows > 0,
            late_reports=tally.late_reports,
            pending_since=utc(record.pending_since_us) if state is SplitState.PENDING else None,
            why=record.why,
            native_late_rows=tally.native_late_rows,
            bound_us=None if reports.bounds is None else reports.bounds.bound_us(split),
            beyond_bound=0 if reports.bounds is None else reports.bounds.beyond(split),
            late_rows=None if self.late_rows is None else self.late_rows.get(split, 0),
        )

    def _hold(self, holder: SplitId | None, names: Mapping[SplitId, str], now_us: int) -> Hold:
        lineage, timers, policy = self.states.lineage, self.states.timers, self.strategy.all_idle
        states = lineage.states
        known, idle = sum(states.values()), states[SplitState.IDLE]
        if holder is None:
            return Hold(None, known=known, idle=idle, all_idle=policy)
        record, silent_since_us = self.states.records[holder], timers.silent_since_us
        return Hold(
            lineage.state(holder),
            names[holder],
            watermark_us=lineage.watermark_us(holder),
            low_us=self.low.us,
            live=known - idle - states[SplitState.FINISHED],
            silent=len(lineage.pending),
            known=known,
            idle=idle,
            backlog_rows=self.reports.backlog_rows.get(holder),
            idle_timeout_us=timers.idle.timeout_us,
            timeout_grows=self.strategy.progressive is not None,
            clock=self.strategy.silence_clock,
            grace_clock=timers.grace_clock,
            grace_left_us=timers.grace_left_us(holder, now_us),
            all_idle=policy,
            inherited_us=lineage.inherited_us(holder),
            waits=record.waits,
            silent_us=None if silent_since_us is None else now_us - silent_since_us,
            unreported_us=self._unreported_us(holder, now_us),
            unraised_us=self._unraised_us(holder),
            wrong_clock=self._clock_of(holder, names[holder]),
        )

    def _unreported_us(self, holder: SplitId, now_us: int) -> int | None:
        """How long no row of the holder was reported; None: the newest batch with rows had some of the holder."""
        record, state = self.states.records[holder], self.states.lineage.state(holder)
        heard_us, filled_us = self.reports.heard_us(holder), self.reports.filled_us
        if state is SplitState.PAUSED or record.waits or filled_us is None:
            return None
        if heard_us is not None and heard_us >= filled_us:
            return None
        last_us = self.reports.counted(holder).last_report_us
        return now_us - (record.pending_since_us if last_us is None else last_us)

    def _unraised_us(self, holder: SplitId) -> int | None:
        """How long after the low watermark rose to the holder's watermark rows of the holder were read last."""
        last_us, stands_us = self.reports.counted(holder).last_report_us, self.low.moved_at_us
        heard_us = self.reports.heard_us(holder)  # a batch that was planned before may be reported much later
        if last_us is None or heard_us is None or stands_us is None:
            return None
        return min(last_us, heard_us) - stands_us if self.states.lineage.watermark_us(holder) == self.low.us else None

    def _clock_of(self, holder: SplitId, name: str) -> WrongClock | None:
        """The holder's rows beyond the future guard, if some came since the low watermark rose last; else None."""
        future, stands_us = self.reports.tally.future.get(holder), self.low.moved_at_us
        if future is None or (stands_us is not None and future.last_us < stands_us):
            return None
        return _wrong_clock(name, future)


def _wrong_clock(name: str, future: FutureTally) -> WrongClock:
    return WrongClock(name, future.rows, utc(future.since_us), utc(future.last_us))


def names_of(splits: Iterable[SplitId], name_of: Callable[[SplitId], str]) -> dict[SplitId, str]:
    """The name of every split; two splits of one name are told apart by their ids."""
    names: dict[SplitId, str] = {}
    taken: set[str] = set()
    for split in sorted(splits, key=split_order):
        name = name_of(split)
        while name in taken:  # again, because a user may name a split "a (3)"
            name = f"{name} ({split})"
        names[split] = name
        taken.add(name)
    return names
