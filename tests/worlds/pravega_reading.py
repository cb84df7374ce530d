"""Common parts of the live tests of the Pravega source: discovery, planning and reading by hand, without Spark."""

from __future__ import annotations

import time

import pyarrow as pa
from lowmark.sources.pravega import PravegaSource, PravegaSplit
from lowmark.sources.slicing import SliceLimits, SlicePlan, plan_slices

from tests.worlds import reading
from tests.worlds.reading import read_tables


class Reading(reading.Reading[PravegaSplit]):
    """A query by hand on Pravega, from the beginning or from the positions of another query."""

    def __init__(self, source: PravegaSource, before: Reading | None = None) -> None:
        state, splits = (None, None) if before is None else (before.snapshot(), before.splits)
        super().__init__(source, PravegaSplit, state, splits)
        if before is not None:
            self.finished = set(before.finished)

    def plan(self, rows: int | None = None, read_before_us: int | None = None) -> SlicePlan:
        limits = SliceLimits(now_us=time.time_ns() // 1_000, rows=rows, read_before_us=read_before_us)
        return plan_slices(self.planner, self.going, limits, previous_time_us=None)

    def batch(self, rows: int | None = None, read_before_us: int | None = None) -> dict[str, pa.Table]:
        """Plan and read one batch, and advance; return split id -> rows."""
        plan = self.plan(rows, read_before_us)
        cuts = self.planner.cut([(self.splits[name], cut.stop) for name, cut in plan.slices.items()])
        tables = read_tables(self.source, [part for part, _ in cuts], self.counted.update)
        for (_, rest), cut in zip(cuts, plan.slices.values(), strict=True):
            self.splits[rest.split_id] = rest
            if cut.finished:
                self.finished.add(rest.split_id)
        return tables

    def events(self, rows: int | None = None) -> list[bytes]:
        """Read one batch; return all events, sorted."""
        return sorted(event for table in self.batch(rows).values() for event in events_of(table))


def events_of(table: pa.Table) -> list[bytes]:
    return [event for event in table["event"].to_pylist() if event is not None]
