"""The coordinator of many tasks, case by case. The laws are in tests/laws/test_coordinator_laws.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowmark.watermark import (
    CorruptSnapshot,
    DisagreeingGroup,
    InvalidMessage,
    LowmarkError,
    NotifyNewLowWatermark,
    SplitState,
    StaleRun,
    TaskId,
    UnknownTask,
)
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    TaskDeregistered,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import CapAnnounced
from lowmark.watermark.tasks.coordinator import (
    CoordinatorEffect,
    CoordinatorEvent,
    LowWatermarkCoordinator,
    Settings,
)
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.snapshot import Key, to_json
from lowmark.watermark.tasks.sources import EMPTY_SOURCE_KEPT_US
from lowmark.watermark.tasks.status import run_mark

from tests.watermark.tasks.coordinator_world import LEASE_US, A, B, C, S, World, of, snapshot_of, taken

# -- rounds


def test_a_round_asks_every_task_and_tells_every_task() -> None:
    world = World(A, B)

    asked = world.tick()
    early = world.reply(A, 30)
    told = world.reply(B, 10)

    assert [RetrieveLowWatermark("job", "orders", name, S) for name in "ab"] == asked
    assert early == []
    assert [NotifyNewLowWatermark("job", "orders", name, S, 10) for name in "ab"] == told


def test_only_what_is_larger_than_the_last_aggregate_is_published() -> None:
    world = World(A, B)

    assert [
        world.round(a=30, b=10),
        world.round(a=40, b=10),
        world.round(a=40, b=5),  # a task does not go back
        world.round(a=20, b=20),
    ] == [[10], [], [], [20]]


def test_zero_and_what_is_before_1970_are_watermarks() -> None:
    world = World(A)

    assert [world.round(a=-5), world.round(a=0)] == [[-5], [0]]


def test_a_task_that_knows_no_low_watermark_holds_and_is_named() -> None:
    world = World(A, B)
    assert world.round(a=30, b=None) == []

    assert world.source.why == "task b has not said a low watermark yet."
    assert world.source.holder == B
    assert world.round(a=30, b=40) == [30]


def test_nothing_is_published_before_the_round_ends() -> None:
    world = World(A, B)
    world.round(a=10, b=10)
    world.tick()

    assert world.reply(A, 50) == []
    assert world.reply(A, 60) == []
    assert (tuple(t.waited_for for t in reversed(world.source.tasks)), world.low_us) == ((True, False), 10)


def test_an_unasked_reply_answers_the_open_round() -> None:
    world = World(A)
    world.tick()
    world.now_us += 5

    assert [NotifyNewLowWatermark("job", "orders", "a", S + 5, 7)] == world.reply(A, 7)


def test_a_late_answer_to_an_older_round_counts_as_a_report_and_ends_nothing() -> None:
    world = World(A, B)
    world.round(a=1, b=1)
    world.round(a=2, b=2)
    world.tick()

    assert world.reply(A, 9, at_us=S) == []
    assert world.reply(B, 8, at_us=3 * S) == []  # no answer of a in this round
    assert [n.new_low_watermark for n in of(NotifyNewLowWatermark, world.reply(A, 5, at_us=3 * S))][:1] == [
        8
    ]  # 9 was its largest value


def test_a_question_may_be_lost_it_is_asked_again_with_the_same_timestamp() -> None:
    world = World(A, B)
    world.tick()
    world.reply(A, 1)

    assert [RetrieveLowWatermark("job", "orders", "b", S)] == world.tick()


def test_a_newcomer_is_asked_in_the_open_round_which_waits_for_it() -> None:
    world = World(A)
    world.tick()

    assert [RetrieveLowWatermark("job", "orders", "b", S)] == world.register(B)
    assert world.reply(A, 10) == []
    assert len(world.reply(B, 20)) == 2
    assert world.low_us == 10


def test_a_round_ends_after_a_lease_though_a_living_task_never_answers() -> None:
    world = World(A)
    world.handle(TaskRegistered(B, "1", 5))
    world.tick()
    world.reply(A, 50)
    told: list[CoordinatorEffect] = []
    for _ in range(LEASE_US // S):
        assert world.low_us is None
        world.handle(LeaseRenewed(B, "1"))
        told += world.tick()

    assert [notice.new_low_watermark for notice in of(NotifyNewLowWatermark, told)] == [5, 5]
    assert [(q.task_id, q.timestamp // S) for q in of(RetrieveLowWatermark, told)] == [
        *[("b", 1)] * 9,
        ("a", 11),
        ("b", 11),
    ]


def test_a_quorum_ends_rounds_early_and_who_has_not_answered_holds_with_what_it_said() -> None:
    world = World(A, B, C, quorum=2 / 3)
    assert world.round(a=10, b=10) == []  # c has never had a value, and holds

    assert [world.round(a=10, c=10), world.round(a=30, b=15, c=20), world.round(a=30, b=30)] == [[10], [], [20]]


def test_sources_are_asked_one_after_the_other_over_the_interval_each_at_its_own_moment() -> None:
    tasks = [TaskId("job", f"source-{n:02}", "0") for n in range(64)]
    world = World(*tasks)
    asked: list[dict[str, int]] = []
    for _ in range(3):
        began_us, effects = world.now_us, world.tick()
        asked.append({e.source_id: e.timestamp - began_us for e in of(RetrieveLowWatermark, effects)})
        assert [e.source_id for e in effects if isinstance(e, RetrieveLowWatermark)] == list(asked[-1])
        for task in tasks:
            world.reply(task, 0)
    moments = list(asked[0].values())

    assert asked[0] == asked[1] == asked[2]
    assert sorted(asked[0]) == [task.source_id for task in tasks]
    assert {moments.count(us) for us in moments} == {8}
    assert sorted(set(moments)) == [S * n // 8 for n in range(1, 9)]
    assert asked[0]["source-00"] == S


@pytest.mark.parametrize("left_out", [None, LeftOut.IDLE])
def test_what_the_end_of_a_round_alone_has_changed_is_in_the_next_snapshot(left_out: LeftOut | None) -> None:
    world = World(A)
    world.tick()
    world.handle(TaskRegistered(B, "1", 5))
    world.reply(A, 10, left_out)
    lows_us: list[int | None] = []
    for _ in range(LEASE_US // S):
        for task in (A, B):
            world.handle(LeaseRenewed(task, "1"))
        world.rows()
        lows_us = [world.low_us]
        world.tick()  # the last tick is the round's deadline, and nothing else
    lows_us.append(world.low_us)

    assert lows_us == [None, 5]
    world.rows()


def test_few_sources_lie_as_evenly_as_many() -> None:
    for count in (2, 3, 5, 8):
        world = World(*(TaskId("job", f"source-{n}", "0") for n in range(count)))
        moments = sorted(e.timestamp for e in of(RetrieveLowWatermark, world.tick()))
        gaps = [later - earlier for earlier, later in zip([0, *moments], moments, strict=False)]

        assert (min(gaps) * 2 >= max(gaps), len(gaps)) == (True, count), (count, gaps)


def test_after_a_restart_all_are_asked_at_once_and_then_each_at_its_moment() -> None:
    tasks = [TaskId("job", f"source-{n}", "0") for n in range(8)]
    world = World(*tasks)
    world.tick()
    world.restart()

    at_once = world.handle(Tick())
    for task in tasks:
        world.reply(task, 0)
    later = [e.timestamp for e in of(RetrieveLowWatermark, world.tick())]

    assert sorted(e.source_id for e in of(RetrieveLowWatermark, at_once)) == [task.source_id for task in tasks]
    assert (len(later), len(set(later))) == (8, 8)


def test_a_source_that_comes_back_is_asked_again() -> None:
    other = TaskId("job", "clicks", "0")
    world = World(A, other)
    world.handle(TaskDeregistered(A, "1"))
    world.tick(3 * S)
    world.register(A, token="2")

    assert {e.source_id for e in of(RetrieveLowWatermark, world.tick())} == {"orders", "clicks"}


def test_every_source_has_its_own_low_watermark() -> None:
    world = World(A)
    others = [TaskId("job", "clicks", "a"), TaskId("other job", "orders", "a")]
    for task in others:
        world.register(task)
    world.tick()
    for low_us, task in enumerate([A, *others]):
        world.reply(task, low_us)

    assert sorted(
        (source.low_watermark_us, source.job_id, source.source_id)
        for source in world.coordinator.status(world.now_us).sources
        if source.low_watermark_us is not None
    ) == [(0, "job", "orders"), (1, "job", "clicks"), (2, "other job", "orders")]


# -- tasks without splits


def test_a_task_without_splits_is_left_out_and_hears_every_notification() -> None:
    world = World(A, B)
    world.tick()
    world.reply(B, None, LeftOut.WITHOUT_SPLITS)

    assert [(n.task_id, n.new_low_watermark) for n in of(NotifyNewLowWatermark, world.reply(A, 10))] == [
        ("a", 10),
        ("b", 10),
    ]
    assert world.states() == [SplitState.ACTIVE, SplitState.IDLE]
    assert world.source.tasks[1].why == "it has no splits"


def test_a_split_given_later_holds_until_it_speaks_and_what_is_late_is_counted() -> None:
    world = World(A, B)
    world.tick()
    world.reply(B, None, LeftOut.WITHOUT_SPLITS)
    world.reply(A, 100)
    world.tick()

    assert world.reply(B, None) == []  # its split has been silent so far
    assert world.reply(A, 200) == []
    assert world.low_us == 100
    world.tick()
    assert [TaskReturnedLate(B, 30, "it had no rows while the others delivered")] == world.reply(B, 70)
    world.reply(A, 300)
    assert (world.low_us, world.source.returned_late, world.source.holder) == (100, 1, B)
    assert world.source.why == "task b came in 0.00003s below the low watermark, which does not go back."
    assert world.round(a=300, b=250) == [250]


def test_a_task_that_said_idle_and_replies_with_a_value_is_active_again() -> None:
    world = World(A, B)
    world.round(a=10, b=10)
    world.tick()
    world.reply(B, 10, LeftOut.IDLE)
    world.reply(A, 20)
    assert world.low_us == 20

    assert world.round(a=40, b=25) == [25]
    assert world.states() == [SplitState.ACTIVE] * 2


def test_the_low_watermark_waits_for_a_task_that_resumed_below_it() -> None:
    world = World(A, B)
    world.tick()
    world.reply(B, 1, LeftOut.IDLE)
    world.reply(A, 20)

    assert world.round(a=30, b=5) == []
    assert world.round(a=30, b=26) == [26]


def test_old_news_does_not_wake_a_task_that_went_idle_later() -> None:
    world = World(A, B)
    world.round(a=10, b=10)
    world.tick()
    world.reply(B, 12, LeftOut.IDLE)
    world.reply(B, 11, at_us=S + 1)

    assert [n.new_low_watermark for n in of(NotifyNewLowWatermark, world.reply(A, 20))][:1] == [20]
    assert SplitState.IDLE is world.states()[1]


def test_the_last_values_of_a_source_that_drains_are_published() -> None:
    world = World(A, B)
    world.round(a=10, b=10)
    world.tick()
    world.reply(A, 50, LeftOut.IDLE)
    world.reply(B, 40, LeftOut.IDLE)
    assert world.low_us == 40
    assert world.source.why == "every task (2) is left out, and the low watermark stays."

    world.tick()
    world.reply(A, 70, LeftOut.IDLE)  # it had rows briefly, between two questions
    world.reply(B, 40, LeftOut.IDLE)
    assert world.low_us == 70


def test_a_run_that_no_message_brings_and_a_journal_may_hold_has_a_mark() -> None:
    assert len(run_mark("\ud800")) == 12


def test_a_task_that_is_silent_as_all_are_counts_until_others_had_rows_for_as_long_as_it_bears() -> None:
    world = World(A, B)

    def said(low_us: int, silent_s: int) -> None:
        """Play a silence of b, which has the smaller low watermark; both tasks tolerate 4 s of silence."""
        asked_us = of(RetrieveLowWatermark, world.tick())[-1].timestamp
        for task, us, silent_us in ((A, low_us, 0 if low_us > 50 else silent_s * S), (B, 10, silent_s * S)):
            left_out = LeftOut.IDLE if silent_us > 4 * S else None
            reply = ReplyLowWatermark(*task.parts, asked_us, us, "1", left_out)
            world.handle(replace(reply, silent_us=silent_us, patience_us=4 * S))

    for second in range(10):  # without rows
        said(50, second)
    assert (world.low_us, world.states()) == (10, [SplitState.IDLE] * 2)
    assert world.source.why == (
        "task b has the smallest low watermark, and its stream is silent; it counts until others have delivered for 4s."
    )
    world.restart()
    for second in range(10, 15):  # a has rows: the first counts for a quarter of 4 s, the next for a second each
        said(100 + second, second)
        assert (world.low_us, world.source.holder) == (10, B), second
    said(200, 15)
    assert (world.low_us, world.source.tasks[1].why) == (200, "its splits are quiet and caught up")


def silent(task: TaskId, world: World, low_us: int | None, silent_s: int, patience_s: int = 60) -> ReplyLowWatermark:
    """Return a task's reply after a silence, with the idle timeout of its stream."""
    why = LeftOut.IDLE if silent_s > patience_s else None
    at_us = world.source.round_since_us or world.now_us
    reply = ReplyLowWatermark(*task.parts, at_us, low_us, "1", why, sequence=world.now_us)
    return replace(reply, silent_us=silent_s * S, patience_us=patience_s * S)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_task_that_gets_its_first_split_while_all_are_silent_counts_until_others_delivered_for_long(
    *, restarts: bool
) -> None:
    """Its replies are lost until it is idle: the first one to arrive says so, and the others had rows for 10 s only."""
    world = World(A, B)
    world.tick()
    world.reply(B, None, LeftOut.WITHOUT_SPLITS)
    world.handle(silent(A, world, 100, 0))
    assert world.low_us == 100
    for second in range(1, 66):  # b has a split from now on, and only its leases arrive
        world.handle(LeaseRenewed(B, "1"))
        world.tick()
        world.handle(silent(A, world, 100, second if second < 56 else 0))
    if restarts:
        world.restart()
    world.tick()
    world.handle(silent(B, world, None, 65))
    for second in range(30):
        world.handle(silent(A, world, 200 + second, 0))
        assert world.low_us == 100, second
        world.tick()
        world.handle(silent(B, world, None, 66 + second))
    assert world.source.holder == B
    for second in range(70):
        world.tick()
        world.handle(silent(B, world, None, 96 + second))
        world.handle(silent(A, world, 300 + second, 0))
    assert world.low_us == 369
    world.tick()
    world.handle(silent(A, world, 400, 0))
    world.handle(silent(B, world, None, 200))  # reported before, so b is left out
    assert world.low_us == 400


