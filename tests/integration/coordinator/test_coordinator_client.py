"""The messages of a client, on a virtual clock; then its threads, against a real coordinator in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from lowmark.integration.cli.show_coordinator import show_coordinator
from lowmark.integration.coordinator import messages
from lowmark.integration.coordinator.access import Caller, Door
from lowmark.integration.coordinator.ask import ask_status
from lowmark.integration.coordinator.client import CoordinatorClient, _Link
from lowmark.integration.coordinator.client_state import (
    ClientState,
    GivenUp,
    Holdings,
    Left,
    NewLow,
    TokenRenewed,
)
from lowmark.integration.coordinator.messages import Refused, Say, Statement, Taken
from lowmark.integration.errors import AddressRefused, CoordinatorUnreachable, TokenRefused
from lowmark.sources.worker import Worker, WorkerDied
from lowmark.watermark import InvalidMessage, LowmarkError, NotifyNewLowWatermark, TaskId, UnknownTask
from lowmark.watermark.protocol import LeaseRenewed, LeftOut, RetrieveLowWatermark, TaskForgotten, TaskRegistered
from lowmark.watermark.splits.events import Tick
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.cap import Cap, CapAnnounced
from lowmark.watermark.tasks.coordinator import LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.status import run_mark
from rich.console import Console

from tests.integration.coordinator.serving import asked, reply, rose, serving, task, token_file
from tests.servers.local import wait_until
from tests.watermark.tasks.coordinator_world import snapshot_of

SECOND = 1_000_000
WHO = task(0)


def client(*, connected: bool = True, tasks: int = 1) -> ClientState:
    state = ClientState("app", Random(7))
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
    return Refused("FAILED_PRECONDITION", error, "a sentence")


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
    state = ClientState("app", Random(7))
    count = 2_000
    for n in range(count):
        state.register(TaskRegistered(TaskId(long, long, f"{n}{long}"[:1_000]), long))
    state.attached(30 * SECOND, 0)
    seen: set[str] = set()
    now_us = 0
    while message := state.take(now_us):
        assert len(messages.encode(message)) <= messages.MOST_BYTES
        seen |= {each.task.task_id for each in said_in(message)}
        state.answered([Taken()] * len(message.statements), now_us)
        now_us += SECOND // 100
    assert len(seen) == count


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


def test_who_deregisters_before_it_could_register_says_nothing() -> None:
    state = client(connected=False)
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
    assert isinstance(registration, TaskRegistered)
    assert registration.token != "run-0"


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
    holdings = Holdings()
    holdings.register(TaskRegistered(WHO, "run-0"))
    state = holdings.resume("app", Random(7), life=1)
    state.attached(30 * SECOND, 0)
    said(state, 0)
    state.answered([refused("UnknownTask")], 0)  # it registers again, under a token that no application has seen
    for news in state.heard():
        holdings.hear(news)
    for state_now in (state, holdings.resume("app", Random(7), life=2)):
        state_now.attached(30 * SECOND, SECOND)
        [statement] = said(state_now, SECOND)
        assert statement.token != "run-0"
        state_now.answered([refused("TooManyTasks")], SECOND)
        given_up, left = state_now.heard()
        assert isinstance(given_up, GivenUp)
        assert (given_up.token, left) == ("run-0", Left(WHO, statement.token))


def test_a_run_may_end_at_the_moment_at_which_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    holdings = Holdings()
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
        state, waits = ClientState("app", Random(seed)), list[int]()
        for _ in range(8):
            state.detached("no", 0)
            waits.append(state.retry_at_us or 0)
        return waits

    longest = (100_000, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, 5_000_000, 5_000_000)
    for seed in range(50):
        for wait_us, longest_us in zip(waits(seed), longest, strict=True):
            assert longest_us / 2 <= wait_us <= longest_us, f"seed {seed}"
    assert len({tuple(waits(seed)) for seed in range(50)}) == 50


def test_attempts_begin_anew_after_one_that_worked() -> None:
    state = ClientState("app", Random(7))
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
        self.holdings = [Holdings() for _ in range(2)]
        self.states = [ClientState(f"app-{n}", Random(seed + n)) for n in range(2)]
        self.lives = 1
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
                self.states[n] = self.holdings[n].resume(f"app-{n}", Random(self.seed), life=self.lives)
                self.states[n].detached("an error", self.now_us)
                self.lives += 1
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


@pytest.mark.parametrize("seed", range(30))
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


# -- its threads


def test_callbacks_come_from_one_thread_and_one_that_raises_stops_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threads, lows = set(), []

    def hear(_task: TaskId, low_us: int) -> None:
        threads.add(threading.current_thread().name)
        lows.append(low_us)
        raise ValueError("the application's own fault")

    with (
        caplog.at_level(logging.ERROR),
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_low=hear) as one,
    ):
        one.register(task(0))
        for low_us in (1, 2, 3):
            one.report(task(0), low_us)
            wait_until(lambda low_us=low_us: lows[-1:] == [low_us], "it is heard")  # type: ignore[misc]
    assert threads == {"lowmark-client"}
    assert "a callback of the application raised" in caplog.text


def test_a_coordinator_that_does_not_exist_is_said_at_once_and_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        CoordinatorClient(Caller(f"unix:{folder}/nobody.sock")) as alone,
    ):
        with pytest.raises(CoordinatorUnreachable, match=r"cannot create the service: no coordinator answers at unix:"):
            alone.reach()
        since_us = alone.since_us
        wait_until(lambda: alone._state.retry_at_us > since_us + 200_000, "a second attempt")  # type: ignore[operator]
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"no coordinator answers at unix:{folder}/nobody.sock (UNAVAILABLE")
    assert said.endswith("Hint: start it with `lowmark serve`, or check the address.")


def test_a_coordinator_that_answers_is_reached_and_nothing_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address)) as one,
    ):
        one.reach()
        assert one.connected
    assert [record for record in caplog.records if record.name == "lowmark.integration.coordinator.client"] == []


ODD_NAMES = (
    """it's "quoted" \\ and `so on`""",
    "line\nbreak\r\n\ttab",
    "Zürich 東京 🚰 \u202e",
    "null\0 and [red]markup[/red] [/nothing] :smile: {braces} %s",
    "/slashes/",
    " ",
)


