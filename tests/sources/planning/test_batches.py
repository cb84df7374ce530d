"""Planning of batches without Spark: the tests ask planners as an engine does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest
from lowmark.sources import (
    DataclassSerializer,
    ExternallyInducedSourceReader,
    FailoverPolicy,
    InputStatus,
    ReaderOutput,
    SourceEvent,
    SourceReaderContext,
    SourceSplit,
    SplitEnd,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAssignment,
)
from lowmark.sources.coordinator import SourceFailed
from lowmark.sources.kit.simple import SimplePlanner, SimpleSource
from lowmark.sources.planning import offset as offset_module
from lowmark.sources.planning.enumeration import Enumeration
from lowmark.sources.planning.offset import BatchOffset, UnreadableOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.planning.planner import BatchPlanner, PlanningFailed
from lowmark.sources.planning.rate import RateLimiterStrategy
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.slicing import plan_slices

SECOND = 1_000_000


class Rows(SimpleSource[SourceSplit]):
    """A source whose splits are lists of event times in seconds, in this process."""

    schema = pa.schema([("at", pa.int64())])
    discover_every = None

    def __init__(self, **times: Sequence[int]) -> None:
        self.times = {name: list(of) for name, of in times.items()}
        self.ended: set[str] = set()
        self.searchable = True
        self.asked = 0

    @property
    def event_time(self) -> str:
        return "at"

    def discover(self) -> Sequence[SourceSplit]:
        return [SourceSplit(split_id=name) for name in sorted(self.times)]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        self.asked += 1
        return {
            s.split_id: SplitEnd(len(self.times[s.split_id]), finished=s.split_id in self.ended)
            for s in splits
            if s.split_id in self.times
        }

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        if not self.searchable:
            return None
        return {
            s.split_id: next((i for i, at in enumerate(self.times[s.split_id]) if at * SECOND >= time_us), None)
            for s in splits
        }

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        times = self.times[split.split_id][split.start : split.stop]
        yield pa.RecordBatch.from_arrays([pa.array(times, pa.int64())], schema=self.schema)


@dataclass
class Peer:
    """A peer that answers as a test decides, and keeps its messages."""

    guidance: Guidance = field(default_factory=Guidance)
    told: list[Planned] = field(default_factory=list)

    def ask(self, run: str) -> Guidance:
        return self.guidance

    def tell(self, run: str, planned: Planned) -> None:
        self.told.append(planned)


@dataclass
class Hears(Peer):
    """A peer that signals the second plan."""

    heard: threading.Event = field(default_factory=threading.Event)

    def tell(self, run: str, planned: Planned) -> None:
        super().tell(run, planned)
        if len(self.told) == 2:
            self.heard.set()


@pytest.fixture
def planners() -> Iterator[list[BatchPlanner[Any]]]:
    made: list[BatchPlanner[Any]] = []
    yield made
    for planner in made:
        planner.close()


@pytest.fixture
def make(planners: list[BatchPlanner[Any]]) -> Any:
    def make(source: Any, peer: Peer | None = None, **options: Any) -> BatchPlanner[Any]:
        clock = itertools.count(step=SECOND)
        planner: BatchPlanner[Any] = BatchPlanner(
            source,
            name="rows",
            options=PlanOptions(**options),
            now_us=lambda: 20_000 * SECOND,
            steady_us=lambda: next(clock),
            peer=peer,
        )
        planners.append(planner)
        return planner

    return make


def rows_between(planner: BatchPlanner[Any], source: Any, start: BatchOffset, end: BatchOffset) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for task in planner.tasks(start, end):
        for part in read_slices(source, task.splits):
            rows.setdefault(part.split_id, []).extend(int(at) for at in part.rows["at"].to_numpy())
    return rows


def run(
    planner: BatchPlanner[Any], source: Any, start: BatchOffset, max_rows: int | None
) -> list[dict[str, list[int]]]:
    batches = []
    while (end := planner.plan(start, max_rows)) != start:
        batches.append(rows_between(planner, source, start, end))
        planner.committed(end)
        start = end
    return batches


def test_batches_hold_every_row_once_and_up_to_one_time(make: Any) -> None:
    source = Rows(a=range(1_000, 1_100), b=range(1_050, 1_100), c=[])
    batches = run(make(source), source, BatchOffset("rows"), 30)

    for name in "ab":
        assert [row for batch in batches for row in batch.get(name, [])] == source.times[name]
    tops = [max(max(rows) for rows in batch.values()) for batch in batches]
    for top, batch in zip(tops[:-1], batches[1:], strict=True):
        assert min(min(rows) for rows in batch.values()) >= top, "a later batch holds later rows only"


def test_a_first_batch_that_takes_long_to_plan_is_told_of_meanwhile(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowmark.sources.planning.telling._SAY_FIRST_SECONDS", 0)
    monkeypatch.setattr("lowmark.sources.planning.telling.SAY_AGAIN_SECONDS", 0.001)
    heard = threading.Event()

    class Slow(Rows):
        def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
            assert heard.wait(20), "nobody heard of it while it was planned"
            return super().latest(splits)

    peer = Hears(heard=heard)
    planner = make(Slow(a=range(5), b=range(5)), peer)
    end = planner.plan(BatchOffset("rows"), None)
    said, first = {planned.missing for planned in peer.told[:-1]}, peer.told[-1]
    assert said == {"its first batch is being planned since 1970-01-01 05:33:20.000 UTC, from 2 splits."}
    assert (first.checkpoint, first.missing, dict(first.rows)) == (1, None, {"a": 5, "b": 5})
    told = len(peer.told)
    planner.plan(end, None)
    assert [planned.missing for planned in peer.told[told:]] == [None], "only of the first batch"


def test_a_batch_that_is_read_again_after_a_restart_is_told_of_until_the_next_one_is_planned(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowmark.sources.planning.telling._SAY_FIRST_SECONDS", 0)
    monkeypatch.setattr("lowmark.sources.planning.telling.SAY_AGAIN_SECONDS", 0.001)
    source, start = Rows(a=range(5), b=range(5)), BatchOffset("rows")
    end = make(source).plan(start, None)
    heard = threading.Event()

    peer = Hears(heard=heard)
    again = make(source, peer)
    assert len(again.tasks(start, end)) > 0
    assert heard.wait(20), "nobody hears of it while it is read"
    again.plan(end, None)
    told = list(peer.told)
    since = "the batch that was planned before the restart is being read since 1970-01-01 05:33:20.000 UTC, 2 slices."
    assert all(str(planned.missing).startswith(since) for planned in told[:-1])
    assert told[-1].missing is None
    again.tasks(start, end)
    again.close()
    assert [planned.missing for planned in peer.told[len(told) :]] == [], "one that was planned here is known"


def test_another_process_goes_on_from_any_offset(make: Any) -> None:
    source = Rows(a=range(1_000, 1_100), b=range(1_050, 1_100))
    first = make(source)
    offsets = [BatchOffset("rows")]
    for _ in range(3):
        offsets.append(first.plan(offsets[-1], 20))
    for number, start in enumerate(offsets):
        again = BatchOffset.find(start.to_json())
        assert again is not None
        batches = run(make(source, slots=3), source, again, 20)
        read = sum(len(rows) for batch in batches for rows in batch.values())
        done = [rows_between(first, source, *ends) for ends in pairwise(offsets[: number + 1])]
        before = sum(len(rows) for batch in done for rows in batch.values())
        assert before + read == 150, f"from offset {number}"


def test_what_is_planned_twice_from_one_offset_is_read_once(make: Any) -> None:
    source = Rows(a=range(100))
    planner = make(source)
    one = planner.plan(BatchOffset("rows"), 10)
    planner.plan(one, 10)
    again = planner.plan(one, 10)

    assert rows_between(planner, source, one, again) == {"a": list(range(one.positions["a"], again.positions["a"]))}
    assert 8 <= again.positions["a"] - one.positions["a"] <= 10


def test_an_offset_alone_says_what_its_batch_reads(make: Any) -> None:
    source = Rows(a=range(100))
    start = BatchOffset("rows")
    end = make(source).plan(start, 10)

    assert rows_between(make(source), source, start, end) == {"a": list(range(end.positions["a"]))}
    assert 8 <= end.positions["a"] <= 10


def test_a_search_begins_where_the_batch_before_ended(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Mock(wraps=plan_slices)
    monkeypatch.setattr("lowmark.sources.planning.extent.plan_slices", watched)
    source = Rows(a=range(100))
    planner = make(source)
    first = planner.plan(planner.initial(), 10)
    for each in (planner, make(source)):
        each.plan(first, 10)
    assert (reached_us := first.decode(source.split_serializer).time_us) is not None
    assert [call.kwargs["previous_time_us"] for call in watched.call_args_list] == [None, reached_us, reached_us]


def test_an_error_before_the_first_plan_ends_the_enumerator(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Rows(a=[1])
    planner = make(source)
    monkeypatch.setattr(source, "create_planner", Mock(side_effect=OSError("no connection")))
    watched = patch.object(Enumeration, "close", autospec=True, side_effect=Enumeration.close)
    with watched as close, pytest.raises(PlanningFailed, match="'rows': cannot plan batch 1: OSError: no conn"):
        planner.plan(planner.initial(), None)
    close.assert_called_once()


def test_nothing_new_changes_no_offset_and_is_not_asked_for_every_time(make: Any) -> None:
    source = Rows(a=range(3))
    planner = make(source)
    end = planner.plan(planner.initial(), None)

    assert planner.plan(end, None) is end
    source.times["a"].append(7)
    assert rows_between(planner, source, end, planner.plan(end, None)) == {"a": [7]}


def test_an_idle_source_is_asked_ten_times_a_second_at_most(make: Any) -> None:
    source = Rows(a=[])
    now = [10**15]
    planner: BatchPlanner[Any] = BatchPlanner(
        source, name="rows", options=PlanOptions(), now_us=lambda: now[0], steady_us=lambda: now[0]
    )
    end = planner.plan(planner.initial(), None)
    asked = source.asked
    for _ in range(1_000):
        now[0] += 1_000
        end = planner.plan(end, None)
    planner.close()

    assert source.asked - asked <= 11


@pytest.mark.parametrize("rate", [RateLimiterStrategy.no_op(), RateLimiterStrategy.per_second(100)])
def test_a_wall_clock_that_is_set_back_delays_no_batch(rate: RateLimiterStrategy) -> None:
    """NTP corrects a clock by an hour, or a virtual machine is restored: later rows are planned at once."""
    source = Rows(a=[1])
    wall, steady = [10**15], [0]
    planner: BatchPlanner[Any] = BatchPlanner(
        source, name="rows", options=PlanOptions(rate=rate), now_us=lambda: wall[0], steady_us=lambda: steady[0]
    )
    end = planner.plan(planner.initial(), None)
    steady[0] += SECOND
    assert planner.plan(end, None) == end, "nothing is there"
    wall[0] -= 3_600 * SECOND
    steady[0] += 200_000
    source.times["a"] += [2, 3]
    later = planner.plan(end, None)
    planner.close()

    assert later.positions == {"a": 3}


def test_a_wall_clock_that_is_set_forward_brings_no_rows_beyond_the_rate() -> None:
    source = Rows(a=range(1_000))
    wall, steady = [10**15], [0]
    planner: BatchPlanner[Any] = BatchPlanner(
        source,
        name="rows",
        options=PlanOptions(rate=RateLimiterStrategy.per_second(10)),
        now_us=lambda: wall[0],
        steady_us=lambda: steady[0],
    )
    end = planner.plan(planner.initial(), None)
    wall[0] += 3_600 * SECOND
    steady[0] += 2 * SECOND
    later = planner.plan(end, None)
    planner.close()

    assert later.positions["a"] <= 40


def test_a_split_that_ends_is_gone_from_the_offset_and_told(make: Any) -> None:
    source, peer = Rows(a=range(10), b=range(20)), Peer()
    source.ended.add("a")
    planner = make(source, peer)
    end = planner.plan(planner.initial(), None)

    assert end.positions == {"b": 20}
    assert peer.told[-1].finished == ("a",)
    assert rows_between(planner, source, planner.initial(), end) == {"a": list(range(10)), "b": list(range(20))}


def test_what_a_batch_reaches_is_told_before_it_is_read(make: Any) -> None:
    source, peer = Rows(a=range(1_000, 1_100), b=range(1_090, 1_190)), Peer()
    planner = make(source, peer)
    end = planner.plan(planner.initial(), 50)
    told = peer.told[-1]

    assert told.checkpoint == end.checkpoint == 1
    assert set(told.claims_us) == {"a", "b"}
    position = end.positions["a"]
    assert source.times["a"][position - 1] * SECOND < told.claims_us["a"] <= source.times["a"][position] * SECOND
    assert end.positions["b"] == 0
    assert told.backlog_rows == {"a": 100 - position, "b": 100}


def test_nothing_at_or_behind_the_cap_is_read_and_the_next_row_is_told(make: Any) -> None:
    source, peer = Rows(a=range(1_000, 1_100)), Peer(Guidance(read_before_us=1_010 * SECOND))
    planner = make(source, peer)
    end = planner.plan(planner.initial(), None)
    assert rows_between(planner, source, planner.initial(), end) == {"a": list(range(1_000, 1_010))}

    assert planner.plan(end, None) == end
    assert peer.told[-1].paused == {"a"}
    assert peer.told[-1].next_us is not None
    assert 1_010 * SECOND - 1_000 <= peer.told[-1].next_us <= 1_010 * SECOND
    peer.guidance = Guidance(read_before_us=1_020 * SECOND)
    assert planner.plan(end, None).positions == {"a": 20}


def test_who_has_to_wait_says_where_it_would_begin_in_a_batch_without_rows(make: Any) -> None:
    source, peer = Rows(a=range(1_000, 1_100), b=[]), Peer(Guidance(hold=True))
    planner = make(source, peer)
    end = planner.plan(planner.initial(), None)

    assert planner.tasks(planner.initial(), end) == []
    assert end.positions == {"a": 0, "b": 0}
    claim_us = peer.told[-1].claims_us["a"]
    assert 1_000 * SECOND - 1_000 <= claim_us <= 1_000 * SECOND, "no unread row is before it"
    assert "b" not in peer.told[-1].claims_us
    assert planner.plan(end, None) == end, "one such batch, and then it waits"


def test_who_waits_after_a_restart_makes_itself_known_by_a_batch_without_rows(make: Any) -> None:
    source = Rows(a=range(1_000, 1_100))
    before = make(source).plan(BatchOffset("rows"), 10)
    again = make(source, Peer(Guidance(hold=True)))
    end = again.plan(before, 10)

    assert (end.token, end.positions) == (again._token, before.positions)
    assert again.tasks(before, end) == []
    assert again.plan(end, 10) == end


def test_who_waits_and_cannot_search_reads_once_to_be_heard(make: Any) -> None:
    source, peer = Rows(a=range(100)), Peer(Guidance(hold=True))
    source.searchable = False
    planner = make(source, peer)
    end = planner.plan(planner.initial(), 10)
    assert end.positions == {"a": 10}

    peer.guidance = replace(peer.guidance, observed_us={"a": 9 * SECOND})
    assert planner.plan(end, 10) == end


def test_a_run_that_stops_at_present_reads_what_was_there_and_no_more(make: Any) -> None:
    source = Rows(a=range(30))
    planner = make(source)
    planner.stop_at_present()
    end = planner.plan(planner.initial(), 10)
    source.times["a"] += range(30, 60)
    batches = run(planner, source, end, 10)

    assert end.positions["a"] + sum(len(rows) for batch in batches for rows in batch.values()) == 30


def test_a_rate_bounds_what_is_read_and_saves_nothing_up(make: Any) -> None:
    source = Rows(a=range(100))
    now = [1_000 * SECOND]
    options = PlanOptions(rate=RateLimiterStrategy.per_second(10))
    planner: BatchPlanner[Any] = BatchPlanner(
        source, name="rows", options=options, now_us=lambda: now[0], steady_us=lambda: now[0]
    )
    ends = [planner.plan(planner.initial(), None)]
    for step_us in (10_000, 1_990_000, 2_000_000):
        now[0] += step_us
        ends.append(planner.plan(ends[-1], None))
    planner.close()

    at = [end.positions["a"] for end in ends]
    assert 8 <= at[0] <= 10
    assert at[1] == at[0], "a hundredth of a second later no row is due"
    assert 16 <= at[2] <= 20
    assert 36 <= at[3] <= 40


@pytest.mark.slow
@pytest.mark.parametrize(("trigger_ms", "rate"), [(190, 10), (333, 40), (499, 10), (999, 40), (2_500, 40)])
def test_a_rate_is_kept_over_a_minute_whatever_the_trigger_is(trigger_ms: int, rate: int) -> None:
    source = Rows(a=range(0, 6_000, 2), b=range(1_000, 4_000), c=range(5))
    now = [1_000_000 * SECOND]
    options = PlanOptions(rate=RateLimiterStrategy.per_second(rate))
    planner: BatchPlanner[Any] = BatchPlanner(
        source, name="rows", options=options, now_us=lambda: now[0], steady_us=lambda: now[0]
    )
    end, taken = planner.initial(), [0]
    for _ in range(0, 60_000, trigger_ms):
        end = planner.plan(end, None)
        taken.append(sum(end.positions.values()) - sum(taken))
        now[0] += trigger_ms * 1_000
    planner.close()

    assert sum(taken) == pytest.approx(60 * rate, rel=0.03)
    ten_seconds = 10_000 // trigger_ms
    for i in range(len(taken)):
        assert sum(taken[i : i + ten_seconds]) <= 10 * rate + max(taken), f"from batch {i}"


def test_a_run_up_to_the_present_does_not_end_because_a_rate_or_a_group_makes_it_wait(make: Any) -> None:
    source, peer = Rows(a=range(1_000, 1_030)), Peer(Guidance(read_before_us=1_010 * SECOND))
    planner = make(source, peer, rate=RateLimiterStrategy.per_second(1_000))
    planner.stop_at_present()
    end = planner.plan(planner.initial(), None)
    assert end.positions == {"a": 10}
    asked = []

    def lifted(run: str) -> Guidance:
        asked.append(run)
        return Guidance() if len(asked) > 3 else Guidance(read_before_us=1_010 * SECOND)

    peer.ask = lifted  # type: ignore[method-assign]
    assert planner.plan(end, None).positions == {"a": 30}
    assert len(asked) == 4


def test_a_split_that_is_assigned_while_a_batch_is_planned_is_in_its_offset(make: Any) -> None:
    """The enumerator's snapshot no longer has the split."""

    class Meanwhile(Rows):
        def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
            if "late" not in self.times:
                self.times["late"] = [5]
                planner._present.enumeration.slots.add_splits(0, [SourceSplit(split_id="late")])
            return super().latest(splits)

    source = Meanwhile(a=range(10))
    planner = make(source)
    end = planner.plan(planner.initial(), None)

    assert end.positions == {"a": 10, "late": 0}
    assert rows_between(planner, source, end, planner.plan(end, None)) == {"late": [5]}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_split_that_is_assigned_again_is_read_once(make: Any, *, restarted: bool) -> None:
    """An enumerator restored from a state before an assignment assigns the split again."""
    source = Rows(a=range(10))
    planner = make(source)
    end = planner.plan(planner.initial(), None)
    if restarted:
        planner = make(source)
        assert planner.plan(end, None) == end
    planner._present.enumeration.slots.add_splits(0, [SourceSplit(split_id="a")])

    assert planner.plan(end, None) == end