def test_an_older_reply_makes_no_task_silent_for_longer() -> None:
    world = World(A, B)
    world.tick()
    first = silent(B, world, 10, 0, 4)
    for task in (A, B):
        world.handle(silent(task, world, 10, 0, 4))
    for second in range(3):
        world.tick()
        world.handle(silent(A, world, 20 + second, 0, 4))
        world.handle(silent(B, world, 10, 0, 4))
    world.handle(replace(first, silent_us=100 * S))  # delayed
    for second in range(4):
        world.tick()
        world.handle(silent(A, world, 30 + second, 0, 4))
        world.handle(replace(silent(B, world, 10, 1 + second, 4), left_out=LeftOut.IDLE, silent_us=None))
        assert world.low_us == 10, second
    for second in range(2):
        world.tick()
        world.handle(silent(A, world, 40 + second, 0, 4))
        world.handle(replace(silent(B, world, 10, 5 + second, 4), left_out=LeftOut.IDLE, silent_us=None))
    assert world.low_us == 41


def test_who_is_left_out_while_another_never_spoke_counts_on_with_what_it_said() -> None:
    world = World(A, B)
    world.tick()
    world.reply(A, 50, LeftOut.IDLE)
    world.reply(B, None)  # b holds, so a must stay counted
    assert world.low_us is None
    world.tick()
    world.reply(A, 50, LeftOut.IDLE)
    world.reply(B, 70, LeftOut.IDLE)

    assert world.low_us == 50


