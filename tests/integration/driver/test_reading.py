"""How the service handles the plans of our own sources; no Spark here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from lowmark.integration.driver.answers import Answers
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.planned_splits import PlannedSplits
from lowmark.integration.driver.standing import Standing
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.page.picture import Picture
from lowmark.integration.run_status import RunStatus
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.driver_rpc import (
    GUIDE,
    HEARTBEAT,
    PLANNED,
    Client,
    HeartbeatRequest,
    PlannedReply,
    PlannedRequest,
    Server,
    StatusRequest,
    handler,
)
from lowmark.integration.transport.planner_peer import ServicePeer
from lowmark.integration.transport.recorder import SPLIT_TYPE, RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.integration.verdict import verdict
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import SplitState, WatermarkStrategy, format_time_us
from lowmark.watermark.splits.events import SplitsMarkedIdle, SplitsResharded, Tick
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker
from lowmark.watermark.tasks.status import run_mark

from tests.integration.coordinator.serving import private_folder
from tests.integration.driver.reported import NoQueries, accumulated, answer_of, desks_of, report_text
from tests.integration.driver.test_cooperation_rules import FakeClient

SECOND = 1_000_000
KEY = SplitKey(("split_id",), (SPLIT_TYPE,))
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds")
BOUND = 2 * SECOND + 1_000


Tracks = dict[tuple[str, int], BatchTrack]


def stream_of(tracks: Tracks, *, claims: bool = True) -> Stream:
    return Stream(
        name="orders", stream_id="s", strategy=STRATEGY, key=KEY, sources=1, kafka=False,
        measure=RecordedMeasure(accumulated(tracks)), declared={}, names={}, reads=True, claims=claims,
    )  # fmt: skip


def report_of(checkpoint: int) -> str:
    """Spark's report of a batch, whose offsets name planner "reader" and heartbeat "t"."""
    offset = BatchOffset("orders", checkpoint, "reader").to_json()
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "split": None, "state": ""}
    sources = [{"endOffset": offset}, {"endOffset": heartbeat}]
    return report_text(checkpoint - 1, sources)


def track_of(**latest_s: int) -> BatchTrack:
    """The measurement of a batch: the largest event time of each split."""
    tracker = SplitTracker()
    track = BatchTrack(tracker)
    for name, at in latest_s.items():
        tracker.observe_many(KEY.split_id((name,)), SplitMark(at * SECOND, at * SECOND, 1))
        track.names[KEY.split_id((name,))] = name
    return track


class Query:
    """One query on a stream of ours, fed with plans and reports as Spark delivers them."""

    def __init__(self, *, claims: bool = True, state: str | None = None) -> None:
        self.tracks: Tracks = {}
        stream = stream_of(self.tracks, claims=claims)
        self.run = StreamRun.attach(stream, token="t", resumes=None, state=state, now_us=0)
        self.run.places = {1: [0]}  # its source, then its heartbeat
        self.planner = KnownPlanner("s", run_token="t")
        assert isinstance(self.run.splits, PlannedSplits)
        self.run.splits.planner = self.planner
        self.now_us = 0

    def plan(self, checkpoint: int, *splits: str, **known: object) -> None:
        self.now_us += SECOND
        planned = Planned(checkpoint, dict.fromkeys(splits, ()), **known)  # type: ignore[arg-type]
        self.planner.keep(planned)
        self.run.plan(planned, self.now_us)

    def report(self, checkpoint: int, **latest_s: int) -> None:
        """Report the batch with the largest event time of each split."""
        self.now_us += SECOND
        self.tracks["q", checkpoint - 1] = track_of(**latest_s)
        progress = Progress.from_json(report_of(checkpoint))
        self.run.report(progress, 1, planned_at_us=self.now_us - SECOND, now_us=self.now_us)

    @property
    def low_us(self) -> int | None:
        return self.run.low_watermark_us

    def state_of(self, split: str) -> SplitState:
        return self.run.status(self.now_us).splits[split].state


