"""How a run of a source of ours handles plans, and when their claims count as written; no Spark here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.planned_splits import PlannedSplits
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.driver_rpc import GuideRequest, SetRequest
from lowmark.integration.transport.heartbeat import HeartbeatOffset
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import SplitState, WatermarkStrategy
from lowmark.watermark.splits.events import BatchPlanned, Effect, Event, SplitsFinished, Tick
from lowmark.watermark.splits.stream import SplitWatermarks

from tests.integration.driver.reported import NoQueries, desks_of, report_of
from tests.integration.driver.test_half_handled import SECOND, Fed


def claimed(fed: Fed, checkpoint: int, at_s: int, *names: str, **more: Any) -> None:
    """Plan with the claim that both splits, or the named splits, have reached this time."""
    fed.now_us += SECOND
    claims_us = dict.fromkeys(names or ("a", "b"), at_s * SECOND)
    planned = replace(Planned(checkpoint, dict.fromkeys(("a", "b"), ()), claims_us), **more)
    fed.run.plan(planned, fed.now_us)
    fed.planner.keep(planned)


def low(at_s: int) -> int:
    return WatermarkStrategy.for_monotonous_timestamps().watermark_of_max(at_s * SECOND)


def test_what_a_plan_claims_is_sure_once_another_plan_follows_or_its_batch_is_reported() -> None:
    fed = Fed("read")
    fed.run.tell()
    reported = fed.run.low_watermark_us
    claimed(fed, 4, 100)
    assert fed.run.low_watermark_us == low(100)
    for _ in range(3):  # the heartbeat asks again and again, and Spark has written nothing
        fed.run.tell()
        fed.run.answer(fed.now_us)
        assert fed.run.sure_low_us == reported
    claimed(fed, 5, 200)
    fed.run.tell()
    assert fed.run.sure_low_us == low(100)
    for batch_id in (3, 4):
        fed.report(batch_id, a=150, b=150)
    assert fed.run.sure_low_us == low(200)


def test_a_report_behind_what_an_earlier_plan_claimed_is_no_regression() -> None:
    fed = Fed("read")
    claimed(fed, 4, 100)
    claimed(fed, 5, 200, "b")
    fed.report(3, a=50, b=60)

    assert fed.run.status(fed.now_us).regressions == 0


def test_a_split_whose_system_repeats_one_promise_is_silent() -> None:
    """As a segment of Pravega with noted times, whose writers are gone: each plan claims the time of the last note."""
    fed = Fed("read")
    for batch_id in range(3, 20):
        claimed(fed, batch_id + 1, 0, claims_us={"a": 100 * batch_id * SECOND, "b": 50 * SECOND})
        fed.report(batch_id, a=100 * batch_id)

    assert fed.run.status(fed.now_us).splits["b"].state is SplitState.IDLE
    assert fed.run.low_watermark_us == low(1_900)


def test_rows_in_order_are_not_late_for_an_adaptive_bound_behind_what_the_next_plan_claims() -> None:
    fed, adaptive = Fed("read"), WatermarkStrategy.for_adaptive_out_of_orderness(coverage=0.9, at_least="1 second")
    stream = replace(fed.stream, strategy=adaptive)
    fed.run = StreamRun.attach(stream, token="t", resumes=None, state=None, now_us=fed.now_us)
    fed.run.splits.planner, fed.run.places = fed.planner, {1: [0]}
    for batch_id in range(3, 30):
        claimed(fed, batch_id + 2, 60 * batch_id + 61, "a")  # the plan of the next batch is there before the report
        fed.report(batch_id, a=60 * batch_id)
    split = fed.run.status(fed.now_us).splits["a"]

    assert (split.bound_us, split.beyond_bound) == (SECOND, 0)


def run_again(fed: Fed, splits: dict[str, int]) -> None:
    """Begin a run from nothing, and report rows of a in a batch that an earlier run has planned with these splits."""
    fed.run = StreamRun.attach(fed.stream, token="again", resumes="t", state=None, now_us=fed.now_us)
    fed.run.places, fed.run.written = {1: [0]}, True
    fed.reported_to = splits
    fed.report(0, a=100)


def test_a_batch_that_runs_again_after_a_kill_waits_for_the_splits_that_have_no_row_in_it() -> None:
    """The killed run had the plan, and its heartbeat was asked before the batch showed which planner it belongs to."""
    fed = Fed("read")
    run_again(fed, {"a": 5, "b": 0})
    assert (fed.run.low_watermark_us, fed.run.status(fed.now_us).holder) == (None, "b")
    fed.run.splits.planner = fed.planner
    claimed(fed, 2, 70, "b")
    assert fed.run.low_watermark_us == low(70)


def test_a_split_that_ended_and_is_read_again_is_waited_for_like_a_new_one() -> None:
    """A topic that is subscribed again gives its partitions the same names as before."""
    fed = Fed("read")
    claimed(fed, 4, 100, finished=("b",))
    fed.report(3, a=100)
    claimed(fed, 5, 200, "a", splits={"a": ()})
    fed.report(4, a=200)
    assert fed.run.status(fed.now_us).splits["b"].state is SplitState.FINISHED
    claimed(fed, 6, 300, "a")
    assert (fed.run.low_watermark_us, fed.run.status(fed.now_us).holder) == (low(200), "b")
    claimed(fed, 7, 400, finished=("b",))
    fed.report(6, a=400, b=400)

    assert fed.run.status(fed.now_us).splits["b"].state is SplitState.FINISHED
    assert fed.run.low_watermark_us == low(400)


def test_a_split_that_ended_and_is_read_again_by_a_batch_that_runs_again_is_waited_for() -> None:
    fed = Fed("read")
    claimed(fed, 4, 100, finished=("b",))
    fed.report(3, a=100)
    state = fed.run.stream.state_of(fed.run.watermarks)
    fed.run = StreamRun.attach(fed.stream, token="again", resumes="t", state=state, now_us=fed.now_us)
    fed.run.places, fed.run.written = {1: [0]}, True
    fed.reported_to = {"a": 5, "b": 0}
    fed.report(4, a=200)

    assert (fed.run.low_watermark_us, fed.run.status(fed.now_us).holder) == (low(100), "b")


def test_a_child_known_from_a_batch_that_runs_again_begins_where_its_parent_ended() -> None:
    fed = Fed("read")
    run_again(fed, {"a": 5, "child": 0})
    assert fed.run.low_watermark_us is None
    fed.run.splits.planner = fed.planner
    claimed(fed, 2, 100, "a", splits={"a": (), "child": ("a",)})
    assert fed.run.low_watermark_us == low(100)


def test_a_child_known_from_a_batch_that_runs_again_is_waited_for_after_a_batch_longer_than_its_grace() -> None:
    """The plan is heard after that batch. It tells the parent of the child, and a new split."""
    fed = Fed("read")
    fed.stream = replace(fed.stream, strategy=WatermarkStrategy.for_monotonous_timestamps().with_grace("1 minute"))
    run_again(fed, {"a": 5, "child": 0})
    fed.now_us += 300 * SECOND
    claimed(fed, 2, 500, "b", splits={"a": (), "b": (), "child": ("a",)})

    status = fed.run.status(fed.now_us)
    assert (status.splits["child"].state, fed.run.low_watermark_us) == (SplitState.PENDING, low(100))


def test_a_child_known_from_a_batch_that_runs_again_begins_there_also_if_its_plan_fails_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch that follows ties the run to its planner, whose plans are taken before."""
    fed = Fed("read")
    run_again(fed, {"a": 5, "child": 0})
    errors = fail_once_after_an_answer(fed, monkeypatch)
    claimed(fed, 2, 100, "a", splits={"a": (), "child": ("a",)})

    assert (fed.run.low_watermark_us, errors) == (low(100), [])


