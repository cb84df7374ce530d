"""Planners of one alignment group, on a virtual clock: how far each reads, and that all of them reach the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lowmark.integration.driver.cooperation import Cooperation
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.planned_splits import PlannedSplits
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.spark.progress import Progress
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.measure import Measured
from lowmark.integration.transport.recorder import SPLIT_TYPE, RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.kit.simple import SimpleSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.watermark import SplitId, WatermarkStrategy
from lowmark.watermark.lateness import SliceLateness
from lowmark.watermark.splits.events import BatchReported
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.integration.driver.reported import accumulated, report_of

SECOND = 1_000_000
KEY = SplitKey(("split_id",), (SPLIT_TYPE,))
MOST_ROUNDS = 500


class Steps(SimpleSource[SourceSplit]):
    """One split; every position holds some rows, given by their event times in microseconds.

    Args:
        claims: whether the planner knows these event times, and claims of the planner move the watermark.
        most_rows: the largest number of positions in a batch.
        silent: whether a second split is there, which never gets a row.
    """

    schema = pa.schema([("at", pa.int64())])
    discover_every = None
    event_time = "at"

    def __init__(
        self,
        steps: Sequence[Sequence[int]],
        *,
        claims: bool = True,
        most_rows: int | None = None,
        silent: bool = False,
    ) -> None:
        self.steps = [list(step) for step in steps]
        self.claims, self.most_rows, self.silent = claims, most_rows, silent

    def discover(self) -> Sequence[SourceSplit]:
        return [SourceSplit(split_id=name) for name in ("a", "silent")[: 1 + self.silent]]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        ends = {"a": SplitEnd(len(self.steps), finished=True), "silent": SplitEnd(0)}
        return {split.split_id: ends[split.split_id] for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        at = next((i for i, step in enumerate(self.steps) if max(step) >= time_us), None)
        return {split.split_id: at if split.split_id == "a" else None for split in splits}

    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return min(time_us, *(min(step) for step in self.steps[position:]))

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError("the test reads by itself")


class Late(Steps):
    """Some rows are far behind the rows before them, so only the largest time of a position is claimed."""

    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return min(time_us, max(self.steps[position], default=time_us))


class WithoutLatest(RecordedMeasure):
    """Measures as the transports do that tell no largest event times: watermarks alone."""

    def report(self, *args: Any) -> Measured | None:
        measured = super().report(*args)
        return None if measured is None else replace(measured, latest_us={})


class Streams:
    """The driver: it knows the group, and every stream's planner, run and query."""

    def __init__(self) -> None:
        self.now_us = 10**15
        self.cooperation = Cooperation(lambda: self.now_us)
        self.queries: list[Query] = []