@pytest.fixture
def query() -> Query:
    return Query()


def test_what_is_promised_is_the_watermark_before_a_row_is_read(query: Query) -> None:
    query.plan(1, "a", "b", claims_us={"a": 100 * SECOND, "b": 50 * SECOND})
    assert query.low_us == 50 * SECOND - BOUND


def test_a_stream_whose_event_time_is_another_goes_by_what_is_read() -> None:
    query = Query(claims=False)
    query.plan(1, "a", claims_us={"a": 100 * SECOND})
    assert [query.low_us] == [None]
    query.report(1, a=30)
    assert query.low_us == 30 * SECOND - BOUND
    assert query.run.splits.observed_us == {"a": 30 * SECOND}


def test_a_report_that_is_behind_the_next_promise_is_no_regression(query: Query) -> None:
    query.plan(1, "a", claims_us={"a": 100 * SECOND})
    query.plan(2, "a", claims_us={"a": 200 * SECOND})
    query.report(1, a=99)

    assert query.low_us == 200 * SECOND - BOUND
    assert query.run.status(query.now_us).regressions == 0


def test_native_sparks_watermark_is_made_of_rows_and_not_of_the_next_promise(query: Query) -> None:
    query.plan(1, "a", claims_us={"a": 100 * SECOND})
    query.plan(2, "a", claims_us={"a": 5_000 * SECOND})
    query.report(1, a=99)
    query.report(2, a=4_999, behind=3_000)
    query.report(3, a=4_999, behind=3_001)
    status = query.run.status(query.now_us)

    assert status.native_watermark_us == 4_997 * SECOND
    assert status.native_late_rows == 0, "batch 1, which ended at 99, decides which rows of batch 3 are late"


def test_a_split_that_is_known_and_silent_holds(query: Query) -> None:
    query.plan(1, "a", "silent", claims_us={"a": 100 * SECOND}, backlog_rows={"silent": 7})
    assert query.low_us is None
    assert query.run.splits.has_backlog


def test_a_split_ends_when_its_last_batch_was_read_and_not_before(query: Query) -> None:
    query.plan(1, "a", "b", claims_us={"b": 100 * SECOND}, rows={"a": 3}, finished=("a",))
    assert query.state_of("a") is SplitState.PENDING
    query.report(1, a=10, b=99)

    assert query.state_of("a") is SplitState.FINISHED
    assert query.low_us == 100 * SECOND - BOUND


def test_a_split_that_ended_before_a_restart_does_not_hold_for_ever(query: Query) -> None:
    query.plan(1, "a", "b", claims_us={"a": 5 * SECOND, "b": 5 * SECOND})
    again = Query(state=query.run.state())
    again.plan(2, "b", claims_us={"b": 100 * SECOND})
    assert again.low_us == 5 * SECOND - BOUND
    again.report(2, b=99)

    assert again.state_of("a") is SplitState.FINISHED
    assert again.low_us == 100 * SECOND - BOUND


def test_a_split_of_the_next_plan_is_not_taken_for_ended(query: Query) -> None:
    query.plan(1, "a", claims_us={"a": 100 * SECOND})
    query.plan(2, "a", "new", claims_us={"a": 200 * SECOND})
    query.report(1, a=99)

    assert query.state_of("new") is SplitState.PENDING


def test_a_split_that_ends_with_a_batch_and_is_in_the_next_plan_goes_on(query: Query) -> None:
    query.plan(1, "a", "b", claims_us={"a": 100 * SECOND, "b": 100 * SECOND})
    query.report(1, a=99, b=99)  # from here on, a split ends with the batch that says so
    query.plan(2, "a", "b", claims_us={"a": 200 * SECOND, "b": 200 * SECOND}, finished=("a",))
    query.plan(3, "a", "b", claims_us={"a": 300 * SECOND, "b": 300 * SECOND})
    query.report(2, a=199, b=199)

    assert query.state_of("a") is SplitState.ACTIVE


