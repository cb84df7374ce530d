"""The contract of a source as a function: `check_source(source)` checks any connector against the laws, without Spark.

    discovery       every split is assigned, once, to a registered reader; a restored enumerator assigns exactly the
                    splits that were not assigned before its snapshot; a bounded source tells each reader that no more
                    splits come, at the latest when all splits are finished
    serializers     written values are read back equal, equal values give equal bytes, later versions are refused
    progress        a split's end is not before its start; a step goes on, stays before the end, keeps the row budget
    replay          a range gives the same rows again: by a new reader, by a copy of the source, in another process
    concatenation   adjacent ranges give the same rows as the joined range, in any order of reading
    schema          every batch has exactly the columns of `source.schema`
    reading         positions grow within the range, every split finishes once, and nothing follows
    rows            `rows_before` is never less than the rows that come, and `latest` says 0 rows only without rows
    time            `find_time` answers with the first row at or after the time, by the event-time column, or with a
                    position before that row for which `claims` makes no claim; the rows that follow never contradict
                    `claim_us` and `claims`
    changes         a removed split gives no rows
    requires        `requires` names modules that can be imported

The rows must stay in the system during the check: use a topic with a long retention.

One file, because each law is one function over the same walk through the source.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, Generic

import pyarrow as pa
from lowmark.sources.api import (
    EARLIEST_US,
    Boundedness,
    Source,
    SourceSplit,
    SplitEnd,
    SplitEnumerator,
    SplitReader,
    SplitsAddition,
    SplitsRemoval,
    SplitT,
    StateT,
    VersionedSerializer,
)
from lowmark.sources.reading.checked_reader import BrokenSplitReader, SplitReadFailed
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.slicing.table import is_position
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError
from lowmark.watermark.errors import shown

from .context import ManualEnumeratorContext

_READERS = 3
_RANDOM_CUTS = 3
_FETCHES = 10_000
_TIME = pa.timestamp("us", tz="UTC")


class SourceBroken(LowmarkError, AssertionError):
    """A source broke a law."""

    source: str  # class of the source
    law: str  # a law of the module's table
    what: str  # the breach, with split and positions, and the expected behaviour
    seed: int  # reproduces the breach
    _fact = "{source} breaks the law of {law}: {what} (seed {seed})"
    _hint = ""


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """The extent of a check, because a check without rows proves nothing.

    Attributes:
        splits: ids of the splits.
        rows: number of compared rows.
        found_by_time: number of searched times, 0 if the source cannot search.
    """

    splits: tuple[str, ...]
    rows: int
    found_by_time: int


def check_source(
    source: Source[SplitT, StateT],
    *,
    rows: int = 7,
    most_rows: int = 200,
    most_splits: int = 8,
    seed: int = 0,
    other_process: bool = False,
    stalled_seconds: float = 30.0,
) -> CheckedSource:
    """Check a source against its contract; raise `SourceBroken`, an `AssertionError`, where it breaks a law.

    Args:
        source: the source, with at least one row in at least one split now.
        rows: the row budget of one step, 1 or more. A small budget finds more faults.
        most_rows: the number of rows of each split to look at, from its start on.
        most_splits: the number of splits to look at; all splits are assigned.
        seed: seed for cuts and times.
        other_process: whether to read in another process too; the source's class must be importable there.
        stalled_seconds: how long a reader may bring nothing.

    >>> from lowmark.sources.generator import GeneratorSource
    >>> from lowmark.sources.generator import SplitScript, StreamScript
    >>> check_source(GeneratorSource(StreamScript((SplitScript("a", 2),), 0, 5, 1_000_000, 1), seed=7))
    CheckedSource(splits=('a',), rows=11, found_by_time=8)
    """
    return _Check(source, rows, most_rows, most_splits, seed, stalled_seconds).run(other_process=other_process)


@dataclass(slots=True)
class _Known(Generic[SplitT]):
    split: SplitT
    end: SplitEnd
    whole: pa.Table
    cuts: list[int]  # positions of steps, where it may be cut; the first is its start, the last its stop

    @property
    def split_id(self) -> str:
        return self.split.split_id


@dataclass
class _Check(Generic[SplitT, StateT]):
    """A check with the arguments of `check_source`."""

    source: Source[SplitT, StateT]
    rows: int
    most_rows: int
    most_splits: int
    seed: int
    stalled_seconds: float

    def run(self, *, other_process: bool) -> CheckedSource:
        self.random = random.Random(self.seed)
        copy = self.copied()  # before the source has made a client
        schema: object = self.source.schema  # connectors may ignore the types
        if not isinstance(schema, pa.Schema):
            raise self.broken("schema", f"it is {shown(schema)}; expected a pyarrow.Schema")
        splits = self.discovery()[: self.most_splits]
        for split in splits:
            self.serializer("splits", lambda: self.source.split_serializer, split)
        self.planner = self.source.create_planner()
        try:
            known = self.progress(splits)
            self.replay(known, copy, other_process=other_process)
            self.concatenation(known)
            searched = self.time(known)
        finally:
            self.planner.close()
        self.removal(known)
        self.requires()
        rows = sum(each.whole.num_rows for each in known)
        return CheckedSource(tuple(split.split_id for split in splits), rows, searched)

    def broken(self, law: str, what: str, split_id: str | None = None) -> SourceBroken:
        said = what if split_id is None else f"split {split_id!r}: {what}"
        return SourceBroken(type(self.source).__name__, law, said, self.seed)

    def copied(self) -> Source[SplitT, StateT]:
        try:
            copy: Source[SplitT, StateT] = pickle.loads(pickle.dumps(self.source))  # noqa: S301, TID251  # our own
        except Exception as cause:
            raise self.broken("replay", f"it cannot be pickled: {described(cause)}") from cause
        return copy

    def requires(self) -> None:
        named: object = self.source.requires
        if not isinstance(named, tuple):
            raise self.broken("requires", f"it is {named!r}, expected a tuple of modules")
        for module in named:
            try:
                import_module(module)
            except ImportError as cause:
                said = f"{module!r} cannot be imported here ({cause}), expected a name as after `import`"
                raise self.broken("requires", said) from cause

    # -- the enumerator

    def discovery(self) -> list[SplitT]:
        with _enumeration(self.source, None, _READERS) as (enumerator, context):
            splits = self.assigned_once(context)
            if not splits:
                raise self.broken("discovery", f"no split was assigned to any of {_READERS} readers")
            context.next_period()
            self.assigned_once(context)
            if self.source.boundedness is Boundedness.BOUNDED:
                _finish(enumerator, context)
                self.assigned_once(context)
                told = sorted(context.no_more_splits)
                if len(told) < _READERS:
                    raise self.broken(
                        "discovery", f"it is bounded, and of {_READERS} readers it told {told} of no more splits"
                    )
        for readers in range(_READERS):
            self.restored(splits, readers)
        return splits

    def assigned_once(self, context: ManualEnumeratorContext[SplitT]) -> list[SplitT]:
        splits = [split for _, split in context.assigned]
        twice = [name for name, count in Counter(split.split_id for split in splits).items() if count > 1]
        if twice:
            raise self.broken("discovery", f"split {twice[0]!r} was assigned twice")
        return splits

    def restored(self, splits: Sequence[SplitT], readers: int) -> None:
        """Restore a snapshot that was taken with only so many readers."""
        with _enumeration(self.source, None, readers) as (enumerator, context):
            state = enumerator.snapshot_state(1)
            given = {split.split_id for split in self.assigned_once(context)}
        state = self.serializer("enumerator states", lambda: self.source.enumerator_state_serializer, state)
        with _enumeration(self.source, state, _READERS) as (_, context):
            assigned = {split.split_id for split in self.assigned_once(context)}
        if twice := sorted(assigned & given):
            raise self.broken("discovery", f"split {twice[0]!r} was assigned again by the restored enumerator")
        if lost := sorted({split.split_id for split in splits} - assigned - given):
            raise self.broken("discovery", f"split {lost[0]!r} was lost: nobody had it, and it was not assigned after")

    def serializer(self, what: str, make: Callable[[], VersionedSerializer[Any]], value: object) -> Any:
        """Return the value as another serializer reads it."""
        ours, other = make(), make()
        data = ours.serialize(value)
        copy = pickle.loads(pickle.dumps(value))  # noqa: S301, TID251  # our own
        if other.serialize(copy) != data:
            raise self.broken("serializers", f"{what}: {value!r} gives other bytes the second time")
        read = other.deserialize(ours.version, data)
        if read != value:
            raise self.broken("serializers", f"{what}: {value!r} was written, {read!r} was read")
        try:
            other.deserialize(ours.version + 1, data)
        except ValueError:
            return read
        raise self.broken(
            "serializers", f"{what}: data of version {ours.version + 1} are read by version {ours.version}"
        )

    # -- ranges

    def rest(self, split: SplitT, position: int) -> SplitT:
        """The rest of a split after a plan that ends at a position."""
        return split if position == split.start else self.planner.cut([(replace(split, stop=None), position)])[0][1]

    def part(self, each: _Known[SplitT], start: int, stop: int) -> SplitT:
        """The slice between two positions, as two plans would cut it."""
        return self.planner.cut([(self.rest(each.split, start), stop)])[0][0]

    def read(self, splits: Sequence[SplitT], source: Source[SplitT, StateT] | None = None) -> dict[str, pa.Table]:
        with self.reading(splits):
            return _tables(self.source if source is None else source, splits, self.stalled_seconds)

    @contextmanager
    def reading(self, splits: Sequence[SplitT]) -> Iterator[None]:
        """Raise an error of reading splits as the law that it breaks."""
        try:
            yield
        except BrokenSplitReader as fault:
            law = "schema" if "schema" in fault.fact else "reading"
            raise self.broken(
                law, f"split {fault.split!r} {fault.fact}; expected {fault.expected}; asked for {_ranges(splits)}"
            ) from fault
        except SplitReadFailed as failed:
            raise self.broken("reading", f"{failed}; asked for {_ranges(splits)}") from failed

    def progress(self, splits: Sequence[SplitT]) -> list[_Known[SplitT]]:
        ends = self.planner.latest(splits)
        if strangers := sorted(ends.keys() - {split.split_id for split in splits}):
            raise self.broken("progress", f"latest names split {strangers[0]!r}, which it was not asked about")
        there = [split for split in splits if split.split_id in ends]
        cuts = {split.split_id: self.cuts(split, ends[split.split_id]) for split in there}
        readable = [part for part, _ in self.planner.cut([(split, cuts[split.split_id][-1]) for split in there])]
        whole = self.read(readable)
        if not any(table.num_rows for table in whole.values()):
            raise self.broken(
                "progress", f"none of its {len(splits)} splits has a row now, so there is no row to check"
            )
        for name, table in whole.items():
            if ends[name].rows == 0 and table.num_rows:
                raise self.broken("rows", f"latest says 0 rows, and {table.num_rows} came; expected None or more", name)
        return [_Known(each, ends[each.split_id], whole[each.split_id], cuts[each.split_id]) for each in readable]

    def cuts(self, split: SplitT, end: SplitEnd) -> list[int]:
        name, position = split.split_id, split.start
        if not is_position(end.position, split.start):
            wanted = f"a whole number from its start, {split.start}, on, less than 2**63"
            raise self.broken("progress", f"it ends at {end.position!r}; expected {wanted}", name)
        cuts = [position]
        while position < end.position and (len(cuts) - 1) * self.rows < self.most_rows:
            after = self.planner.after_rows(self.rest(split, position), self.rows, end)
            if not is_position(after, position + 1, end.position):
                wanted = f"a position in ({position}, {end.position}]"
                raise self.broken("progress", f"{self.rows} rows after {position} is {after}; expected {wanted}", name)
            cuts.append(position := after)
        bounded = self.planner.latest([replace(split, stop=position)]).get(name)
        if bounded is not None and (
            bounded.position > position or (bounded.position == position and not bounded.finished)
        ):
            raise self.broken("progress", f"split {name!r} with stop {position}: latest is {bounded}; it ends there")
        return cuts

    def replay(self, known: Sequence[_Known[SplitT]], copy: Source[SplitT, StateT], *, other_process: bool) -> None:
        splits = [each.split for each in known]
        again = {"by a new reader": self.read(splits), "by a pickled copy": self.read(splits[::-1], copy)}
        for each in known:
            again[f"alone ({each.split_id})"] = self.read([each.split])
        if other_process:
            with self.reading(splits), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                again["in another process"] = pool.submit(_tables, self.source, splits, self.stalled_seconds).result()
        for how, tables in again.items():
            for each in known:
                if each.split_id in tables:
                    self.same("replay", each.split, each.whole, tables[each.split_id], f"read again {how}")

    def concatenation(self, known: Sequence[_Known[SplitT]]) -> None:
        for each in known:
            pairs = list(pairwise(each.cuts))
            order = self.random.sample(range(len(pairs)), len(pairs))
            read = {index: self.read([self.part(each, *pairs[index])])[each.split_id] for index in order}
            steps = [read[index] for index in range(len(pairs))]
            joined = pa.concat_tables([each.whole.slice(0, 0), *steps])
            self.same("concatenation", each.split, each.whole, joined, f"cut at {each.cuts}")
            self.budget(each, steps)
            nothing = self.read([self.part(each, cut := self.random.choice(each.cuts), cut)])[each.split_id]
            if nothing.num_rows:
                what = f"the empty range [{cut}, {cut}) gave {nothing.num_rows} rows"
                raise self.broken("concatenation", what, each.split_id)
        for _ in range(_RANDOM_CUTS):
            self.random_cuts(known)

    def random_cuts(self, known: Sequence[_Known[SplitT]]) -> None:
        """Cut every split at random, and read the pieces together, the last first."""
        cuts = {
            each.split_id: sorted({each.cuts[0], *self.random.sample(each.cuts, len(each.cuts) // 3), each.cuts[-1]})
            for each in known
        }
        pieces: dict[str, list[pa.Table]] = {name: [] for name in cuts}
        for back in range(1, max(map(len, cuts.values()))):
            splits = [
                self.part(each, *cuts[each.split_id][-back - 1 :][:2])
                for each in known
                if back < len(cuts[each.split_id])
            ]
            for name, table in self.read(splits).items():
                pieces[name].insert(0, table)
        for each in known:
            joined = pa.concat_tables([each.whole.slice(0, 0), *pieces[each.split_id]])
            self.same("concatenation", each.split, each.whole, joined, f"cut at {cuts[each.split_id]}")

    def budget(self, each: _Known[SplitT], steps: Sequence[pa.Table]) -> None:
        before = 0
        for (start, stop), table in zip(pairwise(each.cuts), steps, strict=True):
            if (
                table.num_rows > self.rows
                and self.planner.after_rows(self.part(each, start, stop), 1, each.end) != stop
            ):
                what = f"the step of {self.rows} rows from {start} to {stop} holds {table.num_rows} rows"
                raise self.broken("progress", f"{what}, and a smaller step is possible", each.split_id)
            before += table.num_rows
            for first, came in ((each.cuts[0], before), (start, table.num_rows)):
                said = self.planner.rows_before(self.part(each, first, stop), stop)
                if said < came:
                    what = f"rows_before says {said} from {first} to {stop}, and {came} came"
                    raise self.broken("rows", what, each.split_id)

    def same(self, law: str, split: SplitT, expected: pa.Table, got: pa.Table, how: str) -> None:
        if expected.equals(got):
            return
        a, b = _plain(expected), _plain(got)
        if repr(a) == repr(b):
            return  # NaN is not equal to itself
        index = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if repr(x) != repr(y)), min(len(a), len(b)))
        was, now = (repr(rows[index])[:200] if index < len(rows) else "missing" for rows in (a, b))
        raise self.broken(
            law,
            f"split {split.split_id!r}, positions {split.start} to {split.stop}, {how}: {len(a)} rows became {len(b)}, "
            f"row {index} was {was} and is {now}",
        )

    # -- time

    def time(self, known: Sequence[_Known[SplitT]]) -> int:
        column, splits = self.source.event_time, [each.split for each in known]
        schema = self.source.schema
        kind = schema.field(column).type if column in schema.names else None
        if column is not None and kind != _TIME:
            raise self.broken("schema", f"event_time {column!r} is {kind or 'no column'}; expected {_TIME}")
        if self.planner.find_time(splits, 0) is None:
            return 0
        if column is None:
            raise self.broken("time", "find_time is supported, and there is no event_time column that it could search")
        times = sorted({time for each in known for time in _times_us(each.whole, column)})
        if not times:
            return 0
        tried = sorted(
            {times[0] - 1, times[0], times[-1], times[-1] + 1, *(self.random.choice(times) for _ in range(4))}
        )
        for time_us in tried:
            self.search(known, column, time_us)
        return len(tried)

    def search(self, known: Sequence[_Known[SplitT]], column: str, time_us: int) -> None:
        answers = self.planner.find_time([each.split for each in known], time_us) or {}
        for name, found in answers.items():
            if found is not None and not is_position(found, 0):
                what = f"find_time({time_us}) is {found!r}; expected a whole number, 0 or more, or None"
                raise self.broken("time", what, name)
        later = self.planner.find_time([self.part(each, each.cuts[-1], each.cuts[-1]) for each in known], time_us) or {}
        asked = [replace(each.split, start=at) for each in known if (at := answers.get(each.split_id)) is not None]
        claimed = {name: us for name, us in self.planner.claims(asked, time_us).items() if us > EARLIEST_US}
        if strangers := sorted(claimed.keys() - {split.split_id for split in asked}):
            raise self.broken("time", f"claims names split {strangers[0]!r}, which it was not asked about")
        for each in known:
            name, start, stop = each.split_id, each.cuts[0], each.cuts[-1]
            if name not in answers:
                continue  # unknown: planning neither cuts there nor claims
            found = answers[name]
            if name in later and later[name] != found:
                raise self.broken("time", f"{time_us} is at {found} from {start}, at {later[name]} from {stop}", name)
            edge = stop if found is None else min(max(found, start), stop)
            before = self.read([self.part(each, start, edge)])[name]
            if missed := [time for time in _times_us(before, column) if time >= time_us]:
                what = f"find_time({time_us}) is {found}, and a row of {missed[0]} is before it"
                raise self.broken("time", what, name)
            if found is not None and start <= found < stop:
                after, there = self.first_rows(each, column, found)
                looked = bool(there) or stop >= each.end.position
                if name in claimed and looked and not any(time >= time_us for time in there):
                    what = f"and the rows there, up to {after}, are of {there[:5]}, all before it"
                    raise self.broken("time", f"find_time({time_us}) is {found}, {what}", name)
                alone_us = self.planner.claim_us(self.part(each, found, stop), found, time_us)
                for said, us in (("claim_us says", alone_us), ("claims says", claimed.get(name, EARLIEST_US))):
                    if us > time_us or any(time < us for time in there):
                        what = f"and the rows there, up to {after}, are of {min(there, default=None)} and later"
                        raise self.broken("time", f"find_time({time_us}) is {found}, where {said} {us}, {what}", name)

    def first_rows(self, each: _Known[SplitT], column: str, position: int) -> tuple[int, list[int]]:
        """Return the times of the rows in the first step with rows from a position on, and the end of that step."""
        stop, there = each.cuts[-1], list[int]()
        while not there and position < stop:
            after = self.planner.after_rows(self.part(each, position, stop), 1, each.end)
            there = _times_us(self.read([self.part(each, position, after)])[each.split_id], column)
            position = after
        return position, there

    # -- changes

    def removal(self, known: Sequence[_Known[SplitT]]) -> None:
        gone, *others = known
        if not others:
            return
        reader = self.source.create_split_reader()
        try:
            reader.handle_splits_changes(SplitsAddition(tuple(each.split for each in known)))
            reader.handle_splits_changes(SplitsRemoval((gone.split,)))
            reader.handle_splits_changes(SplitsRemoval((gone.split,)))  # already removed, so ignored
            came = self.came(reader, {each.split_id for each in others})
        finally:
            reader.close()
        if gone.split_id in came:
            raise self.broken("changes", f"split {gone.split_id!r} was removed, and gave rows after that")

    def came(self, reader: SplitReader[SplitT], wanted: set[str]) -> set[str]:
        """Fetch until these splits are finished; return the splits that came, with rows or with their end."""
        came, finished = set[str](), set[str]()
        for _ in range(_FETCHES):
            if wanted <= finished:
                return came
            fetched = reader.fetch()
            finished |= fetched.finished_splits
            came |= fetched.finished_splits | {part.split_id for part in fetched.batches}
        raise self.broken("changes", f"{sorted(wanted - finished)} did not finish within {_FETCHES} fetches")


@contextmanager
def _enumeration(
    source: Source[SplitT, StateT], state: StateT | None, readers: int
) -> Iterator[tuple[SplitEnumerator[SplitT, StateT], ManualEnumeratorContext[SplitT]]]:
    """Run an enumerator with so many readers until no work is left; close it in the end."""
    context = ManualEnumeratorContext[SplitT](num_subtasks=_READERS)
    enumerator = source.create_enumerator(context) if state is None else source.restore_enumerator(context, state)
    try:
        enumerator.start()
        for subtask in range(readers):
            context.register(subtask)
            enumerator.add_reader(subtask)
        _settle(enumerator, context)
        yield enumerator, context
    finally:
        enumerator.close()


def _settle(enumerator: SplitEnumerator[SplitT, Any], context: ManualEnumeratorContext[SplitT]) -> None:
    """Do the requested calls; then let every reader ask for splits, until no reader gets a split."""
    before = -1
    while len(context.assigned) > before:
        context.run_async()
        before = len(context.assigned)
        for subtask in sorted(context.registered_readers):
            enumerator.handle_split_request(subtask, None)


def _finish(enumerator: SplitEnumerator[SplitT, Any], context: ManualEnumeratorContext[SplitT]) -> None:
    """Finish every assigned split, and those that follow: the next source of a hybrid one."""
    finished = 0
    while left := context.assigned[finished:]:
        for subtask, split in left:
            enumerator.handle_splits_finished(subtask, [split.split_id])
        finished += len(left)
        _settle(enumerator, context)


def _tables(source: Source[SplitT, StateT], splits: Sequence[SplitT], stalled_seconds: float) -> dict[str, pa.Table]:
    """Read bounded splits. Another process can run this function."""
    parts: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in splits}
    for part in read_slices(source, splits, stalled_seconds=stalled_seconds):
        parts[part.split_id].append(part.rows)
    return {name: pa.Table.from_batches(batches, source.schema) for name, batches in parts.items()}


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values, with times as numbers, because Arrow's times reach further than `datetime`'s."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
    return table.to_pylist()


def _times_us(table: pa.Table, column: str) -> list[int]:
    return [time for time in table.column(column).cast(pa.int64()).to_pylist() if time is not None]


def _ranges(splits: Sequence[SourceSplit]) -> str:
    return ", ".join(f"{split.split_id!r} [{split.start}, {split.stop})" for split in splits)
