"""What a run tells a person in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowmark.integration.spark.offset_log import ahead_of_clock
from lowmark.watermark import NotifyNewLowWatermark, SplitId, format_duration_us
from lowmark.watermark.splits.events import Effect, SplitReturnedLate, SplitStateChanged

from .stream import Stream

if TYPE_CHECKING:
    from lowmark.watermark.splits.stream import StreamCoordinator

__all__ = ["HolderLog", "RowsLog", "log_effect", "log_unmeasured"]

log = logging.getLogger("lowmark")

TOLD_AFTER_US = 60_000_000
"""So long a split holds before the log names it: of splits that go side by side, each batch another one holds."""


def log_effect(stream: Stream, effect: Effect) -> None:
    """Log what a person should know of."""
    match effect:
        case SplitStateChanged(split, before, after, why):
            log.info(
                'stream "%s": split %s is now %s, was %s: %s',
                stream.name,
                stream.name_of(split),
                after.value,
                before.value,
                why,
            )
        case SplitReturnedLate(split, behind_us):
            log.warning(
                'stream "%s": split %s came back %.3f s behind the low watermark; its rows there are late',
                stream.name,
                stream.name_of(split),
                behind_us / 1e6,
            )
        case NotifyNewLowWatermark():
            pass  # once per batch: metrics and status show it


def log_unmeasured(stream: Stream, query: str, batch_id: int) -> None:
    """A batch had rows and no measurement."""
    log.warning(
        'stream "%s", query %s, batch %d: the batch was not measured, so the watermark holds. '
        "Hint: a foreachBatch function must read the whole batch it is given, in every branch; take, limit and isEmpty "
        "read a part.",
        stream.name,
        query,
        batch_id,
    )


def log_ahead(stream: Stream, watermark_us: int | None, now_us: int) -> None:
    """Spark's watermark in the first batch is what the checkpoint says, and a native query's may be anywhere."""
    where = None if watermark_us is None else ahead_of_clock(watermark_us, now_us)
    if where is not None:
        log.warning(
            'stream "%s": Spark\'s watermark %s. It does not go back: Spark drops all rows of before. '
            "Hint: start with a new checkpoint; for Kafka, `lowmark offsets CHECKPOINT` says where.",
            stream.name,
            where,
        )


@dataclass
class RowsLog:
    """Two warnings, each logged once in a run: event times that cannot be meant, and a batch that was read in part."""

    _times: bool = False
    _part: bool = False

    def look_at_times(self, stream: Stream, coordinator: StreamCoordinator) -> None:
        """Log event times that cannot be meant."""
        said = None if self._times else coordinator.unusable_times
        if said is not None:
            self._times = True
            log.warning('stream "%s": %s', stream.name, said)

    def look_at_part(self, stream: Stream, batch_id: int, measured_rows: int, offsets: int) -> None:
        """Log that a batch was read in part: its rows that were not read move no watermark.

        Args:
            stream: what was read.
            batch_id: the batch.
            measured_rows: how many rows of it were measured.
            offsets: how many offsets Kafka's partitions moved in it. Not every offset is a row: markers of transactions
                and compacted records are none.
        """
        if self._part or not stream.keeps_rows or not 0 < measured_rows * 2 < offsets:
            return
        self._part = True
        log.warning(
            'stream "%s", batch %d: %s rows were measured of a batch of %s Kafka offsets; rows that are not read '
            "move no watermark. Hint: a foreachBatch function must read the whole batch it is given (write it, count "
            "it); take, limit and isEmpty read a part. Of a topic that is compacted, or whose transactions are short, "
            "this is as it should be.",
            stream.name,
            batch_id,
            f"{measured_rows:,}",
            f"{offsets:,}",
        )


@dataclass
class HolderLog:
    """One line for each split that comes to hold the low watermark, and stays."""

    _holder: SplitId | None = None
    _since_us: int = 0
    _told: SplitId | None = None
    _epoch: int = -1

    def look(self, stream: Stream, coordinator: StreamCoordinator, now_us: int, *, changed: bool) -> None:
        """Log who holds, and why, once it has for `TOLD_AFTER_US`.

        Args:
            stream: what is held.
            coordinator: knows the holder.
            now_us: now, on the service's clock.
            changed: whether some split's state has; else the holder is looked for where the epoch has grown.
        """
        if changed or coordinator.epoch != self._epoch:
            self._epoch, before = coordinator.epoch, self._holder
            self._holder = coordinator.holder
            if self._holder != before:
                self._since_us = now_us
        holder = self._holder
        held_us = now_us - self._since_us
        if holder == self._told or held_us < TOLD_AFTER_US:
            return
        self._told = holder
        if holder is None:
            log.info('stream "%s": nobody holds the low watermark any more', stream.name)
            return
        status = coordinator.status(now_us, stream.name_of, limit=0)
        log.info(
            'stream "%s": split %s holds the low watermark, for %s by now: %s Next: %s',
            stream.name,
            stream.name_of(holder),
            format_duration_us(held_us),
            status.why,
            status.next,
        )
