"""Readers around a `SplitReader`: one with a thread, for a reader that lives on, and one without, for a range of rows.

    read_slices           reads bounded splits to their end, in the caller's thread: what a task of a batch does
    SplitFetcherReader    a `SourceReader`: a thread fetches into a short queue while earlier rows are worked on

Both hold a split reader to its contract: rows belong to a split that was added, positions never go back and never pass
the split's stop, and a split finishes once. What breaks it is an error that names source, split and position, since
rows read on from a wrong position are rows lost.

Source: FLIP-27, FLIP-217; `org.apache.flink.connector.base.source.reader`: `SourceReaderBase`, `SplitFetcherManager`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic

import pyarrow as pa
from lowmark.watermark import DuplicateSplit, LowmarkError

from .api import (
    Fetched,
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitReader,
    SplitRows,
    SplitsAddition,
    SplitT,
    StateT,
)
from .fetcher import SplitFetcher, SplitPauseUnsupported, SplitReadFailed

__all__ = [
    "BrokenSplitReader",
    "RecordEvaluator",
    "SplitFetcherReader",
    "SplitPauseUnsupported",
    "SplitReadFailed",
    "read_slices",
]

RecordEvaluator = Callable[[str, pa.RecordBatch], "int | None"]
"""(split id, rows) -> index of the first row that ends the split, None if none does (Flink's `RecordEvaluator`)."""

STALLED_SECONDS = 600.0
"""How long a slice may bring nothing before it is an error: rows that were planned are there, so something is wrong."""


class BrokenSplitReader(LowmarkError, RuntimeError):
    """A split reader did what its contract forbids.

    Attributes:
        source: whose reader.
        split: id of the split.
        fact: what it did, completing "split 'x' ...".
        expected: what would have been right.
    """

    def __init__(self, source: str, split: str, fact: str, expected: str) -> None:
        super().__init__(source, split, fact, expected)
        self.source, self.split, self.fact, self.expected = source, split, fact, expected

    def __str__(self) -> str:
        return (
            f"{self.source}: split {self.split!r} {self.fact}; expected {self.expected}. Nothing after it was read. "
            "Hint: this is a fault of the connector; check_source(source) finds it without Spark."
        )


def check_rows(source: str, split: SourceSplit, part: SplitRows) -> None:
    """Check the position of rows that were read of a split whose `start` is where it stood before them.

    Raises:
        BrokenSplitReader: the position went back, or beyond the split's stop.
    """
    if part.position < split.start:
        raise BrokenSplitReader(
            source, split.split_id, f"went back from position {split.start} to {part.position}", "positions that grow"
        )
    if split.stop is not None and part.position > split.stop:
        raise BrokenSplitReader(
            source, split.split_id, f"was read to position {part.position}", f"at most its stop, {split.stop}"
        )


def read_slices(
    source: Source[SplitT, StateT],
    splits: Sequence[SplitT],
    *,
    stalled_seconds: float = STALLED_SECONDS,
    now_seconds: Callable[[], float] = time.monotonic,
) -> Iterator[SplitRows]:
    """Read splits to their stops, all of them by one split reader, in this thread.

    The split reader is closed when the rows are at their end, when the caller stops asking, and when anything fails.

    Args:
        source: makes the split reader, and says what its rows look like.
        splits: each with a `stop`; each id once. None at all are read at once.
        stalled_seconds: how long fetches may bring neither rows nor the end of a split.
        now_seconds: a clock that never goes back.

    Returns:
        Rows in order within each split; empty batches are left out.

    Raises:
        ValueError: a split has no stop, or an id comes twice; nothing was read.
        BrokenSplitReader: the reader broke its contract (see the module), or its rows are not of `source.schema`.
        SplitReadFailed: the reader raised an error (its cause), or stalled. A `LowmarkError` is passed on as it is.

    >>> from lowmark.sources.generator import GeneratorSource
    >>> from lowmark.sources.script import SplitScript, StreamScript
    >>> from lowmark.sources import SourceSplit
    >>> source = GeneratorSource(StreamScript((SplitScript("a", 2),), 0, 3, 1_000_000, 1), seed=7)
    >>> [(part.split_id, part.rows.num_rows, part.position) for part in
    ...  read_slices(source, [SourceSplit(split_id="a", start=1, stop=3)])]
    [('a', 4, 3)]
    """
    seen: set[str] = set()
    for split in splits:
        if split.stop is None:
            raise ValueError(f"split {split.split_id!r} has no stop, so it cannot be read to its end. Hint: plan one.")
        if split.split_id in seen:
            raise ValueError(f"split {split.split_id!r} is to be read twice at once. Hint: give each split once.")
        seen.add(split.split_id)
    return _read(source, splits, stalled_seconds, now_seconds)


def _read(
    source: Source[SplitT, StateT], splits: Sequence[SplitT], stalled_seconds: float, now_seconds: Callable[[], float]
) -> Iterator[SplitRows]:
    if not splits:
        return
    name, schema, left = type(source).__name__, source.schema, {split.split_id: split for split in splits}
    reader = _attempt(name, left, "make the split reader", source.create_split_reader)
    try:
        _attempt(name, left, "add", lambda: reader.handle_splits_changes(SplitsAddition(tuple(splits))))
        moved_seconds = now_seconds()
        while left:
            fetched = _attempt(name, left, "fetch", reader.fetch)
            if fetched.batches or fetched.finished_splits:
                moved_seconds = now_seconds()
            elif now_seconds() - moved_seconds > stalled_seconds:
                raise SplitReadFailed(
                    name, tuple(left), "fetch", f"nothing came for {stalled_seconds:g} seconds, and no end either"
                )
            yield from _taken(name, schema, left, fetched)
    except BaseException:
        _close_after_error(reader)
        raise
    else:
        _attempt(name, {split.split_id: split for split in splits}, "close", reader.close)


def _taken(name: str, schema: pa.Schema, left: dict[str, SplitT], fetched: Fetched) -> Iterator[SplitRows]:
    """Yield what was fetched, checked; keep in `left` where each split stands, and forget the finished."""
    for part in fetched.batches:
        split = left.get(part.split_id)
        if split is None:
            raise BrokenSplitReader(
                name,
                part.split_id,
                f"gave {part.rows.num_rows} rows",
                "rows of splits that were added and not finished",
            )
        check_rows(name, split, part)
        if not part.rows.schema.equals(schema):
            raise BrokenSplitReader(
                name, part.split_id, f"gave rows of another schema, {_columns(part.rows.schema)}", _columns(schema)
            )
        left[part.split_id] = replace(split, start=part.position)
        if part.rows.num_rows:
            yield part
    for split_id in fetched.finished_splits:
        if left.pop(split_id, None) is None:
            raise BrokenSplitReader(name, split_id, "finished", "splits that were added to finish, each once")


def _columns(schema: pa.Schema) -> str:
    return (
        "(" + ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema) + ")"
    )


