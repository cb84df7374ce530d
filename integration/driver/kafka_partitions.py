"""The splits of Spark's own Kafka source: its offsets name every partition, with read rows and backlog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowmark.integration.spark.kafka_offsets import backlog_rows, kafka_positions, kafka_rows
from lowmark.integration.spark.progress import SourceProgress
from lowmark.watermark import SplitId
from lowmark.watermark.printable import some_of
from lowmark.watermark.splits.events import Event, SplitsDiscovered, SplitsRemoved

from .splits import Splits

log = logging.getLogger("lowmark")

Partition = tuple[str, int]


@dataclass
class KafkaPartitions(Splits):
    """Splits of Spark's Kafka source, see `Splits`: every partition is a split, known before its first row."""

    refuse: Callable[[str], None]  # ends the query with a reason
    _ids: dict[Partition, int] = field(default_factory=dict, init=False)

    def discover(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:
        # The backlog does not show all partitions: a batch that Spark runs again has end offsets and no latest offsets.
        backlog = backlog_rows(sources)
        taken = {split: partition for partition, split in self._ids.items()}
        new, empty = [], set()
        for partition in (p for source in sources for p in kafka_positions(source.end_offset)):
            if partition not in self._ids:
                split, name = self.stream.partition_id(*partition)
                if split in taken:
                    self._refuse_merged(partition, taken[split], name)
                self._ids[partition] = split
                taken[split] = partition
                self.stream.names[split] = name
                new.append(split)
                if backlog.get(partition) == 0:
                    empty.add(split)
        # New splits come first, because the low watermark has no holder while the stream has no split.
        if new:
            yield SplitsDiscovered(tuple(new), frozenset(empty))
        yield from self._let_go(sources)

    def _backlog_rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:
        backlog = self._by_split(backlog_rows(sources))
        self.has_backlog = any(rows > 0 for rows in backlog.values())
        return backlog

    def _rows(self, sources: Sequence[SourceProgress]) -> Mapping[SplitId, int]:
        return self._by_split(kafka_rows(sources))

    def _let_go(self, sources: Sequence[SourceProgress]) -> Iterator[Event]:
        """Remove partitions that the sources have stopped reading, such as the partitions of an unsubscribed topic.

        A removed partition is not finished: after its return it is a new split, and is waited for.
        """
        read = [kafka_positions(source.end_offset) for source in sources]
        if not read or not all(read):
            return  # the sources are unknown, have no offsets yet, or are not Kafka's
        live = {self._ids[partition] for positions in read for partition in positions} | set(self.stream.declared)
        gone = tuple(split for split in self.watermarks.splits if split not in live)
        if not gone:
            return
        self._ids = {partition: split for partition, split in self._ids.items() if split in live}
        for partition in (p for source in sources for p in kafka_positions(source.start_offset)):
            self.stream.names.setdefault(*self.stream.partition_id(*partition))  # a restart learns names here
        names = some_of(sorted(map(self.stream.name_of, gone)), most=10)
        log.warning('stream "%s": not read any more, so not waited for any more: %s', self.stream.name, names)
        yield SplitsRemoved(gone)

    def _refuse_merged(self, partition: Partition, other: Partition, name: str) -> None:
        """Refuse a split that stands for one partition number of two topics, because one topic would speak for both."""
        self.refuse(
            f'stream "{self.stream.name}": the split {name} stands for partition {partition[1]} of both topic '
            f'"{other[0]}" and topic "{partition[0]}", so the one that is ahead would make the rows of the other late. '
            'Hint: pass split=["topic", "partition"].'
        )

    def _by_split(self, by_partition: Mapping[Partition, int]) -> dict[SplitId, int]:
        return {self._ids[p]: rows for p, rows in by_partition.items() if p in self._ids}
