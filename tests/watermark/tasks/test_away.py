"""Absent tasks: which are waited for, for how long, and the end of the wait (rule 5 of ``rounds.py``)."""

from __future__ import annotations

import json

import pytest
from lowmark.watermark import CorruptSnapshot, SplitState, TaskId, TaskNotAway, TooManyTasks
from lowmark.watermark.protocol import (
    LeaseRenewed,
    LeftOut,
    ReplyLowWatermark,
    TaskDeregistered,
    TaskForgotten,
    TaskLost,
    TaskRegistered,
    TaskReturnedLate,
)
from lowmark.watermark.tasks.coordinator import CoordinatorEffect, LowWatermarkCoordinator, Settings
from lowmark.watermark.tasks.restored import decode
from lowmark.watermark.tasks.snapshot import to_json
from lowmark.watermark.tasks.sources import EMPTY_SOURCE_KEPT_US

from tests.watermark.tasks.coordinator_world import LEASE_US, A, B, C, S, World, of, snapshot_of

OTHER = TaskId("job", "clicks", "0")


class Job(World):
    """A world whose tasks announce their number; with ``restarts`` its coordinator restarts before each step."""

    def __init__(self, *, restarts: bool = False) -> None:
        super().__init__()
        self.restarts, self.runs = restarts, dict[TaskId, int]()

    def come(
        self, task: TaskId, low_us: int | None = None, *, of: int = 2, limit_us: int | None = None
    ) -> list[CoordinatorEffect]:
        self.begin()
        self.runs[task] = self.runs.get(task, 0) + 1
        token = str(self.runs[task])
        return self.handle(TaskRegistered(task, token, low_us, expected_tasks=of, away_limit_us=limit_us))

    def say(self, *left_out: LeftOut, **lows_us: int | None) -> int | None:
        """Run a round in which these tasks answer, the last with `left_out` if given; return the low watermark."""
        self.begin()
        self.tick()
        asked_us = self.source.round_since_us
        for name, low_us in lows_us.items():
            task = TaskId("job", "orders", name)
            at_us = self.now_us if asked_us is None else asked_us
            why = left_out[0] if left_out and name == [*lows_us][-1] else None
            self.handle(ReplyLowWatermark(*task.parts, at_us, low_us, str(self.runs[task]), why))
        return self.low_us

    def leave(self, *tasks: TaskId, killed: bool = False) -> None:
        self.begin()
        if not killed:
            for task in tasks:
                self.handle(TaskDeregistered(task, str(self.runs[task])))
            self.tick()
            return
        lost: list[TaskId] = []
        for _ in range(LEASE_US // S + 2):
            for task in self.runs.keys() - set(tasks) - set(lost):
                if any(each.task == task and each.away_since_us is None for each in self.source.tasks):
                    self.handle(LeaseRenewed(task, str(self.runs[task])))
            lost += [each.task for each in of(TaskLost, self.tick())]
        assert sorted(lost) == sorted(tasks)

    def begin(self) -> None:
        if self.restarts:
            self.restart()

    def away(self) -> dict[str, str]:
        return {task.task.task_id: task.why for task in self.source.tasks if task.away_since_us is not None}


@pytest.fixture(params=[False, True], ids=["", "restarts"])
def job(request: pytest.FixtureRequest) -> Job:
    return Job(restarts=request.param)


ends = pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])


def begun(job: Job) -> Job:
    job.come(A)
    job.come(B)
    assert job.say(a=100, b=60) == 60
    return job


# -- tasks that are waited for


@ends
@pytest.mark.parametrize("first", [A, B], ids=str)
def test_of_two_that_are_redeployed_the_first_waits_for_the_other(job: Job, first: TaskId, *, killed: bool) -> None:
    begun(job).leave(A, B, killed=killed)
    second = B if first == A else A
    job.come(first, 60)
    for low_us in (110, 500, 900):
        assert job.say(**{first.task_id: low_us}) == (60 if first == A else 100)
    assert of(TaskReturnedLate, job.come(second, 60 if first == A else 100)) == []
    assert job.say(a=910, b=920) == 910


@ends
def test_one_that_is_redeployed_alone_is_waited_for(job: Job, *, killed: bool) -> None:
    begun(job).leave(B, killed=killed)
    assert [job.say(a=low_us) for low_us in (200, 300)] == [60, 60]
    assert job.source.holder == B

    assert of(TaskReturnedLate, job.come(B, 60)) == []
    assert [job.say(a=400, b=90), job.say(a=400, b=500)] == [90, 400]