def test_a_child_left_out_before_its_parents_were_told_is_waited_for_while_they_may_deliver() -> None:
    """The stream is quiet after the kill for longer than the grace, so only ticks come between batch and plan."""
    fed = Fed("read")
    fed.stream = replace(fed.stream, strategy=WatermarkStrategy.for_monotonous_timestamps().with_grace("1 minute"))
    run_again(fed, {"a": 5, "child": 0})
    fed.now_us += 300 * SECOND
    fed.run.hear(Tick(), fed.now_us)
    assert fed.run.status(fed.now_us).splits["child"].state is SplitState.IDLE
    claimed(fed, 2, 500, "b", splits={"a": (), "b": (), "child": ("a",)})
    fed.run.hear(SplitsFinished((fed.id("a"),)), fed.now_us)

    status = fed.run.status(fed.now_us)
    assert (status.splits["child"].state, fed.run.low_watermark_us) == (SplitState.PENDING, low(100))


def test_a_child_known_from_a_batch_that_runs_again_begins_there_also_after_an_error_behind_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = Fed("read")
    run_again(fed, {"a": 5, "child": 0})
    fed.run.splits.planner = fed.planner = KnownPlanner("s", run_token="again")

    def plan() -> None:
        claimed(fed, 2, 100, "a", splits={"a": (), "child": ("a",)})

    errors = fail_once_after_an_answer(fed, monkeypatch, then=plan)
    fed.report(1, a=100)

    assert (fed.run.low_watermark_us, errors) == (low(100), [])


