"""An error at any call while a run takes an event: the event counts wholly or not at all; no half change is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import lowmark
import pytest
from lowmark.integration.driver.audited import Audits
from lowmark.integration.driver.farewells import Farewells
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.standing import Standing
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.transport.accumulated import BatchTrack, Tracks
from lowmark.integration.transport.driver_rpc import HeartbeatRequest
from lowmark.integration.transport.recorder import RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.peer import Planned
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.changes import Changes
from lowmark.watermark.splits.events import BatchReported, Effect, Event, Polled
from lowmark.watermark.splits.split_states import SplitStates
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.integration.driver.reported import GivenMeasure, NoQueries, accumulated, answer_of, desks_of, report_of
from tests.laws.strategies import draws

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["wrapped", "kafka", "read"]
SECOND = 1_000_000
HERE = Path(lowmark.__file__).parent
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_idleness("20 seconds")


class Planted(Exception):  # no error of the product
    """The error that a call is made to raise."""


class Fault:
    """Makes calls of the product's functions raise, by their numbers; counts all calls."""

    def __init__(self, *at: int) -> None:
        self.at, self.calls, self.where = at, 0, "nowhere"

    def __enter__(self) -> Self:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(HERE)):
            self.calls += 1
            if self.calls in self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}"
                sys.setprofile(self._look)  # an error removes the profiler
                raise Planted(self.where)


