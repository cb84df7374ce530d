"""`check_source` finds violations of the laws: one broken source for each forbidden behaviour."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lowmark.sources import (
    DataclassSerializer,
    Fetched,
    SourceBroken,
    SourceSplit,
    SplitEnd,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitPlanner,
    SplitReader,
    SplitRows,
    check_source,
)
from lowmark.sources.api import EARLIEST_US, SplitChange
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator, DiscoveryFailed
from lowmark.sources.kit.simple import SimplePlanner, SimpleSplitReader
from lowmark.sources.testing import CheckedSource

from tests.sources.numbered import ROWS, SCHEMA, Numbered


def test_a_source_that_keeps_the_laws_passes() -> None:
    assert check_source(Numbered()) == CheckedSource(("a", "b", "c"), 3 * ROWS, 7)


@pytest.mark.parametrize("rows", [1, 7, 1_000])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_passes_for_any_step_and_seed(rows: int, seed: int) -> None:
    check_source(Numbered(), rows=rows, seed=seed)


def test_it_passes_in_another_process() -> None:
    check_source(Numbered(), other_process=True)


class Connects(Numbered):
    def create_planner(self) -> SplitPlanner[SourceSplit]:
        self.client = threading.Lock()  # cannot be pickled
        return super().create_planner()


def test_a_source_may_keep_a_client_once_it_plans() -> None:
    check_source(Connects())


class Watched(DiscoveringEnumerator[SourceSplit]):
    """Watched the enumerators that are not closed."""

    open = 0

    def start(self) -> None:
        Watched.open += 1
        super().start()

    def close(self) -> None:
        Watched.open -= 1
        super().close()


class FromWatched(Numbered):
    failing = False

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SourceSplit], state: DiscoveredSplits[SourceSplit]
    ) -> SplitEnumerator[SourceSplit, DiscoveredSplits[SourceSplit]]:
        return Watched(context, self.discover, period_seconds=60, known=state)

    def discover(self) -> Sequence[SourceSplit]:
        if self.failing:
            raise OSError("no network")
        return super().discover()


def test_every_enumerator_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    check_source(FromWatched())
    assert Watched.open == 0
    monkeypatch.setattr(FromWatched, "failing", True)
    with pytest.raises(DiscoveryFailed, match="no network"):
        check_source(FromWatched())
    assert Watched.open == 0


def test_only_so_much_is_looked_at() -> None:
    checked = check_source(Numbered(), most_splits=1, most_rows=10, rows=3)
    assert checked.splits == ("a",)
    assert checked.rows == 12


class Gaps(Numbered):
    """A source with a row at two of three positions."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert split.stop is not None
        for number in range(split.start, split.stop):
            if number % 3:
                yield self.batch([number]), number + 1

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        gap = {name: at + 1 if at is not None and at % 3 == 0 else at for name, at in found.items()}
        return {name: at if at is not None and at < ROWS else None for name, at in gap.items()}


def test_positions_need_not_be_rows() -> None:
    assert check_source(Gaps()).rows == 3 * 26