def test_one_that_ends_before_the_other_begins_holds_with_what_it_said(job: Job) -> None:
    job.come(A)
    assert job.say(a=100) is None
    job.leave(A)
    assert job.low_us is None
    assert of(TaskReturnedLate, job.come(B, 40)) == []

    assert [job.say(b=50), job.say(b=70), job.say(b=200)] == [50, 70, 100]
    job.leave(B)
    job.come(A, 100)
    assert job.say(a=150) == 150
    assert job.say(a=900) == 200


@pytest.mark.parametrize("left_out", [LeftOut.IDLE, LeftOut.WITHOUT_SPLITS])
def test_one_that_was_left_out_when_it_went_away_holds_where_it_was(job: Job, left_out: LeftOut) -> None:
    assert begun(job).say(left_out, a=120, b=70) == 120
    job.leave(B)

    assert job.say(a=500) == 120
    job.come(B, 130)
    assert job.say(a=600, b=140) == 140


def test_one_that_went_away_before_it_said_anything_holds_everything(job: Job) -> None:
    job.come(A)
    job.come(B)
    job.leave(B)

    assert job.say(a=500) is None
    assert job.source.why.startswith("task b has been away since 1970-01-01 00:00:0")


def test_one_whose_splits_had_all_ended_holds_nobody_and_is_not_missed(job: Job) -> None:
    begun(job).say(LeftOut.FINISHED, a=120, b=70)
    assert job.source.tasks[1].why == "all its splits have ended"
    job.leave(B)

    assert job.say(a=500) == 500
    assert job.states() == [SplitState.ACTIVE, SplitState.FINISHED]
    assert job.away()["b"].endswith("UTC, and all its splits had ended")


def test_of_several_that_are_lost_at_one_moment_none_completes_the_source_for_another(job: Job) -> None:
    for task in (A, B, C):
        job.come(task)
    assert job.say(a=10, b=20, c=30) == 10
    job.leave(A, B, killed=True)

    assert job.say(c=500) == 10
    job.come(B, 20)  # two are registered, the announced number, so none waits for a
    job.say(b=600)
    assert job.say(b=700, c=800) == 700


def test_how_many_there_are_is_what_the_largest_of_those_says_that_live(job: Job) -> None:
    begun(job)
    job.come(A, 100, of=3)
    assert job.say(a=500, b=500) == 60
    assert job.source.why == "1 of 3 expected tasks did not register yet."
    job.come(A, 500, of=1)
    assert job.say(a=510, b=510) == 510  # b announces two, and two live
    job.leave(A, B)
    job.come(A, 510, of=1)
    assert job.say(a=900) == 900


def test_a_task_of_a_source_that_says_nothing_of_its_number_holds_nobody_when_it_is_away(job: Job) -> None:
    for task in (A, B):
        job.come(task, of=1)
    assert job.say(a=100, b=60) == 60
    job.leave(B)

    assert job.say(a=500) == 500
    assert job.away() == {}


# -- end of the wait


def test_a_smaller_number_lets_those_go_who_are_too_many(job: Job) -> None:
    begun(job).leave(B)
    job.come(A, 60, of=1)
    assert (job.say(a=500), job.away()) == (500, {})
    [late] = of(TaskReturnedLate, job.come(B, 60, of=1))
    assert (late.behind_us, late.why) == (440, "its source had all expected tasks without it")


def test_nobody_is_said_to_wait_where_no_task_lives(job: Job) -> None:
    """As after the end of the only query of a job, or of a query in a group."""
    job.come(A, 50, of=1)
    assert job.say(a=50) == 50
    job.leave(A)
    assert job.away()["a"].endswith("; no task lives that would wait for it")
    assert job.source.why.startswith("no task lives, and the low watermark stays; task a has been away since ")
    assert job.source.why.endswith(", and held it last.")


