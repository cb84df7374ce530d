"""The messages of a client, on a virtual clock."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.client_state import ClientState, GivenUp, Left, NewLow, TokenRenewed
from lowmark.integration.coordinator.holdings import Holdings
from lowmark.integration.coordinator.messages import Refused, Say, Statement, Taken
from lowmark.watermark import LowmarkError, NotifyNewLowWatermark, TaskId
from lowmark.watermark.protocol import LeaseRenewed, LeftOut, RetrieveLowWatermark, TaskForgotten, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.status import run_mark

from tests.integration.coordinator.coordinator_scene import SECOND
from tests.integration.coordinator.serving import asked, reply, rose, task
from tests.laws.strategies import draws
from tests.watermark.tasks.coordinator_world import snapshot_of

WHO = task(0)


def client(*, connected: bool = True, tasks: int = 1) -> ClientState:
    state = ClientState("app", Random(7), count(1))
    for n in range(tasks):
        state.register(TaskRegistered(task(n), f"run-{n}"))
    if connected:
        state.attached(30 * SECOND, 0)
        said(state, 0)
        state.answered([Taken()] * tasks, 0)
    return state


def report(state: ClientState, who: TaskId, low_us: int | None, *, heard_us: int | None = None, **fields: Any) -> None:
    state.report(replace(reply(who, "", 0, low_us), **fields), heard_us)


def said(state: ClientState, now_us: int) -> list[Statement]:
    message = state.take(now_us)
    return [] if message is None else said_in(message)


def said_in(message: Say) -> list[Statement]:
    return [each for each in message.statements if not isinstance(each, TaskForgotten | LowmarkError)]


def names(statements: list[Statement]) -> list[str]:
    return [type(each).__name__ for each in statements]


def refused(error: str) -> Refused:
    return Refused(error, "a sentence")


# -- the messages that it sends


def test_a_question_is_answered_from_memory_with_the_time_of_the_question() -> None:
    state = client()
    report(state, task(0), 0)
    assert said(state, SECOND) == [reply(WHO, "run-0", SECOND, 0, sequence=1)]
    state.answered([Taken()], SECOND)
    state.told([asked(WHO, 5)])
    assert said(state, 2 * SECOND) == [reply(WHO, "run-0", 5, 0, sequence=2)]
    state.answered([Taken()], 2 * SECOND)
    assert said(state, 3 * SECOND) == []
    assert state.quiet


def test_how_long_ago_it_had_rows_is_told_from_the_moment_of_the_answer() -> None:
    state = client()
    report(state, task(0), 0, heard_us=SECOND // 2, patience_us=9)
    first = reply(WHO, "run-0", SECOND, 0, sequence=1)
    assert said(state, SECOND) == [replace(first, silent_us=SECOND // 2, patience_us=9)]
    state.answered([Taken()], SECOND)
    state.told([asked(WHO, 5)])
    again = replace(first, timestamp=5, sequence=2, silent_us=3 * SECOND // 2, patience_us=9)
    assert said(state, 2 * SECOND) == [again]
    [arrived] = messages.SAY.decode_question(messages.encode(Say("app", [again]))).statements
    assert arrived == again


def test_who_knows_no_low_watermark_says_so_when_asked() -> None:
    state = client()
    state.told([asked(WHO, 5)])
    assert said(state, SECOND) == [reply(WHO, "run-0", 5, None, sequence=1)]


def test_one_message_is_under_way_and_the_newest_report_goes_with_the_next() -> None:
    state = client()
    report(state, task(0), 1)
    first = said(state, SECOND)
    for low_us in (2, 3, 4):
        report(state, task(0), low_us, left_out=LeftOut.IDLE, next_wanted_us=9)
        assert said(state, 2 * SECOND) == []
    state.answered([Taken()] * len(first), 2 * SECOND)
    assert said(state, 3 * SECOND) == [reply(WHO, "run-0", 3 * SECOND, 4, LeftOut.IDLE, 9, 2)]


def test_messages_are_gathered_for_a_moment_and_a_clock_set_back_holds_nobody() -> None:
    state = client()
    report(state, task(0), 1)
    assert said(state, SECOND)
    state.answered([Taken()], SECOND + 1_000)
    report(state, task(0), 2)
    assert said(state, SECOND + 1_000) == []
    assert state.wake_at_us == SECOND + 5_000
    assert names(said(state, SECOND + 5_000)) == ["ReplyLowWatermark"]
    state.answered([Taken()], SECOND + 5_000)
    report(state, task(0), 3)
    assert names(said(state, -SECOND)) == ["ReplyLowWatermark"]


def test_a_message_is_never_larger_than_a_coordinator_reads() -> None:
    long = "x" * 1_000
    state = ClientState("app", Random(7), count(1))
    most = 2_000
    for n in range(most):
        state.register(TaskRegistered(TaskId(long, long, f"{n}{long}"[:1_000]), long))
    state.attached(30 * SECOND, 0)
    seen: set[str] = set()
    now_us = 0
    while message := state.take(now_us):
        assert len(messages.encode(message)) <= messages.MOST_BYTES
        seen |= {each.task.task_id for each in said_in(message)}
        state.answered([Taken()] * len(message.statements), now_us)
        now_us += SECOND // 100
    assert len(seen) == most


def test_an_end_is_said_after_the_last_report() -> None:
    state = client()
    report(state, task(0), 7)
    state.end(task(0))
    assert names(said(state, SECOND)) == ["ReplyLowWatermark", "TaskDeregistered"]
    state.answered([Taken(), Taken()], SECOND)
    assert said(state, 2 * SECOND) == []
    assert state.quiet


def test_a_run_that_takes_the_place_of_another_keeps_the_low_watermark_that_was_published() -> None:
    state = client()
    state.told([rose(WHO, 1, 42)])
    assert state.heard() == [NewLow(WHO, 42)]
    state.register(TaskRegistered(WHO, "run-new"))

    assert state.low_us(WHO) == 42
    said(state, 2 * SECOND)
    state.answered([Taken(low_watermark_us=42)], 2 * SECOND)
    assert (state.heard(), state.low_us(WHO)) == ([], 42)  # no news


def test_a_run_that_reports_once_and_ends_at_once_still_says_its_last_values() -> None:
    """As with Trigger.Once, whose first report comes at the end of its only batch."""
    coordinator, state = LowWatermarkCoordinator(), client(tasks=0)
    state.register(TaskRegistered(WHO, "run-0"))
    report(state, WHO, 99)
    state.end(WHO)
    assert talk(state, coordinator, 0) == [["TaskRegistered"], ["ReplyLowWatermark", "TaskDeregistered"]]
    assert state.heard() == [Left(WHO, "run-0")]
    [status] = coordinator.status(SECOND).sources[0].tasks
    assert (status.away_since_us is not None, status.low_watermark_us) == (True, 99)


@pytest.mark.parametrize("reported", [False, True])
def test_who_deregisters_before_it_could_register_says_nothing(reported: bool) -> None:
    """Another process may run the task by the time a coordinator listens."""
    state = client(connected=False)
    if reported:
        report(state, task(0), 99)
    state.end(task(0))
    state.attached(30 * SECOND, 0)
    assert said(state, 0) == []


def test_silence_is_broken_three_times_in_a_lease() -> None:
    state = client(tasks=2)
    assert state.wake_at_us == 10 * SECOND
    assert names(said(state, 10 * SECOND)) == ["LeaseRenewed", "LeaseRenewed"]
    state.answered([Taken(), Taken()], 10 * SECOND)
    report(state, task(0), 1)
    assert names(said(state, 15 * SECOND)) == ["ReplyLowWatermark"]
    state.answered([Taken()], 15 * SECOND)
    assert [each.task.task_id for each in said(state, 20 * SECOND)] == ["1"]
    state.answered([Taken()], 20 * SECOND)


def test_nothing_is_due_while_an_answer_is_waited_for() -> None:
    state = client()
    report(state, WHO, 1)
    said(state, 5 * SECOND)
    assert state.wake_at_us is None  # a moment in the past would keep a processor busy until the answer comes
    state.answered([Taken()], 12 * SECOND)
    assert state.wake_at_us == 10 * SECOND


# -- over a lost connection


def test_what_was_under_way_is_said_again_after_a_lease_was_renewed() -> None:
    state = client()
    report(state, task(0), 1)
    assert names(said(state, SECOND)) == ["ReplyLowWatermark"]
    state.detached("gone", 2 * SECOND)
    report(state, task(0), 2)
    assert said(state, 2 * SECOND) == []
    assert (state.connected, state.since_us, state.why) == (False, 2 * SECOND, "gone")
    state.detached("gone still", 3 * SECOND)
    assert (state.since_us, state.why) == (2 * SECOND, "gone still")
    state.attached(30 * SECOND, 4 * SECOND)
    again = said(state, 4 * SECOND)
    assert again == [LeaseRenewed(WHO, "run-0", None), reply(WHO, "run-0", 4 * SECOND, 2, sequence=2)]
    assert (state.connected, state.since_us, state.why) == (True, 4 * SECOND, "")


def test_a_report_that_was_under_way_is_not_lost_with_its_answer() -> None:
    state = client()
    report(state, task(0), 1)
    said(state, SECOND)
    state.detached("gone", 2 * SECOND)
    state.attached(30 * SECOND, 3 * SECOND)
    assert names(said(state, 3 * SECOND)) == ["LeaseRenewed", "ReplyLowWatermark"]


def test_whose_lease_ran_out_registers_anew_with_what_it_reported() -> None:
    state = client()
    report(state, task(0), 77)
    said(state, SECOND)
    state.answered([refused("UnknownTask")], SECOND)
    [registration] = said(state, 2 * SECOND)
    assert isinstance(registration, TaskRegistered)
    assert registration.token != "run-0"
    assert registration.low_watermark_us == 77
    assert state.heard() == [TokenRenewed(task(0), "run-0", registration.token)]


def test_a_registration_whose_answer_was_lost_is_not_stale_by_itself() -> None:
    state = client(connected=False)
    state.attached(30 * SECOND, 0)
    assert names(said(state, 0)) == ["TaskRegistered"]
    state.detached("gone", SECOND)
    state.attached(30 * SECOND, 2 * SECOND)
    assert said(state, 2 * SECOND) == [LeaseRenewed(WHO, "run-0")]
    state.answered([refused("UnknownTask")], 2 * SECOND)
    [registration] = said(state, 3 * SECOND)
    assert (type(registration), registration.token) == (TaskRegistered, "run-0"), "it may not have arrived"
    state.answered([refused("StaleRun")], 3 * SECOND)
    [registration] = said(state, 4 * SECOND)
    assert isinstance(registration, TaskRegistered)
    assert registration.token != "run-0", "it had arrived, and its lease has run out"


def with_late_registration() -> tuple[ClientState, Say]:
    """A client on its second connection, and its registration from the first, which may still arrive."""
    state = client(connected=False)
    state.attached(30 * SECOND, 0)
    late = state.take(0)
    assert late is not None
    state.detached("no answer", SECOND)
    state.attached(30 * SECOND, 2 * SECOND)
    return state, late


def test_a_registration_that_arrives_after_the_next_connection_began_replaces_no_run_of_its_own_task() -> None:
    """A lost packet is sent again for minutes after its connection was closed, while a new connection works."""
    coordinator, (state, late) = LowWatermarkCoordinator(), with_late_registration()
    report(state, WHO, 77)
    talk(state, coordinator, 2 * SECOND)

    exchange(coordinator, late, 3 * SECOND)
    report(state, WHO, 78)
    talk(state, coordinator, 3 * SECOND)
    assert not [heard for heard in state.heard() if not isinstance(heard, NewLow)]
    [status] = coordinator.status(3 * SECOND).sources[0].tasks
    assert status.low_watermark_us == 78


def test_a_run_that_was_replaced_after_its_registration_came_late_is_given_up() -> None:
    coordinator, (state, late) = LowWatermarkCoordinator(), with_late_registration()
    said(state, 2 * SECOND)
    state.answered([refused("UnknownTask")], 2 * SECOND)
    state.detached("no answer", 3 * SECOND)
    exchange(coordinator, late, 3 * SECOND)
    coordinator.handle(TaskRegistered(WHO, "run-newer"), 3 * SECOND)
    state.attached(30 * SECOND, 4 * SECOND)

    assert talk(state, coordinator, 4 * SECOND) == [["LeaseRenewed"], ["TaskRegistered"]]
    assert [type(heard) for heard in state.heard()] == [GivenUp, Left]
    [status] = coordinator.status(5 * SECOND).sources[0].tasks
    assert status.mark == run_mark("run-newer")


def talk(state: ClientState, coordinator: LowWatermarkCoordinator, now_us: int) -> list[list[str]]:
    """Exchange messages until the application has nothing more to say; return the names of the statements."""
    said_names = []
    while (message := state.take(now_us)) is not None:
        answers, _ = exchange(coordinator, message, now_us)
        state.answered(answers, now_us)
        said_names.append(names(said_in(message)))
        now_us += SECOND // 100
    return said_names


def test_a_registration_that_never_arrived_still_takes_the_place_of_the_run_before() -> None:
    coordinator = LowWatermarkCoordinator()
    coordinator.handle(TaskRegistered(WHO, "run-before"), 0)  # of the process before, whose lease has not run out
    state = client(connected=False)
    report(state, WHO, 77)
    state.attached(30 * SECOND, 0)
    assert names(said(state, 0)) == ["TaskRegistered"]
    state.detached("the message was lost", SECOND)
    state.attached(30 * SECOND, 2 * SECOND)

    assert talk(state, coordinator, 2 * SECOND) == [["LeaseRenewed"], ["TaskRegistered"], ["ReplyLowWatermark"]]
    assert not [heard for heard in state.heard() if not isinstance(heard, NewLow)]
    [status] = coordinator.status(3 * SECOND).sources[0].tasks
    assert (status.mark, status.low_watermark_us) == (run_mark("run-0"), 77)


def test_a_run_that_was_restarted_after_the_copy_of_the_journal_goes_on_with_the_copy() -> None:
    coordinator, state = LowWatermarkCoordinator(), client(connected=False)
    coordinator.handle(TaskRegistered(WHO, "run-before"), 0)
    copy = snapshot_of(coordinator)
    state.attached(30 * SECOND, 0)
    report(state, WHO, 77)
    talk(state, coordinator, 0)
    state.detached("the coordinator ended", SECOND)
    coordinator = LowWatermarkCoordinator.restore(copy, now_us=2 * SECOND)
    state.attached(30 * SECOND, 2 * SECOND)
    report(state, WHO, 78)

    expected = [["LeaseRenewed", "ReplyLowWatermark"], ["TaskRegistered"], ["ReplyLowWatermark"]]
    assert talk(state, coordinator, 2 * SECOND) == expected
    assert not [heard for heard in state.heard() if not isinstance(heard, NewLow)]
    [status] = coordinator.status(3 * SECOND).sources[0].tasks
    assert (status.mark, status.low_watermark_us) == (run_mark("run-0"), 78)


@pytest.mark.parametrize("arrived", ["with its answer", "without its answer"])
def test_a_run_that_was_replaced_while_it_was_away_is_given_up_and_takes_no_place_back(arrived: str) -> None:
    coordinator, state = LowWatermarkCoordinator(), client(connected=False)
    state.attached(30 * SECOND, 0)
    message = state.take(0)
    assert message is not None
    answers, _ = exchange(coordinator, message, 0)
    if arrived == "with its answer":
        state.answered(answers, 0)
    state.detached("gone", SECOND)
    coordinator.handle(TaskRegistered(WHO, "run-newer"), SECOND)
    state.attached(30 * SECOND, 2 * SECOND)

    assert talk(state, coordinator, 2 * SECOND) == [["LeaseRenewed"], ["TaskRegistered"]]
    heard, left = state.heard()
    assert left == Left(WHO, "run-0")
    assert isinstance(heard, GivenUp)
    assert heard.token == "run-0"
    assert "(StaleRun): run 'run-0' of task job/orders/0 is over" in str(heard.error)
    [status] = coordinator.status(3 * SECOND).sources[0].tasks
    assert status.mark == run_mark("run-newer")


@pytest.mark.parametrize("error", ["StaleRun", "DisagreeingGroup", "InvalidMessage"])
def test_who_is_refused_for_good_is_given_up_and_the_application_hears_why(error: str) -> None:
    state = client(tasks=2)
    report(state, task(0), 1)
    report(state, task(1), 1)
    said(state, SECOND)
    state.answered([refused(error), Taken()], SECOND)
    heard, left = state.heard()
    assert left == Left(task(0), "run-0")
    assert isinstance(heard, GivenUp)
    assert str(heard.error) == f"task job/orders/0 was refused by its coordinator ({error}): a sentence"
    report(state, task(0), 2)
    report(state, task(1), 2)
    assert [each.task.task_id for each in said(state, 2 * SECOND)] == ["1"]


def test_a_run_that_is_given_up_is_named_by_the_token_that_the_application_knows() -> None:
    holdings = Holdings("app", Random(7))
    holdings.register(TaskRegistered(WHO, "run-0"))
    state = holdings.state()
    state.attached(30 * SECOND, 0)
    for at, error in enumerate(("UnknownTask", "StaleRun")):
        said(state, at * SECOND)
        state.answered([refused(error)], at * SECOND)  # it registers again, under a token that no application has seen
    for news in state.heard():
        holdings.hear(news)
    for state_now in (state, holdings.state()):
        state_now.attached(30 * SECOND, 2 * SECOND)
        [statement] = said(state_now, 2 * SECOND)
        assert statement.token != "run-0"
        state_now.answered([refused("TooManyTasks")], 2 * SECOND)
        given_up, left = state_now.heard()
        assert isinstance(given_up, GivenUp)
        assert (given_up.token, left) == ("run-0", Left(WHO, statement.token))


def test_a_run_may_end_at_the_moment_at_which_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    holdings = Holdings("app", Random(7))
    holdings.register(TaskRegistered(WHO, "run-0"))
    refusing = threading.Thread(target=holdings.hear, args=(Left(WHO, "run-0"),))

    class Slow:
        """A task that is refused between the two steps of its end."""

        def __setattr__(self, name: str, value: object) -> None:
            self.__dict__[name] = value
            if name == "ending":
                refusing.start()
                refusing.join(0.2)

    held = Slow()
    held.__dict__.update(registration=TaskRegistered(WHO, "run-0"), token="run-0", ending=False, refused=False)
    monkeypatch.setitem(holdings._tasks, WHO, held)
    holdings.end(WHO)
    refusing.join(20)
    assert holdings._tasks == {}


def test_a_new_run_is_not_touched_by_answers_to_the_one_before() -> None:
    state = client()
    report(state, task(0), 1)
    said(state, SECOND)
    state.register(TaskRegistered(WHO, "run-new"))
    state.answered([refused("StaleRun")], SECOND)
    assert state.heard() == []
    assert said(state, 2 * SECOND) == [TaskRegistered(WHO, "run-new")]


def test_a_run_that_ended_while_nobody_listened_still_says_its_last_values() -> None:
    state = client()
    state.detached("gone", SECOND)
    report(state, task(0), 99)
    state.end(task(0))
    state.attached(30 * SECOND, 2 * SECOND)
    assert names(said(state, 2 * SECOND)) == ["LeaseRenewed", "ReplyLowWatermark", "TaskDeregistered"]


def test_a_run_that_ended_and_was_replaced_while_nobody_listened_is_over_without_an_error() -> None:
    coordinator, state = LowWatermarkCoordinator(), client(connected=False)
    state.attached(30 * SECOND, 0)
    talk(state, coordinator, 0)
    state.detached("gone", SECOND)
    state.end(WHO)
    coordinator.handle(TaskRegistered(WHO, "run-newer"), SECOND)
    state.attached(30 * SECOND, 2 * SECOND)
    assert talk(state, coordinator, 2 * SECOND) == [["LeaseRenewed", "TaskDeregistered"]]
    assert state.heard() == [Left(WHO, "run-0")]


def test_who_lost_the_connection_with_its_last_message_has_not_said_everything() -> None:
    state = client()
    state.end(WHO)
    assert names(said(state, SECOND)) == ["TaskDeregistered"]
    state.detached("gone", 2 * SECOND)
    assert not state.quiet
    state.attached(30 * SECOND, 3 * SECOND)
    assert names(said(state, 3 * SECOND)) == ["LeaseRenewed", "TaskDeregistered"]
    state.answered([Taken(), Taken()], 3 * SECOND)
    assert state.quiet


# -- the messages that it gets


def test_the_low_watermark_that_is_heard_never_goes_back_and_0_is_one() -> None:
    state = client()
    for low_us in (-5, 0, 0, -1, 3, 2):
        state.told([rose(WHO, 1, low_us)])
    assert state.heard() == [NewLow(task(0), low_us) for low_us in (-5, 0, 3)]
    said(state, SECOND)
    report(state, task(0), 9)
    said(state, 2 * SECOND)
    state.answered([Taken(low_watermark_us=1)], 2 * SECOND)
    assert (state.heard(), state.low_us(task(0))) == ([], 3)


def test_of_caps_the_newest_version_counts_and_it_may_go_down() -> None:
    state = client()
    caps = []
    for version, cap in ((5, Cap.up_to(10)), (4, Cap.free()), (6, Cap.up_to(10)), (7, Cap.up_to(0)), (7, Cap.hold())):
        message = CapAnnounced("g", task(0), version, cap)
        state.told([message])
        caps.append(state.cap(task(0)))
    assert caps == [Cap.up_to(10)] * 3 + [Cap.up_to(0)] * 2


def test_a_cap_of_a_coordinator_that_lost_its_journal_and_has_an_earlier_clock_counts() -> None:
    state = client()
    state.told([CapAnnounced("g", WHO, 3_600 * SECOND, Cap.up_to(10))])
    state.detached("gone", 2 * SECOND)
    assert state.cap(WHO) == Cap.up_to(10)
    state.attached(30 * SECOND, 3 * SECOND)
    assert state.cap(WHO) == Cap.up_to(10)
    state.told([CapAnnounced("g", WHO, 7, Cap.up_to(20))])
    assert state.cap(WHO) == Cap.up_to(20)


def test_what_is_for_nobody_here_is_not_heard() -> None:
    state = client()
    other = task(9)
    state.told([asked(other, 1), rose(other, 1, 1)])
    assert (state.heard(), said(state, SECOND)) == ([], [])


# -- waits


def test_waits_double_up_to_a_limit_and_differ_between_applications() -> None:
    def waits(seed: int) -> list[int]:
        state, waits = ClientState("app", Random(seed), count(1)), list[int]()
        for _ in range(8):
            state.detached("no", 0)
            waits.append(state.retry_at_us or 0)
        return waits

    longest = (100_000, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, 5_000_000, 5_000_000)
    for seed in range(50):
        for wait_us, longest_us in zip(waits(seed), longest, strict=True):
            assert longest_us / 2 <= wait_us <= longest_us, f"seed {seed}"
    assert len({tuple(waits(seed)) for seed in range(50)}) == 50


@pytest.mark.parametrize(("lease_us", "longest_us"), [(2 * SECOND, 2 * SECOND / 3), (1_000, 100_000)])
def test_a_coordinator_that_begins_again_is_asked_within_a_short_lease(lease_us: int, longest_us: float) -> None:
    """The coordinator gives each task one lease from then on, and a job goes on without a task that is lost."""
    for seed in range(50):
        state = ClientState("app", Random(seed), count(1))
        state.attached(lease_us, 0)
        for _ in range(20):
            state.detached("gone", 0)
            assert 50_000 <= (state.retry_at_us or 0) <= longest_us, f"seed {seed}"


def test_attempts_begin_anew_after_one_that_worked() -> None:
    state = ClientState("app", Random(7), count(1))
    for _ in range(20):
        state.detached("no", 0)
    assert state.retry_at_us is not None
    assert state.retry_at_us > 2 * SECOND
    state.attached(30 * SECOND, 0)
    state.detached("gone", 0)
    assert state.retry_at_us <= 100_000


# -- against the coordinator itself, over a lossy network


class Lossy:
    """Two applications with three tasks each, one coordinator, and a lossy network between them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random, self.now_us = seed, Random(seed), 0
        self.coordinator = LowWatermarkCoordinator(Settings(interval_us=SECOND, lease_us=5 * SECOND))
        self.holdings = [Holdings(f"app-{n}", Random(seed + n)) for n in range(2)]
        self.states = [each.state() for each in self.holdings]
        self.late: list[Say] = []  # messages of lost connections that may still arrive
        self.newest = {task(n): 0 for n in range(6)}
        self.lows: dict[TaskId, list[int]] = {each: [] for each in self.newest}
        for n in range(6):
            registration = TaskRegistered(task(n), f"run-{n}")
            self.holdings[n % 2].register(registration)
            self.states[n % 2].register(registration)

    def loses(self, share: float) -> bool:
        return self.random.random() < share

    def report_some(self) -> None:
        for n in range(6):
            if self.loses(0.3):
                self.newest[task(n)] += self.random.randrange(1, 100)
                said = reply(task(n), "", 0, self.newest[task(n)])
                self.holdings[n % 2].report(said, None)
                self.states[n % 2].report(said, None)

    def step(self, loss: float) -> None:
        """Let each application send its messages, if it can; then let time pass."""
        if self.loses(0.2 * loss):
            self.coordinator = LowWatermarkCoordinator.restore(
                snapshot_of(self.coordinator), Settings(interval_us=SECOND, lease_us=5 * SECOND), now_us=self.now_us
            )
        for n in range(2):
            if self.loses(0.5 * loss):  # an error may have left it half changed
                self.states[n] = self.holdings[n].state()
                self.states[n].detached("an error", self.now_us)
        if self.late and self.loses(2 * loss):
            self.deliver(exchange(self.coordinator, self.late.pop(0), self.now_us)[1], loss)
        for state in self.states:
            self.connect_or_cut(state, loss)
            message = state.take(self.now_us)
            if message is not None:
                self.exchange(state, message, loss)
        self.deliver(self.coordinator.handle(Tick(), self.now_us), loss)
        for n in range(2):
            for heard in self.states[n].heard():
                self.holdings[n].hear(heard)
                if isinstance(heard, NewLow):
                    self.lows[heard.task].append(heard.low_us)
                else:
                    assert isinstance(heard, TokenRenewed), f"seed {self.seed}: {heard}"

    def connect_or_cut(self, state: ClientState, loss: float) -> None:
        if state.connected and self.loses(0.5 * loss):
            state.detached("cut", self.now_us)
        elif not state.connected and (state.retry_at_us is None or self.now_us >= state.retry_at_us):
            state.attached(5 * SECOND, self.now_us)

    def exchange(self, state: ClientState, message: Say, loss: float) -> None:
        if self.loses(loss):
            state.detached("the message was lost", self.now_us)
            self.late.append(message)
            return
        answers, effects = exchange(self.coordinator, message, self.now_us)
        self.deliver(effects, loss)
        if self.loses(loss):
            state.detached("the answer was lost", self.now_us)
        else:
            state.answered(answers, self.now_us)

    def deliver(self, effects: list[Any], loss: float) -> None:
        for effect in effects:
            if isinstance(effect, RetrieveLowWatermark | NotifyNewLowWatermark) and not self.loses(3 * loss):
                for state in self.states:
                    if state.connected:
                        state.told([effect])