def test_what_alignment_holds_is_paused_until_it_is_let_go(query: Query) -> None:
    query.plan(1, "a", claims_us={"a": 100 * SECOND}, paused=frozenset("a"))
    assert query.state_of("a") is SplitState.PAUSED
    query.plan(2, "a", claims_us={"a": 100 * SECOND})
    assert query.state_of("a") is SplitState.ACTIVE


def test_what_alignment_held_when_the_query_ended_is_let_go_by_the_next_run_although_a_person_has_left_it_out(
    query: Query,
) -> None:
    query.plan(1, "a", "b", claims_us={"a": 100 * SECOND}, paused=frozenset("a"))
    query.run.hear(SplitsMarkedIdle((KEY.split_id(("a",)),), "anna", 60 * SECOND), query.now_us)
    again = Query(state=query.run.state())
    again.plan(2, "a", "b", claims_us={"a": 100 * SECOND})
    again.run.hear(Tick(), 60 * SECOND)

    assert again.state_of("a") is SplitState.ACTIVE


@pytest.mark.parametrize("end", ["none", "of the source", "of the query"])
def test_a_query_that_goes_on_waits_for_the_files_of_the_device_that_is_behind(query: Query, end: str) -> None:
    """Each batch reads its files to their ends. After the last file of all, the newest one counts."""
    for n in range(3):
        fast, slow, last = f"fast{n}", f"slow{n}", n == 2
        query.run.splits.ends = last and end == "of the query"
        complete = last and end == "of the source"
        query.plan(n + 1, fast, slow, rows={fast: 1, slow: 1}, finished=(fast, slow), complete=complete)
        query.report(n + 1, **{fast: 200 + n, slow: 100 + n})

    assert query.run.status(query.now_us).returned_late == 0
    assert query.low_us == (102 if end == "none" else 202) * SECOND - BOUND


def test_a_query_that_will_end_by_itself_keeps_the_low_watermark_until_its_first_files_are_read(query: Query) -> None:
    """A run before it, which went on, has read the others."""
    query.plan(1, "fast", "slow", rows={"fast": 1, "slow": 1}, finished=("fast", "slow"))
    query.report(1, fast=200, slow=100)
    again = Query(state=query.run.state())
    again.run.splits.ends = True
    again.plan(2, "slower", rows={"slower": 1}, finished=("slower",))
    assert again.low_us == 100 * SECOND - BOUND
    again.report(2, slower=101)

    assert (again.low_us, again.run.status(again.now_us).returned_late) == (200 * SECOND - BOUND, 0)


def test_children_stand_where_their_parents_are(query: Query) -> None:
    query.plan(1, "p", claims_us={"p": 100 * SECOND})
    planned = Planned(2, {"p": (), "c": ("p",)}, claims_us={"p": 150 * SECOND})
    query.planner.keep(planned)
    query.run.plan(planned, query.now_us)

    assert query.low_us == 150 * SECOND - BOUND, "the child is not passed, and does not hold at nothing"


def test_all_reshards_of_a_plan_are_one_event(query: Query) -> None:
    query.plan(1, "p", "q")
    planned = Planned(2, {"p": (), "q": (), "p0": ("p",), "p1": ("p",), "pq": ("p", "q")})
    assert isinstance(query.run.splits, PlannedSplits)
    told = [event for event in query.run.splits.plan(planned, 0) if isinstance(event, SplitsResharded)]

    assert [len(event.parents) for event in told] == [3]


def test_events_of_readers_are_taken_once(query: Query) -> None:
    query.plan(1, "a")
    query.tracks["q", 0] = BatchTrack(events={0: [(0, 1, b"gap")]})
    query.run.report(Progress.from_json(report_of(1)), 1, planned_at_us=1, now_us=2)

    assert query.planner.take_events() == [(0, 1, b"gap")]
    assert query.planner.take_events() == []