def test_idle_tasks_hold_nobody_after_their_minimum_was_published() -> None:
    world = World(A, B, quorum=0.5)
    world.reply(A, 90, LeftOut.IDLE)
    assert world.round(b=10) == [10]
    world.handle(TaskDeregistered(B, "1"))
    world.tick()
    world.reply(A, 90, LeftOut.IDLE)
    assert world.low_us == 90  # no task takes part, so the idle task's value is published

    world.register(C, low_us=500)
    assert world.round(c=500) == [500]  # a has not repeated that it is idle


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_a_leaving_task_said_is_not_lost_to_one_that_leaves_silently(order: str) -> None:
    """Found by the simulation."""
    world = World(A, B)
    world.tick()
    for name in order:
        low_us, why = {"a": (50, LeftOut.IDLE), "b": (None, LeftOut.WITHOUT_SPLITS)}[name]
        world.reply(TaskId("job", "orders", name), low_us, why)
    assert world.low_us == 50


def test_when_the_last_that_took_part_is_lost_the_others_vouch_for_what_they_said() -> None:
    """Found by the simulation: a was left out at 90 while b, which is then lost, held at 10."""
    world = World(A, B)
    world.tick()
    world.reply(A, 90, LeftOut.IDLE)
    world.reply(B, 10)
    assert world.low_us == 10
    for _ in range(12):
        world.tick()
        world.reply(A, 90, LeftOut.IDLE)
    assert world.low_us == 90
    assert world.round(a=80) == []
    assert world.round(a=95) == [95]


