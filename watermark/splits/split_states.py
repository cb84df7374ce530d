"""The states of one stream's splits: which splits are waited for, and why.

A split is waited for from its discovery on, also while it is paused. It is left out while it is silent for too long
(``idleness.py``), while a person left it out (``by_hand.py``), and once it is finished. ``watermark/state.py`` has the
table of states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lowmark.watermark.errors import InvalidSplitId
from lowmark.watermark.state import Signal, SplitId, SplitState, split_order
from lowmark.watermark.strategy import WatermarkStrategy

from .by_hand import IdleMark
from .changes import Changes
from .coalescer import Coalescer
from .events import (
    BatchPlanned,
    BatchReported,
    Effect,
    SplitsFinished,
    SplitsMarkedActive,
    SplitsMarkedIdle,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    SplitStateChanged,
)
from .lineage import Lineage
from .snapshot import StreamSnapshot
from .split_reports import SplitReports
from .timers import SplitRecord, Timers

_NUMBER_RANGE = range(2**64)

StateEvent = SplitsFinished | SplitsPaused | SplitsResumed | SplitsRemoved | SplitsMarkedIdle | SplitsMarkedActive
"""An event about the states of single splits."""


class SplitStates:
    """Keeps the state of every split. After a restart ``restore`` takes the splits of ``saved``."""

    def __init__(
        self, strategy: WatermarkStrategy, coalescer: Coalescer, reports: SplitReports, saved: StreamSnapshot
    ) -> None:
        self.lineage = Lineage(coalescer, saved.ancestry)  # gives states and watermarks: it knows the silent children
        self.by_hand = dict(saved.by_hand)
        """All of these splits are IDLE."""
        self.lost = saved.lost
        """The batch whose report was lost, and when the loss was known; None: the stream waits for no lost report."""
        self.timers = Timers(strategy, self.lineage, reports, saved)
        self.records = self.timers.records
        self._coalescer, self._reports = coalescer, reports
        self._kind: type | None = None  # of split ids: int or str, one per stream
        self._spent_us = dict.fromkeys(SplitState, 0)  # in each state, by all splits together,
        self._spent_until_us: int | None = None  # up to this moment

    def restore(self, saved: StreamSnapshot, now_us: int) -> None:
        """Take the splits of a snapshot. Idle and grace timers start anew."""
        self.timers.last_sign_us = now_us
        for split, (state, watermark_us) in saved.splits.items():
            self._kind = type(split)
            self._coalescer.assign(split, state=state, watermark_us=watermark_us)
            mark = saved.by_hand.get(split)
            why = f"{state.value} before the restart" if mark is None else str(mark)
            held_back = state is SplitState.PAUSED or split in saved.held_back
            self.records[split] = SplitRecord(now_us, why, held_back=held_back)
            self.timers.start(split, now_us)
            if state is SplitState.PAUSED:
                self.timers.pause(split, now_us)
        self._let_inherit(now_us)

    # -- queries

    def next_us(self, wall_ahead_us: int) -> int | None:
        """The next moment at which time alone could leave a split out or bring one back; None: no moment does."""
        moments = [self.timers.next_us()]
        moments += [mark.until_us - wall_ahead_us for mark in self.by_hand.values() if mark.until_us is not None]
        if self.lost is not None:
            moments.append(self.lost[1] + self.timers.grace_us + 1)
        return min((us for us in moments if us is not None), default=None)

    @property
    def held_back(self) -> frozenset[SplitId]:
        """See `SplitWatermarks.held_back`."""
        return frozenset(split for split, record in self.records.items() if record.held_back)

    def spent_us(self, now_us: int) -> dict[SplitState, int]:
        """See `SplitWatermarks.spent_us`."""
        passed_us = 0 if self._spent_until_us is None else max(0, now_us - self._spent_until_us)
        states = self.lineage.states
        return {state: us + states[state] * passed_us for state, us in self._spent_us.items()}

    def steady_us(self, split: SplitId, heard_us: int) -> int | None:
        """The watermark of an active split that is timed from ``heard_us``; None for every other split."""
        steady = self.lineage.state(split) is SplitState.ACTIVE and self.timers.idle.counts_from(split, heard_us)
        return self.lineage.watermark_us(split) if steady else None

    def told(self, changes: Changes) -> list[Effect]:
        """The effects of an event's changes: changes of state, then late returns, both sorted by split."""
        effects: list[Effect] = []
        for split in sorted(changes.before, key=split_order):
            before, after = changes.before[split], self.lineage.state(split)
            if after is not before:
                effects.append(SplitStateChanged(split, before, after, self.records[split].why))
        late = sorted(changes.late, key=lambda each: split_order(each.split))
        return [*effects, *late]

    def spend(self, now_us: int) -> None:
        """Add up the time that splits spent in their states, before an event changes the states."""
        self._spent_us, self._spent_until_us = self.spent_us(now_us), now_us

    # -- splits that report

    def discover(
        self, splits: Iterable[SplitId], at_us: int, changes: Changes, known_empty: frozenset[SplitId] = frozenset()
    ) -> None:
        """Wait for splits that are new, from ``at_us`` on. Raises `InvalidSplitId`; then nothing was changed."""
        new = [split for split in dict.fromkeys(splits) if split not in self._coalescer]
        self._check_ids(new)
        if new:
            self.timers.idle.begin(at_us)
        for split in new:
            self._coalescer.assign(split)
            self.records[split] = SplitRecord(changes.now_us, "discovered")
            if split in known_empty:
                self._reports.backlog_rows[split] = 0
            self.timers.start(split, at_us)
            self.timers.sign_of_life(at_us)
            changes.material = True

    def reshard(self, event: SplitsResharded, changes: Changes) -> None:
        """Let the children of a reshard inherit from their parents, until they speak.

        Raises `InvalidSplitId` or `InvalidReshard`; then nothing was changed.
        """
        self.lineage.check(event.parents)
        self._check_ids([split for child, parents in event.parents.items() for split in (*parents, child)])
        self.discover(event.parents, changes.now_us, changes, event.known_empty)
        for child in self.lineage.reshard(event.parents):
            changes.material = True
            if self.lineage.state(child) is SplitState.IDLE and child not in self.by_hand:
                self._rejoin(child, "its parents are known now", changes)
        # Before silence is judged, because a long batch may lie between the child and the news of its parents.
        self._let_inherit(changes.now_us)

    def deliver(self, split: SplitId, event: BatchReported | BatchPlanned, why: str, changes: Changes) -> None:
        """Take the report of one split. The split becomes active, unless the report is old news, or by hand."""
        before = self.lineage.state(split)
        if before is SplitState.FINISHED:
            return  # a late report of a split that is finished for good
        # A child's rows come after those of its parents, so a claim below them is only careful (Kinesis' disorder).
        careful = isinstance(event, BatchPlanned) and self.lineage.inherited_us(split) is not None
        watermark_us, record = event.watermarks_us.get(split), self.records[split]
        if watermark_us is not None and record.waits:
            record.waits = False  # from now on the split is timed like any other split
            if before is not SplitState.PAUSED:
                self.timers.idle.resume(split, event.planned_at_us)
        news = self._reports.hear(split, event.planned_at_us)
        if news:
            self.timers.idle.heard(split, event.planned_at_us)
        if watermark_us is not None:
            seen_us = self.lineage.watermark_us(split)
            changes.material |= seen_us is None or watermark_us > seen_us
            self.lineage.speak(split)
            self._coalescer.report(split, watermark_us)
            self.timers.grace.forget(split)
        elif news and self._coalescer.signal(split, Signal.WAKE):  # without a usable time: active at its old watermark
            record.pending_since_us = changes.now_us
            self.timers.limit_grace(split)
        mark = self.by_hand.get(split)
        if mark is not None and mark.ends_with(event.planned_at_us):
            changes.material = True
            del self.by_hand[split]
        elif mark is not None:
            self._coalescer.signal(split, Signal.IDLE)
            self.timers.stop(split)
            return
        elif before is SplitState.IDLE and not news:
            self._coalescer.signal(split, Signal.IDLE)
            return
        if before is not SplitState.ACTIVE:
            self._note(split, before, why, changes)
            self._pause_held_back(split, changes)
        comes_in = news and before in (SplitState.IDLE, SplitState.PENDING)
        low_us = self._coalescer.low_us if comes_in else record.came_in_at_us
        if low_us is not None and not careful:
            first_us = event.first_us.get(split)
            known_us = min((us for us in (watermark_us, first_us) if us is not None), default=None)
            late = changes.returned(split, known_us, low_us, event.rows.get(split))
            # A claim is of the rows after its batch, so the report of the batch judges its rows.
            record.came_in_at_us = low_us if isinstance(event, BatchPlanned) and not late else None

    def wake_waiting(self, backlog_rows: Mapping[SplitId, int], changes: Changes) -> None:
        """Wake idle splits in which rows wait, so that the splits hold before these rows are read."""
        idle = self.lineage.states[SplitState.IDLE] > 0
        for split, rows in backlog_rows.items() if idle else ():
            if rows > 0 and self.lineage.state(split) is SplitState.IDLE and not self._only_rows_bring_back(split):
                self._rejoin(split, f"{rows} rows are waiting in it", changes)
                self.records[split].came_in_at_us = self._coalescer.low_us
        for split in self.lineage.pending:
            self.timers.limit_grace(split)

    # -- signals

    def signal(self, event: StateEvent, changes: Changes) -> None:
        """Take an event about the states of single splits. Unknown splits are ignored, unless they finish."""
        if isinstance(event, SplitsMarkedActive):
            for split in event.splits:
                self._take_back(split, f"taken back by {event.by}", changes)
            return
        self.timers.time_each()
        if isinstance(event, SplitsRemoved):
            self._remove([split for split in dict.fromkeys(event.splits) if split in self._coalescer], changes)
            return
        if isinstance(event, SplitsFinished):
            self.discover(event.splits, changes.now_us, changes)
        for split in dict.fromkeys(event.splits):
            if split in self._coalescer:
                self._signal(split, event, changes)

    def lose(self, batch_id: int, changes: Changes) -> None:
        """Hold, because the report of a batch was lost and the splits that were new in it are unknown."""
        lost = (batch_id, changes.now_us)
        changes.material |= lost != self.lost
        self.lost = lost

    def _signal(self, split: SplitId, event: StateEvent, changes: Changes) -> None:
        before, now_us = self.lineage.state(split), changes.now_us
        match event:
            case SplitsFinished():
                changes.material |= self._coalescer.signal(split, Signal.FINISH)
                self.by_hand.pop(split, None)
                self.timers.stop(split)
                self._note(split, before, "every row of it was processed", changes)
            case SplitsPaused():
                self.records[split].held_back = True
                self._pause_held_back(split, changes)
            case SplitsResumed():
                self.records[split].held_back = False
                if self._coalescer.signal(split, Signal.RESUME):
                    self.records[split].pending_since_us = now_us
                    self.timers.limit_grace(split)
                    self.timers.sign_of_life(now_us)
                    self.timers.idle.resume(split, now_us)
                    self._note(split, before, "it is read again", changes)
            case SplitsMarkedIdle() if before is not SplitState.FINISHED:
                self._mark(split, event, changes)

    def _pause_held_back(self, split: SplitId, changes: Changes) -> None:
        """Pause a split that is held back, unless it is left out; nobody pauses it again when it comes back."""
        before = self.lineage.state(split)
        if self.records[split].held_back and self._coalescer.signal(split, Signal.PAUSE):
            self.timers.pause(split, changes.now_us)
            self._note(split, before, "it is not read at present", changes)

    def _remove(self, splits: Sequence[SplitId], changes: Changes) -> None:
        self.lineage.remove(splits)
        for split in splits:
            self.timers.stop(split)
            del self.records[split]
            self.by_hand.pop(split, None)
            self._reports.forget(split)
            changes.before.pop(split, None)
        changes.material |= bool(splits)

    def _mark(self, split: SplitId, event: SplitsMarkedIdle, changes: Changes) -> None:
        mark = IdleMark(event.by, changes.now_us, event.until_us)
        over = event.until_us is not None and event.until_us <= changes.wall_us
        if over or self.by_hand.get(split) == mark:
            return
        self.by_hand[split] = mark
        before = self.lineage.state(split)
        self._coalescer.signal(split, Signal.RESUME)  # only a split that takes part is paused
        self._leave_out(split, str(mark), changes, before)
        self.records[split].why = str(mark)  # also of a split that was idle before
        changes.material = True

    def _take_back(self, split: SplitId, why: str, changes: Changes) -> None:
        """End a mark: the split takes part again."""
        if self.by_hand.pop(split, None) is None:
            return
        changes.material = True
        self._rejoin(split, why, changes)
        changes.returned(split, self.lineage.watermark_us(split), self._coalescer.low_us, None)

    # -- time

    def set_idleness(self, strategy: WatermarkStrategy, changes: Changes) -> None:
        """Time the silence of splits by another idleness, if it is not the present one."""
        if not self.timers.set_idleness(strategy):
            return
        for split in self.records:
            self.timers.start(split, changes.now_us)
            if self.lineage.state(split) is SplitState.PAUSED:
                self.timers.pause(split, changes.now_us)

    def settle(self, changes: Changes) -> None:
        """Apply what time changes by itself, after the event: once, so that the order of splits has no influence."""
        self._end_loss(changes)
        for split, mark in list(self.by_hand.items()):
            if mark.until_us is not None and mark.until_us <= changes.wall_us:
                self._take_back(split, f"the time is over in which it was {mark}", changes)
        for split, why in self.timers.too_long(changes.now_us).items():
            self._leave_out(split, why, changes)
        self._let_inherit(changes.now_us)

    def _end_loss(self, changes: Changes) -> None:
        """End the hold after a lost report once the splits of that batch had time to report again."""
        read_us = self._reports.read_until_us
        if self.lost is not None and read_us is not None and read_us - self.lost[1] > self.timers.grace_us:
            self.lost, changes.material = None, True

    def _let_inherit(self, now_us: int) -> None:
        """Give silent children the watermarks of their parents; time a child once no parent can deliver."""
        self.lineage.settle()
        for child in self.lineage.children:
            if self.lineage.state(child) is not SplitState.PENDING:
                continue
            record, waits = self.records[child], self.lineage.waits(child)
            if waits:
                self.timers.pause(child, now_us)
            elif record.waits:
                record.waits, record.pending_since_us = False, now_us
                self.timers.start(child, now_us)
                self.timers.idle.resume(child, now_us)
            record.waits = waits

    # -- how

    def _leave_out(self, split: SplitId, why: str, changes: Changes, before: SplitState | None = None) -> None:
        before = self.lineage.state(split) if before is None else before
        self._coalescer.signal(split, Signal.IDLE)
        self.timers.stop(split)
        self.records[split].came_in_at_us = None
        self._note(split, before, why, changes)

    def _rejoin(self, split: SplitId, why: str, changes: Changes) -> None:
        """Wait for an idle split again, and time it from now on, unless it is held back."""
        self._coalescer.signal(split, Signal.WAKE)
        self.records[split].pending_since_us = changes.now_us
        self.timers.start(split, changes.now_us)
        self.timers.sign_of_life(changes.now_us)
        self._note(split, SplitState.IDLE, why, changes)
        self._pause_held_back(split, changes)

    def _only_rows_bring_back(self, split: SplitId) -> bool:
        by_grace = self.records[split].by_grace and self.lineage.watermark_us(split) is None
        return split in self.by_hand or by_grace

    def _note(self, split: SplitId, before: SplitState, why: str, changes: Changes) -> None:
        if self.lineage.state(split) is not before:
            changes.before.setdefault(split, before)
            self.records[split].why = why

    def _check_ids(self, new: Iterable[SplitId]) -> None:
        known = self._kind
        for split in new:
            kind = type(split) if known is None else known
            if kind not in (int, str) or type(split) is not kind:
                expected = "an int or a str" if known is None else f"a {known.__name__}, as for its other splits"
                raise InvalidSplitId(repr(split), expected)
            if isinstance(split, int) and split not in _NUMBER_RANGE:
                raise InvalidSplitId(repr(split), "a number of 0 or more in 64 bits")
            known = kind
        self._kind = known