def test_a_split_that_begins_long_before_the_last_batch_sets_the_time_back(make: Any) -> None:
    source = Rows(a=range(1_000, 1_100))
    planner = make(source)
    first = planner.plan(planner.initial(), 50)
    source.times["b"] = list(range(10, 200))
    planner._present.enumeration.slots.add_splits(0, [SourceSplit(split_id="b")])
    second = planner.plan(first, 50)
    times_us = [end.decode(source.split_serializer).time_us for end in (first, second)]

    assert times_us[1] < times_us[0]
    batches = run(planner, source, second, 50)
    assert sum(len(rows) for batch in batches for rows in batch.values()) == 100 + 190 - sum(second.positions.values())


def test_a_split_that_is_not_reachable_is_told_of_all_the_same(make: Any) -> None:
    source, peer = Rows(a=range(10), b=range(10)), Peer()
    planner = make(source, peer)
    end = planner.plan(planner.initial(), None)
    del source.times["b"]
    source.times["a"].append(11)

    assert planner.plan(end, None).positions == {"a": 11, "b": 10}
    assert peer.told[-1].splits == {"a": (), "b": ()}
    assert peer.told[-1].finished == ()
    assert peer.told[-1].paused == {"b"}, "it may have rows, so its silence makes it not idle"


def test_a_plan_of_which_only_counts_are_new_is_told_once(make: Any) -> None:
    class Counting(SimplePlanner[Any]):
        def metric_values(self) -> Mapping[str, float]:
            return {"asked": float(source.asked)}

    class Counted(Rows):
        def create_planner(self) -> Any:
            return Counting(self)

    source, peer = Counted(a=range(10)), Peer()
    planner = make(source, peer)
    end = planner.plan(planner.initial(), None)
    for _ in range(3):
        assert planner.plan(end, None) == end

    assert [told.checkpoint for told in peer.told] == [1, 1]


