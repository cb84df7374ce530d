"""The rules between runs and others, without Spark: which run is a task of which job or group, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from lowmark.integration.driver import check
from lowmark.integration.driver.cooperation import SHARED_STEP_US, Cooperation, check_group
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.planned_splits import PlannedSplits
from lowmark.integration.driver.runs import Runs
from lowmark.integration.driver.stream import Stream, metric_of
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.errors import RefusedByCoordinator, ServiceRefused, WrapRefused
from lowmark.integration.process.clock import SteadyClock
from lowmark.integration.transport.observed import ObservedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import DisagreeingGroup, InvalidMessage, InvalidStrategy, SplitState, TaskId, WatermarkStrategy
from lowmark.watermark.protocol import LeftOut, ReplyLowWatermark, TaskRegistered
from lowmark.watermark.splits.events import (
    BatchReported,
    Polled,
    SplitsDiscovered,
    SplitsFinished,
    SplitsPaused,
    StrategySet,
)
from lowmark.watermark.strategy import AlignmentParams
from lowmark.watermark.tasks.alignment import AlignmentGroup, MemberStatus
from lowmark.watermark.tasks.cap import Cap
from lowmark.watermark.tasks.message_check import check_registration

from tests.integration.driver.reported import NoQueries

if TYPE_CHECKING:
    from lowmark.integration.coordinator.client import CoordinatorClient
    from lowmark.integration.spark.queries import Queries

S = 1_000_000
KEY = SplitKey(("s",), ("string",))
BARE = {"detail": False, "sample_names": False}
PLAIN = WatermarkStrategy.for_monotonous_timestamps()
GROUPED = PLAIN.with_watermark_alignment(group="g", max_drift="30 seconds", update_interval="2 seconds")


@dataclass
class FakeClient:
    """Keeps the reports that it gets, and returns prepared answers."""

    address: str = "unix:/c.sock"
    connected: bool = True
    why: str = "gone"
    since_us: int | None = None
    lows_us: dict[TaskId, int] = field(default_factory=dict)
    caps: dict[TaskId, Cap] = field(default_factory=dict)
    said: list[tuple[Any, ...]] = field(default_factory=list)
    silence_us: tuple[int | None, int | None] = None, None
    complete_until_us: int | None = None

    def register(self, registration: TaskRegistered) -> None:
        self.said.append(("register", registration.task, registration))

    def report(self, reply: ReplyLowWatermark, heard_us: int | None) -> None:
        said = reply.current_low_watermark, reply.left_out, reply.next_wanted_us
        self.said.append(("report", reply.task, *said))
        self.complete_until_us = reply.complete_until_us
        self.silence_us = heard_us, reply.patience_us

    def deregister(self, task: TaskId) -> None:
        self.said.append(("deregister", task))

    def low_us(self, task: TaskId) -> int | None:
        return self.lows_us.get(task)

    def cap(self, task: TaskId) -> Cap | None:
        return self.caps.get(task)


class World:
    def __init__(
        self, job: str | None = None, job_queries: int = 1, job_away_us: int | None = None, *, remote: bool = True
    ) -> None:
        self.now_us = 7 * S
        self.client = FakeClient()
        client = cast("CoordinatorClient", self.client) if remote else None
        self.cooperation = Cooperation(lambda: self.now_us, client, job, job_queries, job_away_us)

    def run(
        self,
        name: str = "orders",
        strategy: WatermarkStrategy = PLAIN,
        *,
        query: str | None = "query-1",
        token: str = "run-1",
        restored_low_us: int | None = None,
        reads: bool = False,
        claims: bool = False,
    ) -> StreamRun:
        measure = ObservedMeasure(metric_of(name), name, KEY, "ts", None, 4, **BARE)
        stream = Stream(name, name, strategy, KEY, measure, 1, False, {}, {}, reads=reads, claims=claims)
        run = StreamRun.attach(
            stream, token=token, resumes=None, state=None, now_us=self.now_us, restored_low_us=restored_low_us
        )
        run.query_id, run.shares = query, self.cooperation.shares(stream)
        return run

    def reach(self, run: StreamRun, us: int, split: int = 1) -> None:
        """Let the stream's only split reach this time."""
        run.handle(BatchReported(0 if run.last_batch_id is None else 1, self.now_us, {split: us}), self.now_us)

    def said(self) -> list[tuple[Any, ...]]:
        said, self.client.said = self.client.said, []
        return said