@pytest.mark.parametrize("seed", range(draws(30)))
def test_whatever_is_lost_low_watermarks_only_rise_and_arrive_in_the_end(seed: int) -> None:
    network = Lossy(seed)
    for _ in range(200):
        network.now_us += network.random.choice([10_000, 200_000, SECOND])
        network.report_some()
        network.step(loss=0.1)
    for _ in range(60):
        network.now_us += 200_000
        network.step(loss=0)
    for each, heard in network.lows.items():
        assert heard == sorted(set(heard)), f"seed {seed}: {each}"
    published = network.coordinator.low_watermark_us("job", "orders")
    assert published is not None, f"seed {seed}"
    assert published >= min(network.newest.values()), f"seed {seed}"
    heard_last = {network.states[n % 2].low_us(task(n)) for n in range(6)}
    assert heard_last == {published}, f"seed {seed}"


def key(statement: Statement) -> tuple[str, str]:
    return statement.task.job_id, statement.task.source_id


def exchange(coordinator: LowWatermarkCoordinator, message: Say, now_us: int) -> tuple[list[Any], list[Any]]:
    """Return a coordinator's answers and effects; the message and the answers are encoded and decoded."""
    answers: list[Any] = []
    effects: list[Any] = []
    for statement in messages.SAY.decode_question(messages.encode(message)).statements:
        assert not isinstance(statement, TaskForgotten | LowmarkError)
        try:
            effects += coordinator.handle(statement, now_us)
            answers.append(Taken(coordinator.low_watermark_us(*key(statement))))
        except LowmarkError as error:
            answers.append(messages.refusal(error))
    return messages.SAY.decode_answer(messages.encode(messages.SayAnswer(answers))).answers, effects
