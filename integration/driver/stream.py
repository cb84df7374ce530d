"""One wrapped or read DataFrame: what of it is the same in all of its queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowmark.integration.transport.accumulated import TrackShelf
from lowmark.integration.transport.observed import Measurement
from lowmark.integration.transport.split_key import SplitKey
from lowmark.watermark import SplitId, WatermarkStrategy

__all__ = ["Stream"]


@dataclass(frozen=True)
class Stream:
    """One wrapped DataFrame.

    Attributes:
        name: as the user gave it.
        stream_id: unique in the service; names its metrics and its heartbeat.
        strategy: how its watermark is made.
        key: its split columns.
        measurement: what is observed, None where rows pass through Python.
        sources: how many streaming sources feed it; in a progress event they stand before its heartbeat.
        kafka: its split columns are a Kafka source's own topic and partition.
        declared: id -> name of the splits that the user declared.
        names: id -> name, learnt as the stream goes.
        tracks: what passed through Python, by query and batch; None where nothing does.
        withholds: a source may keep rows back, so a poll that led to no batch does not show that it had none.
        reads: its source is one of ours, whose planner says what it plans.
        promises: the times that its planner knows are the event times.
    """

    name: str
    stream_id: str
    strategy: WatermarkStrategy
    key: SplitKey
    measurement: Measurement | None
    sources: int
    kafka: bool
    declared: Mapping[int, str]
    names: dict[int, str]
    tracks: TrackShelf | None = None
    withholds: bool = False
    reads: bool = False
    promises: bool = False

    @property
    def metric(self) -> str:
        return f"lowmark:{self.stream_id}"

    @property
    def heartbeat_metric(self) -> str:
        return f"lowmark:{self.stream_id}:heartbeat"

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
