"""How runs read a checkpoint and Kafka's offsets; no Spark here."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from lowmark.integration.driver import failures
from lowmark.integration.driver.audited import AuditedRun, Audits
from lowmark.integration.driver.run_log import RowsLog
from lowmark.integration.driver.standing import Standing
from lowmark.integration.driver.stream import Stream, metric_of
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.errors import ByHandRefused, UnreadableReport
from lowmark.integration.run_status import run_json
from lowmark.integration.spark.checkpoint import Farewell
from lowmark.integration.spark.kafka_offsets import backlog_rows, kafka_rows
from lowmark.integration.spark.progress import Progress, StateOperator
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.driver_rpc import GuideRequest, HeartbeatRequest, MarkRequest, SetRequest
from lowmark.integration.transport.observed import ObservedMeasure
from lowmark.integration.transport.recorder import RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.integration.verdict import verdict
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.events import BatchReported, SplitsDiscovered
from lowmark.watermark.splits.tracker import SplitMark

from tests.integration.driver.reported import NoQueries, accumulated, answer_of, desks_of, report_of
from tests.integration.transport.test_observe import EMPTY, TWO

KEY = SplitKey(("topic", "partition"), ("string", "int"))
Offset = Mapping[str, Mapping[str, int]]


def stream(*, declared: tuple[tuple[str, int], ...] = (), sources: int = 1) -> Stream:
    names, strategy = KEY.declared("orders", declared), WatermarkStrategy.for_monotonous_timestamps()
    measure = ObservedMeasure(metric_of("s"), "orders", KEY, "ts", None, 4, detail=False, sample_names=True)
    return Stream(
        name="orders", stream_id="s", strategy=strategy, key=KEY, measure=measure,
        sources=sources, kafka=True, declared=names, names=dict(names),
    )  # fmt: skip


def progress(batch_id: int, *ends: Offset | None, start: Offset | None = None) -> Progress:
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "state": ""}
    sources = [{"startOffset": start, "endOffset": end} for end in ends] + [{"endOffset": heartbeat}]
    return report_of(batch_id, sources)


def begun(of: Stream, state: str | None = None) -> StreamRun:
    run = StreamRun.attach(of, token="t", resumes=None, state=state, now_us=0)
    run.places = {heartbeat: range(heartbeat) for heartbeat in range(4)}  # as `progress` has the sources
    return run


def report(run: StreamRun, batch_id: int, *ends: Offset | None) -> None:
    run.report(progress(batch_id, *ends), len(ends), planned_at_us=0, now_us=batch_id + 1)


def unmeasured(run: StreamRun, batch_id: int, *, sink: str, now_us: int) -> None:
    """Report a batch of one row without a measurement."""
    told = progress(batch_id, {"a": {"0": batch_id + 1}})
    source = msgspec.structs.replace(told.sources[0], num_input_rows=1)
    told = msgspec.structs.replace(told, sources=[source, *told.sources[1:]], sink={"description": sink})
    run.report(told, 1, planned_at_us=0, now_us=now_us)


def standing_of(run: StreamRun) -> Standing:
    """Return the standing of a service that has this run alone."""
    queries: Any = NoQueries()
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(run.stream)
    desks.runs.keep(run)
    return Standing(desks.runs, Audits(desks.runs.clock))


def test_the_status_of_a_stream_that_was_wrapped_again_is_not_that_of_the_earlier_one() -> None:
    queries: Any = NoQueries()
    desks = desks_of(queries, notify=lambda _: None)
    standing = Standing(desks.runs, Audits(desks.runs.clock))
    desks.runs.streams.add(stream())
    before = begun(stream())
    before.tie("q", "r", "first")
    report(before, 0, {"a": {"0": 1}})
    before.ended, before.failure = True, "no disk"
    desks.runs.keep(before)
    assert "no disk" in standing.explain("orders", None)

    desks.runs.streams.release("orders")
    desks.runs.streams.add(replace(stream(), stream_id="again"))
    assert standing.status_of("orders", None).splits == {}
    assert "no disk" not in standing.explain("orders", None)


def known(run: StreamRun) -> set[str]:
    return set(run.status(9).splits)


def test_names_that_only_rows_of_wrong_clocks_bring_are_kept_up_to_a_limit() -> None:
    """A broken device may send a random id with each row; the state is in each offset of the checkpoint."""
    tracks: dict[tuple[str, int], BatchTrack] = {}
    of = replace(stream(), kafka=False, measure=RecordedMeasure(accumulated(tracks)))
    run, state = begun(of), ""
    for batch_id in range(20):
        track = tracks["q", batch_id] = BatchTrack()
        track.tracker.observe_many(1, SplitMark(10_000 + 1_000 * batch_id, 10_000, 1))
        track.names[1] = "good"
        for split in range(100 * batch_id + 100, 100 * batch_id + 200):
            track.tracker.mark_future(split, SplitMark(10**15, 10**15, 1), 0)
            track.names[split] = f"random-{split}"
        report(run, batch_id, None)
        state = run.state()
    shown = run.status(9)

    assert {clock.split.partition("-")[0] for clock in shown.wrong_clocks} == {"random"}
    assert set(shown.splits) == {"good"}
    assert len(of.names) == len(begun(replace(of, names={}), state).stream.names) == 1_001
    again = begun(replace(of, names={}), state)
    tracks["q", 0] = BatchTrack()
    report(again, 0, None)
    assert len(base64.b64decode(again.state())) < 200


# -- partitions that are no longer read


def test_a_topic_that_is_not_subscribed_any_more_is_let_go_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    before = begun(stream())
    report(before, 0, {"a": {"0": 1}, "b": {"0": 1, "1": 1}})
    run = begun(stream(), before.state())
    report(run, 1, {"a": {"0": 1}, "b": {"0": 1, "1": 1}})  # Spark runs the last batch again
    assert known(run) == {"a/0", "b/0", "b/1"}
    with caplog.at_level(logging.WARNING, "lowmark"):
        report(run, 2, {"a": {"0": 2}})
        report(run, 3, {"a": {"0": 3}})

    assert known(run) == {"a/0"}
    assert [record.getMessage() for record in caplog.records] == [
        'stream "orders": not read any more, so not waited for any more: b/0, b/1'
    ]


def test_a_topic_that_comes_back_is_waited_for_again() -> None:
    run = begun(stream())
    for batch_id, offset in enumerate(
        ({"a": {"0": 1}, "b": {"0": 1}}, {"a": {"0": 2}}, {"a": {"0": 2}, "b": {"0": 1}})
    ):
        report(run, batch_id, offset)

    assert known(run) == {"a/0", "b/0"}
    assert run.status(9).splits["b/0"].state.value == "pending"


def test_a_partition_that_is_declared_or_of_a_source_that_says_nothing_yet_is_waited_for() -> None:
    declared = begun(stream(declared=(("later", 0),)))
    report(declared, 0, {"a": {"0": 1}})
    two = begun(stream(sources=2))
    report(two, 0, {"a": {"0": 1}}, {"b": {"0": 1}})
    report(two, 1, {"a": {"0": 1}}, None)

    assert known(declared) == {"a/0", "later/0"}
    assert known(two) == {"a/0", "b/0"}


def test_an_audit_that_cannot_tell_whose_source_is_whose_lets_nobody_go(caplog: pytest.LogCaptureFixture) -> None:
    run = AuditedRun.attach(stream(), token="t", resumes=None, state=None, now_us=0)
    for batch_id, latest in enumerate((TWO, EMPTY)):
        metric = {"latest": latest, "rows": 2, "null_split_rows": 0, "null_time_rows": 0, "before_epoch_rows": 0}
        batch = progress(batch_id, {"a": {"0": 1}}, {"b": {"0": 1}})
        run.take(msgspec.structs.replace(batch, observed_metrics={run.stream.metric: metric}), now_us=batch_id)

    assert len(known(run)) == 2
    assert "not read any more" not in caplog.text


def test_an_audited_batch_whose_report_is_taken_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = AuditedRun.attach(stream(), token="t", resumes=None, state=None, now_us=0)
    look, looks = RowsLog.look, iter([False, True, True])

    def fail_once(*args: Any) -> bool:
        if next(looks):
            return look(*args)
        raise OSError("no room for the log")

    monkeypatch.setattr(RowsLog, "look", fail_once)
    operators = [StateOperator(3), StateOperator(2)]
    batches = [
        msgspec.structs.replace(
            progress(n, {"a": {"0": n}}), state_operators=operators, event_time={"watermark": f"1970-01-01T00:00:0{n}Z"}
        )
        for n in (1, 2)
    ]
    with pytest.raises(OSError, match="no room"):
        run.take(batches[0], now_us=1)
    judged_by: list[int | None] = []
    for batch in batches:
        run.take(batch, now_us=2)
        judged_by.append(run.late_us)

    assert judged_by == [None, 1_000_000]
    assert "10 rows dropped by it so far" in run.status(now_us=3).why


# -- rows of each partition


def test_rows_count_from_where_a_source_or_a_new_partition_began() -> None:
    sources = progress(0, {"a": {"0": 12, "1": 3}}, start={"a": {"0": 10}}).sources

    assert kafka_rows(sources) == {("a", 0): 2, ("a", 1): 3}


def test_rows_of_a_topic_that_is_subscribed_later_do_not_count_from_0() -> None:
    """The topic may have deleted its first million records."""
    sources = progress(0, {"a": {"0": 12}, "old": {"0": 1_000_010}}, start={"a": {"0": 10}}).sources

    assert kafka_rows(sources) == {("a", 0): 2}


def test_a_partition_that_was_read_beyond_what_was_its_end_has_nothing_unread() -> None:
    source = {"endOffset": {"a": {"0": 12, "1": 3}}, "latestOffset": {"a": {"0": 10, "1": 9}}}

    assert backlog_rows(report_of(0, [source]).sources) == {("a", 0): 0, ("a", 1): 6}


def test_two_sources_of_one_stream_that_read_one_partition_are_added_up() -> None:
    """As a union of the history, at a limited rate, and the newest rows of one topic."""
    slow = {"startOffset": {"a": {"0": 10}}, "endOffset": {"a": {"0": 12}}, "latestOffset": {"a": {"0": 99}}}
    newest = {each: {"a": {"0": 99}} for each in slow}
    sources = report_of(0, [slow, newest]).sources

    assert kafka_rows(sources) == {("a", 0): 2}
    assert backlog_rows(sources) == {("a", 0): 87}


def test_two_streams_that_share_a_source_each_go_by_their_own() -> None:
    """Both streams read source 0, only the first reads source 1: sources before a heartbeat may be another stream's."""
    run = begun(stream())
    run.places = {3: [0]}  # as the plan has it: shared, the first one's own, heartbeat, heartbeat
    shared, own = {"a": {"0": 1}}, {"b": {"0": 1}}
    heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "state": ""}
    sources = [{"endOffset": end} for end in (shared, own, heartbeat, heartbeat)]
    progress = report_of(0, sources)
    run.report(progress, 3, planned_at_us=0, now_us=1)

    assert known(run) == {"a/0"}, "b/0 would hold the low watermark of a stream that never reads it"
    run.places = {}  # the plan is unknown: nothing is guessed
    assert run.sources_in(progress, 3) == []