def test_what_readers_count_is_added_to_what_the_planner_counts_once_a_task(query: Query) -> None:
    """Only the log of an executor had shown a loss that a reader passed."""
    query.plan(1, "a", metrics={"data_losses": 1, "discoveries": 1})
    for batch in (0, 1):
        of_tasks = [BatchTrack(counted={task: {"data_losses": 1, "lost_offsets": 5}}) for task in (0, 1, 1)]
        query.tracks["q", batch] = BatchTrack()
        for track in of_tasks:  # the last one ran twice
            query.tracks["q", batch].absorb(track)
        query.run.report(Progress.from_json(report_of(batch + 1)), 1, planned_at_us=1, now_us=2)
    assert query.run.splits.source_metrics == {"data_losses": 5, "discoveries": 1, "lost_offsets": 20}
    query.plan(3, "a", metrics={"data_losses": 2, "discoveries": 1})
    assert query.run.splits.source_metrics == {"data_losses": 6, "discoveries": 1, "lost_offsets": 20}


def test_only_the_newest_plans_are_kept() -> None:
    reader = KnownPlanner("s")
    for checkpoint in range(50):
        reader.keep(Planned(checkpoint, {}))
    assert len(reader.plans) < 10
    assert max(reader.plans) == 49


def test_a_plan_is_news_once_and_never_after_a_newer_one() -> None:
    reader = KnownPlanner("s")
    first, second = Planned(1, {"a": ()}), Planned(2, {"a": ()})
    news = []
    for planned in (first, first, second, first, second):
        news.append(reader.is_news(planned))
        reader.keep(planned)
    assert news == [True, False, True, False, False]
    assert reader.is_news(Planned(2, {"a": ()}, backlog_rows={"a": 3})), "known since: more is there"
    assert list(reader.plans) == [1, 2]


def test_a_plan_that_comes_late_is_there_for_its_report() -> None:
    reader = KnownPlanner("s")
    for checkpoint in (1, 3, 2):
        reader.keep(Planned(checkpoint, {}))
    assert list(reader.plans) == [1, 2, 3]


class Wire:
    """A planner that talks to the service's runs by gRPC, as it does under Spark."""

    def __init__(self, address: str) -> None:
        self.tracks: Tracks = {}
        spark: Any = _InSpark(self.tracks)
        self.desks = desks_of(spark, notify=lambda notice: None)
        self.desks.runs.streams.add(stream_of(self.tracks))
        self.standing = Standing(self.desks.runs, Audits(self.desks.runs.clock))
        self.server = Server(
            address,
            handler(HEARTBEAT, partial(answer_of, self.desks)),
            handler(GUIDE, self.desks.plans.guide),
            handler(PLANNED, self._planned),
        )
        self.client = Client(address)
        self.client.heartbeat(HeartbeatRequest("s", "t", first=True))

    def _planned(self, request: PlannedRequest) -> PlannedReply:
        self.desks.plans.take(request.stream_id, request.token, request.planned)
        return PlannedReply()

    def plan(self, checkpoint: int, **known: Any) -> None:
        splits: dict[str, tuple[str, ...]] = dict.fromkeys(known.pop("splits", "ab"), ())
        self.client.planned(PlannedRequest("s", "reader", Planned(checkpoint, splits, **known)))

    def report(self, checkpoint: int) -> None:
        """The batch was read, and Spark reports it."""
        self.tracks["q", checkpoint - 1] = BatchTrack()
        progress = Progress.from_json(report_of(checkpoint))
        event: Any = SimpleNamespace(run_id="r", batch_id=checkpoint - 1, progress=lambda: progress)
        self.desks.events.take_event("progress", event)

    @property
    def status(self) -> RunStatus:
        (run,) = self.standing.run_statuses()
        return replace(run, status=replace(run.status, held=()), spent_us={}, now_us=None)  # they change with time


