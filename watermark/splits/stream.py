"""The watermarks of one stream's splits: events in, effects out. Nothing here waits, calls out, or reads a clock.

Rule 1: everything that decides the low watermark happens in this package.
Rule 2: ``handle`` is the only way in; its effects are the only way out, and the caller carries the effects out.
Rule 3: all changes of one event are applied before anything is decided: first the reports, then idleness, then
        the minimum, once. So the order of the splits within an event has no influence, and a repeated event changes
        nothing.

Three types share the work, in the order of rule 3; `SplitWatermarks` hands each event to them:

    SplitReports  (``split_reports.py``)   what was reported: times, counts and backlogs of the splits
    SplitStates   (``split_states.py``)    who is waited for: the states of the splits, with their ``timers.py``
    LowWatermark  (``low_watermark.py``)   what follows: the low watermark, its holder and its history

Two clocks are used, and must not be mixed up. ``now_us`` is the moment at which an event is handled; a grace set by the
user and the times shown to people use this clock. ``planned_at_us`` and ``until_us`` are moments up to which the
sources were read. Silence (idleness, and the grace of a split known to be empty) is measured on the second clock alone,
because a batch that runs for five minutes reads nothing meanwhile. On this clock only time in which splits delivered
counts (``idleness.py``), unless the strategy asks for time alone.

Source: FLINK-4576 (messages), FLIP-471 (time in which a split may be read), MillWheel (an absent split holds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from lowmark.watermark.protocol import NotifyNewLowWatermark
from lowmark.watermark.state import SplitId, SplitState, split_order
from lowmark.watermark.strategy import WatermarkStrategy

from .adaptive import AdaptiveBounds
from .by_hand import IdleMark
from .changes import Changes
from .cohort import Cohort
from .events import (
    BatchPlanned,
    BatchReported,
    Effect,
    Event,
    InputEnded,
    Polled,
    ReportLost,
    SplitColumn,
    SplitsDiscovered,
    SplitsResharded,
    StrategySet,
    Tick,
)
from .low_watermark import LowWatermark
from .snapshot import StreamSnapshot, decode, encode
from .split_reports import SplitReports, check_range, raising, within_guard
from .split_states import SplitStates
from .status import StreamStatus
from .view import View


class SplitWatermarks:
    """Keeps the low watermark of one stream. The ids go into notifications: application or query, stream, task.

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
        self._begin(StreamSnapshot(), None)

    def _begin(self, saved: StreamSnapshot, restored_us: int | None) -> None:
        """Make the parts, from the state before a restart if there was one."""
        strategy, adaptive = self._strategy, self._strategy.adaptive
        bounds = None if adaptive is None else AdaptiveBounds(adaptive, saved.bounds_us, saved.bound_rows)
        self.names = saved.names
        """The names that came with the snapshot these watermarks were restored from; empty otherwise."""
        self._reports = SplitReports(strategy.out_of_orderness_us, bounds)
        self._low = LowWatermark(strategy, saved.low_us, moved_at_us=restored_us)
        self._states = SplitStates(strategy, self._low.coalescer, self._reports, saved)

    # -- the way in and out

    def handle(self, event: Event, now_us: int, wall_ahead_us: int = 0) -> list[Effect]:
        """Take one event in.

        Args:
            now_us: now, on a clock of microseconds since the epoch that never steps.
            wall_ahead_us: how far the wall clock, by which event times go, is ahead of this clock.

        Returns:
            The effects: changes of state, then late returns, both sorted by split, then at most one notification. An
            event that is repeated at once has no effects the second time.

        Raises (then nothing was changed):
            InvalidSplitId: a split id is of the wrong kind.
            InvalidWatermark: a watermark does not fit 64 bits.
            InvalidReshard: a split would be its own ancestor, or a child has no parent.
        """
        if isinstance(event, BatchReported | BatchPlanned):
            check_range(event.watermarks_us)
        changes = Changes(now_us, wall_ahead_us)
        self._states.spend(now_us)
        match event:
            case SplitsDiscovered(splits, known_empty):
                self._states.discover(splits, now_us, changes, known_empty)
            case SplitsResharded():
                self._states.reshard(event, changes)
            case BatchReported():
                self._report(event, changes)
            case BatchPlanned():
                self._plan(event, changes)
            case Polled(until_us):
                self._states.timers.read(until_us)
            case ReportLost(batch_id):
                self._states.lose(batch_id, changes)
            case StrategySet(strategy):
                self._strategy = strategy
                self._reports.tally.bound_us = strategy.out_of_orderness_us
                self._states.set_idleness(strategy, changes)
            case InputEnded():
                self._low.coalescer.end()
            case Tick():
                pass  # time passed: ``settle`` looks
            case _:
                self._states.signal(event, changes)
        self._states.settle(changes)
        self._reports.tally.returned_late += len(changes.late)
        effects = self._states.told(changes)
        read_until_us, held = self._reports.read_until_us, self._states.lost is not None
        risen_us = self._low.follow(changes, changed=bool(effects), read_until_us=read_until_us, held=held)
        if risen_us is not None:
            effects.append(NotifyNewLowWatermark(self._job_id, self._source_id, self._task_id, now_us, risen_us))
        return effects

    def wake_at_us(self, now_us: int, wall_ahead_us: int = 0) -> int | None:
        """The next moment at which time alone could change something; None if only an event can; clocks as in `handle`.

        Callers then ask the sources and send ``Polled``, or ``Tick`` if the sources cannot be asked. The moment may be
        over already: a deadline that passed while nothing was read waits for the next poll.
        """
        moments = (self._states.next_us(wall_ahead_us), self._low.next_us(now_us, wall_ahead_us))
        return min((us for us in moments if us is not None), default=None)

    @property
    def low_watermark_us(self) -> int | None:
        """The low watermark, microseconds since the epoch; never decreases; None before the first."""
        return self._low.us

    @property
    def heard_us(self) -> int | None:
        """Up to when sources were read when a split last delivered, was discovered, woke or resumed; None: never."""
        return self._states.timers.last_sign_us

    @property
    def patience_us(self) -> int | None:
        """How long no split may be heard before the stream is silent; None: the stream cannot become silent now."""
        return self._states.timers.patience_us

    @property
    def silent_since_us(self) -> int | None:
        """Since when no split delivered, once that is longer than the timeout; None: the stream is not silent.

        On the clock of reads. The group of a silent stream does not wait for it, and its job does not wait once other
        streams deliver. A stream is not silent while rows are known to wait in it or one of its splits is paused, and
        never if time alone makes splits idle.
        """
        return self._states.timers.silent_since_us

    @property
    def grace_us(self) -> int:
        """How long a new split known to be empty may hold, and how long the stream holds after a lost report."""
        return self._states.timers.grace_us

    @property
    def holder(self) -> SplitId | None:
        """The split that holds the low watermark now; None: no split holds."""
        return self._low.coalescer.holder

    @property
    def extra_bound_us(self) -> int:
        """How much more than the strategy's bound the holder's rows may be late; 0 with a constant bound."""
        bounds = self._reports.bounds
        return 0 if bounds is None else bounds.bound_us(self.holder) - self._strategy.out_of_orderness_us

    @property
    def backlog_rows(self) -> int | None:
        """Known unread rows of all splits together; None: no split's backlog is known."""
        backlog_rows = self._reports.backlog_rows
        return sum(backlog_rows.values()) if backlog_rows else None

    @property
    def epoch(self) -> int:
        """Grows when callers must write a new snapshot."""
        return self._low.epoch

    def status(
        self,
        now_us: int,
        name_of: Callable[[SplitId], str] | None = None,
        *,
        limit: int | None = None,
        late_rows: Mapping[SplitId, int] | None = None,
    ) -> StreamStatus:
        """The status for people. O(n log n), some 20 us a split; with a limit about 1 us a split.

        Args:
            name_of: gives the name of a split; by default its id. Two splits of one name get their ids added.
            limit: the number of splits, those that need attention first; None: all splits, sorted by id.
            late_rows: what `SplitStatus.late_rows` shows, which no event brings; None: not counted.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"status of stream {self._source_id}: expected a limit of 0 or more, got {limit}")
        view = View(self._source_id, self._strategy, self._reports, self._states, self._low, late_rows)
        return view.status(now_us, str if name_of is None else name_of, limit)

    def spent_us(self, now_us: int) -> dict[SplitState, int]:
        """Microseconds in each state, added up over all splits, from the first event after a start up to now."""
        return self._states.spent_us(now_us)

    @property
    def late_reports(self) -> int:
        """How often, at least, a split delivered rows at or below the watermark in force; removed splits included."""
        return self._reports.tally.late_reports

    def rises(self, now_us: int) -> tuple[tuple[int, int], ...]:
        """(when, low watermark), microseconds, for the last hour, oldest first; see `History.thinned`."""
        return self._low.history.thinned(now_us)

    @property
    def unusable_times(self) -> str | None:
        """See ``cause.unusable_times``."""
        return self._reports.unusable_times(self._low.us)

    @property
    def states(self) -> Mapping[SplitState, int]:
        """How many splits are in each state; every state is there."""
        return self._states.lineage.states

    @property
    def splits(self) -> tuple[SplitId, ...]:
        """Every known split, finished ones too, in the order of discovery."""
        return tuple(self._states.records)

    def standings(self) -> Iterator[tuple[SplitId, SplitState, int | None]]:
        """Id, state and own watermark of every split, in no particular order. O(n)."""
        return self._states.lineage.standings()

    def tells_of(self, split: SplitId) -> bool:
        """Whether a status tells of a split: the split is known, or its rows of wrong clocks are counted."""
        return split in self._low.coalescer or split in self._reports.tally.future

    def lacks_parents(self, split: SplitId) -> bool:
        """Whether a split would inherit from parents: it has not spoken, and none of its parents was told."""
        return self._states.lineage.lacks_parents(split)

    @property
    def by_hand(self) -> Mapping[SplitId, IdleMark]:
        """The splits that a person has left out, each with the mark."""
        return self._states.by_hand

    @property
    def held_back(self) -> frozenset[SplitId]:
        """The splits that were paused and not resumed since; those of them that take part are PAUSED."""
        return self._states.held_back

    # -- restart

    def snapshot(self, names: Mapping[SplitId, str] | None = None) -> bytes:
        """The state for a restart. Deterministic.

        Args:
            names: the names of splits whose ids are numbers, kept verbatim; None: the restored names.
        """
        states, bounds = self._states, self._reports.bounds
        return encode(
            StreamSnapshot(
                low_us=self._low.us,
                splits={split: (state, at_us) for split, state, at_us in states.lineage.standings()},
                names=self.names if names is None else names,
                ancestry=states.lineage.ancestry,
                bounds_us={} if bounds is None else bounds.kept_us,
                # Without splits the stream has no age: its age counts from its first split.
                young_since_us=states.timers.idle.young_since_us if states.records else None,
                lost=states.lost,
                bound_rows={} if bounds is None else bounds.kept_rows,
                by_hand=states.by_hand,
                held_back=states.held_back,
            )
        )

    @classmethod
    def restore(
        cls, data: bytes, strategy: WatermarkStrategy, *, job_id: str, source_id: str, task_id: str, now_us: int
    ) -> SplitWatermarks:
        """Make the watermarks from a snapshot. Counts begin at 0; idle and grace timers start anew.

        Raises `CorruptSnapshot` if the bytes are no snapshot that this version can read.
        """
        saved = decode(data).until(now_us)
        made = cls(strategy, job_id=job_id, source_id=source_id, task_id=task_id)
        made._begin(saved, now_us)
        made._states.restore(saved, now_us)
        made._reports.tally.restore(us for _, us in saved.splits.values() if us is not None)
        return made

    # -- batches

    def _report(self, made: BatchReported, changes: Changes) -> None:
        if self._reports.bounds is not None:
            self._discover(made, changes)  # may refuse a split, so nothing was learned before
            self._reports.learn(made)
        event = self._reports.bounded(made, self._stands_at_us)
        fresh, cohort = self._reports.tally.fresh(event.batch_id), self._reports.cohort
        if fresh and cohort is not None and cohort.takes(event):
            self._report_together(made, event, cohort, changes)
            return
        self._states.timers.time_each()
        regressions = self._low.coalescer.regressions
        self._deliver_each(event, "delivered rows", changes)
        if fresh:
            self._reports.count(made, event, None, self._low.us, changes.now_us)
            self._note_backlogs(event, changes)
        else:
            self._low.coalescer.regressions = regressions  # they were counted before
        if (gathered := self._reports.gather(event, self._states.steady_us)) is not None:
            self._states.timers.idle.forget_all(gathered)

    def _report_together(self, made: BatchReported, event: BatchReported, cohort: Cohort, changes: Changes) -> None:
        """Report all splits of the cohort at once: only numbers change, because all of them are active."""
        column = event.watermarks_us
        assert isinstance(column, SplitColumn)
        self._states.discover(event.backlog_rows, event.planned_at_us, changes)
        self._read(event, delivered=True)
        self._reports.count(made, event, cohort, self._low.us, changes.now_us)
        changes.material |= cohort.report(event, changes.now_us)
        self._low.coalescer.report_array(column.splits, column.values_of)
        self._note_backlogs(event, changes)

    def _plan(self, event: BatchPlanned, changes: Changes) -> None:
        """Take the claims of a plan like a report, but count nothing, because no row was seen.

        Until the batch is reported the splits with rows in it are unknown, so a plan neither advances the moment up to
        which the sources were read nor counts as a delivery.
        """
        # The guard compares times before a bound is taken off.
        guarded = within_guard(event, self._strategy, changes.wall_ahead_us)
        if guarded is not event:
            self._discover(event, changes)
        event, why = self._reports.bounded(guarded, self._stands_at_us), "its next row is known"
        cohort = self._reports.cohort
        if cohort is None:
            news = raising(event.watermarks_us, self._stands_at_us)
            self._deliver_each(replace(event, watermarks_us=news), why, changes)
        else:
            rows, values_us, others = cohort.sort_out(event.watermarks_us)
            news = raising(others, self._stands_at_us)
            self._states.discover((*news, *event.backlog_rows), event.planned_at_us, changes)
            if rose := cohort.claim(rows, values_us, event.planned_at_us):
                self._low.coalescer.report_array(cohort.splits, cohort.watermarks_us)
                changes.material = True
            self._read(event, delivered=rose or bool(news))
            for split in sorted(news, key=split_order):
                self._states.deliver(split, event, why, changes)
        self._note_backlogs(event, changes)

    def _deliver_each(self, event: BatchReported | BatchPlanned, why: str, changes: Changes) -> None:
        delivered = self._discover(event, changes)
        # A clock that is wrong is no silence; a split that is unknown would hold until its clock is right.
        delivered += [split for split, rows in event.future_rows.items() if rows > 0 and split in self._low.coalescer]
        self._read(event, delivered=bool(delivered))
        for split in sorted(set(delivered), key=split_order):
            self._states.deliver(split, event, why, changes)

    def _discover(self, event: BatchReported | BatchPlanned, changes: Changes) -> list[SplitId]:
        """Wait for the new splits of a batch. Returns the splits with rows or a claim."""
        delivered = [*event.watermarks_us, *(split for split, rows in event.rows.items() if rows > 0)]
        self._states.discover((*delivered, *event.backlog_rows), event.planned_at_us, changes)
        return delivered

    def _read(self, event: BatchReported | BatchPlanned, *, delivered: bool) -> None:
        """Tell the timers of a batch. After a plan nothing was read yet."""
        timers = self._states.timers
        if delivered:
            timers.sign_of_life(event.planned_at_us)
        if isinstance(event, BatchReported):
            timers.read(event.planned_at_us)
            if delivered:
                timers.delivered(event.planned_at_us)

    def _note_backlogs(self, event: BatchReported | BatchPlanned, changes: Changes) -> None:
        self._reports.note_backlogs(event)
        self._states.wake_waiting(event.backlog_rows, changes)

    def _stands_at_us(self, split: SplitId) -> int | None:
        return self._states.lineage.watermark_us(split) if split in self._low.coalescer else None
