"""A stream as people see it: reads what the coordinator knows, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .coalescer import Coalescer
from .state import SplitId, SplitState, split_order
from .status import Hold, SplitStatus, StreamStatus, hold_reasons, utc
from .strategy import WatermarkStrategy
from .tally import SplitTally, Tally


@dataclass(slots=True)
class SplitRecord:
    """What the coordinator remembers of a split besides its state and watermark, which the coalescer has."""

    pending_since_us: int
    why: str  # why it is in its state
    heard_us: int | None = None  # when the last batch that held rows of it was planned


@dataclass(frozen=True, slots=True)
class View:
    """All that a status is made of."""

    name: str
    strategy: WatermarkStrategy
    coalescer: Coalescer
    tally: Tally
    records: Mapping[SplitId, SplitRecord]
    backlog_rows: Mapping[SplitId, int]
    grace_us: int
    planned_us: int | None
    moved_at_us: int | None

    def status(self, now_us: int, name_of: Callable[[SplitId], str]) -> StreamStatus:
        """The whole of it; splits sorted by id. O(n log n)."""
        coalescer, tally, names = self.coalescer, self.tally, self._names(name_of)
        splits = {name: self._split(split) for split, name in names.items()}
        holder = coalescer.holder
        why, what_next = hold_reasons(self._hold(holder, names, now_us))
        return StreamStatus(
            name=self.name,
            low_watermark_us=coalescer.low_us,
            holder=None if holder is None else names[holder],
            why=why,
            since=utc(self.moved_at_us),
            next=what_next,
            left_out=tuple((name, seen.why) for name, seen in splits.items() if seen.state is SplitState.IDLE),
            splits=splits,
            states={state.value: count for state, count in coalescer.states.items()},
            counts=tally.counts,
            regressions=coalescer.regressions,
            returned_late=tally.returned_late,
            native_watermark_us=tally.native_us,
            native_late_rows=tally.native_late_rows,
            batches=tally.batches,
            last_batch_id=tally.last_batch_id,
        )

    def _names(self, name_of: Callable[[SplitId], str]) -> dict[SplitId, str]:
        """A name for every split; two splits of one name are told apart by their ids."""
        names: dict[SplitId, str] = {}
        taken: set[str] = set()
        for split in sorted(self.coalescer.splits, key=split_order):
            name = name_of(split)
            names[split] = f"{name} ({split})" if name in taken else name
            taken.add(names[split])
        return names

    def _split(self, split: SplitId) -> SplitStatus:
        state, record = self.coalescer.state(split), self.records[split]
        tally, backlog_rows = self.tally.splits.get(split, SplitTally()), self.backlog_rows.get(split)
        missed = self.planned_us is not None and (record.heard_us is None or record.heard_us < self.planned_us)
        readable = state in (SplitState.PENDING, SplitState.ACTIVE)
        return SplitStatus(
            state=state,
            watermark_us=self.coalescer.watermark_us(split),
            rows=tally.rows,
            backlog_rows=backlog_rows,
            first_us=tally.first_us,
            last_report=utc(tally.last_report_us),
            lagging=readable and missed and backlog_rows is not None and backlog_rows > 0,
            late_reports=tally.late_reports,
            pending_since=utc(record.pending_since_us) if state is SplitState.PENDING else None,
            why=record.why,
        )

    def _hold(self, holder: SplitId | None, names: Mapping[SplitId, str], now_us: int) -> Hold:
        states, policy = self.coalescer.states, self.strategy.all_idle
        known, idle = sum(states.values()), states[SplitState.IDLE]
        live = known - idle - states[SplitState.FINISHED]
        if holder is None:
            return Hold(None, known=known, idle=idle, all_idle=policy)
        backlog_rows = self.backlog_rows.get(holder)
        has_grace = self.strategy.grace_us is not None or backlog_rows == 0
        return Hold(
            self.coalescer.state(holder),
            names[holder],
            watermark_us=self.coalescer.watermark_us(holder),
            low_us=self.coalescer.low_us,
            live=live,
            silent=len(self.coalescer.pending),
            known=known,
            idle=idle,
            backlog_rows=backlog_rows,
            idle_timeout_us=self.strategy.idle_timeout_us,
            grace_left_us=self.records[holder].pending_since_us + self.grace_us - now_us if has_grace else None,
            all_idle=policy,
        )
