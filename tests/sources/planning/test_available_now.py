"""A run that ends with what is there (Trigger.AvailableNow) reads all that is there, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.kit.discovery import DiscoveringEnumerator
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance
from lowmark.sources.planning.planner import BatchPlanner, PlanningFailed

from tests.sources.planning.test_batches import Peer, Rows, run

WAIT_SECONDS = 0.3


class Slow(Rows):
    """A source that waits at a place until a planner asks for ends, or for a while."""

    def __init__(self, **times: Sequence[int]) -> None:
        super().__init__(**times)
        self.planned = threading.Event()

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        self.planned.set()
        return super().latest(splits)


class SlowToFind(Slow):
    def discover(self) -> Sequence[SourceSplit]:
        self.planned.wait(WAIT_SECONDS)
        return super().discover()


class Requested(DiscoveringEnumerator[SourceSplit]):
    requested = threading.Event()

    def handle_split_request(self, subtask: int, requester_hostname: str | None) -> None:
        self.requested.set()


class SlowToHandOut(Slow):
    """Finds splits after readers have asked for some, and then hands them out one by one."""

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        requested = threading.Event()

        def discover() -> Sequence[SourceSplit]:
            assert requested.wait(20)
            return self.discover()

        def assign(name: str, subtasks: int) -> int:
            self.planned.wait(WAIT_SECONDS)
            return sorted(self.times).index(name) % subtasks

        made = Requested(context, discover, period_seconds=None, assign=assign, known=state)
        made.requested = requested
        return made


class SlowToPrepare(Slow):
    """Completes splits slowly, and looks for splits again meanwhile."""

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        def prepare(new: Sequence[SourceSplit], late: bool) -> Sequence[SourceSplit]:
            self.planned.wait(WAIT_SECONDS)
            return new

        return DiscoveringEnumerator(context, self.discover, period_seconds=0.01, known=state, prepare=prepare)


@dataclass
class Guides(Peer):
    """A peer with an answer for each time that it is asked."""

    answers: list[Guidance] = field(default_factory=list)

    def ask(self, run: str) -> Guidance:
        assert self.answers, "it still waits for its group"
        return self.answers.pop(0)


@pytest.fixture
def planner_of() -> Iterator[Callable[..., BatchPlanner[Any]]]:
    made: list[BatchPlanner[Any]] = []

    def make(source: Rows, peer: Peer | None = None, **options: Any) -> BatchPlanner[Any]:
        planner = BatchPlanner(source, name="rows", options=PlanOptions(**options), now_us=lambda: 10**12, peer=peer)
        made.append(planner)
        return planner

    yield make
    for planner in made:
        planner.close()


@pytest.mark.parametrize("told_by_spark", [True, False])
def test_splits_that_came_between_two_runs_are_read_by_the_second(planner_of: Any, told_by_spark: bool) -> None:
    source = SlowToFind(a=range(10))
    with closing(planner_of(source)) as first:
        end = first.plan(first.initial(), None)
    source.times |= {"a": list(range(15)), "b": list(range(7))}
    source.planned.clear()
    planner = planner_of(source, Peer(Guidance(available_now=not told_by_spark)))
    if told_by_spark:
        planner.stop_at_present()
    batches = run(planner, source, end, None)

    assert batches == [{"a": list(range(10, 15)), "b": list(range(7))}]


def test_splits_that_are_being_handed_out_are_read(planner_of: Any) -> None:
    source = SlowToHandOut(a=range(3), b=range(4), c=range(5))
    planner = planner_of(source, slots=3)
    planner.stop_at_present()

    assert run(planner, source, planner.initial(), None) == [{"a": [0, 1, 2], "b": [0, 1, 2, 3], "c": [0, 1, 2, 3, 4]}]


def test_splits_that_are_being_prepared_are_read(planner_of: Any) -> None:
    source = SlowToPrepare(a=range(3), b=range(4))
    planner = planner_of(source)
    planner.stop_at_present()

    assert run(planner, source, planner.initial(), None) == [{"a": [0, 1, 2], "b": [0, 1, 2, 3]}]


class Silent(Rows):
    """A source in which one split gives no answer to some questions, counted from 0."""

    silent: range = range(0)

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        ends = dict(super().latest(splits))
        if self.asked - 1 in self.silent:
            ends.pop("b", None)
        return ends


@pytest.mark.parametrize("silent", [range(6), range(1, 6), range(3, 9)])
def test_a_split_that_does_not_answer_for_a_while_is_read_before_the_run_ends(planner_of: Any, silent: range) -> None:
    source = Silent(a=range(4), b=range(6))
    source.silent = silent
    planner = planner_of(source)
    planner.stop_at_present()
    batches = run(planner, source, planner.initial(), 3)
    read: dict[str, list[int]] = {}
    for batch in batches:
        for name, rows in batch.items():
            read.setdefault(name, []).extend(rows)

    assert read == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize(("more", "ended"), [([6, 7], False), ([6, 7], True), ([], True)])
def test_a_split_that_answers_only_the_second_question_of_a_run_is_read(
    planner_of: Any, more: list[int], ended: bool
) -> None:
    source = Silent(a=range(4), b=range(6))
    with closing(planner_of(source)) as first:
        start = first.plan(first.initial(), None)
    source.times["b"] += more
    source.ended.update("b" * ended)
    source.silent = range(source.asked, source.asked + 1)
    planner = planner_of(source, timeout_seconds=0.2)
    planner.stop_at_present()
    batches = run(planner, source, start, None)

    assert [rows for batch in batches for rows in batch.values()] == [more] * bool(more)
    assert planner._present.extent.unfinished([]) == set()


class Split(Silent):
    """A source in which "c" carries on "b", which has ended."""

    def discover(self) -> Sequence[SourceSplit]:
        return [replace(split, parents=("b",) if split.split_id == "c" else ()) for split in super().discover()]


def test_a_split_is_read_though_its_parent_does_not_answer_for_a_while(planner_of: Any) -> None:
    source = Split(a=range(4), b=[], c=range(3))
    source.ended, source.silent = {"b"}, range(1, 4)
    planner = planner_of(source)
    planner.stop_at_present()

    assert run(planner, source, planner.initial(), None) == [{"a": [0, 1, 2, 3]}, {"c": [0, 1, 2]}]


def test_a_run_fails_rather_than_end_without_a_split_that_does_not_answer(planner_of: Any) -> None:
    source = Silent(a=range(4), b=range(6))
    source.silent = range(1_000_000)
    planner = planner_of(source, timeout_seconds=0.2)
    planner.stop_at_present()
    end = planner.plan(planner.initial(), None)
    assert end.positions == {"a": 4, "b": 0}

    with pytest.raises(PlanningFailed, match=r"1 split, such as 'b', gave no answer for 0\.2 seconds, and the run"):
        planner.plan(end, None)


def test_a_split_that_was_read_to_where_the_run_ends_need_not_answer(planner_of: Any) -> None:
    source = Silent(a=range(4), b=range(6))
    planner = planner_of(source)
    planner.stop_at_present()
    end: BatchOffset = planner.plan(planner.initial(), None)
    source.silent = range(1_000_000)

    assert planner.plan(end, None) == end


@pytest.mark.parametrize("guidance", [Guidance(paused=frozenset("a")), Guidance(hold=True)])
def test_a_run_does_not_wait_for_its_group_once_it_has_read_where_it_ends(planner_of: Any, guidance: Guidance) -> None:
    source = Rows(a=range(100, 110), b=range(10))
    source.searchable = False
    planner = planner_of(source, Guides(answers=[Guidance(), guidance, guidance]))
    planner.stop_at_present()
    end = planner.plan(planner.initial(), None)
    source.times["a"] += [110, 111]

    assert end.positions == {"a": 10, "b": 10}
    assert planner.plan(end, None) == end


@pytest.mark.parametrize("guidance", [Guidance(paused=frozenset("a")), Guidance(hold=True)])
def test_a_run_waits_for_its_group_until_it_has_read_where_it_ends(planner_of: Any, guidance: Guidance) -> None:
    source = Rows(a=range(10))
    planner = planner_of(source, Guides(answers=[Guidance(), guidance, guidance, Guidance()]))
    planner.stop_at_present()
    end = planner.plan(planner.initial(), 4)

    assert 0 < end.positions["a"] < 10
    assert planner.plan(end, None).positions == {"a": 10}
