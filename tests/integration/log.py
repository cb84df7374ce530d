"""A partitioned log that a test appends to by hand: one file a split, one line a row. A source of ours reads it.

Times are seconds on the axis of `feed.py`. The sources stand here because every Python process of a query imports the
module of its source, and the import of a test's module takes a second longer.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from lowmark.sources import (
    ExternallyInducedSourceReader,
    InputStatus,
    ReaderOutput,
    SourceReaderContext,
    SourceSplit,
    SplitEnd,
    SplitEnumeratorContext,
    SplitPlanner,
)
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator
from lowmark.sources.kit.simple import SimpleSource, SimpleSplitReader

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
        """End a split, which gets no more rows; its children continue it."""
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


# -- logs with other ways of reading


@dataclass(frozen=True)
class Faults:
    """Causes a fault as often as its file has letters, because planner, tasks and test are separate processes."""

    folder: Path

    def cause(self, fault: str, *, times: int) -> None:
        (self.folder / fault).write_text("x" * times)

    def mend(self, fault: str) -> None:
        (self.folder / fault).unlink()

    def present(self, fault: str) -> bool:
        file = self.folder / fault
        left = file.read_text() if file.exists() else ""
        if left:
            file.write_text(left[1:])
        return bool(left)

    def strike(self, fault: str) -> None:
        if self.present(fault):
            raise ConnectionError(f"cannot {fault}: nobody answers")


class FaultyEnumerator(DiscoveringEnumerator[SourceSplit]):
    faults: Faults

    def start(self) -> None:
        if self.faults.present("hang"):
            threading.Event().wait()
        super().start()

    def snapshot_state(self, checkpoint_id: int) -> DiscoveredSplits[SourceSplit]:
        self.faults.strike("snapshot")
        return super().snapshot_state(checkpoint_id)


class FaultyLog(LogSource):
    """A log whose methods fail on request, or that breaks the law: it returns other rows on a second read."""

    def __init__(self, log: Log, faults: Faults) -> None:
        super().__init__(log.folder)
        self.faults = faults

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SourceSplit], state: DiscoveredSplits[SourceSplit]
    ) -> FaultyEnumerator:
        made = FaultyEnumerator(context, self.discover, period_seconds=60, known=state, source="FaultyLog")
        made.faults = self.faults
        return made

    def discover(self) -> Sequence[SourceSplit]:
        self.faults.strike("discover")
        return super().discover()

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        self.faults.strike("latest")
        return super().latest(splits)

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        (rows,) = super().read(split)
        if self.faults.present("fewer"):
            rows = rows.slice(1)
        if self.faults.present("other"):
            negative = pa.array([-1 - number for number in range(len(rows))], pa.int64())
            rows = rows.set_column(rows.schema.get_field_index("v"), rows.schema.field("v"), negative)
        yield rows.slice(0, 1)
        self.faults.strike("read")
        yield rows.slice(1)


class SkippingReader(SimpleSplitReader[SourceSplit]):
    """Counts a loss that it has passed."""

    def metric_values(self) -> Mapping[str, float]:
        return {**super().metric_values(), "data_losses": 1}


class SkippingLog(LogSource):
    def create_split_reader(self) -> SkippingReader:
        return SkippingReader(self)


class WatchedLog(LogSource):
    """A log whose planner writes down the id of its process, and kills the process on request."""

    @property
    def pid(self) -> Path:
        return self.folder.parent / "planner"

    @property
    def order(self) -> Path:
        return self.folder.parent / "order"

    def create_planner(self) -> SplitPlanner[SourceSplit]:
        self.pid.write_text(str(os.getpid()))
        return super().create_planner()

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        if self.order.exists():
            self.order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().latest(splits)


class CuttingReader(ExternallyInducedSourceReader[SourceSplit]):
    """Takes a checkpoint after every seven rows of each split. In a task it reads its given slices."""

    def __init__(self, source: CuttingLog) -> None:
        self.source, self.splits = source, dict[str, SourceSplit]()

    def start(self) -> None: ...
    def notify_no_more_splits(self) -> None: ...
    def close(self) -> None: ...

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.splits |= {split.split_id: split for split in splits}

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if not self.splits:
            return InputStatus.END_OF_INPUT
        split_id, split = self.splits.popitem()
        for rows in self.source.read(split):
            output.collect(split_id, rows)
        return InputStatus.MORE_AVAILABLE

    def is_available(self) -> Future[None]:
        raise AssertionError("there is always more, or an end")

    def should_trigger_checkpoint(self) -> int | None:
        stops = [split.start for split in self._cut()]
        return sum(stops) if stops != [split.start for split in self.splits.values()] else None

    def snapshot_state(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        self.splits = {split.split_id: split for split in self._cut()}
        assert checkpoint_id == sum(split.start for split in self.splits.values())
        return list(self.splits.values())

    def _cut(self) -> list[SourceSplit]:
        ends = self.source.latest(list(self.splits.values()))
        return [replace(s, start=min(s.start + 7, ends[name].position)) for name, s in self.splits.items()]


class CuttingLog(LogSource):
    externally_induced = True

    def create_reader(self, context: SourceReaderContext) -> CuttingReader:
        return CuttingReader(self)