def test_a_child_known_from_a_batch_that_runs_again_begins_there_also_after_a_second_kill() -> None:
    fed = Fed("read")
    run_again(fed, {"a": 5, "child": 0})
    state = fed.run.answer(fed.now_us)
    fed.run = StreamRun.attach(fed.stream, token="third", resumes="again", state=state, now_us=fed.now_us)
    fed.run.splits.planner = fed.planner
    claimed(fed, 2, 100, "a", splits={"a": (), "child": ("a",)})

    assert fed.run.low_watermark_us == low(100)


def fail_once_after_an_answer(
    fed: Fed, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None
) -> list[RuntimeError]:
    """Let the next event after `then` fail once, so the run begins again from here; return the errors to come."""
    fed.run.tell()
    fed.run.answer(fed.now_us)
    then()
    handle, errors = SplitWatermarks.handle, [RuntimeError("once")]

    def failing(watermarks: SplitWatermarks, event: Event, *at_us: int) -> list[Effect]:
        if errors:
            raise errors.pop()
        return handle(watermarks, event, *at_us)

    monkeypatch.setattr(SplitWatermarks, "handle", failing)
    return errors


def test_what_alignment_held_before_an_error_is_let_go_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed("read")
    claimed(fed, 4, 100, paused=frozenset({"a"}))
    errors = fail_once_after_an_answer(fed, monkeypatch)
    fed.report(3, b=100)
    states = [fed.run.status(fed.now_us).splits["a"].state]
    claimed(fed, 5, 200)
    states.append(fed.run.status(fed.now_us).splits["a"].state)

    assert (states, errors) == ([SplitState.PAUSED, SplitState.ACTIVE], [])


def test_what_alignment_held_before_a_restart_is_let_go_by_the_first_plan_that_does_not_hold_it() -> None:
    before = Fed("read")
    claimed(before, 4, 100, paused=frozenset({"a", "b"}))
    state = before.stream.state_of(before.run.watermarks)
    fed, states = Fed("read"), []
    fed.run = StreamRun.attach(fed.stream, token="again", resumes="t", state=state, now_us=fed.now_us)
    fed.run.splits.planner = fed.planner
    states.append([seen.state for seen in fed.run.status(fed.now_us).splits.values()])
    claimed(fed, 5, 200, paused=frozenset({"b"}))
    states.append([seen.state for seen in fed.run.status(fed.now_us).splits.values()])
    for checkpoint in range(6, 30):
        claimed(fed, checkpoint, 300, "b", paused=frozenset({"b"}))
        fed.run.places, fed.run.written = {1: [0]}, True
        fed.report(checkpoint, b=250)
    states.append([seen.state for seen in fed.run.status(fed.now_us).splits.values()])

    paused, active, idle = SplitState.PAUSED, SplitState.ACTIVE, SplitState.IDLE
    assert states == [[paused, paused], [active, paused], [idle, paused]]


def test_after_a_plan_that_cannot_be_taken_the_status_shows_what_was_there_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries: Any = ()
    fed, desks = Fed("read"), desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(fed.stream)
    desks.runs._runs["t"] = fed.run
    desks.runs.planners.add("planner", fed.planner, lambda _: False)
    shown_before = fed.run.status(fed.now_us)
    handle = SplitWatermarks.handle

    def failing(watermarks: SplitWatermarks, event: Event, *at_us: int) -> list[Effect]:
        if isinstance(event, BatchPlanned) and 7 in event.backlog_rows.values():
            raise RuntimeError("each time")
        return handle(watermarks, event, *at_us)

    monkeypatch.setattr(SplitWatermarks, "handle", failing)
    desks.plans.take("s", "planner", Planned(4, {"a": (), "b": ()}, backlog_rows={"a": 7}))
    shown_after = fed.run.status(fed.now_us)

    assert fed.run.broken
    assert (shown_after.low_watermark_us, [*shown_after.splits]) == (shown_before.low_watermark_us, ["a", "b"])


def test_what_is_held_let_go_and_held_again_is_paused_twice() -> None:
    fed, states = Fed("read"), []
    for checkpoint, held in ((4, {"a"}), (5, set[str]()), (6, {"a"})):
        claimed(fed, checkpoint, checkpoint * 100, paused=frozenset(held))
        states.append(fed.run.status(fed.now_us).splits["a"].state)

    assert states == [SplitState.PAUSED, SplitState.ACTIVE, SplitState.PAUSED]


def test_a_split_that_ended_with_a_batch_whose_report_is_missing_ends_with_the_next_one() -> None:
    fed = Fed("read")
    fed.report(2, a=20, b=25)
    claimed(fed, 4, 100, finished=("b",))
    claimed(fed, 5, 200, "a", splits={"a": ()})
    fed.report(4, a=150)

    assert fed.run.status(fed.now_us).splits["b"].state is SplitState.FINISHED
    assert isinstance(fed.run.splits, PlannedSplits)
    assert [*fed.run.splits._claimed_us] == [fed.id("a")]


