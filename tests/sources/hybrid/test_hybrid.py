"""Hybrid sources: several sources read one after the other."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources import (
    Boundedness,
    Fetching,
    Source,
    SourceEvent,
    SourceSplit,
    SplitEnd,
    SplitPlanner,
    SplitReader,
    SplitsAddition,
    SplitsAssignment,
    SplitsRemoval,
    VersionedSerializer,
)
from lowmark.sources.coordinator import FailoverPolicy, SourceCoordinator, SourceFailed
from lowmark.sources.hybrid import DeferredSource, HybridSource, HybridSplit, InvalidHybrid
from lowmark.sources.hybrid.enumerator import HybridEnumerator
from lowmark.sources.hybrid.planner import HybridPlanner
from lowmark.sources.hybrid.reader import HybridSplitReader
from lowmark.sources.hybrid.succession import DeferredSourceFailed
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator
from lowmark.sources.kit.simple import SimplePlanner, SimpleSource
from lowmark.sources.planning.offset import BatchOffset, BatchState, Placed, UnreadableOffset
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.testing import ManualEnumeratorContext, check_source

from tests.sources.coordinator.coordinating import DEADLINE_SECONDS, Gateway, ListSource, ManualClock, fail_on, settle

NAME: pa.Field[Any] = pa.field("name", pa.string())
NUMBER: pa.Field[Any] = pa.field("number", pa.int64())
AT: pa.Field[Any] = pa.field("at", pa.timestamp("us", "UTC"))
SCHEMA: pa.Schema = pa.schema([NAME, NUMBER, AT])


class Numbers(SimpleSource[SourceSplit]):
    """A source of `splits` splits of `rows` rows, a second apart."""

    def __init__(
        self, name: str, splits: int = 2, rows: int = 10, *, bounded: bool = True, schema: Any = SCHEMA
    ) -> None:
        self.name, self.splits, self.rows, self.bounded = name, splits, rows, bounded
        self.columns: pa.Schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    @property
    def event_time(self) -> str | None:
        return "at"

    def discover(self) -> Sequence[SourceSplit]:
        # four ids, whose hashes spread them over the readers
        return [SourceSplit(split_id=f"{self.name}{4 * number}") for number in range(self.splits)]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {
            each.split_id: SplitEnd(
                position=self.rows if each.stop is None else min(self.rows, each.stop),
                finished=self.bounded or each.stop is not None,
            )
            for each in splits
        }

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        assert split.stop is not None
        numbers = range(split.start, split.stop)
        times = [1_000_000 * number for number in numbers]
        yield pa.record_batch([[split.split_id] * len(numbers), list(numbers), times], schema=self.schema)

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        at = max(0, -(-time_us // 1_000_000))
        return {each.split_id: at if at < self.rows else None for each in splits}


class Driver:
    """A hybrid source's enumerator, on a context that the test controls."""

    def __init__(self, *sources: Source[Any, Any] | DeferredSource, readers: int = 2) -> None:
        self.source = HybridSource(*sources)
        self.context = ManualEnumeratorContext[HybridSplit](num_subtasks=readers)
        self.enumerator = self.source.create_enumerator(self.context)
        self.enumerator.start()
        for subtask in range(readers):
            self.register(subtask)
        self.run()

    def register(self, subtask: int) -> None:
        self.context.register(subtask)
        self.enumerator.add_reader(subtask)

    def run(self) -> None:
        for _ in range(5):
            self.context.run_async()

    @property
    def index(self) -> int:
        return self.enumerator._index

    def ids(self, subtask: int | None = None) -> list[str]:
        return [each.split_id for reader, each in self.context.assigned if subtask in (None, reader)]

    def finish(self, subtask: int) -> None:
        """Finish all splits of the present source that a reader has."""
        mine = [split_id for split_id in self.ids(subtask) if split_id.startswith(f"{self.index}:")]
        self.enumerator.handle_splits_finished(subtask, mine)
        self.run()

    def restored(self) -> Driver:
        """Restore the state as another process does."""
        serializer = self.source.enumerator_state_serializer
        data = serializer.serialize(self.enumerator.snapshot_state(1))
        other = Driver.__new__(Driver)
        other.source = pickle.loads(pickle.dumps(self.source))  # noqa: TID251  # our own bytes
        other.context = ManualEnumeratorContext[HybridSplit](num_subtasks=self.context.num_subtasks)
        state = other.source.enumerator_state_serializer.deserialize(serializer.version, data)
        other.enumerator = other.source.restore_enumerator(other.context, state)
        other.enumerator.start()
        return other