class _InSpark(NoQueries):
    """Spark's view of the only query, and the reports left in its checkpoint."""

    def __init__(self, tracks: Tracks) -> None:
        super().__init__([self])
        self.tracks, self.run_id, self.query_id, self.name, self.active = tracks, "r", "q", None, True
        self.left: list[Farewell] = []
        self.farewells = SimpleNamespace(write=self.left.append)
        self.reported: list[Progress] = []

    def get(self, run_id: str | None) -> Any:
        return self if run_id == "r" else None

    def newest(self, after: int | None = None) -> Progress | None:
        return self.reported[-1] if self.reported and self.reported[-1].batch_id != after else None

    def streams(self) -> list[str]:
        return []

    def stream_sources(self) -> dict[int, list[int]]:
        return {1: [0]}

    def fault(self, *, tells_late: bool) -> None: ...

    @property
    def trouble(self) -> None: ...

    def report(self, checkpoint: int, **latest_s: int) -> None:
        self.tracks["q", checkpoint - 1] = track_of(**latest_s)
        self.reported.append(Progress.from_json(report_of(checkpoint)))


@pytest.mark.parametrize(
    ("answered", "reported"),
    [(False, False), (True, False), (True, True)],
    ids=["planned", "planned and answered", "reported"],
)
def test_a_plan_goes_into_the_last_report_of_a_query_once_its_batch_is_reported(
    *, answered: bool, reported: bool
) -> None:
    # Otherwise a restart might plan less from the previous offset, and the rows between would be late. An answer is
    # no proof of the offset, because Spark may have stopped before it wrote the offset of that answer.
    tracks: Tracks = {}
    spark: Any = _InSpark(tracks)
    desks = desks_of(spark, notify=lambda _: None)
    desks.runs.streams.add(stream_of(tracks))
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    for checkpoint in (1, 2):
        desks.plans.take("s", "reader", Planned(checkpoint, {"a": ()}, claims_us={"a": 100 * checkpoint * SECOND}))
        if checkpoint == 1 or answered:
            answer_of(desks, HeartbeatRequest("s", "t"))
        if checkpoint == 1 or reported:
            spark.report(checkpoint, a=100 * checkpoint + 1)
    desks.reports.say_farewells()
    desks.reports.farewells.close()

    assert [stream_of({}).watermarks("t", left.state, 0).low_watermark_us for left in spark.left] == (
        [201 * SECOND - BOUND] if reported else []
    )


def test_a_job_hears_of_a_plan_once_spark_has_written_it() -> None:
    # Otherwise a restart might plan less from the previous offset, below the job's low watermark.
    tracks: Tracks = {}
    spark: Any = _InSpark(tracks)
    member: Any = FakeClient()
    desks = desks_of(spark, lambda _: None, member, "billing")
    desks.runs.streams.add(stream_of(tracks))
    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    said = list[tuple[int, int | None]]()
    for checkpoint in (1, 2, 3, 4):
        desks.plans.take("s", "reader", Planned(checkpoint, {"a": ()}, claims_us={"a": 100 * checkpoint * SECOND}))
        answer_of(desks, HeartbeatRequest("s", "t"))
        lows_us = [at_us for what, _, at_us, *_ in member.said if what == "report" and at_us is not None]
        said.append((checkpoint, max(lows_us, default=None)))
        spark.report(checkpoint, a=100 * checkpoint - 1)
    answer_of(desks, HeartbeatRequest("s", "t"))

    assert said == [(1, None), (2, None), (3, 200 * SECOND - BOUND), (4, 300 * SECOND - BOUND)]
    assert member.said[-1][2] == 400 * SECOND - BOUND, "all of it was read"


def test_what_a_planner_could_not_tell_does_not_pile_up_when_its_service_has_stopped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with private_folder() as folder:
        peer = ServicePeer(address=f"unix:{folder}/gone.sock", stream_id="s", stream="orders")
        for checkpoint in range(1_000):
            peer.tell("reader", Planned(checkpoint, {"a": ()}))
    assert [*peer._untold][-1] == 999
    assert len(peer._untold) <= 10
    assert capfd.readouterr().err.count("the query reads on, as far as alignment let it last: ") == 1


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with private_folder() as folder:
        wire = Wire(f"unix:{folder / 's.sock'}")
        yield wire
        wire.client.close()
        wire.server.stop()


