"""A short source that keeps every law, as a base for sources that break a single law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from lowmark.sources import SimpleSource, SourceSplit, SplitEnd

SCHEMA = pa.schema([("number", pa.int64()), ("event_time", pa.timestamp("us", tz="UTC"))])
ROWS = 40
SECOND_US = 1_000_000


class Numbered(SimpleSource[SourceSplit]):
    """Three splits of `ROWS` numbers each; a number is a position and a time in seconds."""

    schema = SCHEMA
    event_time: str | None = "event_time"
    names: tuple[str, ...] = ("a", "b", "c")

    def discover(self) -> Sequence[SourceSplit]:
        return [SourceSplit(split_id=name) for name in self.names]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(position=ROWS) for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        second = max(0, -(-time_us // SECOND_US))
        return {split.split_id: second if second < ROWS else None for split in splits}

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch | tuple[pa.RecordBatch, int]]:
        assert split.stop is not None
        for first in range(split.start, split.stop, 16):
            yield self.batch(range(first, min(first + 16, split.stop)))

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch(
            [pa.array(numbers, pa.int64()), pa.array([number * SECOND_US for number in numbers], SCHEMA.field(1).type)],
            schema=SCHEMA,
        )