class Fed:
    """One run, three batches old, which takes the next event while a call raises."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.tracks, self.now_us = kind, cast("Tracks", {}), 0
        self.reported_to: dict[str, int] = {}  # the live splits in the offset of a batch, each with its position
        self.key = (
            SplitKey(("topic", "partition"), ("string", "int")) if kind == "kafka" else SplitKey(("s",), ("string",))
        )
        tracks = accumulated(self.tracks)
        measure = RecordedMeasure(tracks) if kind == "read" else GivenMeasure(tracks)
        self.stream = Stream(
            name="orders", stream_id="s", strategy=STRATEGY, key=self.key, measure=measure, sources=1,
            kafka=kind == "kafka", declared={}, names={}, reads=kind == "read", claims=kind == "read",
        )  # fmt: skip
        self.run = StreamRun.attach(self.stream, token="t", resumes=None, state=None, now_us=0)
        self.run.places, self.run.written = {1: [0]}, True
        self.planner = KnownPlanner("s", run_token="t")
        if kind == "read":
            self.run.splits.planner = self.planner
        for batch_id in range(3):
            self.plan(batch_id, "a", "b")
            self.report(batch_id, a=batch_id * 10, b=batch_id * 10 + 5)
            if batch_id == 1:
                self.run.tell()
                self.run.answer(self.now_us)

    def id(self, name: str) -> int:
        return self.key.split_id(("orders", ord(name)) if self.kind == "kafka" else (name,))

    def plan(self, batch_id: int, *splits: str) -> None:
        self.now_us += SECOND
        if self.kind == "read":
            planned = Planned(batch_id + 1, dict.fromkeys(splits, ()), rows=dict.fromkeys(splits, 1))
            self.run.plan(planned, self.now_us)
            self.planner.keep(planned)

    def report(self, batch_id: int, *, keeps: bool = True, **at: int) -> None:
        """Report a batch with these largest event times, in seconds."""
        self.now_us += SECOND
        track = BatchTrack(SplitTracker(), {self.id(name): s * SECOND for name, s in at.items()})
        for name, s in at.items():
            track.tracker.observe_many(self.id(name), SplitMark(s * SECOND, s * SECOND, 1))
            track.names[self.id(name)] = name
        if self.kind == "read":
            track.events = {0: [(0, 1, f"event {batch_id}".encode())]}
        if keeps:
            self.tracks["q", batch_id] = track
        ends = {str(ord(name)): batch_id + 1 for name in ("a", "b", *at)}
        mine = {"wrapped": {"logOffset": batch_id}, "kafka": {"orders": ends}}.get(
            self.kind, BatchOffset("orders", batch_id + 1, "reader", self.reported_to).to_json()
        )
        heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "token": "t", "state": ""}
        progress = report_of(batch_id, [{"endOffset": mine}, {"endOffset": heartbeat}])
        self.run.report(progress, 1, planned_at_us=self.now_us - SECOND, now_us=self.now_us)

    def picture(self) -> dict[str, Any]:
        """All values that a restart, a reader or a person uses, but for the counts that only the process has."""
        status = self.run.status(self.now_us)
        return {
            "state": self.run.stream.state_of(self.run.watermarks),
            "low": self.run.low_watermark_us,
            "batch": self.run.last_batch_id,
            "splits": {name: (split.state, split.watermark_us) for name, split in status.splits.items()},
            "refusal": self.run.refusal,
            "strategies": (self.run.stream.strategy, self.run.watermarks._strategy, self.run.splits.stream.strategy),
            "gaps": self.run.gaps,
            "events": self.planner.events,
            "reported": self.planner.reported,
        }


def take(fed: Fed, what: str) -> None:
    """Take the next event: a batch with a new split that is far behind, a plan that names this split, or a poll."""
    match what:
        case "report":
            fed.report(3, a=30, b=35, c=22)
        case "plan":
            fed.plan(3, "a", "b", "c")
        case "poll":
            fed.run.hear(Polled(fed.now_us + 60 * SECOND), fed.now_us)
        case "set":
            strategy = replace(STRATEGY, out_of_orderness_us=5 * SECOND, idle_timeout_us=SECOND)
            fed.run.set(strategy, (), fed.now_us)
            fed.report(3, a=40, b=41)


CASES: list[tuple[Kind, str]] = [
    ("wrapped", "report"), ("kafka", "report"), ("read", "report"), ("read", "plan"), ("wrapped", "poll"),
]  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # a generator that raises while it is closed
@pytest.mark.parametrize(("kind", "what"), [*CASES, ("read", "set")])
def test_an_error_at_any_call_changes_nothing_in_the_end(kind: Kind, what: str) -> None:
    whole = Fed(kind)
    with Fault() as counted:
        take(whole, what)
    assert counted.calls > 5
    every = 4 // draws(4)  # all calls in `make test`, a fourth in `make check`
    for at in range(1, counted.calls + 1, every):
        fed = Fed(kind)
        before_us = fed.run.low_watermark_us
        with Fault(at) as fault:
            try:
                take(fed, what)
            except Planted:  # before the change began or after it ended: the next heartbeat repeats it
                sys.setprofile(None)
                fed.now_us = whole.now_us - (SECOND if what != "poll" else 0)
                take(fed, what)
        assert fed.picture() == whole.picture(), f"call {at} of {counted.calls}, {fault.where}"
        assert before_us is None or (fed.run.low_watermark_us or 0) >= before_us


@pytest.mark.parametrize(("kind", "what"), CASES)
def test_after_a_second_error_nothing_is_taken_or_written_and_the_query_ends(
    kind: Kind, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fed = Fed(kind)
    fed.now_us += SECOND
    before, epoch = fed.picture(), fed.run.epoch

    def fail(self: SplitStates, changes: Changes) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(SplitStates, "settle", fail)  # in the middle of every event
        take(fed, what)
    taken = {"report": "the report of batch 3", "plan": "plan 4", "poll": "the question of its heartbeat"}[what]
    refusal = fed.run.refusal
    assert refusal is not None
    assert refusal.startswith(f'stream "orders": {taken} failed twice (MemoryError: no room). The low watermark stays')
    assert refusal in caplog.text
    assert fed.run.last_batch_id == before["batch"]
    take(fed, what)
    fed.report(4, a=50, b=50)
    assert fed.run.last_batch_id == before["batch"], "the reports behind it let nobody advance"
    assert fed.run.epoch >= epoch
    written: list[Any] = []
    farewells = Farewells()
    query: Any = SimpleNamespace(farewells=SimpleNamespace(write=written.append))
    farewells.keep(query, fed.run, over=True)
    farewells.close()
    assert written == []


def test_what_a_person_set_outlives_an_error_after_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, fed = Fed("read"), Fed("read")
    failures = [MemoryError("no room")]

    def fail_once(self: SplitStates, changes: Changes) -> None:
        if failures:
            raise failures.pop()
        settle(self, changes)

    settle = SplitStates.settle
    for each in (whole, fed):
        take(each, "set")
        each.run.tell()
        each.run.answer(each.now_us)
        if each is fed:
            monkeypatch.setattr(SplitStates, "settle", fail_once)
        each.report(4, a=60, b=61)
    assert failures == []
    assert fed.picture() == whole.picture()
    assert fed.run.watermarks._strategy.out_of_orderness_us == 5 * SECOND


def test_a_query_whose_report_cannot_be_taken_is_refused_and_its_status_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed, queries = Fed("wrapped"), cast("Any", NoQueries())
    desks = desks_of(queries, notify=lambda _: None)
    desks.runs.streams.add(fed.stream)
    desks.runs._runs["t"] = fed.run
    handle = SplitWatermarks.handle

    def poisoned(self: SplitWatermarks, event: Event, *at_us: int) -> list[Effect]:
        if isinstance(event, BatchReported) and event.batch_id == 3:
            raise Planted("in the middle")
        return handle(self, event, *at_us)

    monkeypatch.setattr(SplitWatermarks, "handle", poisoned)
    low_us = fed.run.low_watermark_us
    fed.report(3, a=90, b=90)
    reply = answer_of(desks, HeartbeatRequest("s", "t"))
    standing = Standing(desks.runs, Audits(desks.runs.clock))

    assert reply.refusal is not None
    assert "the report of batch 3 failed twice (Planted: in the middle)" in reply.refusal
    assert (reply.state, reply.low_watermark_us) == ("", None)
    assert fed.run.low_watermark_us == low_us
    assert reply.refusal in standing.status_of("orders", None).why
    [shown] = standing.run_statuses()
    assert shown.refused


def test_one_begins_again_from_the_last_whole_state_however_long_no_reader_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = Fed("wrapped")
    for batch_id in range(3, 60):  # a listener brings them, as in a query with a long trigger
        fed.report(batch_id, a=batch_id * 10, b=batch_id * 10 + 5)
    assert len(fed.run._since) < 20
    conclude = fed.run.splits.conclude

    def fails_once(sources: Any) -> Iterator[Event]:
        monkeypatch.undo()
        yield from conclude(sources)
        raise Planted("at the end")

    monkeypatch.setattr(fed.run.splits, "conclude", fails_once)
    fed.report(60, a=600, b=605, c=1)

    assert fed.run.low_watermark_us == 590 * SECOND
    assert set(fed.run.status(fed.now_us).splits) == {"a", "b", "c"}
