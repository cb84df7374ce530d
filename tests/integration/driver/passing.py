"""A stream whose splits appear, are read in one batch and end, as files do; planner and run, without Spark."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from lowmark.integration.driver.known_planner import KnownPlanner
from lowmark.integration.driver.planned_splits import PlannedSplits
from lowmark.integration.driver.stream import Stream
from lowmark.integration.driver.stream_run import StreamRun
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.integration.transport.recorder import SPLIT_TYPE, RecordedMeasure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.sources import SourceSplit, SplitEnd, SplitEnumerator, SplitEnumeratorContext
from lowmark.sources.kit.discovery import DiscoveredSplits, DiscoveringEnumerator
from lowmark.sources.kit.simple import SimpleSource
from lowmark.sources.planning.offset import BatchOffset
from lowmark.sources.planning.options import PlanOptions
from lowmark.sources.planning.peer import Guidance, Planned
from lowmark.sources.planning.planner import BatchPlanner
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.integration.driver.reported import accumulated, report_of

SECOND = 1_000_000
KEY = SplitKey(("split_id",), (SPLIT_TYPE,))
ROWS = 10


def name_of(number: int) -> str:
    return f"day={number // 10_000:04}/part-{number:08}.parquet"


def number_of(split_id: str) -> int:
    return int(split_id[-16:-8])


class Folder(SimpleSource[SourceSplit]):
    """Files of ten rows, a second each. Only the newest `listed` files are in the folder; older files were moved away.

    Args:
        remember: least number of files whose names the state keeps.
        listed: number of files that stay in the folder.
    """

    schema = pa.schema([("at", pa.int64())])
    event_time = "at"

    def __init__(self, *, remember: int, listed: int) -> None:
        self.remember, self.there = remember, deque[int](maxlen=listed)
        self.made = 0
        self.enumerator: DiscoveringEnumerator[SourceSplit] | None = None

    def add(self, files: int) -> None:
        self.there.extend(range(self.made, self.made + files))
        self.made += files

    def discover(self) -> Sequence[SourceSplit]:
        return [SourceSplit(split_id=name_of(number)) for number in self.there]

    def latest(self, splits: Sequence[SourceSplit]) -> Mapping[str, SplitEnd]:
        return {split.split_id: SplitEnd(ROWS, rows=ROWS, finished=True) for split in splits}

    def find_time(self, splits: Sequence[SourceSplit], time_us: int) -> Mapping[str, int | None]:
        rows = {split.split_id: -(-time_us // SECOND) - ROWS * number_of(split.split_id) for split in splits}
        return {split_id: max(0, row) if row < ROWS else None for split_id, row in rows.items()}

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError("nobody reads")

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SourceSplit], state: DiscoveredSplits[SourceSplit]
    ) -> SplitEnumerator[SourceSplit, DiscoveredSplits[SourceSplit]]:
        self.enumerator = DiscoveringEnumerator(
            context, self.discover, period_seconds=None, bounded=self.bounded, known=state, source="folder",
            stamp_of=lambda split: number_of(split.split_id), remember=self.remember,
        )  # fmt: skip
        return self.enumerator


class Passing:
    """One query on a `Folder`: its plans, reads and commits, batch by batch. It is the planner's peer."""

    def __init__(self, folder: Folder, *, at: dict[str, Any] | None = None, state: str | None = None) -> None:
        self.folder, self.now_us = folder, 10**15
        self.tracks: dict[tuple[str, int], BatchTrack] = {}
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        stream = Stream(
            name="files", stream_id="files", strategy=strategy, key=KEY,
            measure=RecordedMeasure(accumulated(self.tracks)),
            sources=1, kafka=False, declared={}, names={}, reads=True, claims=True,
        )  # fmt: skip
        self.run = StreamRun.attach(stream, token="t", resumes=None, state=state, now_us=self.now_us)
        self.run.places = {1: [0]}  # its source, then its heartbeat
        self.known = KnownPlanner("files", run_token="t")
        assert isinstance(self.run.splits, PlannedSplits)
        self.run.query_id, self.run.splits.planner = "q", self.known
        self.planner: BatchPlanner[SourceSplit] = BatchPlanner(
            folder,
            name="files",
            options=PlanOptions(slots=4),
            now_us=lambda: self.now_us,
            peer=self,
            steady_us=lambda: self.now_us,
        )
        found = None if at is None else BatchOffset.find(at)
        self.at = self.planner.initial() if found is None else found
        self.read: list[str] = []

    def ask(self, run: str) -> Guidance:
        return Guidance(observed_us=self.run.splits.observed_us)

    def tell(self, run: str, planned: Planned) -> None:
        news = self.known.is_news(planned)
        self.known.keep(planned)
        if news:
            self.run.plan(planned, self.now_us)

    def look(self) -> None:
        """Let the enumerator list the folder."""
        present, enumerator = self.planner._present, self.folder.enumerator
        assert present is not None, "a batch was planned before"
        assert enumerator is not None
        present.enumeration.coordinator.run("look", lambda: enumerator._handle_discovered(self.folder.discover(), None))

    def batch(self, *, late_rows: int | None = None) -> tuple[int, int]:
        """Plan, read and report a batch.

        Args:
            late_rows: so many rows of each split are late; None: not counted.

        Returns:
            The size in bytes of the planner's offset and of the state in the heartbeat's offset.
        """
        self.now_us += SECOND
        end = self.planner.plan(self.at, None)
        if end != self.at:
            tracker, names = SplitTracker(), dict[int, str]()
            for task in self.planner.tasks(self.at, end):
                for split in task.splits:
                    first_us = number_of(split.split_id) * ROWS * SECOND
                    names[KEY.split_id((split.split_id,))] = split.split_id
                    mark = SplitMark(first_us + (ROWS - 1) * SECOND, first_us, ROWS)
                    tracker.observe_many(KEY.split_id((split.split_id,)), mark)
                    self.read.append(split.split_id)
            track = self.tracks["q", end.checkpoint - 1] = BatchTrack(tracker, names=names)
            if late_rows is not None:
                track.late = {(split, 0): late_rows for split in names}
            self.at = end
            heartbeat = {"epoch": 1, "low_us": None, "lowmark": "files", "token": "t", "state": ""}
            sources = [{"endOffset": end.to_json()}, {"endOffset": heartbeat}]
            progress = report_of(end.checkpoint - 1, sources)
            self.run.report(progress, 1, planned_at_us=self.now_us, now_us=self.now_us)
            self.planner.committed(end)
        return len(json.dumps(end.to_json())), len(self.run.state())

    def close(self) -> None:
        self.planner.close()


def calls_of(action: Callable[[], object]) -> int:
    """Count an action's calls of functions on this thread, Python's and C's: a cost that is equal on all machines."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls
