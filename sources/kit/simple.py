"""A connector in forty lines: `schema`, `discover` the splits, `latest` for their ends, and `read` the rows of a range.

The rest of FLIP-27 is made from these four: an enumerator that looks for new splits every `discover_every`, a planner,
a split reader, and the formats of checkpoints. `check_source` tests whether the four keep the law: the offset fixes the
rows. For this law `read` must always give the same rows for the same range.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Generic, TypeAlias

import pyarrow as pa
from lowmark.sources.api import (
    Fetched,
    SplitChange,
    SplitEnd,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitPlanner,
    SplitReader,
    SplitRows,
    SplitsAddition,
    SplitT,
)
from lowmark.sources.metric_group import MetricGroup
from lowmark.sources.reading.checked_reader import BrokenSplitReader
from lowmark.watermark import InvalidDuration, duration_us
from lowmark.watermark.errors import shown

from .discovered_source import DiscoveredSource
from .discovery import DiscoveredSplits, DiscoveringEnumerator

Rows: TypeAlias = "pa.RecordBatch | tuple[pa.RecordBatch | pa.Table, int]"
"""Rows, if a position is a row; otherwise (rows, the position after the rows). A table is one step, in batches."""

_BATCH_ROWS = 65_536


class SimpleSource(DiscoveredSource[SplitT, DiscoveredSplits[SplitT]], Generic[SplitT]):
    """A base for connectors whose splits can be read by position.

    The object is pickled to executors. Nobody calls it to close connections, so its connections must end with the
    object, without threads or event loops of their own.

    Attributes:
        split_type: the dataclass of its splits; set it for a type other than `SourceSplit`.
        bounded: whether it ends: splits are discovered once, and each split has a `finished` end.
        discover_every: how often to look for new splits, a duration; None: once.

    >>> from lowmark.sources import SourceSplit
    >>> class Numbers(SimpleSource[SourceSplit]):
    ...     schema = pa.schema([("number", pa.int64())])
    ...     def discover(self):
    ...         return [SourceSplit(split_id="numbers")]
    ...     def latest(self, splits):
    ...         return {split.split_id: SplitEnd(position=100, finished=True) for split in splits}
    ...     def read(self, split):
    ...         yield pa.record_batch({"number": range(split.start, split.stop)}, self.schema)
    >>> from lowmark.sources.reading.slices import read_slices
    >>> [part.rows["number"].to_pylist() for part in
    ...  read_slices(Numbers(), [SourceSplit(split_id="numbers", start=7, stop=9)])]
    [[7, 8]]
    """

    discover_every: str | timedelta | None = "1 minute"

    # -- methods of a connector

    @abstractmethod
    def discover(self) -> Sequence[SplitT]:
        """List the present splits, each with the `start` for its first row.

        Runs on the driver on one of two threads, while another thread may call `latest` and `find_time`.
        """

    @abstractmethod
    def latest(self, splits: Sequence[SplitT]) -> Mapping[str, SplitEnd]:
        """Return the present end of each split (`SplitPlanner.latest`); `SimplePlanner` minds stops."""

    @abstractmethod
    def read(self, split: SplitT) -> Iterator[Rows]:
        """Read the rows of `split` from its start up to and without its stop, which is never None. Runs on executors.

        A batch without a position counts one position for each row, and then all rows up to the stop must come. If
        positions are not rows, or have gaps, give each batch with the position after the batch. A range without a row
        counts as a gap, so raise an error if rows of the range are missing.
        """

    def find_time(self, splits: Sequence[SplitT], time_us: int) -> Mapping[str, int | None] | None:
        """Find where in each split a time begins (`SplitPlanner.find_time`); None: a search is not possible."""
        del splits, time_us
        return None

    def claim_us(self, split: SplitT, position: int, time_us: int) -> int:
        """Say which time a split has passed (`SplitPlanner.claim_us`); earlier if a position has several rows."""
        del split, position
        return time_us

    def after_rows(self, split: SplitT, rows: int, end: SplitEnd) -> int:
        """Return the position after about `rows` rows (`SplitPlanner.after_rows`)."""
        return min(split.start + max(1, rows), end.position)

    def rows_before(self, split: SplitT, position: int) -> int:
        """Return the largest possible number of rows from the start to `position` (`SplitPlanner.rows_before`)."""
        return max(0, position - split.start)

    # -- derived from these methods

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: DiscoveredSplits[SplitT]
    ) -> SplitEnumerator[SplitT, DiscoveredSplits[SplitT]]:
        every = self.discover_every
        period_us = None if every is None else duration_us(every, what="discover_every")
        if period_us == 0:
            hint = "use more than 0, or None to look once."
            raise InvalidDuration("discover_every", shown(every), "each look lists all splits", hint)
        return DiscoveringEnumerator(
            context,
            self.discover,
            period_seconds=None if period_us is None else period_us / 1_000_000,
            bounded=self.bounded,
            known=state,
            source=type(self).__name__,
        )

    def create_planner(self) -> SplitPlanner[SplitT]:
        return SimplePlanner(self)

    def create_split_reader(self) -> SplitReader[SplitT]:
        return SimpleSplitReader(self)


class SimplePlanner(SplitPlanner[SplitT], Generic[SplitT]):
    """A planner that asks a `SimpleSource`."""

    def __init__(self, source: SimpleSource[SplitT]) -> None:
        self._source = source

    def latest(self, splits: Sequence[SplitT]) -> Mapping[str, SplitEnd]:
        stops = {split.split_id: split.stop for split in splits}
        method, ends = f"{type(self._source).__name__}.latest", self._source.latest(splits)
        given: object = ends  # connectors may ignore the types
        if not isinstance(given, Mapping):
            raise TypeError(f"{method} returned {shown(given)}, expected a mapping from the ids of splits to SplitEnds")
        name: object
        for name, end in given.items():
            if not isinstance(name, str):
                raise TypeError(f"{method} returned an end for {shown(name)}, expected the id of a split, a text")
            if not isinstance(end, SplitEnd):
                wanted = "expected a SplitEnd. Hint: leave out a split that cannot be read at present"
                raise TypeError(f"{method} returned {shown(end)} for split {name!r}, {wanted}")
        return {name: _bounded(end, stops.get(name)) for name, end in ends.items()}

    def after_rows(self, split: SplitT, rows: int, end: SplitEnd) -> int:
        return self._source.after_rows(split, rows, end)

    def rows_before(self, split: SplitT, position: int) -> int:
        return self._source.rows_before(split, position)

    def find_time(self, splits: Sequence[SplitT], time_us: int) -> Mapping[str, int | None] | None:
        found = self._source.find_time(splits, time_us)
        given: object = found  # connectors may ignore the types
        if given is not None and not isinstance(given, Mapping):
            method, wanted = f"{type(self._source).__name__}.find_time", "a mapping from the ids of splits to positions"
            raise TypeError(f"{method} returned {shown(given)}, expected {wanted}, or None")
        return found

    def claim_us(self, split: SplitT, position: int, time_us: int) -> int:
        return self._source.claim_us(split, position, time_us)


def _bounded(end: SplitEnd, stop: int | None) -> SplitEnd:
    return end if stop is None or end.position < stop else replace(end, position=stop, finished=True)


class SimpleSplitReader(SplitReader[SplitT], Generic[SplitT]):
    """Reads splits in turn through `SimpleSource.read`, up to their stops, with one batch in each fetch."""

    def __init__(self, source: SimpleSource[SplitT]) -> None:
        self._source, self._name = source, type(source).__name__
        self.metrics = MetricGroup()
        # The splits to read, the present split first. An OrderedDict, because a dict looks through removed entries.
        self._splits: OrderedDict[str, SplitT] = OrderedDict()
        self._fetches: Generator[tuple[SplitRows, ...]] | None = None  # of the present split, once it is begun

    def fetch(self) -> Fetched:
        split = next(iter(self._splits.values()), None)
        if split is None:
            return Fetched()
        if self._fetches is None:
            self._fetches = self._read(split)
        parts = next(self._fetches, None)
        if parts is None:
            raise BrokenSplitReader(self._name, split.split_id, "was asked to go on after an error", "a new reader")
        if parts:
            return Fetched(batches=parts)
        self._fetches = None
        del self._splits[split.split_id]
        return Fetched(finished_splits=frozenset([split.split_id]))

    def handle_splits_changes(self, change: SplitChange[SplitT]) -> None:
        if isinstance(change, SplitsAddition):
            self._splits.update((split.split_id, split) for split in change.splits)
            return
        for split in change.splits:
            if split.split_id == next(iter(self._splits), None):
                self._stop_reading()
            self._splits.pop(split.split_id, None)

    def read(self, split: SplitT) -> Iterator[Rows]:
        """Read a split. A reader with counts overrides this and counts in `metrics`."""
        return self._source.read(split)

    def metric_values(self) -> Mapping[str, float]:
        return self.metrics.values()

    def wake_up(self) -> None:
        """Do nothing, because a fetch waits only for `SimpleSource.read`."""

    def close(self) -> None:
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._fetches is not None:
            self._fetches.close()
            self._fetches = None

    def _read(self, split: SplitT) -> Generator[tuple[SplitRows, ...]]:
        """Read a split, fetch by fetch; the last is empty. After an error there is no last one."""
        assert split.stop is not None, "slices have one"
        if split.start == split.stop:
            yield ()
            return
        split_id, position, dense = split.split_id, split.start, False
        given_rows = self.read(split)
        try:
            for given in given_rows:
                if isinstance(given, pa.RecordBatch):
                    dense, position = True, position + given.num_rows
                    yield (SplitRows(split_id, given, position),)
                    continue
                before = position
                match given:
                    case (pa.RecordBatch() | pa.Table() as rows, position):
                        pass
                    case _:
                        raise BrokenSplitReader(
                            self._name,
                            split_id,
                            f"gave a {type(given).__name__}",
                            "a RecordBatch, or rows and the position after them as (rows, position)",
                        )
                batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches(_BATCH_ROWS)
                *inside, last = batches or [pa.RecordBatch.from_pylist([], rows.schema)]
                # A step has no position inside to go on from, so its batches stay together in one fetch.
                yield (*(SplitRows(split_id, batch, before) for batch in inside), SplitRows(split_id, last, position))
        finally:
            if isinstance(given_rows, Generator):
                given_rows.close()
        if dense and position < split.stop:
            raise BrokenSplitReader(
                self._name,
                split_id,
                f"ended at position {position}",
                f"rows up to {split.stop}, as no gaps were given (yield rows, position where there are)",
            )
        yield ()
