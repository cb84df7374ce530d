"""What the live tests of the Pravega source share: discovery, planning and reading by hand, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from lowmark.sources import DataclassSerializer
from lowmark.sources.pravega import PravegaSource, PravegaSplit
from lowmark.sources.reading.slices import read_slices
from lowmark.sources.slicing import SliceLimits, SlicePlan, plan_slices
from lowmark.sources.testing import ManualEnumeratorContext


class Reading:
    """A query by hand: an enumerator with one reader, and the positions of its splits."""

    def __init__(self, source: PravegaSource, before: Reading | None = None) -> None:
        self.source = source
        self.context = ManualEnumeratorContext[PravegaSplit](num_subtasks=1)
        formats = source.enumerator_state_serializer
        self.enumerator = (
            source.create_enumerator(self.context)
            if before is None
            else source.restore_enumerator(self.context, formats.deserialize(formats.version, before.snapshot()))
        )
        self.planner = source.create_planner()
        self.splits: dict[str, PravegaSplit] = {} if before is None else dict(before.splits)
        self.finished: list[str] = []
        self.enumerator.start()
        self.context.register(0)
        self.enumerator.add_reader(0)
        self.context.run_async()
        self._take()

    def _take(self) -> None:
        plain = DataclassSerializer(PravegaSplit)  # what is in a checkpoint is what goes on
        for _, split in self.context.assigned:
            if split.split_id not in self.finished:
                self.splits.setdefault(split.split_id, plain.deserialize(1, plain.serialize(split)))

    def discover(self) -> list[str]:
        """Look for splits once more; return the ids that are new."""
        before = set(self.splits)
        self.context.next_period()
        self._take()
        return sorted(self.splits.keys() - before)

    def snapshot(self) -> bytes:
        return self.source.enumerator_state_serializer.serialize(self.enumerator.snapshot_state(1))

    def plan(self, rows: int | None = None, cap_us: int | None = None) -> SlicePlan:
        limits = SliceLimits(now_us=time.time_ns() // 1_000, rows=rows, cap_us=cap_us)
        return plan_slices(self.planner, list(self.splits.values()), limits, previous_time_us=None)

    def batch(self, rows: int | None = None, cap_us: int | None = None) -> dict[str, pa.Table]:
        """Plan and read one batch, and move on; split id -> rows."""
        plan = self.plan(rows, cap_us)
        slices = [replace(self.splits[name], stop=cut.stop) for name, cut in plan.slices.items()]
        tables = read_tables(self.source, slices)
        for name, cut in plan.slices.items():
            if cut.finished:
                self.finished.append(name)
                del self.splits[name]
            else:
                self.splits[name] = replace(self.splits[name], start=cut.stop)
        return tables

    def events(self, rows: int | None = None) -> list[bytes]:
        """Read one batch; all events, sorted."""
        return sorted(event for table in self.batch(rows).values() for event in events_of(table))

    def close(self) -> None:
        self.enumerator.close()
        self.planner.close()


def events_of(table: pa.Table) -> list[bytes]:
    return [event for event in table["event"].to_pylist() if event is not None]


def read_tables(source: PravegaSource, slices: Sequence[PravegaSplit]) -> dict[str, pa.Table]:
    """Read slices; split id -> rows, also where there are none."""
    parts: dict[str, list[pa.RecordBatch]] = {split.split_id: [] for split in slices}
    for part in read_slices(source, slices, stalled_seconds=30):
        parts[part.split_id].append(part.rows)
    return {name: pa.Table.from_batches(batches, schema=source.schema) for name, batches in parts.items()}