def tagged(*split_ids: str) -> list[HybridSplit]:
    return [HybridSplit.wrap(int(split_id[0]), SourceSplit(split_id=split_id[2:])) for split_id in split_ids]


# -- switching


def test_the_next_source_begins_when_every_reader_has_finished_the_present_one() -> None:
    driver = Driver(Numbers("a"), Numbers("b", bounded=False))
    assert sorted(driver.ids()) == ["0:a0", "0:a4"]
    assert driver.context.is_processing_backlog is True
    assert driver.context.no_more_splits == set()
    assert all(driver.ids(subtask) for subtask in (0, 1))
    driver.finish(0)
    assert driver.index == 0
    driver.finish(1)

    assert driver.index == 1
    assert sorted(driver.ids()) == ["0:a0", "0:a4", "1:b0", "1:b4"]
    assert driver.context.is_processing_backlog is False


def test_a_finished_split_is_heard_twice_without_harm_and_of_another_source_never() -> None:
    driver = Driver(Numbers("a"), Numbers("b"), Numbers("c"))
    driver.enumerator.handle_splits_finished(0, ["0:a0", "0:a0", "1:a4", "1:b4"])
    driver.run()
    assert driver.index == 0
    driver.enumerator.handle_splits_finished(0, ["0:a4"])
    driver.run()

    assert driver.index == 1


def test_an_enumerator_is_closed_once_though_the_next_one_cannot_be_made() -> None:
    class Fails(Numbers):
        def create_enumerator(self, context: Any) -> Any:
            raise OSError("no connection")

    driver, closed = Driver(Numbers("a"), Fails("b")), list[str]()
    before = driver.enumerator._child
    assert before is not None
    before.close = lambda: closed.append("a")  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no connection"):
        driver.enumerator.handle_splits_finished(0, driver.ids())
    driver.enumerator.close()

    assert closed == ["a"]


def test_the_last_source_ends_for_the_readers_too() -> None:
    driver = Driver(Numbers("a"), Numbers("b"))
    driver.finish(0)
    driver.finish(1)

    assert driver.context.no_more_splits == {0, 1}
    assert driver.source.boundedness is Boundedness.BOUNDED


def test_what_the_source_before_still_has_under_way_reaches_nobody() -> None:
    driver, late = Driver(Numbers("a"), Numbers("b", bounded=False)), list[object]()
    old = driver.enumerator._child_context
    assert old is not None
    old.call_async(lambda: late.append("called"), lambda result, error: late.append("handled"))
    old.run_in_coordinator_thread(lambda: late.append("run"))
    driver.enumerator.handle_splits_finished(0, driver.ids())
    assert driver.index == 1
    before = driver.ids()
    old.assign_splits(SplitsAssignment({0: [SourceSplit(split_id="a8")]}))
    old.signal_no_more_splits(0)
    sent = old.send_event_to_source_reader(0, SourceEvent())
    old.set_is_processing_backlog(is_processing_backlog=True)
    driver.run()

    assert late == []
    assert sent.cancelled()
    assert driver.context.events == []
    assert sorted(driver.ids()) == sorted({*before, "1:b0", "1:b4"})
    assert driver.context.no_more_splits == set()
    assert driver.context.is_processing_backlog is False