def test_of_a_source_whose_beginning_is_not_known_nothing_is_counted() -> None:
    assert kafka_rows(progress(0, {"a": {"0": 12}}).sources) == {}


# -- batches that were not measured


@pytest.mark.parametrize(
    ("sink", "cause"),
    [("ForeachBatchSink", "a foreachBatch function must read the whole"), ("MemorySink", "Spark's progress event of")],
)
def test_a_batch_that_was_not_measured_names_its_cause_and_is_in_the_explanation(
    sink: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    standing = standing_of(run := begun(stream()))
    assert "not measured" not in standing.explain("orders", None)

    unmeasured(run, 0, sink=sink, now_us=1)

    assert cause in caplog.text
    assert "not measured, and so moved no watermark: 1." in standing.explain("orders", None)


def test_a_stream_whose_batches_are_not_measured_is_stuck_because_rows_are_delivered_meanwhile() -> None:
    minute_us = 60_000_000
    standing = standing_of(run := begun(stream()))

    for minute in range(7):
        unmeasured(run, minute, sink="MemorySink", now_us=minute * minute_us)

    (status,) = standing.run_statuses()
    told = run_json(replace(status, now_us=6 * minute_us))
    assert verdict(told, datetime.now(timezone.utc)) == "stuck"


@pytest.mark.parametrize(("kind", "told"), [(StreamRun, 1), (AuditedRun, 0)])
def test_a_watermark_that_begins_ahead_of_the_clock_is_said_once_unless_it_is_the_users_own(
    kind: type[StreamRun], told: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = kind.attach(stream(), token="t", resumes=None, state=None, now_us=0)
    for batch_id in range(2):
        ahead = msgspec.structs.replace(
            progress(batch_id, {"a": {"0": 1}}), event_time={"watermark": "2099-01-01T00:00Z"}
        )
        run.report(ahead, 1, planned_at_us=0, now_us=batch_id + 1)
    assert caplog.text.count("ahead of the clock") == told


# -- the content of a checkpoint


@dataclass
class Query:
    """A running query, and the content of its checkpoint."""

    farewell: Farewell | Exception | None = None
    active: bool = True
    run_id: str = "r"
    query_id: str = "q"
    name: str | None = None
    failure = "no disk"

    @property
    def farewells(self) -> Any:
        return SimpleNamespace(read=self._read)

    def _read(self, _token: str) -> Farewell | None:
        if isinstance(self.farewell, Exception):
            raise self.farewell
        return self.farewell

    def newest(self, _after: int | None = None) -> None:
        return None

    def streams(self) -> list[str]:
        return ["s"]

    @property
    def heartbeats(self) -> list[Any]:
        return []


@dataclass
class Queries:
    running: list[Query] = field(default_factory=list)

    def find(self) -> None: ...

    def get(self, run_id: str | None) -> Query | None:
        return next((query for query in self.running if query.run_id == run_id), None)

    def forget(self, run_id: str) -> None:
        self.running = [query for query in self.running if query.run_id != run_id]

    def __iter__(self) -> Any:
        return iter(self.running)


def attach(query: Query, **of_offset: Any) -> tuple[Any, StreamRun]:
    queries: Any = Queries([query])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    reply = answer_of(desks, HeartbeatRequest("s", "new", resumes="old", first=True, epoch=3, **of_offset))
    return reply, desks.runs._runs["new"]


def state_of(*topics: str) -> str:
    run = begun(stream())
    report(run, 0, {topic: {"0": 1} for topic in topics})
    return run.state()


def test_a_query_goes_on_from_a_checkpoint_with_the_same_split_columns() -> None:
    reply, run = attach(Query(), state=state_of("a"), split="topic string, partition int")

    assert reply.refusal is None
    assert known(run) == {"a/0"}


def test_other_split_columns_than_in_the_checkpoint_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    reply, _ = attach(Query(), state=state_of("a"), split="partition integer")

    assert reply.refusal == (
        'stream "orders": its splits are told by (topic string, partition int), and in the checkpoint by '
        "(partition integer). Splits of before would be waited for in vain. "
        "Hint: pass split= as before, or start with a new checkpoint."
    )
    assert reply.refusal in caplog.text


@pytest.mark.parametrize(
    "broken",
    [
        ValueError("Input data was truncated"),
        OSError("Checksum error"),
        Farewell("old", 3, 7, "bm8gc3RhdGU="),
        Farewell("old", 3, 7, "no base64"),
    ],
    ids=["empty", "unreadable", "no state", "no base64"],
)
def test_a_last_report_that_cannot_be_read_is_done_without(
    broken: Farewell | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    reply, run = attach(Query(broken), state=state_of("a"))

    assert reply.refusal is None
    assert known(run) == {"a/0"}
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith('stream "orders": the file lowmark/old in the checkpoint cannot be read (')
    assert "The query goes on from its last offset" in said


def test_the_last_report_goes_before_the_offset_it_followed() -> None:
    _, run = attach(Query(Farewell("old", 3, 7, state_of("a", "b"))), state=state_of("a"))
    _, other = attach(Query(Farewell("old", 2, 7, state_of("a", "b"))), state=state_of("a"))

    assert known(run) == {"a/0", "b/0"}
    assert known(other) == {"a/0"}, "it followed another offset"


def test_an_offset_whose_state_cannot_be_read_is_refused() -> None:
    reply, _ = attach(Query(), state="no base64")

    assert "the state in the checkpoint cannot be read" in reply.refusal


# -- the end of a query


def terminated(failure: str | None, run_id: str = "r", query_id: str = "q") -> Any:
    """Spark's event of a query that ended."""
    return SimpleNamespace(run_id=run_id, query_id=query_id, failure=failure)


@dataclass
class Unreadable(Query):
    def newest(self, _after: int | None = None) -> None:
        raise UnreadableReport("a batch's progress", "Spark's JSON cannot be read")


@pytest.mark.parametrize("failure", [None, "Connection reset"])
def test_a_query_of_which_nothing_can_be_read_any_more_has_ended_all_the_same(failure: str | None) -> None:
    queries: Any = Queries([Unreadable()])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    run = desks.runs._runs["t"] = begun(stream())
    run.tie("q", "r", None)
    with suppress(UnreadableReport):  # the service logs it
        desks.events.take_event("terminated", terminated(failure))

    assert (run.ended, run.failure is not None) == (True, failure is not None)
    assert queries.running == []


def test_a_query_whose_reports_cannot_be_read_ends_and_says_why() -> None:
    queries: Any = Queries([Unreadable()])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    desks.runs.keep(begun(stream()))
    [run] = desks.runs
    run.tie("q", "r", None)

    reply = answer_of(desks, HeartbeatRequest("s", run.token))
    assert reply.refusal is not None
    assert reply.refusal.startswith("a batch's progress: Spark's JSON cannot be read. Hint: ")


@pytest.mark.parametrize(("ended", "whose"), [(("1",), "q1"), (("1", "2"), None)])
def test_a_run_that_was_never_seen_in_a_batch_is_of_the_one_query_that_ended_and_else_of_nobody(
    ended: tuple[str, ...], whose: str | None
) -> None:
    queries: Any = Queries([Query(run_id=f"r{n}", query_id=f"q{n}") for n in ended])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    run = desks.runs._runs["t"] = begun(stream())
    for n in ended:
        desks.events.take_event("terminated", terminated("away", f"r{n}", f"q{n}"))

    assert (run.ended, run.query_id) == (True, whose)


@pytest.mark.parametrize("seen", [True, False], ids=["seen in a batch", "never seen in a batch"])
def test_the_news_of_an_end_that_comes_after_the_restart_ends_only_the_run_before(*, seen: bool) -> None:
    queries: Any = Queries([Query(run_id="r1", query_id="q")])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    answer_of(desks, HeartbeatRequest("s", "before", first=True))
    [before] = desks.runs
    if seen:
        before.tie("q", "r1", None)
    queries.running.append(Query(run_id="r2", query_id="q"))
    answer_of(desks, HeartbeatRequest("s", "after", resumes="before", first=True))
    desks.events.take_event("terminated", terminated(None, "r1"))

    ends = [(run.token, run.ended, run.run_id) for run in desks.runs]
    assert ends == [("before", True, "r1"), ("after", False, None)]
    desks.events.take_event("terminated", terminated("away", "r2"))
    assert [(run.token, run.ended, run.run_id) for run in desks.runs][1:] == [("after", True, "r2")]


def test_a_query_whose_end_no_event_tells_has_ended_all_the_same_and_its_group_lets_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark drops events when its queue is full. Queries that were heard of lately are not asked."""
    queries: Any = Queries([Query(run_id=f"r{n}", query_id=f"q{n}") for n in range(2)])
    desks = desks_of(queries, notify=lambda _: None)
    grouped = replace(stream(), strategy=stream().strategy.with_watermark_alignment(group="g", max_drift="1 minute"))
    desks.runs.streams.add(grouped)
    for n in range(2):
        desks.runs.keep(replace(begun(grouped), token=f"t{n}"))
    gone, other = runs = [*desks.runs]
    for n, run in enumerate(runs):
        run.tie(f"q{n}", f"r{n}", None)
        desks.runs.cooperation.report(run)
    queries.running[0].active = queries.running[1].active = False
    now_us = desks.runs.clock.now_us()
    gone.asked_at_us, gone.seen_at_us = now_us - 11_000_000, now_us - 12_000_000
    other.asked_at_us, other.seen_at_us = now_us - 11_000_000, now_us

    assert [*desks.events.unheard_ends()] == [], "the event may still come"
    [end] = desks.events.unheard_ends()
    desks.events.take_event("terminated", end)
    assert (gone.ended, gone.failure, other.ended) == (True, "no disk", False)
    assert [member.task.job_id for group in desks.runs.cooperation.groups() for member in group.members] == ["q1"]
    assert "query q0 has ended, and no event of Spark's has said so" in caplog.text
    assert [*desks.events.unheard_ends()] == []


def test_planners_of_queries_that_never_got_to_a_batch_do_not_pile_up() -> None:
    queries: Any = Queries([])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    for n in range(1_000):
        desks.plans.guide(GuideRequest("s", f"planner-{n}"))

    known = [n for n in range(1_000) if desks.runs.planners.get(f"planner-{n}") is not None]
    assert known == list(range(1_000 - len(known), 1_000))
    assert len(known) <= 200


def test_no_status_tells_the_token_with_which_others_could_speak_for_a_run_at_its_coordinator() -> None:
    queries: Any = Queries([])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    answer_of(desks, HeartbeatRequest("s", "a token", first=True))
    [status] = Standing(desks.runs, Audits(desks.runs.clock)).run_statuses()

    assert "a token" not in json.dumps(run_json(status))


# -- AvailableNow on a Spark that does not tell readers


def test_a_query_that_ends_by_itself_is_known_by_the_readers_that_ask_next() -> None:
    queries: Any = Queries([])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    before = answer_of(desks, HeartbeatRequest("s", "before", first=True))
    desks.runs.ending.expect(["s"], None)
    answer_of(desks, HeartbeatRequest("s", "ends", first=True))
    answer_of(desks, HeartbeatRequest("s", "after", first=True))

    assert before.refusal is None
    assert {token: run.available_now for token, run in desks.runs._runs.items()} == {
        "before": False, "ends": True, "after": False,
    }  # fmt: skip
    assert [desks.plans.guide(GuideRequest("s", planner)).available_now for planner in "aab"] == [True, True, False]


def test_a_query_that_never_began_leaves_the_next_one_on_its_stream_to_go_on() -> None:
    queries: Any = Queries([Query()])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    desks.runs.ending.expect(["s"], None)
    desks.events.take_event("terminated", terminated("its checkpoint is another's"))
    answer_of(desks, HeartbeatRequest("s", "next", first=True))

    assert not desks.runs._runs["next"].available_now
    assert not desks.plans.guide(GuideRequest("s", "planner")).available_now


def test_a_query_that_cannot_end_by_itself_is_refused_instead_of_emitting_nothing() -> None:
    queries: Any = Queries([])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    desks.runs.ending.expect(["s"], "AssertionError: the plan is made in another thread")
    refusal = answer_of(desks, HeartbeatRequest("s", "ends", first=True)).refusal

    assert refusal is not None
    assert 'stream "orders": Trigger.AvailableNow would run one batch and emit nothing' in refusal
    assert "(AssertionError: the plan is made in another thread)" in refusal
    assert refusal.endswith(
        "Hint: use a processing-time trigger, and end the query with processAllAvailable() and stop()."
    )


# -- the log's lines about holders


def test_a_holder_that_stays_is_told_once_and_those_that_take_turns_are_not(caplog: pytest.LogCaptureFixture) -> None:
    run = begun(stream())
    first, second, third = ids = list(KEY.declared("orders", (("a", 0), ("a", 1), ("a", 2))))
    run.stream.names.update(KEY.declared("orders", (("a", 0), ("a", 1), ("a", 2))))
    run.handle(SplitsDiscovered(tuple(ids)), 0)
    at_us = [0]

    def batches(count: int, *slow: int) -> list[str]:
        """Report batches ten seconds apart in which all but these splits advance; return the lines of the log."""
        caplog.clear()
        for _ in range(count):
            at_us[0] += 10_000_123
            turn = at_us[0] // 10_000_000 % 3
            watermarks: dict[int | str, int] = {
                split: at_us[0] + (turn + n) % 3 for n, split in enumerate(ids) if split not in slow
            }
            run.handle(BatchReported(at_us[0], at_us[0], watermarks), at_us[0])
        return [each.getMessage() for each in caplog.records if "now active" not in each.getMessage()]

    with caplog.at_level(logging.INFO, "lowmark"):
        assert batches(30) == []  # another one in each batch
        [said] = batches(30, second)
        assert said.startswith(
            'stream "orders": split a/1 holds the low watermark, for 1m by now: '
            "split a/1 has the smallest watermark of 3 live splits; no row of it was reported for 1m 10s. Next: "
        )
        assert batches(3, third) == []  # not for long
        assert ["split a/0 holds" in each for each in batches(30, first)] == [True]


def test_a_fault_of_the_kafka_connector_is_told_from_one_of_the_query(caplog: pytest.LogCaptureFixture) -> None:
    told = (
        'java.lang.NullPointerException: Cannot invoke "scala.collection.IterableOps.map(scala.Function1)"\n'
        "\tat org.apache.spark.sql.kafka010.KafkaMicroBatchStream{}(KafkaMicroBatchStream.scala:520)\n"
    )
    for place in (".planInputPartitions", "$.metrics"):
        failures.explain(told.format(place), None, query_id="q-1", names=["orders"], streams={})
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith('query q-1 on "orders": Spark\'s Kafka connector cannot report the batch that a restart ran')
    assert "SPARK-55271" in said
    failures.explain(told.format("$.metrics"), None, query_id="q-2", names=[], streams={})  # a query without lowmark
    assert caplog.records[-1].getMessage().startswith("query q-2: Spark's Kafka connector")
    assert said.endswith("start the query again.")


def test_why_a_query_cannot_begin_is_said_although_its_stream_is_released_while_the_checkpoint_is_read() -> None:
    queries: Any = Queries([Query()])
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream())
    talk = desks.heartbeats.refuses("s")
    next(talk)
    desks.runs.streams.release("orders")
    with pytest.raises(StopIteration) as over:
        talk.send({"its checkpoint is of another query"})
    assert over.value.value == 'stream "orders": its checkpoint is of another query'


def test_a_person_does_not_act_on_a_run_of_a_released_stream_whose_end_is_not_heard_of_yet() -> None:
    queries: Any = NoQueries()
    desks = desks_of(queries, notify=lambda _: None)
    old = stream()
    desks.runs.streams.add(old)
    desks.runs.keep(begun(old))
    desks.runs.streams.release("orders")
    desks.runs.streams.add(replace(old, stream_id="new"))
    for act in (
        lambda: desks.by_hand.set(SetRequest("orders", "ann", delay_us=1)),
        lambda: desks.by_hand.take(MarkRequest("orders", [], "ann", idle=True)),
    ):
        with pytest.raises(ByHandRefused, match="no query runs on it"):
            act()
