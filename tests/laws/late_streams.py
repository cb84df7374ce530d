"""Streams of one split with various kinds of late rows, reported to the coordinator as a query reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from lowmark.watermark import WatermarkStrategy
from lowmark.watermark.lateness import SliceLateness
from lowmark.watermark.splits.events import BatchReported, SplitColumn
from lowmark.watermark.splits.stream import SplitWatermarks

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
LATE_S = 30.0
SPLIT = 7

Micros = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Chance = np.random.Generator


@dataclass(frozen=True, slots=True)
class LateStream:
    """A batch of rows each second, evenly spread over the second.

    Attributes:
        name: the kind of late rows.
        delays_s: maps arrival times to the delays of their rows behind their event times, both in seconds, shape (n,).
    """

    name: str
    delays_s: Callable[[Chance, Seconds], Seconds]

    def batches(self, seed: int, rows: int) -> Iterator[Micros]:
        """Yield the event times of batch after batch, in order of arrival, without end."""
        chance, second = np.random.default_rng(seed), 0
        while True:
            at_s = second + np.arange(rows) / rows
            yield START_US + ((at_s - self.delays_s(chance, at_s)) * SECOND_US).astype(np.int64)
            second += 1


def one_in_20(offset_s: float) -> Callable[[Chance, Seconds], Seconds]:
    """Make whole late seconds, with their rows in order; they begin so many seconds after a batch begins."""
    late = np.random.default_rng(20).random(1 << 16) < 1 / 20
    return lambda _, at_s: np.where(late[np.floor(at_s + offset_s).astype(np.int64) % len(late)], LATE_S, 0.0)


def late_for(late_s: float, period_s: float) -> Callable[[Chance, Seconds], Seconds]:
    """Make rows late for some seconds in the middle of each period, and by about a second at other times."""
    first_s = period_s / 2
    return lambda chance, at_s: (
        np.where((at_s - first_s) % period_s < late_s, LATE_S, 0.0) + chance.exponential(1.0, len(at_s))
    )


STREAMS = (
    LateStream("exponential delays", lambda chance, at_s: chance.exponential(2.0, len(at_s))),
    LateStream("Pareto delays", lambda chance, at_s: chance.pareto(2.0, len(at_s))),
    LateStream("a batch in 20 is late as a whole", one_in_20(0.0)),
    LateStream("the same, cut elsewhere", one_in_20(0.5)),
    LateStream("10 s of every 200 s are late", late_for(10, 200)),
    LateStream("50 s of every 1,000 s are late", late_for(50, 1_000)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of late rows and batches of a stream, as multiples of 1 - coverage.

    Attributes:
        rows: rows at or below the watermark of the previous batches.
        batches: batches with at least one late row.
    """

    rows: float
    batches: float


def drive(
    stream: LateStream,
    coverage: float,
    *,
    by_rows: bool,
    warm: int,
    batches: int,
    restart_every: int | None = None,
    rows: int = 50,
    seed: int = 1,
) -> Outcome:
    """Run a stream with an adaptive bound.

    Args:
        stream: the stream.
        coverage: the coverage of the bound.
        by_rows: report lateness row by row, as our sources do, or only the extremes, as Spark's sketches do.
        warm: number of first batches that are not counted.
        batches: number of counted batches.
        restart_every: number of batches between two restarts, None for no restart.
        rows: number of rows of a batch.
        seed: seed of the stream.
    """
    strategy = WatermarkStrategy.for_adaptive_out_of_orderness(coverage, at_least="0 seconds")
    names = {"job_id": "job", "source_id": "stream", "task_id": "0"}
    watermarks = SplitWatermarks(strategy, **names)
    late_rows = late_batches = 0
    for batch, times_us in zip(range(warm + batches), stream.batches(seed, rows), strict=False):
        if restart_every is not None and batch % restart_every == 0:
            watermarks = SplitWatermarks.restore(watermarks.snapshot(), strategy, now_us=batch, **names)
        low_us = watermarks.low_watermark_us
        if low_us is not None and batch >= warm:
            late = int(np.count_nonzero(times_us <= low_us))
            late_rows, late_batches = late_rows + late, late_batches + (late > 0)
        watermarks.handle(_report(batch, times_us, strategy, by_rows=by_rows), batch * SECOND_US)
    return Outcome(late_rows / (rows * batches) / (1 - coverage), late_batches / batches / (1 - coverage))


def _report(batch: int, times_us: Micros, strategy: WatermarkStrategy, *, by_rows: bool) -> BatchReported:
    watermarks_us = strategy.watermarks_of_max(times_us.max(keepdims=True))
    seen: Mapping[str, Any] = {}
    if by_rows:
        lateness = SliceLateness()
        lateness.add(times_us)
        seen = {"lateness": {SPLIT: lateness.behind}, "times": {SPLIT: lateness.times}}
    return BatchReported(
        batch,
        batch * SECOND_US,
        SplitColumn(np.array([SPLIT], np.uint64), watermarks_us),
        first_us={SPLIT: int(times_us.min())},
        rows={SPLIT: len(times_us)},
        **seen,
    )