def test_the_limits_of_each_part_hold_for_all_slices_of_a_task() -> None:
    """One part limits its slices, because each slice opens a connection of a megabyte. The part before has no limit."""
    files, segments, shards = Numbers("files"), Numbers("segments"), Numbers("shards")
    segments.fetching = Fetching(splits_at_once=16, ahead_bytes=1 << 20)
    shards.fetching = Fetching(threads=8)

    assert HybridSource(files, segments).fetching == Fetching(splits_at_once=16, ahead_bytes=1 << 20)
    assert HybridSource(segments, shards).fetching == Fetching(8, 16, 1 << 20)
    assert HybridSource(files, Numbers("others")).fetching == Fetching()


def test_history_is_backlog_whatever_one_part_of_it_says() -> None:
    driver = Driver(Numbers("a"), Numbers("b", bounded=False))
    said = []
    for _ in range(2):
        child_context = driver.enumerator._child_context
        assert child_context is not None
        for flag in (True, False, True):
            child_context.set_is_processing_backlog(is_processing_backlog=flag)
            said.append(driver.context.is_processing_backlog)
        driver.enumerator.handle_splits_finished(0, driver.ids())

    assert said == [True, True, True, True, False, True]


def test_the_next_source_is_told_of_the_readers_that_are_there() -> None:
    pushing = ListSource(4)  # it assigns only when a reader is added
    driver = Driver(Numbers("a", 0, schema=pushing.schema), pushing)

    assert sorted(driver.ids()) == ["1:0", "1:1", "1:2", "1:3"]
    driver.enumerator.handle_splits_finished(1, ["0:3", "1:1"])
    assert pushing.newest.log[-1] == ("handle_splits_finished", 1, "1")


def test_sources_without_splits_are_passed_at_once() -> None:
    driver = Driver(Numbers("a", 0), Numbers("b", 0), Numbers("c"))

    assert driver.index == 2
    assert sorted(driver.ids()) == ["2:c0", "2:c4"]


def test_nothing_is_switched_while_a_reader_is_missing() -> None:
    driver = Driver(Numbers("a", 0), Numbers("b"), readers=2)
    lonely = Driver.__new__(Driver)
    lonely.source, lonely.context = driver.source, ManualEnumeratorContext[HybridSplit](num_subtasks=2)
    lonely.enumerator = driver.source.create_enumerator(lonely.context)
    lonely.enumerator.start()
    lonely.register(0)
    lonely.run()
    assert (driver.index, lonely.index) == (1, 0)
    lonely.register(1)
    lonely.run()

    assert lonely.index == 1


# -- restart and add-back


def test_a_restored_enumerator_goes_on_in_its_source_and_waits_for_what_is_not_finished() -> None:
    driver = Driver(Numbers("a"), Numbers("b"), Numbers("c"))
    driver.finish(0)
    driver.finish(1)
    driver.finish(0)
    other = driver.restored()
    assert other.index == 1
    for subtask in (0, 1):
        other.register(subtask)
    other.run()
    assert other.index == 1
    assert other.ids() == []  # the readers have its splits
    left = driver.ids(1)[-1:]
    assert left in (["1:b0"], ["1:b4"])
    other.enumerator.handle_splits_finished(1, left)
    other.run()

    assert other.index == 2


def test_a_restart_with_another_number_of_readers_waits_for_all_of_them() -> None:
    driver = Driver(Numbers("a"), Numbers("b"))
    other = driver.restored()
    other.context.num_subtasks = 1
    other.register(0)
    other.run()
    assert other.index == 0
    other.enumerator.handle_splits_finished(0, ["0:a0", "0:a4"])
    other.run()

    assert other.index == 1


# -- deferred


class Remembering(Numbers):
    """A source that keeps the enumerator that it continues from."""

    def __init__(self, name: str, previous: object) -> None:
        super().__init__(name)
        self.previous = previous


PREVIOUS: list[Any] = []


def after_a(previous: Any) -> Numbers:
    PREVIOUS.append(previous)
    return Remembering("b", previous)


def test_a_deferred_source_sees_the_enumerator_before_it_and_none_after_a_restart() -> None:
    PREVIOUS.clear()
    driver = Driver(Numbers("a"), DeferredSource(after_a))
    child = driver.enumerator._child
    assert PREVIOUS == []
    driver.finish(0)
    driver.finish(1)

    assert [child] == PREVIOUS
    restored = HybridSource(Numbers("a"), DeferredSource(after_a))
    state = driver.source.enumerator_state_serializer.serialize(driver.enumerator.snapshot_state(1))
    restored.enumerator_state_serializer.deserialize(1, state)
    assert [child, None] == PREVIOUS


