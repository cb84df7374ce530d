"""A partitioned log that a test appends to by hand: one file a split, one line a row. The source reads it as any other.

Times are seconds on the axis of `feed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from lowmark.sources import SourceSplit, SplitEnd
from lowmark.sources.simple import SimpleSource

from tests.integration.feed import us

_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Log:
    """The writer's side."""

    folder: Path

    def append(self, split: str, *times: float) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / split).open("a") as file:
            file.writelines(f"{us(time)}\n" for time in times)

    def end(self, split: str, *children: str) -> None:
        """The split gets no more rows; its children carry it on."""
        for child in children:
            (self.folder / child).touch()
            (self.folder / f".{child}.parent").write_text(split)
        (self.folder / f".{split}.end").touch()


class LogSource(SimpleSource[SourceSplit]):
    """The reader's side. `searchable`: whether it can search by time."""

    schema = pa.schema([("ts", _TIME), ("v", pa.int64())])
    discover_every = "200 milliseconds"

    def __init__(self, folder: Path, *, searchable: bool = True) -> None:
        self.folder, self.searchable = folder, searchable

    @property
    def event_time(self) -> str:
        return "ts"

    def discover(self) -> Sequence[SourceSplit]:
        names = sorted(path.name for path in self.folder.glob("[!.]*"))
        return [SourceSplit(split_id=name, parents=self._parents(name)) for name in names]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: self._end(split) for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None] | None:
        if not self.searchable:
            return None
        return {
            split.split_id: next((at for at, us in enumerate(self._rows(split.split_id)) if us >= time_us), None)
            for split in splits
        }

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        assert split.stop is not None
        rows = self._rows(split.split_id)[split.start : split.stop]
        columns = [pa.array(rows, pa.int64()).cast(_TIME), pa.array(range(split.start, split.stop), pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _rows(self, name: str) -> list[int]:
        return [int(line) for line in (self.folder / name).read_text().splitlines()]

    def _end(self, split: SourceSplit) -> SplitEnd:
        rows = len(self._rows(split.split_id))
        ended = (self.folder / f".{split.split_id}.end").exists()
        return SplitEnd(rows, rows=rows - split.start, finished=ended)

    def _parents(self, name: str) -> tuple[str, ...]:
        path = self.folder / f".{name}.parent"
        return (path.read_text(),) if path.exists() else ()