def test_odd_names_come_back_as_they_went_over_the_wire_the_journal_and_the_status(folder: Path) -> None:
    """Odd names of jobs, streams, tasks, runs and groups. Each source has two tasks, so a mixed-up name never rises."""
    tasks = [TaskId(f"job {odd}", f"source {odd}", f"{n} {odd}") for odd in ODD_NAMES for n in range(2)]
    tasks += [TaskId("a/b", "c", "d"), TaskId("a", "b/c", "d"), TaskId("a", "b", "c/d")]  # their texts are alike
    for low_us in (0, 7):  # the second time with the journal's state
        with (
            serving(Door(f"unix:{folder}/c.sock"), journal=folder / "journal") as address,
            CoordinatorClient(Caller(address)) as one,
        ):
            for n, each in enumerate(tasks):
                group = AlignmentParams(f"group {each.job_id} {each.source_id}", 1_000, 20_000)
                one.register(each, token=f"run {low_us} {each.task_id}", alignment=group)
                one.report(each, low_us + n)
            for n, each in enumerate(tasks):
                least_us = low_us + (n // 2 * 2 if n < 2 * len(ODD_NAMES) else n)
                wait_until(lambda: one.low_us(each) == least_us, f"{each!r} to hear {least_us}")  # noqa: B023
                wait_until(lambda: one.cap(each) == Cap.up_to(least_us + 1_000), f"the cap of {each!r}")  # noqa: B023
            seen = ask_status(Caller(address)).coordinator
            runs = {task.task: task.mark for source in seen.sources for task in source.tasks}
            assert runs == {each: run_mark(f"run {low_us} {each.task_id}") for each in tasks}
            assert {group.group for group in seen.groups} == {f"group {each.job_id} {each.source_id}" for each in tasks}
            printed = StringIO()
            console = Console(file=printed, width=1_000, markup=False, emoji=False)
            show_coordinator(address, ask_status(Caller(address)), console, now_us=0)
            assert all(f"{n} {ODD_NAMES[0]}" in printed.getvalue() for n in range(2))
            assert "0 null" in printed.getvalue()
            assert "[red]markup[/red] [/nothing] :smile:" in printed.getvalue()


def test_two_processes_of_one_task_do_not_fight_over_it(folder: Path) -> None:
    given_up: list[str] = []
    with (
        serving(
            Door(f"unix:{folder}/c.sock"), lease_us=3 * SECOND
        ) as address,  # a client renews after a third of the lease
        CoordinatorClient(Caller(address), on_given_up=lambda token, _error: given_up.append(token)) as old,
        CoordinatorClient(Caller(address)) as new,
    ):
        token = old.register(task(0))
        old.report(task(0), 1)
        wait_until(lambda: old.low_us(task(0)) == 1, "the first")
        new.register(task(0))
        new.report(task(0), 5)
        wait_until(lambda: given_up, "the first is told that it was replaced")
        wait_until(lambda: new.low_us(task(0)) == 5, "the second")
        old.report(task(0), 9)
    assert given_up == [token]


def test_what_cannot_be_is_refused_to_the_caller(folder: Path) -> None:
    with CoordinatorClient(Caller(f"unix:{folder}/nobody.sock")) as alone:
        with pytest.raises(UnknownTask, match="task job/orders/0 is not known to this application"):
            alone.report(task(0), 1)
        alone.register(task(0))
        with pytest.raises(InvalidMessage, match="current_low_watermark"):
            alone.report(task(0), 2**63)
        with pytest.raises(InvalidMessage, match="task_id"):
            alone.register(TaskId("job", "orders", ""))
        with pytest.raises(InvalidMessage, match=r"task_id: .*UTF-8"):  # its thread could not send the name
            alone.register(TaskId("job", "orders", "half of a pair \ud83d"))
        alone.deregister(task(0))
        with pytest.raises(UnknownTask):
            alone.deregister(task(0))
        wait_until(lambda: alone.why.startswith("UNAVAILABLE"), "the reason")
        assert not alone.connected


def test_an_address_or_a_token_that_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AddressRefused, match="tls_ca and token_file are missing"):
        CoordinatorClient(Caller("localhost:1"))
    readable = token_file(tmp_path)
    readable.chmod(0o640)
    with pytest.raises(TokenRefused, match="its permissions are 0640, expected 0600") as refusal:
        CoordinatorClient(Caller("unix:/nobody.sock", token_file=readable))
    assert "0123456789abcdef" not in str(refusal.value)
    with pytest.raises(TokenRefused, match="16 or more plain characters"):
        CoordinatorClient(Caller("unix:/nobody.sock", token_file=token_file(tmp_path, "short", "s")))


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "no answer within 0.2 seconds"), (messages.SayAnswer([]), "got 0 answers to 1 statements")],
    ids=["not in time", "not what was asked"],
)
def test_who_is_not_answered_hangs_up_and_tries_again(
    answer: messages.SayAnswer | None, why: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    over, watches = threading.Event(), list[bytes]()

    def watch(data: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        watches.append(data)
        yield messages.encode(messages.Told([], 3_000 * SECOND))  # the client has no other reason to wake up
        over.wait(20)

    def say(said: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in said:
            if answer is not None:
                yield messages.encode(answer)
            over.wait(20)

    server = grpc.server(ThreadPoolExecutor(16))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
        "Say": grpc.stream_stream_rpc_method_handler(say),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(messages.SERVICE, handlers)])
    server.add_insecure_port(f"unix:{folder}/c.sock")
    server.start()
    try:
        with (
            caplog.at_level(logging.WARNING),
            CoordinatorClient(Caller(f"unix:{folder}/c.sock"), deadline_seconds=0.2) as one,
        ):
            wait_until(lambda: one.connected, "connected")
            one.register(task(0))
            wait_until(lambda: len(watches) >= 2, "it has hung up, and watches anew", seconds=10)
        assert why in caplog.text
    finally:
        over.set()
        server.stop(None).wait(20)


def test_who_has_nothing_to_say_is_not_waited_for(folder: Path) -> None:
    door = Door(f"unix:{folder}/c.sock")
    with (
        serving(door, interval_us=60 * SECOND) as address,
        CoordinatorClient(Caller(address), deadline_seconds=0.2) as one,
    ):
        wait_until(lambda: one.connected, "connected")
        one.register(task(0))
        wait_until(lambda: one._state.quiet and ask_status(Caller(address)).coordinator.sources != (), "registered")
        since_us = one.since_us
        threading.Event().wait(1)
        assert (one.connected, one.since_us) == (True, since_us)


def test_what_is_said_right_before_closing_arrives(folder: Path) -> None:
    with serving(Door(f"unix:{folder}/c.sock")) as address, CoordinatorClient(Caller(address)) as one:
        one.register(task(0))
        one.report(task(0), 1)
        wait_until(lambda: one.low_us(task(0)) == 1, "connected")
        with CoordinatorClient(Caller(address)) as other:
            wait_until(lambda: other.connected, "connected")
            other.register(task(1), low_watermark_us=3)
            other.report(task(1), 10)
            other.deregister(task(1))
        one.report(task(0), 20)
        wait_until(lambda: one.low_us(task(0)) == 20, "the other one holds nothing")


def test_what_is_said_while_the_thread_is_busy_arrives_before_the_close(folder: Path) -> None:
    busy, closing = threading.Event(), list[threading.Event]()

    class Told(threading.Event):
        """Lets `close` act on the news before the thread does anything more."""

        def set(self) -> None:
            super().set()
            closing[0].wait(5)

    def hear(_task: TaskId, low_us: int) -> None:
        if low_us == 2:  # the thread has taken all work that was there
            one._quiet = Told()
            busy.set()
            wait_until(lambda: one._work.qsize() >= 2, "the end of the run and of the link")

    with serving(Door(f"unix:{folder}/c.sock"), interval_us=SECOND // 50) as address:
        one = CoordinatorClient(Caller(address), on_low=hear)
        closing.append(one._closing)
        one.register(task(0))
        one.report(task(0), 2)
        assert busy.wait(20)
        one.deregister(task(0))
        one.close(seconds=20)
        [source] = ask_status(Caller(address)).coordinator.sources
        assert [each.task for each in source.tasks if each.away_since_us is None] == []


# -- an error in its threads


def once(error: Exception, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work, with an error at the first call."""
    errors = [error]

    def raises(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*arguments, **named)

    return raises


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (ClientState, "register"),
        (ClientState, "report"),
        (ClientState, "take"),
        (ClientState, "told"),
        (ClientState, "answered"),
        (ClientState, "_statements"),
        (ClientState, "_taken"),
        (CoordinatorClient, "_wait_seconds"),
        (CoordinatorClient, "_step"),
        (CoordinatorClient, "_take"),
    ],
)
@pytest.mark.parametrize("error", [KeyError("x"), MemoryError()], ids=lambda error: type(error).__name__)
def test_a_link_begins_again_with_what_the_application_said(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: type,
    name: str,
    error: Exception,
) -> None:
    lows: list[int] = []
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_low=lambda _task, low_us: lows.append(low_us)) as one,
    ):
        one.register(task(0))
        one.report(task(0), 1)
        wait_until(lambda: lows == [1], "it is heard")
        monkeypatch.setattr(place, name, once(error, getattr(place, name)))
        one.register(task(1))
        one.report(task(1), 9)
        one.report(task(0), 7)
        wait_until(lambda: lows[-1] == 7, "the link is back", seconds=10)
        one.deregister(task(1))
        one.report(task(0), 8)
        wait_until(lambda: lows[-1] == 8, "and goes on", seconds=10)
        assert one.connected
        assert one.why == ""
    assert lows == sorted(lows)
    assert any(type(error).__name__ in record.getMessage() for record in caplog.records)


def test_a_connection_whose_second_call_lacks_a_thread_of_grpc_closes_its_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_threads(*_args: Any, **_options: Any) -> Any:
        raise RuntimeError("can't start new thread")

    caller = Caller(f"unix:{folder}/nobody.sock")
    channel: Any = caller.channel()
    monkeypatch.setattr(channel, "stream_stream", lambda *_args, **_options: short_of_threads)
    monkeypatch.setattr(Caller, "channel", lambda _: channel)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _Link(caller, "app", lambda *_: None)
    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary(messages.STATUS.path)(b"")


def test_a_connection_that_lacks_a_thread_leaves_none_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, start = ["lowmark-client-say"], Worker.start

    def short_of_threads(worker: Worker) -> None:
        if worker.name in refusals:
            refusals.remove(worker.name)
            raise RuntimeError("can't start new thread")
        start(worker)

    with serving(Door(f"unix:{folder}/c.sock")) as address:
        with CoordinatorClient(Caller(address)) as one:
            one.reach()  # starts gRPC's own threads, which stay
        before = set(threading.enumerate())
        monkeypatch.setattr(Worker, "start", short_of_threads)
        with CoordinatorClient(Caller(address)) as one:
            wait_until(lambda: one.connected, "the link is back", seconds=10)
        assert refusals == []
        wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left", seconds=10)


def test_a_link_that_fails_again_and_again_ends_and_whoever_needs_it_hears_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: dict[str, LowmarkError] = {}
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), on_given_up=given_up.__setitem__) as one,
    ):
        token = one.register(task(0))
        one.reach()

        def wrong(*_arguments: Any) -> Any:
            raise KeyError("a bug")

        monkeypatch.setattr(ClientState, "take", wrong)
        one.report(task(0), 1)
        wait_until(lambda: token in given_up, "its tasks are given up", seconds=10)
        assert isinstance(given_up[token], WorkerDied)
        assert "KeyError: 'a bug'" in str(given_up[token])
        assert not one.connected
        assert one.why == "the thread of this link was ended by an error: KeyError: 'a bug'"
        assert one.since_us is not None
        assert isinstance(one.failed, KeyError)
        with pytest.raises(WorkerDied, match="a bug"):
            one.reach()
        later = one.register(task(1))
        assert set(given_up) == {token, later}


def test_connected_means_that_what_was_said_last_was_answered(folder: Path) -> None:
    now_us = [0]
    with (
        serving(Door(f"unix:{folder}/c.sock")) as address,
        CoordinatorClient(Caller(address), now_us=lambda: now_us[0], deadline_seconds=5) as one,
    ):
        one.reach()
        one._answer_by_us = 5 * SECOND  # it waits for an answer, and its thread does no other work
        assert (one.connected, one.why) == (True, "")
        now_us[0] = 5 * SECOND
        assert (one.connected, one.why) == (False, "no answer within 5 seconds")