def noting(previous: Any) -> Numbers:
    PREVIOUS.append(previous)
    return Numbers("b")


def test_a_restart_before_the_first_look_of_a_deferred_source_makes_it_from_the_enumerator_before_it() -> None:
    """A query that was killed while it read the last batch of the source before made it from nothing."""
    PREVIOUS.clear()
    driver = Driver(Numbers("a"), DeferredSource(noting))
    for subtask in (0, 1):
        driver.enumerator.handle_splits_finished(subtask, driver.ids(subtask))
    assert driver.index == 1
    again = driver.restored()
    for subtask in (0, 1):
        again.register(subtask)
    assert (again.index, len(PREVIOUS), None in PREVIOUS) == (1, 2, False)
    again.run()
    assert sorted(again.ids()) == ["1:b0", "1:b4"]
    assert again.enumerator.snapshot_state(2).source_index == 1


class Forgetful(DiscoveringEnumerator[SourceSplit]):
    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SourceSplit]:
        return DiscoveredSplits()


class Unremembered(Numbers):
    """A source whose enumerator has no state, because its splits are in the offsets."""

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        return Forgetful(context, self.discover, period_seconds=None, bounded=True)


def unremembered(previous: Any) -> Numbers:
    return Unremembered("b")


def test_a_restart_goes_back_to_no_source_whose_follower_has_given_splits() -> None:
    driver = Driver(Numbers("a"), DeferredSource(unremembered))
    for subtask in (0, 1):
        driver.finish(subtask)
    assert sorted(driver.ids()) == ["0:a0", "0:a4", "1:b0", "1:b4"]
    assert driver.enumerator.snapshot_state(2).source_index == 1


def out_of_reach(previous: Any) -> Numbers:
    if previous is None:
        raise OSError("no route")
    return Numbers("b")


def test_a_deferred_source_that_cannot_be_made_at_a_restart_does_not_blame_the_checkpoint() -> None:
    driver = Driver(Numbers("a"), DeferredSource(out_of_reach))
    driver.finish(0)
    driver.finish(1)
    split, state = Placed(0, tagged("1:b0")[0]), driver.enumerator.snapshot_state(1)
    offset = BatchOffset.encode("orders", 1, "t", BatchState(b"", (split,)), driver.source.split_serializer)
    data = driver.source.enumerator_state_serializer.serialize(state)

    again = HybridSource(Numbers("a"), DeferredSource(out_of_reach))
    said = "source 1 of a HybridSource cannot be made: OSError: no route. Hint: the checkpoint is whole"
    with pytest.raises(DeferredSourceFailed, match=said):
        offset.decode(again.split_serializer)
    coordinator = SourceCoordinator(again, name="orders", gateway=Gateway(), num_subtasks=1)
    with pytest.raises(DeferredSourceFailed, match=said):
        coordinator.reset_to_checkpoint(1, struct.pack(">iii", 1, 1, len(data)) + data)
    coordinator.close()


# -- what is refused


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ((Numbers("a"),), "source 0 of a HybridSource: expected two sources or more, got 1"),
        ((DeferredSource(after_a), Numbers("b")), "source 0 .* nothing comes before it, so it cannot be deferred"),
        ((Numbers("a"), Numbers("b", bounded=False), Numbers("c")), "source 1 .* it is unbounded"),
        (
            (Numbers("a"), DeferredSource(after_a, Boundedness.CONTINUOUS_UNBOUNDED), Numbers("c")),
            "source 1 .* it is unbounded",
        ),
        (
            (
                Numbers("a"),
                Numbers("b", schema=pa.schema([pa.field("name", pa.int32()), NUMBER, pa.field("x", pa.int8())])),
            ),
            (
                "source 1 .* its columns differ: name: string in source 0, int32 here; "
                r"at: timestamp\[us, tz=UTC\] in source 0, missing here; x: missing in source 0, int8 here"
            ),
        ),
        (
            (Numbers("a"), Numbers("b", schema=pa.schema([AT, NUMBER, NAME]))),
            r"columns in the order \['at', 'number', 'name'\], not \['name', 'number', 'at'\]",
        ),
    ],
)
def test_sources_that_do_not_go_together_are_refused(sources: Any, message: str) -> None:
    with pytest.raises(InvalidHybrid, match=message):
        HybridSource(*sources)