QUERY_TASK, JOB_TASK = TaskId("query-1", "orders", "0"), TaskId("billing", "orders", "query-1")


def test_who_is_in_no_group_and_in_no_job_concerns_nobody() -> None:
    world = World()
    run = world.run()

    assert not world.cooperation.takes_part(run.stream)
    assert (world.cooperation.report(run), world.said(), world.cooperation.explain(run)) == (False, [], None)
    assert world.cooperation.wake_at_us(run, None) is None
    world.cooperation.end(run)
    assert world.said() == []


def test_a_stream_without_watermarks_is_in_nothing() -> None:
    world, none = World("billing"), WatermarkStrategy.no_watermarks()

    assert not world.cooperation.shares(world.run(strategy=none).stream)
    for strategy in (none, none.with_watermark_alignment(group="g", max_drift="1 second")):
        assert not world.cooperation.takes_part(world.run(strategy=strategy).stream)


def test_a_run_begins_as_a_task_when_its_query_is_known_and_only_once() -> None:
    world = World()
    run = world.run(strategy=GROUPED, query=None)
    world.cooperation.report(run)
    assert world.said() == []
    run.query_id = "query-1"
    world.cooperation.report(run)
    world.cooperation.report(run)

    registered, *reports = world.said()
    of_group = TaskRegistered(QUERY_TASK, "run-1", alignment=GROUPED.alignment, throttled=False)
    assert registered == ("register", QUERY_TASK, of_group)
    assert reports == [("report", QUERY_TASK, None, LeftOut.WITHOUT_SPLITS, None)] * 2


def test_a_query_of_a_job_is_a_task_of_the_job_and_names_how_many_are_expected_and_where_it_was() -> None:
    world = World("billing", 3, 7)
    world.cooperation.report(world.run(restored_low_us=0))

    [(_, task, of_job), _] = world.said()
    assert (task, of_job.expected_tasks, of_job.low_watermark_us) == (JOB_TASK, 3, 0)
    assert (of_job.alignment, of_job.away_limit_us) == (None, 7)


def test_what_it_says_is_its_own_low_watermark_and_why_it_is_left_out() -> None:
    world = World()
    run = world.run(strategy=GROUPED)

    def says() -> tuple[Any, ...]:
        world.cooperation.report(run)
        return world.said()[-1][2:]

    assert says() == (None, LeftOut.WITHOUT_SPLITS, None)
    run.handle(SplitsDiscovered((1, 2)), world.now_us)
    assert says() == (None, None, None)
    world.reach(run, 0, 1)
    world.reach(run, 5, 2)
    low_us = run.watermarks.low_watermark_us
    assert low_us is not None
    assert says() == (low_us, None, None)
    run.handle(SplitsFinished((1,)), world.now_us)
    assert says()[1] is None  # one split is left
    run.handle(SplitsFinished((2,)), world.now_us)
    assert says()[1] is LeftOut.WITHOUT_SPLITS  # others may come


def test_what_it_would_read_next_is_said_as_the_watermark_that_comes_of_it() -> None:
    world = World()
    bounded = GROUPED.for_bounded_out_of_orderness("5 seconds").with_watermark_alignment(
        group="g", max_drift="30 seconds", update_interval="2 seconds"
    )
    run = world.run(strategy=bounded, reads=True, claims=True)
    run.splits.planner = KnownPlanner(run.stream.stream_id)
    run.splits.planner.keep(Planned(1, {"a": ()}, next_us=50 * S))
    world.cooperation.report(run)

    (_, _, _, _, next_wanted_us) = world.said()[-1]
    assert next_wanted_us == bounded.watermark_of_max(50 * S) < 45 * S