def test_a_rate_is_not_saved_up_while_there_is_nothing_to_read(make: Any) -> None:
    source = Rows(a=range(5))
    now = [1_000 * SECOND]
    options = PlanOptions(rate=RateLimiterStrategy.per_second(10))
    planner: BatchPlanner[Any] = BatchPlanner(
        source, name="rows", options=options, now_us=lambda: now[0], steady_us=lambda: now[0]
    )
    end = planner.plan(planner.initial(), None)
    now[0] += 100 * SECOND
    assert planner.plan(end, None) == end
    source.times["a"] += range(5, 1_000)
    now[0] += SECOND
    later = planner.plan(end, None)
    planner.close()

    assert 5 < later.positions["a"] <= 15


def test_every_slot_is_a_task(make: Any) -> None:
    source = Rows(**{f"s{n}": range(5) for n in range(8)})
    planner = make(source, slots=2)
    tasks = planner.tasks(planner.initial(), planner.plan(planner.initial(), None))

    assert [task.subtask for task in tasks] == [0, 1]
    assert sorted(split.split_id for task in tasks for split in task.splits) == sorted(source.times)


def test_the_enumerator_hears_of_commits_and_of_splits_that_end(make: Any) -> None:
    heard: list[object] = []

    class Told(Rows):
        def create_enumerator(self, context: Any) -> Any:
            enumerator: Any = super().create_enumerator(context)
            enumerator.notify_checkpoint_complete = heard.append
            enumerator.handle_splits_finished = lambda subtask, ids: heard.append((subtask, list(ids)))
            return enumerator

    source = Told(a=range(5))
    source.ended.add("a")
    planner = make(source)
    end = planner.plan(planner.initial(), None)
    planner.committed(end)
    planner._present.enumeration.coordinator.run("wait for the enumerator", lambda: None)

    assert heard == [(0, ["a"]), 1]