class Inducing(Numbers):
    externally_induced = True


class Talking(Numbers):
    @property
    def event_serializer(self) -> VersionedSerializer[Any]:
        return self.split_serializer


@pytest.mark.parametrize(
    ("unlike", "message"),
    [(Inducing("b"), "decides itself where batches end"), (Talking("b"), "its readers send events")],
)
def test_sources_that_need_a_stream_of_their_own_are_refused(unlike: Numbers, message: str) -> None:
    with pytest.raises(InvalidHybrid, match=f"source 1 of a HybridSource: .*{message}"):
        HybridSource(Numbers("a"), unlike)


class Arriving(Numbers):
    @property
    def event_time(self) -> str | None:
        return "arrived"


def other_time(previous: object) -> Numbers:
    return Arriving("b")


def forgotten(previous: object) -> Any:
    Numbers("b")


def other_schema(previous: object) -> Numbers:
    return Numbers("b", schema=pa.schema([NAME]))


@pytest.mark.parametrize(
    ("deferred", "message"),
    [
        (DeferredSource(forgotten), r"source 1 .*: DeferredSource.create returned None, expected a Source"),
        (DeferredSource(other_schema), "its columns differ: number: int64 in source 0, missing here"),
        (DeferredSource(after_a, Boundedness.CONTINUOUS_UNBOUNDED), "announced as continuous_unbounded and is bounded"),
        (DeferredSource(other_time), "its event time is 'arrived', and that of the other sources is 'at'"),
    ],
)
def test_a_deferred_source_is_checked_when_it_is_made(deferred: DeferredSource, message: str) -> None:
    source = HybridSource(Numbers("a"), deferred)

    with pytest.raises(InvalidHybrid, match=message):
        source._sources[1]


def test_a_split_that_was_read_in_part_goes_on_where_it_was() -> None:
    serializer = HybridSource(Numbers("a"), Numbers("b")).split_serializer
    split = replace(tagged("1:b4")[0], start=3, stop=7)
    restored = serializer.deserialize(1, serializer.serialize(split))

    assert (restored.split_id, restored.source_index, restored.start, restored.stop) == ("1:b4", 1, 3, 7)
    assert restored.unwrap() == SourceSplit(split_id="b4", start=3, stop=7)
    assert serializer.serialize(restored) == serializer.serialize(split)


def test_a_checkpoint_of_a_source_that_is_no_more_is_refused() -> None:
    three = HybridSource(Numbers("a"), Numbers("b"), Numbers("c"))
    data = three.split_serializer.serialize(tagged("2:c0")[0])
    two = HybridSource(Numbers("a"), Numbers("b"))

    with pytest.raises(ValueError, match="source 2 of a HybridSource that has sources 0 to 1 now"):
        two.split_serializer.deserialize(1, data)
    state = BatchState(b"", tuple(Placed(0, split) for split in tagged("2:c0")))
    with pytest.raises(UnreadableOffset) as refused:
        BatchOffset.encode("numbers", 3, "run", state, three.split_serializer).decode(two.split_serializer)
    assert str(refused.value).count("Hint") == 1, "that of the cause"
    assert str(refused.value).endswith("sources may be added behind the last one, and none taken away that was read.")
    for serializer in (two.split_serializer, two.enumerator_state_serializer):
        with pytest.raises(ValueError, match="of version 2, and this version of lowmark knows up to 1"):
            serializer.deserialize(2, data)
        with pytest.raises(ValueError, match="these are no data of version 1"):
            serializer.deserialize(1, b"\xc1")


# -- planning and reading