def test_a_task_may_leave_between_two_rounds_and_its_last_value_is_published() -> None:
    world = World(A)
    world.round(a=10)
    world.reply(A, 99)
    world.handle(TaskDeregistered(A, "1"))
    world.tick()

    assert world.low_us == 99


def test_who_left_never_poisons_all_idle() -> None:
    """FLINK-38477: a finished input was at the end of time, which became the maximum of all idle inputs."""
    world = World(A, B, C)
    world.tick()
    world.reply(A, 2**63 - 1)
    world.handle(TaskDeregistered(A, "1"))
    world.reply(B, 10)
    world.reply(C, 7)
    assert world.low_us == 7
    world.tick()
    world.reply(B, 12, LeftOut.IDLE)
    world.reply(C, 8, LeftOut.IDLE)

    assert world.low_us == 8
    assert world.states() == [SplitState.IDLE, SplitState.IDLE]


# -- leases


def test_a_lost_task_is_named_and_holds_nobody_any_more() -> None:
    """FLINK-40505 for rounds: Flink's aggregate stays at the lost reader's value for ever."""
    world = World(A, B)
    world.round(a=42, b=5_000)
    effects: list[CoordinatorEffect] = []
    while not of(TaskLost, effects):
        world.reply(B, 5_000 + world.now_us)
        assert world.low_us == 42
        effects = world.tick()

    assert [TaskLost(A, "it was silent for more than its lease of 10s")] == of(TaskLost, effects)
    assert world.now_us == 12 * S
    assert [n.new_low_watermark for n in of(NotifyNewLowWatermark, effects)] == [5_000 + 11 * S]
    assert world.coordinator.status(world.now_us).lost == 1