def test_a_batch_that_a_restart_reads_again_is_told_to_command_line_and_page() -> None:
    """Spark asks no heartbeat before that batch is over: until then the service hears its planner only."""
    no_queries: Any = NoQueries()
    desks = desks_of(no_queries, notify=lambda notice: None)
    desks.runs.streams.add(stream_of({}))
    standing = Standing(desks.runs, Audits(desks.runs.clock))
    answers = Answers(lambda work, action: work(), desks, standing, "app-1", threading.Event())
    assert answers.status(StatusRequest()).streams == []
    said = "the batch that was planned before the restart is being read since 2026-01-01 12:00:00.000 UTC, 2 slices."
    for _ in range(2):
        desks.plans.take("s", "reader", Planned(0, {}, missing=said))

    told = answers.status(StatusRequest(limit=10))
    [stream] = told.streams
    assert (stream["name"], stream["query"], stream["why"]) == ("orders", None, f"no split is known yet: {said}")
    assert verdict(stream, datetime.now(timezone.utc)) == "waiting"
    assert said in told.explanations[0]
    assert [each["since"] for each in answers.status(StatusRequest()).streams] == [stream["since"]], "it was said once"
    [shown] = Picture(lambda request, _: {"at": answers.status(request)}, lambda: 0).since(None, None)["runs"]
    assert said in shown["why"]
    assert standing.run_statuses() == [], "metrics have no series of a query that nobody knows the name of"
    assert answers.status(StatusRequest(stream="returns")).streams == []

    answer_of(desks, HeartbeatRequest("s", "t", first=True))
    assert [each["run"]["mark"] for each in answers.status(StatusRequest()).streams] == [run_mark("t")]


