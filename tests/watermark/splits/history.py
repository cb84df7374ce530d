"""Shorthand for a stream's history: a coordinator, and its events by second."""

from __future__ import annotations

from collections.abc import Mapping

from lowmark.watermark import NotifyNewLowWatermark, SplitId, StreamStatus, WatermarkStrategy
from lowmark.watermark.splits.events import (
    BatchCounts,
    BatchReported,
    Effect,
    Event,
    SplitReturnedLate,
    SplitStateChanged,
)
from lowmark.watermark.splits.stream import SplitWatermarks
from lowmark.watermark.state import IdleClock

START_US = 1_700_000_000_000_000
PLAIN = WatermarkStrategy.for_monotonous_timestamps()
IDLENESS = PLAIN.with_idleness("10 seconds", clock="time")
BY_TIME = WatermarkStrategy(idle_clock=IdleClock.TIME)  # silence counts even if no split delivers


def at(second: float) -> int:
    """Return the time this many seconds after the start, on the coordinator's clock."""
    return START_US + int(second * 1_000_000)


def watermarks_of(strategy: WatermarkStrategy = PLAIN) -> SplitWatermarks:
    return SplitWatermarks(strategy, job_id="job", source_id="orders", task_id="0")


def restored(of_splits: SplitWatermarks, second: float, strategy: WatermarkStrategy = PLAIN) -> SplitWatermarks:
    return SplitWatermarks.restore(
        of_splits.snapshot(), strategy, job_id="job", source_id="orders", task_id="0", now_us=at(second)
    )


def batch(
    batch_id: int,
    planned: float,
    watermarks_us: Mapping[SplitId, int] | None = None,
    *,
    first_us: Mapping[SplitId, int] | None = None,
    rows: Mapping[SplitId, int] | None = None,
    backlog: Mapping[SplitId, int] | None = None,
    in_force_us: int | None = None,
    counts: BatchCounts | None = None,
    newest_us: int | None = None,
    future_rows: Mapping[SplitId, int] | None = None,
) -> BatchReported:
    return BatchReported(
        batch_id,
        at(planned),
        watermarks_us or {},
        first_us or {},
        rows or {},
        backlog or {},
        in_force_us,
        counts or BatchCounts(),
        newest_us=newest_us,
        future_rows=future_rows or {},
    )


class History:
    """A coordinator with a clock in seconds, and all its effects."""

    def __init__(self, strategy: WatermarkStrategy = PLAIN) -> None:
        self.strategy = strategy
        self.watermarks = watermarks_of(strategy)

    def on(self, second: float, event: Event) -> list[object]:
        """Handle an event; return its effects in short form."""
        return [short(effect) for effect in self.watermarks.handle(event, at(second))]

    def restart(self, second: float) -> None:
        self.watermarks = restored(self.watermarks, second, self.strategy)

    def status(self, second: float, limit: int | None = None) -> StreamStatus:
        return self.watermarks.status(at(second), limit=limit)

    def state(self, split: str) -> str:
        return self.status(0).splits[split].state.value

    @property
    def low_us(self) -> int | None:
        return self.watermarks.low_watermark_us


def short(effect: Effect) -> object:
    """Shorten an effect to ("low", 5), ("a", "idle") or ("a late by", 5)."""
    match effect:
        case NotifyNewLowWatermark():
            return ("low", effect.new_low_watermark)
        case SplitStateChanged():
            return (effect.split, effect.after.value)
        case SplitReturnedLate():
            return (f"{effect.split} late by", effect.behind_us)


def history_of(**watermarks_us: int) -> History:
    """A history of splits with watermarks from batch 0, planned at second 0, with idleness of 10 seconds."""
    history = History(IDLENESS)
    history.on(0, batch(0, 0, {str(split): us for split, us in watermarks_us.items()}))
    return history