def test_a_missing_task_keeps_holding_until_its_lease_ends() -> None:
    """M1 of MillWheel: an absent task is never ignored."""
    world = World(A, B)
    world.round(a=10, b=10)

    for _ in range(9):
        assert world.round(b=1_000) == []
    assert (world.low_us, world.source.holder) == (10, A)


def test_a_deleted_task_is_not_brought_back_by_a_reply() -> None:
    world = World(A)
    world.tick(LEASE_US + S)
    before = snapshot_of(world.coordinator)

    with pytest.raises(UnknownTask):
        world.reply(A, 5)
    with pytest.raises(StaleRun):
        world.register(A, "1")
    assert before == snapshot_of(world.coordinator)
    world.register(A, "2")
    world.tick()
    assert len(world.reply(A, 5, token="2")) == 1


def test_a_clock_that_is_set_forward_loses_nobody() -> None:
    world = World(A, B)
    world.round(a=1, b=1)
    world.now_us += 3_600 * S

    assert of(TaskLost, world.handle(Tick())) == []
    world.reply(A, 2)
    world.reply(B, 2)
    assert world.low_us == 2


def test_a_clock_that_goes_back_stands_still() -> None:
    world = World(A)
    world.tick(5 * S)
    world.now_us = 2 * S
    world.reply(A, 1, at_us=5 * S)
    status = world.coordinator.status(2 * S)

    assert (world.low_us, status.sources[0].since_us) == (1, 5 * S)


# -- runs


def test_a_reply_of_an_older_run_is_refused_and_changes_nothing() -> None:
    """M2 of MillWheel: a zombie's report."""
    world = World(A)
    world.register(A, "2", low_us=5)
    world.tick()
    before = snapshot_of(world.coordinator), world.coordinator.status(world.now_us)

    for message in (
        ReplyLowWatermark("job", "orders", "a", S, 99, "1"),
        LeaseRenewed(A, "1"),
        TaskRegistered(A, "1"),
        LeaseRenewed(A, "never heard of"),
        TaskDeregistered(A, "never heard of"),
    ):
        with pytest.raises(StaleRun):
            world.handle(message)
    assert before == (snapshot_of(world.coordinator), world.coordinator.status(world.now_us))


def test_the_same_registration_again_is_no_new_run() -> None:
    world = World(A)
    world.round(a=50)
    epoch = world.coordinator.epoch

    assert [NotifyNewLowWatermark("job", "orders", "a", S, 50)] == world.register(A, "1", low_us=1)
    assert ([50], epoch) == ([task.low_watermark_us for task in world.source.tasks], world.coordinator.epoch)


def test_a_new_run_begins_with_what_it_restored_and_hears_where_the_source_is() -> None:
    world = World(A, B)
    world.round(a=50, b=60)
    effects = world.register(A, "2", low_us=40)

    late = TaskReturnedLate(A, 10, "it begins below what it had said")
    assert [late, NotifyNewLowWatermark("job", "orders", "a", S, 50)] == effects
    assert world.source.tasks[0].low_watermark_us == 40
    world.tick()
    world.reply(A, 45, token="2")
    world.reply(B, 99)
    assert world.low_us == 50  # the authority's value never falls (M3)


def test_a_renewed_lease_that_shows_a_missed_notification_is_answered_with_it() -> None:
    world = World(A)
    assert world.handle(LeaseRenewed(A, "1")) == []
    world.round(a=50)

    assert [NotifyNewLowWatermark("job", "orders", "a", S, 50)] == world.handle(LeaseRenewed(A, "1", heard_low_us=10))
    assert world.handle(LeaseRenewed(A, "1", heard_low_us=50)) == []


def test_deregistering_lets_the_others_go_on_and_may_be_said_twice() -> None:
    world = World(A, B)
    world.round(a=10, b=20)
    world.tick()
    world.reply(B, 30)

    assert of(NotifyNewLowWatermark, world.handle(TaskDeregistered(A, "1")))[0].new_low_watermark == 30
    assert world.handle(TaskDeregistered(A, "1")) == []
    assert [task.task for task in world.source.tasks] == [B]


# -- groups

PARAMS = AlignmentParams("g", max_drift_us=1_000, update_interval_us=S)


def join(world: World, *tasks: TaskId, params: AlignmentParams = PARAMS, token: str = "1") -> None:
    for task in tasks:
        world.handle(TaskRegistered(task, token, alignment=params))


def caps(effects: list[CoordinatorEffect]) -> dict[str, int | None]:
    return {str(told.task): told.cap.us for told in of(CapAnnounced, effects)}


def test_a_group_spans_sources_and_jobs_of_the_same_name() -> None:
    """BUG-08: in Flink two sources of one name in a group overwrite each other."""
    world, other = World(), TaskId("other job", "orders", "a")
    join(world, A, other)
    world.tick()
    world.reply(A, 5_000)
    world.reply(other, 42)

    assert caps(world.tick()) == {"job/orders/a": 1_042, "other job/orders/a": 1_042}


