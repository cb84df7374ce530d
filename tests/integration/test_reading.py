"""What the service makes of the plans of our own sources; no Spark here."""

from __future__ import annotations

import json

import pytest
from lowmark.integration.accumulate import BatchTrack
from lowmark.integration.progress import Progress
from lowmark.integration.reading import SPLIT_TYPE, Reader
from lowmark.integration.run import Stream, StreamRun
from lowmark.integration.splits import SplitKey
from lowmark.sources.batches import Planned
from lowmark.sources.offset import BatchOffset
from lowmark.watermark import SplitMark, SplitState, SplitTracker, WatermarkStrategy

SECOND = 1_000_000
KEY = SplitKey(("split_id",), (SPLIT_TYPE,))
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("2 seconds")
BOUND = 2 * SECOND + 1_000


class Query:
    """One query on a stream of ours: plans and reports go in, as they come from Spark."""

    def __init__(self, *, promises: bool = True, state: str | None = None) -> None:
        self.tracks: dict[tuple[str, int], BatchTrack] = {}
        stream = Stream(
            name="orders", stream_id="s", strategy=STRATEGY, key=KEY, measurement=None, sources=1, kafka=False,
            declared={}, names={}, tracks=lambda query, batch: self.tracks.get((query, batch)), reads=True,
            promises=promises,
        )  # fmt: skip
        self.run = StreamRun.attach(stream, token="t", resumes=None, state=state, now_us=0)
        self.reader = Reader("s", run="t")
        self.run.reader = self.reader
        self.now_us = 0

    def plan(self, checkpoint: int, *splits: str, **known: object) -> None:
        self.now_us += SECOND
        planned = Planned(checkpoint, dict.fromkeys(splits, ()), **known)  # type: ignore[arg-type]
        self.reader.keep(planned)
        self.run.plan(planned, self.now_us)

    def report(self, checkpoint: int, **latest_s: int) -> None:
        """The batch was read: the largest event time of each split."""
        self.now_us += SECOND
        batch = checkpoint - 1
        tracker = SplitTracker()
        track = BatchTrack(tracker)
        for name, at in latest_s.items():
            tracker.observe_many(KEY.split_id((name,)), SplitMark(at * SECOND, at * SECOND, 1))
            track.names[KEY.split_id((name,))] = name
        self.tracks["q", batch] = track
        offset = BatchOffset("orders", checkpoint, "reader").to_json()
        heartbeat = {"epoch": 1, "low_us": None, "lowmark": "orders", "run": "t", "state": ""}
        progress = Progress.from_json(
            json.dumps(
                {
                    "id": "q",
                    "runId": "r",
                    "batchId": batch,
                    "sources": [{"endOffset": offset}, {"endOffset": heartbeat}],
                }
            )
        )
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
    query.plan(1, "a", "b", reached_us={"a": 100 * SECOND, "b": 50 * SECOND})
    assert query.low_us == 50 * SECOND - BOUND


def test_a_stream_whose_event_time_is_another_goes_by_what_is_read() -> None:
    query = Query(promises=False)
    query.plan(1, "a", reached_us={"a": 100 * SECOND})
    assert [query.low_us] == [None]
    query.report(1, a=30)
    assert query.low_us == 30 * SECOND - BOUND
    assert query.run.observed_us == {"a": 30 * SECOND}


def test_a_report_that_is_behind_the_next_promise_is_no_regression(query: Query) -> None:
    query.plan(1, "a", reached_us={"a": 100 * SECOND})
    query.plan(2, "a", reached_us={"a": 200 * SECOND})
    query.report(1, a=99)

    assert query.low_us == 200 * SECOND - BOUND
    assert query.run.status(query.now_us).regressions == 0


def test_a_split_that_is_known_and_silent_holds(query: Query) -> None:
    query.plan(1, "a", "silent", reached_us={"a": 100 * SECOND}, backlog_rows={"silent": 7})
    assert query.low_us is None
    assert query.run.has_backlog


def test_a_split_ends_when_its_last_batch_was_read_and_not_before(query: Query) -> None:
    query.plan(1, "a", "b", reached_us={"b": 100 * SECOND}, rows={"a": 3}, finished=("a",))
    assert query.state_of("a") is SplitState.PENDING
    query.report(1, a=10, b=99)

    assert query.state_of("a") is SplitState.FINISHED
    assert query.low_us == 100 * SECOND - BOUND


def test_a_split_that_ended_before_a_restart_does_not_hold_for_ever(query: Query) -> None:
    query.plan(1, "a", "b", reached_us={"a": 5 * SECOND, "b": 5 * SECOND})
    again = Query(state=query.run.state())
    again.plan(2, "b", reached_us={"b": 100 * SECOND})
    assert again.low_us == 5 * SECOND - BOUND
    again.report(2, b=99)

    assert again.state_of("a") is SplitState.FINISHED
    assert again.low_us == 100 * SECOND - BOUND


def test_a_split_of_the_next_plan_is_not_taken_for_ended(query: Query) -> None:
    query.plan(1, "a", reached_us={"a": 100 * SECOND})
    query.plan(2, "a", "new", reached_us={"a": 200 * SECOND})
    query.report(1, a=99)

    assert query.state_of("new") is SplitState.PENDING


def test_what_alignment_holds_is_paused_until_it_is_let_go(query: Query) -> None:
    query.plan(1, "a", reached_us={"a": 100 * SECOND}, held=frozenset("a"))
    assert query.state_of("a") is SplitState.PAUSED
    query.plan(2, "a", reached_us={"a": 100 * SECOND})
    assert query.state_of("a") is SplitState.ACTIVE


def test_children_stand_where_their_parents_are(query: Query) -> None:
    query.plan(1, "p", reached_us={"p": 100 * SECOND})
    planned = Planned(2, {"p": (), "c": ("p",)}, reached_us={"p": 150 * SECOND})
    query.reader.keep(planned)
    query.run.plan(planned, query.now_us)

    assert query.low_us == 150 * SECOND - BOUND, "the child is not passed, and does not hold at nothing"


def test_events_of_readers_are_taken_once(query: Query) -> None:
    query.plan(1, "a")
    query.tracks["q", 0] = BatchTrack(events={0: ((0, 1, b"gap"),)})
    offset = BatchOffset("orders", 1, "reader").to_json()
    sources = [
        {"endOffset": offset},
        {"endOffset": {"epoch": 1, "low_us": None, "lowmark": "o", "run": "t", "state": ""}},
    ]
    progress = Progress.from_json(json.dumps({"id": "q", "runId": "r", "batchId": 0, "sources": sources}))
    query.run.report(progress, 1, planned_at_us=1, now_us=2)

    assert query.reader.take_events() == [(0, 1, b"gap")]
    assert query.reader.take_events() == []


def test_only_the_newest_plans_are_kept() -> None:
    reader = Reader("s")
    for checkpoint in range(50):
        reader.keep(Planned(checkpoint, {}))
    assert len(reader.plans) < 10
    assert max(reader.plans) == 49
