"""The coordinator of many tasks equals the naive definition, recomputed from all messages after every step.

The definition has no heap and no coalescer: it knows all reports of each task's run, and the open round of the source.
Further laws: the rows hold the whole state, although only the changes were taken; a repeated message changes
nothing; a refused message changes nothing; the replies within a round commute; and a crash at any moment, with the
newest snapshot or with the last due one, loses only an open round and values that the tasks report again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lowmark.watermark import (
    LowmarkError,
    NotifyNewLowWatermark,
    SplitState,
    StaleRun,
    TaskId,
    TaskNotAway,
    UnknownTask,
)
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.coordinator import CoordinatorEffect, CoordinatorEvent, LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.snapshot import Rows

from tests.laws.strategies import LAWS, SPLITS, draws, splits, watermarks_us
from tests.watermark.tasks.coordinator_world import snapshot_of, taken

INTERVAL_US, LEASE_US = 10, 35
PENDING, ACTIVE, _, IDLE, FINISHED = SplitState
lows_us = st.none() | watermarks_us
left_outs = st.sampled_from((None, None, None, *LeftOut))
PATIENCE_US = 20
patiences_us = st.sampled_from((None, PATIENCE_US, PATIENCE_US, PATIENCE_US // 2))


@dataclass
class Task:
    """All reports of a run of a task."""

    token: str
    heard_us: int
    lows_us: list[int] = field(default_factory=list)
    replies: list[tuple[int, int, LeftOut | None, int | None]] = field(default_factory=list)
    expected: int = 1
    limit_us: int | None = None
    gone: bool = False
    excused: bool = False
    gone_now: bool = False  # since the last end of a round
    waited_us: int = 0
    out: bool = False  # since the end of a round
    passed: bool = False  # left out as idle at the end of the last round
    rows_us: list[int] = field(default_factory=list)  # times at which it had rows
    confirmed: bool = True  # it answered a question after the last restart, or needed no answer

    @property
    def low_us(self) -> int | None:
        return max(self.lows_us, default=None)

    @property
    def left_out(self) -> LeftOut | None:
        if not self.replies:
            return None
        newest = max(reply[:2] for reply in self.replies)
        said = {reply[2] for reply in self.replies if reply[:2] == newest}
        return next(why for why in (None, LeftOut.IDLE, LeftOut.WITHOUT_SPLITS, LeftOut.FINISHED) if why in said)

    @property
    def patience_us(self) -> int | None:
        newest = max((reply[:2] for reply in self.replies), default=None)
        alike = [reply[3] for reply in self.replies if reply[:2] == newest and reply[2] is self.left_out]
        return max((us for us in alike if us is not None), default=None)

    @property
    def state(self) -> SplitState:
        if self.excused:
            return FINISHED
        if self.left_out is not None and not self.gone:
            return IDLE
        return PENDING if self.low_us is None else ACTIVE

    def go(self) -> None:
        """Mark the task as away: it counts even if it was left out, unless it had finished."""
        self.gone = self.gone_now = True
        self.waited_us, self.excused = 0, self.left_out is LeftOut.FINISHED
        self.out = self.out and self.excused


@dataclass
class Definition:
    low_us: int | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    over: set[tuple[str, str]] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    asked_us: int | None = None
    questions_us: set[int] = field(default_factory=set)  # since the last restart
    last_asked_us: int | None = None
    ends_us: int = 0
    beat_us: int | None = None
    listened_us: int = 0
    longest_us: int | None = None  # the longest silence that the tasks allow
    flow: set[int] = field(default_factory=set)  # the microseconds that count as silence
    flowed_us: int | None = None
    newest_us: int | None = None  # when a task had rows; older news counts nothing
    waited_until_us: int | None = None

    @property
    def live(self) -> list[Task]:
        return [task for task in self.tasks.values() if not task.gone]

    @property
    def expected(self) -> int:
        """The number of tasks, as the live tasks say, or the tasks that are away if no task lives."""
        return max((task.expected for task in self.live or self.tasks.values()), default=1)

    def flows(self, at_us: int) -> None:
        """A task had rows: the time since the previous rows, or shortly before, is silence of the other tasks."""
        if self.newest_us is not None and at_us <= self.newest_us:
            return
        self.newest_us = at_us
        if self.longest_us is not None:
            short = self.flowed_us is not None and at_us - self.flowed_us <= self.longest_us // 2
            since_us = self.flowed_us if short else at_us - self.longest_us // 4
            self.flow |= set(range(since_us, at_us))  # type: ignore[arg-type]
            self.flowed_us = at_us

    def waits(self, task: Task) -> bool:
        """Whether a task that reports idle still counts, because the others did not have rows for long enough."""
        if task.gone or task.left_out is not LeftOut.IDLE or task.patience_us is None:
            return False
        silent_us = sum(1 for us in self.flow if us >= max(task.rows_us)) if task.rows_us else 0
        return self.longest_us is None or silent_us <= self.longest_us

    def go(self, task: Task) -> None:
        """A task goes away; no time counts as waiting from the last round to the end of the last live task."""
        task.go()
        if not self.live:
            self.waited_until_us = None

    def reply(
        self, name: str, at: tuple[int, int], low_us: int | None, left_out: LeftOut | None,
        patience_us: int | None = None, silent_us: int | None = None, now_us: int = 0,
    ) -> None:  # fmt: skip
        task = self.tasks[name]
        if silent_us is not None or left_out is None:
            task.rows_us.append(now_us - (silent_us or 0))
            self.flows(task.rows_us[-1])
        task.confirmed |= at[1] in self.questions_us
        if task.confirmed:
            if self.asked_us is not None and at[1] >= self.asked_us:
                self.unanswered.discard(name)
            task.replies.append((*at, left_out, patience_us))
        if low_us is not None:
            if task.low_us is None or low_us > task.low_us:
                task.out = False
            task.lows_us.append(low_us)
        task.out = task.out and task.left_out is not None

    def wait_for_those_away(self) -> None:
        since_us, self.waited_until_us = self.waited_until_us, self.listened_us if self.live else None
        for task in self.tasks.values():
            limited = task.gone and not task.excused and task.limit_us is not None
            if limited and not task.gone_now and since_us is not None:
                task.waited_us += self.listened_us - since_us
                task.excused = task.waited_us > task.limit_us  # type: ignore[operator]
            task.gone_now = False

    def leaves(self, task: Task) -> bool:
        """Whether a task is left out at the end of this round."""
        if task.gone:
            return task.excused or len(self.live) >= self.expected
        return task.confirmed and task.left_out is not None and not (self.waits(task) and not task.out)

    def end_round(self) -> None:
        self.asked_us, self.unanswered = None, set()
        longest_us = max((us for task in self.tasks.values() if (us := task.patience_us) is not None), default=None)
        if longest_us != self.longest_us:
            self.longest_us, self.flow, self.flowed_us = longest_us, set(), None
        self.wait_for_those_away()
        if len(self.tasks) < self.expected:
            return
        for task in self.tasks.values():
            task.out = task.out and (task.confirmed or task.gone)
            silent = not task.gone and task.left_out is LeftOut.IDLE
            task.passed = task.passed and task.left_out is LeftOut.IDLE
            task.out = task.out and not (silent and not task.passed)
        leaves = {name: self.leaves(task) for name, task in self.tasks.items()}
        counted = [t for name, t in self.tasks.items() if not t.out and not (leaves[name] and t.low_us is None)]
        staying = [task for name, task in self.tasks.items() if task in counted and not leaves[name]]
        for some in (counted, staying):
            known = [task.low_us for task in some if task.low_us is not None]
            if some and len(known) == len(some):
                self.low_us = min(known) if self.low_us is None else max(self.low_us, min(known))
        blocked = any(task.low_us is None for task in staying)
        complete = len(self.live) >= self.expected
        for name, task in list(self.tasks.items()):
            out = leaves[name] and (task.out or task.low_us is None or task.gone or not blocked)
            if out and not task.out:
                task.passed = task.left_out is LeftOut.IDLE
            task.out = out
            if task.gone and complete:
                del self.tasks[name]
        idle = [task.low_us for task in self.tasks.values() if task.state is IDLE and task.low_us is not None]
        if idle and not staying:
            self.low_us = min(idle) if self.low_us is None else max(self.low_us, min(idle))

    def end_if_complete(self) -> None:
        if self.asked_us is not None and not self.unanswered:
            self.end_round()

    def forget(self, name: str) -> None:
        self.over.add((name, self.tasks.pop(name).token))
        self.unanswered.discard(name)

    def look(self, now_us: int) -> None:
        """Apply the consequences of time, after every event."""
        lost = False
        for name, task in sorted(self.tasks.items()):
            if not task.gone and self.listened_us - task.heard_us > LEASE_US:
                self.over.add((name, task.token))
                self.unanswered.discard(name)
                self.go(task)
                lost = True
        if lost:
            self.end_if_complete()
        if self.asked_us is not None and now_us >= self.ends_us:
            self.end_round()
        if self.beat_us is not None and now_us >= self.beat_us:
            while self.beat_us <= now_us:
                self.beat_us += INTERVAL_US
            if self.busy:
                if self.asked_us is None:
                    self.asked_us = now_us if self.last_asked_us is None else max(now_us, self.last_asked_us + 1)
                    self.questions_us.add(self.asked_us)
                    self.last_asked_us, self.ends_us = self.asked_us, now_us + LEASE_US
                    self.unanswered = {n for n, t in self.tasks.items() if not t.gone}
                self.end_if_complete()
            if not self.busy:
                self.beat_us = None

    @property
    def busy(self) -> bool:
        return any(not task.gone or (task.gone_now and not task.out) for task in self.tasks.values())


def coordinator() -> LowWatermarkCoordinator:
    return LowWatermarkCoordinator(Settings(interval_us=INTERVAL_US, lease_us=LEASE_US))


def task_id(name: str) -> TaskId:
    return TaskId("job", "orders", name)


class CoordinatorIsItsDefinition(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.coordinator, self.definition = coordinator(), Definition()
        self.now_us, self.handled_us, self.runs = 1_000, 1_000, 0
        self.low_us: int | None = None
        self.journal: tuple[Rows, int, Definition] = (snapshot_of(self.coordinator), 0, Definition())
        self.rows = Rows()

    def handle(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        """Handle an event twice: the second time changes no state and at most repeats a published value.

        An event that began a round is handled once, because its repetition would answer the new round.
        """
        effects = self.coordinator.handle(event, self.now_us)
        once, epoch = snapshot_of(self.coordinator), self.coordinator.epoch
        if not any(isinstance(effect, RetrieveLowWatermark) for effect in effects):
            again = self.coordinator.handle(event, self.now_us)
            assert (once, epoch) == (snapshot_of(self.coordinator), self.coordinator.epoch)
            assert all(isinstance(effect, NotifyNewLowWatermark) for effect in again)
        self.definition.look(self.now_us)
        if epoch != self.journal[1]:
            self.journal = once, epoch, copy.deepcopy(self.definition)
        self.effects_tell_the_difference(effects)
        return effects

    def effects_tell_the_difference(self, effects: list[CoordinatorEffect]) -> None:
        told = {effect.new_low_watermark for effect in effects if isinstance(effect, NotifyNewLowWatermark)}
        low_us = self.coordinator.low_watermark_us("job", "orders")
        assert told <= {self.low_us, low_us}
        assert low_us == self.low_us or low_us in told or not self.definition.live
        self.low_us = low_us

    def listen(self) -> None:
        self.definition.listened_us += min(self.now_us - self.handled_us, 2 * INTERVAL_US)
        self.handled_us = self.now_us

    @rule(us=st.sampled_from((0, 1, 3, INTERVAL_US, INTERVAL_US + 1, LEASE_US, 1_000)))
    def wait(self, us: int) -> None:
        self.now_us += us

    @rule()
    def tick(self) -> None:
        self.listen()
        self.handle(Tick())

    @rule()
    def tick_when_asked_to(self) -> None:
        wake_us = self.coordinator.wake_at_us(self.now_us)
        if wake_us is not None:
            self.now_us = max(self.now_us, wake_us)
            self.tick()

    @rule(name=splits, low_us=lows_us, expected=st.sampled_from((1, 1, 2, 3)), limit_us=st.sampled_from((None, 0, 20)))
    def register(self, name: str, low_us: int | None, expected: int, limit_us: int | None) -> None:
        self.listen()
        self.runs += 1
        definition = self.definition
        if name in definition.tasks:
            definition.forget(name)
        task = Task(str(self.runs), definition.listened_us, expected=expected, limit_us=limit_us)
        definition.tasks[name] = task
        if low_us is not None:
            task.lows_us.append(low_us)
        if definition.beat_us is None:
            definition.beat_us = self.now_us + INTERVAL_US
        if definition.asked_us is not None:
            definition.unanswered.add(name)
            definition.ends_us = min(definition.ends_us, self.now_us + LEASE_US)
        registration = TaskRegistered(
            task_id(name), str(self.runs), low_us, expected_tasks=expected, away_limit_us=limit_us
        )
        effects = self.handle(registration)
        late = [effect.behind_us for effect in effects if isinstance(effect, TaskReturnedLate)]
        assert all(behind_us > 0 for behind_us in late)

    def known(self, name: str) -> Task | None:
        task = self.definition.tasks.get(name)
        return None if task is None or task.gone else task

    @rule(
        name=splits,
        low_us=lows_us,
        left_out=left_outs,
        sequence=st.integers(0, 2),
        ago_us=st.sampled_from((None, 0, 0, 1, INTERVAL_US)),
        patience_us=patiences_us,
        silent_us=st.sampled_from((None, 0, 1, INTERVAL_US, PATIENCE_US + 1)),
    )
    def reply(
        self, name: str, low_us: int | None, left_out: LeftOut | None, sequence: int, ago_us: int | None,
        patience_us: int | None = None, silent_us: int | None = None,
    ) -> None:  # fmt: skip
        """Reply without a question, with a time so long ago; None: reply to the open question if one exists."""
        task, asked_us = self.known(name), self.definition.asked_us
        at_us = self.now_us - (ago_us or 0) if asked_us is None or ago_us is not None else asked_us
        if task is not None:
            self.listen()
            task.heard_us = self.definition.listened_us
            self.definition.reply(name, (sequence, at_us), low_us, left_out, patience_us, silent_us, self.handled_us)
            self.definition.end_if_complete()
            reply = ReplyLowWatermark(
                *("job", "orders", name, at_us, low_us, task.token, left_out),
                sequence=sequence,
                silent_us=silent_us,
                patience_us=patience_us,
            )
            self.handle(reply)

    @rule(
        names=st.sets(splits, min_size=1, max_size=3),
        low_us=watermarks_us,
        rounds=st.integers(2, 6),
        before=st.sampled_from((None, LeftOut.WITHOUT_SPLITS)),
        speak=st.booleans(),
    )
    def some_deliver_and_the_others_are_silent(
        self, names: set[str], low_us: int, rounds: int, before: LeftOut | None, *, speak: bool
    ) -> None:
        """The silent tasks had splits before or get them now, and have reported a watermark or have not."""
        for number in range(rounds):
            self.wait(INTERVAL_US)
            self.tick()
            for name in sorted(self.definition.tasks):
                silent = before if number == 0 and before is not None else LeftOut.IDLE
                left_out = None if name in names else silent
                own_us = low_us if left_out is None or speak else None
                self.reply(name, own_us, left_out, 2, None, PATIENCE_US, 0 if left_out is None else None)
            self.agrees()

    @rule(low_us=watermarks_us)
    def everybody_answers(self, low_us: int) -> None:
        for name in sorted(self.definition.tasks):
            self.reply(name, low_us, None, 2, None)

    @rule(name=splits)
    def renew(self, name: str) -> None:
        task = self.known(name)
        if task is not None:
            self.listen()
            task.heard_us = self.definition.listened_us
            self.handle(LeaseRenewed(task_id(name), task.token))

    @rule(name=splits)
    def deregister(self, name: str) -> None:
        task = self.known(name)
        if task is not None:
            self.listen()
            self.definition.go(task)
            self.definition.over.add((name, task.token))
            self.definition.unanswered.discard(name)
            self.definition.end_if_complete()
            self.handle(TaskDeregistered(task_id(name), task.token))

    @rule(name=splits)
    def excuse(self, name: str) -> None:
        task, excused = self.definition.tasks.get(name), TaskForgotten(task_id(name))
        if task is None or not task.gone:
            before = snapshot_of(self.coordinator), self.coordinator.epoch
            with pytest.raises(TaskNotAway):
                self.coordinator.handle(excused, self.handled_us)
            assert before == (snapshot_of(self.coordinator), self.coordinator.epoch)
        else:
            self.listen()
            task.excused = True
            self.handle(excused)

    @rule(low_us=watermarks_us, pick=st.integers(0, 100))
    def a_run_that_is_over_speaks(self, low_us: int, pick: int) -> None:
        over = sorted(self.definition.over)
        if over:
            name, token = over[pick % len(over)]
            for message in (
                ReplyLowWatermark("job", "orders", name, self.now_us, low_us, token),
                TaskRegistered(task_id(name), token, low_us),
            ):
                before = snapshot_of(self.coordinator), self.coordinator.epoch
                with pytest.raises((StaleRun, UnknownTask)):
                    self.coordinator.handle(message, self.handled_us)
                assert before == (snapshot_of(self.coordinator), self.coordinator.epoch)

    @rule(newest=st.booleans())
    def crash(self, newest: bool) -> None:
        """Restore the present snapshot or the last due one; both hold the published low watermark."""
        if newest:
            data, definition = snapshot_of(self.coordinator), self.definition
        else:
            data, _, definition = self.journal
            assert definition.low_us == self.definition.low_us
            assert definition.over == self.definition.over
            definition = copy.deepcopy(definition)
        self.coordinator = LowWatermarkCoordinator.restore(
            data, Settings(interval_us=INTERVAL_US, lease_us=LEASE_US), now_us=self.now_us
        )
        assert data == snapshot_of(self.coordinator)
        self.rows = data
        definition.asked_us, definition.unanswered, definition.questions_us = None, set(), set()
        definition.beat_us = self.now_us if definition.tasks or definition.over else None
        definition.listened_us, self.handled_us = 0, self.now_us
        definition.longest_us, definition.flow, definition.flowed_us, definition.newest_us = None, set(), None, None
        definition.waited_until_us = None
        for task in definition.tasks.values():
            task.heard_us, task.confirmed, task.rows_us = 0, task.gone, []
            task.gone_now = task.gone and not task.out
        self.definition = definition
        self.journal = data, self.coordinator.epoch, copy.deepcopy(definition)

    @invariant()
    def agrees(self) -> None:
        sources = self.coordinator.status(self.now_us).sources
        tasks = {task.task.task_id: task for source in sources for task in source.tasks}
        expected = self.definition
        self.rows = taken(self.rows, self.coordinator)
        assert self.rows == snapshot_of(self.coordinator)
        assert expected.low_us == self.coordinator.low_watermark_us("job", "orders")
        assert {name: task.state for name, task in expected.tasks.items()} == {n: t.state for n, t in tasks.items()}
        assert {name: task.low_us for name, task in expected.tasks.items()} == {
            name: task.low_watermark_us for name, task in tasks.items()
        }
        assert expected.unanswered == {name for name, task in tasks.items() if task.waited_for}


TestCoordinatorIsItsDefinition = CoordinatorIsItsDefinition.TestCase
TestCoordinatorIsItsDefinition.settings = settings(LAWS, max_examples=draws(100))


def test_a_source_without_a_task_keeps_its_beat_until_the_beat() -> None:
    """The round that its last task left had its deadline before the beat, and a new task came between the two."""
    one = CoordinatorIsItsDefinition()
    one.begin()
    for step in ("c", "tick", "tick", "tick", "c", "tick", "c leaves", "tick", "a", "tick", "a", *["tick"] * 4):
        if step == "tick":
            one.tick_when_asked_to()
        elif step == "c leaves":
            one.deregister("c")
        else:
            one.register(step, None, 1, None)
        one.agrees()


def test_a_reply_that_comes_twice_is_no_delivery_to_the_clock_of_silence_that_its_round_began() -> None:
    one = CoordinatorIsItsDefinition()
    one.begin()
    one.register("a", None, 1, None)
    one.everybody_answers(0)
    one.register("b", None, 1, None)
    one.some_deliver_and_the_others_are_silent({"b"}, 10, rounds=5, before=None, speak=False)


# -- within a round

Said = tuple[str, int | None, LeftOut | None, int, int, int | None]
said = st.tuples(splits, lows_us, left_outs, st.integers(0, 2), st.integers(0, 2), patiences_us)
STATUS = tuple[int | None, list[tuple[str, SplitState, int | None]]]


def outcome(replies: Sequence[Said]) -> STATUS:
    """Play one round with these replies, and end it with an old reply of every task."""
    one = coordinator()
    for name in (*SPLITS, "last"):
        one.handle(TaskRegistered(task_id(name)), 0)
    asked_us = INTERVAL_US
    one.handle(Tick(), asked_us)
    for name, low_us, left_out, sequence, at_us, patience_us in replies:
        said_us, silent_us = asked_us + at_us, None if left_out is None else 2
        at = ("job", "orders", name, said_us)
        reply = ReplyLowWatermark(
            *at, low_us, "", left_out, sequence=sequence, silent_us=silent_us, patience_us=patience_us
        )
        one.handle(reply, asked_us)
    for name in (*SPLITS, "last"):  # the last reply ends the round; the other replies are old
        one.handle(ReplyLowWatermark("job", "orders", name, asked_us, -(2**63), sequence=0), asked_us)
    [source] = one.status(asked_us).sources
    assert source.round_since_us is None
    return source.low_watermark_us, [(t.task.task_id, t.state, t.low_watermark_us) for t in source.tasks]


@LAWS
@given(st.lists(said, max_size=10), st.randoms(use_true_random=False), st.data())
def test_the_replies_within_a_round_commute_and_may_be_repeated(
    replies: list[Said], random: Random, data: st.DataObject
) -> None:
    shuffled = [*replies, *(data.draw(st.lists(st.sampled_from(replies), max_size=4)) if replies else [])]
    random.shuffle(shuffled)

    assert outcome(replies) == outcome(shuffled)


@LAWS
@given(st.lists(said, max_size=10), st.data())
def test_a_reply_that_is_lost_delays_and_never_raises_the_low_watermark(
    replies: list[Said], data: st.DataObject
) -> None:
    """Only active tasks, because a lost return, unlike a lost farewell, may raise the low watermark."""
    active = [(name, low_us, None, sequence, at_us, None) for name, low_us, _, sequence, at_us, _ in replies]
    kept = [reply for reply in active if data.draw(st.booleans())]
    low_us, fewer_us = outcome(active)[0], outcome(kept)[0]

    assert fewer_us is None or (low_us is not None and fewer_us <= low_us)


def test_the_questions_of_the_first_round_and_the_loss_of_silent_tasks_are_told() -> None:
    one = coordinator()
    one.handle(TaskRegistered(task_id("a"), "1"), 0)
    effects, now_us = [], 0
    while (wake_us := one.wake_at_us(now_us)) is not None:
        now_us = wake_us
        effects += [(now_us, effect) for effect in one.handle(Tick(), now_us)]

    question = RetrieveLowWatermark("job", "orders", "a", INTERVAL_US)
    lost = TaskLost(task_id("a"), "it was silent for more than its lease of 0.000035s")
    assert effects == [(10, question), (20, question), (30, question), (36, lost)]


def anything(random: Random, now_us: int, step: int) -> CoordinatorEvent:
    """Make a message of a few tasks, runs and groups; many are refused, for every possible reason."""
    task = TaskId("job", random.choice(("orders", "clicks")), random.choice("abc"))
    token, number = f"r{step // 20 - random.randrange(2)}", random.choice((None, 0, 7, now_us, 2**63, -1))
    alignment = random.choice(
        (None, AlignmentParams("g", 1, 1), AlignmentParams("g", 2, 1), AlignmentParams("h", 1, 1))
    )
    throttled = random.choice((True, False))
    left_out, sequence = random.choice((None, *LeftOut)), random.randrange(9)
    messages: list[CoordinatorEvent] = [
        TaskRegistered(task, token, number, alignment, throttled, random.choice((1, 2, 0))),
        LeaseRenewed(task, token, number),
        TaskDeregistered(task, token),
        ReplyLowWatermark(*task.parts, now_us, number, token, left_out, number, sequence, number),
        ReplyLowWatermark(*task.parts, now_us, number, token, left_out, None, sequence),
    ]
    return random.choice(messages)


@pytest.mark.slow
def test_whatever_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.watermark.tasks.coordinator.MOST_TASKS", 3)
    refused = set[str]()
    for seed in range(10):
        random, now_us = Random(seed), 0
        one = LowWatermarkCoordinator(Settings(interval_us=INTERVAL_US, lease_us=LEASE_US))
        for step in range(400):
            message = anything(random, now_us, step)
            before, error = (snapshot_of(one), one.epoch, one.wake_at_us(now_us), one.status(now_us)), None
            try:
                one.handle(message, now_us)
            except LowmarkError as raised:
                error = raised
                refused.add(type(raised).__name__)
            after = snapshot_of(one), one.epoch, one.wake_at_us(now_us), one.status(now_us)
            assert error is None or after == before, f"seed {seed}: {message} was refused ({error})"
            now_us += random.choice((0, 1, INTERVAL_US))
            one.handle(Tick(), now_us)
    assert refused >= {"StaleRun", "UnknownTask", "DisagreeingGroup", "TooManyTasks", "InvalidMessage"}


def test_the_changed_rows_are_the_whole_state_of_sources_and_groups() -> None:
    """The state machine above has one source and no group."""
    groups = set[str]()
    for seed in range(draws(24)):
        random, now_us, rows = Random(seed), 0, Rows()
        quorum = random.choice((0.5, 1.0))
        one = LowWatermarkCoordinator(Settings(interval_us=INTERVAL_US, lease_us=LEASE_US, quorum=quorum))
        for step in range(200):
            with suppress(LowmarkError):
                one.handle(anything(random, now_us, step), now_us)
            rows = taken(rows, one)
            assert rows == snapshot_of(one), f"seed {seed}, step {step}"
            if random.random() < 0.05:
                one = LowWatermarkCoordinator.restore(rows, one.settings, now_us=now_us)
                assert rows == snapshot_of(one), f"seed {seed}, step {step}, restored"
            groups |= {f"{len(group.members)} members" for group in one.status(now_us).groups}
            now_us += random.choice((0, 1, INTERVAL_US))
    assert groups >= {"1 members", "2 members", "3 members"}