def test_a_lost_task_does_not_cap_its_group_any_more() -> None:
    """BUG-01, FLINK-40505: with drift 1000, a lost task at 42 and a task at 5000, the cap becomes 6000."""
    world = World()
    join(world, A, B)
    world.tick()
    world.reply(A, 42)
    world.reply(B, 5_000)
    assert {1_042} == set(caps(world.tick()).values())
    effects: list[CoordinatorEffect] = []
    for _ in range(11):
        world.reply(B, 5_000)
        effects = world.tick()

    assert caps(effects) == {"job/orders/b": 6_000}


def test_a_task_whose_splits_are_all_gone_does_not_cap_its_group() -> None:
    """BUG-04, FLINK-39586."""
    world = World()
    join(world, A, B)
    world.tick()
    world.reply(A, 1_000, LeftOut.WITHOUT_SPLITS)
    world.reply(B, 5_000)

    assert {6_000} == set(caps(world.tick()).values())


def test_disagreeing_parameters_are_refused_and_the_old_run_goes_on() -> None:
    world = World()
    join(world, A, B)
    before = snapshot_of(world.coordinator)

    with pytest.raises(DisagreeingGroup, match=r"job/orders/b.*job/orders/a"):
        join(world, B, params=replace(PARAMS, max_drift_us=1), token="2")
    assert before == snapshot_of(world.coordinator)
    world.reply(B, 1)


def test_the_newest_of_two_replies_at_one_moment_reaches_the_group() -> None:
    world = World()
    join(world, A, B)
    world.tick()
    world.reply(B, 5_000)
    for sequence, left_out in ((1, None), (2, LeftOut.IDLE)):
        world.handle(ReplyLowWatermark("job", "orders", "a", S, 42, "1", left_out, sequence=sequence))

    assert {6_000} == set(caps(world.tick()).values())


def test_a_task_may_change_its_group_and_begin_again_after_it_left() -> None:
    world = World()
    join(world, A, B)
    world.handle(TaskDeregistered(A, "1"))
    join(world, A, token="2")
    world.tick()
    world.reply(A, 10, token="2")
    world.reply(B, 5_000)
    assert {1_010} == set(caps(world.tick()).values())

    join(world, A, params=replace(PARAMS, group="h"), token="3")
    world.reply(A, 10, token="3")
    assert caps(world.tick()) == {"job/orders/a": 1_010, "job/orders/b": 6_000}
    world.register(A, "4")
    assert [group.group for group in world.coordinator.status(world.now_us).groups] == ["g"]


# -- bad input

BAD: list[CoordinatorEvent] = [
    ReplyLowWatermark("job", "orders", "a", S, 2**63, "1"),
    ReplyLowWatermark("job", "orders", "a", S, 1, "1", next_wanted_us=-(2**63) - 1),
    ReplyLowWatermark("job", "orders", "a", S, 1, "1", sequence=-1),
    ReplyLowWatermark("job", "orders", "", S, 1, "1"),
    ReplyLowWatermark("job", "orders", "a", S, 1, "r" * 1_001),
    LeaseRenewed(A, "1", heard_low_us=2**64),
    TaskRegistered(TaskId("job", "o" * 1_001, "a"), "2"),
    TaskRegistered(A, "2", low_watermark_us=2**63),
    TaskRegistered(A, "2", expected_tasks=0),
    TaskRegistered(A, "2", alignment=AlignmentParams("g" * 1_001, 1, 1)),
]


@pytest.mark.parametrize("message", BAD, ids=lambda message: repr(message)[:70])
def test_a_malformed_message_is_refused_and_changes_nothing(message: CoordinatorEvent) -> None:
    world = World(A)
    world.tick()
    before = snapshot_of(world.coordinator), world.coordinator.status(world.now_us), world.coordinator.epoch

    with pytest.raises(InvalidMessage):
        world.handle(message)
    assert before == (snapshot_of(world.coordinator), world.coordinator.status(world.now_us), world.coordinator.epoch)


@pytest.mark.parametrize("message", [LeaseRenewed(B, "1"), TaskDeregistered(B, "1")])
def test_a_task_that_never_registered_is_told_to(message: CoordinatorEvent) -> None:
    world = World(A)

    with pytest.raises(UnknownTask, match="joins before it reports"):
        world.handle(message)


# -- restart


def test_a_restart_keeps_what_was_known_and_asks_anew() -> None:
    world = World(B)
    join(world, A, C)
    world.round(a=10, b=20, c=30)
    world.tick()
    world.reply(B, 25, LeftOut.IDLE)
    before = snapshot_of(world.coordinator)
    world.restart()

    assert before == snapshot_of(world.coordinator)
    assert (world.low_us, world.source.holder) == (10, A)
    asked = of(RetrieveLowWatermark, world.handle(Tick()))
    assert [(q.task_id, q.timestamp) for q in asked] == [("a", 2 * S + 1), ("b", 2 * S + 1), ("c", 2 * S + 1)]
    with pytest.raises(UnknownTask):
        world.reply(TaskId("job", "orders", "d"), 0)


