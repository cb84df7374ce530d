"""Guarantees of a coordinator: after a restart, against mistakes, and against malicious callers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowmark.watermark import InvalidMessage, SplitState, TaskId, TooManyTasks
from lowmark.watermark.protocol import LeaseRenewed, LeftOut, ReplyLowWatermark, TaskDeregistered, TaskRegistered
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import CapAnnounced
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.rounds import SourceRounds
from lowmark.watermark.tasks.sources import EMPTY_SOURCE_KEPT_US

from tests.watermark.tasks.coordinator_world import LEASE_US, A, B, C, S, World, of, snapshot_of


def test_who_deregisters_takes_along_how_many_it_expected() -> None:
    world = World()
    world.handle(TaskRegistered(A, "1", 5, expected_tasks=20))
    world.handle(TaskRegistered(B, "1", 5, expected_tasks=2))
    assert world.round(a=7, b=7) == []
    world.restart()
    world.handle(TaskDeregistered(A, "1"))
    world.handle(TaskRegistered(C, "1", 5, expected_tasks=2))
    world.tick()
    asked_us = world.source.round_since_us
    assert asked_us is not None
    for task in (B, C):
        world.reply(task, 7, at_us=asked_us)
    assert world.low_us == 7


def restarted_with_what_was_said_before(*, quorum: float) -> tuple[World, ReplyLowWatermark]:
    """Return a restarted world, in which A is alive at 11 and at 10 in the journal, and an older delayed reply of A."""
    world = World(quorum=quorum)
    for task in (A, B):
        world.register(task, low_us=10)
    assert world.round(a=10, b=10) == [10]
    journal = snapshot_of(world.coordinator)
    world.tick()
    late = ReplyLowWatermark("job", "orders", "a", world.now_us, 10, "1", LeftOut.IDLE, sequence=5)
    world.handle(ReplyLowWatermark("job", "orders", "a", world.now_us, 11, "1", sequence=6))
    world.now_us += S
    world.coordinator = LowWatermarkCoordinator.restore(
        journal, Settings(interval_us=S, lease_us=LEASE_US, quorum=quorum), now_us=world.now_us
    )
    return world, late


@pytest.mark.parametrize("ahead_us", [0, 3 * S + 1])
def test_what_a_task_said_before_a_restart_does_not_let_it_be_passed_afterwards(ahead_us: int) -> None:
    world, late = restarted_with_what_was_said_before(quorum=0.5)
    for _ in range(4):
        world.tick()
        world.handle(replace(late, timestamp=late.timestamp + ahead_us))  # also by a fast clock
        world.reply(B, 100, at_us=world.source.round_since_us)
        assert world.low_us in (10, 11)
    world.tick()
    asked_us = world.source.round_since_us
    assert asked_us is not None
    world.handle(ReplyLowWatermark("job", "orders", "a", asked_us, 11, "1", LeftOut.IDLE, sequence=7))
    world.tick()
    world.reply(B, 100, at_us=world.source.round_since_us)
    world.tick()
    world.reply(B, 100, at_us=world.source.round_since_us)
    assert world.low_us == 100  # A has reported since the restart


def test_a_quorum_does_not_go_on_after_a_restart_without_those_who_were_left_out() -> None:
    world = World(A, B, quorum=0.5)
    world.tick()
    world.reply(A, 10, LeftOut.IDLE)
    world.reply(B, 10)
    assert world.states() == [SplitState.IDLE, SplitState.ACTIVE]
    world.coordinator = LowWatermarkCoordinator.restore(
        snapshot_of(world.coordinator), Settings(interval_us=S, lease_us=LEASE_US, quorum=0.5), now_us=world.now_us
    )
    low_us = world.low_us
    world.tick()
    asked_us = world.source.round_since_us
    world.reply(B, 100, at_us=asked_us)
    assert world.low_us == low_us  # A may have returned at 11 after the journal's last write
    world.reply(A, 11, at_us=asked_us)
    assert world.low_us == 11


def test_a_deadline_after_a_restart_does_not_pass_who_was_left_out_and_has_not_answered_since() -> None:
    world = World(A, B)
    world.tick()
    world.reply(A, 10, LeftOut.IDLE)
    world.reply(B, 20)
    assert world.low_us == 20
    world.restart()  # and A returned at 21 after the journal's last write
    for _ in range(3 * LEASE_US // S):
        world.reply(B, 100, at_us=world.source.round_since_us)
        world.handle(LeaseRenewed(A, "1"))
        world.tick()
    assert world.low_us == 20
    asked_us = world.source.round_since_us
    for task, low_us in ((B, 100), (A, 21)):
        world.reply(task, low_us, at_us=asked_us)
    assert world.low_us == 21


def test_members_at_both_ends_of_time_can_be_shown() -> None:
    world, params = World(), AlignmentParams("g", 10, S)
    world.handle(TaskRegistered(A, "1", -(2**63), params))
    world.handle(TaskRegistered(B, "1", 2**63 - 1, params))
    assert [member.ahead_us for member in world.coordinator.status(0).groups[0].members] == [0, 2**63 - 1]


def test_what_is_expected_has_a_limit() -> None:
    world = World()
    world.handle(TaskRegistered(A, "1", expected_tasks=200_000))
    with pytest.raises(InvalidMessage, match="expected_tasks: expected an integer of 1 to 200,000, got 200001"):
        world.handle(TaskRegistered(A, "2", expected_tasks=200_001))


def test_leases_after_a_restart_are_those_that_the_new_coordinator_gives() -> None:
    world = World(A)
    world.coordinator = LowWatermarkCoordinator.restore(
        snapshot_of(world.coordinator), Settings(lease_us=7 * S), now_us=world.now_us
    )
    assert world.source.tasks[0].lease_left_us == 7 * S


def test_there_is_room_for_so_many_tasks_and_sources_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.watermark.tasks.coordinator.MOST_TASKS", 2)
    world = World(A, TaskId("job", "clicks", "0"))
    before = snapshot_of(world.coordinator)
    with pytest.raises(TooManyTasks, match="job/orders/b was not registered: the coordinator has 2 tasks"):
        world.register(B)
    assert snapshot_of(world.coordinator) == before
    world.register(A, token="2")  # A has its place
    world.handle(TaskDeregistered(TaskId("job", "clicks", "0"), "1"))
    world.tick(3 * S)
    with pytest.raises(TooManyTasks):
        world.register(B)  # a source's low watermark is kept for an hour
    world.handle(TaskDeregistered(A, "2"))
    world.tick(3 * S)
    world.register(A, token="3")


def test_a_source_that_is_forgotten_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.watermark.tasks.coordinator.MOST_TASKS", 2)
    other = TaskId("job", "clicks", "0")
    world = World(A, other)
    world.handle(TaskDeregistered(A, "1"))
    for _ in range(EMPTY_SOURCE_KEPT_US // (5 * S) + 2):
        world.handle(LeaseRenewed(other, "1"))
        world.tick(5 * S)
    assert [source.source_id for source in world.coordinator.status(world.now_us).sources] == ["clicks"]
    world.register(B)


def test_a_source_without_tasks_asks_for_no_call() -> None:
    world = World(A)
    world.handle(TaskDeregistered(A, "1"))
    world.tick(3 * S)
    assert world.coordinator.wake_at_us(world.now_us) is None
    world.register(A, token="2")
    assert world.coordinator.wake_at_us(world.now_us) == world.now_us + S


def test_no_status_tells_a_token_with_which_others_could_speak() -> None:
    world = World()
    world.register(A, token="the token of a's run")
    seen = world.coordinator.status(0)
    assert "token of a" not in repr(seen)
    assert len(seen.sources[0].tasks[0].mark) == 12
    world.register(A, token="another")
    assert world.source.tasks[0].mark != seen.sources[0].tasks[0].mark


def test_a_group_announces_so_often_and_others_do_not_pay_for_it() -> None:
    announced = 0
    world = World()
    for n in range(100):
        params = AlignmentParams(f"g{n:02}", 10, 1)  # every microsecond
        world.handle(TaskRegistered(TaskId("job", "clicks", str(n)), "1", n, params))
    world.register(A)
    for _ in range(20):
        world.now_us += 1_000
        effects = world.reply(A, 1)
        assert len(of(CapAnnounced, effects)) <= 4
        announced += len(of(CapAnnounced, effects))
    assert announced == 80
    effects = world.tick()
    each = [told.group for told in of(CapAnnounced, effects)]
    assert {each.count(f"g{n:02}") for n in range(100)} <= set(range(18, 23))


def test_a_status_asks_once_and_not_for_each_task_what_takes_a_look_at_all_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, get = [0], SourceRounds.__dict__["expected"].fget

    def watched(rounds: SourceRounds) -> object:
        asked[0] += 1
        return get(rounds)

    monkeypatch.setattr(SourceRounds, "expected", property(watched))

    def asked_for(tasks: int) -> int:
        world, ids = World(), [TaskId("job", "orders", str(n)) for n in range(tasks)]
        for task in ids:
            world.handle(TaskRegistered(task, "1", expected_tasks=tasks))
        for task in ids[::2]:
            world.handle(TaskDeregistered(task, "1"))
        world.tick()
        asked[0] = 0
        assert [each.waited_for for each in world.source.tasks].count(True) == tasks // 2
        return asked[0]

    assert asked_for(4) == asked_for(40)
