"""The generator: a source over a scripted stream, for demos, tests and benchmarks. No server, no file.

Rows do not depend on a clock, so one seed gives one result on any machine. (Spark's `rate-micro-batch` is the model.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from lowmark.sources.api import SourceSplit, SplitEnd
from lowmark.sources.kit.simple import SimpleSource
from lowmark.watermark.errors import shown

from .script import SCHEMA, InvalidScript, StreamScript, check_whole

_BATCH_ROWS = 65_536
_ROW_BYTES = 24  # number, event time, the length of the name; and the name


class GeneratorSource(SimpleSource[SourceSplit]):
    """Reads a scripted stream.

    Columns: `split` (string), `number` (bigint, its number within the split), `event_time`.

    Args:
        seed: any integer; one seed always gives the same rows.
        bounded: whether the end of the script is the end of the stream; otherwise it goes silent there, like a live
            stream at night. Splits that have children end in any case.
        ticks_per_batch: the number of ticks that arrive for each batch beyond the read ticks, 1 or more; None: all
            ticks have arrived. With a number, a run up to the present (`availableNow`) is one batch.

    >>> from lowmark.sources.generator import SplitScript
    >>> source = GeneratorSource(StreamScript((SplitScript("a", 2),), 0, 3, 1_000_000, 1), seed=7)
    >>> (split,) = source.discover()
    >>> source.latest([split])
    {'a': SplitEnd(position=4, rows=7, size_bytes=175, finished=False)}
    """

    schema = SCHEMA
    event_time = "event_time"
    discover_every = None

    def __init__(
        self, script: StreamScript, *, seed: int, bounded: bool = False, ticks_per_batch: int | None = None
    ) -> None:
        given: object = script
        if not isinstance(given, StreamScript):
            raise InvalidScript("script", "a StreamScript", shown(given))
        check_whole(seed, "seed")
        if ticks_per_batch is not None:
            check_whole(ticks_per_batch, "ticks_per_batch")
            if ticks_per_batch < 1:
                raise InvalidScript("ticks_per_batch", "1 or more", str(ticks_per_batch))
        self.script, self.seed, self.bounded, self.ticks_per_batch = script, seed, bounded, ticks_per_batch

    def __repr__(self) -> str:
        return f"GeneratorSource({len(self.script.splits)} splits, {self.script.ticks} ticks, seed={self.seed})"

    def discover(self) -> Sequence[SourceSplit]:
        return [
            SourceSplit(split_id=split.name, start=split.from_tick, parents=split.parents)
            for split in self.script.splits
        ]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: self._end(split, self.ticks_per_batch) for split in splits}

    def after_rows(self, split: SourceSplit, rows: int, end: SplitEnd) -> int:
        ticks = range(split.start + 1, end.position + 1)
        fits = bisect_right(ticks, rows, key=lambda tick: self.rows_before(split, tick))
        return ticks[max(0, fits - 1)]

    def rows_before(self, split: SourceSplit, position: int) -> int:
        return self.script.count_rows(split.split_id, split.start, position)

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        return {split.split_id: self.script.first_at(split.split_id, time_us, seed=self.seed) for split in splits}

    def claim_us(self, split: SourceSplit, position: int, time_us: int) -> int:
        return min(time_us, self.script.begins_us(split.split_id, position))

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.RecordBatch, int]]:
        position, end = split.start, self._end(split)
        while position < end.position:
            after = self.after_rows(SourceSplit(split_id=split.split_id, start=position), _BATCH_ROWS, end)
            yield self.script.rows(split.split_id, position, after, seed=self.seed), after
            position = after

    def _end(self, split: SourceSplit, ticks: int | None = None) -> SplitEnd:
        """Return where a split ends; with `ticks`, at most so many ticks after its start."""
        parent_end = self.script.ends_at(split.split_id)
        last = self.script.end if parent_end is None else parent_end
        position = last if split.stop is None else min(split.stop, last)
        finished = self.bounded or parent_end is not None or position == split.stop
        if ticks is not None and position > split.start + ticks:
            position, finished = split.start + ticks, False
        rows = self.rows_before(split, position)
        return SplitEnd(
            position=max(position, split.start),
            rows=rows,
            size_bytes=rows * (_ROW_BYTES + len(split.split_id)),
            finished=finished,
        )