def test_splits_are_planned_by_their_own_source_with_their_own_start_and_stop() -> None:
    source = HybridSource(Numbers("a", rows=3), Numbers("b", rows=8))
    planner = source.create_planner()
    first, second = tagged("0:a0", "1:b0")
    later = replace(second, start=6, stop=7)

    assert planner.latest([later, first]) == {"0:a0": SplitEnd(3, finished=True), "1:b0": SplitEnd(7, finished=True)}
    assert planner.rows_before(later, 7) == 1
    assert planner.after_rows(later, 5, SplitEnd(7)) == 7
    assert planner.find_time([first, later], 5_000_000) == {"0:a0": None, "1:b0": 5}
    assert source.event_time == "at"
    planner.close()


def test_each_source_claims_for_its_own_splits_what_they_have_passed() -> None:
    class Careful(Numbers):
        def create_planner(self) -> SplitPlanner[SourceSplit]:
            return Sparing(self)

    class Sparing(SimplePlanner[SourceSplit]):
        def claims(self, splits: Sequence[SourceSplit], time_us: int, until_us: int | None = None) -> Mapping[str, int]:
            return {each.split_id: time_us - each.start for each in splits if each.start < 7 and until_us == 9}

    planner = HybridSource(Numbers("a"), Careful("b")).create_planner()
    first, second, third = tagged("0:a0", "1:b0", "1:b4")
    assert planner.claims([first, replace(second, start=6), replace(third, start=7)], 500, 9) == {
        "0:a0": 500,
        "1:b0": 494,
    }


def test_what_the_planners_of_all_sources_count_is_seen() -> None:
    class Counted(Numbers):
        def create_planner(self) -> SplitPlanner[SourceSplit]:
            return Counting(self)

    class Counting(SimplePlanner[SourceSplit]):
        def metric_values(self) -> Mapping[str, float]:
            return {"lost_offsets": 3, "of_" + self._source.name: 1}  # type: ignore[attr-defined]

    planner = HybridSource(Counted("a"), Numbers("b"), Counted("c")).create_planner()
    assert planner.metric_values() == {}
    planner.latest(tagged("0:a0", "1:b0", "2:c0"))
    assert planner.metric_values() == {"lost_offsets": 6, "of_a": 1, "of_c": 1}


def test_one_that_cannot_be_closed_leaves_no_other_open() -> None:
    class Closing(Numbers):
        def create_planner(self) -> SplitPlanner[SourceSplit]:
            planner = super().create_planner()
            planner.close = self.close  # type: ignore[method-assign]
            return planner

        def create_split_reader(self) -> SplitReader[SourceSplit]:
            reader = super().create_split_reader()
            reader.close = self.close  # type: ignore[method-assign]
            return reader

        def close(self) -> None:
            closed.append(self.name)
            if self.name == "b":
                raise OSError("stuck")

    source = HybridSource(Closing("a"), Closing("b"), Closing("c"))
    planner, reader, splits = source.create_planner(), source.create_split_reader(), tagged("0:a0", "1:b0", "2:c0")
    planner.latest(splits)
    reader.handle_splits_changes(SplitsAddition(tuple(splits)))
    for opened in (planner, reader):
        closed: list[str] = []
        with pytest.raises(OSError, match="stuck"):
            opened.close()
        assert sorted(closed) == ["a", "b", "c"]


@pytest.mark.parametrize(("role", "hybrid"), [(SplitPlanner, HybridPlanner), (SplitReader, HybridSplitReader)])
def test_nothing_that_a_source_may_answer_itself_is_left_to_the_default(role: type, hybrid: type) -> None:
    assert {name for name in vars(role) if not name.startswith("_")} <= vars(hybrid).keys()


def test_a_source_that_cannot_be_searched_by_time_makes_all_of_them_so() -> None:
    class Plain(Numbers):
        def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Any:
            return None

        @property
        def event_time(self) -> str | None:
            return None

    source = HybridSource(Plain("a"), Numbers("b"))
    planner = source.create_planner()

    assert planner.find_time(tagged("0:a0", "1:b0"), 0) is None
    assert planner.find_time(tagged("1:b0"), 0) == {"1:b0": 0}
    assert source.event_time == "at"


