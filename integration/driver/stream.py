"""The streams of a service: what is the same in all queries on one wrapped or read DataFrame."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from lowmark.integration.transport.measure import Measure
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import CorruptSnapshot, SplitId, WatermarkStrategy
from lowmark.watermark.splits.stream import SplitWatermarks
from pyspark.sql import DataFrame

from .late_output import LateOutput


def metric_of(stream_id: str) -> str:
    """Return the name of the metric that a stream is observed by."""
    return f"lowmark:{stream_id}"


@dataclass(frozen=True)
class Stream:
    """One wrapped, read or audited DataFrame."""

    name: str
    stream_id: str  # unique in the service; names its metrics and its heartbeat
    strategy: WatermarkStrategy
    key: SplitKey
    measure: Measure
    sources: int = 1  # number of its streaming sources; a progress event lists them before its heartbeat
    kafka: bool = False  # its split columns are a Kafka source's own topic and partition
    declared: Mapping[int, str] = field(default_factory=dict)  # id -> name of the splits that the user declared
    names: dict[int, str] = field(default_factory=dict)  # id -> name of all splits known so far
    withholds: bool = False  # a source may keep rows back, so a poll without a batch does not show that there are none
    keeps_rows: bool = False  # every row of its sources comes out of it
    reads: bool = False  # its source is one of ours, with a planner
    claims: bool = False  # its planner's claims about splits are event times
    shows_names: bool = True  # only its rows tell the names of its splits
    late: LateOutput = field(default_factory=LateOutput)
    dropped: DataFrame | None = None  # writes the rows that Spark drops, and yields none; None: nobody asks for them

    @property
    def tells_late(self) -> bool:
        """Whether tasks need the watermark by which Spark drops rows."""
        return bool(self.late.names) or self.dropped is not None

    @property
    def finds_splits(self) -> bool:
        """Whether only rows tell which splits exist, because neither the source nor the user names them."""
        return not (self.kafka or self.reads or self.declared)

    @property
    def metric(self) -> str:
        return metric_of(self.stream_id)

    def watermarks(self, token: str, state: str | None, now_us: int) -> SplitWatermarks:
        """Return the watermarks of one query's splits, restored if there is a state, as `state_of` returned it.

        Raises `CorruptSnapshot` for a state that cannot be read.
        """
        if not state:
            return SplitWatermarks(self.strategy, job_id=self.stream_id, source_id=self.name, task_id=token)
        try:
            saved = base64.b64decode(state, validate=True)
        except ValueError as invalid:
            raise CorruptSnapshot(f"it is no base64 ({invalid})", len(state)) from invalid
        watermarks = SplitWatermarks.restore(
            saved, self.strategy, job_id=self.stream_id, source_id=self.name, task_id=token, now_us=now_us
        )
        self.names.update((split, name) for split, name in watermarks.names.items() if isinstance(split, int))
        return watermarks

    def state_of(self, watermarks: SplitWatermarks) -> str:
        """Return the state for a restart of one query, base64; includes its splits' names if only rows tell them."""
        names: dict[SplitId, str] = {}
        if self.shows_names:
            kept = (split for split in self.names if split not in self.declared and watermarks.tells_of(split))
            names = {split: self.names[split] for split in kept}
        return base64.b64encode(watermarks.snapshot(names)).decode()

    def name_of(self, split: SplitId) -> str:
        """The split's name, or its hash until the name is known."""
        assert isinstance(split, int)
        name = self.names.get(split)
        if name is None:
            name = self.key.guessed_name(split)
        return f"#{split:016x}" if name is None else name

    def partition_id(self, topic: str, partition: int) -> tuple[int, str]:
        """Id and name of a Kafka partition's split."""
        values = tuple(topic if column == "topic" else partition for column in self.key.columns)
        return self.key.split_id(values), self.key.name(values)


class Streams(dict[str, Stream]):
    """Streams that were wrapped, read or audited, by id, and the names of released streams. Belongs to the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._released: dict[str, str] = {}  # id -> name

    def add(self, stream: Stream) -> None:
        """Add a stream, whose name no other one has."""
        self[stream.stream_id] = stream

    def named(self, name: str) -> Stream | None:
        return next((stream for stream in self.values() if stream.name == name), None)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(stream.name for stream in self.values()))

    def release(self, name: str) -> None:
        """Forget the stream with this name, and close its measurement; without such a stream, do nothing."""
        if (stream := self.named(name)) is not None:
            del self[stream.stream_id]
            self._released[stream.stream_id] = name
            stream.measure.close()

    def why_released(self, stream_id: str) -> str | None:
        """Say that a stream was released, for a query that is about to begin with it; None if it was not."""
        name = self._released.get(stream_id)
        if name is None:
            return None
        return (
            f'stream "{name}": this DataFrame was released, or its name was given to another since. '
            "Hint: start a query on the newer one."
        )

    def close(self) -> None:
        """Drop the measurements of queries that still run."""
        for stream in self.values():
            stream.measure.close()