def test_a_stream_without_claims_says_the_watermark_of_its_slowest_held_split_once_no_other_split_has_rows() -> None:
    world = World()
    run = world.run(strategy=GROUPED, reads=True)
    planner = run.splits.planner = KnownPlanner(run.stream.stream_id)
    for split, second in (("a", 40), ("b", 50), ("silent", 1)):
        world.reach(run, second * S, KEY.split_id((split,)))

    wanted: list[int | None] = []
    for planned in (
        Planned(1, dict.fromkeys(["a", "b", "silent"], ()), rows={"silent": 1}, paused=frozenset("ab"), next_us=99 * S),
        Planned(2, dict.fromkeys(["a", "b", "silent"], ()), paused=frozenset("ab"), next_us=99 * S),
        Planned(3, dict.fromkeys(["a", "b", "silent"], ())),
    ):
        planner.keep(planned)
        world.cooperation.report(run)
        wanted.append(world.said()[-1][-1])
    assert wanted == [None, 40 * S, None]


def test_a_stream_without_claims_is_held_back_by_the_watermarks_of_its_splits() -> None:
    world = World()
    bounded = WatermarkStrategy.for_bounded_out_of_orderness("10 minutes").with_watermark_alignment("g", "30 seconds")
    run = world.run(strategy=bounded, reads=True)
    world.cooperation.report(run)

    def paused(cap: Cap) -> set[str]:
        world.client.caps[QUERY_TASK] = cap
        return set(world.cooperation.guidance(run.stream, run).paused)

    name, other = map(run.stream.name_of, (1, 2))
    assert (paused(Cap.hold()), world.cooperation.guidance(run.stream, run).hold) == (set(), False), "to read once"
    world.reach(run, 100 * S, 1)
    world.reach(run, 200 * S, 2)
    assert paused(Cap.up_to(100 * S)) == {other}
    assert paused(Cap.up_to(100 * S - 1)) == {name, other}
    assert (paused(Cap.free()), paused(Cap.up_to(200 * S))) == (set(), set())
    assert (paused(Cap.hold()), world.cooperation.guidance(run.stream, run).hold) == ({name, other}, True)
    shorter = replace(bounded, out_of_orderness_us=0)
    run.handle(StrategySet(shorter), world.now_us)
    run.stream = replace(run.stream, strategy=shorter)
    assert paused(Cap.up_to(100 * S)) == {other}, "another bound moves no watermark, so it holds back no split"


@pytest.mark.parametrize(
    ("complete", "why"), [(False, LeftOut.WITHOUT_SPLITS), (True, LeftOut.FINISHED)], ids=["more", "none"]
)
def test_whether_splits_may_come_is_what_the_planner_says(complete: bool, why: LeftOut) -> None:
    world = World("billing")
    run = world.run(reads=True)
    planner = KnownPlanner(run.stream.stream_id)
    planner.keep(Planned(1, {}, complete=complete))
    assert isinstance(run.splits, PlannedSplits)
    run.splits.planner = planner
    world.cooperation.report(run)
    assert world.said()[-1][3] is why


