"""Log lines of a run for people."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lowmark.integration.spark.kafka_offsets import kafka_rows
from lowmark.integration.spark.offset_log import ahead_of_clock
from lowmark.integration.spark.progress import Progress, SourceProgress
from lowmark.integration.transport.measure import Measured
from lowmark.sources.spark.versions import TRIED
from lowmark.watermark import NotifyNewLowWatermark, SplitId
from lowmark.watermark.duration import rough_duration_us
from lowmark.watermark.splits.events import Effect, SplitReturnedLate, SplitStateChanged
from lowmark.watermark.splits.stream import SplitWatermarks

from .stream import Stream

log = logging.getLogger("lowmark")

_READ_IN_PART = (
    "a foreachBatch function must read the whole batch it is given, in every branch; take, limit and isEmpty read a "
    "part. A thread of its own must run pyspark.inheritable_thread_target(spark)(function), because Spark names the "
    "batch to no other thread. If the function does all that, use a version of Spark that lowmark was tried with, "
    f"{TRIED}."
)
_NO_MEASUREMENT = (
    "Spark's progress event of the batch has no measurement, although the sink reads all rows. Use a version of Spark "
    f"that lowmark was tried with, {TRIED}, or report the error with the event."
)

_TOLD_AFTER_US = 60_000_000
"""A split must hold for so long before the log names it, because splits side by side take turns with each batch."""


def log_effect(stream: Stream, effect: Effect) -> None:
    """Log an effect that people should know of."""
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


@dataclass
class RowsLog:
    """Warnings about the rows of a batch: each once in a run, but each time for a batch that was not measured."""

    looked_at_watermark: bool = False
    _told_times: bool = False
    _told_part: bool = False

    def look(
        self,
        stream: Stream,
        watermarks: SplitWatermarks,
        progress: Progress,
        sources: Sequence[SourceProgress],
        measured: Measured | None,
    ) -> bool:
        """Look at a report that was taken. Return whether its batch had rows that were not measured."""
        self._look_at_watermark(stream, progress.watermark_us)
        said = None if self._told_times else watermarks.unusable_times
        if said is not None:
            self._told_times = True
            log.warning('stream "%s": %s', stream.name, said)
        if measured is not None:
            # Offsets of transaction markers and compacted records are not rows.
            self._look_at_part(stream, progress.batch_id, measured.counts.rows, sum(kafka_rows(sources).values()))
            return False
        unmeasured = any(source.num_input_rows > 0 for source in sources)
        if unmeasured:
            log.warning(
                'stream "%s", query %s, batch %d: the batch was not measured, so the watermark holds. Hint: %s',
                stream.name,
                progress.id if progress.name is None else progress.name,
                progress.batch_id,
                _READ_IN_PART if progress.in_part else _NO_MEASUREMENT,
            )
        return unmeasured

    def _look_at_watermark(self, stream: Stream, watermark_us: int | None) -> None:
        """Warn of a watermark in the first batch that is ahead of the clock: a native query may have written any."""
        looked, self.looked_at_watermark = self.looked_at_watermark, True
        where = None if looked or watermark_us is None else ahead_of_clock(watermark_us, now_us=time.time_ns() // 1_000)
        if where is not None:
            log.warning(
                'stream "%s": Spark\'s watermark %s. It does not go back: Spark drops all rows of before. '
                "Hint: start with a new checkpoint; for Kafka, `lowmark offsets CHECKPOINT` says where.",
                stream.name,
                where,
            )

    def _look_at_part(self, stream: Stream, batch_id: int, measured_rows: int, offsets: int) -> None:
        """Warn of a batch that was read in part, because unread rows move no watermark."""
        if self._told_part or not stream.keeps_rows or not 0 < measured_rows * 2 < offsets:
            return
        self._told_part = True
        log.warning(
            'stream "%s", batch %d: %s rows were measured of a batch of %s Kafka offsets; rows that are not read '
            "move no watermark. Hint: a foreachBatch function must read the whole batch it is given (write it, count "
            "it); take, limit and isEmpty read a part. A compacted topic, or a topic with short "
            "transactions, has fewer rows than offsets.",
            stream.name,
            batch_id,
            f"{measured_rows:,}",
            f"{offsets:,}",
        )


@dataclass
class HolderLog:
    """Logs one line for each split that comes to hold the low watermark and keeps holding it."""

    _holder: SplitId | None = None
    _since_us: int = 0
    _told: SplitId | None = None
    _epoch: int = -1

    def look(self, stream: Stream, watermarks: SplitWatermarks, now_us: int, *, changed: bool) -> None:
        """Log the holder and its reason once the split has held for `_TOLD_AFTER_US`."""
        if changed or watermarks.epoch != self._epoch:  # otherwise the holder is the same
            self._epoch, before = watermarks.epoch, self._holder
            self._holder = watermarks.holder
            if self._holder != before:
                self._since_us = now_us
        holder = self._holder
        held_us = now_us - self._since_us
        if holder == self._told or held_us < _TOLD_AFTER_US:
            return
        self._told = holder
        if holder is None:
            log.info('stream "%s": nobody holds the low watermark any more', stream.name)
            return
        status = watermarks.status(now_us, stream.name_of, limit=0)
        log.info(
            'stream "%s": split %s holds the low watermark, for %s by now: %s Next: %s',
            stream.name,
            stream.name_of(holder),
            rough_duration_us(held_us),
            status.why,
            status.next,
        )