def test_a_person_may_say_that_one_is_gone_for_good(job: Job) -> None:
    begun(job).leave(B)
    assert job.say(a=500) == 60
    assert job.away()["b"].endswith("; the others wait for it until it is back")
    job.begin()
    job.handle(TaskForgotten(B))

    assert (job.say(a=600), job.states()) == (600, [SplitState.ACTIVE, SplitState.FINISHED])
    assert job.away()["b"].endswith("UTC, and nobody waits for it any more")
    assert (job.source.expected, job.source.missing, job.source.away) == (2, 0, 0)
    [late] = of(TaskReturnedLate, job.come(B, 60))
    assert (late.behind_us, late.why) == (540, "nobody waited for it any more")
    assert job.say(a=700) == 600  # b is back, and counts


def test_only_who_is_away_can_be_excused(job: Job) -> None:
    begun(job)
    before = snapshot_of(job.coordinator)
    with pytest.raises(TaskNotAway, match="job/orders/b is not away: it is registered, and alive"):
        job.handle(TaskForgotten(B))
    for stranger in (C, TaskId("another", "orders", "a")):
        with pytest.raises(TaskNotAway, match="is not away: the coordinator does not know it"):
            job.handle(TaskForgotten(stranger))
    assert snapshot_of(job.coordinator) == before


def test_who_set_a_limit_is_waited_for_so_long_and_only_while_somebody_waits(job: Job) -> None:
    minutes_us = 120 * S
    job.come(A)
    job.come(B, limit_us=minutes_us)
    assert job.say(a=100, b=60) == 60
    job.leave(B)
    for second in range(100):
        assert job.say(a=200 + second) == 60
        if second == 50:  # no task waits: a is absent, too, and then the coordinator
            job.leave(A)
            job.now_us += 3_600 * S
            job.restart()
            job.come(A, 250)
    lost_s = 100 if job.restarts else 0  # a restarted coordinator keeps whole minutes only
    for second in range(15 + lost_s):
        job.say(a=400 + second)
        assert job.low_us == 60, second
        if not job.restarts:
            assert "for " in job.away()["b"]
    job.restarts = False
    for second in range(130):
        job.say(a=600 + second)
    assert job.low_us == 729


def test_the_time_that_others_waited_is_in_the_journal_minute_by_minute() -> None:
    job = Job()
    job.come(A)
    job.come(B, limit_us=180 * S)
    job.say(a=100, b=60)
    job.leave(B)
    journal, epoch = snapshot_of(job.coordinator), job.coordinator.epoch
    for second in range(170):
        job.say(a=200 + second)
        if job.coordinator.epoch != epoch:
            journal, epoch = snapshot_of(job.coordinator), job.coordinator.epoch
    assert job.low_us == 60
    job.coordinator = LowWatermarkCoordinator.restore(
        journal, Settings(interval_us=S, lease_us=LEASE_US), now_us=job.now_us
    )
    waited_us = {t["task_id"]: t["waited_us"] for t in decode(journal)["source"][0]["tasks"]}
    assert waited_us["b"] // (60 * S) == 2
    for second in range(70):
        job.say(a=400 + second)
    assert job.low_us == 469


def test_who_is_waited_for_exactly_as_long_as_it_asked_for_is_not_excused_yet() -> None:
    job = Job()
    job.come(A)
    job.come(B, limit_us=5 * S)
    job.say(a=100, b=60)
    job.leave(B)

    assert [job.say(a=200 + second) for second in range(8)] == [60] * 6 + [206, 207]


def test_time_after_the_splits_of_the_only_live_task_have_ended_is_no_wait() -> None:
    job, other = Job(), TaskId("job", "views", "0")
    job.come(A)
    job.come(B, limit_us=120 * S)
    job.register(other)
    job.say(a=100, b=60)
    job.leave(B)
    job.say(LeftOut.FINISHED, a=200)
    job.handle(TaskDeregistered(A, "1"))
    for _ in range(300):
        job.tick()
        job.handle(LeaseRenewed(other, "1"))
    job.come(A, 200)

    assert [job.say(a=300), job.say(a=400)] == [60, 60]
    assert "b" in job.away()


def test_a_status_with_a_limit_shows_those_first_who_are_waited_for(job: Job) -> None:
    for task, low_us in ((A, 10), (B, 20), (C, 30)):
        job.come(task, low_us, of=3)
    job.leave(C)

    [source] = job.coordinator.status(job.now_us, limit=1).sources
    assert ([task.task for task in source.tasks], source.away) == ([C], 1)


# -- kept places