def test_of_a_query_that_ended_often_its_newest_run_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page asks each second, for every split: a hundred runs of AvailableNow would occupy the loop for seconds."""
    no_queries: Any = NoQueries()
    desks = desks_of(no_queries, notify=lambda notice: None)
    desks.runs.streams.add(stream_of({}))
    standing = Standing(desks.runs, Audits(desks.runs.clock))
    answers = Answers(lambda work, action: work(), desks, standing, "app-1", threading.Event())
    for token, query in [("t1", "q"), ("t2", "q"), ("t3", "other"), ("t4", "q")]:
        answer_of(desks, HeartbeatRequest("s", token, first=True))
        [*_, run] = desks.runs
        run.tie(query, f"r-{token}", None)
        run.ended = token != "t4"
    looked: list[str] = []
    status = StreamRun.status

    def watched(run: StreamRun, now_us: int, limit: int | None = None) -> Any:
        looked.append(run.token)
        return status(run, now_us, limit)

    monkeypatch.setattr(StreamRun, "status", watched)

    names = {run_mark(f"t{n}"): f"t{n}" for n in (1, 2, 3, 4)}

    def told(**asked: Any) -> list[str]:
        return [names[stream["run"]["mark"]] for stream in answers.status(StatusRequest(**asked)).streams]

    assert (told(), looked) == (["t3", "t4"], ["t3", "t4"])
    [*_, run] = desks.runs
    run.ended = True
    assert told(stream="orders") == ["t3", "t4"]
    assert [each.token for each in standing.run_statuses(without={"t1"})] == ["t2", "t3", "t4"], "metrics count all"


OLDER: dict[str, Any] = {
    "claims_us": {"a": 100 * SECOND, "b": 50 * SECOND}, "rows": {"a": 5, "b": 5}, "backlog_rows": {"a": 70, "b": 60},
    "paused": frozenset("a"), "next_us": 60 * SECOND, "metrics": {"discoveries": 1.0},
}  # fmt: skip
NEWER: dict[str, Any] = {
    "splits": "abc", "claims_us": {"a": 200 * SECOND, "b": 150 * SECOND}, "rows": {"a": 5, "b": 5},
    "backlog_rows": {"a": 7, "b": 0}, "finished": ("b",), "next_us": 210 * SECOND, "metrics": {"discoveries": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
def test_a_plan_that_is_told_twice_changes_nothing(wire: Wire, tied: bool) -> None:
    wire.plan(1, **OLDER)
    if tied:
        wire.report(1)
    wire.plan(2, **NEWER)
    before = wire.status
    assert (before.query, before.status.low_watermark_us is None) == (("q", False) if tied else (None, True))
    wire.plan(2, **NEWER)
    assert wire.status == before
    wire.report(2)
    assert wire.status.status.splits["b"].state is SplitState.FINISHED


def test_an_older_plan_after_a_newer_one_changes_nothing(wire: Wire) -> None:
    """A planner without an answer repeats its plan at its next question, and may have told a newer plan by then."""
    wire.plan(1, **OLDER)
    wire.report(1)
    wire.plan(2, **NEWER)
    before = wire.status
    assert before.source_metrics == {"discoveries": 2.0}
    assert before.status.splits["a"].state is SplitState.ACTIVE
    wire.plan(1, **OLDER)
    assert wire.status == before
    wire.report(2)
    assert wire.status.status.splits["b"].state is SplitState.FINISHED


def test_what_the_source_waits_for_stands_in_the_status_as_long_as_it_does(wire: Wire) -> None:
    wire.plan(1, **OLDER)
    wire.report(1)
    before = wire.status.status.why
    silent = "Kinesis at eu-west-1 gives no answer for 2 of 2 shards since then, such as a: ThrottlingException"
    wire.plan(1, **OLDER, trouble=silent)
    said = f"{before} Waiting for the source: {silent}"
    assert wire.status.status.why == said, "in what the page and the command line are told"
    assert wire.standing.status_of("orders", None).why == said
    assert [status.why for _, status in wire.standing.statuses()] == [said]
    wire.plan(2, **NEWER)
    assert "Waiting" not in wire.status.status.why


def test_while_the_first_batch_is_read_no_view_says_that_no_split_is_known(wire: Wire) -> None:
    """Its rows are in splits that the planner knows; the first batch of a backlog may take many minutes."""
    wire.plan(1, **OLDER)
    said = "no split has been reported yet: the first batch is being read (rows: 10; splits: 2)."
    assert (wire.status.status.why, wire.standing.status_of("orders", None).why) == (said, said)
    [planner] = wire.desks.runs.planners._planners.values()
    planner.planned_us -= 40 * SECOND
    planner.heard_us -= 40 * SECOND
    assert wire.status.status.why.startswith(f"{said} A batch has been read since ")
    wire.report(1)
    assert "no split" not in wire.status.status.why


def test_a_batch_that_lasts_stands_in_the_status_until_it_is_reported(wire: Wire) -> None:
    """Its reader may wait for a server that is away, which the driver learns at the task's end only."""
    before_us = wire.desks.runs.clock.now_us()
    wire.plan(1, **OLDER)
    since_us = wire.status.batch_since_us
    assert since_us is not None
    assert before_us <= since_us <= wire.desks.runs.clock.now_us()
    assert "A batch has" not in wire.status.status.why, "not of one that has just begun"
    wire.plan(1, **OLDER)  # it got no answer, and repeats the plan
    assert wire.status.batch_since_us == since_us

    said = f"A batch has been read since {format_time_us(since_us - 40 * SECOND)} (rows: 10; splits: 2). Hint: a reader"
    [planner] = wire.desks.runs.planners._planners.values()
    planner.planned_us -= 40 * SECOND
    planner.heard_us -= 40 * SECOND  # no question meanwhile
    assert said in wire.status.status.why
    assert said in wire.standing.explain("orders", None)
    wire.report(1)
    after = wire.status
    assert after.batch_since_us is None
    assert "A batch has" not in after.status.why
    wire.plan(2, **NEWER)
    assert wire.status.batch_since_us is not None
    wire.report(2)
    wire.plan(2, **{**NEWER, "rows": {}})  # no news
    assert wire.status.batch_since_us is None