def test_claims_and_caps_go_by_the_delay_that_a_person_set() -> None:
    queries: Any = ()
    fed, desks = Fed("read"), desks_of(queries, notify=lambda _: None)
    aligned = fed.stream.strategy.with_watermark_alignment("g", "10 seconds")
    fed.run.stream = fed.run.splits.stream = replace(fed.stream, strategy=aligned)
    desks.runs.streams.add(fed.run.stream)
    desks.runs._runs["t"], fed.run.query_id = fed.run, "q"
    desks.runs.planners.add("planner", fed.planner, lambda _: False)
    desks.by_hand.set(SetRequest("orders", "anna", delay_us=30 * SECOND))
    claimed(fed, 4, 100)
    assert fed.run.low_watermark_us == low(70)
    fed.report(3, a=101, b=101)
    assert fed.run.low_watermark_us == low(71)

    desks.runs.cooperation.report(fed.run)
    guidance = desks.plans.guide(GuideRequest("s", "planner"))
    assert guidance.read_before_us == 111 * SECOND + 1_000, "a drift of 10 seconds, and a delay of 30"
    desks.by_hand.set(SetRequest("orders", "anna", code=True))
    assert (fed.run.stream.strategy, fed.run.set_by_hand) == (aligned, ())


# -- the planner of a run


def shown(planner: str) -> Progress:
    """A batch whose offset was written by this planner."""
    return report_of(0, [{"endOffset": BatchOffset("orders", 1, planner).to_json()}, {}])


def test_a_batch_that_a_restart_runs_again_ties_no_planner_of_the_run_before_it() -> None:
    """A planner of the previous run wrote the batch's offset; tied to it, the run would never hear the new planner."""
    queries: Any = ()
    stream, desks = Fed("read").stream, desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream)
    first, second = (
        StreamRun.attach(stream, token=token, resumes=None, state=None, now_us=0) for token in ("first", "second")
    )
    tied = []
    for run, planner in ((first, "before"), (second, "before"), (second, "after"), (second, "before")):
        run.places = {1: [0]}
        desks.plans.guide(GuideRequest("s", planner))
        desks.plans.tie(run, run.sources_in(shown(planner), 1), planned_by_run=True)
        known = run.splits.planner
        tied.append(None if known is None else (known is desks.runs.planners.get(planner), known.run_token))

    assert tied == [(True, "first"), None, (True, "second"), (False, "second")]


@pytest.mark.parametrize("gone", [True, False])
def test_a_planner_that_is_gone_with_its_first_batch_is_tied_to_no_later_run(gone: bool) -> None:
    """Its run ended before a batch showed the planner; the next run runs that batch again, and then has no new row.

    The other planner lives, and has no new row either; its run's first report came late.
    """
    queries: Any = NoQueries()
    stream, desks = Fed("read").stream, desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(stream)
    desks.plans.guide(GuideRequest("s", "first"))
    began_us = desks.runs.clock.now_us() + 1
    run = StreamRun.attach(stream, token="again", resumes="t", state=None, now_us=began_us)
    run.places, tied = {1: [0]}, []
    desks.plans.guide(GuideRequest("s", "new" if gone else "first"))
    first, new = (BatchOffset("orders", at, name).to_json() for at, name in ((1, "first"), (2, "new")))
    batches = [(None, first, "t"), (first, first, "again"), (first, new, "again")]
    for batch_id, (start, end, token) in enumerate(batches):
        heartbeat = HeartbeatOffset("orders", token=token, epoch=1, state="").to_json()
        progress = report_of(batch_id, [{"startOffset": start, "endOffset": end}, {"endOffset": heartbeat}])
        desks.reports.take(run, progress, planned_at_us=0)
        tied.append(run.splits.planner)

    planners = desks.runs.planners
    assert tied == ([None, None, planners.get("new")] if gone else [planners.get("first")] * 3)


def test_a_planner_of_another_stream_is_tied_to_no_run() -> None:
    queries: Any = ()
    stream, desks = Fed("read").stream, desks_of(queries, notify=lambda _: None)
    for each in (stream, replace(stream, stream_id="another", name="another")):
        desks.runs.streams.add(each)
    run = StreamRun.attach(stream, token="t", resumes=None, state=None, now_us=0)
    run.places = {1: [0]}
    desks.plans.guide(GuideRequest("another", "planner"))
    desks.plans.tie(run, run.sources_in(shown("planner"), 1), planned_by_run=True)

    assert run.splits.planner is None