class Query:
    """One query on a stream of the group. It is the planner's peer, and Spark."""

    def __init__(
        self, streams: Streams, name: str, source: Steps, strategy: WatermarkStrategy, *, claims: bool = True
    ) -> None:
        self.streams, self.source, self.strategy = streams, source, strategy
        self.tracks: dict[tuple[str, int], BatchTrack] = {}
        measure = RecordedMeasure if claims else WithoutLatest
        stream = Stream(
            name=name, stream_id=name, strategy=strategy, key=KEY, sources=1, kafka=False, declared={}, names={},
            measure=measure(accumulated(self.tracks)), reads=True,
            claims=claims,
        )  # fmt: skip
        self.run = StreamRun.attach(stream, token=name, resumes=None, state=None, now_us=streams.now_us)
        self.run.places = {1: [0]}  # its source, then its heartbeat
        self.known = KnownPlanner(name, run_token=name)
        assert isinstance(self.run.splits, PlannedSplits)
        self.run.query_id, self.run.splits.planner = name, self.known
        self.planner: BatchPlanner[SourceSplit] = BatchPlanner(
            source,
            name=name,
            options=PlanOptions(future_guard_us=None),
            now_us=lambda: streams.now_us,
            peer=self,
            steady_us=lambda: streams.now_us,
        )
        self.at, self.rows = self.planner.initial(), list[int]()
        self.asked_us: int | None = None
        self.extra_us = 0
        streams.queries.append(self)

    def ask(self, run: str) -> Guidance:
        guidance = self.streams.cooperation.guidance(self.run.stream, self.run)
        self.asked_us, self.extra_us = guidance.read_before_us, self.run.watermarks.extra_bound_us
        return replace(guidance, observed_us=self.run.splits.observed_us)

    def tell(self, run: str, planned: Planned) -> None:
        news = self.known.is_news(planned)
        self.known.keep(planned)
        if news:
            self.run.plan(planned, self.streams.now_us)
            self.streams.cooperation.report(self.run)

    def batch(self) -> None:
        """Plan a batch, read it, and report it."""
        groups = self.streams.cooperation.groups()
        end = self.planner.plan(self.at, self.source.most_rows)
        if groups and groups[0].cap.us is not None and self.asked_us is not None:
            self.check_cap(groups[0].cap.us, end)
        if end == self.at:
            return
        for task in self.planner.tasks(self.at, end):
            for split in task.splits:
                assert split.stop is not None
                times = [at for step in self.source.steps[split.start : split.stop] for at in step]
                tracker = SplitTracker()
                tracker.observe_many(KEY.split_id(("a",)), SplitMark(max(times), min(times), len(times)))
                track, seen = BatchTrack(tracker, names={KEY.split_id(("a",)): "a"}), SliceLateness()
                seen.add(np.array(times))
                track.lateness[KEY.split_id(("a",)), 0] = seen.behind
                track.times[KEY.split_id(("a",)), 0] = seen.times
                self.tracks[self.run.token, end.checkpoint - 1] = track
                self.rows += times
        self.planner.committed(end)
        self.at = end
        now_us = self.streams.now_us
        self.run.report(self.progress(end), 1, planned_at_us=now_us, now_us=now_us)
        self.streams.cooperation.report(self.run)

    def check_cap(self, cap_us: int, end: BatchOffset) -> None:
        """Check that the plan has exactly the rows whose watermark is at most the cap."""
        steps = self.source.steps
        before, position = (offset.positions.get("a", len(steps)) for offset in (self.at, end))
        tops = [self.strategy.watermark_of_max(max(step) - self.extra_us) for step in steps]
        assert all(top <= cap_us for top in tops[before:position]), f"read beyond the cap {cap_us}: {tops}, {position}"
        if self.source.most_rows is None:
            assert not tops[position:] or tops[position] > cap_us, f"the cap {cap_us} allows more: {tops}, {position}"

    def progress(self, end: BatchOffset) -> Progress:
        heartbeat = {"epoch": 1, "low_us": None, "lowmark": self.run.token, "token": self.run.token, "state": ""}
        sources = [{"endOffset": end.to_json()}, {"endOffset": heartbeat}]
        return report_of(end.checkpoint - 1, sources, id=self.run.token)


def read_all(
    sources: Sequence[Steps],
    strategy: WatermarkStrategy,
    look: Callable[..., None] = lambda *_: None,
    *,
    restored_us: Mapping[str, int] = MappingProxyType({}),
) -> list[Query]:
    """Let streams of one group take turns until all rows are read, or for `MOST_ROUNDS` rounds.

    Args:
        look: called with all queries after each round.
        restored_us: watermarks that splits had before the queries began.
    """
    streams = Streams()
    with ExitStack() as planners:
        for number, source in enumerate(sources):
            query = Query(streams, f"stream-{number}", source, strategy, claims=source.claims)
            planners.enter_context(closing(query.planner))
            before_us: dict[SplitId, int] = {KEY.split_id((name,)): us for name, us in restored_us.items()}
            query.run.handle(BatchReported(-1, streams.now_us, before_us), streams.now_us)
        for _ in range(MOST_ROUNDS):
            for query in streams.queries:
                streams.now_us += SECOND
                query.batch()
            look(*streams.queries)
            if all(len(query.rows) == sum(map(len, query.source.steps)) for query in streams.queries):
                break
    return streams.queries


def grouped(drift: str, bound: str = "0 seconds") -> WatermarkStrategy:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(bound)
    return bounded.with_watermark_alignment("g", drift, "1 millisecond")


@pytest.mark.parametrize("drift", ["0 seconds", "1 microsecond", "1500 microseconds", "3 seconds"])
def test_streams_of_one_group_read_all_rows_however_small_their_drift_is(drift: str) -> None:
    sources = [Steps([[second * SECOND + offset] for second in range(1_000, 1_010)]) for offset in (0, 400_700)]
    one, other = read_all(sources, grouped(drift))

    assert len(one.rows) == len(other.rows) == 10


def test_a_step_that_is_longer_than_the_drift_is_read_when_all_others_are_there() -> None:
    hour = [3_600 * SECOND + 10 * SECOND * n for n in range(360)]
    sources = [Steps([[at + offset for at in hour], [hour[-1] + 20 * SECOND]]) for offset in (0, 7)]
    one, other = read_all(sources, grouped("1 minute"))

    assert len(one.rows) == len(other.rows) == 361


