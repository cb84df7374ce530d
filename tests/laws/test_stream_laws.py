"""The coordinator equals the naive definition, recomputed from the whole history after every step.

The definition has no timers and no queue: of every split it knows the last delivery, the reported backlog, the pauses
and the parents, and of the stream the time up to which it was read, and the microseconds between or shortly before
deliveries that count as silence of the others; and until when a person leaves a split out, and which idleness a person
set. States and the low watermark follow.

Three more laws: a repeated event has no effects; the splits of an event commute; a crash at any moment changes no
published value. The last law holds for strategies without idleness and grace, whose timers begin anew by design; with
them, the low watermark, the values and the states survive the crash itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lowmark.watermark import AllIdle, InvalidReshard, NotifyNewLowWatermark, SplitId, SplitState, WatermarkStrategy
from lowmark.watermark.splits.events import (
    BatchCounts,
    BatchPlanned,
    BatchReported,
    Effect,
    Event,
    InputEnded,
    Polled,
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
    StrategySet,
    Tick,
)
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.state import IdleClock
from lowmark.watermark.strategy import ProgressiveIdleness

from tests.laws.strategies import LAWS, SPLITS, draws, reports, splits, watermarks_us
from tests.watermark.splits.invariants import check

PENDING, ACTIVE, PAUSED, IDLE, FINISHED = SplitState
TIMEOUT_US = 10
DELAY_US = 7
STRATEGIES = [
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, idle_clock=IdleClock.TIME),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, progressive=ProgressiveIdleness(2, 50)),
    WatermarkStrategy(
        idle_timeout_us=TIMEOUT_US, idle_clock=IdleClock.TIME, progressive=ProgressiveIdleness(1, TIMEOUT_US)
    ),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, all_idle=AllIdle.MAX),
    WatermarkStrategy(idle_timeout_us=TIMEOUT_US, all_idle=AllIdle.ADVANCE, all_idle_delay_us=DELAY_US),
    WatermarkStrategy(),
]


@dataclass
class Split:
    """The history of a split."""

    known_at_us: int
    watermark_us: int | None = None
    backlog_rows: int | None = None
    stopped_at_us: int | None = None  # start of a time without reads: a pause, or a wait for the parents
    heard_us: int | None = None  # newest plan of a batch with rows
    silent_since_us: int = 0  # the same, or the time of its discovery or resumption
    pauses: list[tuple[int, int]] = field(default_factory=list)  # (from, to): the time between is no silence
    state: SplitState = PENDING
    parents: set[str] = field(default_factory=set)  # of a silent child
    left_us: list[int] = field(default_factory=list)  # watermarks of removed parents
    waits: bool = False
    by_hand: tuple[int, int | None] | None = None  # since when and until when a person leaves it out
    held_back: bool = False  # by alignment, also while it is left out

    def read_again(self, at_us: int) -> None:
        """End a time without reads, which does not count as silence."""
        assert self.stopped_at_us is not None
        self.pauses.append((self.stopped_at_us, at_us))
        self.stopped_at_us = None

    def idle(self) -> None:
        self.state, self.pauses = IDLE, []

    def pause_held_back(self, at_us: int) -> None:
        """Pause a split that takes part again."""
        if self.held_back:
            self.state, self.stopped_at_us = PAUSED, at_us

    @property
    def live(self) -> SplitState:
        return PENDING if self.watermark_us is None else ACTIVE


@dataclass
class Definition:
    strategy: WatermarkStrategy
    low_us: int | None = None
    splits: dict[str, Split] = field(default_factory=dict)
    read_until_us: int | None = None
    began_us: int | None = None  # when its first split became known, or the end of the first read
    batches: list[int] = field(default_factory=list)
    rows: int = 0
    flow: set[int] = field(default_factory=set)  # the microseconds that count as silence
    delivered_us: int | None = None  # when the newest delivery was planned
    stirred_us: int | None = None  # when a split was last heard, discovered or resumed
    ended: bool = False  # whether no split will be added

    @property
    def timeout_us(self) -> int | None:
        """How long a split may be silent, at the present age of the stream."""
        age_us = 0 if self.began_us is None or self.read_until_us is None else self.read_until_us - self.began_us
        whole_us, grows = self.strategy.idle_timeout_us, self.strategy.progressive
        if whole_us is None or grows is None:
            return whole_us
        return grows.at_start_us + (whole_us - grows.at_start_us) * min(max(0, age_us), grows.over_us) // grows.over_us

    def flows(self, at_us: int) -> None:
        """Some split delivered: the time shortly before counts as silence of the others."""
        timeout_us = self.timeout_us or 0
        short_us, pause_us = max(1, timeout_us // 2), max(1, timeout_us // 4)  # longest whole gap; other gaps
        if self.delivered_us is None or at_us > self.delivered_us:
            short = self.delivered_us is not None and at_us - self.delivered_us <= short_us
            self.flow |= set(range(self.delivered_us if short else at_us - pause_us, at_us))  # type: ignore[arg-type]
            self.delivered_us = at_us

    def stir(self, at_us: int) -> None:
        self.stirred_us = at_us if self.stirred_us is None else max(at_us, self.stirred_us)

    def silence_us(self, split: Split) -> int:
        assert self.read_until_us is not None
        counted = range(split.silent_since_us, self.read_until_us)
        if self.strategy.silence_clock is IdleClock.FLOW:
            counted = [us for us in self.flow if us >= split.silent_since_us]  # type: ignore[assignment]
        return sum(1 for us in counted if not any(start <= us < end for start, end in split.pauses))

    @property
    def silent(self) -> bool:
        """Whether every live split would be idle if time alone counted."""
        live = [split for split in self.splits.values() if split.state in (PENDING, ACTIVE, PAUSED)]
        return (
            self.strategy.silence_clock is IdleClock.FLOW
            and self.timeout_us is not None
            and self.read_until_us is not None
            and self.stirred_us is not None
            and self.read_until_us - self.stirred_us > self.timeout_us
            and bool(live)
            and all(split.state is not PAUSED and not (split.backlog_rows or 0) > 0 for split in live)
        )

    def discover(self, name: str, at_us: int) -> Split:
        if name not in self.splits:
            self.splits[name] = Split(at_us, silent_since_us=at_us)
            self.began_us = at_us if self.began_us is None else self.began_us
            self.stir(at_us)
        return self.splits[name]

    def read(self, until_us: int) -> None:
        self.began_us = until_us if self.began_us is None else self.began_us
        self.read_until_us = until_us if self.read_until_us is None else max(self.read_until_us, until_us)

    def report(self, event: BatchReported, now_us: int, *, promised: bool = False) -> None:
        fresh = not self.batches or event.batch_id > max(self.batches)
        if not promised:
            self.read(event.planned_at_us)
        for name in (*event.watermarks_us, *event.rows, *event.backlog_rows):
            self.discover(str(name), event.planned_at_us)
        if event.watermarks_us or event.rows:
            self.stir(event.planned_at_us)
            if not promised:
                self.flows(event.planned_at_us)
        for name in {*event.watermarks_us, *event.rows}:
            split = self.splits[str(name)]
            if fresh:
                split.backlog_rows = None
            if split.state is not FINISHED:
                self.delivered(split, event.watermarks_us.get(name), event.planned_at_us, now_us)
        if fresh:
            self.batches.append(event.batch_id)
            self.rows += event.counts.rows
            for name, rows in event.backlog_rows.items():
                split = self.splits[str(name)]
                split.backlog_rows = rows
                if rows > 0 and split.state is IDLE and split.by_hand is None:
                    self.wake(split, now_us)

    def wake(self, split: Split, now_us: int) -> None:
        split.state, split.silent_since_us, split.by_hand = split.live, now_us, None
        self.stir(now_us)
        split.pause_held_back(now_us)

    def mark(self, name: str, now_us: int, until_us: int | None) -> None:
        split = self.splits.get(name)
        if split is not None and split.state is not FINISHED and (until_us is None or until_us > now_us):
            split.by_hand, split.stopped_at_us = (now_us, until_us), None
            split.idle()

    def set_strategy(self, strategy: WatermarkStrategy, now_us: int) -> None:
        """Count every silence anew if the idleness is another one."""
        before, self.strategy = self.strategy, strategy
        if (before.idle_timeout_us, before.progressive) == (strategy.idle_timeout_us, strategy.progressive):
            return
        self.flow, self.delivered_us = set(), None
        for split in self.splits.values():
            split.silent_since_us, split.pauses = now_us, []
            split.stopped_at_us = now_us if split.state is PAUSED or split.waits else None

    def plan(self, event: BatchPlanned, now_us: int) -> None:
        """Apply a plan: a claim that raises a watermark counts as a delivery, and no row of the batch is read yet."""
        counted, self.batches = self.batches, []
        guard_us = self.strategy.future_guard_us
        assert guard_us is not None
        most_us = (event.planned_at_us + guard_us) // 1_000 * 1_000 - 1_000  # the strategies here have the bound 0
        believed = {name: us for name, us in event.watermarks_us.items() if us <= most_us}
        for name in event.watermarks_us:
            self.discover(str(name), event.planned_at_us)
        stood_at = {name: self.splits[str(name)].watermark_us for name in believed}
        news = {name: us for name, us in believed.items() if (at_us := stood_at[name]) is None or us > at_us}
        for name in believed:
            self.splits[str(name)].backlog_rows = None
        as_report = BatchReported(0, event.planned_at_us, news, backlog_rows=event.backlog_rows)
        self.report(as_report, now_us, promised=True)
        self.batches = counted

    def delivered(self, split: Split, watermark_us: int | None, planned_us: int, now_us: int) -> None:
        news = split.heard_us is None or planned_us > split.heard_us
        if watermark_us is not None:
            if split.waits and split.state is not PAUSED and split.stopped_at_us is not None:  # None: marked by hand
                split.read_again(planned_us)
            split.parents, split.left_us, split.waits = set(), [], False
        if news:
            split.heard_us = planned_us
            split.silent_since_us = planned_us if split.state is IDLE else max(split.silent_since_us, planned_us)
        if watermark_us is not None:
            split.watermark_us = max(watermark_us, watermark_us if split.watermark_us is None else split.watermark_us)
        if split.by_hand is not None:
            since_us, until_us = split.by_hand
            if until_us is None and planned_us > since_us:
                split.by_hand, split.state = None, split.live
                split.pause_held_back(now_us)
        elif split.state is PENDING or (split.state is IDLE and news):
            split.state = split.live
            split.pause_held_back(now_us)

    def decide(self, now_us: int) -> None:
        for split in self.splits.values():
            if split.by_hand is not None and split.by_hand[1] is not None and split.by_hand[1] <= now_us:
                self.wake(split, now_us)
        if self.timeout_us is not None and self.read_until_us is not None:
            for split in self.splits.values():
                timed = split.state in (PENDING, ACTIVE) and not split.waits and not (split.backlog_rows or 0) > 0
                if timed and self.silence_us(split) > self.timeout_us:
                    split.idle()
        for split in self.splits.values():
            if split.state is PENDING and (split.parents or split.left_us):
                self.wait(split, now_us)
        minimum_us = self.minimum_us(now_us)
        if minimum_us is not None:
            self.low_us = minimum_us if self.low_us is None else max(minimum_us, self.low_us)

    def wait(self, child: Split, now_us: int) -> None:
        waited = child.waits
        parents = [self.splits[name] for name in child.parents if name in self.splits]
        child.waits = any(parent.state in (PENDING, ACTIVE, PAUSED) for parent in parents)
        if child.waits and child.stopped_at_us is None:
            child.stopped_at_us = now_us
        elif waited and not child.waits:
            child.stopped_at_us, child.silent_since_us = None, max(child.silent_since_us, now_us)

    def ancestors(self, names: set[str]) -> set[str]:
        further = {p for name in names if name in self.splits for p in self.splits[name].parents} - names
        return self.ancestors(names | further) if further else names

    def reshard(self, parents: set[str], children: set[str], now_us: int) -> None:
        for name in children:
            child = self.discover(name, now_us)
            if child.watermark_us is None and not parents <= child.parents:
                child.parents |= parents
                if child.state is IDLE and child.by_hand is None:  # it was left out before its parents were known
                    self.wake(child, now_us)

    def remove(self, name: str) -> None:
        at_us = self.stands_at_us(name)
        for child in self.splits.values():
            if name in child.parents and at_us is not None:
                child.parents.discard(name)
                child.left_us.append(at_us)
        self.splits.pop(name, None)

    def stands_at_us(self, name: str) -> int | None:
        """The split's own watermark, or for a silent child the minimum of its parents' values."""
        split = self.splits.get(name)
        if split is None or split.watermark_us is not None or not (split.parents or split.left_us):
            return None if split is None else split.watermark_us
        at_us = [*map(self.stands_at_us, split.parents), *split.left_us]
        known = [value for value in at_us if value is not None]
        return min(known) if len(known) == len(at_us) else None

    def minimum_us(self, now_us: int) -> int | None:
        at_us = {name: self.stands_at_us(name) for name in self.splits}
        live = [at_us[name] for name, split in self.splits.items() if split.state in (PENDING, ACTIVE, PAUSED)]
        idle = [at_us[name] for name, split in self.splits.items() if split.state is IDLE]
        if live:
            known = [value for value in live if value is not None]
            return min(known) if len(known) == len(live) else None
        if idle and self.strategy.all_idle is not AllIdle.ADVANCE:
            of_all = max if self.strategy.all_idle is AllIdle.MAX else min
            return of_all((value for value in idle if value is not None), default=None)
        if idle and self.strategy.all_idle is AllIdle.ADVANCE:
            read_us = self.read_until_us
            return None if read_us is None else (read_us - DELAY_US) // 1_000 * 1_000
        finished = [split.watermark_us for split in self.splits.values()]
        return max((value for value in finished if value is not None), default=None) if self.ended else None


def watermarks_of(strategy: WatermarkStrategy) -> SplitWatermarks:
    return SplitWatermarks(strategy, job_id="j", source_id="s", task_id="t")


def restored(of_splits: SplitWatermarks, strategy: WatermarkStrategy, now_us: int) -> SplitWatermarks:
    data = of_splits.snapshot()
    again = SplitWatermarks.restore(data, strategy, job_id="j", source_id="s", task_id="t", now_us=now_us)
    assert data == again.snapshot()
    return again


class CoordinatorIsItsDefinition(RuleBasedStateMachine):
    @initialize(strategy=st.sampled_from(STRATEGIES))
    def begin(self, strategy: WatermarkStrategy) -> None:
        self.strategy = strategy
        self.watermarks = watermarks_of(strategy)
        self.definition = Definition(strategy)
        self.now_us = 1_000
        self.batch_id = -1
        self.came_in: set[SplitId] = set()  # splits that were new or left out since their last rows

    def handle(self, event: Event) -> list[Effect]:
        """Handle an event twice: the second time must have no effect."""
        before = self.states(), self.watermarks.low_watermark_us, self.watermarks.epoch
        effects = self.watermarks.handle(event, self.now_us)
        self.came_in.update(name for name in self.states() if before[0].get(name, PENDING) in (PENDING, IDLE))
        once = self.watermarks.status(self.now_us)
        epoch = self.watermarks.epoch
        assert self.watermarks.handle(event, self.now_us) == []
        assert (once, epoch) == (self.watermarks.status(self.now_us), self.watermarks.epoch)
        self.definition.decide(self.now_us)
        self.effects_tell_the_difference(effects, *before)
        self.came_in.difference_update(event.rows if isinstance(event, BatchReported) else ())
        return effects

    def states(self) -> dict[str, SplitState]:
        return {name: split.state for name, split in self.watermarks.status(self.now_us).splits.items()}

    def effects_tell_the_difference(
        self, effects: list[Effect], states: dict[str, SplitState], low_us: int | None, epoch: int
    ) -> None:
        told = {e.split: (e.before, e.after) for e in effects if isinstance(e, SplitStateChanged)}
        now = self.states()
        changed = {s: (states.get(s, PENDING), now[s]) for s in now if now[s] is not states.get(s, PENDING)}
        assert changed == told
        lows = [e.new_low_watermark for e in effects if isinstance(e, NotifyNewLowWatermark)]
        after_us = self.watermarks.low_watermark_us
        assert ([] if low_us == after_us else [after_us]) == lows
        assert epoch < self.watermarks.epoch or low_us == after_us
        for late in effects:
            if isinstance(late, SplitReturnedLate):
                assert low_us is not None
                assert late.behind_us > 0
                assert late.split in self.came_in

    @rule(us=st.sampled_from((0, 1, 3, TIMEOUT_US, TIMEOUT_US + 1, 1_000)))
    def wait(self, us: int) -> None:
        self.now_us += us

    @rule(names=st.lists(splits, max_size=3))
    def discover(self, names: list[str]) -> None:
        for name in names:
            self.definition.discover(name, self.now_us)
        self.handle(SplitsDiscovered(tuple(names)))

    @rule(
        watermarks=reports,
        backlog=st.dictionaries(splits, st.sampled_from((0, 1, 9)), max_size=3),
        unusable=st.lists(splits, max_size=1),
        ago_us=st.sampled_from((0, 0, 0, 1, TIMEOUT_US, 30)),
        step=st.sampled_from((1, 1, 1, 0, -1)),
    )
    def report(
        self,
        watermarks: dict[SplitId, int],
        backlog: dict[SplitId, int],
        unusable: list[SplitId],
        ago_us: int,
        step: int,
    ) -> None:
        self.batch_id += step
        rows = {**dict.fromkeys(unusable, 1), **dict.fromkeys(watermarks, 2)}
        event = BatchReported(
            self.batch_id,
            self.now_us - ago_us,
            watermarks,
            rows=rows,
            backlog_rows=backlog,
            counts=BatchCounts(rows=sum(rows.values())),
        )
        self.definition.report(event, self.now_us)
        self.handle(event)

    @rule(
        names=st.sets(splits, min_size=1, max_size=2),
        gaps_us=st.lists(st.integers(1, TIMEOUT_US // 2 + 1), min_size=3, max_size=9),
    )
    def flow(self, names: set[str], gaps_us: list[int]) -> None:
        """Report batch after batch of the same few splits, while the other splits are silent."""
        for gap_us in gaps_us:
            self.now_us += gap_us
            self.report(dict.fromkeys(names, self.now_us), {}, [], 0, 1)
            self.agrees()

    @rule(watermarks=reports, backlog=st.dictionaries(splits, st.sampled_from((0, 1, 9)), max_size=3))
    def plan(self, watermarks: dict[SplitId, int], backlog: dict[SplitId, int]) -> None:
        event = BatchPlanned(self.now_us, watermarks, backlog)
        self.definition.plan(event, self.now_us)
        self.handle(event)

    @rule(ago_us=st.sampled_from((0, 0, 1, TIMEOUT_US)))
    def poll(self, ago_us: int) -> None:
        self.definition.read(self.now_us - ago_us)
        self.handle(Polled(self.now_us - ago_us))

    @rule()
    def tick(self) -> None:
        self.handle(Tick())

    @rule(name=splits)
    def finish(self, name: str) -> None:
        split = self.definition.discover(name, self.now_us)
        split.state, split.by_hand = FINISHED, None
        self.handle(SplitsFinished((name,)))

    @rule()
    def end(self) -> None:
        self.definition.ended = True
        self.handle(InputEnded())

    @rule()
    def finish_all(self) -> None:
        for split in self.definition.splits.values():
            split.state, split.by_hand = FINISHED, None
        self.handle(SplitsFinished(tuple(self.definition.splits)))

    @rule(parents=st.sets(splits, min_size=1, max_size=2), children=st.sets(splits, min_size=1, max_size=2))
    def reshard(self, parents: set[str], children: set[str]) -> None:
        event = SplitsResharded(dict.fromkeys(children, tuple(parents)))
        if children & self.definition.ancestors(parents):
            with pytest.raises(InvalidReshard):
                self.watermarks.handle(event, self.now_us)
        else:
            self.definition.reshard(parents, children, self.now_us)
            self.handle(event)

    @rule(name=splits)
    def pause(self, name: str) -> None:
        split = self.definition.splits.get(name)
        if split is not None:
            split.held_back = True
        if split is not None and split.state in (PENDING, ACTIVE):
            split.state = PAUSED
            split.stopped_at_us = self.now_us if split.stopped_at_us is None else split.stopped_at_us
        self.handle(SplitsPaused((name,)))

    @rule(name=splits)
    def resume(self, name: str) -> None:
        split = self.definition.splits.get(name)
        if split is not None:
            split.held_back = False
        if split is not None and split.state is PAUSED:
            split.read_again(self.now_us)
            split.state = split.live
            self.definition.stir(self.now_us)
        self.handle(SplitsResumed((name,)))

    @rule(name=splits)
    def remove(self, name: str) -> None:
        self.definition.remove(name)
        self.handle(SplitsRemoved((name,)))

    @rule(name=splits, for_us=st.sampled_from((None, None, 0, 3, TIMEOUT_US, 1_000)))
    def mark_idle(self, name: str, for_us: int | None) -> None:
        until_us = None if for_us is None else self.now_us + for_us
        self.definition.mark(name, self.now_us, until_us)
        self.handle(SplitsMarkedIdle((name,), "anna", until_us))

    @rule(name=splits)
    def mark_active(self, name: str) -> None:
        split = self.definition.splits.get(name)
        if split is not None and split.by_hand is not None:
            self.definition.wake(split, self.now_us)
        self.handle(SplitsMarkedActive((name,), "bert"))

    @rule(timeout_us=st.sampled_from((None, 3, TIMEOUT_US, 3 * TIMEOUT_US)))
    def set_idleness(self, timeout_us: int | None) -> None:
        self.strategy = replace(self.strategy, idle_timeout_us=timeout_us, progressive=None)
        self.definition.set_strategy(self.strategy, self.now_us)
        self.handle(StrategySet(self.strategy))

    @rule()
    def crash(self) -> None:
        """The low watermark, the values and the states survive; timers begin anew, counts and backlogs are lost."""
        states, low_us = self.states(), self.watermarks.low_watermark_us
        self.watermarks = restored(self.watermarks, self.strategy, self.now_us)
        assert (states, low_us) == (self.states(), self.watermarks.low_watermark_us)
        self.definition.batches, self.definition.rows, self.definition.read_until_us = [], 0, None
        self.definition.flow, self.definition.delivered_us, self.definition.stirred_us = set(), None, self.now_us
        self.definition.ended = False  # a reader says again that its query ends
        if not self.definition.splits:
            self.definition.began_us = None  # the age is kept only if the snapshot has splits
        for split in self.definition.splits.values():
            split.silent_since_us, split.backlog_rows, split.heard_us = self.now_us, None, None
            split.pauses = []
            split.stopped_at_us = self.now_us if split.state is PAUSED else None
            split.waits, split.held_back = False, split.held_back and split.state is not FINISHED
        for split in self.definition.splits.values():
            if split.state is PENDING and (split.parents or split.left_us):
                self.definition.wait(split, self.now_us)

    @invariant()
    def agrees(self) -> None:
        status = self.watermarks.status(self.now_us)
        expected = self.definition
        assert expected.low_us == self.watermarks.low_watermark_us == status.low_watermark_us
        assert {n: s.state for n, s in expected.splits.items()} == {n: s.state for n, s in status.splits.items()}
        assert {n: s.watermark_us for n, s in expected.splits.items()} == {
            n: s.watermark_us for n, s in status.splits.items()
        }
        silent = {n: s for n, s in expected.splits.items() if s.parents or s.left_us}
        for name, child in silent.items():
            if child.state is not FINISHED:
                assert expected.stands_at_us(name) == self.watermarks._states.lineage.inherited_us(name), name
        assert silent.keys() == set(self.watermarks._states.lineage.children)
        assert (expected.rows, len(expected.batches)) == (status.counts.rows, status.batches)
        assert {n for n, s in expected.splits.items() if s.by_hand is not None} == {n for n, _ in status.by_hand}
        assert expected.silent == (self.watermarks.silent_since_us is not None) == (status.silent_since is not None)
        check(self.watermarks._low.coalescer)

    @invariant()
    def says_when_to_look_again(self) -> None:
        wake_us = self.watermarks.wake_at_us(self.now_us)
        read_us = self.definition.read_until_us
        assert wake_us is None or wake_us >= self.now_us or read_us is None or wake_us > read_us


TestCoordinatorIsItsDefinition = CoordinatorIsItsDefinition.TestCase
TestCoordinatorIsItsDefinition.settings = settings(LAWS, max_examples=draws(100))


# -- whole histories

numbers_of_rows: st.SearchStrategy[dict[SplitId, int]] = st.dictionaries(splits, st.integers(1, 2), max_size=3)
events = st.one_of(
    st.builds(SplitsDiscovered, st.lists(splits, max_size=3).map(tuple)),
    st.builds(Polled, st.integers(0, 100)),
    # Parents sort before their children, so that no drawn history is impossible.
    st.sampled_from([("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]).map(
        lambda pair: SplitsResharded({pair[1]: pair[:1]})
    ),
    st.builds(SplitsFinished, st.lists(splits, max_size=2).map(tuple)),
    st.builds(SplitsPaused, st.lists(splits, max_size=2).map(tuple)),
    st.builds(SplitsResumed, st.lists(splits, max_size=2).map(tuple)),
    st.builds(
        SplitsMarkedIdle, st.lists(splits, max_size=2).map(tuple), st.just("anna"), st.none() | st.integers(0, 20)
    ),
    st.builds(SplitsMarkedActive, st.lists(splits, max_size=2).map(tuple), st.just("bert")),
    st.builds(BatchReported, st.integers(0, 9), st.integers(0, 100), reports, future_rows=numbers_of_rows),
    st.builds(BatchPlanned, st.integers(0, 100), reports, numbers_of_rows),
    st.just(Tick()),
)
histories = st.lists(events, max_size=15)
TURNED = SplitsDiscovered | SplitsFinished | SplitsPaused | SplitsResumed | SplitsMarkedIdle | SplitsMarkedActive


def lows(effects: list[Effect]) -> list[int]:
    return [effect.new_low_watermark for effect in effects if isinstance(effect, NotifyNewLowWatermark)]


@LAWS
@given(histories, st.integers(0, 15), st.sampled_from((WatermarkStrategy(), WatermarkStrategy(all_idle=AllIdle.MAX))))
def test_a_crash_anywhere_changes_nothing_that_is_published(
    history: list[Event], cut: int, strategy: WatermarkStrategy
) -> None:
    """Crash after ``cut`` events, and repeat the last event, as Spark would. Without idleness there are no timers."""
    whole, crashed = watermarks_of(strategy), watermarks_of(strategy)
    expected = [low for now_us, event in enumerate(history) for low in lows(whole.handle(event, now_us))]
    published = [low for now_us, event in enumerate(history[:cut]) for low in lows(crashed.handle(event, now_us))]
    crashed = restored(crashed, strategy, cut)
    for now_us, event in enumerate(history[max(0, cut - 1) :], max(0, cut - 1)):
        published += lows(crashed.handle(event, now_us))

    assert expected == published
    assert whole.snapshot() == crashed.snapshot()


@LAWS
@given(histories, st.sampled_from(STRATEGIES), st.randoms(use_true_random=False))
def test_the_splits_of_an_event_commute(history: list[Event], strategy: WatermarkStrategy, rng: Random) -> None:
    def shuffled_items(values: Mapping[SplitId, int]) -> dict[SplitId, int]:
        items = list(values.items())
        rng.shuffle(items)
        return dict(items)

    def turned(event: Event) -> Event:
        if isinstance(event, BatchReported):
            future_rows = shuffled_items(event.future_rows)
            return replace(event, watermarks_us=shuffled_items(event.watermarks_us), future_rows=future_rows)
        if isinstance(event, BatchPlanned):
            backlog_rows = shuffled_items(event.backlog_rows)
            return replace(event, watermarks_us=shuffled_items(event.watermarks_us), backlog_rows=backlog_rows)
        if isinstance(event, TURNED):
            return replace(event, splits=tuple(reversed(event.splits)))
        return event

    straight, shuffled = watermarks_of(strategy), watermarks_of(strategy)
    for now_us, event in enumerate(history):
        assert straight.handle(event, now_us) == shuffled.handle(turned(event), now_us)
        assert straight.status(now_us) == shuffled.status(now_us)
    assert straight.snapshot() == shuffled.snapshot()


@LAWS
@given(st.lists(st.builds(BatchReported, st.integers(0, 9), st.integers(0, 5), reports), max_size=6), st.data())
def test_batches_in_any_order_any_number_of_times_end_in_one_state(
    batches: list[BatchReported], data: st.DataObject
) -> None:
    """Values and the low watermark must be equal at the end; published values on the way may differ."""
    turned = data.draw(st.permutations([*batches, *batches]))
    outcomes = []
    for order in (batches, turned):
        of_splits = watermarks_of(WatermarkStrategy())
        of_splits.handle(SplitsDiscovered(SPLITS), 0)
        for event in order:
            of_splits.handle(event, 1)
        seen = of_splits.status(2).splits
        outcomes.append(
            ({name: (split.state, split.watermark_us) for name, split in seen.items()}, of_splits.low_watermark_us)
        )

    assert outcomes[0] == outcomes[1]


@LAWS
@given(histories, st.lists(watermarks_us, min_size=1, max_size=4))
def test_nothing_is_published_above_what_a_live_split_has_reached(history: list[Event], more: list[int]) -> None:
    """The inherited value of a silent child is such a limit too."""
    of_splits, published = watermarks_of(WatermarkStrategy()), list[int]()
    for now_us, event in enumerate([*history, BatchReported(99, 99, dict(zip(SPLITS, more, strict=False)))]):
        moved = lows(of_splits.handle(event, now_us))
        published += moved
        lineage = of_splits._states.lineage
        for split in of_splits.splits if moved else ():
            if lineage.state(split) in (PENDING, ACTIVE, PAUSED):
                own_us, inherited_us = lineage.watermark_us(split), lineage.inherited_us(split)
                at_us = inherited_us if own_us is None else own_us
                assert at_us is not None
                assert moved[-1] <= at_us

    assert sorted(set(published)) == published


reshards = st.lists(
    st.one_of(
        st.builds(SplitsDiscovered, st.lists(splits, max_size=3).map(tuple)),
        st.sampled_from([{"b": ("a",), "c": ("a",)}, {"c": ("a", "b")}, {"c": ("b",), "d": ("c",)}, {"d": ("b",)}]).map(
            SplitsResharded  # type: ignore[arg-type]  # mypy takes the mappings for objects
        ),
        st.builds(BatchReported, st.integers(0, 9), st.integers(0, 5), reports),
    ),
    max_size=6,
)


@LAWS
@given(reshards, st.data())
def test_reshards_discoveries_and_reports_in_any_order_any_number_of_times_end_in_one_state(
    history: list[Event], data: st.DataObject
) -> None:
    turned = data.draw(st.permutations([*history, *history]))
    outcomes = []
    for order in (history, turned):
        of_splits = watermarks_of(WatermarkStrategy())
        for event in order:
            of_splits.handle(event, 1)
        lineage = of_splits._states.lineage
        outcomes.append(
            (
                {s: (lineage.state(s), lineage.watermark_us(s), lineage.inherited_us(s)) for s in of_splits.splits},
                lineage.ancestry,
            )
        )

    assert outcomes[0] == outcomes[1]


@LAWS
@given(st.dictionaries(st.sampled_from("abc"), watermarks_us), st.permutations("abc"), st.booleans())
def test_a_silent_grandchild_stands_at_the_minimum_of_all_its_silent_line(
    parents_us: dict[SplitId, int], removed: list[str], finish: bool
) -> None:
    """a and b merge into m, and m and c into g: with every parent known, finished and removed, in any order."""
    of_splits = watermarks_of(WatermarkStrategy())
    for event in (
        SplitsResharded({"m": ("a", "b")}),
        SplitsResharded({"g": ("m", "c")}),
        BatchReported(0, 0, parents_us),
        *((SplitsFinished(("a", "b", "c", "m")),) if finish else ()),
    ):
        of_splits.handle(event, 0)
    expected = min(parents_us.values()) if len(parents_us) == 3 else None
    assert expected == of_splits._states.lineage.inherited_us("g")
    for name in (*removed[:2], "m", removed[2]):
        of_splits.handle(SplitsRemoved((name,)), 0)

        assert expected == of_splits._states.lineage.inherited_us("g")