def test_the_enumerator_hears_which_splits_end_before_its_snapshot_is_taken(make: Any) -> None:
    """Ended splits make a hybrid source switch, and its snapshot has to agree with the positions of the batch."""
    heard: list[str] = []

    class Told(Rows):
        def create_enumerator(self, context: Any) -> Any:
            enumerator: Any = super().create_enumerator(context)
            snapshot = enumerator.snapshot_state

            def taken(checkpoint: int) -> Any:
                heard.append("snapshot")
                return snapshot(checkpoint)

            enumerator.snapshot_state = taken
            enumerator.handle_splits_finished = lambda *_: heard.append("finished")
            return enumerator

    source = Told(a=range(5))
    source.ended.add("a")
    planner = make(source)
    planner.plan(planner.initial(), None)

    assert heard == ["finished", "snapshot"]


def test_only_alignment_is_told_as_holding_a_split(make: Any) -> None:
    class Resharded(Rows):
        def discover(self) -> Sequence[SourceSplit]:
            return [SourceSplit(split_id="a"), SourceSplit(split_id="b", parents=("a",))]

    peer = Peer()
    planner = make(Resharded(a=range(100), b=range(100, 120)), peer)
    end = planner.plan(planner.initial(), 50)

    assert end.positions["b"] == 0
    assert peer.told[-1].paused == frozenset()
    assert peer.told[-1].splits == {"a": (), "b": ("a",)}


