"""A coordinator of many that is restored: what it knows again, and what it believes of late messages."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from lowmark.watermark import (
    EMPTY_SOURCE_KEPT_US,
    AlignmentParams,
    CapAnnounced,
    CorruptSnapshot,
    DisagreeingGroup,
    InvalidMessage,
    LeaseRenewed,
    LeftOut,
    LowmarkError,
    LowWatermarkCoordinator,
    ReplyLowWatermark,
    RetrieveLowWatermark,
    SplitState,
    StaleRun,
    TaskDeregistered,
    TaskFinished,
    TaskId,
    TaskLost,
    TaskRegistered,
    Tick,
    TooManyTasks,
    UnknownTask,
)
from lowmark.watermark.coordinator_snapshot import decode, encode, to_json

from tests.watermark.test_coordinator import LEASE_US, A, B, C, S, World, join, of


def test_a_restart_keeps_what_was_known_and_asks_anew() -> None:
    world = World(B)
    join(world, A, C)
    world.round(a=10, b=20, c=30)
    world.tick()
    world.reply(B, 25, LeftOut.IDLE)
    before = world.coordinator.snapshot()
    world.restart()

    assert before == world.coordinator.snapshot()
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
    data = world.coordinator.snapshot()
    coordinator = LowWatermarkCoordinator.restore(data, now_us=7, interval_us=S, lease_us=LEASE_US)
    [question] = of(RetrieveLowWatermark, coordinator.handle(Tick(), 7))
    assert of(CapAnnounced, coordinator.handle(Tick(), 7 + S))

    coordinator.handle(ReplyLowWatermark("job", "orders", "a", question.timestamp, 5, "1", LeftOut.IDLE), 8 + S)
    assert SplitState.IDLE is coordinator.status(8 + S).sources[0].tasks[0].state


@pytest.mark.parametrize("cut", [0, 5, 8, 9, 40, -1])
def test_damaged_snapshots_are_refused(cut: int) -> None:
    data = World(A).coordinator.snapshot()
    for damaged in (data[:cut], data[:cut] + b"\xff" + data[cut:]):
        with pytest.raises(CorruptSnapshot):
            LowWatermarkCoordinator.restore(damaged, now_us=0)


def test_a_snapshot_of_something_else_is_refused() -> None:
    good = decode(World(A).coordinator.snapshot())
    damaged: list[dict[str, object]] = [
        {},
        {**good, "runs": 3},
        {**good, "sources": [{}]},
        {**good, "groups": [None]},
        {**good, "retired": [1]},
    ]
    for bad in damaged:
        with pytest.raises(CorruptSnapshot, match="do not make sense"):
            LowWatermarkCoordinator.restore(encode(to_json(bad)), now_us=0)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "7", "null"])
def test_a_snapshot_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(CorruptSnapshot, match="its contents are"):
        LowWatermarkCoordinator.restore(encode(text), now_us=0)


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
        TaskFinished(A, "2"),
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
    world.register(B, low_us=3)  # another task of the source: it goes on from there
    assert world.low_us == 10

    world.handle(TaskDeregistered(B, "1"))
    world.now_us += 2 * EMPTY_SOURCE_KEPT_US  # a step of the clock is no time
    live(EMPTY_SOURCE_KEPT_US - 10 * S)
    assert world.low_us == 10
    assert decode(world.coordinator.snapshot())["sources"][1]["low_us"] == 10
    live(20 * S)
    assert [source.source_id for source in world.coordinator.status(world.now_us).sources] == ["clicks"]
    assert decode(world.coordinator.snapshot()) == json.loads(json.dumps(world.coordinator.state()))
    world.register(B, run="2", low_us=3)
    assert [e.task_id for e in of(RetrieveLowWatermark, world.tick()) if e.source_id == "orders"] == ["b"]


def test_a_source_may_be_forgotten_before_its_next_round_was_due() -> None:
    hour_us = 3_600 * S
    coordinator = LowWatermarkCoordinator(interval_us=5 * hour_us)
    coordinator.handle(TaskRegistered(A, "1", 7, lease_us=S), 0)
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

    coordinator = LowWatermarkCoordinator.restore(coordinator.snapshot(), now_us=now_us)
    assert coordinator.status(now_us).sources[0].why == "1 of 2 expected tasks did not register yet."
    coordinator.handle(TaskRegistered(second, "b", 100), now_us)
    now_us += 1_000_000
    asked_us = of(RetrieveLowWatermark, coordinator.handle(Tick(), now_us))[0].timestamp
    for task_id, low_us, run in (("0", 500, "a"), ("1", 100, "b")):
        coordinator.handle(ReplyLowWatermark("job", "orders", task_id, asked_us, low_us, run), now_us)
    assert coordinator.low_watermark_us("job", "orders") == 100


def test_a_task_that_came_and_went_has_come() -> None:
    coordinator = LowWatermarkCoordinator()
    first, second = TaskId("job", "orders", "0"), TaskId("job", "orders", "1")
    coordinator.handle(TaskRegistered(first, "a", 500, expected_tasks=2), 0)
    coordinator.handle(TaskDeregistered(first, "a"), 1)
    coordinator.handle(TaskRegistered(second, "b", 900, expected_tasks=2), 2)
    coordinator.handle(Tick(), 1_000_000)
    coordinator.handle(ReplyLowWatermark("job", "orders", "1", 1_000_000, 900, "b"), 1_000_001)

    assert coordinator.low_watermark_us("job", "orders") == 900


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


def test_a_journal_of_before_says_for_the_source_how_many_are_expected() -> None:
    world = World()
    world.handle(TaskRegistered(A, "1", 5, expected_tasks=2))
    saved = decode(world.coordinator.snapshot())
    for task in saved["sources"][0]["tasks"]:
        del task["expected"]
    world.coordinator = LowWatermarkCoordinator.restore(encode(to_json(saved)), now_us=world.now_us)
    assert world.source.why == "1 of 2 expected tasks did not register yet."


def restarted_with_what_was_said_before(*, quorum: float) -> tuple[World, ReplyLowWatermark]:
    """A is at 11 and lives, the journal has it at 10; and what it said in between, which comes only now."""
    world = World(quorum=quorum)
    for task in (A, B):
        world.register(task, low_us=10)
    assert world.round(a=10, b=10) == [10]
    journal = world.coordinator.snapshot()
    world.tick()
    late = ReplyLowWatermark("job", "orders", "a", world.now_us, 10, "1", LeftOut.IDLE, sequence=5)
    world.handle(ReplyLowWatermark("job", "orders", "a", world.now_us, 11, "1", sequence=6))
    world.now_us += S
    world.coordinator = LowWatermarkCoordinator.restore(
        journal, now_us=world.now_us, interval_us=S, lease_us=LEASE_US, quorum=quorum
    )
    return world, late


@pytest.mark.parametrize("ahead_us", [0, 3 * S + 1])
def test_what_a_task_said_before_a_restart_does_not_let_it_be_passed_afterwards(ahead_us: int) -> None:
    world, late = restarted_with_what_was_said_before(quorum=0.5)
    for _ in range(4):
        world.tick()
        world.handle(replace(late, timestamp=late.timestamp + ahead_us))  # by a clock that is ahead, too
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
    assert world.low_us == 100  # it said so in this life


def test_a_quorum_does_not_go_on_after_a_restart_without_those_who_were_left_out() -> None:
    world = World(A, B, quorum=0.5)
    world.tick()
    world.reply(A, 10, LeftOut.IDLE)
    world.reply(B, 10)
    assert world.states() == [SplitState.IDLE, SplitState.ACTIVE]
    world.coordinator = LowWatermarkCoordinator.restore(
        world.coordinator.snapshot(), now_us=world.now_us, interval_us=S, lease_us=LEASE_US, quorum=0.5
    )
    low_us = world.low_us
    world.tick()
    asked_us = world.source.round_since_us
    world.reply(B, 100, at_us=asked_us)
    assert world.low_us == low_us  # A may have come back to 11 in what the journal did not have
    world.reply(A, 11, at_us=asked_us)
    assert world.low_us == 11


def test_members_at_both_ends_of_time_can_be_shown() -> None:
    world, params = World(), AlignmentParams("g", 10, S)
    world.handle(TaskRegistered(A, "1", -(2**63), params))
    world.handle(TaskRegistered(B, "1", 2**63 - 1, params))
    assert [member.ahead_us for member in world.coordinator.status(0).groups[0].members] == [0, 2**63 - 1]


def test_a_lease_and_what_is_expected_have_limits() -> None:
    world = World()
    for field, most in (("lease_us", 7 * 86_400 * S), ("expected_tasks", 200_000)):
        world.handle(TaskRegistered(A, field, **{field: most}))  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match=f"{field}: expected an integer of 1 to {most:,}, got {most + 1}"):
            world.handle(TaskRegistered(A, "2", **{field: most + 1}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most"):
        LowWatermarkCoordinator(lease_us=8 * 86_400 * S)


def test_a_lease_without_end_in_a_journal_of_before_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(A)
    saved = decode(world.coordinator.snapshot())
    saved["runs"][0][-1] = 2**63 - 1
    world.coordinator = LowWatermarkCoordinator.restore(encode(to_json(saved)), now_us=world.now_us)
    left_us = world.source.tasks[0].lease_left_us
    assert left_us == 7 * 86_400 * S


def test_there_is_room_for_so_many_tasks_and_sources_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.watermark.coordinator.MOST_TASKS", 2)
    world = World(A, TaskId("job", "clicks", "0"))
    before = world.coordinator.snapshot()
    with pytest.raises(TooManyTasks, match="job/orders/b was not registered: the coordinator has 2 tasks"):
        world.register(B)
    assert world.coordinator.snapshot() == before
    world.register(A, run="2")  # it has its place
    world.handle(TaskDeregistered(TaskId("job", "clicks", "0"), "1"))
    world.tick(3 * S)
    with pytest.raises(TooManyTasks):
        world.register(B)  # the low watermark of a source is kept for an hour
    world.handle(TaskDeregistered(A, "2"))
    world.tick(3 * S)
    world.register(A, run="3")


def test_no_status_tells_a_token_with_which_others_could_speak() -> None:
    world = World()
    world.register(A, run="the token of a's run")
    seen = world.coordinator.status(0)
    assert "token of a" not in repr(seen)
    assert len(seen.sources[0].tasks[0].run) == 12
    world.register(A, run="another")
    assert world.source.tasks[0].run != seen.sources[0].tasks[0].run


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


def test_a_status_with_a_limit_shows_who_needs_attention_first_and_counts_all() -> None:
    params = AlignmentParams("g", 10, S)
    world = World()
    for n, low_us in enumerate((30, None, 10, 20)):
        task = TaskId("job", "orders", str(n))
        world.handle(TaskRegistered(task, "1", low_us, params))
    world.handle(TaskFinished(TaskId("job", "orders", "2"), "1"))
    whole = world.coordinator.status(world.now_us)
    few = world.coordinator.status(world.now_us, limit=2)
    none = world.coordinator.status(world.now_us, limit=0)

    assert [task.task.task_id for task in whole.sources[0].tasks] == ["0", "1", "2", "3"]
    assert [task.task.task_id for task in few.sources[0].tasks] == ["1", "3"]
    assert [member.task.task_id for member in few.groups[0].members] == ["1", "3"]
    assert [s.sources[0].tasks_not_shown for s in (whole, few, none)] == [0, 2, 4]
    assert [s.groups[0].members_not_shown for s in (whole, few, none)] == [0, 2, 4]
    states = {"pending": 1, "active": 2, "paused": 0, "idle": 0, "finished": 1}
    assert [s.sources[0].states for s in (whole, few, none)] == [states] * 3
    assert len({(s.sources[0].why, s.sources[0].holder, s.groups[0].why) for s in (whole, few, none)}) == 1
    with pytest.raises(ValueError, match="expected a limit of 0 or more, got -1"):
        world.coordinator.status(world.now_us, limit=-1)
