"""Checks a split reader against its contract, in every thread. A breach is an error: reading on could lose rows.

Rows belong to an added split, positions never go back and never pass the split's stop, and a split finishes once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from types import TracebackType
from typing import Any, Generic

import pyarrow as pa
from lowmark.sources.api import Fetched, ResultT, Source, SplitReader, SplitRows, SplitsAddition, SplitT
from lowmark.sources.closing import closed_on_error
from lowmark.sources.worker import described
from lowmark.watermark import LowmarkError
from lowmark.watermark.printable import some_of


class BrokenSplitReader(LowmarkError, RuntimeError):
    """A split reader broke its contract."""

    source: str  # the source of the reader
    split: str  # id of the split
    fact: str  # the fault, completing "split 'x' ..."
    expected: str  # the correct behaviour
    _fact = "{source}: split {split!r} {fact}; expected {expected}. Nothing after it was read"
    _hint = "this is a fault of the connector; check_source(source) finds it without Spark."


class SplitReadFailed(LowmarkError, RuntimeError):
    """A split reader raised an error, which is the cause."""

    source: str  # the source of the reader
    splits: tuple[str, ...]  # ids of its splits, each of which may be at fault
    action: str  # the failed action
    cause: str  # type and text of the error

    _fact = "{source}: cannot {action}{_of}: {cause}"
    _hint = "remove the cause and start the query again; it goes on from its checkpoint."

    @property
    def _of(self) -> str:
        return f" of {some_of([repr(split) for split in self.splits], most=10)}" if self.splits else ""


def count_nothing(counted: Mapping[str, float]) -> None:
    """Drop the counts."""


class CheckedReader(Generic[SplitT]):
    """Reads bounded splits by one split reader, group after group. One thread makes all calls except `stop`.

    As a context manager it closes the split reader; an error of closing never hides an earlier error. If fetches bring
    neither rows nor the end of a split for longer than `stalled_seconds`, reading fails.
    """

    def __init__(
        self,
        source: Source[SplitT, Any],
        stalled_seconds: float,
        now_seconds: Callable[[], float],
        count: Callable[[Mapping[str, float]], None] = count_nothing,
    ) -> None:
        self._count = count
        self._source, self._name = source, type(source).__name__
        self._stalled_seconds, self._now_seconds = stalled_seconds, now_seconds
        self._reader: SplitReader[SplitT] | None = None
        self._left: dict[str, SplitT] = {}  # unfinished splits of the group, each with its present `start`
        self._stopped = False

    def read(self, splits: Sequence[SplitT]) -> Iterator[SplitRows]:
        """Read splits to their stops. Raises the errors of `read_slices`."""
        self._left = {split.split_id: split for split in splits}
        reader = self._reader
        if reader is None:
            reader = self._reader = self._attempt("make the split reader", self._source.create_split_reader)
        self._attempt("add", lambda: reader.handle_splits_changes(SplitsAddition(tuple(splits))))
        moved_seconds = self._now_seconds()
        while self._left and not self._stopped:
            fetched = self._attempt("fetch", reader.fetch)
            if (yield from self._checked(fetched)):
                moved_seconds = self._now_seconds()  # after the caller took the rows, which may take long
            elif self._now_seconds() - moved_seconds > self._stalled_seconds:
                raise SplitReadFailed(
                    self._name,
                    tuple(self._left),
                    "fetch",
                    f"nothing came for {self._stalled_seconds:g} seconds, and no end either",
                )

    def stop(self) -> None:
        """End `read` soon, and wake a blocking fetch. For other threads; may be repeated."""
        self._stopped = True
        reader = self._reader
        if reader is not None:
            reader.wake_up()

    def __enter__(self) -> CheckedReader[SplitT]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if error is not None:
            with suppress(Exception):  # the first error says more
                reader.close()
            return
        with closed_on_error(reader.close):
            self._count(self._attempt("count", reader.metric_values))
        self._attempt("close", reader.close)

    def _checked(self, fetched: Fetched) -> Generator[SplitRows, None, bool]:
        """Check and yield fetched rows; move the splits' positions on, and forget finished splits.

        Returns whether anything moved: a batch without a row at an unchanged position is no progress.
        """
        moved = bool(fetched.finished_splits)
        for part in fetched.batches:
            split = self._left.get(part.split_id)
            if split is None:
                raise self._broken(
                    part.split_id, f"gave {part.rows.num_rows} rows", "rows of splits that were added and not finished"
                )
            given: object = part.position  # connectors may ignore the types
            if not isinstance(given, Integral):
                raise self._broken(part.split_id, f"gave rows with position {given!r:.100}", "a whole number")
            if part.position < split.start:
                raise self._broken(
                    part.split_id, f"went back from position {split.start} to {part.position}", "positions that grow"
                )
            if split.stop is not None and part.position > split.stop:
                raise self._broken(
                    part.split_id, f"was read to position {part.position}", f"at most its stop, {split.stop}"
                )
            if not part.rows.schema.equals(self._source.schema):
                raise self._broken(
                    part.split_id,
                    f"gave rows of another schema, {_columns(part.rows.schema)}",
                    _columns(self._source.schema),
                )
            moved |= part.rows.num_rows > 0 or part.position > split.start
            self._left[part.split_id] = replace(split, start=part.position)
            if part.rows.num_rows:
                yield part
        for split_id in fetched.finished_splits:
            if self._left.pop(split_id, None) is None:
                raise self._broken(split_id, "finished", "splits that were added to finish, each once")
        return moved

    def _broken(self, split: str, fact: str, expected: str) -> BrokenSplitReader:
        return BrokenSplitReader(self._name, split, fact, expected)

    def _attempt(self, action: str, call: Callable[[], ResultT]) -> ResultT:
        try:
            return call()
        except LowmarkError:
            raise  # a LowmarkError names its source and split itself
        except Exception as cause:
            raise SplitReadFailed(self._name, tuple(self._left), action, described(cause)) from cause


def _columns(schema: pa.Schema) -> str:
    columns = (f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return f"({', '.join(columns)})"