def _attempt(source: str, splits: dict[str, SplitT], action: str, call: Callable[[], StateT]) -> StateT:
    try:
        return call()
    except LowmarkError:
        raise  # it names its source and split itself
    except Exception as cause:
        raise SplitReadFailed.of(source, splits, action, cause) from cause


def _close_after_error(reader: SplitReader[SplitT]) -> None:
    try:
        reader.close()
    except Exception as second:  # noqa: BLE001  # the first error says more
        del second


class SplitFetcherReader(SourceReader[SplitT], Generic[SplitT]):
    """A source reader that fetches in a thread of its own while the rows fetched before are worked on.

    Every method is for one thread, the task's; the split reader is made, called and closed in the fetcher's.

    Args:
        create_split_reader: makes the split reader.
        context: where it counts: `records_in`, `bytes_in`, `finished_splits`, `assigned_splits`.
        allow_unaligned: whether splits that cannot be paused run on; otherwise pausing one is an error.
        record_evaluator: ends a split at a row of a kind: that row and those after it are not put out.
        queue_capacity: how many fetches wait to be put out, 1 or more.
        close_seconds: how long `close` waits for a fetch that does not wake up. Its thread is left behind then.
        source: name of the source in errors; by default the class that makes the split readers.

    `poll_next` raises `SplitReadFailed` when the split reader failed (after the rows that came before it were put out),
    `SplitPauseUnsupported` when it cannot pause, `BrokenSplitReader` when it broke its contract.
    """

    def __init__(
        self,
        create_split_reader: Callable[[], SplitReader[SplitT]],
        context: SourceReaderContext,
        *,
        allow_unaligned: bool = False,
        record_evaluator: RecordEvaluator | None = None,
        queue_capacity: int = 2,
        close_seconds: float = 30.0,
        source: str | None = None,
    ) -> None:
        maker = getattr(create_split_reader, "__self__", None)
        self._source = source if source is not None else type(maker).__name__ if maker else "source"
        self._fetcher = SplitFetcher(
            create_split_reader,
            source=self._source,
            name=f"lowmark-fetcher-{self._source}-{context.subtask}",
            allow_unaligned=allow_unaligned,
            capacity=queue_capacity,
        )
        self._record_evaluator, self._close_seconds = record_evaluator, close_seconds
        self._splits: dict[str, SplitT] = {}  # `start` is after the rows that were put out
        self._no_more_splits = False
        metrics = context.metric_group
        self._records, self._bytes = metrics.counter("records_in"), metrics.counter("bytes_in")
        self._finished = metrics.counter("finished_splits")
        metrics.gauge("assigned_splits", lambda: len(self._splits))

    def start(self) -> None:
        self._fetcher.start()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        fetched = self._fetcher.take()
        if fetched is not None:
            for part in fetched.batches:
                self._put_out(part, output)
            for split_id in sorted(fetched.finished_splits):
                self._finish(split_id, output)
        if self._fetcher.has_more:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_INPUT if self._at_end else InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None]:
        if self._at_end:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._fetcher.available()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        for split in splits:
            if split.split_id in self._splits:
                raise DuplicateSplit(split.split_id)
            self._splits[split.split_id] = split
        self._fetcher.add(splits)

    def notify_no_more_splits(self) -> None:
        self._no_more_splits = True
        if self._at_end:
            self._fetcher.signal()

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SplitT]:
        del checkpoint_id  # where the splits stand is known at any time
        return tuple(self._splits.values())

    def pause_or_resume_splits(self, to_pause: Sequence[str], to_resume: Sequence[str]) -> None:
        """Have the fetcher pause and resume; that a split cannot be paused comes out of `poll_next`."""
        pause, resume = ([self._splits[name] for name in ids if name in self._splits] for ids in (to_pause, to_resume))
        if pause or resume:
            self._fetcher.pause_or_resume(pause, resume)

    def close(self) -> None:
        self._fetcher.close(self._close_seconds)

    @property
    def _at_end(self) -> bool:
        return self._no_more_splits and not self._splits

    def _put_out(self, part: SplitRows, output: ReaderOutput) -> None:
        split = self._splits.get(part.split_id)
        if split is None:
            return  # fetched before a row ended the split
        check_rows(self._source, split, part)
        rows, end = part.rows, None
        if self._record_evaluator is not None and rows.num_rows:
            end = self._record_evaluator(part.split_id, rows)
            if end is not None:
                rows = rows.slice(0, end)
        if rows.num_rows:
            output.collect(part.split_id, rows)
            self._records.inc(rows.num_rows)
            self._bytes.inc(rows.nbytes)
        self._splits[part.split_id] = replace(split, start=part.position)
        if end is not None:
            self._fetcher.remove(split)
            self._finish(part.split_id, output)

    def _finish(self, split_id: str, output: ReaderOutput) -> None:
        if self._splits.pop(split_id, None) is not None:
            self._finished.inc()
            output.release(split_id)