@pytest.mark.slow
def test_a_source_that_is_waited_for_is_not_forgotten_after_an_hour() -> None:
    def after_two_hours(of: int) -> list[str]:
        job = Job()
        job.register(OTHER)
        job.come(A, of=of)
        job.come(B, of=of)
        job.say(a=100, b=60)
        job.leave(A, B)
        job.rows()  # so that the rows of a forgotten source's tasks have to go
        for _ in range(2 * EMPTY_SOURCE_KEPT_US // (5 * S)):
            job.handle(LeaseRenewed(OTHER, "1"))
            job.tick(5 * S)
        job.rows()
        return [source.source_id for source in job.coordinator.status(job.now_us).sources]

    assert (after_two_hours(of=1), after_two_hours(of=2)) == (["clicks"], ["clicks", "orders"])


def test_tasks_that_are_away_take_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.watermark.tasks.coordinator.MOST_TASKS", 3)
    job = Job()
    for task in (A, B):
        job.come(task, of=3)
        job.leave(task)
    job.come(C, of=3)
    with pytest.raises(TooManyTasks):
        job.come(TaskId("job", "orders", "d"), of=3)
    job.come(A, of=3)  # a's place was kept
    job.come(A, of=1)
    job.say(a=1, c=1)
    job.come(C, of=1)
    job.say(a=1, c=1)  # so b is dropped
    job.come(TaskId("job", "orders", "d"), of=1)


@pytest.mark.parametrize(
    "field", ["passed", "expected", "patience_us", "away_since_us", "away_limit_us", "waited_us", "excused"]
)
def test_a_journal_in_which_a_field_of_a_task_is_missing_is_refused(field: str) -> None:
    job = begun(Job())
    rows, key = job.rows(), ("task", *B.parts)
    LowWatermarkCoordinator.restore(rows, Settings(interval_us=S), now_us=job.now_us)
    without = {name: value for name, value in json.loads(rows[key]).items() if name != field}
    with pytest.raises(CorruptSnapshot, match=f"'{field}' is missing"):
        LowWatermarkCoordinator.restore({**rows, key: to_json(without)}, Settings(interval_us=S), now_us=job.now_us)


# -- how far the sinks of a job are complete


def sinks(job: Job) -> tuple[int | None, str | None]:
    """Return how far all sinks are complete, and the last of them."""
    least = job.source.least_complete
    return job.source.complete_until_us, None if least is None else least.task_id


def told(job: Job, task: TaskId, until_us: int | None) -> None:
    job.begin()
    job.handle(ReplyLowWatermark(*task.parts, job.now_us, 0, str(job.runs[task]), complete_until_us=until_us))


def test_all_sinks_of_a_source_are_complete_until_the_smallest_time(job: Job) -> None:
    job.come(A)
    told(job, A, 50 * S)
    assert sinks(job) == (None, "a"), "the second task never came, so its sink is unknown"
    job.come(B)
    assert sinks(job) == (None, "b"), "the second task has not said it"
    told(job, B, 20 * S)
    assert sinks(job) == (20 * S, "b")
    told(job, B, 10 * S)
    assert sinks(job) == (20 * S, "b"), "a sink keeps its rows"
    told(job, B, None)
    told(job, B, 60 * S)
    assert sinks(job) == (50 * S, "a")


def test_the_sink_of_an_absent_task_counts_until_the_task_is_forgotten(job: Job) -> None:
    for task, until_us in ((A, 50 * S), (B, 20 * S)):
        job.come(task)
        told(job, task, until_us)
    job.leave(B)
    assert sinks(job) == (20 * S, "b")
    job.come(B)
    assert sinks(job) == (20 * S, "b"), "its sink stays between two runs"
    job.leave(B)
    job.begin()
    job.handle(TaskForgotten(B))
    assert sinks(job) == (50 * S, "a"), "nobody waits for it any more"


def test_a_task_whose_splits_have_ended_counts_until_its_last_rows_are_in_the_sink(job: Job) -> None:
    for task, until_us in ((A, 50 * S), (B, 20 * S)):
        job.come(task)
        told(job, task, until_us)
    job.say(LeftOut.FINISHED, a=70 * S, b=70 * S)
    job.leave(B, killed=True)
    assert sinks(job) == (20 * S, "b"), "nobody waits for its rows, and they may not be in its sink"
    job.begin()
    job.handle(TaskForgotten(B))
    assert sinks(job) == (50 * S, "a"), "a person says that it is gone"
