"""The cap of a group equals its definition after any reports, losses, repetitions and crashes; a member may read on.

Goal: after every step the group agrees with the definition, and so does a twin that was restarted now and then.
Method: a state machine draws steps and keeps all reports ever made; the definition looks through them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lowmark.watermark import TaskId
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.snapshot import nobody_keeps

from tests.laws.strategies import LAWS, watermarks_us
from tests.watermark.tasks.coordinator_world import rows_of

TASKS = (TaskId("a", "s", "0"), TaskId("a", "s", "1"), TaskId("b", "s", "0"), TaskId("b", "t", "0"))
INTERVAL_US = 10

tasks = st.sampled_from(TASKS)
wanted_us = st.none() | watermarks_us
delays_us = st.sampled_from((0, 0, 1, 7, 30))
drifts_us = st.sampled_from((0, 1, 10, 2**62))


@dataclass
class Member:
    """All reports of a member, and the announced cap when it joined."""

    throttled: bool
    floor_us: int | None
    active: list[tuple[int, int | None, int | None]] = field(default_factory=list)  # (at, low, wanted)
    idle: list[int] = field(default_factory=list)

    @property
    def low_us(self) -> int | None:
        spoken = [(at_us, low_us) for at_us, low_us, _ in self.active if low_us is not None]
        return max(spoken)[1] if spoken else None

    @property
    def left_out(self) -> bool:
        return max(self.idle, default=-1) > max((at for at, _, _ in self.active), default=-1)

    @property
    def wanted_us(self) -> int | None:
        newest = max((at for at, _, _ in self.active), default=-1)
        if max(self.idle, default=-1) > newest:
            return None
        return max((want for at, _, want in self.active if at == newest and want is not None), default=None)

    @property
    def next_us(self) -> int | None:
        return self.low_us if self.wanted_us is None else self.wanted_us


def limit(member: Member, drift_us: int) -> Cap:
    own_us = [] if member.low_us is None else [min(member.low_us + drift_us, 2**63 - 1)]
    known = own_us + ([] if member.wanted_us is None else [member.wanted_us])
    return Cap.up_to(max(known)) if known else Cap.hold() if member.floor_us is None else Cap.up_to(member.floor_us)


def definition(taking_part: list[Member], drift_us: int) -> Cap:
    return min((limit(member, drift_us) for member in taking_part), default=Cap.free())


class GroupIsItsDefinition(RuleBasedStateMachine):
    @initialize(
        drift_us=drifts_us,
        start_us=st.sampled_from((0, 1_000)),
        many=st.integers(2, len(TASKS)),
        lows_us=st.lists(watermarks_us, max_size=len(TASKS)),
    )
    def begin(self, drift_us: int, start_us: int, many: int, lows_us: list[int]) -> None:
        self.drift_us, self.now_us = drift_us, start_us
        self.params = AlignmentParams("g", drift_us, INTERVAL_US)
        self.group, self.twin = (AlignmentGroup("g") for _ in range(2))
        self.members: dict[TaskId, Member] = {}
        self.announced_us: int | None = None
        self.versions: list[int] = []
        for task in TASKS[:many]:
            self.join(task, throttled=True)
        self.all_speak(lows_us)

    @property
    def both(self) -> tuple[AlignmentGroup, AlignmentGroup]:
        return self.group, self.twin

    def taking_part(self) -> list[Member]:
        return [member for member in self.members.values() if not member.left_out]

    @rule(task=tasks, throttled=st.booleans())
    def join(self, task: TaskId, throttled: bool) -> None:
        for group in self.both:
            group.join(task, self.params, now_us=self.now_us, throttled=throttled)
        self.members.setdefault(task, Member(throttled, self.announced_us)).throttled = throttled

    @rule(task=tasks, low_us=st.none() | watermarks_us, wanted=wanted_us, late_us=delays_us)
    def report(self, task: TaskId, low_us: int | None, wanted: int | None, late_us: int) -> None:
        if task in self.members:
            at_us = max(0, self.now_us - late_us)
            for group in self.both:
                group.report(task, low_us, at_us=at_us, next_wanted_us=wanted)
            self.members[task].active.append((at_us, low_us, wanted))

    @rule(lows_us=st.lists(watermarks_us, min_size=len(TASKS), max_size=len(TASKS)))
    def all_speak(self, lows_us: list[int]) -> None:
        for task, low_us in zip(TASKS, lows_us, strict=False):
            self.report(task, low_us, None, 0)

    @rule(task=tasks, late_us=delays_us)
    def idle(self, task: TaskId, late_us: int) -> None:
        if task in self.members:
            at_us = max(0, self.now_us - late_us)
            for group in self.both:
                group.idle(task, at_us=at_us)
            self.members[task].idle.append(at_us)

    @rule(task=tasks)
    def leave(self, task: TaskId) -> None:
        self.members.pop(task, None)
        for group in self.both:
            group.leave(task)
        if not self.members:
            self.announced_us = None

    @rule(later_us=st.sampled_from((0, 9, 10, 10, 10, 35)))
    def announce(self, later_us: int) -> None:
        self.now_us += later_us
        due_us = self.group.next_us
        announced = self.group.announce(self.now_us)
        assert self.twin.announce(self.now_us) == announced
        assert not announced or (due_us is not None and self.now_us >= due_us)
        if announced:
            cap = definition(self.taking_part(), self.drift_us)
            self.announced_us = cap.us
            self.versions.append(announced[0].version)
            assert sorted(self.members) == [each.task for each in announced]
            assert {each.cap for each in announced} == {cap}

    @rule()
    def crash(self) -> None:
        self.twin = AlignmentGroup.restore(rows_of(self.twin), nobody_keeps)

    @invariant()
    def agrees(self) -> None:
        note(f"{self.now_us} {self.members}")
        assert definition(self.taking_part(), self.drift_us) == self.group.cap()

    @invariant()
    def a_restart_changes_nothing(self) -> None:
        assert self.group.status() == self.twin.status()
        group, twin = dict(vars(self.group)), dict(vars(self.twin))
        assert group == twin
        assert rows_of(self.group) == rows_of(self.twin)
        assert self.group.next_us == self.twin.next_us

    @invariant()
    def somebody_may_go_on(self) -> None:
        going = [not member.throttled or self.group.cap().allows(member.next_us) for member in self.taking_part()]
        assert any(going) or not going

    @invariant()
    def versions_grow(self) -> None:
        assert sorted(set(self.versions)) == self.versions


TestGroupIsItsDefinition = GroupIsItsDefinition.TestCase
TestGroupIsItsDefinition.settings = LAWS


@LAWS
@given(
    st.lists(st.tuples(tasks, st.integers(0, 5), st.none() | watermarks_us, wanted_us, st.booleans()), max_size=12),
    st.randoms(use_true_random=False),
)
def test_reports_commute_and_repeat(
    reports: list[tuple[TaskId, int, int | None, int | None, bool]], rng: random.Random
) -> None:
    def play(made: list[tuple[TaskId, int, int | None, int | None, bool]]) -> object:
        group = AlignmentGroup("g")
        for task in TASKS:
            group.join(task, AlignmentParams("g", 10, INTERVAL_US), now_us=0)
        for task, at_us, low_us, wanted, idle in made:
            if idle:
                group.idle(task, at_us=at_us)
            else:
                group.report(task, low_us, at_us=at_us, next_wanted_us=wanted)
        return rows_of(group)

    turned = [*reports, *reports]
    rng.shuffle(turned)
    assert play(reports) == play(turned)


@dataclass
class Queue:
    """The rows that a task still has to send, and its permission to send."""

    rows_us: list[int]
    cap: Cap = field(default_factory=Cap.hold)
    low_us: int | None = None
    known: bool = True  # whether it knows its next row

    @property
    def next_us(self) -> int:
        """The time that it compares with the cap: its next row if known, else its previous row."""
        return self.rows_us[0] if self.known or self.low_us is None else self.low_us


@LAWS
@given(
    st.lists(
        st.tuples(st.lists(st.integers(-20, 2_000), min_size=1, max_size=8), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from((0, 1, 10)),
    st.randoms(use_true_random=False),
)
def test_whatever_the_gaps_all_rows_are_sent(
    drawn: list[tuple[list[int], bool]], drift_us: int, rng: random.Random
) -> None:
    group, queues = AlignmentGroup("g"), {}
    params = AlignmentParams("g", drift_us, INTERVAL_US)
    for task, (rows_us, known) in zip(TASKS, drawn, strict=False):
        group.join(task, params, now_us=0)
        queues[task] = Queue(sorted(rows_us), known=known)
    now_us, rows = 0, sum(len(queue.rows_us) for queue in queues.values())
    for _ in range(20 * rows + 20):
        now_us += INTERVAL_US
        for task, queue in queues.items():
            if not queue.rows_us:
                group.leave(task)
            else:
                wanted = queue.rows_us[0] if queue.known else None
                group.report(task, queue.low_us, at_us=now_us, next_wanted_us=wanted)
        for announced in group.announce(now_us):
            if rng.random() < 0.7:
                queues[announced.task].cap = announced.cap
        for queue in queues.values():
            first = queue.low_us is None and not queue.known
            if queue.rows_us and (first or queue.cap.allows(queue.next_us)):
                queue.low_us = queue.rows_us.pop(0)
    note(str(group.status()))

    assert not any(queue.rows_us for queue in queues.values())
