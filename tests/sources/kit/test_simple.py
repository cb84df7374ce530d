"""Methods that `SimpleSource` derives, and its enumerator, which discovers splits periodically."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lowmark.sources import (
    Boundedness,
    Fetched,
    SimpleSource,
    SourceSplit,
    SplitEnd,
    SplitsAddition,
    SplitsRemoval,
    read_slices,
)
from lowmark.sources.kit.discovery import (
    DiscoveredSplits,
    DiscoveringEnumerator,
    DiscoveryFailed,
    EvenSpread,
    PackedSerializer,
)
from lowmark.sources.kit.simple import Rows, SimpleSplitReader
from lowmark.sources.reading.checked_reader import BrokenSplitReader
from lowmark.sources.serializer import DataclassSerializer, UnreadableState
from lowmark.sources.testing import ManualEnumeratorContext
from lowmark.watermark import InvalidDuration

from tests.sources.numbered import ROWS, Numbered

A, B, C = (SourceSplit(split_id=name) for name in "abc")
SCHEMA = pa.schema([("value", pa.int64())])


# -- SimpleSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(SourceSplit):
    owner: str = ""


class Growing(SimpleSource[Table]):
    """A source with one split that tests let grow."""

    split_type = Table
    schema = SCHEMA
    discover_every: str | None = "30 seconds"

    def __init__(self, ends: dict[str, SplitEnd] | None = None) -> None:
        self.ends = ends if ends is not None else {}
        self.open = 0

    def discover(self) -> Sequence[Table]:
        return [Table(split_id=name, owner="me") for name in self.ends]

    def latest(self, splits: Sequence[Table]) -> Mapping[str, SplitEnd]:
        return {split.split_id: self.ends[split.split_id] for split in splits if split.split_id in self.ends}

    def read(self, split: Table) -> Iterator[Rows]:
        assert split.stop is not None
        self.open += 1
        try:
            for value in range(split.start, split.stop):
                yield pa.record_batch({"value": [value]}, schema=SCHEMA)
        finally:
            self.open -= 1


def test_splits_of_an_own_type_survive_a_checkpoint() -> None:
    source = Growing({"a": SplitEnd(position=1)})
    (split,) = source.discover()
    data = source.split_serializer.serialize(split)
    assert source.split_serializer.deserialize(1, data) == Table(split_id="a", owner="me")

    state = DiscoveredSplits(discovered=True, assigned=("x",), pending=(split,))
    written = source.enumerator_state_serializer.serialize(state)
    assert source.enumerator_state_serializer.deserialize(1, written) == state


def test_it_is_bounded_or_looks_again_as_it_says() -> None:
    def started(source: Growing) -> ManualEnumeratorContext[Table]:
        context = ManualEnumeratorContext[Table]()
        source.create_enumerator(context).start()
        return context

    source = Growing()
    unbounded = source.boundedness
    assert unbounded is Boundedness.CONTINUOUS_UNBOUNDED
    assert started(source).periods == [30.0]
    source.discover_every = None
    assert started(source).periods == []
    source.bounded = True
    assert source.boundedness is Boundedness.BOUNDED


def test_a_period_of_no_length_is_refused_by_its_name() -> None:
    source = Growing()
    source.discover_every = "0 seconds"
    with pytest.raises(InvalidDuration, match=r"discover_every: '0 seconds' is not a duration: .* None to look once"):
        source.create_enumerator(ManualEnumeratorContext[Table]())


def test_the_planner_asks_the_source_and_keeps_to_the_stop() -> None:
    planner = Numbered().create_planner()
    end = SplitEnd(position=ROWS)
    assert planner.latest([A]) == {"a": end}
    assert planner.latest([replace(A, stop=7)]) == {"a": SplitEnd(position=7, finished=True)}
    assert planner.latest([replace(A, stop=ROWS)]) == {"a": SplitEnd(position=ROWS, finished=True)}
    assert planner.latest([replace(A, stop=ROWS + 1)]) == {"a": end}
    assert [planner.after_rows(replace(A, start=5), rows, end) for rows in (0, 1, 7, 99)] == [6, 6, 12, ROWS]
    assert planner.rows_before(replace(A, start=5), 9) == 4
    assert planner.find_time([A], 3_000_000) == {"a": 3}
    assert Growing().create_planner().find_time([], 0) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "Growing.latest returned None, expected a mapping from the ids of splits to SplitEnds"),
        ([SplitEnd(1)], "Growing.latest returned .*, expected a mapping"),
        ({"a": None}, "Growing.latest returned None for split 'a', expected a SplitEnd. Hint: leave out"),
        ({"a": 7.0}, "Growing.latest returned 7.0 for split 'a', expected a SplitEnd"),
    ],
)
def test_an_end_that_is_none_is_told_in_words(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Growing()
    monkeypatch.setattr(source, "latest", lambda splits: given)
    with pytest.raises(TypeError, match=said):
        source.create_planner().latest([Table(split_id="a")])


def test_splits_are_read_one_after_the_other_up_to_their_stops() -> None:
    reader = Growing().create_split_reader()
    assert reader.fetch() == Fetched()
    reader.handle_splits_changes(
        SplitsAddition((Table(split_id="a", start=1, stop=3), Table(split_id="b", stop=1), Table(split_id="c", stop=0)))
    )
    with closing(reader):
        fetches = [reader.fetch() for _ in range(6)]
        assert reader.fetch() == Fetched()

    rows = [(part.split_id, part.rows["value"].to_pylist()) for each in fetches for part in each.batches]
    assert rows == [("a", [1]), ("a", [2]), ("b", [0])]
    assert [sorted(each.finished_splits) for each in fetches] == [[], [], ["a"], [], ["b"], ["c"]]


def test_a_gap_at_the_end_of_a_range_is_passed() -> None:
    class Gaps(Growing):
        def read(self, split: Table) -> Iterator[Rows]:
            return iter(())

    reader = Gaps().create_split_reader()
    reader.handle_splits_changes(SplitsAddition((Table(split_id="a", stop=5),)))
    assert reader.fetch().finished_splits == {"a"}


@pytest.mark.parametrize(
    "leave",
    [
        lambda reader: reader.close(),
        lambda reader: reader.handle_splits_changes(SplitsRemoval((Table(split_id="a"),))),
    ],
)
def test_what_is_left_in_the_middle_is_closed(leave: Callable[[SimpleSplitReader[Table]], None]) -> None:
    source = Growing({"a": SplitEnd(position=3)})
    reader = SimpleSplitReader(source)
    reader.handle_splits_changes(SplitsAddition((Table(split_id="a", stop=3),)))
    reader.fetch()
    assert source.open == 1
    leave(reader)
    assert source.open == 0


class Yields(SimpleSource[SourceSplit]):
    """A source that yields given batches."""

    schema = SCHEMA

    def __init__(self, *rows: Rows) -> None:
        self.rows = rows

    def discover(self) -> Sequence[SourceSplit]:
        return [A]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {}

    def read(self, split: SourceSplit) -> Iterator[Rows]:
        return iter(self.rows)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(numbers, pa.int64())}, schema=SCHEMA)


def positions(source: Yields, start: int, stop: int) -> list[tuple[int, int]]:
    return [(part.rows.num_rows, part.position) for part in read_slices(source, [replace(A, start=start, stop=stop)])]


def test_a_batch_alone_counts_a_position_a_row() -> None:
    assert positions(Yields(batch(1, 2), batch(3)), 5, 8) == [(2, 7), (1, 8)]


def test_a_batch_with_a_position_may_leave_gaps() -> None:
    assert positions(Yields((batch(1, 2), 40)), 5, 99) == [(2, 40)]
    assert positions(Yields(), 5, 99) == []


def test_a_table_is_one_step_in_several_batches() -> None:
    table = pa.Table.from_batches([batch(1, 2), batch(3)])
    assert positions(Yields((table, 6), (table.slice(0, 0), 7)), 5, 7) == [(2, 5), (1, 6)]


def test_rows_that_are_missing_are_an_error() -> None:
    with pytest.raises(BrokenSplitReader, match="ended at position 6; expected rows up to 8, as no gaps were given"):
        positions(Yields(batch(1)), 5, 8)


def test_a_split_whose_reading_failed_is_never_called_finished() -> None:
    class Breaks(Yields):
        def read(self, split: SourceSplit) -> Iterator[Any]:
            yield batch(1)
            raise OSError("no route to host")

    reader = SimpleSplitReader(Breaks())
    reader.handle_splits_changes(SplitsAddition((replace(A, start=5, stop=8),)))
    assert [rows.position for rows in reader.fetch().batches] == [6]
    with pytest.raises(OSError, match="no route"):
        reader.fetch()
    with pytest.raises(BrokenSplitReader, match="asked to go on after an error"):
        reader.fetch()


@pytest.mark.parametrize("given", [pa.table({"n": [1, 2]}), pa.table({"n": [1], "m": [2]}), [{"n": 1}], (1, 2), None])
def test_what_is_no_batch_and_no_pair_of_rows_and_position_is_named(given: Any) -> None:
    class Wrong(Growing):
        def read(self, split: Table) -> Iterator[Any]:
            yield given

    with pytest.raises(BrokenSplitReader, match=f"gave a {type(given).__name__}.* expected a RecordBatch, or rows and"):
        list(read_slices(Wrong(), [Table(split_id="a", stop=2)]))


# -- DiscoveringEnumerator


class Found:
    """Splits for a discovery, and the enumerator that runs it."""

    def __init__(self, *splits: SourceSplit, readers: int = 2, known: Any = None, **options: Any) -> None:
        self.splits: list[SourceSplit] = list(splits)
        self.error: Exception | None = None
        self.context = ManualEnumeratorContext[SourceSplit](num_subtasks=readers)
        options = {"period_seconds": 60.0, "source": "Tables", **options}
        self.enumerator = DiscoveringEnumerator(self.context, self.discover, known=known, **options)

    def discover(self) -> Sequence[SourceSplit]:
        if self.error is not None:
            raise self.error
        return list(self.splits)

    def start(self, *readers: int) -> Found:
        self.enumerator.start()
        for subtask in readers:
            self.register(subtask)
        self.context.run_async()
        return self

    def register(self, subtask: int) -> None:
        self.context.register(subtask)
        self.enumerator.add_reader(subtask)

    @property
    def assigned(self) -> list[str]:
        return [split.split_id for _, split in self.context.assigned]

    def metric(self, name: str) -> float:
        return self.context.metric_group.values()[name]


@pytest.mark.parametrize(("splits", "readers"), [(100, 4), (24, 16), (16, 16), (5, 16), (1_000, 7)])
def test_splits_are_spread_evenly_and_in_every_process_alike(splits: int, readers: int) -> None:
    many = [SourceSplit(split_id=f"t/{number}") for number in range(splits)]
    found, again = (Found(*many, readers=readers).start(*range(readers)) for _ in range(2))
    filled = Counter(subtask for subtask, _ in found.context.assigned)
    assert {filled[subtask] for subtask in range(readers)} <= {splits // readers, -(-splits // readers)}
    assert found.context.assigned == again.context.assigned


def test_splits_that_are_found_one_by_one_are_spread_evenly_also_when_readers_come_late() -> None:
    found = Found(readers=8).start(0, 3)
    for number in range(40):
        found.splits.append(SourceSplit(split_id=f"t/{number}"))
        found.context.next_period()
    for subtask in (1, 2, 4, 5, 6, 7):
        found.register(subtask)
    filled = Counter(subtask for subtask, _ in found.context.assigned)

    assert filled == dict.fromkeys(range(8), 5)


def test_processes_that_begin_anew_for_every_split_do_not_begin_with_the_same_reader() -> None:
    owners = Counter(EvenSpread().owner(f"t/{number}", 8) for number in range(400))
    assert set(owners) == set(range(8))
    assert max(owners.values()) < 2 * 400 / 8


def test_a_split_waits_for_its_reader() -> None:
    found = Found(A, B, readers=2, assign=lambda name, count: "ab".index(name) % count).start(0)
    assert found.assigned == ["a"]
    assert (found.metric("unassigned_splits"), found.metric("known_splits")) == (1, 2)
    found.register(1)
    assert found.context.assigned == [(0, A), (1, B)]
    assert found.metric("unassigned_splits") == 0


def test_with_more_or_fewer_readers_what_waits_goes_to_others() -> None:
    found = Found(A, B, readers=2, assign=lambda name, count: "ab".index(name) % count).start(0)
    found.context.num_subtasks = 1
    found.register(0)
    assert found.context.assigned == [(0, A), (0, B)]


def test_only_new_splits_are_assigned_later() -> None:
    found = Found(A, readers=1).start(0)
    assert found.context.periods == [60.0]
    assert found.metric("discoveries") == 1
    found.splits = [B, A]
    found.context.next_period()
    found.context.next_period()
    assert found.assigned == ["a", "b"]
    assert found.metric("discoveries") == 3


def test_before_the_first_discovery_nothing_is_said() -> None:
    found = Found(A, readers=1)
    found.enumerator.start()
    found.register(0)
    assert found.metric("discoveries") == 0
    assert found.enumerator.snapshot_state(1) == DiscoveredSplits()
    found.context.unregister(0)
    found.context.run_async()
    assert found.enumerator.snapshot_state(2) == DiscoveredSplits(discovered=True, pending=(A,))


def test_without_splits_discovery_has_still_been() -> None:
    found = Found(readers=1).start(0)
    assert found.metric("discoveries") == 1
    assert found.enumerator.snapshot_state(1).discovered


def test_an_end_that_splits_keep_is_the_same_after_a_restart() -> None:
    state = Found(A, bounded=True, end="noon", readers=1).start(0).enumerator.snapshot_state(1)
    assert Found(A, bounded=True, end="noon", known=state, readers=1).start(0).assigned == []
    with pytest.raises(UnreadableState) as refused:
        Found(A, end="None", known=state)
    assert str(refused.value) == (
        "Tables: the checkpoint has the end noon, and the source is given None. Hint: give the end as before (stop=), "
        "because splits keep theirs, or start with a new checkpoint, whose start= says where this one ended."
    )
    Found(A, end="None", known=replace(state, discovered=False))  # no split has an end yet


def test_an_end_of_many_positions_is_told_apart_and_takes_little_room() -> None:
    many = ", ".join(f"orders/{number}: 1" for number in range(1_000))
    state = Found(A, end=many, readers=1).start(0).enumerator.snapshot_state(1)
    assert len(str(state.end)) < 250
    Found(A, end=many, known=state)
    with pytest.raises(UnreadableState, match=r"orders/0: 1, .*\.\.\. \(.*\), and the source is given orders/0: 1, "):
        Found(A, end=f"{many}0", known=state)


def test_the_state_restores_what_was_known() -> None:
    first = Found(A, B, C, readers=2, assign=lambda name, _: "abc".index(name) % 2).start(1)
    state = first.enumerator.snapshot_state(3)
    assert state == DiscoveredSplits(discovered=True, assigned=("b",), pending=(A, C))
    assert first.enumerator.snapshot_state(4) is state, "nothing changed, so nothing is made anew"

    later = SourceSplit(split_id="d")
    second = Found(A, B, C, later, readers=1, known=state).start(0)
    assert second.assigned == ["a", "c", "d"]
    assert second.metric("discoveries") == 1


def test_the_state_is_small_and_one_for_equal_values() -> None:
    state = DiscoveredSplits[SourceSplit](assigned=tuple(f"day=2026-01-01/part-{n:05}.parquet" for n in range(10_000)))
    serializer = PackedSerializer(DiscoveredSplits[SourceSplit])
    data = serializer.serialize(state)
    assert len(data) < 40_000
    assert serializer.deserialize(1, data) == state
    for version, wrong in ((2, data), (1, data[:-3]), (1, b""), (1, b"x" * 9)):
        with pytest.raises(ValueError, match="DiscoveredSplits"):
            serializer.deserialize(version, wrong)


def test_a_discovery_that_fails_is_repeated_and_fails_in_the_end() -> None:
    found = Found(A, readers=1, max_failures=3).start(0)
    found.error = ConnectionError("away")
    found.context.next_period()
    found.context.next_period()
    assert found.metric("discovery_failures") == 2
    found.error, found.splits = None, [A, B]
    found.context.next_period()
    assert found.assigned == ["a", "b"]

    found.error = ConnectionError("away")
    found.context.next_period()
    found.context.next_period()
    with pytest.raises(DiscoveryFailed) as failed:
        found.context.next_period()
    assert str(failed.value) == (
        "Tables: cannot discover splits, 3 times in a row: ConnectionError: away. Hint: check that the system can be "
        "reached and what it is asked for exists; the query goes on from its checkpoint."
    )
    assert failed.value.__cause__ is found.error
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)  # noqa: TID251  # our own


@pytest.mark.parametrize("options", [{}, {"period_seconds": None}, {"bounded": True}])
def test_a_first_discovery_that_fails_fails_at_once(options: dict[str, Any]) -> None:
    found = Found(A, readers=1, **options)
    found.error = ConnectionError("refused")
    with pytest.raises(DiscoveryFailed, match="cannot discover splits, at the first attempt: ConnectionError: refused"):
        found.start(0)


def test_a_split_that_is_listed_twice_is_an_error() -> None:
    with pytest.raises(DiscoveryFailed, match="split 'a' is listed twice"):
        Found(A, B, A, readers=1).start(0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((A for _ in "a"), "a generator was returned, expected a list"),
        ({"a": A}, "'a' is listed, expected a SourceSplit"),
        ([SourceSplit(split_id=7)], "split_id=7"),  # type: ignore[arg-type]
        ([SourceSplit(split_id="a", start=np.int64(3))], r"int\(\) make Python's own"),  # type: ignore[arg-type]
        ([SourceSplit(split_id="a", parents=("b"))], 'a tuple of one id is \\("a",\\)'),  # type: ignore[arg-type]
        ([SourceSplit(split_id=np.str_("a"))], r"str\(\) and int\(\) make Python's own values of numpy's"),
        ([SourceSplit(split_id="a", parents=(np.str_("b"),))], r"str\(\) and int\(\) make"),
        ([SourceSplit(split_id="a", parents=(7,))], "a tuple of such texts as parents"),  # type: ignore[arg-type]
        ([SourceSplit(split_id="a\ud800")], "a text in UTF-8"),
        ([SourceSplit(split_id="a", start=True)], "start=True"),
        ([SourceSplit(split_id="a", stop=True)], "stop=True"),
        ([SourceSplit(split_id="a", start=2**63)], r"whole numbers below 2\*\*63"),
        ([SourceSplit(split_id="a", start=-(2**63) - 1)], r"whole numbers below 2\*\*63"),
        ([SourceSplit(split_id="a", parents=("a",))], r"splits \['a', 'a'\] carry each other on"),
        ([replace(A, parents=("b",)), replace(B, parents=("a",))], "carry each other on, so each would wait"),
        ([SourceSplit(split_id="a", stop=2**70)], r"whole numbers below 2\*\*63"),
    ],
)
def test_an_answer_without_splits_in_it_is_told_in_words(given: Any, said: str) -> None:
    found = Found(A, readers=1)
    found.discover = lambda: given  # type: ignore[method-assign]
    found.enumerator = DiscoveringEnumerator(found.context, found.discover, period_seconds=60.0, source="Tables")
    with pytest.raises(DiscoveryFailed, match=f"Tables: cannot discover splits, at the first attempt: .*{said}"):
        found.start(0)


@pytest.mark.parametrize("parents", [("a",), ["a"], {"a"}, frozenset("a")])
def test_parents_may_also_be_a_list_or_a_set(parents: Any) -> None:
    found = Found(A, SourceSplit(split_id="child", parents=parents), readers=1).start(0)
    [kept] = [split for _, split in found.context.assigned if split.split_id == "child"]
    packed = DataclassSerializer(SourceSplit)
    assert packed.deserialize(packed.version, packed.serialize(kept)) == SourceSplit(split_id="child", parents=("a",))


def test_a_bounded_source_is_looked_through_once() -> None:
    found = Found(A, readers=2, bounded=True, assign=lambda _, __: 0).start(1)
    assert found.context.periods == []
    assert found.context.no_more_splits == {1}
    found.register(0)
    assert found.context.assigned == [(0, A)]
    assert found.context.no_more_splits == {0, 1}

    again = Found(A, B, readers=1, bounded=True, known=found.enumerator.snapshot_state(1)).start(0)
    assert again.assigned == []
    assert again.context.no_more_splits == {0}
    assert again.metric("discoveries") == 1


def test_a_bounded_source_that_was_stopped_before_its_discovery_looks_again() -> None:
    before = Found(A, readers=1, bounded=True)
    before.enumerator.start()
    again = Found(A, readers=1, bounded=True, known=before.enumerator.snapshot_state(1)).start(0)
    assert again.assigned == ["a"]


def test_an_unbounded_source_without_a_period_says_nothing_of_an_end() -> None:
    found = Found(A, readers=1, period_seconds=None).start(0)
    assert found.assigned == ["a"]
    assert found.context.no_more_splits == set()


def test_a_split_that_is_listed_again_is_not_new() -> None:
    found = Found(A, B, C, readers=1).start(0)
    for listed in ([A], [A, B], [A], [A, B, C]):
        found.splits = list(listed)
        found.context.next_period()
    assert found.assigned == ["a", "b", "c"]


def test_new_splits_are_prepared_once_and_late_ones_as_such() -> None:
    asked: list[tuple[list[str], bool]] = []

    def prepare(splits: Sequence[SourceSplit], late: bool) -> Sequence[SourceSplit]:
        asked.append(([split.split_id for split in splits], late))
        return [replace(split, start=100 if late else 5) for split in splits]

    found = Found(A, readers=1, prepare=prepare).start(0)
    found.splits = [A, B]
    found.context.next_period()
    found.context.next_period()
    assert asked == [(["a"], False), (["b"], True)]
    assert [split for _, split in found.context.assigned] == [replace(A, start=5), replace(B, start=100)]

    restored = Found(A, B, C, readers=1, prepare=prepare, known=found.enumerator.snapshot_state(1)).start(0)
    assert asked[-1] == (["c"], True)
    assert restored.assigned == ["c"]


def test_a_preparation_that_fails_is_tried_again_with_the_next_discovery() -> None:
    errors: list[Exception | None] = [None, OSError("x"), None]

    def prepare(splits: Sequence[SourceSplit], late: bool) -> Sequence[SourceSplit]:
        if error := errors.pop(0):
            raise error
        return splits

    found = Found(A, readers=1, prepare=prepare).start(0)
    found.splits = [A, B]
    found.context.next_period()
    assert found.assigned == ["a"]
    assert found.metric("discovery_failures") == 1
    found.context.next_period()
    assert found.assigned == ["a", "b"]

    failing = Found(A, readers=1, prepare=lambda splits, late: 1 / 0)
    with pytest.raises(DiscoveryFailed, match="cannot prepare 1 new splits, at the first attempt: ZeroDivisionError"):
        failing.start(0)


def test_splits_in_preparation_are_not_prepared_twice() -> None:
    asked: list[list[str]] = []

    def prepare(splits: Sequence[SourceSplit], late: bool) -> Sequence[SourceSplit]:
        asked.append([split.split_id for split in splits])
        return splits

    found = Found(A, readers=1, prepare=prepare).start(0)
    found.splits = [A, B]
    found.context._due.extend([*found.context._periodic] * 2)  # two discoveries before the preparation of the first
    found.context.run_async()
    assert asked == [["a"], ["b"]]
    assert found.assigned == ["a", "b"]


def test_ids_are_forgotten_by_their_stamp() -> None:
    stamps = {"a": 10, "b": 50, "c": 100, "d": 10}
    options: dict[str, Any] = {"stamp_of": lambda split: stamps[split.split_id], "keep": 60}
    found = Found(A, B, readers=1, **options).start(0)
    assert found.enumerator.snapshot_state(1).stamps == (10, 50)
    found.splits = [A, B, C]
    found.context.next_period()
    state = found.enumerator.snapshot_state(2)
    assert (state.assigned, state.stamps, state.newest_stamp) == (("b", "c"), (50, 100), 100)

    again = Found(A, B, SourceSplit(split_id="d"), readers=1, known=state, **options).start(0)
    assert again.assigned == [], "a and d are too old to be new"


def stamped(*numbers: int) -> list[SourceSplit]:
    """Return splits whose id ends with their stamp."""
    return [SourceSplit(split_id=f"f-{number:06}") for number in numbers]


def stamp_of(split: SourceSplit) -> int:
    return int(split.split_id.partition("-")[2])


class Stamped(Found):
    """Discovery of stamped splits; the state remembers ten."""

    def __init__(self, *numbers: int, known: Any = None, **options: Any) -> None:
        super().__init__(*stamped(*numbers), readers=1, known=known, stamp_of=stamp_of, remember=10, **options)
        self.start(0)

    def look(self, *numbers: int) -> None:
        self.splits += stamped(*numbers)
        self.context.next_period()

    @property
    def state(self) -> DiscoveredSplits[SourceSplit]:
        serializer = PackedSerializer(DiscoveredSplits[SourceSplit])
        return serializer.deserialize(1, serializer.serialize(self.enumerator.snapshot_state(1)))


def test_the_state_has_the_newest_ids_only_and_nothing_is_assigned_twice() -> None:
    found = Stamped(*range(100))
    for number in range(100, 200, 5):
        found.look(*range(number, number + 5))
        assert 10 <= len(found.state.assigned) <= 12 + 5
        again = Stamped(*range(number + 5), known=found.state)
        assert again.assigned == [], f"after {number}"
        again.look(number + 5)
        assert again.assigned == [f"f-{number + 5:06}"]

    assert len(found.assigned) == len(set(found.assigned)) == 200
    assert found.metric("known_splits") == 200


def test_a_split_with_an_old_stamp_is_new_to_whoever_has_seen_the_others() -> None:
    found = Stamped(*range(0, 200, 2))
    found.look(31)
    found.look()
    assert found.assigned[-1] == "f-000031"
    assert found.assigned.count("f-000031") == 1
    again = Stamped(*range(0, 200, 2), 31, known=found.state)
    again.look(33)
    assert again.assigned == ["f-000033"]


def test_old_splits_that_came_while_the_query_was_stopped_are_told(caplog: pytest.LogCaptureFixture) -> None:
    found = Stamped(*range(0, 2_000, 2))
    assert Stamped(*range(0, 2_000, 2), known=found.state).assigned == []
    assert Stamped(*range(200, 2_000, 2), known=found.state).assigned == []  # some are deleted
    assert caplog.text == ""
    again = Stamped(*range(0, 2_000, 2), 31, 333, known=found.state)
    assert again.assigned == []
    assert "Tables: 2 splits or more came while the query was stopped" in caplog.text
    caplog.clear()
    again.look(335)  # during a run, an unseen old split is new
    again.splits = stamped(*range(0, 2_000, 2), 335, 5_031, 5_333)  # touched
    again.look()
    assert again.assigned == ["f-000335", "f-005031", "f-005333"]
    assert Stamped(*range(0, 2_000, 2), 335, 5_031, 5_333, known=again.state).assigned == []
    assert caplog.text == "", "the state has counted what was not read"


def test_a_split_that_goes_and_comes_again_while_its_process_lives_is_not_read_again() -> None:
    found = Stamped(*range(0, 2_000, 2))
    found.splits = stamped(*range(1_000, 2_000, 2))
    found.look()
    assert found.metric("known_splits") == 500
    found.splits = stamped(*range(0, 2_000, 2))
    found.look()
    assert len(found.assigned) == 1_000
    assert found.metric("known_splits") == 1_000


def test_splits_that_are_listed_only_after_an_empty_list_are_not_read_again() -> None:
    """As the files of a folder that is mounted after the query has begun."""
    state = Stamped(*range(100)).state
    again = Stamped(known=state)
    assert again.state.forgotten == state.forgotten > 0
    again.look(*range(100))
    assert again.assigned == []
    again.look(31_000, 100)
    assert again.assigned == ["f-031000", "f-000100"]


def test_splits_with_an_old_stamp_are_new_after_an_empty_list_if_all_that_was_read_is_deleted() -> None:
    again = Stamped(known=Stamped(*range(100)).state)
    again.look(31)
    again.look(30)
    assert again.assigned == ["f-000031", "f-000030"]


def test_splits_that_were_away_before_a_restart_and_after_it_are_not_read_again() -> None:
    found = Stamped(*range(100))
    found.splits = []
    found.look()
    again = Stamped(known=found.state)
    again.look(*range(100))
    assert again.assigned == []


def test_a_split_that_was_read_and_touched_is_not_read_again_while_its_process_lives() -> None:
    stamps = {number: number for number in range(100)}
    options: dict[str, Any] = {"stamp_of": lambda split: stamps[stamp_of(split)], "remember": 10}
    found = Found(*stamped(*range(100)), readers=1, **options).start(0)
    stamps[3] = 500
    found.context.next_period()
    assert len(found.assigned) == 100


def test_what_waits_for_a_reader_is_never_taken_for_forgotten() -> None:
    found = Found(
        *stamped(*range(50)), readers=2, stamp_of=stamp_of, remember=10, assign=lambda name, _: int(name == "f-000007")
    ).start(0)
    state = found.enumerator.snapshot_state(1)
    assert [split.split_id for split in state.pending] == ["f-000007"]
    assert state.oldest_stamp == 7
    without = replace(state, pending=())  # as if it were found after the snapshot
    assert Stamped(*range(50), known=without).assigned == ["f-000007"]


def test_splits_with_one_stamp_are_all_remembered() -> None:
    found = Found(*stamped(*range(100)), readers=1, stamp_of=lambda _: 0, remember=10).start(0)
    assert len(found.enumerator.snapshot_state(1).assigned) == 100
    assert found.enumerator.snapshot_state(1).oldest_stamp is None


def test_a_state_without_stamps_is_refused_by_a_source_that_has_them() -> None:
    known = DiscoveredSplits[SourceSplit](discovered=True, assigned=("f-000001", "f-000002"))
    with pytest.raises(UnreadableState, match="it has 0 stamps of 2 splits, and Tables needs all"):
        Stamped(1, 2, 3, known=known)


def test_a_split_exactly_at_the_age_limit_is_new_and_its_id_is_kept() -> None:
    found = Found(*stamped(100, 89, 90), readers=1, stamp_of=stamp_of, keep=10).start(0)
    assert found.assigned == ["f-000100", "f-000090"]
    found.splits += stamped(101)
    found.context.next_period()
    assert found.enumerator.snapshot_state(1).assigned == ("f-000100", "f-000101")

    found = Found(*stamped(100, 90), readers=1, stamp_of=stamp_of, keep=10).start(0)
    assert found.enumerator.snapshot_state(1).assigned == ("f-000090", "f-000100")
    found.context.next_period()
    assert found.assigned == ["f-000100", "f-000090"]


def test_a_split_exactly_as_old_as_the_oldest_that_is_remembered_is_told_by_its_id() -> None:
    oldest = Stamped(*range(100)).state.oldest_stamp
    assert oldest is not None
    state = Stamped(*range(100)).state
    another = SourceSplit(split_id=f"g-{oldest:06}")
    again = Found(*stamped(*range(100)), another, readers=1, stamp_of=stamp_of, remember=10, known=state).start(0)
    assert again.assigned == [another.split_id]


def test_stamps_and_how_long_to_keep_them_belong_together() -> None:
    with pytest.raises(ValueError, match="stamp_of and keep or remember: expected both or none"):
        Found(A, keep=5)


def test_a_look_while_the_first_splits_are_prepared_is_not_the_first_discovery() -> None:
    asked: list[tuple[list[str], bool]] = []

    def prepare(splits: Sequence[SourceSplit], late: bool) -> Sequence[SourceSplit]:
        asked.append(([split.split_id for split in splits], late))
        if len(asked) == 1:
            found.splits = [A, B]
            found.context.next_period()
            found.context.next_period()
            assert found.metric("discoveries") == 0
            assert found.enumerator.snapshot_state(1) == DiscoveredSplits(), "a restart prepares them as the first"
        return splits

    found = Found(A, readers=1, prepare=prepare)
    found.start(0)
    assert (found.metric("discoveries"), found.assigned) == (1, ["a"])
    found.context.next_period()
    assert asked == [(["a"], False), (["b"], True)]
    assert found.assigned == ["a", "b"]