BOUNDS = [
    WatermarkStrategy.for_bounded_out_of_orderness("10 minutes"),
    WatermarkStrategy.for_adaptive_out_of_orderness(at_most="10 minutes"),
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BOUNDS, ids=["constant", "adaptive"])
def test_a_stream_without_claims_keeps_the_pace_of_its_group_and_both_are_read(strategy: WatermarkStrategy) -> None:
    seconds = range(5_000, 5_400)
    slow, fast = (Steps([[at * SECOND] for at in seconds], claims=False, most_rows=rows) for rows in (2, 20))
    ahead_s = list[int]()

    def look(one: Query, other: Query) -> None:
        ahead_s.append((max(other.rows, default=0) - max(one.rows, default=0)) // SECOND)

    one, other = read_all([slow, fast], strategy.with_watermark_alignment("g", "30 seconds", "1 millisecond"), look)

    assert len(one.rows) == len(other.rows) == 400
    assert max(ahead_s) <= 30 + 20, "the drift, and the batch that goes beyond it"


def test_a_split_without_rows_does_not_stop_a_stream_without_claims_for_good() -> None:
    source = Steps([[at * SECOND] for at in range(5_000, 5_400)], claims=False, most_rows=20, silent=True)
    [query] = read_all([source], grouped("30 seconds"), restored_us={"silent": 5_000 * SECOND})

    assert len(query.rows) == 400


@pytest.mark.slow
def test_an_adaptive_bound_beyond_the_drift_does_not_slow_the_reading_down() -> None:
    """The cap of a watermark is turned into a time with the bound that made the watermark, not with the least bound."""
    times = [[at * SECOND] + [(at - 120) * SECOND] * (at % 10 == 0) for at in range(5_000, 6_000)]
    adaptive = WatermarkStrategy.for_adaptive_out_of_orderness().with_watermark_alignment("g", "30 seconds")
    rounds = list[int]()
    queries = read_all([Late(times, most_rows=20), Late(times, most_rows=50)], adaptive, lambda *_: rounds.append(1))

    assert [len(query.rows) for query in queries] == [1_100, 1_100]
    assert len(rounds) <= 1_000 / 20 + 10
    assert min(query.run.watermarks.extra_bound_us for query in queries) > 100 * SECOND


@st.composite
def _sources(draw: st.DrawFn) -> list[Steps]:
    """Two or three streams; rows rise by less than a millisecond or by seconds, with one or several rows a position."""
    sources = []
    for _ in range(draw(st.integers(2, 3))):
        at, steps = draw(st.integers(0, 5_000)), []
        for _ in range(draw(st.integers(1, 5))):
            step = []
            for _ in range(draw(st.integers(1, 3))):
                at += draw(st.sampled_from([0, 1, 499, 500, 999, 1_000, 1_001, 7_300, SECOND]))
                step.append(at)
            steps.append(step)
        sources.append(Steps(steps))
    return sources


@pytest.mark.slow
@given(
    sources=_sources(),
    drift_us=st.sampled_from([0, 1, 999, 1_000, 1_500, SECOND]),
    bound_us=st.sampled_from([0, 1, 500, 1_000, 2_300]),
)
@settings(max_examples=60, deadline=None)
def test_a_cap_lets_through_what_has_its_watermark_and_nothing_else(
    sources: list[Steps], drift_us: int, bound_us: int
) -> None:
    queries = read_all(sources, grouped(f"{drift_us} microseconds", f"{bound_us} microseconds"))

    assert [len(query.rows) for query in queries] == [sum(map(len, source.steps)) for source in sources]


@given(cap_us=st.integers(-(2**63), 2**63 - 1), bound_us=st.integers(0, 10**10), off_us=st.integers(-2_500, 2_500))
@example(cap_us=-(2**63), bound_us=0, off_us=0)
@example(cap_us=2**63 - 1, bound_us=10**10, off_us=0)
@settings(deadline=None)
def test_the_first_time_beyond_a_watermark_is_the_edge_between_what_has_it_and_what_has_more(
    cap_us: int, bound_us: int, off_us: int
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{bound_us} microseconds")
    edge_us = strategy.first_time_beyond(cap_us)
    assert -(2**63) <= edge_us < 2**63
    at_us = edge_us + off_us
    if -(2**63) <= at_us < 2**63 - 1:
        assert (at_us < edge_us) == (strategy.watermark_of_max(at_us) <= cap_us)