def test_after_a_restart_with_an_earlier_clock_answers_are_still_news_and_caps_are_announced() -> None:
    world = World()
    world.now_us = 3_600 * S
    join(world, A)
    world.tick()
    world.reply(A, 5)
    data = snapshot_of(world.coordinator)
    coordinator = LowWatermarkCoordinator.restore(data, Settings(interval_us=S, lease_us=LEASE_US), now_us=7)
    assert taken(data, coordinator) == snapshot_of(coordinator)
    [question] = of(RetrieveLowWatermark, coordinator.handle(Tick(), 7))
    assert of(CapAnnounced, coordinator.handle(Tick(), 7 + S))

    coordinator.handle(ReplyLowWatermark("job", "orders", "a", question.timestamp, 5, "1", LeftOut.IDLE), 8 + S)
    assert SplitState.IDLE is coordinator.status(8 + S).sources[0].tasks[0].state


@pytest.mark.parametrize("missing", ["source", "run", "task"])
def test_rows_of_which_one_is_missing_are_refused_unless_the_others_are_a_state(missing: str) -> None:
    rows = World(A).rows()
    left = {key: state for key, state in rows.items() if key[0] != missing}
    if missing == "run":  # then the task is away
        assert LowWatermarkCoordinator.restore(left, now_us=0).status(0).sources
        return
    with pytest.raises(CorruptSnapshot, match="do not make sense"):
        LowWatermarkCoordinator.restore(left, now_us=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("lost",), "0"),
        (("unknown", "a"), 1),
        (("run", *A.parts), ["job", "orders", "0", "run", "30"]),
        (("run", *A.parts), ["job", "orders", None, "run"]),
        (("retired", *A.parts, "7"), ["job", "orders", "0", 7, 1]),
        (("retired", *A.parts, "7"), 1),
        (("source", "job", "orders"), {"job_id": 7}),
        (("source", "job", "orders"), {}),
        (("source", "job", "orders"), []),
        (("task", *A.parts), {"low_us": True}),
        (("group", "g"), None),
        (("group", "g"), {"params": {"update_interval_us": 1.5}}),
        (("spoke_us", *A.parts), ["job", "orders", "0", None]),
    ],
)
def test_a_value_of_another_type_is_refused_at_once_and_not_met_in_a_tick(key: Key, value: object) -> None:
    with pytest.raises(CorruptSnapshot, match="its contents do not make sense"):
        LowWatermarkCoordinator.restore({**World(A).rows(), key: to_json(value)}, now_us=0)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", ""])
def test_a_row_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(CorruptSnapshot, match="is not JSON"):
        LowWatermarkCoordinator.restore({**World(A).rows(), ("lost",): text}, now_us=0)


def test_the_epoch_grows_with_what_a_restart_must_know_and_not_with_every_reply() -> None:
    world = World(A, B)
    world.round(a=10, b=20)
    epochs = [world.coordinator.epoch]
    world.tick()
    world.reply(A, 11, at_us=0)
    world.reply(B, 21)
    epochs.append(world.coordinator.epoch)
    for event in (
        ReplyLowWatermark("job", "orders", "a", 2 * S, 11, "1"),  # the low watermark rises
        ReplyLowWatermark("job", "orders", "b", 2 * S + 1, 21, "1", LeftOut.IDLE),
        ReplyLowWatermark("job", "orders", "b", 2 * S + 2, 21, "1"),
        TaskRegistered(A, "2"),
        TaskDeregistered(A, "2"),
    ):
        world.handle(event)
        epochs.append(world.coordinator.epoch)

    assert epochs[0] == epochs[1]
    assert sorted(set(epochs[1:])) == epochs[1:]