@pytest.mark.parametrize(("clock", "idle"), [("time", 1), ("flow", 0)])
def test_idle_is_said_only_if_every_live_split_is_or_the_stream_is_silent(clock: str, idle: int) -> None:
    world = World("billing")
    run = world.run(strategy=GROUPED.with_idleness("1 second", clock))
    run.handle(SplitsDiscovered((1, 2)), world.now_us)
    world.reach(run, 5, 1)
    world.reach(run, 5, 2)
    run.handle(SplitsFinished((1,)), world.now_us)
    world.cooperation.report(run)
    assert world.said()[-1][3] is None
    for _ in range(3):
        world.now_us += S
        run.handle(Polled(world.now_us), world.now_us)
    world.cooperation.report(run)
    assert (run.watermarks.states[SplitState.IDLE], world.said()[-1][3]) == (idle, LeftOut.IDLE)
    # A split that is idle by time alone is left out at once, a silent one after others had rows for the timeout.
    assert [*world.client.silence_us] == [7 * S, None if idle else S]
    run.shares = False
    world.cooperation.report(run)
    assert [*world.client.silence_us] == [None, None]  # a group waits for neither

    half = world.run(strategy=GROUPED.with_idleness("1 second", clock), token="run-2")
    half.handle(SplitsDiscovered((1, 2)), world.now_us)
    world.reach(half, 5, 1)
    world.reach(half, 5, 2)
    half.handle(SplitsPaused((2,)), world.now_us)  # a paused split is never idle
    for _ in range(3):
        world.now_us += S
        half.handle(Polled(world.now_us), world.now_us)
    world.cooperation.report(half)
    assert (half.watermarks.states[SplitState.IDLE], world.said()[-1][3]) == (idle, None)


def test_the_low_watermark_of_a_job_is_what_the_coordinator_published_and_0_is_one() -> None:
    world = World("billing")
    run = world.run()
    world.reach(run, 100)

    assert (world.cooperation.report(run), run.low_watermark_us) == (False, None)
    world.client.lows_us[JOB_TASK] = 0
    assert (world.cooperation.report(run), run.low_watermark_us) == (True, 0)
    assert (world.cooperation.report(run), run.low_watermark_us) == (False, 0)


def test_a_group_elsewhere_changes_no_low_watermark_here() -> None:
    world = World()
    run = world.run(strategy=GROUPED)
    world.reach(run, 100)
    own_us = run.low_watermark_us
    world.client.lows_us[QUERY_TASK] = 50

    assert (world.cooperation.report(run), run.low_watermark_us) == (False, own_us)


def test_a_run_that_ended_says_nothing_more_and_its_task_leaves() -> None:
    world = World("billing")
    run = world.run()
    world.cooperation.report(run)
    run.ended = True
    world.cooperation.end(run)
    world.said()

    assert not world.cooperation.report(run)
    world.cooperation.end(run)
    assert world.said() == []


def test_a_run_that_takes_the_place_of_another_is_not_ended_with_it() -> None:
    world = World("billing")
    old, new = world.run(), world.run(token="run-2")
    world.cooperation.report(old)
    world.cooperation.report(new)
    assert [said[2].token for said in world.said() if said[0] == "register"] == ["run-1", "run-2"]

    world.cooperation.end(old)
    assert world.said() == []
    world.cooperation.end(new)
    assert world.said() == [("deregister", JOB_TASK)]


def test_old_news_of_a_refusal_does_not_end_the_run_that_took_the_place() -> None:
    world = World("billing")
    runs = Runs(cast("Queries", NoQueries()), SteadyClock(), world.cooperation, lambda _: None)
    old, new = world.run(), world.run(token="run-2")
    for run in (old, new):
        runs.keep(run)
        world.cooperation.report(run)

    runs.refuse("run-1", RefusedByCoordinator(str(JOB_TASK), "StaleRun", "run 'run-1' is over"))
    assert old.refusal is not None
    assert new.refusal is None
    runs.refuse("unknown", RefusedByCoordinator(str(JOB_TASK), "StaleRun", "run 'run-1' is over"))


@pytest.mark.parametrize("wake_us", [None, 7 * S + 1, 60 * S])
def test_a_heartbeat_that_shares_asks_every_second(wake_us: int | None) -> None:
    world = World("billing")
    own_us = 60 * S if wake_us is None else wake_us

    assert world.cooperation.wake_at_us(world.run(), wake_us) == min(own_us, 7 * S + SHARED_STEP_US)
    assert world.cooperation.wake_at_us(world.run(), 0) == 0


