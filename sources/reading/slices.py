"""Reads the slices of a task, as its source's `Fetching` says: the only way in which rows get into a batch.

    threads = 0     in the task's own thread, group after group of slices
    threads > 0     groups are read ahead side by side (`side_by_side.py`), and come out in their order

Source: FLIP-27; `org.apache.flink.connector.base.source.reader.SourceReaderBase`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

from lowmark.sources.api import Source, SplitRows, SplitT, StateT

from .checked_reader import CheckedReader, count_nothing
from .side_by_side import read_ahead

STALLED_SECONDS = 600.0
"""How long a slice may bring nothing. After that it is an error, because planned rows are known to be there."""


def read_slices(
    source: Source[SplitT, StateT],
    splits: Sequence[SplitT],
    *,
    stalled_seconds: float = STALLED_SECONDS,
    now_seconds: Callable[[], float] = time.monotonic,
    count: Callable[[Mapping[str, float]], None] = count_nothing,
) -> Generator[SplitRows]:
    """Read splits to their stops.

    Split readers are closed after the last row, when the caller stops asking, and after an error.

    Args:
        splits: each with a `stop`, each id once.
        stalled_seconds: how long fetches may bring neither rows nor the end of a split.
        count: gets the counts of each split reader by name, in the thread of that reader.

    Returns:
        Rows in order within each split; empty batches are left out. With `Fetching(splits_at_once=1)` the splits
        come one after another, in the given order.

    Raises:
        ValueError: a split has no stop, or an id comes twice; nothing was read.
        BrokenSplitReader: a reader broke its contract, or its rows are not of `source.schema`.
        SplitReadFailed: a reader raised an error (its cause), or stalled. A `LowmarkError` is passed on unchanged.

    >>> from lowmark.sources.generator import GeneratorSource
    >>> from lowmark.sources.generator import SplitScript, StreamScript
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
    fetching = source.fetching
    at_once = max(1, len(splits)) if fetching.splits_at_once is None else fetching.splits_at_once
    groups = [splits[begin : begin + at_once] for begin in range(0, len(splits), at_once)]
    make = partial(CheckedReader[SplitT], source, stalled_seconds, now_seconds, count)
    if fetching.threads == 0:
        return _read_here(make, groups)
    return read_ahead(type(source).__name__, make, groups, fetching)


def _read_here(make: Callable[[], CheckedReader[SplitT]], groups: Sequence[Sequence[SplitT]]) -> Generator[SplitRows]:
    with make() as reader:
        for group in groups:
            yield from reader.read(group)
