"""The watermarks of one stream's splits: events in, effects out. Nothing here waits, calls out, or reads a clock.

Rule 1: everything that decides the low watermark happens in this package.
Rule 2: ``handle`` is the only way in; the list it returns is the only way out. The loop that owns threads, sockets and
        Spark carries the effects out.
Rule 3: all changes of one event are applied before anything is decided: first the reports, then idleness, then
        the minimum, once. So the order of the splits within an event has no influence, and a repeated event changes
        nothing.

Two clocks are used, and must not be mixed up. ``now_us`` is the moment at which an event is handled; a grace set by the
user and the times shown to people use this clock. ``planned_at_us`` and ``until_us`` are moments up to which the
sources were read. Silence (idleness, and the grace of a split known to be empty) is measured on the second clock alone,
because a batch that runs for five minutes reads nothing meanwhile. On this clock only time in which splits delivered
counts (``idleness.py``), unless the strategy asks for time alone: while no split delivers, the stream is silent, and
its splits do not become idle.

Source: FLINK-4576 (the messages), FLIP-471 (time in which a split may be read), MillWheel (an absent split
holds its value).

One file, because rule 3 orders the changes of all events, so every event is handled in one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import numpy as np
from lowmark.watermark.duration import format_duration_us, rough_duration_us
from lowmark.watermark.errors import InvalidSplitId, InvalidWatermark
from lowmark.watermark.moment import INT64
from lowmark.watermark.protocol import NotifyNewLowWatermark
from lowmark.watermark.state import IdleClock, SplitId, SplitState, split_order
from lowmark.watermark.strategy import ProgressiveIdleness, WatermarkStrategy

from .adaptive import AdaptiveBounds
from .by_hand import Mark, Marks
from .cause import unusable_times
from .coalescer import Coalescer
from .cohort import Cohort
from .events import (
    BatchPlanned,
    BatchReported,
    Effect,
    Event,
    Polled,
    ReportLost,
    SplitColumn,
    SplitReturnedLate,
    SplitsDiscovered,
    SplitsFinished,
    SplitsMarkedActive,
    SplitsMarkedIdle,
    SplitsPaused,
    SplitsRemoved,
    SplitsResharded,
    SplitsResumed,
    SplitStateChanged,
)
from .history import History
from .idleness import Idleness
from .lineage import Lineage
from .snapshot import StreamSnapshot, decode, encode
from .status import StreamStatus, lost_reasons
from .tally import SplitTally, Tally
from .view import SplitRecord, View

KNOWN_EMPTY_GRACE_US = 60_000_000
"""How long a silent new split that is known to be empty may hold, unless the strategy sets a grace: 1 minute."""

ALL_IDLE_STEP_US = 1_000_000
"""How often callers should look while all splits are idle and the low watermark follows the time of reading."""

Batch = TypeVar("Batch", BatchReported, BatchPlanned)

_RISES_SHOWN = 240
_NUMBER_RANGE = range(2**64)


class SplitWatermarks:
    """Keeps the low watermark of one stream.

    Args:
        strategy: has the idleness, the grace and the all-idle policy.
        job_id: the application or query; goes into notifications.
        source_id: the stream's name.
        task_id: the task that reads the splits; goes into notifications.

    >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
    >>> stream = SplitWatermarks(strategy, job_id="job", source_id="orders", task_id="0")
    >>> stream.handle(SplitsDiscovered(("a", "b")), now_us=0)
    []
    >>> effects = stream.handle(BatchReported(0, 1, {"a": 30_000, "b": 10_000}), now_us=2)
    >>> effects[-1].new_low_watermark, stream.status(now_us=3).holder
    (10000, 'b')
    """

    def __init__(self, strategy: WatermarkStrategy, *, job_id: str, source_id: str, task_id: str) -> None:
        self._strategy = strategy
        self._job_id, self._source_id, self._task_id = job_id, source_id, task_id
        self._coalescer = self._new_coalescer(None)
        self._lineage = Lineage(self._coalescer)  # gives states and watermarks, because it knows the silent children
        clock = strategy.silence_clock
        self._idleness = _idleness(strategy, strategy.progressive)
        # Silence of new splits. A grace set by the user limits time itself; the default grace limits silence.
        self._grace_us = KNOWN_EMPTY_GRACE_US if strategy.grace_us is None else strategy.grace_us
        self._grace = Idleness(self._grace_us, clock if strategy.grace_us is None else IdleClock.TIME)
        self._records: dict[SplitId, SplitRecord] = {}
        self._backlog_rows: dict[SplitId, int] = {}  # only known backlogs
        self._names: dict[SplitId, str] = {}
        self._read_until_us: int | None = None
        self._stirred_us: int | None = None  # up to when it was read when a split last spoke, began or went on
        self._moved_at_us: int | None = None  # when the low watermark rose, or began
        self._planned_us: int | None = None  # when the newest batch was planned,
        self._filled_us: int | None = None  # and the newest one that had rows of a split
        self._history = History[SplitId]()  # of who held
        self._tally = Tally(strategy.out_of_orderness_us)
        self._bounds = None if strategy.adaptive is None else AdaptiveBounds(strategy.adaptive)
        self._cohort: Cohort | None = None  # has the numbers of its splits, until it is dissolved
        self._last_column: SplitColumn | None = None  # the newest column, perhaps the first of a cohort
        self._by_hand = Marks()  # every marked split is IDLE
        self._lost: tuple[int, int] | None = None  # the batch whose report was lost, and when the loss was known
        self._epoch = 0
        self._kind: type | None = None  # of split ids: int or str, one per stream
        self._spent_us = dict.fromkeys(SplitState, 0)  # in each state, by all splits together,
        self._spent_until_us: int | None = None  # up to this moment
        # The event being handled:
        self._before: dict[SplitId, SplitState] = {}
        self._late: list[SplitReturnedLate] = []
        self._material = False

    # -- the way in and out

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event in.

        Args:
            event: the event.
            now_us: now, on a clock of microseconds since the epoch that never steps.

        Returns:
            The effects of the event: changes of state, then late returns, both sorted by split, then at most one
            notification. An event that is repeated at once has no effects the second time.

        Raises:
            InvalidSplitId: a split id is of the wrong kind; nothing was changed.
            InvalidWatermark: a watermark does not fit 64 bits; nothing was changed.
            InvalidReshard: a split would be its own ancestor, or parents or children are empty; nothing was changed.
        """
        self._before, self._late, self._material = {}, [], False
        self._spent_us, self._spent_until_us = self.spent_us(now_us), now_us
        if self._moved_at_us is None:
            self._moved_at_us = now_us
        match event:
            case SplitsDiscovered(splits, known_empty):
                self._discover(splits, known_empty, now_us, now_us)
            case SplitsResharded():
                self._reshard(event, now_us)
            case BatchReported():
                self._learn(event)
                self._report(self._adapt(event), now_us)
            case BatchPlanned():
                self._plan(event, now_us)
            case Polled(until_us):
                self._read(until_us)
            case ReportLost(batch_id):
                self._lost, self._material = (batch_id, now_us), True
            case _:
                self._signal(event, now_us)
        self._end_loss()
        self._end_marks(now_us)
        self._leave_quiet_out(now_us)
        self._let_inherit(now_us)
        return self._effects(now_us)

    def wake_at_us(self, now_us: int) -> int | None:
        """The next moment at which time alone could change something; None if only an event can.

        Callers then ask the sources and send ``Polled``, or send ``Tick`` if the sources cannot be asked. The moment
        may be over already: a deadline that passed while nothing was read waits for the first poll after the deadline.
        """
        moments = []
        deadline_us = None if self._idleness is None else self._idleness.next_deadline_us()
        if deadline_us is not None:
            moments.append(deadline_us)
        if self._idleness is not None and self._cohort is not None and self._by_time:
            moments.append(self._idleness.deadline_us(self._cohort.earliest_heard_us))
        patience_us = self.patience_us
        if patience_us is not None and self._stirred_us is not None:
            silent_us = self._stirred_us + patience_us + 1
            if self._read_until_us is None or silent_us > self._read_until_us:
                moments.append(silent_us)
        if self._lost is not None:
            moments.append(self._lost[1] + self._grace_us + 1)
        moments += [us for us in (self._grace.next_deadline_us(), self._by_hand.next_us) if us is not None]
        delay_us = self._strategy.all_idle_delay_us
        if delay_us is not None and self._coalescer.all_idle:
            low_us = self._coalescer.low_us
            moments.append(now_us if low_us is None else low_us + delay_us + ALL_IDLE_STEP_US)
        return min(moments, default=None)

    @property
    def low_watermark_us(self) -> int | None:
        """The low watermark, microseconds since the epoch; never decreases; None before the first."""
        return self._coalescer.low_us

    @property
    def heard_us(self) -> int | None:
        """Up to when sources were read when a split last delivered, was discovered, woke or resumed; None: never."""
        return self._stirred_us

    @property
    def patience_us(self) -> int | None:
        """How long no split may be heard before the stream is silent; None: the stream cannot become silent now."""
        states = self._lineage.states
        pending, active = states[SplitState.PENDING], states[SplitState.ACTIVE]
        if self._by_time or states[SplitState.PAUSED] or not pending + active:
            return None
        if self._idleness is not None:
            return self._idleness.timeout_us
        # If all live splits are new and known to be empty, the stream waits for them for their grace at most.
        return self._grace_us if len(self._grace) == pending and not active else None

    @property
    def silent_since_us(self) -> int | None:
        """Since when no split delivered, once that is longer than the timeout; None: the stream is not silent.

        On the clock of reads. A silent stream has splits that are not idle, because a silence of all splits makes no
        split idle. The group of a silent stream does not wait for the stream, and its job does not wait once other
        streams deliver. A stream is not silent while rows are known to wait in it or alignment holds one of its splits
        back, and never if time alone makes splits idle.
        """
        patience_us, stirred_us, read_us = self.patience_us, self._stirred_us, self._read_until_us
        if patience_us is None or stirred_us is None or read_us is None or read_us - stirred_us <= patience_us:
            return None
        waiting = (split for split, rows in self._backlog_rows.items() if rows > 0)
        if any(self._lineage.state(split) in (SplitState.PENDING, SplitState.ACTIVE) for split in waiting):
            return None
        return stirred_us

    @property
    def grace_us(self) -> int:
        """How long a new split known to be empty may hold, and how long the stream holds after a lost report."""
        return self._grace_us

    @property
    def holder(self) -> SplitId | None:
        """The split that holds the low watermark now; None: no split holds."""
        return self._coalescer.holder

    @property
    def backlog_rows(self) -> int | None:
        """Known unread rows of all splits together; None: no split's backlog is known."""
        return sum(self._backlog_rows.values()) if self._backlog_rows else None

    @property
    def epoch(self) -> int:
        """Grows when the snapshot changes in a way that matters; callers write a new snapshot when it grew.

        These changes are: the low watermark, a split's watermark, the set of splits, or the set of finished splits.
        """
        return self._epoch

    def status(
        self, now_us: int, name_of: Callable[[SplitId], str] | None = None, *, limit: int | None = None
    ) -> StreamStatus:
        """The status for people. O(n log n), some 20 us a split; with a limit about 1 us a split.

        Args:
            now_us: now; the rest of a grace is counted from this moment.
            name_of: gives the name of a split; by default its id. Two splits of one name are told apart by their ids,
                if both are in the status.
            limit: the number of splits, those that need attention first; None: all splits, sorted by id.

        Raises:
            ValueError: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"status of stream {self._source_id}: expected a limit of 0 or more, got {limit}")
        view = View(
            name=self._source_id,
            strategy=self._strategy,
            coalescer=self._coalescer,
            lineage=self._lineage,
            tally=self._tally,
            records=self._records,
            backlog_rows=self._backlog_rows,
            grace=self._grace,
            read_until_us=self._read_until_us,
            silent_since_us=self.silent_since_us,
            planned_us=self._planned_us,
            filled_us=self._filled_us,
            moved_at_us=self._moved_at_us,
            history=self._history,
            cohort=self._cohort,
            by_hand=self._by_hand,
            bounds=self._bounds,
            idle_timeout_us=None if self._idleness is None else self._idleness.timeout_us,
        )
        status = view.status(now_us, str if name_of is None else name_of, limit)
        if self._lost is None:
            return status
        batch_id, lost_us = self._lost
        read_us = lost_us if self._read_until_us is None else self._read_until_us
        why, what_next = lost_reasons(batch_id, lost_us + self._grace_us - read_us)
        return replace(status, why=f"{why} {status.why}", next=f"{what_next} {status.next}")

    def spent_us(self, now_us: int) -> dict[SplitState, int]:
        """How long splits have been in each state, added up over all splits, microseconds, up to now.

        The time begins with the first event after a start. Ten idle splits spend ten seconds in a second.
        """
        passed_us = 0 if self._spent_until_us is None else max(0, now_us - self._spent_until_us)
        states = self._lineage.states
        return {state: us + states[state] * passed_us for state, us in self._spent_us.items()}

    @property
    def late_reports(self) -> int:
        """How often a split delivered rows at or below the watermark in force; removed splits included."""
        return self._tally.late_reports

    def rises(self, now_us: int) -> tuple[tuple[int, int], ...]:
        """(when, low watermark), microseconds, for the last hour, oldest first; up to 240, evenly chosen."""
        return self._history.thinned(now_us, _RISES_SHOWN)

    @property
    def unusable_times(self) -> str | None:
        """One sentence about implausible event times; None: the event times are plausible. See
        ``cause.unusable_times``.
        """
        return unusable_times(self._tally.counts, self._tally.newest_us, self._coalescer.low_us)

    @property
    def states(self) -> Mapping[SplitState, int]:
        """How many splits are in each state; every state is there."""
        return self._lineage.states

    @property
    def splits(self) -> tuple[SplitId, ...]:
        """Every known split, finished ones too, in the order of discovery."""
        return tuple(self._records)

    @property
    def names(self) -> Mapping[SplitId, str]:
        """The names that came with the snapshot these watermarks were restored from; empty otherwise."""
        return dict(self._names)

    @property
    def by_hand(self) -> Mapping[SplitId, Mark]:
        """The splits that a person has left out, each with the mark."""
        return self._by_hand

    # -- restart

    def snapshot(self, names: Mapping[SplitId, str] | None = None) -> bytes:
        """The state for a restart: low watermark, splits, their states and watermarks. Deterministic.

        Args:
            names: the names of splits whose ids are numbers, kept verbatim; None: the restored names.
        """
        splits = {split: (state, at_us) for split, state, at_us in self._lineage.standings()}
        names = self._names if names is None else names
        bounds_us = {} if self._bounds is None else self._bounds.kept_us
        rows = {} if self._bounds is None else self._bounds.kept_rows
        # Without splits the stream has no age: its age counts from its first split.
        young_since_us = self._idleness.young_since_us if splits and self._idleness is not None else None
        ancestry = self._lineage.ancestry
        low_us = self.low_watermark_us
        kept = (low_us, splits, names, ancestry, bounds_us, young_since_us, self._lost, rows, self._by_hand)
        return encode(StreamSnapshot(*kept))

    @classmethod
    def restore(
        cls,
        data: bytes,
        strategy: WatermarkStrategy,
        *,
        job_id: str,
        source_id: str,
        task_id: str,
        now_us: int,
    ) -> SplitWatermarks:
        """Make the watermarks from a snapshot. Its counts begin at 0; its idle and grace timers start anew.

        Raises:
            CorruptSnapshot: the bytes are no snapshot that this version can read.
        """
        saved = decode(data)
        made = cls(strategy, job_id=job_id, source_id=source_id, task_id=task_id)
        made._coalescer = made._new_coalescer(saved.low_us)
        made._lineage = Lineage(made._coalescer, saved.ancestry)
        made._names, made._lost = dict(saved.names), saved.lost
        made._by_hand = Marks(saved.by_hand)
        if strategy.adaptive is not None:
            made._bounds = AdaptiveBounds(strategy.adaptive, saved.bounds_us, saved.bound_rows)
        if strategy.progressive is not None and saved.splits:  # without a mark of youth the stream is old
            grows = None if saved.young_since_us is None else strategy.progressive
            made._idleness = _idleness(strategy, grows, saved.young_since_us)
        made._moved_at_us = made._stirred_us = now_us
        for split, (state, watermark_us) in saved.splits.items():
            made._kind = type(split)
            made._coalescer.assign(split, state=state, watermark_us=watermark_us)
            mark = saved.by_hand.get(split)
            why = f"{state.value} before the restart" if mark is None else str(mark)
            made._records[split] = SplitRecord(now_us, why)
            if watermark_us is not None:
                made._tally.saw(watermark_us)
            made._start_timers(split, now_us)
            if state is SplitState.PAUSED and made._idleness is not None:
                made._idleness.pause(split, now_us)
        made._let_inherit(now_us)
        return made

    # -- events

    def _signal(self, event: Event, now_us: int) -> None:
        """Take an event about the states of single splits."""
        match event:
            case SplitsFinished(splits):
                self._finish(splits, now_us)
            case SplitsPaused(splits):
                self._pause(splits, now_us)
            case SplitsResumed(splits):
                self._resume(splits, now_us)
            case SplitsRemoved(splits):
                self._remove(splits)
            case SplitsMarkedIdle():
                self._mark(event, now_us)
            case SplitsMarkedActive(splits, by):
                for split in splits:
                    self._take_back(split, f"taken back by {by}", now_us)

    def _discover(self, splits: Iterable[SplitId], known_empty: frozenset[SplitId], at_us: int, now_us: int) -> None:
        new = [split for split in dict.fromkeys(splits) if split not in self._coalescer]
        self._check_ids(new)
        if new and self._idleness is not None:
            self._idleness.begin(at_us)
        for split in new:
            self._coalescer.assign(split)
            self._records[split] = SplitRecord(now_us, "discovered")
            if split in known_empty:
                self._backlog_rows[split] = 0
            self._start_timers(split, at_us)
            self._stir(at_us)
            self._material = True

    def _reshard(self, event: SplitsResharded, now_us: int) -> None:
        self._check_ids([*event.parents, *event.children])
        self._lineage.check(event.parents, event.children)
        self._discover(event.children, event.known_empty, now_us, now_us)
        self._material |= self._lineage.reshard(event.parents, event.children)

    def _learn(self, event: BatchReported) -> None:
        """Learn from a batch how late the rows of its splits are."""
        if self._bounds is not None:
            self._check_range(event)
            if self._tally.fresh(event.batch_id):
                self._bounds.learn(event)

    def _adapt(self, event: Batch) -> Batch:
        """Take each split's own bound off the watermarks of an event."""
        bounds = self._bounds
        if bounds is None:
            return event
        self._check_range(event)
        known = (split for split in event.watermarks_us if split in self._coalescer)
        stood_at = ((split, self._lineage.watermark_us(split)) for split in known)
        stands_at_us = {split: at_us for split, at_us in stood_at if at_us is not None}
        return replace(event, watermarks_us=bounds.bounded(event.watermarks_us, stands_at_us))

    def _check_range(self, event: BatchReported | BatchPlanned) -> None:
        for split, watermark_us in event.watermarks_us.items():
            if watermark_us not in INT64:
                raise InvalidWatermark(split, watermark_us)

    def _report(self, event: BatchReported, now_us: int) -> None:
        if self._cohort is not None and self._tally.fresh(event.batch_id) and self._cohort.takes(event):
            self._report_together(event, self._cohort, now_us)
        else:
            self._dissolve()
            self._report_each(event, now_us)
            self._gather(event)

    def _report_each(self, event: BatchReported, now_us: int) -> None:
        low_us, regressions = self._coalescer.low_us, self._coalescer.regressions
        fresh = self._tally.fresh(event.batch_id)
        self._deliver_each(event, "delivered rows", now_us)
        if fresh:
            self._tally.count(event, low_us, now_us)
            self._planned_us = event.planned_at_us
            if event.watermarks_us or any(rows > 0 for rows in event.rows.values()):
                self._filled_us = event.planned_at_us
            self._learn_backlog(event, now_us)
        else:
            self._coalescer.regressions = regressions  # counted when the batch came first

    def _plan(self, event: BatchPlanned, now_us: int) -> None:
        """Take the claims of a plan like a report, but count nothing, because no row was seen.

        Until the batch is reported the splits with rows in it are unknown, so a plan neither advances the moment up to
        which the sources were read nor counts as a delivery.
        """
        event = self._adapt(self._guarded(event, now_us))  # the guard compares times before a bound is taken off
        regressions, why = self._coalescer.regressions, "its next row is known"
        cohort = self._cohort
        claim = None if cohort is None else cohort.sort_out(event.watermarks_us)
        if cohort is not None and claim is not None:
            self._discover((*claim.others, *event.backlog_rows), frozenset(), event.planned_at_us, now_us)
            if cohort.claim(claim, event.planned_at_us):
                self._coalescer.report_array(cohort.splits, cohort.watermarks_us)
                self._material = True
            if event.watermarks_us:
                self._stir(event.planned_at_us)
            for split in sorted(claim.others, key=split_order):
                self._deliver(split, event, why, now_us)
        else:
            self._dissolve()
            self._deliver_each(event, why, now_us)
        self._learn_backlog(event, now_us)
        self._coalescer.regressions = regressions  # a claim below a split's watermark is no regression

    def _guarded(self, event: BatchPlanned, now_us: int) -> BatchPlanned:
        """Drop the claims beyond the future guard, because rows beyond the guard move no watermark either."""
        guard_us, claimed = self._strategy.future_guard_us, event.watermarks_us
        if guard_us is None or not claimed:
            return event
        most_us = self._strategy.watermark_of_max(event.planned_at_us + guard_us)
        top_us = claimed.values_of.max() if isinstance(claimed, SplitColumn) else max(claimed.values())
        if top_us <= most_us:
            return event
        for split, watermark_us in claimed.items():
            if watermark_us not in INT64:
                raise InvalidWatermark(split, watermark_us)
        kept = {split: watermark_us for split, watermark_us in claimed.items() if watermark_us <= most_us}
        self._discover(claimed, frozenset(), event.planned_at_us, now_us)
        return replace(event, watermarks_us=kept)

    def _deliver_each(self, event: BatchReported | BatchPlanned, why: str, now_us: int) -> None:
        self._check_range(event)
        delivered = [*event.watermarks_us, *(split for split, rows in _rows(event).items() if rows > 0)]
        self._discover((*delivered, *event.backlog_rows), frozenset(), event.planned_at_us, now_us)
        if delivered:
            self._stir(event.planned_at_us)
        if isinstance(event, BatchReported):
            self._read(event.planned_at_us)
            if delivered:
                self._flow(event.planned_at_us)
        for split in sorted(set(delivered), key=split_order):
            self._deliver(split, event, why, now_us)

    def _report_together(self, event: BatchReported, cohort: Cohort, now_us: int) -> None:
        """Do the work of ``_report_each`` for all splits of the cohort at once."""
        column = event.watermarks_us
        assert isinstance(column, SplitColumn)
        self._discover(event.backlog_rows, frozenset(), event.planned_at_us, now_us)
        self._read(event.planned_at_us)
        self._stir(event.planned_at_us)
        self._flow(event.planned_at_us)
        self._planned_us = self._filled_us = event.planned_at_us
        low_us, tally = self._coalescer.low_us, self._tally
        in_force_us = low_us if event.in_force_us is None else event.in_force_us
        tally.count_batch(event, now_us)
        late_reports, native_late_rows = cohort.count_late(
            event, in_force_us, tally.native_of(event), self._strategy.out_of_orderness_us
        )
        tally.late_reports += late_reports
        top_us = column.values_of.max().item()
        tally.count_native_late(event, native_late_rows, top_us)
        tally.saw(top_us)
        tally.saw_time(event.newest_us)
        self._coalescer.report_array(column.splits, column.values_of)
        self._material |= cohort.report(event, now_us)
        self._learn_backlog(event, now_us)

    def _gather(self, event: BatchReported) -> None:
        """Make a cohort of the splits if they report together a second time."""
        column, last = event.watermarks_us, self._last_column
        self._last_column = column if isinstance(column, SplitColumn) else None
        if not isinstance(column, SplitColumn) or last is None or not column:
            return
        if np.array_equal(column.splits, last.splits) and len(column) == len(column.splits):
            own_us, heard_us = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
            for row, split in enumerate(column):
                at_us, heard_at_us = self._lineage.watermark_us(split), self._records[split].heard_us
                timed_us = heard_at_us if self._idleness is None else self._idleness.heard_us(split)
                active = self._lineage.state(split) is SplitState.ACTIVE
                if at_us is None or not active or heard_at_us is None or timed_us != heard_at_us:
                    return
                own_us[row], heard_us[row] = at_us, heard_at_us
            self._cohort = Cohort(SplitColumn(column.splits, own_us), heard_us)
            if self._idleness is not None:
                self._idleness.forget_all(column)

    def _dissolve(self) -> None:
        """Move the numbers of the cohort back to the single splits, before an event of single splits."""
        cohort, self._cohort = self._cohort, None
        if cohort is not None:
            for split in cohort:
                self._records[split].heard_us = cohort.heard_us(split)
                self._tally.splits[split] = cohort.tally(split, self._tally.splits.get(split, SplitTally()))
            if self._idleness is not None:
                self._idleness.heard_all((split, cohort.heard_us(split)) for split in cohort)

    def _deliver(self, split: SplitId, event: BatchReported | BatchPlanned, why: str, now_us: int) -> None:
        """Apply the report of one split. The split becomes active, unless the report is old news, or by hand."""
        record, before = self._records[split], self._lineage.state(split)
        if before is SplitState.FINISHED:
            return  # a late report of a split that is finished for good
        news = record.heard_us is None or event.planned_at_us > record.heard_us
        watermark_us, seen_us = event.watermarks_us.get(split), self._lineage.watermark_us(split)
        if watermark_us is not None and record.waits:
            record.waits = False  # from now on the split is timed like any other split
            if self._idleness is not None and before is not SplitState.PAUSED:
                self._idleness.resume(split, event.planned_at_us)
        if news:
            record.heard_us = event.planned_at_us
            self._time_silence(split, event.planned_at_us)
        if watermark_us is not None:
            self._material |= seen_us is None or watermark_us > seen_us
            self._lineage.speak(split)
            self._coalescer.report(split, watermark_us)
            self._grace.forget(split)
        elif news and self._coalescer.wake(split):  # without a usable event time: active at its old watermark
            record.pending_since_us = now_us
            self._time_grace(split)
        mark = self._by_hand.get(split)
        if mark is not None and mark.ends_with(event.planned_at_us):
            self._material |= self._by_hand.drop(split)
        elif mark is not None or (before is SplitState.IDLE and not news):
            self._coalescer.idle(split)
            if mark is not None:
                self._stop_timers(split)
                return
        if before is SplitState.ACTIVE:
            return  # the state did not change
        self._note(split, before, why)
        low_us, came_in = self._coalescer.low_us, before in (SplitState.IDLE, SplitState.PENDING)
        if news and came_in and low_us is not None and watermark_us is not None and watermark_us < low_us:
            self._late.append(SplitReturnedLate(split, low_us - watermark_us, _rows(event).get(split)))
            self._tally.returned_late += 1

    def _learn_backlog(self, event: BatchReported | BatchPlanned, now_us: int) -> None:
        """Note backlogs. A backlog stays until its split reports another, or delivers rows without a backlog."""
        if self._backlog_rows:
            for split in chain(_rows(event), event.watermarks_us):
                self._backlog_rows.pop(split, None)
        self._backlog_rows.update(event.backlog_rows)
        idle = self._lineage.states[SplitState.IDLE] > 0
        for split, rows in event.backlog_rows.items() if idle else ():
            if rows > 0 and self._lineage.state(split) is SplitState.IDLE:
                self._wake(split, f"{rows} rows are waiting in it", now_us)
        for split in self._lineage.pending:
            self._time_grace(split)

    def _wake(self, split: SplitId, why: str, now_us: int) -> None:
        """Wake an idle split with rows waiting, so that it holds before these rows are read."""
        if split in self._by_hand or (
            self._lineage.watermark_us(split) is None and self._strategy.grace_us is not None
        ):
            return  # left out by a person, or by a grace set by the user: only rows of the split bring it back
        self._coalescer.wake(split)
        self._records[split].pending_since_us = now_us
        self._start_timers(split, now_us)
        self._stir(now_us)
        self._note(split, SplitState.IDLE, why)

    def _finish(self, splits: Iterable[SplitId], now_us: int) -> None:
        self._dissolve()
        splits = tuple(splits)
        self._discover(splits, frozenset(), now_us, now_us)
        for split in splits:
            before = self._lineage.state(split)
            self._material |= self._coalescer.finish(split)
            self._by_hand.drop(split)
            self._stop_timers(split)
            self._note(split, before, "every row of it was processed")

    def _pause(self, splits: Iterable[SplitId], now_us: int) -> None:
        self._dissolve()
        for split in splits:
            if split in self._coalescer:
                before = self._lineage.state(split)
                if self._coalescer.pause(split):
                    self._grace.forget(split)
                    if self._idleness is not None:
                        self._idleness.pause(split, now_us)
                    self._note(split, before, "alignment holds it back")

    def _resume(self, splits: Iterable[SplitId], now_us: int) -> None:
        self._dissolve()
        for split in splits:
            if split in self._coalescer:
                before = self._lineage.state(split)
                if self._coalescer.resume(split):
                    self._records[split].pending_since_us = now_us
                    self._time_grace(split)
                    self._stir(now_us)
                    if self._idleness is not None:
                        self._idleness.resume(split, now_us)
                    self._note(split, before, "alignment lets it go on")

    def _remove(self, splits: Iterable[SplitId]) -> None:
        self._dissolve()
        for split in splits:
            if self._lineage.remove(split):
                self._stop_timers(split)
                del self._records[split]
                self._tally.forget(split)
                self._by_hand.drop(split)
                if self._bounds is not None:
                    self._bounds.forget(split)
                self._backlog_rows.pop(split, None)
                self._before.pop(split, None)
                self._material = True

    # -- splits left out by hand

    def _mark(self, event: SplitsMarkedIdle, now_us: int) -> None:
        self._dissolve()
        mark = Mark(event.by, now_us, event.until_us)
        known = [split for split in dict.fromkeys(event.splits) if split in self._coalescer]
        for split in known if event.until_us is None or event.until_us > now_us else ():
            before = self._lineage.state(split)
            if before is SplitState.FINISHED or not self._by_hand.put(split, mark):
                continue
            self._coalescer.resume(split)  # alignment holds back only splits that take part
            self._coalescer.idle(split)
            self._stop_timers(split)
            self._note(split, before, str(mark))
            self._records[split].why = str(mark)  # also of a split that was idle before
            self._material = True

    def _end_marks(self, now_us: int) -> None:
        for split in self._by_hand.over(now_us):
            self._take_back(split, f"the time is over in which it was {self._by_hand[split]}", now_us)

    def _take_back(self, split: SplitId, why: str, now_us: int) -> None:
        """End a mark: the split takes part again, and is timed from now on."""
        if not self._by_hand.drop(split):
            return
        self._material = True
        self._coalescer.wake(split)
        self._records[split].pending_since_us = now_us
        self._start_timers(split, now_us)
        self._stir(now_us)
        self._note(split, SplitState.IDLE, why)
        low_us, own_us = self._coalescer.low_us, self._lineage.watermark_us(split)
        if low_us is not None and own_us is not None and own_us < low_us:
            self._late.append(SplitReturnedLate(split, low_us - own_us, None))
            self._tally.returned_late += 1

    # -- a lost report

    def _end_loss(self) -> None:
        """End the hold after a lost report once the splits of that batch had time to report again."""
        if self._lost is None or self._read_until_us is None:
            return
        if self._read_until_us - self._lost[1] > self._grace_us:
            self._lost, self._material = None, True

    # -- quiet splits

    def _read(self, until_us: int) -> None:
        self._read_until_us = until_us if self._read_until_us is None else max(self._read_until_us, until_us)
        if self._idleness is not None:
            self._idleness.read(until_us)

    def _leave_quiet_out(self, now_us: int) -> None:
        if self._idleness is not None and self._read_until_us is not None:
            cohort, read_us = self._cohort, self._read_until_us
            if cohort is not None and self._idleness.runs_out(cohort.earliest_heard_us, read_us):
                self._dissolve()
            grows = self._strategy.progressive is not None
            timeout = (rough_duration_us if grows else format_duration_us)(self._idleness.timeout_us)
            meanwhile = "" if self._by_time else " while others delivered"
            for split in self._idleness.quiet(self._read_until_us, self._backlog_rows):
                known = "no backlog" if split in self._backlog_rows else "backlog unknown"
                self._leave_out(split, f"silent for more than {timeout}{meanwhile}, {known}")
        # During a long batch nothing else is read: an empty split whose first rows arrive meanwhile must not be passed
        # before these rows can be read.
        until_us = now_us if self._strategy.grace_us is not None else self._read_until_us
        for split in () if until_us is None else self._grace.quiet(until_us, {}):
            self._leave_out(split, f"new, and silent for more than its grace of {format_duration_us(self._grace_us)}")

    def _stir(self, at_us: int) -> None:
        self._stirred_us = at_us if self._stirred_us is None else max(self._stirred_us, at_us)

    def _flow(self, at_us: int) -> None:
        """Note a delivery: time up to this moment counts as silence of the splits that did not deliver."""
        self._grace.delivered(at_us)
        if self._idleness is not None:
            self._idleness.delivered(at_us)

    @property
    def _by_time(self) -> bool:
        return self._strategy.silence_clock is IdleClock.TIME

    def _leave_out(self, split: SplitId, why: str) -> None:
        before = self._lineage.state(split)
        self._coalescer.idle(split)
        self._stop_timers(split)
        self._note(split, before, why)

    def _start_timers(self, split: SplitId, at_us: int) -> None:
        if self._lineage.state(split) not in (SplitState.IDLE, SplitState.FINISHED):
            self._time_silence(split, at_us)
            self._time_grace(split)

    def _time_silence(self, split: SplitId, at_us: int) -> None:
        if self._idleness is not None:
            self._idleness.heard(split, at_us)

    def _time_grace(self, split: SplitId) -> None:
        """Time the grace of a silent new split if the split is known to be empty, or if the strategy sets a grace."""
        bounded = self._strategy.grace_us is not None or self._backlog_rows.get(split) == 0
        if bounded and self._lineage.state(split) is SplitState.PENDING and not self._records[split].waits:
            self._grace.heard(split, self._records[split].pending_since_us)
        else:
            self._grace.forget(split)

    def _stop_timers(self, split: SplitId) -> None:
        self._grace.forget(split)
        if self._idleness is not None:
            self._idleness.forget(split)

    def _let_inherit(self, now_us: int) -> None:
        """Give silent children the watermarks of their parents; time a child once no parent can deliver."""
        self._lineage.settle()
        for child in self._lineage.children:
            if self._lineage.state(child) is not SplitState.PENDING:
                continue
            record, waits = self._records[child], self._lineage.waits(child)
            if waits:
                self._grace.forget(child)
                if self._idleness is not None:
                    self._idleness.pause(child, now_us)
            elif record.waits:
                record.waits, record.pending_since_us = False, now_us
                self._start_timers(child, now_us)
                if self._idleness is not None:
                    self._idleness.resume(child, now_us)
            record.waits = waits

    # -- effects

    def _note(self, split: SplitId, before: SplitState, why: str) -> None:
        if self._lineage.state(split) is not before:
            self._before.setdefault(split, before)
            self._records[split].why = why

    def _effects(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for split in sorted(self._before, key=split_order):
            before, after = self._before[split], self._lineage.state(split)
            if after is not before:
                effects.append(SplitStateChanged(split, before, after, self._records[split].why))
        late = sorted(self._late, key=lambda each: split_order(each.split))
        effects.extend(late)
        # ``AllIdle.ADVANCE`` follows the time up to which the sources were read, because later rows are not known yet.
        advance = None if self._lost is not None else self._coalescer.advance(self._read_until_us)
        if advance:
            self._material, self._moved_at_us = True, now_us
            effects.append(
                NotifyNewLowWatermark(self._job_id, self._source_id, self._task_id, now_us, advance.after_us)
            )
        low_us = self._coalescer.low_us
        if (effects or self._material) and low_us is not None:  # otherwise the holder is the same
            self._history.rose(now_us, low_us, self._coalescer.holder)
        self._epoch += self._material
        return effects

    def _new_coalescer(self, low_us: int | None) -> Coalescer:
        strategy = self._strategy
        return Coalescer(
            low_us,
            strategy.all_idle,
            all_idle_delay_us=strategy.all_idle_delay_us,
            percentile=strategy.percentile,
            quorum=strategy.quorum,
        )

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


def _idleness(
    strategy: WatermarkStrategy, grows: ProgressiveIdleness | None, began_us: int | None = None
) -> Idleness | None:
    if strategy.idle_timeout_us is None:
        return None
    return Idleness(strategy.idle_timeout_us, strategy.silence_clock, grows=grows, began_us=began_us)


def _rows(event: BatchReported | BatchPlanned) -> Mapping[SplitId, int]:
    return event.rows if isinstance(event, BatchReported) else {}
