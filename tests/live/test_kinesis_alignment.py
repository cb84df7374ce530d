"""A Kinesis stream in one alignment group with a scripted stream: none reads further ahead than the drift, all is read.

Like `tests/integration/driver/test_aligned_reading.py`, with real reading.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
import pytest
from lowmark.integration.transport.accumulated import BatchTrack
from lowmark.sources import Source
from lowmark.sources.generator import GeneratorSource, SplitScript, StreamScript
from lowmark.sources.reading.slices import read_slices
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.splits.tracker import SplitMark, SplitTracker

from tests.integration.driver.test_aligned_reading import KEY, Streams
from tests.integration.driver.test_aligned_reading import Query as AnyQuery
from tests.servers.kinesis import Kinesis
from tests.servers.local import wait_until
from tests.worlds.kinesis_reading import Writer, source_of

pytestmark = [pytest.mark.live]

MS = 1_000


class Query(AnyQuery):
    """A query on one stream of the group that reads its planned batches."""

    def __init__(self, streams: Streams, name: str, source: Source[Any, Any], strategy: WatermarkStrategy) -> None:
        super().__init__(streams, name, source, strategy)  # type: ignore[arg-type]
        self.reads = source

    def batch(self) -> None:
        self.streams.now_us = time.time_ns() // 1_000
        end = self.planner.plan(self.at, None)
        if end == self.at:
            return
        tracker, names = SplitTracker(), {}
        column = self.reads.event_time
        assert column is not None
        slices: list[Any] = [split for task in self.planner.tasks(self.at, end) for split in task.splits]
        for part in read_slices(self.reads, slices):
            times = [int(at) for at in part.rows.column(column).cast(pa.int64()).to_pylist() if at is not None]
            assert self.asked_us is None or max(times) < self.asked_us, "beyond the cap"
            split = KEY.split_id((part.split_id,))
            tracker.observe_many(split, SplitMark(max(times), min(times), len(times)))
            names[split] = part.split_id
            self.rows += times
        self.tracks[self.run.token, end.checkpoint - 1] = BatchTrack(tracker, names=names)
        self.planner.committed(end)
        self.at = end
        now_us = self.streams.now_us
        self.run.report(self.progress(end), 1, planned_at_us=now_us, now_us=now_us)
        self.streams.cooperation.report(self.run)


def test_neither_runs_ahead_of_the_other(kinesis: Kinesis) -> None:
    drift_ms = 100
    stream = kinesis.create_stream(2)
    writer = Writer(kinesis, stream)
    began_us = time.time_ns() // 1_000
    for moment in range(30):
        writer.put(20)
        until = began_us / 1e6 + 0.05 * (moment + 1)
        wait_until(lambda end=until: time.time() >= end, "the next moment")  # type: ignore[misc]
    # The script is longer than the writing, also on a busy machine, because it must not end before the last row.
    script = StreamScript((SplitScript("a", 20),), began_us // MS * MS, 2_000, 50 * MS, 10 * MS)
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness("20 milliseconds")
        .with_watermark_alignment("g", f"{drift_ms} milliseconds", "1 millisecond")
    )  # fmt: skip
    streams = Streams()
    with ExitStack() as planners:
        ours = Query(streams, "ours", source_of(kinesis, stream, poll_every="10 milliseconds"), strategy)
        other = Query(streams, "other", GeneratorSource(script, seed=1), strategy)
        for query in (ours, other):
            planners.enter_context(closing(query.planner))
        batches = 0
        stood: list[tuple[int, int]] = []  # (number of rows of ours that were read, the other stream's newest time)

        def all_read() -> bool:
            nonlocal batches
            for query in (ours, other):
                before = len(query.rows)
                query.batch()
                batches += len(query.rows) > before
            if ours.rows and other.rows and len(ours.rows) < 600:
                stood.append((len(ours.rows), max(other.rows)))
            return len(ours.rows) == 600

        wait_until(all_read, "all rows of ours", seconds=90)
    assert batches > 1_500 // drift_ms, "in turns"
    # Compare with the next row of ours, because during a pause of writing no row of ours holds the other stream.
    ahead_us = max(at_us - min(ours.rows[rows:]) for rows, at_us in stood)
    behind_us = max(max(ours.rows[:rows]) - at_us for rows, at_us in stood)
    # Add the strategy's bound, a tick of the other stream and the claims' distance to the drift.
    assert max(ahead_us, behind_us) <= (drift_ms + 20 + 50 + 10) * MS