def test_waiting_for_others_is_worth_it_only_if_they_may_answer_with_more() -> None:
    world = World("billing")
    run = world.run()
    assert not world.cooperation.worth_waiting(run)  # it has reported nothing itself
    world.reach(run, 100)
    assert world.cooperation.worth_waiting(run)
    run.splits.has_backlog = True
    assert not world.cooperation.worth_waiting(run)
    run.splits.has_backlog = False
    world.client.connected = False
    assert not world.cooperation.worth_waiting(run)
    world.client.connected = True
    low_us = run.watermarks.low_watermark_us
    assert low_us is not None
    run.job_low.rise(low_us - 1, world.now_us)
    assert world.cooperation.worth_waiting(run)
    run.job_low.rise(low_us, world.now_us)
    assert not world.cooperation.worth_waiting(run)
    run.shares = False
    assert not world.cooperation.worth_waiting(run)


def test_who_is_away_and_what_is_held_meanwhile_is_in_words() -> None:
    world = World("billing")
    run = world.run()
    world.reach(run, 100)
    world.cooperation.report(run)
    assert 'job "billing" through the coordinator at unix:/c.sock' in str(world.cooperation.explain(run))
    world.client.connected = False
    assert "does not answer (gone): the low watermark is held meanwhile" in str(world.cooperation.explain(run))

    other = World()
    grouped = other.run(strategy=GROUPED)
    other.cooperation.report(grouped)
    assert "unix:/c.sock keeps it" in str(other.cooperation.explain(grouped))
    other.client.connected = False
    assert "the group goes on without this stream" in str(other.cooperation.explain(grouped))


def test_a_group_in_one_application_is_kept_here() -> None:
    world = World(remote=False)
    fast = world.run("fast", GROUPED, query="q1")
    slow = world.run("slow", GROUPED, query="q2", token="run-2")
    for run, us in ((fast, 100 * S), (slow, 40 * S)):
        world.reach(run, us)
        assert not world.cooperation.report(run)
    [group] = world.cooperation.groups()

    assert group.minimum_us == slow.watermarks.low_watermark_us
    assert [member.task for member in group.members] == [TaskId("q1", "fast", "0"), TaskId("q2", "slow", "0")]
    assert [member.throttled for member in group.members] == [False, False]
    assert "this stream is 1m ahead of it" in str(world.cooperation.explain(fast))
    slow.handle(SplitsFinished((1,)), world.now_us)
    world.now_us += 1
    world.cooperation.report(slow)
    assert world.cooperation.groups()[0].minimum_us == fast.watermarks.low_watermark_us
    world.cooperation.end(fast)
    assert [member.task.source_id for member in world.cooperation.groups()[0].members] == ["slow"]


def test_the_alignment_of_a_run_looks_at_its_own_member_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape asks for it once for each run, and the service's loop waits meanwhile."""
    world, looked = World(remote=False), []
    look = AlignmentGroup._member_status

    def counted(group: AlignmentGroup, task: TaskId, *facts: Any) -> MemberStatus:
        looked.append(task)
        return look(group, task, *facts)

    monkeypatch.setattr(AlignmentGroup, "_member_status", counted)
    runs = [world.run(f"s{n}", GROUPED, query=f"query-{n}", token=f"run-{n}") for n in range(3)]
    for n, run in enumerate(runs):
        world.reach(run, (100 + n) * S)
        world.cooperation.report(run)
    seen = [world.cooperation.alignment(run) for run in runs]
    assert [each and each.ahead_us for each in seen] == [0, S, 2 * S]
    assert looked == [TaskId(f"query-{n}", f"s{n}", "0") for n in range(3)]


def test_a_query_that_begins_again_in_another_group_leaves_the_one_before() -> None:
    """The news that the run before has ended may come late, or never."""
    world = World(remote=False)
    other = PLAIN.with_watermark_alignment(group="h", max_drift="30 seconds")
    before, again = world.run(strategy=GROUPED), world.run(strategy=other, token="run-2")
    world.cooperation.report(before)
    world.cooperation.report(again)
    world.cooperation.end(before)

    members = {group.group: [member.task for member in group.members] for group in world.cooperation.groups()}
    assert members == {"g": [], "h": [QUERY_TASK]}