def test_what_a_planner_cannot_promise_is_not_told(make: Any) -> None:
    class Coarse(Rows):
        def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
            return min(time_us, 990 * SECOND)

    peer = Peer()
    planner = make(Coarse(a=range(1_000, 1_100), b=range(1_050, 1_150)), peer)
    planner.plan(planner.initial(), 50)

    assert set(peer.told[-1].claims_us.values()) == {990 * SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(SourceSplit):
    """A split whose system names positions by text.

    Attributes:
        place: the position to continue from.
        until: the end of a slice.
    """

    place: str = "head"
    until: str = ""


class Texts(Rows):
    split_type = Placed

    def discover(self) -> Sequence[SourceSplit]:
        return [Placed(split_id=name) for name in sorted(self.times)]

    def create_planner(self) -> Any:
        return TextPlanner(self)


class TextPlanner(SimplePlanner[Any]):
    def cut(self, stops: Sequence[tuple[Any, int]]) -> Sequence[tuple[Any, Any]]:
        self.asked = list(stops)
        return [
            (replace(split, stop=stop, until=f"after {stop}"), replace(split, start=stop, place=f"after {stop}"))
            for split, stop in stops
        ]


def test_what_a_planner_adds_to_the_ends_of_a_batch_is_in_its_offset(make: Any) -> None:
    source = Texts(a=range(10), b=range(3))
    planner = make(source, max_rows=None)
    one = planner.plan(planner.initial(), 8)
    state = one.decode(source.split_serializer)
    places = {placed.split.split_id: (placed.split.place, placed.split.until) for placed in state.slices}
    stops = {placed.split.split_id: placed.split.stop for placed in state.slices}
    assert places == {name: ("head", f"after {stop}") for name, stop in stops.items()}
    assert {placed.split.place for placed in state.live} == {f"after {stop}" for stop in stops.values()}
    # Another process continues from that offset.
    other = make(source)
    two = other.plan(one, None).decode(source.split_serializer)
    assert {placed.split.place for placed in two.slices} <= {f"after {stop}" for stop in stops.values()}


def test_an_offset_of_another_source_or_a_broken_one_is_refused(make: Any) -> None:
    planner = make(Rows(a=[1]))
    with pytest.raises(UnreadableOffset) as renamed:
        planner.plan(BatchOffset("others", 3, "run", {}, "x"), None)
    assert str(renamed.value) == (
        'source "rows": its offset in the checkpoint cannot be read as one that lowmark wrote for this source: it is '
        'of the source "others". Hint: read it by that name, or start with a new checkpoint.'
    )
    with pytest.raises(UnreadableOffset, match='source "rows": its offset in the checkpoint cannot be read'):
        planner.plan(BatchOffset("rows", 3, "run", {}, "x"), None)
    with pytest.raises(UnreadableOffset, match="expected neighbours"):
        planner.tasks(BatchOffset("rows", 1), BatchOffset("rows", 3))


def test_an_enumerator_that_never_finds_anything_fails_the_query_with_its_cause(make: Any) -> None:
    class Broken(Rows):
        def discover(self) -> Sequence[SourceSplit]:
            raise OSError("no such topic")

    with pytest.raises(Exception, match="no such topic") as failed:
        make(Broken(), failover=FailoverPolicy(backoff="1 millisecond")).plan(BatchOffset("rows"), None)
    assert "rows" in str(failed.value)
    assert isinstance(failed.value, SourceFailed)


def test_splits_found_later_are_in_the_next_offset_even_before_they_have_rows(make: Any) -> None:
    source = Rows(a=range(10))
    source.discover_every = "10 milliseconds"  # type: ignore[assignment]
    planner = make(source)
    end = planner.plan(planner.initial(), None)
    source.times["b"] = []
    found = threading.Event()
    deadline = 2_000
    while (later := planner.plan(end, None)) == end and deadline:
        found.wait(0.005)
        deadline -= 1

    assert later.positions == {"a": 10, "b": 0}
    assert later.checkpoint == 2


@dataclass(frozen=True, slots=True)
class Unasked:
    """The splits that a `Pulled` enumerator has not assigned yet."""

    names: tuple[str, ...]


class PullEnumerator(SplitEnumerator[SourceSplit, Unasked]):
    """Gives a split per request of a reader, as Flink's file sources do."""

    def __init__(self, context: SplitEnumeratorContext[SourceSplit], names: Sequence[str]) -> None:
        self.context, self.names = context, list(names)

    def start(self) -> None:
        pass

    def add_reader(self, subtask: int) -> None:
        pass

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        if self.names:
            self.context.assign_splits(SplitsAssignment({subtask: [SourceSplit(split_id=self.names.pop(0))]}))

    def snapshot_state(self, checkpoint_id: int) -> Unasked:
        return Unasked(tuple(self.names))


class Pulled(Rows):
    """A source that assigns splits only on request."""

    @property
    def enumerator_state_serializer(self) -> Any:
        return DataclassSerializer(Unasked)

    def create_enumerator(self, context: SplitEnumeratorContext[SourceSplit]) -> Any:
        self.enumerator = PullEnumerator(context, sorted(self.times))
        return self.enumerator

    def restore_enumerator(self, context: SplitEnumeratorContext[SourceSplit], state: Any) -> Any:
        self.enumerator = PullEnumerator(context, state.names)
        return self.enumerator


@pytest.mark.parametrize("available_now", [True, False])
def test_an_enumerator_that_waits_to_be_asked_gives_all_its_splits(make: Any, available_now: bool) -> None:
    source = Pulled(a=[1, 2], b=[1, 2], c=[2, 3], d=[3])
    planner = make(source, slots=2)
    if available_now:
        planner.stop_at_present()
    batches = run(planner, source, planner.initial(), None)

    assert batches == [{"a": [1, 2], "b": [1, 2], "c": [2, 3], "d": [3]}]


def test_what_an_enumerator_that_waits_to_be_asked_finds_later_is_asked_for(make: Any) -> None:
    source = Pulled(a=[1])
    planner = make(source)
    first = planner.plan(planner.initial(), None)
    source.times["b"] = [5]
    source.enumerator.names.append("b")
    end = first
    while "b" not in (read := rows_between(planner, source, first, end)):
        planner.committed(end)
        first, end = end, planner.plan(end, None)

    assert read == {"b": [5]}


# -- events between enumerator and readers, and readers that decide the end of a batch


@dataclass(frozen=True)
class Told(SourceEvent):
    what: str


class Talking(Rows):
    """A source whose enumerator answers every event."""

    event_serializer = DataclassSerializer(Told)

    def create_enumerator(self, context: Any) -> Any:
        enumerator: Any = super().create_enumerator(context)

        def answer(subtask: int, event: SourceEvent) -> None:
            assert isinstance(event, Told)
            context.send_event_to_source_reader(subtask, Told(f"{event.what} heard"))

        enumerator.handle_source_event = answer
        return enumerator


def test_events_go_both_ways(make: Any) -> None:
    source, peer = Talking(a=range(30)), Peer()
    planner = make(source, peer)
    end = planner.plan(planner.initial(), 10)
    event = DataclassSerializer(Told)
    peer.guidance = Guidance(events=[(0, event.version, event.serialize(Told("gap")))])
    events: list[SourceEvent] = []
    for _ in range(2):  # the answer comes from the enumerator's own thread: in this batch or the next
        start, end = end, planner.plan(end, 5)
        peer.guidance = Guidance()
        planner._present.enumeration.coordinator.run("wait for the enumerator", lambda: None)
        events += [event for task in planner.tasks(start, end) for event in task.events]
    start, end = end, planner.plan(end, 5)
    events += [event for task in planner.tasks(start, end) for event in task.events]

    assert events == [Told("gap heard")]


def test_who_asks_twice_what_a_batch_reads_gets_one_answer(make: Any) -> None:
    source, peer = Talking(a=range(30)), Peer()
    planner = make(source, peer)
    start = planner.plan(planner.initial(), 10)
    planner._present.enumeration.slots.source_event(0, Told("hint"))
    end = planner.plan(start, 10)

    assert [task.events for task in planner.tasks(start, end)] == [(Told("hint"),)]
    assert planner.tasks(start, end) == planner.tasks(start, end)


class InducedReader(ExternallyInducedSourceReader[SourceSplit]):
    """A reader whose system takes a checkpoint after every seven rows of each split."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self.ends, self.splits, self.last = ends, dict[str, SourceSplit](), 100
        self.completed: list[int] = []

    def start(self) -> None: ...
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        raise AssertionError("on the driver nothing is read")

    def is_available(self) -> Future[None]:
        raise AssertionError("on the driver nothing is read")

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.splits |= {split.split_id: split for split in splits}

    def notify_no_more_splits(self) -> None: ...
    def close(self) -> None: ...
    def should_trigger_checkpoint(self) -> int | None:
        if all(split.start >= self.ends[name] for name, split in self.splits.items()):
            return None
        self.last += 10
        return self.last

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed.append(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        moved = {n: replace(s, start=min(s.start + 7, self.ends[n])) for n, s in self.splits.items()}
        self.splits = moved
        return list(moved.values())


class Induced(Rows):
    externally_induced = True

    def create_reader(self, context: SourceReaderContext) -> InducedReader:
        return InducedReader({name: len(times) for name, times in self.times.items()})


def test_a_reader_that_decides_when_a_checkpoint_is_cuts_the_batches(make: Any) -> None:
    source = Induced(a=range(10), b=range(20))
    batches = run(make(source), source, BatchOffset("rows"), None)

    assert [{name: len(rows) for name, rows in batch.items()} for batch in batches] == [
        {"a": 7, "b": 7},
        {"a": 3, "b": 7},
        {"b": 6},
    ]


class EndingReader(InducedReader):
    """A reader whose system seals a split after its discovery, at its last row."""

    def should_trigger_checkpoint(self) -> int | None:
        self.last += 10
        return self.last if self.splits else None

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        moved = super().snapshot_state(checkpoint_id)
        ended = [replace(each, stop=self.ends[each.split_id]) for each in moved]
        over = {each.split_id for each in ended if each.start == each.stop}
        self.splits = {name: split for name, split in self.splits.items() if name not in over}
        return ended


class Ending(Induced):
    def create_reader(self, context: SourceReaderContext) -> InducedReader:
        return EndingReader({name: len(times) for name, times in self.times.items()})


def test_a_split_whose_end_becomes_known_finishes_where_a_reader_decides(make: Any) -> None:
    source = Ending(a=range(10), b=range(20))
    planner = make(source)
    at, live = planner.initial(), []
    while (end := planner.plan(at, None)) != at:
        at = end
        live.append(dict(at.positions))
    assert live == [{"a": 7, "b": 7}, {"b": 14}, {}], "a split is not live once it stands at its end"


def test_a_split_that_was_assigned_while_a_batch_was_written_is_given_to_a_reader_that_decides(make: Any) -> None:
    source = Induced(a=range(20))
    planner = make(source)
    first = planner.plan(planner.initial(), None)
    late = SourceSplit(split_id="late")
    planner._present.live["late"] = offset_module.Placed(0, late)  # as `_write` does with splits discovered in between
    planner._present.extent._induced._reader.ends["late"] = 5
    second = planner.plan(first, None)
    assert second.positions == {"a": 14, "late": 5}


def test_a_run_of_all_there_is_ends_where_a_reader_decides(make: Any) -> None:
    source = Induced(a=range(10))
    planner = make(source)
    planner.stop_at_present()
    at = planner.plan(planner.initial(), None)
    source.times["a"] = list(range(1_000))
    planner._present.extent._induced._reader.ends["a"] = 1_000
    ends = []
    while (end := planner.plan(at, None)) != at:
        at = end
        ends.append(at.positions["a"])
    assert ends == [14], "the first checkpoint behind what was there when the run began"


def test_a_planner_hears_where_splits_stand_when_a_batch_is_committed(make: Any) -> None:
    heard: list[dict[str, int]] = []

    class HearingPlanner(SimplePlanner[SourceSplit]):
        def notify_checkpoint_complete(self, splits: Sequence[SourceSplit]) -> None:
            heard.append({split.split_id: split.start for split in splits})

    class Hearing(Rows):
        def create_planner(self) -> HearingPlanner:
            return HearingPlanner(self)

    planner = make(Hearing(a=range(10)))
    first = planner.plan(planner.initial(), 4)
    planner.plan(first, None)
    planner.committed(first)
    assert heard == [dict(first.positions)], "of the batch, and not of what was planned since"


def test_a_reader_that_decides_hears_its_own_ids_when_batches_are_committed(make: Any) -> None:
    planner = make(Induced(a=range(20)))
    first = planner.plan(planner.initial(), None)
    second = planner.plan(first, None)
    planner.committed(first)
    assert planner._present.extent._induced._reader.completed == [110]
    planner.committed(second)
    planner.committed(second)
    assert planner._present.extent._induced._reader.completed == [110, 120]