def test_a_source_without_tasks_keeps_its_low_watermark_for_an_hour_of_listening() -> None:
    other = TaskId("job", "clicks", "a")
    world = World(A, other)

    def live(us: int) -> None:
        for _ in range(us // (5 * S)):
            world.handle(LeaseRenewed(other, "1"))
            world.tick(5 * S)

    world.round(a=10)
    world.handle(TaskDeregistered(A, "1"))
    live(EMPTY_SOURCE_KEPT_US - 10 * S)
    world.register(B, low_us=3)  # another task of the source continues from 3
    assert world.low_us == 10

    world.handle(TaskDeregistered(B, "1"))
    world.now_us += 2 * EMPTY_SOURCE_KEPT_US  # a jump of the clock does not count
    live(EMPTY_SOURCE_KEPT_US - 10 * S)
    assert world.low_us == 10
    assert decode(world.rows())["source"][1]["low_us"] == 10
    live(20 * S)
    assert [source.source_id for source in world.coordinator.status(world.now_us).sources] == ["clicks"]
    world.rows()
    world.register(B, token="2", low_us=3)
    assert [e.task_id for e in of(RetrieveLowWatermark, world.tick()) if e.source_id == "orders"] == ["b"]


def test_a_source_may_be_forgotten_before_its_next_round_was_due() -> None:
    hour_us = 3_600 * S
    coordinator = LowWatermarkCoordinator(Settings(interval_us=5 * hour_us, lease_us=S))
    coordinator.handle(TaskRegistered(A, "1", 7), 0)
    assert len(of(TaskLost, coordinator.handle(Tick(), 2 * S))) == 1
    coordinator.handle(Tick(), 2 * hour_us)
    assert coordinator.status(2 * hour_us).sources == ()

    assert coordinator.handle(Tick(), 6 * hour_us) == []
    assert coordinator.wake_at_us(6 * hour_us) is None


def test_no_error_of_the_coordinator_is_anything_but_a_lowmark_error() -> None:
    assert all(issubclass(error, LowmarkError) for error in (StaleRun, UnknownTask, InvalidMessage, DisagreeingGroup))


def test_nothing_is_published_before_the_expected_tasks_have_come() -> None:
    coordinator = LowWatermarkCoordinator()
    first, second = TaskId("job", "orders", "0"), TaskId("job", "orders", "1")
    now_us = 0
    coordinator.handle(TaskRegistered(first, "a", expected_tasks=2), now_us)
    for _ in range(3):
        now_us += 1_000_000
        coordinator.handle(Tick(), now_us)
        coordinator.handle(ReplyLowWatermark("job", "orders", "0", now_us, 500, "a"), now_us)
    assert coordinator.low_watermark_us("job", "orders") is None
    assert coordinator.status(now_us).sources[0].why == "1 of 2 expected tasks did not register yet."

    coordinator = LowWatermarkCoordinator.restore(snapshot_of(coordinator), now_us=now_us)
    assert coordinator.status(now_us).sources[0].why == "1 of 2 expected tasks did not register yet."
    coordinator.handle(TaskRegistered(second, "b", 100), now_us)
    now_us += 1_000_000
    asked_us = of(RetrieveLowWatermark, coordinator.handle(Tick(), now_us))[0].timestamp
    for task_id, low_us, token in (("0", 500, "a"), ("1", 100, "b")):
        coordinator.handle(ReplyLowWatermark("job", "orders", task_id, asked_us, low_us, token), now_us)
    assert coordinator.low_watermark_us("job", "orders") == 100


def test_a_status_with_a_limit_shows_who_needs_attention_first_and_counts_all() -> None:
    params = AlignmentParams("g", 10, S)
    world = World()
    for n, low_us in enumerate((30, None, 10, 20)):
        task = TaskId("job", "orders", str(n))
        world.handle(TaskRegistered(task, "1", low_us, params))
    world.handle(TaskDeregistered(TaskId("job", "orders", "2"), "1"))
    whole = world.coordinator.status(world.now_us)
    few = world.coordinator.status(world.now_us, limit=2)
    none = world.coordinator.status(world.now_us, limit=0)

    assert [task.task.task_id for task in whole.sources[0].tasks] == ["0", "1", "2", "3"]
    assert [task.task.task_id for task in few.sources[0].tasks] == ["1", "2"]  # 2 is absent
    assert [member.task.task_id for member in few.groups[0].members] == ["1", "3"]
    assert [s.sources[0].tasks_not_shown for s in (whole, few, none)] == [0, 2, 4]
    assert [s.groups[0].members_not_shown for s in (whole, few, none)] == [0, 1, 3]
    states = {"pending": 1, "active": 3, "paused": 0, "idle": 0, "finished": 0}
    assert [s.sources[0].states for s in (whole, few, none)] == [states] * 3
    assert len({(s.sources[0].why, s.sources[0].holder, s.groups[0].why) for s in (whole, few, none)}) == 1


def test_sources_begin_their_rounds_at_moments_of_their_own_and_missed_rounds_are_left_out() -> None:
    coordinator, asked = LowWatermarkCoordinator(Settings(interval_us=80, lease_us=10_000)), list[tuple[int, str]]()
    for source in "abc":
        coordinator.handle(TaskRegistered(TaskId("job", source, "0"), "1"), now_us=1_000)
    for now_us in (1_020, 1_040, 1_080, 1_300, 1_320, 1_340, 1_360):
        questions = of(RetrieveLowWatermark, coordinator.handle(Tick(), now_us))
        asked += [(now_us, question.source_id) for question in questions]
    assert asked[:3] == [(1_020, "c"), (1_040, "b"), (1_080, "a")]
    assert sorted(asked[3:6]) == [(1_300, source) for source in "abc"]
    assert asked[6:] == [(1_320, "a"), (1_340, "c"), (1_360, "b")]