def test_a_run_that_its_group_has_refused_joins_when_the_member_that_disagreed_has_ended() -> None:
    """The news of the end of a query whose stream was released may come after the first batch of the next query."""
    world = World(remote=False)
    other = PLAIN.with_watermark_alignment(group="g", max_drift="1 minute")
    before, after = world.run(strategy=GROUPED), world.run(strategy=other, query="query-2", token="run-2")
    world.cooperation.report(before)
    for _ in range(2):
        with pytest.raises(DisagreeingGroup):
            world.cooperation.report(after)
    world.cooperation.end(before)
    world.cooperation.report(after)

    assert [member.task.job_id for member in world.cooperation.groups()[0].members] == ["query-2"]


def test_the_second_of_two_streams_that_disagree_is_refused_and_the_first_one_goes_on() -> None:
    world = World()
    orders, payments = world.run("orders", GROUPED).stream, world.run("payments", GROUPED).stream
    other = replace(
        payments,
        strategy=PLAIN.with_watermark_alignment(group="g", max_drift="1 minute", update_interval="2 seconds"),
    )
    with pytest.raises(DisagreeingGroup) as refused:
        check_group(other, [world.run("clicks").stream, orders])  # clicks is in no group

    new, old = ("a drift of 1m, announced every 2s", "a drift of 30s, announced every 2s")
    assert refused.value.args == ("g", "payments", new, "orders", old)
    check_group(payments, [orders])
    check_group(other, [payments])  # in whose place it comes
    check_group(world.run("clicks").stream, [orders])


@pytest.mark.parametrize("number", [0, 2.0, "2", 200_001])
def test_a_number_of_queries_that_no_registration_may_have_is_refused(number: Any) -> None:
    """Each report of a query of the job would raise, so the watermark would hold for ever."""
    with pytest.raises(ServiceRefused, match=f"expected job_queries of 1 to 200,000, got {number!r}"):
        check.service(coordinator="unix:/c.sock", require_coordinator=False, job="billing", job_queries=number)


@pytest.mark.parametrize("number", [0, 200_001])
def test_no_registration_may_have_another_number_of_queries(number: int) -> None:
    task = TaskId("billing", "orders", "q")
    with pytest.raises(InvalidMessage):
        check_registration(TaskRegistered(task, "token", expected_tasks=number))


def test_a_name_that_no_registration_may_have_is_refused_where_the_user_gives_it() -> None:
    """Each report of the query would raise, so the watermark would hold, and only the reader's log would say why."""
    longest, long = "é" * 1_000, "é" * 1_001
    for job, stream, group in ((long, "orders", "g"), ("billing", long, "g"), ("billing", "orders", long)):
        alignment = AlignmentParams(group, 1, 1)
        with pytest.raises(InvalidMessage, match="a text of 1 to 1000 characters"):
            check_registration(TaskRegistered(TaskId(job, stream, "q"), "token", alignment=alignment))

    check.service(coordinator="unix:/c.sock", require_coordinator=False, job=longest, job_queries=1)
    check.name(longest)
    PLAIN.with_watermark_alignment(group=longest, max_drift="1 second")

    many = "1,001 characters"
    with pytest.raises(ServiceRefused, match=f"job has {many}, expected 1,000 at most"):
        check.service(coordinator="unix:/c.sock", require_coordinator=False, job=long, job_queries=1)
    with pytest.raises(WrapRefused, match=f"the name has {many}, expected 1,000 at most"):
        check.name(long)
    with pytest.raises(InvalidStrategy, match=r"\(group=\).*expected 1,000 characters at most"):
        PLAIN.with_watermark_alignment(group=long, max_drift="1 second")