class Steps(Gaps):
    """A source with ten positions per step."""

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return min((split.start + max(10, rows)) // 10 * 10, end.position)

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        return {name: None if at is None else at // 10 * 10 for name, at in found.items()}

    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return min(time_us, position * 1_000_000)


def test_a_step_may_hold_more_than_the_budget_if_it_is_the_smallest() -> None:
    check_source(Steps())


class Markers(Gaps):
    """A source whose search also finds positions without a row; the time of the row after them is unknown."""

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = Numbered.find_time(self, splits, time_us) or {}
        # A marker answers for all times up to its own, although older rows follow: position 3 for rows 5 to 19.
        return {name: 3 if at is not None and 5 <= at < 20 else at for name, at in found.items()}

    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return time_us if position % 3 else EARLIEST_US


def test_what_is_found_need_not_be_a_row_if_nothing_is_claimed_of_it() -> None:
    for seed in range(4):
        check_source(Markers(), seed=seed)


# -- broken sources: law, a part of the message, the source

BROKEN: list[tuple[str, str, type[Numbered]]] = []


def breaks(law: str, text: str) -> Callable[[type[Numbered]], type[Numbered]]:
    def add(source: type[Numbered]) -> type[Numbered]:
        BROKEN.append((law, text, source))
        return source

    return add


@breaks("replay", "split 'a', positions 0 to 40, read again by a new reader: 40 rows became 40, row 0 was")
class Draws(Numbered):
    """A source that draws new rows for each read."""

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return super().batch([random.SystemRandom().randrange(2**30) for _ in numbers])


@breaks("replay", "read again by a pickled copy")
class Counts(Numbered):
    """A source whose rows depend on the object's own state."""

    def __init__(self) -> None:
        self.where = "here"

    def __getstate__(self) -> dict[str, Any]:
        return {"where": "there"}

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return super().batch([number + (self.where == "there") for number in numbers])


@breaks("replay", "read again alone (a)")
class NeedsCompany(Numbered):
    """A source with different rows for a split that is read alone."""

    def create_split_reader(self) -> SplitReader[SourceSplit]:
        class Reader(SimpleSplitReader[SourceSplit]):
            def handle_splits_changes(self, change: SplitChange[SourceSplit]) -> None:
                super().handle_splits_changes(change)
                source.alone = len(change.splits) == 1

        source = self
        return Reader(self)

    alone = False

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return super().batch([number + self.alone for number in numbers])


@breaks("replay", "it cannot be pickled")
class Unpicklable(Numbered):
    def __init__(self) -> None:
        self.connection = lambda: None


@breaks("concatenation", "cut at [0, 7, 14,")
class SkipsFirst(Numbered):
    """A source that loses the first row of every partial range."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert split.stop is not None
        yield self.batch(range(split.start + (split.start > 0), split.stop)), split.stop


@breaks("concatenation", "the empty range [")
class NeverNothing(Numbered):
    """A source that gives a row for an empty range."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert split.stop is not None
        yield self.batch(range(split.start, max(split.stop, split.start + 1))), split.stop

    def create_split_reader(self) -> SplitReader[SourceSplit]:
        class Reader(SimpleSplitReader[SourceSplit]):
            def fetch(self) -> Fetched:
                for split_id, split in list(self._splits.items()):
                    if self._fetches is None and split.start == split.stop:
                        del self._splits[split_id]
                        rows = SplitRows(split_id, source.batch([split.start]), split.start)
                        return Fetched((rows,), frozenset([split_id]))
                return super().fetch()

        source = self
        return Reader(self)


@breaks("concatenation", "rows became")
class Remembers(Numbered):
    """A source that continues at the process's last position instead of the requested one."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert split.stop is not None
        if split.start != REMEMBERED.get(split.split_id, split.start) and split.start > 0:
            return
        REMEMBERED[split.split_id] = split.stop
        yield self.batch(range(split.start, split.stop)), split.stop


REMEMBERED: dict[str, int] = {}


@breaks("progress", "split 'a': it ends at -1; expected a whole number from its start, 0, on, less than 2**63")
class EndsBefore(Numbered):
    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(position=-1) for split in splits}


@breaks("progress", "split 'a': it ends at 40.0; expected a whole number from its start")
class EndsBetween(Numbered):
    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {name: replace(end, position=40.0) for name, end in super().latest(splits).items()}  # type: ignore[arg-type]


@breaks("rows", "split 'a': latest says 0 rows, and 40 came; expected None or more")
class CountsNothing(Numbered):
    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {name: replace(end, rows=0) for name, end in super().latest(splits).items()}


@breaks("progress", "7 rows after 0 is None; expected a position in (0, 40]")
class StepsNowhere(Numbered):
    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return None  # type: ignore[return-value]


@breaks("time", "is 0.5; expected a whole number, 0 or more, or None")
class FindsBetween(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        return dict.fromkeys((split.split_id for split in splits), 0.5)  # type: ignore[arg-type]


@breaks("progress", "latest names split 'x', which it was not asked about")
class Strangers(Numbered):
    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {**super().latest(splits), "x": SplitEnd(position=1)}


@breaks("progress", "7 rows after 0 is 0; expected a position in (0, 40]")
class StandsStill(Numbered):
    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return split.start


@breaks("progress", "with stop 40: latest is SplitEnd(position=40, rows=None, size_bytes=None, finished=False)")
class NeverFinished(Numbered):
    def create_planner(self) -> SplitPlanner[SourceSplit]:
        class Planner(SimplePlanner[SourceSplit]):
            def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
                return {name: replace(end, finished=False) for name, end in super().latest(splits).items()}

        return Planner(self)


@breaks("progress", "holds 20 rows, and a smaller step is possible")
class OverBudget(Numbered):
    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        return min(split.start + (1 if rows == 1 else 20), end.position)


@breaks("progress", "none of its 3 splits has a row now")
class Empty(Numbered):
    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(position=0, finished=True) for split in splits}


@breaks("schema", "it is 'number long'; expected a pyarrow.Schema")
class SchemaInWords(Numbered):
    schema = "number long"  # type: ignore[assignment]


@breaks("schema", "gave rows of another schema")
class OtherColumns(Numbered):
    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return super().batch(numbers).rename_columns(["n", "event_time"])


@breaks("schema", "event_time 'number' is int64; expected timestamp[us, tz=UTC]")
class OtherTime(Numbered):
    event_time = "number"


@breaks("reading", "was read to position 48; expected at most its stop, 40")
class TooFar(Numbered):
    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        assert split.stop is not None
        for first in range(split.start, split.stop, 16):
            yield self.batch(range(first, first + 16))


@breaks("reading", "ended at position 39; expected rows up to 40")
class TooShort(Numbered):
    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        assert split.stop is not None
        yield self.batch(range(split.start, split.stop - 1))


@breaks("reading", "OSError: gone")
class Fails(Numbered):
    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise OSError("gone")


@breaks("reading", "nothing came for 0.05 seconds, and no end either")
class NeverEnds(Numbered):
    def create_split_reader(self) -> SplitReader[SourceSplit]:
        class Reader(SimpleSplitReader[SourceSplit]):
            def fetch(self) -> Fetched:
                return Fetched()

        return Reader(self)


@breaks("reading", "gave 16 rows; expected rows of splits that were added and not finished")
class GoesOn(Numbered):
    """A source that gives rows after their split has finished."""

    def create_split_reader(self) -> SplitReader[SourceSplit]:
        class Reader(SimpleSplitReader[SourceSplit]):
            def fetch(self) -> Fetched:
                fetched = super().fetch()
                return replace(fetched, finished_splits=frozenset(part.split_id for part in fetched.batches))

        return Reader(self)


@breaks("rows", "rows_before says 0 from 0 to 7, and 7 came")
class TooFewRows(Numbered):
    def rows_before(self, split: SourceSplit, position: int) -> int:
        return 0


@breaks("time", "is before it")
class TooLate(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        return {name: None if at is None else at + 1 for name, at in found.items()}


@breaks("time", "and the rows there, up to")
class TooEarly(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        return {name: None if at is None else max(0, at - 1) for name, at in found.items()}


@breaks("time", "where claim_us says")
class Overpromised(Steps):
    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return time_us


@breaks("time", "the rows there, up to")
class BelievesMarkers(Markers):
    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return time_us


@breaks("time", "where claims says")
class Overclaimed(Steps):
    def create_planner(self) -> SplitPlanner[SourceSplit]:
        class Planner(SimplePlanner[SourceSplit]):
            def claims(self, splits: Any, time_us: int, until_us: int | None = None) -> Mapping[str, int]:
                return {split.split_id: time_us for split in splits}

        return Planner(self)


@breaks("time", "claims names split 'x', which it was not asked about")
class ClaimsAStranger(Numbered):
    def create_planner(self) -> SplitPlanner[SourceSplit]:
        class Planner(SimplePlanner[SourceSplit]):
            def claims(self, splits: Any, time_us: int, until_us: int | None = None) -> Mapping[str, int]:
                return {"x": time_us}

        return Planner(self)


@breaks("time", "find_time(-1) is None, and a row of 0 is before it")
class Blind(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        return {split.split_id: None for split in splits}


@breaks("time", "split 'a': find_time(39000001) is -1; expected a whole number, 0 or more, or None")
class NoneIsMinusOne(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        return {name: -1 if at is None else at for name, at in found.items()}


@breaks("time", "is at 0 from 0, at 40 from 40")
class FromItsStart(Numbered):
    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        found = super().find_time(splits, time_us) or {}
        return {
            split.split_id: None if (at := found[split.split_id]) is None else max(at, split.start) for split in splits
        }


@breaks("time", "there is no event_time column")
class WithoutColumn(Numbered):
    event_time = None


class Enumerated(Numbered):
    """A source with its own enumerator."""

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        return self.kind(context, self.discover, period_seconds=60, known=state, source="Numbered")

    kind: type[DiscoveringEnumerator[SourceSplit]]


@breaks("discovery", "no split was assigned to any of 3 readers")
class NoSplits(Numbered):
    names = ()


@breaks("discovery", "split 'a' was assigned twice")
class Twice(Enumerated):
    class kind(DiscoveringEnumerator[SourceSplit]):  # noqa: N801
        def _new(self, found: Sequence[SourceSplit]) -> list[SourceSplit]:
            return list(found)

    names = ("a",)


@breaks("discovery", "was assigned again by the restored enumerator")
class ForgetsAssigned(Enumerated):
    class kind(DiscoveringEnumerator[SourceSplit]):  # noqa: N801
        def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SourceSplit]:
            return replace(super().snapshot_state(checkpoint_id), assigned=())


@breaks("discovery", "was lost: nobody had it, and it was not assigned after")
class ForgetsPending(Enumerated):
    class kind(DiscoveringEnumerator[SourceSplit]):  # noqa: N801
        def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SourceSplit]:
            state = super().snapshot_state(checkpoint_id)
            every = sorted({*state.assigned, *(split.split_id for split in state.pending)})
            return replace(state, assigned=tuple(every), pending=())


@breaks("discovery", "it is bounded, and of 3 readers it told [] of no more splits")
class TellsNobody(Enumerated):
    bounded = True

    class kind(DiscoveringEnumerator[SourceSplit]):  # noqa: N801
        def _add(self, splits: Sequence[SourceSplit]) -> None:
            self._bounded = False
            super()._add(splits)


class Serialized(Numbered):
    """A source with its own serialization."""

    class Broken(DataclassSerializer[SourceSplit]):
        pass

    @property
    def split_serializer(self) -> DataclassSerializer[SourceSplit]:
        return self.Broken(SourceSplit)


@breaks("serializers", "gives other bytes the second time")
class OtherBytes(Serialized):
    class Broken(DataclassSerializer[SourceSplit]):
        def serialize(self, value: SourceSplit) -> bytes:
            return super().serialize(value) + os.urandom(8)


@breaks("serializers", "was written, SourceSplit(split_id='a', start=1")
class OtherValue(Serialized):
    class Broken(DataclassSerializer[SourceSplit]):
        def deserialize(self, version: int, data: bytes) -> SourceSplit:
            return replace(super().deserialize(version, data), start=1)


@breaks("serializers", "splits: data of version 2 are read by version 1")
class AnyVersion(Serialized):
    class Broken(DataclassSerializer[SourceSplit]):
        def deserialize(self, version: int, data: bytes) -> SourceSplit:
            return super().deserialize(1, data)


@breaks("changes", "split 'a' was removed, and gave rows after that")
class NoRemoval(Numbered):
    def create_split_reader(self) -> SplitReader[SourceSplit]:
        class Reader(SimpleSplitReader[SourceSplit]):
            def handle_splits_changes(self, change: SplitChange[SourceSplit]) -> None:
                if not hasattr(change, "splits") or type(change).__name__ == "SplitsAddition":
                    super().handle_splits_changes(change)

        return Reader(self)


@breaks("requires", "it is 'redis', expected a tuple of modules")
class RequiresLetters(Numbered):
    requires = "redis"  # type: ignore[assignment]


@breaks("requires", "'confluent-kafka' cannot be imported here (No module named 'confluent-kafka'), expected a name")
class RequiresPackage(Numbered):
    requires = ("json", "confluent-kafka")


@pytest.mark.parametrize(("law", "text", "source"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_source_is_found(law: str, text: str, source: type[Numbered]) -> None:
    REMEMBERED.clear()
    with pytest.raises(SourceBroken) as found:
        check_source(source(), seed=3, stalled_seconds=0.05)

    assert found.value.law == law, str(found.value)
    assert text in str(found.value)
    assert str(found.value).startswith(f"{source.__name__} breaks the law of {law}: ")
    assert str(found.value).endswith("(seed 3)")
    assert isinstance(found.value, AssertionError)


@pytest.mark.slow
def test_what_differs_in_another_process_only_is_found() -> None:
    check_source(OfThisProcess())
    with pytest.raises(SourceBroken, match="read again in another process"):
        check_source(OfThisProcess(), other_process=True)


class OfThisProcess(Numbered):
    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return super().batch([number + (os.getpid() != MAIN) for number in numbers])


@pytest.mark.slow
def test_what_fails_in_another_process_only_is_found() -> None:
    with pytest.raises(SourceBroken, match=r"law of reading.*OSError: gone.*asked for 'a'"):
        check_source(ReadableHere(), other_process=True)


class ReadableHere(Numbered):
    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch | tuple[pa.RecordBatch, int]]:
        if os.getpid() != MAIN:
            raise OSError("gone")
        return super().read(split)


MAIN = int(os.environ.setdefault("LOWMARK_TEST_MAIN", str(os.getpid())))


def test_the_columns_are_those_of_the_schema() -> None:
    assert Numbered().batch([1]).schema == SCHEMA
