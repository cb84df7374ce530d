"""What the live tests of the Kafka source share: discovery, planning and reading by hand, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from lowmark.sources import DataclassSerializer
from lowmark.sources.kafka import KafkaEnumeratorState, KafkaSource, KafkaSplit
from lowmark.sources.reader import read_slices
from lowmark.sources.testing_context import ManualEnumeratorContext

from tests.live.servers import Broker


class Reading:
    """A query by hand: an enumerator with one reader, and the positions of its splits."""

    def __init__(self, source: KafkaSource, state: bytes | None = None) -> None:
        self.source = source
        self.context = ManualEnumeratorContext[KafkaSplit](num_subtasks=1)
        formats = source.enumerator_state_serializer
        self.enumerator = (
            source.create_enumerator(self.context)
            if state is None
            else source.restore_enumerator(self.context, formats.deserialize(formats.version, state))
        )
        self.planner = source.create_planner()
        self.splits: dict[str, KafkaSplit] = {}
        self.finished: set[str] = set()
        self.enumerator.start()
        self.context.register(0)
        self.enumerator.add_reader(0)
        self.context.run_async()
        self._take()

    def _take(self) -> None:
        plain = DataclassSerializer(KafkaSplit)  # what is in a checkpoint is what goes on
        for _, split in self.context.assigned:
            self.splits.setdefault(split.split_id, plain.deserialize(1, plain.serialize(split)))

    def discover(self) -> list[str]:
        """Look for splits once more; return the ids that are new."""
        before = set(self.splits)
        self.context.next_period()
        self._take()
        return sorted(self.splits.keys() - before)

    def snapshot(self) -> bytes:
        state: KafkaEnumeratorState = self.enumerator.snapshot_state(1)
        return self.source.enumerator_state_serializer.serialize(state)

    def batch(self) -> dict[str, pa.Table]:
        """Read all there is now and move on; split id -> rows."""
        going = [split for name, split in self.splits.items() if name not in self.finished]
        ends = self.planner.latest(going)
        slices = [replace(split, stop=ends[split.split_id].position) for split in going if split.split_id in ends]
        tables = read_tables(self.source, slices)
        for split in slices:
            assert split.stop is not None
            self.splits[split.split_id] = replace(self.splits[split.split_id], start=split.stop)
        self.finished |= {name for name, end in ends.items() if end.finished}
        return tables

    def values(self) -> list[str]:
        """Read all there is now and move on; all values, sorted."""
        return sorted(text_of(value) for table in self.batch().values() for value in table["value"].to_pylist())

    def close(self) -> None:
        self.enumerator.close()
        self.planner.close()


def read_tables(source: KafkaSource, slices: Sequence[KafkaSplit]) -> dict[str, pa.Table]:
    """Read slices; split id -> rows, also where there are none."""
    parts: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in slices}
    for part in read_slices(source, slices, stalled_seconds=30):
        parts[part.split_id].append(part.rows)
    return {name: pa.Table.from_batches(batches, schema=source.schema) for name, batches in parts.items()}


def text_of(value: bytes | None) -> str:
    return "<null>" if value is None else value.decode()


def source_of(broker: Broker, *topics: str, **options: Any) -> KafkaSource:
    """A source of these topics; without any, `options` say which."""
    which: Mapping[str, Any] = {"topics": list(topics)} if topics else {}
    return KafkaSource(**{"bootstrap_servers": broker.bootstrap, "give_up_after": "30 seconds", **which, **options})