def test_slices_of_two_sources_are_read_earlier_ones_first_under_their_tagged_ids() -> None:
    source = HybridSource(Numbers("a"), Numbers("b"))
    first, second = tagged("0:a0", "1:b4")
    slices = [replace(second, start=2, stop=4), replace(first, start=9, stop=10)]
    read = [(one.split_id, one.position, one.rows["number"].to_pylist()) for one in read_slices(source, slices)]

    assert read == [("0:a0", 10, [9]), ("1:b4", 4, [2, 3])]


def test_a_split_that_is_taken_away_is_not_read_and_a_woken_reader_returns() -> None:
    reader = HybridSource(Numbers("a"), Numbers("b")).create_split_reader()
    first, second = (replace(each, stop=2) for each in tagged("0:a0", "1:b0"))
    reader.handle_splits_changes(SplitsAddition((first, second)))
    reader.handle_splits_changes(SplitsRemoval((first, *tagged("0:unknown"))))
    reader.wake_up()
    assert reader.fetch().batches == ()
    seen = [one.split_id for _ in range(3) for one in reader.fetch().batches]

    assert seen == ["1:b0"]
    reader.close()


@pytest.mark.parametrize("bounded", [True, False])
def test_a_hybrid_source_keeps_the_law(bounded: bool) -> None:
    """A hybrid source tells its readers of the end only when the splits of all its sources are finished."""
    check_source(HybridSource(Numbers("a"), Numbers("b", bounded=bounded)))


# -- with a coordinator


def test_a_failover_in_the_middle_of_a_source_loses_no_finish() -> None:
    clock, gateway = ManualClock(leaps=True), Gateway()
    source = HybridSource(Numbers("a"), Numbers("b"))
    strike = fail_on("finish")
    coordinator = SourceCoordinator(
        source, name="orders", gateway=gateway, num_subtasks=1, clock=clock, timeout_seconds=DEADLINE_SECONDS
    )
    coordinator.start()
    coordinator.register_reader(0)
    await_ids(coordinator, gateway, ["0:a0", "0:a4"])
    coordinator.wait(coordinator.checkpoint(1), "take it")
    coordinator.handle_splits_finished(0, ["0:a0"])
    context = coordinator._context
    assert context is not None
    context.run_in_coordinator_thread(lambda: strike("finish"))
    coordinator.handle_splits_finished(0, ["0:a4"])
    await_ids(coordinator, gateway, ["0:a0", "0:a4", "1:b0", "1:b4"])

    assert coordinator.metric_values()["enumerator_restores"] == 1
    assert coordinator.run("look", lambda: index_of(coordinator)) == 1
    assert coordinator.failure is None
    coordinator.close()


class Unreachable(Numbers):
    def discover(self) -> Sequence[SourceSplit]:
        raise OSError("no route")


def test_an_error_names_the_call_of_the_source_at_fault() -> None:
    source, gateway = HybridSource(Unreachable("a"), Numbers("b")), Gateway()
    coordinator = SourceCoordinator(
        source, name="orders", gateway=gateway, num_subtasks=1, clock=ManualClock(leaps=True),
        failover=FailoverPolicy(most=0), timeout_seconds=DEADLINE_SECONDS,
    )  # fmt: skip
    coordinator.start()
    with pytest.raises(SourceFailed, match=r"cannot handle the result of Unreachable\.discover"):
        await_ids(coordinator, gateway, ["0:a0"])
    coordinator.close()


def index_of(coordinator: SourceCoordinator[Any, Any]) -> int:
    assert isinstance(coordinator._enumerator, HybridEnumerator)
    return coordinator._enumerator._index


def await_ids(coordinator: SourceCoordinator[Any, Any], gateway: Gateway, expected: list[str]) -> None:
    """Wait for ids that discovery finds on its own thread."""
    for _ in range(20_000):
        settle(coordinator)
        if sorted(gateway.ids(0)) == expected:
            return
    raise AssertionError(f"expected {expected}, got {gateway.ids(0)}")
